//! Tables of nodes, their logs, links and hostile peers for the page of a run.

use super::{
    RunHostileOutcome, RunNode, RunReport,
    chart::escape,
    page::{card, table},
    text::{bytes, number},
};
use std::{collections::BTreeMap, fmt::Write};

/// Largest number of links in the table: those that carried most.
const LINKS: usize = 40;
/// Largest number of outcomes of hostile peers in the table.
const OUTCOMES: usize = 100;
/// Largest number of lines of logs in the table.
const LINES: usize = 60;

pub fn nodes(report: &RunReport) -> String {
    if report.nodes.is_empty() {
        return String::new();
    }
    let rows = report.nodes.iter().map(|node| {
        let state = if node.runs { "runs" } else { "does not run" };
        let count = |counts: &BTreeMap<String, u64>| {
            let sum: u64 = counts.values().sum();
            number(sum as f64)
        };
        vec![
            node.name.clone(),
            node.role.clone(),
            state.to_owned(),
            number(node.starts as f64),
            number(node.reorgs as f64),
            count(&node.disconnects),
            count(&node.warnings),
            number(node.errors.len() as f64),
        ]
    });
    let header = [
        "Node",
        "Role",
        "At the end",
        "starts",
        "reorgs",
        "disconnections",
        "warnings",
        "errors",
    ];
    card("wide", "Nodes", &table(3, &header, rows))
}

/// A line of a node's log, with the number of times that it occurs.
struct LoggedLine<'a> {
    node: &'a str,
    kind: &'static str,
    count: u64,
    text: &'a str,
}

fn lines(node: &RunNode) -> impl Iterator<Item = LoggedLine<'_>> {
    let errors = node.errors.iter().map(|text| ("error", 1, text));
    let warnings = node
        .warnings
        .iter()
        .map(|(text, count)| ("warning", *count, text));
    let disconnects = node
        .disconnects
        .iter()
        .map(|(text, count)| ("disconnection", *count, text));
    let all = errors.chain(warnings).chain(disconnects);
    all.map(|(kind, count, text)| LoggedLine {
        node: &node.name,
        kind,
        count,
        text,
    })
}

/// Errors, warnings and disconnections with their reasons.
pub fn logs(report: &RunReport) -> String {
    let all: Vec<LoggedLine> = report.nodes.iter().flat_map(lines).collect();
    if all.is_empty() {
        return String::new();
    }
    let mut body = String::from(
        "<div class=\"scroll\"><table><tr><th>Node</th><th>Kind</th><th class=\"n\">times</th>\
         <th>Message or reason</th></tr>",
    );
    for line in all.iter().take(LINES) {
        let _ = write!(
            body,
            "<tr><td class=\"k\">{}</td><td class=\"k\">{}</td><td class=\"n\">{}</td><td>{}</td></tr>",
            escape(line.node),
            line.kind,
            number(line.count as f64),
            escape(line.text)
        );
    }
    body.push_str("</table></div>");
    push_rest(&mut body, all.len(), LINES);
    card("wide", "Logs", &body)
}

/// A sentence about rows that a table leaves out.
fn push_rest(body: &mut String, count: usize, shown: usize) {
    if count > shown {
        let more = count - shown;
        let _ = write!(body, "<p class=\"soft\">{more} more are in the JSON.</p>");
    }
}

/// Hostile peers, with a row for each node that one of them dialled.
pub fn hostile(report: &RunReport) -> String {
    let peers = report.hostile.iter();
    let outcomes = peers.flat_map(|peer| peer.outcomes.iter().map(move |it| (peer, it)));
    let outcomes: Vec<_> = outcomes.collect();
    if outcomes.is_empty() {
        return String::new();
    }
    let rows = outcomes.iter().take(OUTCOMES).map(|(peer, outcome)| {
        let offences = outcome.offences.iter();
        let offences: Vec<String> = offences
            .map(|(reason, times)| format!("{reason} {times}"))
            .collect();
        vec![
            peer.name.clone(),
            peer.behaviour.clone(),
            outcome.node.clone(),
            ending(outcome),
            offences.join(", "),
            number(peer.from),
        ]
    });
    let header = [
        "Peer",
        "Behaviour",
        "Node",
        "At the end",
        "Offences",
        "from, s",
    ];
    let mut body = table(5, &header, rows);
    push_rest(&mut body, outcomes.len(), OUTCOMES);
    card("wide", "Hostile peers", &body)
}

/// The state of a hostile peer at a node at the end. A node that was restarted has lost entries.
fn ending(outcome: &RunHostileOutcome) -> String {
    if outcome.unread {
        return "unknown (ledger not read)".to_owned();
    }
    let state = if outcome.banned {
        "banned"
    } else if outcome.connected {
        "connected"
    } else {
        "not connected"
    };
    if outcome.ran_throughout {
        return state.to_owned();
    }
    format!("{state} (incomplete ledger)")
}

pub fn links(report: &RunReport) -> String {
    if report.links.is_empty() {
        return String::new();
    }
    let mut links: Vec<_> = report.links.iter().collect();
    links.sort_by_key(|link| std::cmp::Reverse(link.up.saturating_add(link.down)));
    let rows = links.iter().take(LINKS).map(|link| {
        vec![
            format!("{} – {}", link.near, link.far),
            link.conditions.clone(),
            bytes(link.up as f64),
            bytes(link.down as f64),
            number(link.lost as f64),
            number(link.resets as f64),
        ]
    });
    let header = [
        "Link: near – far",
        "Conditions",
        "up",
        "down",
        "lost",
        "resets",
    ];
    let mut body = table(2, &header, rows);
    push_rest(&mut body, links.len(), LINKS);
    card("", "Links", &body)
}
