//! The public report of a small run: two replicas, one of which is behind.

use super::*;
use crate::lab::{
    counters::NodeCounters,
    hostile::{
        behaviour::HostileBehaviour,
        evidence::{HostileFinding, HostilePropagation, HostileReport, PropagationPart},
    },
    other_chain::joined,
    report::{
        BlockReport, CpuPoint, FaultReport, HeadPoint, LabVerdict, LabVersions, LinkTraffic,
        LoadReport, UsagePoint,
    },
};

fn node(name: &str, role: LabRole, last: u64) -> NodeReport {
    let head = |number: u64| HeadPoint {
        at_ms: number * 1_000,
        number,
        hash: format!("0x{number}"),
    };
    NodeReport {
        name: name.to_owned(),
        role,
        peer: String::new(),
        starts: 1,
        is_up: true,
        heads: (0..=last).map(head).collect(),
        reorgs: Vec::new(),
        usage: Vec::new(),
        bans: Vec::new(),
        disconnects: BTreeMap::new(),
        warnings: BTreeMap::new(),
        errors: Vec::new(),
    }
}

fn fault(at: u64, verb: &str, node: usize, link: Option<usize>, ends_fault: bool) -> FaultReport {
    FaultReport {
        at_ms: at * 1_000,
        done_ms: at * 1_000,
        verb: verb.to_owned(),
        nodes: if link.is_some() { vec![] } else { vec![node] },
        links: link.into_iter().collect(),
        ends_fault,
        text: format!("{verb} {node}"),
    }
}

fn link(near: usize, far: usize, up: u64, down: u64) -> LinkReport {
    let traffic = |bytes| LinkTraffic {
        bytes,
        ..LinkTraffic::default()
    };
    LinkReport {
        near,
        far,
        rung: "lan".to_owned(),
        up: traffic(up),
        down: traffic(down),
    }
}

fn made(number: u64, arrivals: &[(usize, u64)]) -> BlockReport {
    BlockReport {
        number,
        hash: format!("0x{number}"),
        made_ms: number * 1_000,
        arrivals: arrivals.to_vec(),
    }
}

fn run() -> LabReport {
    LabReport {
        scenario: "small".to_owned(),
        purpose: "A test.".to_owned(),
        seed: 7,
        backend: "stream".to_owned(),
        versions: LabVersions {
            netsim: "1".to_owned(),
            starling: "starling 2".to_owned(),
            upgrade: None,
        },
        settings: BTreeMap::new(),
        started_unix_ms: 0,
        length_ms: 10_000,
        last_fault_end_ms: 0,
        passed: true,
        failure: None,
        checks: vec![LabVerdict {
            check: "one head".to_owned(),
            passed: true,
            detail: String::new(),
        }],
        nodes: vec![
            node("l1", LabRole::L1, 0),
            node("seq", LabRole::Sequencer, 3),
            node("a", LabRole::Replica, 3),
            node("b", LabRole::Replica, 2),
        ],
        controller: Vec::new(),
        link_threads: Vec::new(),
        clocks: Vec::new(),
        counters: vec![NodeCounters::default(); 4],
        links: vec![
            link(1, 0, 900, 900),
            link(2, 1, 10, 500),
            link(3, 1, 20, 300),
        ],
        faults: Vec::new(),
        // Replica b has block 2 as part of a batch, and never has block 3.
        blocks: vec![
            made(1, &[(2, 3_000), (3, 5_000)]),
            made(2, &[(2, 1_000)]),
            made(3, &[(2, 2_000)]),
        ],
        transactions: LoadReport::default(),
        other_links: vec![[3, 4]],
        replaced_l1: 0,
        hostile: Vec::new(),
        hostile_propagation: None,
    }
}

#[test]
fn receipts_and_missed_blocks_are_counted() {
    let propagation = run().to_run_report().propagation.unwrap();
    assert_eq!(propagation.all.count, 4);
    assert_eq!((propagation.all.p50, propagation.all.max), (2.0, 5.0));
    assert_eq!(propagation.missed, 1);
    assert_eq!(propagation.curve.last(), Some(&[5.0, 0.8]));
}

