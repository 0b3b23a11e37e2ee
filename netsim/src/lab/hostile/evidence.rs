//! Evidence about hostile peers: the ledgers of honest nodes, and the propagation of blocks before
//! and after the hostile peers came. The checks of it are pure.

use super::behaviour::{HostileBehaviour, HostileScope};
use crate::lab::{
    report::{BlockReport, LabVerdict},
    rpc,
};
use serde_json::{Value, json};
use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
};

/// Largest number of entries that one response of a ledger has.
const ENTRIES: u64 = 200;
/// Start of the time before hostile peers that is compared, in milliseconds. Earlier blocks travel
/// while meshes still form.
const COMPARED_FROM_MS: u64 = 3_000;
/// Fewest arrivals of each time that is compared.
const ARRIVALS: usize = 10;

/// A hostile peer, with the findings of its targets.
#[derive(Clone, Debug, PartialEq)]
pub struct HostileReport {
    pub name: String,
    pub behaviour: HostileBehaviour,
    pub start_ms: u64,
    pub findings: Vec<HostileFinding>,
}

/// The entries of one node's ledger about one hostile peer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HostileFinding {
    pub node: String,
    /// Whether the ledger could not be read, so that the other fields say nothing.
    pub is_unread: bool,
    /// Whether the node ran from the start of the peer to the end. A ledger is lost with its process,
    /// and has at most 64 entries about one peer, so older ones may be missing even then.
    pub ran_throughout: bool,
    /// Whether the peer was connected at the end.
    pub is_connected: bool,
    pub is_banned: bool,
    /// Number of offences, by reason.
    pub offences: BTreeMap<String, u64>,
}

/// Percentiles of the propagation in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PropagationPart {
    pub p50: u64,
    pub p99: u64,
    pub arrivals: usize,
}

/// A time in which the machine did not run the controller, and so probably not the nodes either.
#[derive(Clone, Copy, Debug)]
pub struct MachineStall {
    pub from_ms: u64,
    pub to_ms: u64,
}

/// Propagation to undisturbed nodes before and after the hostile peers came.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostilePropagation {
    pub before: PropagationPart,
    pub after: PropagationPart,
    /// Number of blocks that are left out, since the machine stalled while they travelled.
    pub left_out: usize,
}

/// Reads a node's ledger about a peer. A node that does not respond leaves an unread finding.
pub async fn read(node: &str, http: SocketAddr, peer: &str) -> HostileFinding {
    let read = || rpc::call(http, "starling_p2pLedger", json!([peer, ENTRIES]));
    let ledger = rpc::read_until_some(rpc::VERDICT_LIMIT, read).await;
    let mut finding = HostileFinding {
        node: node.to_owned(),
        ..HostileFinding::default()
    };
    let entries = ledger.as_ref().and_then(Value::as_array);
    finding.is_unread = entries.is_none();
    // The ledger has the newest entry first.
    for entry in entries.into_iter().flatten().rev() {
        finding.add(entry);
    }
    finding
}

impl HostileFinding {
    fn add(&mut self, entry: &Value) {
        let change = &entry["change"];
        if change == "connected" || change == "disconnected" {
            self.is_connected = change == "connected";
        }
        self.is_banned |= change.get("banned").is_some();
        if let Some(reason) = entry["reason"]
            .as_str()
            .filter(|_| !change["score"].is_null())
        {
            let times = entry["times"].as_u64().unwrap_or(1);
            *self.offences.entry(reason.to_owned()).or_default() += times;
        }
    }

    /// Whether the ledger has the expected entries: one of the reasons, and a ban if the behaviour
    /// requires one. Later requests to the peer are not looked at.
    fn is_as_expected(&self, behaviour: HostileBehaviour) -> bool {
        let expected = behaviour.expected();
        let has_reason = expected
            .offences
            .iter()
            .any(|reason| self.offences.contains_key(*reason));
        let is_judged = has_reason || (expected.offences.is_empty() && self.is_connected);
        is_judged && (self.is_banned || !expected.is_banned)
    }

    fn describe(&self) -> String {
        if self.is_unread {
            return "its ledger could not be read".to_owned();
        }
        let offences: Vec<String> = self
            .offences
            .iter()
            .map(|(reason, times)| format!("{reason} {times}"))
            .collect();
        let not = |is_so: bool| if is_so { "" } else { "not " };
        let offences = if offences.is_empty() {
            "no offence".to_owned()
        } else {
            offences.join(", ")
        };
        let (banned, connected) = (not(self.is_banned), not(self.is_connected));
        format!("{banned}banned, {connected}connected, {offences}")
    }
}

