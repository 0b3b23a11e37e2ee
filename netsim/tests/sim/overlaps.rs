//! Faults of one kind that overlap in a whole world: the end of one does not end the other.

use starling_netsim::sim::{SimFault, SimPlan, TimedFault, simulate};

const SECOND: u64 = 1_000_000;

/// A world of `nodes` nodes with only these faults, as times in seconds.
fn history(nodes: usize, faults: &[(u64, u64, SimFault)]) -> String {
    let timed = |(from, until, fault): &(u64, u64, SimFault)| TimedFault {
        from: from * SECOND,
        until: until * SECOND,
        fault: *fault,
    };
    let mut plan = SimPlan::draw(1, Some(nodes), 8).without_faults();
    plan.faults = faults.iter().map(timed).collect();
    let outcome = simulate(&plan, true);
    assert_eq!(outcome.violation, None);
    outcome.trace.unwrap()
}

/// Times in seconds of the lines about a node that contain `text`.
fn times(history: &str, node: usize, text: &str) -> Vec<u64> {
    let name = format!(" n{node} ");
    let lines = history.lines();
    let found = lines.filter(|line| line.contains(&name) && line.contains(text));
    found
        .map(|line| line.trim().split('.').next().unwrap().parse().unwrap())
        .collect()
}

#[test]
fn a_node_stays_down_until_the_last_of_two_crashes_ends() {
    let crash = |power| SimFault::Crash { node: 1, power };
    let history = history(3, &[(40, 100, crash(false)), (60, 80, crash(true))]);
    assert_eq!(times(&history, 1, "starts at"), [0, 100]);
    assert!(
        times(&history, 1, "executes")
            .iter()
            .all(|at| *at <= 40 || *at >= 100)
    );
}

#[test]
fn a_node_stays_frozen_until_the_last_of_two_freezes_ends() {
    let freeze = SimFault::Freeze { node: 1 };
    let history = history(3, &[(40, 100, freeze), (60, 80, freeze)]);
    let executed = times(&history, 1, "executes");
    assert!(
        executed.iter().all(|at| *at <= 40 || *at >= 100),
        "{executed:?}"
    );
    assert!(executed.iter().any(|at| *at >= 100));
}

#[test]
fn a_node_stays_cut_off_until_the_last_of_two_partitions_ends() {
    let partition = |side| SimFault::Partition {
        side,
        one_way: false,
    };
    // Node 1 is alone in the first, and with node 2 in the second.
    let history = history(
        3,
        &[(40, 130, partition(0b010)), (50, 70, partition(0b110))],
    );
    let executed = times(&history, 1, "executes");
    assert!(
        executed.iter().all(|at| *at <= 41 || *at >= 130),
        "{executed:?}"
    );
    assert!(executed.iter().any(|at| *at >= 130));
}

/// The new sequencer of the first handover is behind. It must not count as the sequencer whose safe
/// chain the second handover passes on.
#[test]
fn a_handover_before_the_last_one_took_effect_keeps_the_safe_chain() {
    let ahead = SimFault::Skew {
        node: 0,
        seconds: 80,
    };
    let handover = SimFault::Handover { to: 1 };
    let faults = [
        (120, 228, ahead),
        (223, 270, handover),
        (234, 270, handover),
    ];
    let history = history(2, &faults);
    assert!(history.contains("n1  signs"));
}
