//! Runs without a network: their clock, and nodes that end by themselves.

use super::*;
use crate::lab::process::LabProcess;

#[test]
fn a_run_goes_on_after_a_late_fault() {
    let scenario = LabScenario::new("x", "y").seconds(30);
    let end = |last| end_of_run(&scenario, Duration::from_secs(last)).as_secs();
    assert_eq!([end(12), end(20), end(29)], [30, 30, 39]);
}

/// Scenario, settings and versions of a run.
struct RunParts(LabScenario, LabSettings, LabVersions);

impl RunParts {
    fn new() -> Self {
        let shell = PathBuf::from("/bin/sh");
        let settings = LabSettings {
            program: shell.clone(),
            upgrade: shell.clone(),
            netsim: shell,
            logs: None,
            progress: false,
        };
        let scenario = LabScenario::new("x", "y").replicas(["a"]);
        Self(scenario, settings, LabVersions::default())
    }

    /// A run whose nodes end at once, with exit status 0.
    fn run(&self, folder: &Path) -> RunningLab<'_> {
        let topology = LabTopology::new(&self.0);
        let plan = LabPlan::new(&self.0, &topology, 1);
        let process = |name: &str| {
            let args = ["-c", "exit 0"].map(str::to_owned).to_vec();
            let log = folder.join(name);
            LabProcess::new(name, &self.1.program, args, log, folder)
        };
        let network = LabNetwork::of_processes(topology, process);
        RunningLab::new(&self.0, &self.1, &self.2, network, plan)
    }
}

/// The index of the replica.
const REPLICA: usize = SEQUENCER_INDEX + 1;

#[tokio::test]
async fn a_node_that_ended_by_itself_fails_its_next_change() {
    let folder = tempfile::tempdir().unwrap();
    let parts = RunParts::new();
    for change in [NodeChange::Kill, NodeChange::Stop, NodeChange::Restart] {
        let mut run = parts.run(folder.path());
        let process = &mut run.network.nodes[REPLICA].process;
        process.start().unwrap();
        let pid = process.pid().unwrap();
        // An ended process that nobody has waited for has no memory.
        let status = || fs::read_to_string(format!("/proc/{pid}/statm")).unwrap_or_default();
        while !(status().is_empty() || status().starts_with("0 ")) {
            sleep(Duration::from_millis(10)).await;
        }
        let found = run.change_node(REPLICA, change).await;
        let error = found.expect_err("it has ended").to_string();
        let expected = "a exited unexpectedly (exit status: 0)";
        assert!(error.starts_with(expected), "{change:?}: {error}");
    }
}

#[tokio::test]
async fn a_node_that_is_down_can_be_changed() {
    let folder = tempfile::tempdir().unwrap();
    let parts = RunParts::new();
    let mut run = parts.run(folder.path());
    let changed = run.change_node(REPLICA, NodeChange::Wipe).await;
    assert!(changed.is_ok(), "{changed:?}");
}

/// A second network starts for seconds after the first one.
#[tokio::test]
async fn the_clock_of_a_run_starts_when_the_run_begins() {
    let folder = tempfile::tempdir().unwrap();
    let parts = RunParts::new();
    let mut run = parts.run(folder.path());
    sleep(Duration::from_millis(20)).await;
    let (before, wall) = (Instant::now(), SystemTime::now());
    assert!(run.tasks.is_empty(), "nothing is read before");
    run.begin();
    assert!(run.start >= before && run.started >= wall);
    assert!(!run.tasks.is_empty());
}
