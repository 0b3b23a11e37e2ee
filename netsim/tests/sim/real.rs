//! Worlds whose nodes execute their blocks: the production executor, persister and payload log on a
//! temporary store. `STARLING_SIM_REAL_SEEDS` sets the number of seeds.

use crate::program::{count, output, sim, stdout};
use starling_netsim::sim::{
    PlantedBug, SimFault, SimOutcome, SimPlan, TimedFault, memory_folder, simulate,
};
use std::{
    fs,
    process::Stdio,
    time::{Duration, Instant},
};

const SECOND: u64 = 1_000_000;

/// A world of two nodes in which `node` crashes at these times, for five seconds each. Stores are
/// synced every seven seconds, so a power loss takes back blocks.
fn crashes(node: usize, power: bool, times: &[u64]) -> SimPlan {
    let mut plan = SimPlan::draw_real(1, Some(2), 6).without_faults();
    let crash = |from: &u64| TimedFault {
        from: from * SECOND,
        until: (from + 5) * SECOND,
        fault: SimFault::Crash { node, power },
    };
    plan.faults = times.iter().map(crash).collect();
    for node in &mut plan.nodes {
        node.sync_every = 7 * SECOND;
    }
    plan
}

fn sound(plan: &SimPlan) -> SimOutcome {
    let outcome = simulate(plan, true);
    assert_eq!(outcome.violation, None, "{}", plan.command());
    outcome
}

/// The number of the head of a node before its first crash, and after it.
fn heads_around_a_crash(history: &str, node: usize) -> [u64; 2] {
    let name = format!(" n{node} ");
    let mut before = 0;
    for line in history.lines().filter(|line| line.contains(&name)) {
        let number = |at: &str| {
            let (_, rest) = line.split_once(at)?;
            rest.split(' ').next()?.parse().ok()
        };
        before = number(" head ").unwrap_or(before);
        if let Some(after) = number("crashed, at ") {
            return [before, after];
        }
    }
    panic!("no crash in {history}")
}

#[test]
fn no_seed_of_a_real_world_violates_a_check() {
    for seed in 0..count("STARLING_SIM_REAL_SEEDS", 4) {
        let plan = SimPlan::draw_real(seed, None, 6);
        let outcome = simulate(&plan, false);
        assert_eq!(outcome.violation, None, "{}", plan.command());
        assert!(outcome.import.blocks > 200, "{}", plan.command());
    }
}

#[test]
fn a_killed_node_keeps_its_head() {
    let history = sound(&crashes(1, false, &[60])).trace.unwrap();
    let [before, after] = heads_around_a_crash(&history, 1);
    assert!(before > 20);
    assert_eq!(before, after);
}

#[test]
fn a_power_loss_takes_back_what_a_follower_has_not_synced() {
    let mut lost = 0;
    for time in [60, 73, 87, 102] {
        let history = sound(&crashes(1, true, &[time])).trace.unwrap();
        let [before, after] = heads_around_a_crash(&history, 1);
        assert!(after <= before && after + 8 >= before, "{before} {after}");
        lost += before - after;
    }
    assert!(lost > 0, "no power loss took back a block");
}

#[test]
fn a_sequencer_that_loses_power_signs_no_second_block() {
    let history = sound(&crashes(0, true, &[40, 70, 100, 130])).trace.unwrap();
    assert_eq!(history.matches("n0  crashed").count(), 4);
}

#[test]
fn a_payload_log_that_a_power_loss_takes_is_found() {
    for bug in PlantedBug::REAL {
        let plan = SimPlan {
            bug,
            ..crashes(0, true, &[40, 70, 100, 130])
        };
        let violation = simulate(&plan, false).violation.unwrap();
        assert_eq!(violation.check, "double_sign", "{violation}");
    }
}

#[test]
fn the_threads_of_the_core_do_not_change_a_history() {
    for seed in 0..2 {
        let plan = SimPlan::draw_real(seed, None, 6);
        let [first, second] = [(); 2].map(|()| sound(&plan).trace.unwrap());
        let mut lines = first.lines().zip(second.lines());
        assert_eq!(lines.find(|(one, two)| one != two), None, "{seed}");
        assert_eq!(first.len(), second.len());
    }
}

#[test]
fn the_command_prints_the_cost_of_the_executed_blocks() {
    let text = stdout(&output("--seeds 1 --nodes 2 --chain real --no-faults"));
    assert!(text.contains(" blocks executed in "), "{text}");
    let tree = stdout(&output("--seeds 1 --nodes 2 --minutes 6 --no-faults"));
    assert!(!tree.contains(" blocks executed in "), "{tree}");
}

#[test]
fn a_killed_simulation_leaves_no_files() {
    let mut command = sim("--chain real --seeds 1000 --threads 1".split(' '));
    let mut child = command.stdout(Stdio::null()).spawn().unwrap();
    let prefix = format!("netsim-{}-", child.id());
    let folders = || {
        let entries = fs::read_dir(memory_folder()).unwrap().flatten();
        let name = entries.map(|entry| entry.file_name());
        name.filter(|name| name.to_string_lossy().starts_with(&prefix))
            .count()
    };
    let wait = |count: usize| {
        let begun = Instant::now();
        while folders() != count {
            assert!(begun.elapsed() < Duration::from_secs(60), "not {count}");
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    wait(1);
    child.kill().unwrap();
    child.wait().unwrap();
    wait(0);
}
