//! Ends that nobody planned: whatever happens to the controller or to a node, nothing is left.

use super::{LabRun, assert_unused, can_mount, wait};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use std::time::Duration;

/// A frozen node, because a frozen process does not notice by itself that its controller has ended.
const FROZEN: &str = r#"
purpose = "A network with a frozen node."
seconds = 120
replicas = ["a", "b"]
steps = [{ at = 1, freeze = "b" }, { at = 100, thaw = "b" }]
"#;

const FULL: &str = r#"
purpose = "A node with a full disk."
seconds = 120
replicas = ["a"]
steps = [{ at = 1, fill-disk = "a", until = 100 }]
"#;

const HOSTILE: &str = r#"
purpose = "A network with a hostile peer."
seconds = 120
replicas = ["a"]
hostile = [{ behaviour = "garbage", start = 12 }]
"#;

const PLAIN: &str = r#"
purpose = "A network without faults."
seconds = 120
replicas = ["a"]
"#;

fn signal(pid: i32, signal: Signal) {
    kill(Pid::from_raw(pid), signal).expect("it runs");
}

#[test]
fn a_killed_controller_leaves_no_process_and_no_folder() {
    let Some(mut run) = LabRun::start(FROZEN) else {
        return;
    };
    run.prints("freeze b");
    assert_eq!(
        run.nodes().len(),
        4,
        "L1, sequencer, two replicas: {:?}",
        run.nodes()
    );
    assert_eq!(run.folders().len(), 1);
    signal(run.child.id() as i32, Signal::SIGKILL);
    assert_eq!(run.code(), None);
    run.leaves_nothing();
}

/// The controller is killed while it creates the network or starts its nodes: a process that it has
/// just forked does not have the mark of the run yet.
#[test]
fn a_controller_that_is_killed_during_the_start_leaves_nothing() {
    for delay in [50, 200, 500, 1_000, 2_000] {
        let Some(mut run) = LabRun::start(PLAIN) else {
            return;
        };
        run.prints("A network without faults. (seed 7)");
        std::thread::sleep(Duration::from_millis(delay));
        signal(run.child.id() as i32, Signal::SIGKILL);
        assert_eq!(run.code(), None, "{delay} ms: {}", run.output());
        run.leaves_nothing();
        // A process that was just forked then would have its mark by now.
        std::thread::sleep(Duration::from_millis(300));
        assert!(run.nodes().is_empty(), "{delay} ms: {:?}", run.nodes());
    }
}

/// Hostile peers are processes of `netsim`, as the controller is.
#[test]
fn a_killed_controller_leaves_no_hostile_peer() {
    let Some(mut run) = LabRun::start(HOSTILE) else {
        return;
    };
    run.prints("start garbage-1");
    let nodes = run.nodes();
    let is_hostile = |(_, line): &(i32, String)| line.contains("netsim hostile ");
    assert!(nodes.iter().any(is_hostile), "{nodes:?}");
    signal(run.child.id() as i32, Signal::SIGKILL);
    assert_eq!(run.code(), None);
    run.leaves_nothing();
}

/// The file system of the full disk is in the nodes' namespace, and ends with its last process.
#[test]
fn a_killed_controller_leaves_no_mount_of_a_full_disk() {
    if !can_mount() {
        return;
    }
    let Some(mut run) = LabRun::start(FULL) else {
        return;
    };
    run.prints("fill-disk a");
    let used = run.namespaces("mnt");
    assert_eq!(used.len(), 1, "{:?}", run.nodes());
    signal(run.child.id() as i32, Signal::SIGKILL);
    assert_eq!(run.code(), None);
    run.leaves_nothing();
    assert_unused(&used, "mnt");
}

#[test]
fn a_killed_controller_leaves_no_namespace() {
    let packets = format!("backend = \"packet\"{FROZEN}");
    let Some(mut run) = LabRun::start(&packets) else {
        return;
    };
    run.prints("freeze b");
    if run.output().contains("packet was refused") {
        starling_testkit::require(None::<()>, "the packet backend");
        return;
    }
    let used = run.namespaces("net");
    assert_eq!(used.len(), 4, "{}", run.output());
    signal(run.child.id() as i32, Signal::SIGKILL);
    assert_eq!(run.code(), None);
    run.leaves_nothing();
    assert_unused(&used, "net");
}

#[test]
fn an_interrupted_run_leaves_nothing_and_says_so() {
    let Some(mut run) = LabRun::start(FROZEN) else {
        return;
    };
    run.prints("freeze b");
    signal(run.child.id() as i32, Signal::SIGINT);
    assert_eq!(run.code(), Some(130), "{}", run.output());
    assert!(run.nodes().is_empty() && run.folders().is_empty());
    assert!(run.output().ends_with("interrupted\n"), "{}", run.output());
}

#[test]
fn a_node_that_dies_unasked_fails_the_run_with_the_end_of_its_log() {
    let Some(mut run) = LabRun::start(PLAIN) else {
        return;
    };
    // The replica's log has a block once the controller has seen one.
    wait("a block of a", || {
        let output = run.output();
        let mut heads = output.split("  a ").skip(1);
        heads.any(|head| head.starts_with(|it: char| matches!(it, '1'..='9')))
    });
    let nodes = run.nodes();
    let replica = nodes.iter().find(|(_, line)| line.contains("replica-1"));
    signal(replica.expect("a replica").0, Signal::SIGKILL);
    assert_eq!(run.code(), Some(1), "{}", run.output());
    let output = run.output();
    let died = "FAIL a exited unexpectedly (signal: 9 (SIGKILL)); its log ends with:";
    assert!(output.contains(died), "{output}");
    assert!(
        output.contains("INFO  block age="),
        "lines of the log:\n{output}"
    );
    let report = run.report();
    assert_eq!(report.passed(), Some(false));
    let failure = &report.checks[0].detail;
    assert!(failure.contains("exited unexpectedly"), "{failure}");
    run.leaves_nothing();
    let log = run.folder.path().join("reports/scenario/a.log");
    assert!(log.exists(), "the logs of a failed run are kept");
}
