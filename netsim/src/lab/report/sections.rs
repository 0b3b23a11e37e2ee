//! The sections of a [`LabReport`](super::LabReport) from the evidence of a run: settings, nodes,
//! links, blocks.

use super::{BlockReport, LinkReport, LinkTraffic, NodeBan, NodeReport, UsagePoint};
use crate::{
    LinkCounts,
    lab::{
        checks::{LabEvidence, NodeEvidence},
        hostile,
        logs::{LogBan, LogFindings},
        network::{LabNetwork, LabNode},
        scenario::LabScenario,
    },
};
use std::{collections::BTreeMap, time::Duration};

/// Settings of the scenario by the names of its keys. A list is written as its length.
pub fn settings(scenario: &LabScenario) -> BTreeMap<String, String> {
    let settings = [
        ("seconds", scenario.length.as_secs_f64().to_string()),
        ("block-time", scenario.block_time.to_string()),
        ("l1-block-time", scenario.l1_block_time.to_string()),
        ("genesis-age", scenario.genesis_age.to_string()),
        ("rung", scenario.rung.name.to_owned()),
        ("load", scenario.load.to_string()),
        ("batcher", scenario.batcher.to_string()),
        ("proposer", scenario.proposer.to_string()),
        ("replicas", scenario.replicas.len().to_string()),
        ("bootnode", scenario.bootnode.is_some().to_string()),
        (
            "hostile",
            hostile::peers(&scenario.hostile).len().to_string(),
        ),
        ("other-chain", scenario.other_chain.to_string()),
    ];
    let settings = settings.into_iter();
    settings
        .map(|(name, value)| (name.to_owned(), value))
        .collect()
}

/// Findings with names of nodes in place of their peer ids.
pub fn named(network: &LabNetwork, mut findings: LogFindings) -> LogFindings {
    for ban in &mut findings.bans {
        let peer = network.nodes.iter().find(|node| node.peer == ban.subject);
        if let Some(node) = peer.filter(|node| !node.peer.is_empty()) {
            ban.subject.clone_from(&node.process.name);
        }
    }
    findings
}

pub fn nodes(
    network: &LabNetwork,
    evidence: &LabEvidence,
    usage: &[Vec<UsagePoint>],
    started: Duration,
) -> Vec<NodeReport> {
    let start = started.as_micros() as u64;
    let nodes = network.nodes.iter().zip(&evidence.nodes).zip(usage);
    let report = |((node, seen), usage): ((&LabNode, _), &Vec<UsagePoint>)| {
        let seen: &NodeEvidence = seen;
        let ban = |ban: &LogBan| NodeBan {
            at_ms: ban.at.saturating_sub(start) / 1_000,
            subject: ban.subject.clone(),
            reason: ban.reason.clone(),
        };
        let mut report = NodeReport {
            name: seen.name.clone(),
            role: seen.role,
            peer: node.peer.clone(),
            starts: node.process.starts,
            is_up: seen.is_up,
            heads: Vec::new(),
            reorgs: Vec::new(),
            usage: usage.clone(),
            bans: seen.findings.bans.iter().map(ban).collect(),
            disconnects: seen.findings.disconnects.clone(),
            warnings: seen.findings.warnings.clone(),
            errors: seen.findings.errors.clone(),
        };
        report.track(&seen.track);
        report
    };
    nodes.map(report).collect()
}

pub fn links(network: &LabNetwork) -> Vec<LinkReport> {
    let links = network.topology.links.iter().enumerate();
    let report = links.map(|(link, planned)| {
        let [up, down] = &network.links.counts(link);
        LinkReport {
            near: planned.near,
            far: planned.far,
            rung: planned.rung.to_owned(),
            up: traffic(up),
            down: traffic(down),
        }
    });
    report.collect()
}

/// The traffic of one direction. Each backend counts losses of its own kinds.
fn traffic(counts: &LinkCounts) -> LinkTraffic {
    LinkTraffic {
        bytes: counts.bytes,
        packets: counts.packets,
        lost: counts.retransmitted + counts.lost + counts.dropped + counts.swallowed,
        resets: counts.resets,
    }
}

/// Blocks that a node made, with their arrivals at the other nodes.
pub fn blocks(evidence: &LabEvidence, started: Duration) -> Vec<BlockReport> {
    let start = started.as_micros() as u64;
    let mut made = BTreeMap::new();
    for block in evidence.nodes.iter().flat_map(|node| &node.findings.blocks) {
        if block.is_own {
            made.entry((block.number, &block.hash)).or_insert(block.at);
        }
    }
    let report = made.into_iter().map(|((number, hash), at)| {
        let arrival = |(index, node): (usize, &NodeEvidence)| {
            let mut blocks = node.findings.blocks.iter();
            let block = blocks.find(|block| !block.is_own && block.hash == *hash)?;
            Some((index, block.at.saturating_sub(at)))
        };
        BlockReport {
            number,
            hash: hash.clone(),
            made_ms: at.saturating_sub(start) / 1_000,
            arrivals: evidence
                .nodes
                .iter()
                .enumerate()
                .filter_map(arrival)
                .collect(),
        }
    });
    report.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_of_both_backends_are_lost_packets() {
        let packets = LinkCounts {
            packets: 9,
            lost: 1,
            dropped: 2,
            swallowed: 3,
            resets: 4,
            ..LinkCounts::default()
        };
        let found = traffic(&packets);
        assert_eq!((found.packets, found.lost, found.resets), (9, 6, 4));
        let stream = LinkCounts {
            retransmitted: 5,
            ..LinkCounts::default()
        };
        assert_eq!(traffic(&stream).lost, 5);
    }
}
