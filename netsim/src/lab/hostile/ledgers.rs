//! The ledgers of a network that still runs, and the nodes that its faults disturbed.

use super::evidence::{self, HostileReport};
use crate::lab::{
    network::LabNetwork,
    report::{FaultReport, millis},
    scenario::LabScenario,
    topology::LabTopology,
};
use std::collections::BTreeSet;

/// Reads what each honest node's ledger says about each hostile peer that dials it.
pub async fn read_ledgers(network: &LabNetwork, scenario: &LabScenario) -> Vec<HostileReport> {
    let mut reports = Vec::new();
    for plan in super::peers(&scenario.hostile) {
        let peer = network.topology.node(&plan.name);
        let peer = peer.map_or("", |node| &network.nodes[node].peer);
        let mut findings = Vec::new();
        for (planned, node) in network.topology.nodes.iter().zip(&network.nodes) {
            let is_meant = plan.targets.is_empty() || plan.targets.contains(&planned.name);
            let is_up = node.process.is_running() && !node.process.is_frozen;
            if let Some(http) = node.http.filter(|_| is_meant && is_up && node.role.is_l2()) {
                let mut finding = evidence::read(&planned.name, http, peer).await;
                finding.ran_throughout = node.process.starts == 1 && planned.start <= plan.start;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_and_ends_of_links_are_disturbed() {
        let scenario = LabScenario::new("x", "y").replicas(["a", "b", "c"]);
        let topology = LabTopology::new(&scenario);
        let fault = |nodes, links| FaultReport {
            at_ms: 0,
            done_ms: 0,
            verb: "x".into(),
            nodes,
            links,
            ends_fault: false,
            text: "x".into(),
        };
        let link = topology.link(1, 3).unwrap();
        let faults = [fault(vec![4], vec![]), fault(vec![], vec![link])];
        assert_eq!(disturbed(&topology, &faults), [1, 3, 4].into());
    }
}
