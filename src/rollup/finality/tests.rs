use super::*;
use alloy_primitives::B256;

fn id(number: u64) -> BlockId {
    BlockId {
        number,
        hash: B256::from(alloy_primitives::U256::from(number + 1)),
    }
}

/// A record: L2 block `10 n` became safe by L1 block `n`.
fn safe(n: u64) -> SafeRecord {
    SafeRecord {
        l2: id(10 * n),
        derived_from: id(n),
    }
}

#[test]
fn the_newest_block_whose_l1_block_is_final_is_proposed() {
    let mut finality = Finality::new(LOOKBACK, DELAY);
    (1..=20).for_each(|n| finality.on_safe(safe(n)));
    assert_eq!(finality.candidate(id(20)), None, "no signal yet");
    finality.on_finalized_l1(id(7));
    let candidate = finality.candidate(id(20)).unwrap();
    assert_eq!((candidate.block, candidate.finalized_l1), (safe(7), id(7)));
    finality.attempted(id(20), Some(safe(7).l2));
    finality.on_idle();
    assert_eq!(finality.candidate(id(20)), None, "nothing newer is final");
    finality.on_finalized_l1(id(9));
    assert_eq!(finality.candidate(id(20)).unwrap().block, safe(9));
}

#[test]
fn a_failed_attempt_is_repeated_after_the_delay_when_idle_or_with_the_next_signal() {
    let mut finality = Finality::new(LOOKBACK, DELAY);
    (1..=3).for_each(|n| finality.on_safe(safe(n)));
    finality.on_finalized_l1(id(2));
    finality.attempted(id(3), None);
    assert_eq!(finality.candidate(id(3 + DELAY - 1)), None);
    assert_eq!(finality.candidate(id(3 + DELAY)).unwrap().block, safe(2));
    finality.on_idle();
    assert_eq!(finality.candidate(id(3)).unwrap().block, safe(2));
    finality.attempted(id(3), None);
    finality.on_finalized_l1(id(3));
    assert_eq!(finality.candidate(id(3)).unwrap().block, safe(3));
}

#[test]
fn one_block_is_kept_for_each_l1_block_and_no_more_than_the_lookback() {
    let mut finality = Finality::new(4, DELAY);
    (1..=100).for_each(|n| {
        finality.on_safe(SafeRecord {
            l2: id(10 * n - 5),
            derived_from: id(n),
        });
        finality.on_safe(safe(n));
    });
    assert_eq!(finality.safe, [97, 98, 99, 100].map(safe));
    finality.on_finalized_l1(id(96));
    assert_eq!(finality.candidate(id(100)), None, "forgotten");
    finality.on_finalized_l1(id(200));
    assert_eq!(finality.candidate(id(100)).unwrap().block, safe(100));
}

#[test]
fn a_refused_signal_gives_way_to_any_other_one() {
    let mut finality = Finality::new(LOOKBACK, DELAY);
    (1..=20).for_each(|n| finality.on_safe(safe(n)));
    let wrong = BlockId {
        hash: B256::ZERO,
        ..id(15)
    };
    finality.on_finalized_l1(wrong);
    assert!(finality.is_news(id(15)), "another block of the same number");
    finality.refuse_finalized_l1();
    assert_eq!(finality.candidate(id(20)), None);
    finality.on_finalized_l1(wrong);
    assert_eq!(finality.finalized_l1(), None, "still refused");
    finality.on_finalized_l1(id(9));
    assert_eq!(finality.candidate(id(20)).unwrap().block, safe(9));
    finality.on_finalized_l1(id(15));
    assert_eq!(finality.candidate(id(20)).unwrap().block, safe(15));
    // After a reset the same block may be reported again: the refusal may have been the endpoint's
    // fault.
    finality.refuse_finalized_l1();
    assert!(!finality.is_news(id(15)));
    finality.reset();
    assert!(finality.is_news(id(15)));
}

#[test]
fn older_signals_are_ignored_and_a_reset_forgets_safe_blocks() {
    let mut finality = Finality::new(LOOKBACK, DELAY);
    (1..=20).for_each(|n| finality.on_safe(safe(n)));
    finality.on_finalized_l1(id(9));
    assert!(!finality.is_news(id(4)) && !finality.is_news(id(9)) && finality.is_news(id(10)));
    finality.on_finalized_l1(id(4));
    assert_eq!(finality.finalized_l1(), Some(id(9)));
    finality.reset();
    assert_eq!(finality.candidate(id(20)), None);
    finality.on_safe(safe(8));
    assert_eq!(finality.candidate(id(20)).unwrap().block, safe(8));
    // Blocks that are derived again are below the finalized block.
    finality.attempted(id(20), Some(id(95)));
    finality.on_idle();
    assert_eq!(finality.candidate(id(20)), None);
}

#[test]
fn restored_blocks_become_final_like_others_and_none_below_the_finalized_one() {
    let mut finality = Finality::new(4, DELAY);
    finality.restore(id(30).number, (1..=6).map(safe));
    assert_eq!(finality.safe, [3, 4, 5, 6].map(safe));
    finality.on_finalized_l1(id(3));
    assert_eq!(finality.candidate(id(6)), None, "it is final already");
    finality.on_finalized_l1(id(5));
    assert_eq!(finality.candidate(id(6)).unwrap().block, safe(5));
    finality.on_safe(safe(7));
    finality.on_finalized_l1(id(7));
    assert_eq!(finality.candidate(id(7)).unwrap().block, safe(7));
    finality.reset();
    assert_eq!(finality.candidate(id(7)), None);
}

/// If a restored record with an orphaned L1 block caused a reset, resets would repeat for ever.
#[test]
fn a_restored_block_of_another_l1_is_forgotten_and_one_derived_since_demands_a_reset() {
    let mut finality = Finality::new(LOOKBACK, DELAY);
    finality.restore(0, (1..=4).map(safe));
    finality.on_safe(safe(5));
    finality.on_finalized_l1(id(4));
    assert!(!finality.on_reorged(safe(4)));
    assert_eq!(finality.candidate(id(5)).unwrap().block, safe(3));
    finality.on_finalized_l1(id(5));
    assert!(finality.on_reorged(safe(5)));
    // A block that is derived again replaces the restored ones.
    finality.on_safe(safe(2));
    assert_eq!(finality.safe, [1, 2].map(safe));
    assert!(finality.on_reorged(safe(2)));
    assert!(!finality.on_reorged(safe(1)));
}
