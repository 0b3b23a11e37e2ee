//! Evidence about hostile peers: the ledgers of honest nodes, and the propagation of blocks before
//! and after the hostile peers came. The checks of it are pure.

use super::{
    behaviour::{HostileBehaviour, HostileScope},
    log::HostileLog,
};
use crate::lab::{
    report::{BlockReport, LabVerdict},
    rpc,
};
use serde_json::{Value, json};
use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    time::Duration,
};
use tokio::time::timeout;

/// Reason in a ledger for a request without a response in time.
const NO_RESPONSE: &str = "no_response";
/// Largest number of entries that one response of a ledger has.
const ENTRIES: u64 = 200;
/// Start of the time before hostile peers that is compared, in milliseconds. Earlier blocks travel
/// while meshes still form.
const COMPARED_FROM_MS: u64 = 3_000;
/// Fewest arrivals of each time that is compared.
const ARRIVALS: usize = 10;
/// Longest time in milliseconds for which a block counts as travelling. Blocks that are younger at
/// the end do not count, and one that never arrived may have been lost in a stall during this time.
const TRAVEL: u64 = 3_000;
/// Largest loss of the share of expected arrivals with hostile peers.
const LOST_SHARE: f64 = 0.02;
/// Largest share of the blocks that stalls of the machine may take from the comparison.
const LEFT_OUT_SHARE: f64 = 0.1;

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
    /// Whether the peer was connected just before the first fault of the node; at the end, if it
    /// had none.
    pub was_connected: bool,
    pub is_banned: bool,
    /// Number of offences, by reason.
    pub offences: BTreeMap<String, u64>,
    /// Time of the first offence in seconds since 1970. Of equal offences in one entry, the time of
    /// the last one.
    pub first_offence: Option<u64>,
    /// Number of the node's requests for headers or blocks after the first offence.
    pub later_requests: u64,
}

/// Percentiles of the propagation in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PropagationPart {
    pub p50: u64,
    pub p99: u64,
    pub arrivals: usize,
    /// Number of arrivals if every block had reached every undisturbed node.
    pub expected: usize,
}

impl PropagationPart {
    /// Share of the expected arrivals that took place.
    pub fn share(&self) -> f64 {
        self.arrivals as f64 / self.expected.max(1) as f64
    }
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
    /// Number of blocks of both times, with those that are left out.
    pub blocks: usize,
    /// Number of blocks that are left out, since the machine stalled while they travelled.
    pub left_out: usize,
}

/// Reads a node's ledger about a peer. A node that does not respond within `limit` leaves an unread
/// finding.
pub async fn read(node: &str, http: SocketAddr, peer: &str, limit: Duration) -> HostileFinding {
    let read = || rpc::call(http, "starling_p2pLedger", json!([peer, ENTRIES]));
    let ledger = timeout(limit, rpc::read_until_some(limit, read))
        .await
        .ok()
        .flatten();
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
            self.first_offence = self.first_offence.or(entry["time"].as_u64());
            *self.offences.entry(reason.to_owned()).or_default() += times;
        }
    }

    /// Counts the node's requests after the first offence. Of equal offences in one entry the first
    /// one is earlier than the entry's time, so the others count as a request each.
    pub fn count_requests(&mut self, log: &HostileLog, node: &str) {
        let Some(first) = self.first_offence else {
            return;
        };
        // The ledger has whole seconds, so the offence was before the next one.
        self.later_requests = log.requests_after(node, (first + 1) * 1_000);
        if let Some(times) = self.offences.get(NO_RESPONSE) {
            self.later_requests += times.saturating_sub(1);
        }
    }

    /// Whether the ledger has the expected entries: one of the offences, and a ban if the behaviour
    /// requires one. A peer that breaks no rule must have been connected instead.
    fn is_as_expected(&self, behaviour: HostileBehaviour) -> bool {
        let expected = behaviour.expected();
        if expected.offences.is_empty() {
            return self.is_connected && self.was_connected;
        }
        self.has(expected.offences) && (self.is_banned || expected.banning.is_empty())
    }

    /// Whether the node has noticed the peer and has not done what must follow.
    fn is_lenient(&self, behaviour: HostileBehaviour) -> bool {
        let expected = behaviour.expected();
        let is_spared = self.has(expected.banning) && !self.is_banned;
        let is_fed = expected
            .later_requests
            .is_some_and(|most| self.has(expected.offences) && self.later_requests > most);
        is_spared || is_fed
    }

    /// Whether the ledger has one of these offences.
    fn has(&self, offences: &[&str]) -> bool {
        let mut offences = offences.iter();
        offences.any(|reason| self.offences.contains_key(*reason))
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
        let banned = if self.is_banned { "" } else { "not " };
        let connected = if !self.was_connected {
            "not connected before the first fault"
        } else if self.is_connected {
            "connected"
        } else {
            "not connected at the end"
        };
        if offences.is_empty() {
            return format!("{banned}banned, {connected}, no offence");
        }
        let (offences, requests) = (offences.join(", "), self.later_requests);
        format!("{banned}banned, {connected}, {offences}, {requests} requests after that")
    }
}

