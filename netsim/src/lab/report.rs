//! The result of a run in memory; [`super::run_report`] makes the public report of it. Times are
//! milliseconds on the scenario's clock, which starts when every node of the start responds;
//! [`LabReport::started_unix_ms`] is its zero. Nodes are named by their index in
//! [`LabReport::nodes`].

pub(super) mod sections;

use super::{
    clocks::ClockReading,
    counters::NodeCounters,
    hostile::evidence::{HostilePropagation, HostileReport},
    topology::LabRole,
    watch::HeadTrack,
};
use std::{collections::BTreeMap, time::Duration};

/// One run of one scenario.
#[derive(Clone, Debug, Default)]
pub struct LabReport {
    pub scenario: String,
    /// One sentence: what the scenario is for.
    pub purpose: String,
    /// Seed of all faults.
    pub seed: u64,
    /// Backend of the links: `stream` or `packet`, with the reason if another one was wanted.
    pub backend: String,
    pub versions: LabVersions,
    /// Settings of the scenario by the names of its keys; a list is written as its length.
    pub settings: BTreeMap<String, String>,
    pub started_unix_ms: u64,
    pub length_ms: u64,
    /// End of the last fault; the heads must converge from then on.
    pub last_fault_end_ms: u64,
    /// Whether the run came to its end and every check passed.
    pub passed: bool,
    /// The error that ended the run early, with the end of a log where a node died.
    pub failure: Option<String>,
    /// Empty if [`Self::failure`] ended the run early.
    pub checks: Vec<LabVerdict>,
    pub nodes: Vec<NodeReport>,
    /// Memory and processor time of the controller with the links, once a second.
    pub controller: Vec<UsagePoint>,
    /// Processor time of the threads that carry the links, once a second.
    pub link_threads: Vec<CpuPoint>,
    /// Processor clocks of all nodes and of the controller, twice a second.
    pub clocks: Vec<ClockReading>,
    /// Counters of each node, in the order of the nodes.
    pub counters: Vec<NodeCounters>,
    pub links: Vec<LinkReport>,
    pub faults: Vec<FaultReport>,
    /// Propagation of each block that a sequencer made, by number.
    pub blocks: Vec<BlockReport>,
    pub transactions: LoadReport,
    /// Packets on each link to a node of the other chain, in both directions.
    pub other_links: Vec<[u64; 2]>,
    /// Number of L1 blocks that reorgs of the scenario replaced.
    pub replaced_l1: u64,
    /// Hostile peers, with the ledger entries of honest nodes about them.
    pub hostile: Vec<HostileReport>,
    /// Propagation before and after hostile peers came.
    pub hostile_propagation: Option<HostilePropagation>,
}

/// Versions of the programs in the network.
#[derive(Clone, Debug, Default)]
pub struct LabVersions {
    /// Version of this crate.
    pub netsim: String,
    /// Output of `starling --version`.
    pub starling: String,
    /// Output of the program of `upgrade`, if the scenario has this verb.
    pub upgrade: Option<String>,
}

/// The verdict of one check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LabVerdict {
    pub check: String,
    pub passed: bool,
    /// The figure if the check passed, the evidence if it failed.
    pub detail: String,
}

#[derive(Clone, Debug)]
pub struct NodeReport {
    pub name: String,
    pub role: LabRole,
    /// Peer id; empty for a node without a swarm.
    pub peer: String,
    /// Number of starts of the process.
    pub starts: u64,
    /// Whether the node ran at the end.
    pub is_up: bool,
    /// Changes of the head, by time. Empty for L1, batcher and proposer.
    pub heads: Vec<HeadPoint>,
    pub reorgs: Vec<ReorgReport>,
    /// Memory and processor time, once a second while the process runs.
    pub usage: Vec<UsagePoint>,
    pub bans: Vec<NodeBan>,
    /// Number of disconnected peers, by reason.
    pub disconnects: BTreeMap<String, u64>,
    /// Number of warnings in the log, by message.
    pub warnings: BTreeMap<String, u64>,
    /// Log lines at level error, expected ones included.
    pub errors: Vec<String>,
}

/// The head of a node from `at_ms` on.
#[derive(Clone, Debug)]
pub struct HeadPoint {
    pub at_ms: u64,
    pub number: u64,
    pub hash: String,
}

