//! The commands `netsim bench` and `netsim calibrate`, as a user runs them. Whether bars are met
//! depends on the machine, so no test requires it.

use starling_netsim::report;
use std::{
    path::Path,
    process::{Command, Output},
};

fn netsim(folder: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_netsim"));
    command.args(arguments).arg("--out").arg(folder);
    command.env("STARLING_BENCH_MB", "8");
    command.env("STARLING_BENCH_ROUNDS", "1");
    command.env_remove("STARLING_BINARY");
    command.output().expect("netsim runs")
}

fn refused(arguments: &[&str]) -> String {
    let folder = tempfile::tempdir().unwrap();
    let output = netsim(folder.path(), arguments);
    assert!(!output.status.success(), "{arguments:?}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn one_section_prints_its_figures_beside_their_bars_and_writes_them() {
    let folder = tempfile::tempdir().unwrap();
    let output = netsim(folder.path(), &["bench", "links"]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains("of the bar (at least 200)"), "{text}");
    assert!(
        !text.contains("simulation") && !text.contains("model"),
        "{text}"
    );
    let report = report::read(&folder.path().join("bench.json")).unwrap();
    assert_eq!(report.checks.len(), 2);
    assert_eq!(output.status.success(), report.passed() == Some(true));
    assert!(report.figures["loopback link, MB/s"] > 0.0, "{text}");
}

#[test]
fn impossible_arguments_are_refused() {
    let cases = [
        (&["calibrate", "--nodes", "1"][..], "1 is not in 2..=65"),
        (&["calibrate", "--nodes", "16,66"], "66 is not in 2..=65"),
        (&["calibrate", "--rungs", "lann"], "did you mean `lan`?"),
        (&["calibrate", "--blocks", "19"], "19 is not in 20..=3000"),
        (&["calibrate", "--block-time", "0"], "0 is not in 1..=12"),
        (&["calibrate", "--load", "1001"], "1001 is not in 0..=1000"),
        (
            &["calibrate", "--with", "/none.json"],
            "/none.json cannot be read",
        ),
        (
            &["calibrate", "--binary", "/none"],
            "no starling program at /none",
        ),
        (&["bench", "speed"], "invalid value 'speed'"),
        (&["bench", "--lab-seconds", "9"], "9 is not in 10..=3600"),
        (
            &["bench", "lab", "--binary", "/none"],
            "no starling program at /none",
        ),
    ];
    for (arguments, message) in cases {
        let error = refused(arguments);
        assert!(error.contains(message), "{arguments:?}: {error}");
    }
}

#[test]
fn a_size_that_is_no_number_is_refused() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_netsim"));
    let folder = tempfile::tempdir().unwrap();
    command.args(["bench", "links", "--out"]).arg(folder.path());
    let output = command.env("STARLING_BENCH_MB", "much").output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(error.contains("STARLING_BENCH_MB=much"), "{error}");
}