/// The nodes and times of a run whose propagation is compared.
#[derive(Clone, Debug, Default)]
pub struct ComparedRun {
    /// Nodes that ran undisturbed from the start to the end and make no blocks.
    pub receivers: BTreeSet<usize>,
    pub stalls: Vec<MachineStall>,
    pub end_ms: u64,
}

impl ComparedRun {
    /// The times in microseconds in which a block reached the compared nodes.
    fn arrivals(&self, block: &BlockReport) -> Vec<u64> {
        let arrivals = block.arrivals.iter();
        let arrivals = arrivals.filter(|(node, _)| self.receivers.contains(node));
        arrivals.map(|(_, micros)| *micros).collect()
    }

    /// Whether the machine stalled while a block travelled to the compared nodes.
    fn is_stalled(&self, block: &BlockReport) -> bool {
        let arrivals = self.arrivals(block);
        let slowest = arrivals.iter().max().map_or(0, |micros| micros / 1_000);
        let time = if arrivals.len() < self.receivers.len() {
            slowest.max(TRAVEL)
        } else {
            slowest
        };
        let arrived = block.made_ms + time;
        let mut stalls = self.stalls.iter();
        stalls.any(|stall| stall.from_ms <= arrived && block.made_ms <= stall.to_ms)
    }

    fn part(&self, blocks: &[&BlockReport], is_in: impl Fn(u64) -> bool) -> PropagationPart {
        let blocks = blocks.iter().filter(|block| is_in(block.made_ms));
        let blocks: Vec<_> = blocks.filter(|block| !self.is_stalled(block)).collect();
        let times = blocks.iter().flat_map(|block| self.arrivals(block));
        let mut times: Vec<u64> = times.collect();
        times.sort_unstable();
        let at = |share: usize| times.get(times.len() * share / 100).copied();
        PropagationPart {
            p50: at(50).unwrap_or_default(),
            p99: at(99).unwrap_or_default(),
            arrivals: times.len(),
            expected: blocks.len() * self.receivers.len(),
        }
    }
}