/// A block that another one of the same height replaced on one node.
#[derive(Clone, Debug)]
pub struct ReorgReport {
    pub at_ms: u64,
    pub number: u64,
    pub from: String,
    pub to: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UsagePoint {
    pub at_ms: u64,
    /// Resident memory.
    pub rss_kb: u64,
    /// Processor time of the present process so far; it begins at zero after a restart.
    pub cpu_ms: u64,
    /// Time for which present threads of the process waited for a processor; zero where the kernel
    /// does not count it.
    pub wait_ms: u64,
}

impl UsagePoint {
    pub fn cpu(&self) -> CpuPoint {
        CpuPoint {
            at_ms: self.at_ms,
            cpu_ms: self.cpu_ms,
        }
    }
}

/// Processor time so far at a reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuPoint {
    pub at_ms: u64,
    pub cpu_ms: u64,
}

/// A peer or an address that the node banned.
#[derive(Clone, Debug)]
pub struct NodeBan {
    /// Zero for a ban before the clock started.
    pub at_ms: u64,
    /// Name of the node, or the peer id or address of a peer outside of the network.
    pub subject: String,
    pub reason: String,
}

/// A link, and what it carried. `up` is from near to far.
#[derive(Clone, Debug)]
pub struct LinkReport {
    pub near: usize,
    pub far: usize,
    /// Name on the ladder.
    pub rung: String,
    pub up: LinkTraffic,
    pub down: LinkTraffic,
}

#[derive(Clone, Copy, Debug, Default)]
pub struct LinkTraffic {
    pub bytes: u64,
    pub packets: u64,
    /// Packets that did not arrive. On the stream backend, a segment that was lost and sent again
    /// is one of them.
    pub lost: u64,
    /// Connections that the link reset. On the packet backend these are resets, of which a
    /// connection may get several.
    pub resets: u64,
}

/// A change that the scenario made.
#[derive(Clone, Debug)]
pub struct FaultReport {
    pub at_ms: u64,
    /// Time at which the change was complete: a stop waits for the process.
    pub done_ms: u64,
    /// The scenario's verb; `start` for a late node.
    pub verb: String,
    /// Nodes whose processes change.
    pub nodes: Vec<usize>,
    /// Links that change, as indices of [`LabReport::links`].
    pub links: Vec<usize>,
    /// Whether the change takes an earlier one back.
    pub ends_fault: bool,
    /// The change in words.
    pub text: String,
}

/// The propagation of a block.
#[derive(Clone, Debug)]
pub struct BlockReport {
    pub number: u64,
    pub hash: String,
    /// Time at which the sequencer had made the block.
    pub made_ms: u64,
    /// Nodes that had the block as their head, with the microseconds since then. Blocks that a node
    /// imported in a batch are not listed.
    pub arrivals: Vec<(usize, u64)>,
}

/// Numbers of transactions that the controller sent.
#[derive(Clone, Copy, Debug, Default)]
pub struct LoadReport {
    pub sent: u64,
    /// Transactions that the sequencer accepted.
    pub accepted: u64,
}

pub(super) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

impl NodeReport {
    /// Sets heads and reorgs.
    pub(super) fn track(&mut self, track: &HeadTrack) {
        let head = |head: &super::watch::HeadSample| HeadPoint {
            at_ms: millis(head.at),
            number: head.number,
            hash: head.hash.to_string(),
        };
        self.heads = track.heads.iter().map(head).collect();
        let reorg = |reorg: &super::watch::SeenReorg| ReorgReport {
            at_ms: millis(reorg.at),
            number: reorg.number,
            from: reorg.from.to_string(),
            to: reorg.to.to_string(),
        };
        self.reorgs = track.reorgs.iter().map(reorg).collect();
    }
}

impl LabReport {
    /// The table of checks, and the propagation over all blocks.
    pub fn summary(&self) -> String {
        let mut lines = Vec::new();
        for LabVerdict {
            check,
            passed,
            detail,
        } in &self.checks
        {
            let verdict = if *passed { "ok  " } else { "FAIL" };
            lines.push(format!("  {verdict} {check:<34} {detail}"));
        }
        if let Some(failure) = &self.failure {
            lines.push(format!("  FAIL {failure}"));
        }
        if let Some((p50, p99, count)) = self.propagation() {
            lines.push(format!(
                "       propagation: p50 {:.1} ms, p99 {:.1} ms of {count} arrivals, links: {}",
                p50 as f64 / 1e3,
                p99 as f64 / 1e3,
                self.backend
            ));
        }
        lines.join("\n")
    }

    /// Median and 99th percentile of all arrivals in microseconds, and their number.
    pub fn propagation(&self) -> Option<(u64, u64, usize)> {
        let arrivals = self.blocks.iter().flat_map(|block| &block.arrivals);
        let mut times: Vec<u64> = arrivals.map(|(_, micros)| *micros).collect();
        times.sort_unstable();
        let at = |share: usize| times.get((times.len() * share / 100).min(times.len() - 1));
        (!times.is_empty()).then(|| Some((*at(50)?, *at(99)?, times.len())))?
    }
}
