//! Chains with canonical, then orphaned origins, and at last origins above L1's head.

use super::*;
use proptest::prelude::*;

const ORPHANED: OriginStatus = OriginStatus::Orphaned {
    canonical: B256::ZERO,
};

/// The result of a search, and its number of requests. Origins up to `canonical` are canonical, and
/// origins above `visible` are above L1's head.
fn run(floor: u64, head: u64, canonical: u64, visible: u64) -> (RewindTarget, u32) {
    run_pruned(floor, head, canonical, visible, 0)
}

/// [`run`], with an L1 that does not serve the origins of blocks below `oldest`.
fn run_pruned(
    floor: u64,
    head: u64,
    canonical: u64,
    visible: u64,
    oldest: u64,
) -> (RewindTarget, u32) {
    let mut search = HeadSearch::new(floor, head);
    let mut checks = 0;
    loop {
        match search.step() {
            SearchStep::Found(found) => return (found, checks),
            SearchStep::Check(number) => {
                checks += 1;
                search.record(
                    number,
                    match number {
                        number if number > visible || number < oldest => OriginStatus::Ahead,
                        number if number <= canonical => OriginStatus::Canonical,
                        _ => ORPHANED,
                    },
                );
            }
        }
    }
}

#[test]
fn the_head_is_rewound_to_the_last_block_whose_origin_is_canonical() {
    assert_eq!(run(0, 739, 726, 739), (RewindTarget::Block(726), 7));
    assert_eq!(run(700, 739, 739, 739).0, RewindTarget::Stay);
    assert_eq!(
        run(726, 739, 726, 739).0,
        RewindTarget::Block(726),
        "the safe block itself"
    );
    assert_eq!(
        run(727, 739, 726, 739).0,
        RewindTarget::FloorOrphaned {
            canonical: B256::ZERO
        }
    );
    assert_eq!(run(739, 739, 739, 739), (RewindTarget::Stay, 1));
}

#[test]
fn origins_above_the_head_of_l1_may_still_become_canonical() {
    assert_eq!(run(0, 739, 726, 726).0, RewindTarget::Stay);
    assert_eq!(
        run(0, 739, 726, 730).0,
        RewindTarget::Block(726),
        "some below them are orphaned"
    );
    assert_eq!(run(5, 9, 9, 4).0, RewindTarget::Stay);
}

#[test]
fn origins_below_the_reorg_need_not_be_served() {
    for oldest in 0..=726 {
        let found = run_pruned(0, 739, 726, 739, oldest).0;
        assert_eq!(found, RewindTarget::Block(726), "{oldest}");
    }
    assert_eq!(run_pruned(0, 739, 739, 739, 739), (RewindTarget::Stay, 1));
    // The depth of the reorg cannot be determined: the head neither stays nor is rewound.
    for oldest in 727..739 {
        let found = run_pruned(0, 739, 726, 739, oldest).0;
        assert_eq!(found, RewindTarget::NotServed(oldest - 1));
    }
}

proptest! {
    #[test]
    fn every_reorg_is_answered_in_few_requests(floor in 0u64..1000, above in 0u64..5000, canonical in 0u64..6000, visible in 0u64..6000) {
        let head = floor + above;
        let (found, checks) = run(floor, head, canonical, visible);
        let status = |n: u64| if n > visible { OriginStatus::Ahead } else if n <= canonical { OriginStatus::Canonical } else { ORPHANED };
        // The expected result, from a linear search from the head down to the floor.
        let orphaned = (floor..=head).find(|n| matches!(status(*n), OriginStatus::Orphaned { .. }));
        let expected = match orphaned {
            None => RewindTarget::Stay,
            Some(orphaned) if orphaned == floor => RewindTarget::FloorOrphaned { canonical: B256::ZERO },
            Some(orphaned) => RewindTarget::Block(orphaned - 1),
        };
        prop_assert_eq!(found, expected);
        prop_assert!(checks <= 27);
    }
}
