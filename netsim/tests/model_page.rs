//! The page of a run with all sections, as a lab fills them: foreign text stays text, and Chromium
//! opens it in light and dark without an error or a request.

use starling_netsim::report::{
    self, RunBan, RunCheck, RunFault, RunLink, RunNode, RunNodeTraffic, RunPropagation, RunReport,
    RunSeries, RunSpread, RunTraffic,
};
use std::{collections::BTreeMap, fs, path::Path, process::Command};

const NODES: u32 = 64;
/// Length of the run, in seconds.
const LENGTH: u32 = 600;
const HOSTILE: &str = "lied about a head </td><script>alert('x')</script>";

fn series(value: impl Fn(u32, u32) -> f64) -> Vec<RunSeries> {
    let node = |node| RunSeries {
        name: format!("replica-{node}"),
        points: (0..LENGTH)
            .step_by(2)
            .map(|at| [at.into(), value(node, at)])
            .collect(),
    };
    (0..NODES).map(node).collect()
}

/// Blocks that a node is behind: a third of the nodes is cut off for 100 s.
fn behind(node: u32, at: u32) -> u32 {
    match at {
        200..300 if node > 40 => (at - 200) / 2,
        300..330 if node > 40 => (330 - at) * 50 / 30,
        _ => 0,
    }
}

fn spread(p50: f64) -> RunSpread {
    RunSpread {
        count: 1_000,
        mean: p50,
        p50,
        p90: p50 * 1.3,
        p99: p50 * 2.0,
        max: p50 * 9.0,
    }
}

fn lab() -> RunReport {
    let mut report = RunReport::new("lab", "partition-and-heal", 42);
    report.purpose = "A third of the nodes is cut off for 100 s, then healed".to_owned();
    report.backend = "stream (packet was refused: /dev/net/tun is absent)".to_owned();
    report.seconds = LENGTH.into();
    report.propagation = Some(RunPropagation {
        all: spread(80.0),
        curve: (0..120)
            .map(|x| [f64::from(x) * 2.0, f64::from(x) / 121.0])
            .collect(),
        missed: 3,
        ..RunPropagation::default()
    });
    report.heads = series(|node, at| (at / 2 - behind(node, at).min(at / 2)).into());
    report.lag = series(|node, at| behind(node, at).into());
    report.mesh =
        series(|node, at| f64::from(8 + (node + at) % 3) - f64::from(behind(node, at).min(4)));
    report.cpu = series(|node, at| f64::from((node * 7 + at) % 23));
    report.memory = series(|node, at| 59.0 + f64::from(node) * 0.2 + f64::from(at) * 0.02);
    let node = |node: u32| RunNodeTraffic {
        node: format!("replica-{node}"),
        sent: (2_000_000 + node * 31_000).into(),
        received: (2_500_000 + node % 9 * 100_000).into(),
        duplicates: (300 + node % 7 * 40).into(),
    };
    report.traffic = Some(RunTraffic {
        duplicates: Some(spread(5.5)),
        sent: Some(spread(2e6)),
        received: Some(spread(2.5e6)),
        nodes: (0..NODES).map(node).collect(),
    });
    events(&mut report);
    report
}

fn events(report: &mut RunReport) {
    let fault = |from, until, what: &str| RunFault {
        from,
        until,
        what: what.to_owned(),
    };
    report.faults = vec![
        fault(200.0, Some(300.0), "split A|B"),
        fault(420.0, None, "kill replica-7"),
        fault(430.0, Some(470.0), "lossy replica-9 30 %"),
    ];
    report.bans = vec![RunBan {
        at: 120.5,
        node: "replica-3".to_owned(),
        peer: "16Uiu2HAm4wN4epAyuj82ix2QC1Uc2vQd833szwvsNpLqhubPz8xa".to_owned(),
        reason: HOSTILE.to_owned(),
    }];
    let check = |name: &str, passed, detail: &str| RunCheck {
        name: name.to_owned(),
        passed,
        detail: detail.to_owned(),
    };
    report.nodes = vec![RunNode {
        name: "replica-3".to_owned(),
        role: "replica".to_owned(),
        starts: 2,
        runs: true,
        warnings: BTreeMap::from([(HOSTILE.to_owned(), 7)]),
        errors: vec![HOSTILE.to_owned(), "another".to_owned()],
        ..RunNode::default()
    }];
    report.links = vec![RunLink {
        near: HOSTILE.to_owned(),
        far: "replica-3".to_owned(),
        conditions: "satellite".to_owned(),
        up: 5_120,
        ..RunLink::default()
    }];
    report.checks = vec![
        check("one head 10 s after the heal", true, "8.2 s"),
        check(
            "no honest peer is banned",
            false,
            "replica-3 banned replica-9 at 120.5 s",
        ),
    ];
}

#[test]
fn foreign_text_stays_text_and_every_section_is_there() {
    let page = report::page(&lab());
    assert!(!page.contains("<script") && page.contains("&lt;script&gt;"));
    for title in [
        "Checks",
        "Heads of the nodes",
        "Lag of the heads",
        "Propagation",
        "Gossip mesh",
        "Bytes received",
        "Duplicates",
        "Processor",
        "Memory",
        "Faults",
        "Bans",
        "Nodes",
        "Links",
        "Logs",
    ] {
        assert!(page.contains(&format!("<h2>{title}</h2>")), "{title}");
    }
    let empty = report::page(&RunReport::new("lab", "nothing", 1));
    assert!(
        !empty.contains("<h2>"),
        "sections without values are left out"
    );
}

#[test]
fn chromium_opens_the_page_without_an_error_or_a_request() {
    let folder = tempfile::tempdir().unwrap();
    let [_, full] = report::write(&lab(), folder.path(), "lab").unwrap();
    let config = starling_netsim::model::ModelConfig {
        nodes: 100,
        blocks: 10,
        ..Default::default()
    };
    let model = starling_netsim::model::simulate(&config).unwrap().report();
    let [_, model] = report::write(&model, folder.path(), "model").unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/report_page.mjs");
    let opened = Command::new("node")
        .arg(script)
        .args([&full, &model])
        .output()
        .ok();
    let found = opened.filter(|output| output.status.code() != Some(3));
    let what = "node, Chromium and puppeteer-core (PUPPETEER_FOLDER)";
    let Some(output) = starling_testkit::optional(found, what) else {
        return;
    };
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success(),
        "{text}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert_eq!(text, "");
    assert!(
        fs::metadata(&full).unwrap().len() < 3_000_000,
        "a page stays small"
    );
}
