//! Worlds whose nodes derive the safe chain from L1.

use crate::program::count;
use starling_netsim::sim::{SimFault, SimPlan, TimedFault, simulate};

const SECOND: u64 = 1_000_000;

fn history(plan: &SimPlan) -> String {
    let outcome = simulate(plan, true);
    assert_eq!(outcome.violation, None, "{}", plan.command());
    outcome.trace.unwrap()
}

fn plan(seed: u64) -> SimPlan {
    SimPlan::draw(seed, Some(3), 6).with_derivation(Some(true))
}

/// The largest number of a safe head in the history.
fn safe(history: &str) -> u64 {
    let lines = history
        .lines()
        .filter_map(|line| line.split_once("  safe "));
    let numbers = lines.filter_map(|(_, safe)| safe.split(' ').next()?.parse().ok());
    numbers.max().unwrap_or(0)
}

#[test]
fn seeds_that_derive_violate_no_check() {
    for seed in 0..count("STARLING_SIM_SEEDS", 40) {
        let plan = SimPlan::draw(seed, None, 6).with_derivation(Some(true));
        let outcome = simulate(&plan, false);
        assert_eq!(outcome.violation, None, "{}", plan.command());
    }
}

#[test]
fn a_sound_network_derives_its_chain_from_the_batches_of_its_batcher() {
    let history = history(&plan(1).without_faults());
    assert!(safe(&history) > 90, "{}", safe(&history));
    assert!(!history.contains("posts again"));
    assert!(!history.contains("which it does not have"));
}

#[test]
fn a_network_without_derivation_has_no_batcher() {
    let plan = SimPlan::draw(1, Some(3), 6).with_derivation(Some(false));
    let history = history(&plan.without_faults());
    assert!(!history.contains("posts frame"));
}

#[test]
fn an_l1_reorg_makes_every_node_derive_again() {
    let mut plan = plan(3).without_faults();
    plan.faults = vec![TimedFault {
        from: 120 * SECOND,
        until: 121 * SECOND,
        fault: SimFault::L1Reorg { depth: 5 },
    }];
    let history = history(&plan);
    for node in 0..3 {
        let name = format!(" n{node} ");
        let resets = history
            .lines()
            .filter(|line| line.contains(&name) && line.contains("derives again from"));
        assert!(resets.count() >= 2, "node {node}");
    }
    assert!(safe(&history) > 90, "{}", safe(&history));
}

#[test]
fn an_l1_outage_delays_safe_heads_and_no_more() {
    let mut plan = plan(5).without_faults();
    plan.faults = vec![TimedFault {
        from: 60 * SECOND,
        until: 150 * SECOND,
        fault: SimFault::L1Outage,
    }];
    let history = history(&plan);
    let during = |line: &&str| {
        let seconds = line
            .trim()
            .split('.')
            .next()
            .and_then(|it| it.parse::<u64>().ok());
        seconds.is_some_and(|it| it > 60 && it < 150)
    };
    let lines: Vec<&str> = history.lines().filter(during).collect();
    let count = |text: &str| lines.iter().filter(|line| line.contains(text)).count();
    assert_eq!((count("  safe "), count("posts frame")), (0, 0));
    assert!(safe(&history) > 90, "{}", safe(&history));
}
