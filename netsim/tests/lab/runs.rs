//! Whole runs: the report has what happened.

use super::{LabRun, NETSIM, can_mount, starling};
use starling_netsim::lab::{
    LabScenario, LabSettings,
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
allow = { lag = 5, agree-within = 14 }
"#;

#[test]
fn a_run_passes_and_its_report_has_the_faults_and_the_figures() {
    let Some(mut run) = LabRun::start(MIXED) else {
        return;
    };
    assert_eq!(run.code(), Some(0), "{}", run.output());
    run.leaves_nothing();
    let report = run.report();
    assert_eq!(report.passed(), Some(true));
    assert_eq!((report.layer.as_str(), report.seed), ("lab", 7));
    // The last link heals after the planned time, and later on a busy machine.
    let fault_end = report.figures["end of the last fault, s"];
    assert!(fault_end >= 12.0, "{fault_end}");
    let faults: Vec<_> = report.faults.iter().map(|it| it.what.as_str()).collect();
    assert_eq!(faults, ["kill b", "cut a-seq", "start c"]);
    let [killed, cut] = [0, 1].map(|fault: usize| report.faults[fault].until.unwrap_or(0.0));
    assert!(killed >= 7.0 && cut >= 12.0, "{killed} {cut}");
    let starts: Vec<u64> = report.nodes.iter().map(|node| node.starts).collect();
    assert_eq!(starts, [1, 1, 1, 2, 1]);
    let late = report.heads.last().expect("c");
    let first = late.points.first().expect("a head")[0];
    assert!(late.name == "c" && first > 8.0, "{first}");
    let accepted = report.figures["transactions accepted"];
    assert!(accepted > 20.0, "{accepted}");
    let propagation = report.propagation.expect("arrivals");
    let p50 = propagation.all.p50;
    assert!(p50 > 0.25, "two switches have a delay of 250 us: {p50} ms");
    for link in report.links.iter().filter(|link| link.far == "l1") {
        assert!(link.up > 1_000, "every node reads the L1 through its link");
    }
    let rss = report.memory.iter().filter_map(|node| node.points.last());
    assert!(rss.filter(|point| point[1] > 10.0).count() == 5);
    let traffic = report.traffic.expect("traffic");
    assert!(traffic.nodes.iter().all(|node| node.received > 1_000));
    assert!(traffic.duplicates.is_some(), "the nodes' metrics are read");
    assert_eq!(report.mesh.len(), 4, "of sequencer and replicas");
    let page = run.folder.path().join("reports/scenario.html");
    let page = std::fs::read_to_string(page).expect("a page");
    assert!(page.contains("<h2>Heads of the nodes</h2>"));
}

/// Verbs that change disks, addresses, keys and L1.
const PRIVILEGED: &str = r#"
purpose = "A disk is full, a node moves, the signer changes, and L1 replaces blocks."
seconds = 75
rung = "lan"
batcher = true
replicas = ["a", "b"]
expect = ["writing has stopped, and continues by itself"]
steps = [
  { at = 4, fill-disk = "a", until = 10 },
  { at = 5, reorg = "l1", until = 14 },
  { at = 16, move = "b" },
  { at = 22, new-key = "seq" },
]
[allow]
agree-within = 40
lag = 5
errors = ["writing has stopped, and continues by itself", "signs with a key that L1 does not name any more"]
"#;

#[test]
fn a_network_follows_full_disks_moves_keys_and_l1_reorgs() {
    if !can_mount() {
        return;
    }
    let Some(mut run) = LabRun::start(PRIVILEGED) else {
        return;
    };
    assert_eq!(run.code(), Some(0), "{}", run.output());
    run.leaves_nothing();
    let report = run.report();
    assert!(report.figures["L1 blocks replaced"] >= 1.0);
    let has = |node: &str, part: &str| {
        let nodes = report.nodes.iter().filter(|it| it.name == node);
        let lines = nodes.flat_map(|it| it.errors.iter().chain(it.warnings.keys()));
        lines.into_iter().any(|line| line.contains(part))
    };
    assert!(has("a", "writing has stopped"), "the disk was full");
    assert!(
        has("b", "L1 names another block signer"),
        "{:?}",
        report.nodes
    );
    let starts = |name: &str| {
        report
            .nodes
            .iter()
            .find(|it| it.name == name)
            .map(|it| it.starts)
    };
    assert_eq!([starts("b"), starts("seq")], [Some(2), Some(2)]);
    let expected = report.checks.iter();
    let expected = { expected }.find(|it| it.name == "expected log lines");
    let detail = &expected.expect("it is checked").detail;
    assert!(detail.ends_with("in the log of a"), "{detail}");
}

/// Two chains whose nodes have each other as static peers.
const CHAINS: &str = r#"
purpose = "Two chains stay apart."
seconds = 25
replicas = ["a"]
other-chain = 1
allow = { agree-within = 20, lag = 5 }
"#;

#[test]
fn chains_with_common_static_peers_stay_apart() {
    let Some(mut run) = LabRun::start(CHAINS) else {
        return;
    };
    assert_eq!(run.code(), Some(0), "{}", run.output());
    run.leaves_nothing();
    let report = run.report();
    let mut checks = report.checks.iter();
    let apart = checks.find(|it| it.name == "chains stay apart");
    let apart = apart.expect("it is checked");
    let links = "packets in both directions on 4 links";
    assert!(
        apart.passed && apart.detail.ends_with(links),
        "{}",
        apart.detail
    );
}

/// A network that is the same on both backends.
const BOTH: &str = r#"
purpose = "A link is cut on both backends."
seconds = 30
rung = "same-region"
load = 5
replicas = ["a", "b"]
steps = [
  { at = 8, isolate = "b" },
  { at = 12, heal = "b" },
]
allow = { lag = 5, agree-within = 16 }
"#;

#[test]
fn both_backends_have_the_same_verdicts() {
    let Some(mut run) = LabRun::start_with(BOTH, &["--both-backends"]) else {
        return;
    };
    let code = run.code();
    if run.output().contains("packet was refused") {
        starling_testkit::require(None::<()>, "the packet backend");
        return;
    }
    assert_eq!(code, Some(0), "{}", run.output());
    run.leaves_nothing();
    let [stream, packet] = ["stream", "packet"].map(|it| run.report_of(&format!("scenario-{it}")));
    assert_eq!([stream.backend, packet.backend], ["stream", "packet"]);
    let compared = packet.checks.last().expect("checks");
    assert_eq!(compared.name, "same verdicts on both backends");
    assert_eq!(compared.detail, format!("{} checks", stream.checks.len()));
    let difference = packet.figures["propagation p50 longer on packet, ms"];
    let [stream, packet] = [stream.propagation, packet.propagation].map(|it| it.unwrap().all.p50);
    assert!(
        (packet - stream - difference).abs() < 0.01,
        "{difference} of {stream} and {packet}"
    );
}

/// A program whose nodes do not start: each scenario fails with the end of the node's log, and the
/// next one still runs, also if the logs of the first one cannot be kept.
#[test]
fn a_network_that_does_not_start_fails_alone() {
    let Some(starling) = starling() else {
        return;
    };
    let folder = tempfile::tempdir().expect("a folder");
    let program = folder.path().join("starling");
    // A program that creates networks, and fails when a node starts.
    let script = format!(
        "#!/bin/sh\nif [ \"$1\" = devnet ]; then exec {} \"$@\"; fi\necho out of luck >&2\nexit 3\n",
        starling.display()
    );
    std::fs::write(&program, script).expect("a file");
    let permissions = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&program, permissions).expect("an executable file");
    for name in ["one", "two"] {
        let text = "purpose = \"x\"\nseconds = 12\nreplicas = [\"a\"]\n";
        std::fs::write(folder.path().join(format!("{name}.toml")), text).expect("a file");
    }
    // The place of the logs of `one` is taken by a file.
    std::fs::create_dir(folder.path().join("reports")).expect("a folder");
    std::fs::write(folder.path().join("reports/one"), "").expect("a file");
    let output = Command::new(NETSIM)
        .args([
            "run",
            "one.toml",
            "two.toml",
            "--out=reports",
            "--quiet",
            "--seed=1",
        ])
        .arg(format!("--binary={}", program.display()))
        .current_dir(folder.path())
        .env("TMPDIR", folder.path())
        .output()
        .expect("netsim runs");
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(
        text.contains("2 of 2 scenarios failed: one (seed 1), two (seed 1)"),
        "{text}"
    );
    for name in ["one", "two"] {
        let report = folder.path().join(format!("reports/{name}.json"));
        let report = starling_netsim::report::read(&report).expect("a report");
        assert_eq!(report.passed(), Some(false));
        let detail = &report.checks[0].detail;
        assert!(
            detail.contains("l1 exited unexpectedly (exit status: 3)"),
            "{detail}"
        );
        assert!(detail.ends_with("out of luck"), "{detail}");
    }
    assert!(text.contains("the logs of one are not kept"), "{text}");
    assert!(!text.contains("; logs: reports/one"), "{text}");
    let log = folder.path().join("reports/two/l1.log");
    assert!(log.exists(), "the logs of a failed start are kept");
    assert!(text.contains("; logs: reports/two)"), "{text}");
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
    scenario.allow.agree_within = std::time::Duration::from_millis(1);
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
    let agreement = report
        .checks
        .iter()
        .find(|it| it.check == "one head on all nodes");
    let has_agreed = agreement.expect("it is checked").passed;
    assert!(!has_agreed && !report.passed, "{}", report.summary());
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

/// The name of a scenario is that of its file, so those of two folders may be equal.
#[test]
fn scenarios_of_one_name_are_refused_before_anything_starts() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("partition.toml");
    let text = "purpose = \"x\"\nseconds = 12\nreplicas = [\"a\"]\n";
    std::fs::write(&file, text).expect("a file");
    let output = Command::new(NETSIM)
        .arg("run")
        .arg(&file)
        .arg("partition")
        .arg("--binary=/nowhere")
        .current_dir(folder.path())
        .output()
        .expect("netsim runs");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success());
    assert!(
        error.contains("two scenarios are called `partition`"),
        "{error}"
    );
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
