//! Each planted bug is found. `--nocapture` prints the number of seeds that it took, and the checks
//! that found it.

use starling_netsim::sim::{PlantedBug, SimPlan, Violation, shrink, simulate, simulate_to_end};
use std::panic::catch_unwind;

/// Seeds after which a bug counts as not found.
const SEEDS: u64 = 150;

/// The first seed that finds the bug, with the plan that it found it by.
fn find(bug: PlantedBug) -> Option<(u64, SimPlan, Violation)> {
    (0..SEEDS).find_map(|seed| {
        let plan = SimPlan {
            bug,
            ..SimPlan::draw(seed, None, 6)
        };
        let violation = simulate(&plan, false).violation?;
        Some((seed, plan, violation))
    })
}

/// Names of the other checks that find the bug in the same world.
fn others(plan: &SimPlan) -> Vec<&'static str> {
    // A bug that was found may make a later step panic, which says nothing about the checks.
    let outcome = catch_unwind(|| simulate_to_end(plan));
    let others = outcome.map_or(Vec::new(), |outcome| outcome.others);
    others.iter().map(|violation| violation.check).collect()
}

#[test]
fn every_planted_bug_is_found() {
    let mut missed = Vec::new();
    for bug in PlantedBug::CHECKED {
        match find(bug) {
            Some((seed, plan, violation)) => {
                let others = others(&plan);
                println!("{bug:?}: {} seeds, {violation}; also {others:?}", seed + 1);
            }
            None => missed.push(bug),
        }
    }
    assert!(missed.is_empty(), "not found in {SEEDS} seeds: {missed:?}");
}

#[test]
fn a_bug_found_by_two_checks_names_both() {
    let (_, plan, violation) = find(PlantedBug::ParentCheckForgotten).unwrap();
    assert_eq!(violation.check, "unknown_parent");
    assert_eq!(others(&plan), ["one_head"]);
}

#[test]
fn bans_and_disconnects_without_a_reason_are_found_in_the_ledger() {
    for bug in [
        PlantedBug::BanNotRecorded,
        PlantedBug::DisconnectNotExplained,
    ] {
        let (_, _, violation) = find(bug).unwrap();
        assert_eq!(violation.check, "ledger", "{bug:?}");
    }
}

#[test]
fn a_failing_plan_is_shrunk_and_still_fails() {
    let (_, plan, violation) = find(PlantedBug::GuardNotSynced).unwrap();
    let (small, again) = shrink(&plan, &violation);
    println!("{}", small.command());
    assert_eq!(again.check, violation.check);
    assert!(small.active().count() <= plan.active().count());
    assert!(small.nodes.len() <= plan.nodes.len());
    assert_eq!(simulate(&small, false).violation, Some(again));
}
