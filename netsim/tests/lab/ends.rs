//! Ends that nobody planned: whatever happens to the controller or to a node, nothing is left.

use super::{LabRun, can_mount, wait};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use std::{collections::BTreeSet, fs, path::PathBuf};

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
    signal(run.child.id() as i32, Signal::SIGKILL);
    assert_eq!(run.code(), None);
    run.leaves_nothing();
    let folder = run.folder.path().to_string_lossy().into_owned();
    let mounts = std::fs::read_to_string("/proc/self/mounts").expect("/proc");
    assert!(!mounts.contains(&folder), "{mounts}");
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
    let namespaces = || -> BTreeSet<PathBuf> {
        let nodes = run.nodes().into_iter();
        let namespace = |(id, _)| fs::read_link(format!("/proc/{id}/ns/net"));
        nodes.filter_map(|node| namespace(node).ok()).collect()
    };
    let used = namespaces();
    assert_eq!(used.len(), 4, "{}", run.output());
    signal(run.child.id() as i32, Signal::SIGKILL);
    assert_eq!(run.code(), None);
    run.leaves_nothing();
    let own = fs::read_link("/proc/self/ns/net").expect("Linux");
    for entry in fs::read_dir("/proc").expect("/proc").flatten() {
        // A process that has just ended has no namespace.
        let found = fs::read_link(entry.path().join("ns/net"));
        let is_left = found.is_ok_and(|it| it != own && used.contains(&it));
        assert!(
            !is_left,
            "{} is in a namespace of the run",
            entry.path().display()
        );
    }
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
