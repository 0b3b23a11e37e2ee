//! Options of `netsim sim`: those that make no sense are refused, and the command line of a failing
//! seed replays it.

use crate::program::{output, sim, stderr, stdout};
use starling_netsim::sim::SimPlan;
use std::process::Stdio;

#[test]
fn options_that_make_no_sense_are_refused() {
    for (args, named) in [
        ("--nodes 1", "--nodes"),
        ("--nodes 17", "--nodes"),
        ("--minutes 2", "--minutes"),
        ("--seeds 0", "--seeds"),
        ("--threads 0", "--threads"),
        ("--threads 1025", "--threads"),
        ("--faults 1,x", "--faults 1,x"),
        ("--first 18446744073709551615 --seeds 2", "largest seed"),
        ("--plant nothing", "--plant"),
        ("--derivation maybe", "--derivation"),
        ("--chain wood", "--chain"),
    ] {
        let output = output(args);
        assert!(!output.status.success(), "{args}");
        let error = stderr(&output);
        assert!(error.contains(named), "{args}: {error}");
        assert!(output.stdout.is_empty(), "{args} ran seeds");
    }
}

#[test]
fn a_number_that_no_fault_of_the_seed_has_is_refused_with_their_number() {
    let seed_with = |wanted: fn(usize) -> bool| {
        let has = |seed: &u64| wanted(SimPlan::draw(*seed, None, 6).faults.len());
        (0..).find(has).unwrap()
    };
    let some = seed_with(|count| count > 1);
    let count = SimPlan::draw(some, None, 6).faults.len();
    let refused = |args: &str| {
        let output = output(args);
        assert!(!output.status.success(), "{args}");
        stderr(&output)
    };
    let error = refused(&format!(
        "--seeds 1 --minutes 6 --first {some} --faults 0,99"
    ));
    let last = count - 1;
    let expected =
        format!("seed {some} has no fault 99: it has {count} faults, numbered 0 to {last}");
    assert!(error.contains(&expected), "{error}");
    let error = refused(&format!(
        "--seeds 1 --minutes 6 --first {some} --faults 0 --no-faults"
    ));
    assert!(error.contains("no fault 0: it has 0 faults"), "{error}");
    // A later seed of the run lacks the fault.
    let none = seed_with(|count| count == 0);
    let error = refused(&format!("--seeds {} --minutes 6 --faults 0", none + 1));
    assert!(error.contains("has no fault 0"), "{error}");
}

#[test]
fn the_command_line_of_a_failing_seed_replays_it() {
    let first = output("--seeds 1 --minutes 6 --no-faults --plant published-before-signed");
    assert!(!first.status.success());
    let text = stdout(&first);
    let command = text.lines().last().unwrap();
    let args = command.strip_prefix("netsim sim ").expect(command);
    for option in ["--no-faults", "--plant published-before-signed", "--trace"] {
        assert!(args.contains(option), "{command}");
    }
    let violation = |text: &str| {
        let mut lines = text.lines();
        lines
            .find(|line| line.starts_with("seed 0: published_unsigned"))
            .map(str::to_owned)
    };
    assert!(violation(&text).is_some(), "{text}");
    let again = output(args);
    assert!(!again.status.success());
    assert_eq!(violation(&stdout(&again)), violation(&text));
    // Without the bug the same network has no violation.
    let sound = args.replace("--plant published-before-signed", "");
    assert!(output(&sound).status.success());
}

#[test]
fn the_command_line_names_every_option_that_changes_the_history() {
    let plan = SimPlan::draw(4, Some(5), 7);
    let start = "netsim sim --seeds 1 --first 4 --nodes 5 --minutes 7";
    assert_eq!(plan.command(), format!("{start} --trace"));
    let bare = plan.clone().without_faults();
    assert_eq!(bare.command(), format!("{start} --no-faults --trace"));
    let derived = plan.clone().with_derivation(Some(false));
    let command = format!("{start} --derivation false --trace");
    assert_eq!(derived.command(), command);
    assert_eq!(derived.redraw(5, 7).command(), command);
    let real = SimPlan::draw_real(4, Some(5), 7);
    assert_eq!(real.command(), format!("{start} --chain real --trace"));
    assert_eq!(real.redraw(5, 7).command(), real.command());
    let none = plan.keep(Vec::new()).unwrap();
    assert_eq!(none.command(), format!("{start} --faults none --trace"));
}

/// A reader such as `head` ends before all output is written.
#[test]
fn a_program_whose_reader_has_ended_ends_quietly() {
    let mut command = sim("--seeds 1 --minutes 6 --trace".split(' '));
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(stderr(&output), "");
    assert_eq!(output.status.code(), Some(141), "as if by SIGPIPE");
}
