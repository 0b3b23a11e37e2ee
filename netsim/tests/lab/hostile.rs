//! Hostile peers and discovery with real nodes.

use super::LabRun;
use starling_netsim::report::RunReport;
use std::collections::BTreeSet;

/// One peer each of the behaviours that nodes notice by themselves, without requests of their own.
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
allow = { lag = 5, agree-within = 30 }
"#;

#[test]
fn hostile_peers_are_banned_by_every_target_and_honest_peers_by_nobody() {
    let Some(mut run) = LabRun::start(HOSTILE) else {
        return;
    };
    let code = run.code();
    run.leaves_nothing();
    let report = run.report();
    // The propagation cannot be compared here, since other tests use the machine.
    let is_judged = |name: &str| name != "honest propagation";
    let mut checks = report.checks.iter().filter(|it| is_judged(&it.name));
    let is_passed = matches!(code, Some(0 | 1)) && checks.all(|it| it.passed);
    assert!(is_passed, "{}", run.output());
    let banned: BTreeSet<&str> = report.bans.iter().map(|ban| &*ban.peer).collect();
    assert_eq!(banned, ["flood-1", "garbage-1", "wrong-signer-1"].into());
    let outcomes = report.hostile.iter().map(|peer| peer.outcomes.len());
    let outcomes: Vec<usize> = outcomes.collect();
    assert_eq!(outcomes, [3, 3, 2, 1], "{:?}", report.hostile);
    let false_head = &report.hostile[3].outcomes[0];
    assert!(
        false_head.offences.contains_key("false_head"),
        "{false_head:?}"
    );
    let verdict = report
        .checks
        .iter()
        .find(|it| it.name == "hostile peers in ledgers");
    assert!(verdict.expect("it is checked").passed);
    assert!(report.figures["receipts with hostile peers"] > 0.0);
}

/// The highest block that a node had.
fn highest(report: &RunReport, node: &str) -> f64 {
    let heads = report.heads.iter().find(|it| it.name == node);
    let heads = heads.map_or(&[][..], |it| &it.points);
    heads.iter().map(|point| point[1]).fold(0.0, f64::max)
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
    let report = run.report();
    for node in ["a", "b", "boot"] {
        assert!(highest(&report, node) > 0.0, "{node} has blocks");
    }
    for link in &report.links {
        assert_eq!(link.far, "l1", "links to the L1 only");
    }
}
