//! Whole runs: the report has what happened.

use super::{LabRun, NETSIM, starling};
use starling_netsim::lab::{
    LabScenario, LabSettings,
    report::LabReport,
    scenario::{LabTarget, LabVerb, names},
};
use std::process::Command;
use tokio_util::sync::CancellationToken;

/// Faults of a node and of a link, and transactions.
const MIXED: &str = r#"
purpose = "A replica is killed, and a link is cut."
seconds = 26
rung = "lan"
load = 10
replicas = ["a", "b"]
late = { c = 8 }
steps = [
  { at = 4, kill = "b" },
  { at = 5, cut = ["seq", "a"] },
  { at = 7, restart = "b" },
  { at = 12, heal = "all" },
]
"#;

#[test]
fn a_run_passes_and_its_report_has_the_faults_and_the_figures() {
    let Some(mut run) = LabRun::start(MIXED) else {
        return;
    };
    assert_eq!(run.code(), Some(0), "{}", run.output());
    run.leaves_nothing();
    let report: LabReport = serde_json::from_value(run.report()).expect("a report");
    assert!(report.passed && report.failure.is_none());
    assert_eq!(report.seed, 7);
    // The last link heals a moment after the planned time.
    assert!((12_000..13_000).contains(&report.calm_ms));
    let verbs: Vec<&str> = report.faults.iter().map(|fault| &*fault.verb).collect();
    assert_eq!(verbs, ["kill", "cut", "restart", "start", "heal"]);
    let starts: Vec<u64> = report.nodes.iter().map(|node| node.starts).collect();
    assert_eq!(starts, [1, 1, 1, 2, 1]);
    let late = report.nodes.last().expect("c");
    let first = late.heads.first().expect("a head").at_ms;
    assert!(late.name == "c" && first > 8_000, "{first}");
    assert!(
        report.transactions.accepted > 100,
        "{:?}",
        report.transactions
    );
    let (p50, ..) = report.propagation().expect("arrivals");
    assert!(p50 > 250, "two switches have a delay of 250 us: {p50} us");
    for link in report.links.iter().filter(|link| link.far == 0) {
        assert!(
            link.up.bytes > 1_000,
            "every node reads the L1 through its link"
        );
    }
    let rss = report.nodes.iter().filter_map(|node| node.usage.last());
    assert!(rss.filter(|point| point.rss_kb > 10_000).count() == 5);
}

/// The builder, as the documentation of [`starling_netsim::lab::scenario`] has it. The split lasts
/// past the end of the time to agree, so that the run must fail: a check that cannot fail is none.
#[tokio::test(flavor = "multi_thread")]
async fn a_network_that_does_not_agree_in_time_fails() {
    let Some(program) = starling() else {
        return;
    };
    let groups = vec![names(["seq"]), names(["a", "b"])];
    let mut scenario = LabScenario::new("split", "A split that heals too late.")
        .replicas(["a", "b"])
        .at(3, LabVerb::Split(groups))
        .at(10, LabVerb::Heal(LabTarget::All))
        .seconds(13);
    scenario.allow.agree_within = std::time::Duration::ZERO;
    let settings = LabSettings {
        upgrade: program.clone(),
        program,
        netsim: NETSIM.into(),
        logs: None,
        progress: false,
    };
    let token = CancellationToken::new();
    let report = starling_netsim::lab::run(&scenario, &settings, 1, &token).await;
    let report = report.expect("a run");
    let failed: Vec<&str> = report
        .checks
        .iter()
        .filter(|it| !it.passed)
        .map(|it| &*it.check)
        .collect();
    assert_eq!(failed, ["one head on all nodes"], "{}", report.summary());
}

#[test]
fn a_bad_file_is_refused_with_its_line_before_anything_starts() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("bad.toml");
    std::fs::write(&file, "purpose = \"x\"\nsecnds = 3\n").expect("a file");
    let output = Command::new(NETSIM).arg("run").arg(&file).output();
    let output = output.expect("netsim runs");
    let error = String::from_utf8_lossy(&output.stderr);
    let expected = format!(
        "netsim: {}:2: unknown key `secnds`; did you mean `seconds`?\n",
        file.display()
    );
    assert_eq!(error, expected);
    assert_eq!(output.status.code(), Some(1));
    let unknown = Command::new(NETSIM).args(["run", "late-joyner"]).output();
    let error = String::from_utf8(unknown.expect("netsim runs").stderr).expect("text");
    assert!(error.contains("did you mean `late-joiner`?"), "{error}");
}

#[test]
fn the_list_says_what_each_scenario_is_for() {
    let output = Command::new(NETSIM)
        .arg("list")
        .output()
        .expect("netsim runs");
    let list = String::from_utf8_lossy(&output.stdout);
    let shipped = starling_netsim::lab::commands::SHIPPED;
    assert_eq!(list.lines().count(), shipped.len());
    for (name, _) in shipped {
        assert!(
            list.lines().any(|line| line.starts_with(name)),
            "{name} in {list}"
        );
    }
}