/// The propagation to nodes that no step disturbs, before and after the first of these peers came;
/// `None` without a peer. Blocks that travelled during a stall of the machine are left out.
pub fn propagation(
    peers: &[HostileReport],
    blocks: &[BlockReport],
    disturbed: &BTreeSet<usize>,
    stalls: &[MachineStall],
) -> Option<HostilePropagation> {
    let start_ms = peers.iter().map(|peer| peer.start_ms).min()?;
    let is_stalled = |block: &&BlockReport| {
        let slowest = block
            .arrivals
            .iter()
            .map(|(_, micros)| micros / 1_000)
            .max();
        let arrived = block.made_ms + slowest.unwrap_or_default();
        stalls
            .iter()
            .any(|stall| stall.from_ms <= arrived && block.made_ms <= stall.to_ms)
    };
    let part = |is_in: &dyn Fn(u64) -> bool| {
        let blocks = blocks.iter().filter(|block| is_in(block.made_ms));
        let blocks = blocks.filter(|block| !is_stalled(block));
        let arrivals = blocks.flat_map(|block| &block.arrivals);
        let times = arrivals.filter(|(node, _)| !disturbed.contains(node));
        let mut times: Vec<u64> = times.map(|(_, micros)| *micros).collect();
        times.sort_unstable();
        let at = |share: usize| times.get(times.len() * share / 100).copied();
        PropagationPart {
            p50: at(50).unwrap_or_default(),
            p99: at(99).unwrap_or_default(),
            arrivals: times.len(),
        }
    };
    Some(HostilePropagation {
        before: part(&|made| (COMPARED_FROM_MS..start_ms).contains(&made)),
        after: part(&|made| made >= start_ms),
        left_out: blocks.iter().filter(is_stalled).count(),
    })
}

/// The verdicts about hostile peers.
pub fn check(
    peers: &[HostileReport],
    propagation: &HostilePropagation,
    slowdown: f64,
) -> Vec<LabVerdict> {
    let verdict = |check: &str, finding: Result<String, String>| LabVerdict {
        check: check.to_owned(),
        passed: finding.is_ok(),
        detail: finding.unwrap_or_else(|failure| failure),
    };
    vec![
        verdict("hostile peers in ledgers", outcomes(peers)),
        verdict("honest propagation", speed(propagation, slowdown)),
    ]
}

fn outcomes(peers: &[HostileReport]) -> Result<String, String> {
    let behaviours: BTreeSet<HostileBehaviour> = peers.iter().map(|it| it.behaviour).collect();
    let mut fine = Vec::new();
    for behaviour in behaviours {
        fine.push(outcome(behaviour, peers)?);
    }
    Ok(fine.join("; "))
}

/// The finding about all peers of one behaviour.
fn outcome(behaviour: HostileBehaviour, peers: &[HostileReport]) -> Result<String, String> {
    let scope = behaviour.expected().scope;
    let of_it = peers.iter().filter(|peer| peer.behaviour == behaviour);
    let pairs: Vec<(&str, &HostileFinding)> = of_it
        .flat_map(|peer| peer.findings.iter().map(|it| (peer.name.as_str(), it)))
        .filter(|(_, it)| it.ran_throughout || scope == HostileScope::AnyRequester)
        .collect();
    let is_met = |(_, it): &&(&str, &HostileFinding)| it.is_as_expected(behaviour);
    let met = pairs.iter().filter(is_met).count();
    let needed = match scope {
        HostileScope::EveryTarget => pairs.len(),
        HostileScope::AnyRequester => 1,
    };
    if met >= needed.max(1) && behaviour.expected().offences.is_empty() {
        return Ok(format!("{behaviour}: {met} connected at the end"));
    }
    if met >= needed.max(1) {
        let reasons: BTreeSet<&str> = pairs
            .iter()
            .flat_map(|(_, it)| it.offences.keys().map(String::as_str))
            .collect();
        let reasons: Vec<&str> = reasons.into_iter().collect();
        let bans = pairs.iter().filter(|(_, it)| it.is_banned).count();
        let (all, reasons) = (pairs.len(), reasons.join(", "));
        return Ok(format!(
            "{behaviour}: noticed {met} of {all} times, {bans} bans ({reasons})"
        ));
    }
    let missed = pairs.iter().find(|pair| !is_met(pair));
    Err(missed.map_or_else(
        || format!("{behaviour}: no node ran from the start to the end"),
        |(name, it)| {
            let (node, found) = (&it.node, it.describe());
            format!(
                "{name} at {node}: {found}; expected {}",
                behaviour.expected()
            )
        },
    ))
}

fn speed(propagation: &HostilePropagation, slowdown: f64) -> Result<String, String> {
    let HostilePropagation {
        before,
        after,
        left_out,
    } = propagation;
    let count = before.arrivals.min(after.arrivals);
    if count < ARRIVALS {
        return Err(format!("only {count} arrivals to compare"));
    }
    let ratio = after.p99 as f64 / before.p99.max(1) as f64;
    let [before, after] = [before.p99, after.p99].map(|micros| micros as f64 / 1e3);
    let text = format!(
        "p99 {after:.1} ms, {before:.1} ms before hostile peers started: ratio {ratio:.2}, at most \
         {slowdown} allowed; {left_out} blocks left out, as the machine stalled"
    );
    if ratio <= slowdown {
        return Ok(text);
    }
    Err(text)
}

#[cfg(test)]
mod tests;
