//! Refuses hostile peers that could not show anything: targets without a swarm, too many peers, and
//! times that leave no blocks to compare. Also verbs that such peers, and networks with discovery,
//! cannot have.

use super::{Checked, check_node, check_time, refuse, verb_nodes};
use crate::lab::{
    hostile::{self, MAX_PEERS},
    scenario::{LabScenario, LabStep, LabVerb},
    topology::{LabRole, LabTopology},
};
use std::time::Duration;

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
        }
    }
    Ok(())
}

/// Names of hostile peers, with the lines of their groups.
pub(super) fn names(scenario: &LabScenario) -> Vec<(String, usize)> {
    let peers = hostile::peers(&scenario.hostile).into_iter();
    peers.map(|peer| (peer.name, peer.line)).collect()
}

/// Refuses verbs on roles that they have no meaning for.
pub(super) fn check_roles(topology: &LabTopology, step: &LabStep) -> Checked {
    let word = step.verb.word();
    for name in verb_nodes(&step.verb) {
        let role = role(topology, name);
        let is_promoted = matches!(step.verb, LabVerb::Promote(_));
        if is_promoted && role != Some(LabRole::Replica) {
            return refuse(
                step.line,
                format!("{name} is no replica that could be promoted"),
            );
        }
        let needs_chain = matches!(step.verb, LabVerb::Wipe(_) | LabVerb::Upgrade(_));
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
