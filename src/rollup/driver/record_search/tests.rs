//! Records with canonical, then orphaned L1 blocks, and at last L1 blocks above L1's head.

use super::*;
use proptest::prelude::*;

/// Records of which the first `canonical` are canonical. Those from `visible` on have L1 blocks
/// above L1's head, those from `displaced` on have L2 blocks that are not in the chain, and those
/// below `served` have L1 blocks that L1 does not serve.
#[derive(Clone, Copy)]
struct FakeRecords {
    canonical: u64,
    visible: u64,
    displaced: u64,
    served: u64,
}

impl FakeRecords {
    fn canonical(count: u64) -> Self {
        Self {
            canonical: count,
            visible: count,
            displaced: count,
            served: 0,
        }
    }

    fn status(&self, position: u64) -> RecordStatus {
        match position {
            position if position >= self.displaced => RecordStatus::Displaced,
            position if position >= self.visible || position < self.served => RecordStatus::Ahead,
            position if position < self.canonical => RecordStatus::Canonical { l1_time: position },
            _ => RecordStatus::Orphaned,
        }
    }

    /// The result of the search, and the positions that were compared.
    fn search(&self, floor: u64, end: u64) -> (RecordStep, Vec<u64>) {
        let mut search = RecordSearch::new(floor, end);
        let mut compared = vec![];
        loop {
            let RecordStep::Check(position) = search.step() else {
                return (search.step(), compared);
            };
            compared.push(position);
            search.record(position, self.status(position));
        }
    }
}

fn found(position: u64) -> RecordStep {
    RecordStep::Found {
        position,
        l1_time: position,
    }
}

const ALL: u64 = 1_000_000;

#[test]
fn records_above_l1s_head_are_discarded_once_l1_contradicts_them() {
    let records = FakeRecords {
        displaced: 10,
        ..FakeRecords::canonical(3)
    };
    let mut search = RecordSearch::new(0, 10);
    while let RecordStep::Check(position) = search.step() {
        search.record(position, records.status(position));
    }
    assert_eq!(search.step(), RecordStep::Behind(3));
    search.discard_ahead();
    assert_eq!(search.step(), found(2));
}

#[test]
fn a_canonical_newest_record_is_the_only_one_that_is_compared() {
    let records = FakeRecords::canonical(ALL);
    assert_eq!(records.search(0, ALL), (found(ALL - 1), vec![ALL - 1]));
    let pruned = FakeRecords {
        served: ALL - 10,
        ..records
    };
    assert_eq!(pruned.search(0, ALL), (found(ALL - 1), vec![ALL - 1]));
    assert_eq!(records.search(5, 5), (RecordStep::Nothing, vec![]));
}

#[test]
fn a_shallow_reorg_is_found_without_reading_old_l1_blocks() {
    let served = |served| FakeRecords {
        canonical: ALL - 20,
        served,
        ..FakeRecords::canonical(ALL)
    };
    for oldest in [0, ALL - 40, ALL - 21] {
        let (step, compared) = served(oldest).search(0, ALL);
        assert_eq!(step, found(ALL - 21));
        assert!(compared.len() <= 12, "{compared:?}");
    }
    // L1 does not serve the blocks of the canonical records.
    assert_eq!(served(ALL - 20).search(0, ALL).0, RecordStep::Nothing);
}

#[test]
fn a_record_above_l1s_head_is_judged_by_lower_ones() {
    let search = |floor, canonical, visible| {
        let records = FakeRecords {
            canonical,
            visible,
            ..FakeRecords::canonical(100)
        };
        records.search(floor, 100).0
    };
    assert_eq!(search(0, 90, 95), found(89), "90 to 94 are orphaned");
    assert_eq!(search(0, 90, 90), RecordStep::Behind(90));
    assert_eq!(search(90, 90, 90), RecordStep::Behind(90));
    assert_eq!(search(0, 0, 1), RecordStep::Nothing, "0 is orphaned");
    assert_eq!(search(0, 0, 0), RecordStep::Behind(0));
}

#[test]
fn a_displaced_block_says_nothing_about_l1() {
    let search = |visible| {
        let records = FakeRecords {
            canonical: 80,
            visible,
            displaced: 95,
            served: 0,
        };
        records.search(0, 100).0
    };
    assert_eq!(search(90), found(79), "80 to 89 are orphaned");
    assert_eq!(search(80), RecordStep::Behind(80));
    let records = FakeRecords {
        displaced: 95,
        ..FakeRecords::canonical(100)
    };
    assert_eq!(records.search(0, 100).0, found(94));
}

proptest! {
    #[test]
    fn the_newest_canonical_record_is_found(
        end in 0_u64..5_000, [below, displaced, ahead, gone] in [0_u64..5_000, 0..50, 0..500, 0..500],
    ) {
        let floor = end.saturating_sub(below);
        let displaced = end.saturating_sub(displaced);
        let visible = displaced.saturating_sub(ahead);
        let canonical = visible.saturating_sub(gone);
        let records = FakeRecords { canonical, visible, displaced, served: 0 };
        let (step, compared) = records.search(floor, end);
        let lowest_other = canonical.max(floor);
        let expected = if (visible..displaced).contains(&lowest_other) {
            RecordStep::Behind(lowest_other)
        } else if canonical > floor {
            found(canonical - 1)
        } else {
            RecordStep::Nothing
        };
        prop_assert_eq!(step, expected);
        prop_assert!(compared.len() <= 2 * 13 + 2, "{:?}", compared);
        prop_assert!(compared.iter().all(|at| (floor..end).contains(at)));
    }
}