/// The propagation before and after the first of these peers came; `None` without a peer. Blocks
/// that travelled during a stall of the machine are left out.
pub fn propagation(
    peers: &[HostileReport],
    blocks: &[BlockReport],
    run: &ComparedRun,
) -> Option<HostilePropagation> {
    let start_ms = peers.iter().map(|peer| peer.start_ms).min()?;
    let compared = COMPARED_FROM_MS..run.end_ms.saturating_sub(TRAVEL);
    let blocks = blocks.iter();
    let blocks: Vec<&BlockReport> = blocks
        .filter(|block| compared.contains(&block.made_ms))
        .collect();
    Some(HostilePropagation {
        before: run.part(&blocks, |made| made < start_ms),
        after: run.part(&blocks, |made| made >= start_ms),
        blocks: blocks.len(),
        left_out: blocks.iter().filter(|block| run.is_stalled(block)).count(),
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
    let expected = behaviour.expected();
    let of_it = peers.iter().filter(|peer| peer.behaviour == behaviour);
    let all: Vec<(&str, &HostileFinding)> = of_it
        .flat_map(|peer| peer.findings.iter().map(|it| (peer.name.as_str(), it)))
        .collect();
    let describe = |(name, it): &(&str, &HostileFinding)| {
        let (node, finding) = (&it.node, it.describe());
        format!("{name} at {node}: {finding}; expected {expected}")
    };
    if let Some(lenient) = all.iter().find(|(_, it)| it.is_lenient(behaviour)) {
        return Err(describe(lenient));
    }
    // The connections of a peer are in its own log, which a restart of the node does not touch.
    let needs_ledger = expected.scope == HostileScope::EveryTarget && !expected.offences.is_empty();
    let pairs: Vec<_> = { all.iter() }
        .filter(|(_, it)| it.ran_throughout || !needs_ledger)
        .collect();
    let is_met = |(_, it): &&&(&str, &HostileFinding)| it.is_as_expected(behaviour);
    let met = pairs.iter().filter(|pair| is_met(pair)).count();
    let needed = match expected.scope {
        HostileScope::EveryTarget => pairs.len(),
        HostileScope::AnyRequester => 1,
    };
    if met < needed.max(1) {
        let missed = pairs.iter().find(|pair| !is_met(pair));
        let nobody = || format!("{behaviour}: no node ran from the start to the end");
        return Err(missed.map_or_else(nobody, |pair| describe(pair)));
    }
    if expected.offences.is_empty() {
        return Ok(format!(
            "{behaviour}: {met} connected before the faults and at the end"
        ));
    }
    noticed(behaviour, &all, met)
}

/// The finding about a behaviour whose offences the targets have noticed, with all of them together.
fn noticed(
    behaviour: HostileBehaviour,
    all: &[(&str, &HostileFinding)],
    met: usize,
) -> Result<String, String> {
    let expected = behaviour.expected();
    let offences = all.iter().flat_map(|(_, it)| it.offences.keys());
    let offences: BTreeSet<&str> = offences.map(String::as_str).collect();
    let mut missing = { expected.offences.iter() }.filter(|reason| !offences.contains(*reason));
    if let Some(missing) = missing.next().filter(|_| expected.needs_all) {
        return Err(format!("{behaviour}: no ledger has {missing}"));
    }
    let offences: Vec<&str> = offences.into_iter().collect();
    let bans = all.iter().filter(|(_, it)| it.is_banned).count();
    let (count, offences) = (all.len(), offences.join(", "));
    let mut text = format!("{behaviour}: noticed {met} of {count} times, {bans} bans ({offences})");
    if expected.later_requests.is_some() {
        let most = all.iter().map(|(_, it)| it.later_requests).max();
        let most = most.unwrap_or(0);
        text += &format!(", at most {most} requests of a node after that");
    }
    Ok(text)
}

fn speed(propagation: &HostilePropagation, slowdown: f64) -> Result<String, String> {
    let HostilePropagation {
        before,
        after,
        blocks,
        left_out,
    } = propagation;
    if *left_out as f64 > *blocks as f64 * LEFT_OUT_SHARE {
        return Err(format!(
            "{left_out} of {blocks} blocks left out, as the machine stalled: too few to compare"
        ));
    }
    let count = before.arrivals.min(after.arrivals);
    if count < ARRIVALS {
        return Err(format!("only {count} arrivals to compare"));
    }
    let [share_before, share_after] = [before, after].map(|part| part.share() * 100.0);
    if before.share() - after.share() > LOST_SHARE {
        return Err(format!(
            "{share_after:.1} % of the expected arrivals, {share_before:.1} % before hostile peers started"
        ));
    }
    let ratio = after.p99 as f64 / before.p99.max(1) as f64;
    let [before, after] = [before.p99, after.p99].map(|micros| micros as f64 / 1e3);
    let text = format!(
        "p99 {after:.1} ms, {before:.1} ms before hostile peers started: ratio {ratio:.2}, at most \
         {slowdown} allowed; {share_after:.1} % arrived, {share_before:.1} % before; {left_out} of \
         {blocks} blocks left out, as the machine stalled"
    );
    if ratio <= slowdown {
        return Ok(text);
    }
    Err(text)
}

#[cfg(test)]
mod tests;
