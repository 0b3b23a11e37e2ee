//! Each planted bug is found. `--nocapture` prints the number of seeds that it took, and the checks
//! that found it.

use starling_netsim::sim::{PlantedBug, SimPlan, shrink, simulate};
use std::collections::BTreeMap;

/// Seeds after which a bug counts as not found.
const SEEDS: u64 = 150;

/// The first seed that finds the bug, with the plan that it found it by.
fn find(bug: PlantedBug) -> Option<(u64, SimPlan, starling_netsim::sim::Violation)> {
    (0..SEEDS).find_map(|seed| {
        let plan = SimPlan {
            bug,
            ..SimPlan::draw(seed, None, 6)
        };
        let violation = simulate(&plan, false).violation?;
        Some((seed, plan, violation))
    })
}

#[test]
fn every_planted_bug_is_found() {
    let mut found = BTreeMap::new();
    let mut missed = Vec::new();
    for bug in PlantedBug::ALL {
        match find(bug) {
            Some((seed, _, violation)) => {
                println!("{bug:?}: {} seeds, {violation}", seed + 1);
                found.insert(format!("{bug:?}"), violation.check);
            }
            None => missed.push(bug),
        }
    }
    assert!(
        missed.is_empty(),
        "not found in {SEEDS} seeds: {missed:?}; found {found:?}"
    );
}

#[test]
fn a_failing_plan_is_shrunk_and_still_fails() {
    let (_, plan, violation) = find(PlantedBug::GuardNotSynced).unwrap();
    let (small, again) = shrink(&plan, &violation);
    println!("{}", small.command());
    assert_eq!(again.check, violation.check);
    assert!(small.active().count() <= plan.active().count());
    assert_eq!(simulate(&small, false).violation, Some(again));
}
