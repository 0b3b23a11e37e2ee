//! Runs without a network: their clock and their end, and nodes that end by themselves.

use super::*;
use crate::lab::{
    process::LabProcess,
    scenario::{LabVerb, NodeVerb},
};
use std::net::SocketAddr;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
};

#[test]
fn a_run_goes_on_after_a_late_fault() {
    let scenario = LabScenario::new("x", "y").seconds(30);
    let end = |last| end_of_run(&scenario, Duration::from_secs(last)).as_secs();
    assert_eq!([end(12), end(20), end(29)], [30, 30, 39]);
}

#[test]
fn a_run_with_a_batcher_goes_on_until_a_batch_may_have_arrived() {
    let scenario = LabScenario::new("x", "y").seconds(30).batcher();
    let end = |last| end_of_run(&scenario, Duration::from_secs(last)).as_secs();
    assert_eq!([end(18), end(29)], [30, 41]);
}

#[test]
fn faults_are_over_when_only_the_load_changes() {
    let scenario = LabScenario::new("x", "y").replicas(["a"]);
    let names = vec!["a".to_owned()];
    let scenario = scenario
        .at(1, LabVerb::Load(5))
        .at(2, LabVerb::Nodes(NodeVerb::Kill, names.clone()))
        .at(3, LabVerb::Nodes(NodeVerb::Restart, names))
        .at(4, LabVerb::Load(0));
    let plan = LabPlan::new(&scenario, &LabTopology::new(&scenario), 1);
    let over = |from: usize| are_faults_over(plan.actions[from..].iter());
    assert_eq!([0, 1, 2, 3, 4].map(over), [false, false, false, true, true]);
}

/// A node that answers every request with block 7.
async fn answering() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = [0; 4 << 10];
            let length = stream.read(&mut request).await.unwrap();
            assert!(length > 0, "a request");
            let hash = alloy_primitives::B256::ZERO;
            let block = format!(r#"{{"number":"0x7","hash":"{hash:?}","parentHash":"{hash:?}"}}"#);
            let body = format!(r#"{{"jsonrpc":"2.0","id":1,"result":{block}}}"#);
            let response = format!("HTTP/1.0 200 OK\r\n\r\n{body}");
            stream.write_all(response.as_bytes()).await.unwrap();
        }
    });
    address
}

#[tokio::test]
async fn the_safe_head_after_the_last_fault_must_be_passed() {
    let folder = tempfile::tempdir().unwrap();
    let mut parts = RunParts::new();
    parts.0 = parts.0.batcher().seconds(0);
    parts.0.allow.agree_within = Duration::ZERO;
    parts.0.l1_block_time = 0;
    let mut run = parts.run(folder.path());
    run.network.nodes[SEQUENCER_INDEX].http = Some(answering().await);
    run.plan.planned_fault_end = Duration::from_millis(200);
    run.start = Instant::now();
    run.follow_plan().await.unwrap();
    assert_eq!(run.safe_floor, 7);
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
