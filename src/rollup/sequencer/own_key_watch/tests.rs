//! The first blocks of a new leader, with a simulated clock.

use super::*;
use alloy_consensus::Header;
use proptest::prelude::*;

const START: u64 = 1_000_000;

fn block(number: u64, parent: B256, timestamp: u64) -> Payload {
    Payload::sealed(
        Header {
            number,
            parent_hash: parent,
            timestamp,
            ..Default::default()
        },
        vec![],
    )
}

#[test]
fn late_blocks_of_the_leader_before_do_not_stop_the_new_one() {
    let mut period = SequencingPeriod::new(START);
    let base = B256::repeat_byte(9);
    // The last block of the stopped leader, timestamped two seconds after our start. It arrives
    // before our block of that height, and again after it.
    let last = block(1000, base, START + 2);
    assert_eq!(period.evidence_against(&last), None);
    let ours = Payload::sealed(
        Header {
            extra_data: vec![1].into(),
            ..last.header.clone()
        },
        vec![],
    );
    period.on_published(ours.hash);
    assert_eq!(period.evidence_against(&last), None);
    assert_eq!(
        period.evidence_against(&block(1001, last.hash, START + 4)),
        None
    );
    assert!(
        period.is_first_late_block() && !period.is_first_late_block(),
        "logged once"
    );
}

#[test]
fn a_living_second_sequencer_is_found_by_its_parent_or_its_time() {
    let mut period = SequencingPeriod::new(START);
    let (ours, base) = (B256::repeat_byte(1), B256::repeat_byte(9));
    assert_eq!(period.evidence_against(&block(5, ours, START)), None);
    period.on_published(ours);
    assert_eq!(
        period.evidence_against(&block(5, ours, START - 100)),
        Some(Evidence::BuiltOnOurs),
        "also while it catches up"
    );
    assert_eq!(
        period.evidence_against(&block(5, base, START + MARGIN)),
        None
    );
    assert_eq!(
        period.evidence_against(&block(5, base, START + MARGIN + 1)),
        Some(Evidence::MadeAfterStart(MARGIN + 1))
    );
    // A new period counts seconds from its own start.
    assert_eq!(
        SequencingPeriod::new(START + 100).evidence_against(&block(5, ours, START + MARGIN + 1)),
        None
    );
}

proptest! {
    /// The stopped leader's clock may differ from ours by up to five seconds, and its newest block
    /// may be up to five seconds ahead of its clock.
    #[test]
    fn no_block_of_a_leader_that_died_before_the_start_stops_the_new_one(age in 0u64..100, skew in 0u64..=5, ahead in 0u64..=5) {
        let period = SequencingPeriod::new(START);
        prop_assert_eq!(period.evidence_against(&block(7, B256::repeat_byte(9), START - age + skew + ahead)), None);
    }

    /// The rival builds a block every `block_time` seconds; one of them is later than the margin by
    /// at most a block time.
    #[test]
    fn a_rival_that_goes_on_is_found_within_the_margin_and_a_block(block_time in 1u64..12, skew in 0u64..=5) {
        let period = SequencingPeriod::new(START);
        let times = (1..).map(|n| n * block_time).take_while(|time| *time <= MARGIN + skew + block_time);
        prop_assert!(times.map(|time| block(7, B256::repeat_byte(9), START + time)).any(|block| period.evidence_against(&block).is_some()));
    }

    #[test]
    fn enough_own_blocks_are_remembered_for_everything_gossip_brings(count in 1usize..500) {
        let mut period = SequencingPeriod::new(START);
        let own: Vec<_> = (0..count).map(|i| B256::from(alloy_primitives::U256::from(i))).collect();
        own.iter().for_each(|hash| period.on_published(*hash));
        // Blocks of the last sixty seconds, with one block per second.
        for parent in own.iter().rev().take(60) {
            prop_assert_eq!(period.evidence_against(&block(7, *parent, START)), Some(Evidence::BuiltOnOurs));
        }
    }
}
