//! The ledgers of a network that still runs, and the nodes that its faults disturbed.

use super::{
    evidence::{self, HostileReport},
    log::HostileLog,
};
use crate::lab::{
    network::LabNetwork,
    report::{FaultReport, millis},
    scenario::LabScenario,
    topology::{LabTopology, SEQUENCER_INDEX},
};
use std::{collections::BTreeSet, time::Duration};
use tokio::time::Instant;

/// Time limit of the reading of all ledgers together: a busy machine delays responses of a sound
/// node.
const LIMIT: Duration = Duration::from_secs(60);
/// Time before the first fault of a node at which its connections are looked at, in milliseconds.
const BEFORE_FAULT: u64 = 500;

/// Times of a run with which ledgers and logs are read.
pub struct LedgerTimes<'a> {
    /// Start of the run's clock, in milliseconds since 1970.
    pub started: u64,
    /// End of the run on its clock, in milliseconds.
    pub end: u64,
    pub faults: &'a [FaultReport],
}

impl LedgerTimes<'_> {
    /// Time just before the first fault of a node after `start`, and otherwise the end, in
    /// milliseconds since 1970.
    fn undisturbed(&self, node: usize, start: u64) -> u64 {
        let mut faults = self.faults.iter();
        let first = faults.find(|it| it.at_ms > start && it.nodes.contains(&node));
        let at = first.map_or(self.end, |it| it.at_ms.saturating_sub(BEFORE_FAULT));
        self.started + at
    }
}

/// Reads what each honest node's ledger says about each hostile peer that dials it, and what the
/// peer's log says about the node.
pub async fn read_ledgers(
    network: &LabNetwork,
    scenario: &LabScenario,
    times: &LedgerTimes<'_>,
) -> Vec<HostileReport> {
    let end = Instant::now() + LIMIT;
    let mut reports = Vec::new();
    for plan in super::peers(&scenario.hostile) {
        let hostile = network.topology.node(&plan.name);
        let hostile = hostile.map(|node| &network.nodes[node]);
        let peer = hostile.map_or("", |node| &node.peer);
        let log = hostile.map(|node| node.process.log_text());
        let log = HostileLog::read(&log.unwrap_or_default());
        let mut findings = Vec::new();
        for (index, planned) in network.topology.nodes.iter().enumerate() {
            let node = &network.nodes[index];
            let is_meant = plan.targets.is_empty() || plan.targets.contains(&planned.name);
            let is_up = node.process.is_running() && !node.process.is_frozen;
            if let Some(http) = node.http.filter(|_| is_meant && is_up && node.role.is_l2()) {
                let left = end.saturating_duration_since(Instant::now());
                let mut finding = evidence::read(&planned.name, http, peer, left).await;
                finding.ran_throughout = node.process.starts == 1 && planned.start <= plan.start;
                let undisturbed = times.undisturbed(index, millis(plan.start));
                finding.was_connected = log.is_connected_at(&node.peer, undisturbed);
                finding.count_requests(&log, &node.peer);
                findings.push(finding);
            }
        }
        reports.push(HostileReport {
            name: plan.name,
            behaviour: plan.behaviour,
            start_ms: millis(plan.start),
            findings,
        });
    }
    reports
}

/// Nodes, and ends of links, that a step changed.
pub fn disturbed(topology: &LabTopology, faults: &[FaultReport]) -> BTreeSet<usize> {
    let mut disturbed = BTreeSet::new();
    for fault in faults {
        disturbed.extend(fault.nodes.iter().copied());
        for link in fault.links.iter().map(|link| &topology.links[*link]) {
            disturbed.extend([link.near, link.far]);
        }
    }
    disturbed
}

/// Nodes that get blocks from others and that no step disturbs.
pub fn receivers(topology: &LabTopology, disturbed: &BTreeSet<usize>) -> BTreeSet<usize> {
    let nodes = topology.nodes.iter().enumerate();
    let receivers = nodes.filter(|(index, node)| {
        node.role.is_l2() && *index != SEQUENCER_INDEX && !disturbed.contains(index)
    });
    receivers.map(|(index, _)| index).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(at_ms: u64, nodes: Vec<usize>, links: Vec<usize>) -> FaultReport {
        FaultReport {
            at_ms,
            done_ms: at_ms,
            verb: "x".into(),
            nodes,
            links,
            ends_fault: false,
            text: "x".into(),
        }
    }

    #[test]
    fn connections_are_looked_at_before_the_first_fault_of_the_node() {
        let faults = [
            fault(10_000, vec![2], vec![]),
            fault(40_000, vec![3], vec![]),
            fault(50_000, vec![2], vec![]),
            fault(60_000, vec![2], vec![]),
        ];
        let times = LedgerTimes {
            started: 1_000_000,
            end: 90_000,
            faults: &faults,
        };
        assert_eq!(times.undisturbed(2, 30_000), 1_049_500);
        assert_eq!(times.undisturbed(4, 30_000), 1_090_000);
    }

    #[test]
    fn nodes_and_ends_of_links_are_disturbed() {
        let scenario = LabScenario::new("x", "y").replicas(["a", "b", "c"]);
        let topology = LabTopology::new(&scenario);
        let link = topology.link(1, 3).unwrap();
        let faults = [fault(0, vec![4], vec![]), fault(0, vec![], vec![link])];
        let disturbed = disturbed(&topology, &faults);
        assert_eq!(disturbed, [1, 3, 4].into());
        // Node 0 is the L1, and node 1 makes the blocks.
        assert_eq!(receivers(&topology, &disturbed), [2].into());
        assert_eq!(receivers(&topology, &BTreeSet::new()), [2, 3, 4].into());
    }
}
