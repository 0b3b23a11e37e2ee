//! Hostile peers and discovery with real nodes.

use super::LabRun;
use starling_netsim::lab::report::LabReport;

/// One peer each of the behaviours that nodes notice by themselves, without requests of their own.
/// The propagation is not compared: other tests use the machine.
const HOSTILE: &str = r#"
purpose = "Hostile peers against three nodes."
seconds = 45
replicas = ["a", "b"]
hostile = [
  { behaviour = "garbage", start = 12 },
  { behaviour = "wrong-signer", start = 12 },
  { behaviour = "flood", start = 12, targets = ["a", "b"] },
  { behaviour = "false-head", start = 12, targets = "b" },
]
allow = { slowdown = 1000, lag = 5, agree-within = 30 }
"#;

#[test]
fn hostile_peers_are_banned_by_every_target_and_honest_peers_by_nobody() {
    let Some(mut run) = LabRun::start(HOSTILE) else {
        return;
    };
    assert_eq!(run.code(), Some(0), "{}", run.output());
    run.leaves_nothing();
    let report: LabReport = serde_json::from_value(run.report()).expect("a report");
    let banned: Vec<&str> = report.banned().into_iter().collect();
    assert_eq!(banned, ["flood-1", "garbage-1", "wrong-signer-1"]);
    let targets: Vec<usize> = report
        .hostile
        .iter()
        .map(|peer| peer.findings.len())
        .collect();
    assert_eq!(targets, [3, 3, 2, 1], "{:?}", report.hostile);
    let false_head = &report.hostile[3].findings[0];
    assert!(
        false_head.reasons.contains_key("false_head"),
        "{false_head:?}"
    );
    let verdict = report
        .checks
        .iter()
        .find(|it| it.check == "hostile peers banned or starved");
    assert!(verdict.expect("it is checked").passed);
    assert!(
        report
            .hostile_propagation
            .expect("it is measured")
            .after
            .arrivals
            > 0
    );
}

/// The nodes know only the bootnode, so that each block at another node shows discovery.
const DISCOVERY: &str = r#"
purpose = "Nodes find each other."
seconds = 60
replicas = ["a"]
late = { b = 8 }
bootnode = "boot"
allow = { lag = 5, agree-within = 45 }
"#;

#[test]
fn nodes_find_each_other_through_a_bootnode() {
    let Some(mut run) = LabRun::start(DISCOVERY) else {
        return;
    };
    assert_eq!(run.code(), Some(0), "{}", run.output());
    run.leaves_nothing();
    let report: LabReport = serde_json::from_value(run.report()).expect("a report");
    let arrivals = report.blocks.iter().flat_map(|block| &block.arrivals);
    let nodes: std::collections::BTreeSet<usize> = arrivals.map(|(node, _)| *node).collect();
    assert_eq!(nodes, [2, 3, 4].into(), "a, b and the bootnode");
    for link in &report.links {
        assert_eq!(link.far, 0, "links to the L1 only");
    }
}