#[test]
fn bytes_are_those_between_nodes_with_a_swarm() {
    let traffic = run().to_run_report().traffic.unwrap();
    let nodes: Vec<_> = traffic
        .nodes
        .iter()
        .map(|it| (it.node.as_str(), it.sent, it.received))
        .collect();
    assert_eq!(nodes, [("seq", 800, 30), ("a", 10, 500), ("b", 20, 300)]);
    assert_eq!(traffic.duplicates, None, "no node has metrics");
    let mut discovered = run();
    discovered.links.truncate(1);
    assert_eq!(
        discovered.to_run_report().traffic,
        None,
        "links to the L1 only"
    );
    let mut mixed = run();
    mixed.links.truncate(2);
    let mixed = mixed.to_run_report().traffic.unwrap();
    let nodes: Vec<_> = mixed.nodes.iter().map(|it| it.node.as_str()).collect();
    assert_eq!(nodes, ["seq", "a"], "b has no link to another swarm");
}

#[test]
fn lag_and_processor_time_follow_the_nodes() {
    let mut run = run();
    let point = |at_ms, cpu_ms| UsagePoint {
        at_ms,
        rss_kb: 1_000,
        cpu_ms,
        wait_ms: 0,
    };
    // A restart between the second and the third reading.
    run.nodes[3].usage = vec![
        point(0, 0),
        point(1_000, 250),
        point(2_000, 10),
        point(4_000, 50),
    ];
    run.controller = vec![point(0, 100), point(2_000, 200)];
    let links = |at_ms, cpu_ms| CpuPoint { at_ms, cpu_ms };
    run.link_threads = vec![links(0, 10), links(2_000, 40)];
    let report = run.to_run_report();
    let lag = report.lag.iter().find(|it| it.name == "b").unwrap();
    let at = |second: f64| lag.points.iter().find(|it| it[0] == second).unwrap()[1];
    assert_eq!([at(2.5), at(3.0), at(10.0)], [0.0, 1.0, 1.0]);
    assert_eq!(report.cpu[0].points, [[1.0, 25.0], [4.0, 2.0]]);
    let links = &report.cpu[1];
    assert_eq!(links.name, "netsim, with the links");
    assert_eq!(links.points, [[2.0, 5.0]]);
    let links = &report.cpu[2];
    assert_eq!(
        (links.name.as_str(), links.points.as_slice()),
        ("links", [[2.0, 1.5]].as_slice())
    );
    assert_eq!(report.memory[0].points[0], [0.0, 1.024]);
}

#[test]
fn faults_last_until_they_are_taken_back() {
    let mut run = run();
    run.faults = vec![
        fault(1, "cut", 0, Some(1), false),
        fault(2, "kill", 3, None, false),
        fault(3, "cut", 0, Some(2), false),
        fault(4, "heal", 0, Some(1), true),
        fault(5, "restart", 3, None, true),
        fault(6, "restart", 2, None, true),
        fault(7, "fill-disk", 2, None, false),
        fault(8, "fill-disk", 2, None, true),
        fault(8, "reorg", 0, None, false),
        fault(9, "load", 0, None, false),
        fault(9, "reorg", 0, None, true),
    ];
    run.faults[5].done_ms = 6_600;
    let faults = run.to_run_report().faults;
    let spans: Vec<_> = faults
        .iter()
        .map(|it| (it.what.as_str(), it.from, it.until))
        .collect();
    let expected = [
        ("cut 0", 1.0, Some(4.0)),
        ("kill 3", 2.0, Some(5.0)),
        ("cut 0", 3.0, Some(10.0)),
        ("restart 2", 6.0, Some(6.6)),
        ("fill-disk 2", 7.0, Some(8.0)),
        ("reorg 0", 8.0, None),
        ("load 0", 9.0, None),
        ("reorg 0", 9.0, None),
    ];
    assert_eq!(spans, expected);
}

#[test]
fn a_run_that_ended_early_or_did_not_start_has_failed() {
    let mut run = run();
    assert_eq!(run.to_run_report().passed(), Some(true));
    run.failure = Some("a exited unexpectedly".to_owned());
    run.checks.clear();
    let failed = run.to_run_report();
    assert_eq!(failed.passed(), Some(false));
    assert_eq!(failed.checks[0].detail, "a exited unexpectedly");
    let scenario = LabScenario::new("x", "y").replicas(["a"]);
    let report = not_started(&scenario, 7, &LabError::Interrupted);
    assert_eq!((report.passed(), report.seed), (Some(false), 7));
}

#[test]
fn a_run_report_can_be_compared_and_has_a_page() {
    let report = run().to_run_report();
    let text = serde_json::to_string(&report).unwrap();
    assert_eq!(serde_json::from_str::<RunReport>(&text).unwrap(), report);
    let mut slower = run();
    slower.blocks[0].arrivals[1].1 = 9_000;
    let compared = crate::report::compare::compare(&report, &slower.to_run_report(), 0.0);
    assert!(compared.contains("propagation max, ms"), "{compared}");
    let page = crate::report::page(&report);
    for title in [
        "Checks",
        "Heads of the nodes",
        "Nodes",
        "Links",
        "Propagation",
    ] {
        assert!(page.contains(&format!("<h2>{title}</h2>")), "{title}");
    }
}

