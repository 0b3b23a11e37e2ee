//! Refuses hostile peers that could not show anything: targets without a swarm, too many peers, and
//! times that leave no blocks to compare. Also verbs that such peers, and networks with discovery,
//! cannot have.

use super::{Checked, check_node, check_time, refuse};
use crate::lab::{
    hostile::{self, HostileGroup, MAX_PEERS, behaviour::HostileScope, receivers},
    plan::{LabChange, LabPlan, NodeChange},
    scenario::{LabScenario, LabStep, LabVerb, NodeVerb},
    topology::{LabRole, LabTopology, TopologyNode},
};
use std::{collections::BTreeSet, time::Duration};

/// Shortest time before hostile peers come, and after it, and fewest blocks in each: the blocks of
/// both are compared.
const COMPARED: Duration = Duration::from_secs(10);
const COMPARED_BLOCKS: u64 = 5;

pub(super) fn check_hostile(scenario: &LabScenario, topology: &LabTopology) -> Checked {
    let count: u64 = scenario.hostile.iter().map(|group| group.count).sum();
    let compared = COMPARED.max(Duration::from_secs(COMPARED_BLOCKS * scenario.block_time));
    for group in &scenario.hostile {
        let line = group.line;
        if group.count == 0 || count > MAX_PEERS {
            return refuse(line, format!("{count} hostile peers; use 1 to {MAX_PEERS}"));
        }
        check_time(
            scenario,
            line,
            &format!("{} starts", group.behaviour),
            group.start,
        )?;
        if group.start < compared || group.start + compared > scenario.length {
            let compared = compared.as_secs();
            return refuse(
                line,
                format!(
                    "{} starts at {} s; leave {compared} s before and after it, whose blocks are \
                     compared",
                    group.behaviour,
                    group.start.as_secs_f64()
                ),
            );
        }
        for target in &group.targets {
            check_node(scenario, line, target)?;
            let role = role(topology, target);
            if !role.is_some_and(LabRole::is_l2) {
                return refuse(line, format!("{target} has no swarm to attack"));
            }
            let node = topology.node(target).map(|node| &topology.nodes[node]);
            if node.is_some_and(|node| node.start > group.start) {
                let message = format!("{target} starts after the attack on it; attack it later");
                return refuse(line, message);
            }
        }
    }
    Ok(())
}

/// Refuses plans that leave no evidence: ledgers that all end with their processes, and no node
/// whose receipts of blocks could be compared.
pub(super) fn check_evidence(
    scenario: &LabScenario,
    topology: &LabTopology,
    plan: &LabPlan,
) -> Checked {
    for group in &scenario.hostile {
        check_ledgers(group, topology, plan)?;
    }
    let Some(group) = scenario.hostile.first() else {
        return Ok(());
    };
    let mut disturbed = BTreeSet::new();
    for action in &plan.actions {
        match &action.change {
            LabChange::Node(node, _) => disturbed.extend([*node]),
            LabChange::Links(changes) => {
                let links = changes.iter().map(|(link, _)| &topology.links[*link]);
                disturbed.extend(links.flat_map(|link| [link.near, link.far]));
            }
            LabChange::Load(_) => {}
        }
    }
    if receivers(topology, &disturbed).is_empty() {
        let message = "every replica is disturbed by a step, so no propagation can be compared \
                       with and without hostile peers; leave one replica alone";
        return refuse(group.line, message);
    }
    Ok(())
}

/// A ledger is in memory, so that a node which restarts has lost a part of it.
fn check_ledgers(group: &HostileGroup, topology: &LabTopology, plan: &LabPlan) -> Checked {
    let expected = group.behaviour.expected();
    if expected.scope != HostileScope::EveryTarget || expected.offences.is_empty() {
        return Ok(());
    }
    let restarted: BTreeSet<usize> = { plan.actions.iter() }
        .filter_map(|action| match action.change {
            LabChange::Node(node, change) if ends_process(change) => Some(node),
            _ => None,
        })
        .collect();
    let is_target = |node: &TopologyNode| {
        node.role.is_l2() && (group.targets.is_empty() || group.targets.contains(&node.name))
    };
    let nodes = topology.nodes.iter().enumerate();
    let mut targets = nodes.filter(|(_, node)| is_target(node));
    let runs_throughout = |(index, node): (usize, &TopologyNode)| {
        node.start <= group.start && !restarted.contains(&index)
    };
    if targets.any(runs_throughout) {
        return Ok(());
    }
    let behaviour = group.behaviour;
    let message = format!(
        "every target of {behaviour} restarts or starts late, so no ledger is complete at the end; \
         leave one target alone"
    );
    refuse(group.line, message)
}

fn ends_process(change: NodeChange) -> bool {
    !matches!(
        change,
        NodeChange::Start
            | NodeChange::Freeze
            | NodeChange::Thaw
            | NodeChange::FillDisk
            | NodeChange::FreeDisk
    )
}

/// Names of hostile peers, with the lines of their groups.
pub(super) fn names(scenario: &LabScenario) -> Vec<(String, usize)> {
    let peers = hostile::peers(&scenario.hostile).into_iter();
    peers.map(|peer| (peer.name, peer.line)).collect()
}

/// Refuses verbs on roles that they have no meaning for.
pub(super) fn check_roles(topology: &LabTopology, step: &LabStep) -> Checked {
    let word = step.verb.word();
    for name in step.verb.nodes() {
        let role = role(topology, name);
        let is_promoted = matches!(step.verb, LabVerb::Nodes(NodeVerb::Promote, _));
        if is_promoted && role != Some(LabRole::Replica) {
            return refuse(
                step.line,
                format!("{name} is no replica that could be promoted"),
            );
        }
        let needs_chain = matches!(
            step.verb,
            LabVerb::Nodes(NodeVerb::Wipe | NodeVerb::Upgrade, _)
        );
        if needs_chain && role == Some(LabRole::Hostile) {
            let message = format!("{name} is a hostile peer, which has no {word}");
            return refuse(step.line, message);
        }
    }
    Ok(())
}

/// Refuses to isolate a node that has a link to the L1 only.
pub(super) fn check_isolated(scenario: &LabScenario, step: &LabStep) -> Checked {
    if scenario.bootnode.is_none() {
        return Ok(());
    }
    refuse(
        step.line,
        "nodes that find each other through a bootnode have no links between them to cut",
    )
}

fn role(topology: &LabTopology, name: &str) -> Option<LabRole> {
    topology.node(name).map(|node| topology.nodes[node].role)
}

#[cfg(test)]
mod tests;
