//! Seeds without planted bugs. `STARLING_SIM_SEEDS` sets their number.

use starling_netsim::sim::{SimPlan, simulate};
use std::{collections::BTreeSet, process::Command};

fn count(default: u64) -> u64 {
    let given = std::env::var("STARLING_SIM_SEEDS").ok();
    given.and_then(|text| text.parse().ok()).unwrap_or(default)
}

#[test]
fn no_seed_violates_a_check() {
    for seed in 0..count(60) {
        let plan = SimPlan::draw(seed, None, 8);
        let outcome = simulate(&plan, false);
        assert_eq!(outcome.violation, None, "{}", plan.command());
        assert!(outcome.height > 100, "{}", plan.command());
    }
}

#[test]
fn a_seed_has_the_same_history_every_time_and_another_seed_another() {
    let histories: Vec<u64> = (0..count(20))
        .map(|seed| {
            let plan = SimPlan::draw(seed, None, 6);
            let first = simulate(&plan, true);
            let second = simulate(&plan, true);
            assert_eq!(first.trace, second.trace, "{}", plan.command());
            first.history
        })
        .collect();
    let different: BTreeSet<&u64> = histories.iter().collect();
    assert_eq!(different.len(), histories.len());
}

#[test]
fn two_processes_print_the_same_histories() {
    let sim = |extra: &[&str]| {
        let args = ["sim", "--first", "7", "--minutes", "6"];
        let output = Command::new(env!("CARGO_BIN_EXE_netsim"))
            .args(args)
            .args(extra)
            .output()
            .unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    let hash = |text: &str| text.trim().rsplit_once("histories ").unwrap().1.to_owned();
    let [first, second] = [(); 2].map(|()| hash(&sim(&["--seeds", "10"])));
    assert_eq!(first, second);
    let history = |text: &str| text.rsplit_once("\nseed").unwrap().0.to_owned();
    let [first, second] = [(); 2].map(|()| history(&sim(&["--seeds", "1", "--trace"])));
    assert!(first.lines().count() > 100, "{first}");
    assert_eq!(first, second);
}

#[test]
fn a_command_line_that_makes_no_sense_is_refused() {
    for (args, named) in [
        (["--nodes", "1"], "--nodes"),
        (["--minutes", "2"], "--minutes"),
        (["--faults", "1,x"], "--faults 1,x"),
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_netsim"))
            .args(["sim", "--seeds", "1"])
            .args(args)
            .output()
            .unwrap();
        assert!(!output.status.success());
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(error.contains(named), "{error}");
    }
}