#[test]
fn hostile_peers_have_a_section_and_figures() {
    let mut run = run();
    let banned = HostileFinding {
        node: "a".to_owned(),
        ran_throughout: true,
        is_banned: true,
        offences: BTreeMap::from([("too_small".to_owned(), 5)]),
        ..HostileFinding::default()
    };
    let restarted = HostileFinding {
        node: "b".to_owned(),
        is_connected: true,
        ..HostileFinding::default()
    };
    run.hostile = vec![HostileReport {
        name: "garbage-1".to_owned(),
        behaviour: HostileBehaviour::Garbage,
        start_ms: 4_500,
        findings: vec![banned, restarted],
    }];
    let part = |p99| PropagationPart {
        p50: 1_000,
        p99,
        arrivals: 20,
        expected: 21,
    };
    run.hostile_propagation = Some(HostilePropagation {
        before: part(2_000),
        after: part(3_500),
        blocks: 40,
        left_out: 1,
    });
    let report = run.to_run_report();
    let text = serde_json::to_string(&report).unwrap();
    assert_eq!(serde_json::from_str::<RunReport>(&text).unwrap(), report);
    let [hostile] = &report.hostile[..] else {
        panic!("{:?}", report.hostile);
    };
    assert_eq!(
        (&*hostile.name, &*hostile.behaviour, hostile.from),
        ("garbage-1", "garbage", 4.5)
    );
    let figure = |name: &str| report.figures[name];
    assert_eq!(figure("propagation before hostile peers p99, ms"), 2.0);
    assert_eq!(figure("propagation with hostile peers p99, ms"), 3.5);
    assert_eq!(figure("expected receipts with hostile peers"), 21.0);
    let page = crate::report::page(&report);
    for text in [
        "<h2>Hostile peers</h2>",
        "too_small 5",
        "banned",
        "connected (incomplete ledger)",
    ] {
        assert!(page.contains(text), "{text}");
    }
}

#[test]
fn nodes_lag_behind_their_own_chain_and_miss_its_blocks_only() {
    let mut other = run();
    other.nodes[1] = node("other-seq", LabRole::Sequencer, 9);
    let report = joined(run(), other).to_run_report();
    let last = report.lag.iter().map(|it| it.points.last().unwrap()[1]);
    let last: Vec<f64> = last.collect();
    assert_eq!(last, [3.0, 0.0, 0.0, 1.0, 9.0, 0.0, 6.0, 7.0]);
    let missed = |report: RunReport| report.propagation.unwrap().missed;
    assert_eq!(missed(report), missed(run().to_run_report()));
}

/// A block that is on both chains fails the check; otherwise the checks of both networks count.
#[test]
fn chains_that_meet_fail_the_joined_report() {
    let other = |branch: &str| {
        let mut other = run();
        for head in other.nodes.iter_mut().flat_map(|node| &mut node.heads) {
            head.hash.push_str(branch);
        }
        other
    };
    let failed = |report: &LabReport| {
        let checks = report.checks.iter().filter(|it| !it.passed);
        checks.map(|it| it.check.clone()).collect::<Vec<_>>()
    };
    let apart = joined(run(), other("f"));
    assert!(apart.passed, "{:?}", apart.checks);
    let names: Vec<_> = apart.checks.iter().map(|it| it.check.as_str()).collect();
    assert_eq!(
        names,
        ["one head", "chains stay apart", "other chain: one head"]
    );
    assert_eq!((apart.nodes.len(), apart.links[3].near), (8, 5));
    let met = joined(run(), other(""));
    assert!(!met.passed);
    assert_eq!(failed(&met), ["chains stay apart"]);
    let mut bad = other("f");
    bad.checks[0].passed = false;
    assert_eq!(failed(&joined(run(), bad)), ["other chain: one head"]);
    let mut dead = other("f");
    dead.failure = Some("a died".to_owned());
    let dead = joined(run(), dead);
    assert_eq!(dead.failure.as_deref(), Some("other chain: a died"));
    assert!(!dead.passed && dead.checks.is_empty());
    let mut silent = run();
    silent.other_links = vec![[3, 4], [0, 4]];
    assert_eq!(failed(&joined(silent, other("f"))), ["chains stay apart"]);
}
