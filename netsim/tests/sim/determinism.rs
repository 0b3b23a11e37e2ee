//! Two processes run the same seeds, and print the same histories byte for byte. A clock that is
//! read, dice of a machine's own or a randomly seeded map make them differ. These are planted in
//! the code around the machines, since a machine has no switch for tests: its time and the seed of
//! its dice come from its caller. `STARLING_SIM_PROCESS_SEEDS` sets the number of seeds with trees.

use crate::program::{count, output, sim, stdout};
use starling_netsim::sim::{PlantedBug, SimPlan, simulate};
use std::{
    collections::BTreeSet,
    io::{BufRead, BufReader},
    process::{Child, Stdio},
};

/// Number of seeds by which a nondeterministic machine must be found.
const PLANTED_SEEDS: u64 = 20;
/// Number of seeds with the production execution core, each of which takes longer.
const REAL_SEEDS: u64 = 5;

/// `netsim sim` with chains of one kind (`--chain`).
fn histories(seeds: u64, chain: &str, bug: Option<PlantedBug>) -> Child {
    let seeds = seeds.to_string();
    let args = [
        "--seeds",
        &seeds,
        "--minutes",
        "6",
        "--chain",
        chain,
        "--trace",
    ];
    let mut command = sim(args);
    command.args(
        bug.and_then(PlantedBug::name)
            .map(|name| format!("--plant={name}")),
    );
    command
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

/// The lines of a process, up to the last one, which has the time that the run took.
fn lines(process: &mut Child) -> impl Iterator<Item = String> + use<> {
    let lines = BufReader::new(process.stdout.take().unwrap()).lines();
    lines
        .map(Result::unwrap)
        .take_while(|line| !line.contains(" virtual hours in "))
}

/// Compares the histories of two processes while they run. Returns the number of equal lines, and
/// the lines that differ.
fn compare(
    seeds: u64,
    chain: &str,
    bugs: [Option<PlantedBug>; 2],
) -> (u64, Option<[Option<String>; 2]>) {
    let mut processes = bugs.map(|bug| histories(seeds, chain, bug));
    let [mut first, mut second] = processes.each_mut().map(lines);
    let mut equal = 0;
    let difference = loop {
        match (first.next(), second.next()) {
            (None, None) => break None,
            (one, other) if one == other => equal += 1,
            (one, other) => break Some([one, other]),
        }
    };
    for process in &mut processes {
        // The process may have ended already.
        let _ = process.kill();
        process.wait().unwrap();
    }
    (equal, difference)
}

#[test]
fn two_processes_print_the_same_histories() {
    let seeds = count("STARLING_SIM_PROCESS_SEEDS", 20);
    let (equal, difference) = compare(seeds, "tree", [None, None]);
    println!("{seeds} seeds, {equal} equal lines");
    assert_eq!(difference, None, "after {equal} equal lines");
    assert!(equal > 100 * seeds, "only {equal} lines");
}

#[test]
fn two_processes_with_the_execution_core_print_the_same_histories() {
    let (equal, difference) = compare(REAL_SEEDS, "real", [None, None]);
    println!("{REAL_SEEDS} seeds, {equal} equal lines");
    assert_eq!(difference, None, "after {equal} equal lines");
    assert!(equal > 100 * REAL_SEEDS, "only {equal} lines");
    let (_, difference) = compare(REAL_SEEDS, "real", [Some(PlantedBug::ClockRead); 2]);
    assert!(difference.is_some(), "a clock changes no history");
}

#[test]
fn a_clock_dice_or_a_random_order_around_a_machine_makes_two_processes_differ() {
    for bug in PlantedBug::NONDETERMINISTIC {
        let (equal, difference) = compare(PLANTED_SEEDS, "tree", [Some(bug); 2]);
        println!("{bug:?}: {equal} equal lines, then {difference:?}");
        assert!(difference.is_some(), "{bug:?} changes no history");
    }
}

#[test]
fn one_more_draw_of_the_dice_around_a_machine_makes_two_processes_differ() {
    let (equal, difference) = compare(PLANTED_SEEDS, "tree", [None, Some(PlantedBug::ExtraDraw)]);
    println!("{equal} equal lines, then {difference:?}");
    assert!(difference.is_some());
    // Even so both processes with the draw agree.
    let (_, difference) = compare(2, "tree", [Some(PlantedBug::ExtraDraw); 2]);
    assert_eq!(difference, None);
}

#[test]
fn the_threads_of_a_process_do_not_change_its_histories() {
    let hash = |threads: &str| {
        let args = format!("--first 7 --seeds 10 --minutes 6 --threads {threads}");
        let text = stdout(&output(&args));
        text.trim().rsplit_once("histories ").unwrap().1.to_owned()
    };
    assert_eq!(hash("1"), hash("3"));
}

#[test]
fn different_seeds_have_different_histories() {
    let history = |seed| simulate(&SimPlan::draw(seed, None, 6), false).history;
    let different: BTreeSet<u64> = (0..10).map(history).collect();
    assert_eq!(different.len(), 10);
}
