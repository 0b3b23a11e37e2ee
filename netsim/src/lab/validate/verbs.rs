//! Rules for verbs that not every node can have: `fill-disk`, `move`, `new-key` and `reorg`.

use super::{Checked, LabTopology, check_time, refuse};
use crate::lab::{
    scenario::{LabScenario, LabStep, LabVerb, NodeVerb},
    topology::LabRole,
};
use std::time::Duration;

/// Largest number of L1 blocks that a reorg replaces. The L1's finalized block is one more below its
/// head (`starling execution --dev.period`).
const DEEPEST: u64 = 7;

pub(super) fn check(scenario: &LabScenario, topology: &LabTopology) -> Checked {
    for (index, step) in scenario.steps.iter().enumerate() {
        check_roles(topology, step)?;
        if let LabVerb::Nodes(NodeVerb::Move, nodes) = &step.verb {
            check_move(scenario, step, nodes)?;
        }
        if let LabVerb::FillDisk(nodes, until) | LabVerb::Reorg(nodes, until) = &step.verb {
            check_span(scenario, index, nodes, *until)?;
        }
        if let LabVerb::Reorg(_, until) = &step.verb {
            check_depth(scenario, step, *until)?;
        }
    }
    Ok(())
}

/// Whether the verb's nodes have what it changes. Names are known to exist.
fn check_roles(topology: &LabTopology, step: &LabStep) -> Checked {
    let mut nodes = topology.nodes.iter();
    let has_bootnode = nodes.any(|node| node.role == LabRole::Bootnode);
    for name in step.verb.nodes() {
        let Some(role) = topology.node(name).map(|node| topology.nodes[node].role) else {
            continue;
        };
        let problem = match &step.verb {
            LabVerb::FillDisk(..) if !role.has_chain() => {
                "stores no data, so it has no disk to fill"
            }
            LabVerb::Nodes(NodeVerb::Move, _) if !role.is_l2() => {
                "cannot move: only the sequencer and replicas are dialled by name"
            }
            LabVerb::Nodes(NodeVerb::Move, _) if has_bootnode => {
                "cannot move: nodes that find each other through a bootnode are not dialled by name"
            }
            LabVerb::Nodes(NodeVerb::NewKey, _)
                if *name != topology.nodes[super::SEQUENCER_INDEX].name =>
            {
                "signs no blocks; name the sequencer"
            }
            LabVerb::Reorg(..) if role != LabRole::L1 => "cannot be reorganised; name l1",
            _ => continue,
        };
        return refuse(step.line, format!("{name} {problem}"));
    }
    Ok(())
}

/// Nodes of another chain and hostile peers dial a node at its first address.
fn check_move(scenario: &LabScenario, step: &LabStep, nodes: &[String]) -> Checked {
    if scenario.other_chain > 0 {
        let message = "move changes an address that the nodes of `other-chain` dial; leave one out";
        return refuse(step.line, message);
    }
    let is_target = |node: &&String| {
        let mut groups = scenario.hostile.iter();
        groups.any(|group| group.targets.is_empty() || group.targets.contains(node))
    };
    if let Some(target) = nodes.iter().find(is_target) {
        let message = format!("{target} cannot move: hostile peers dial it at its first address");
        return refuse(step.line, message);
    }
    Ok(())
}

/// A disk is full, and L1 has a branch that it will leave, from a step until its end. Meanwhile no
/// other step may do the same to the node, and its data cannot be created anew.
fn check_span(scenario: &LabScenario, index: usize, nodes: &[String], until: Duration) -> Checked {
    let span = &scenario.steps[index];
    let (word, end) = (span.verb.word(), until.as_secs_f64());
    check_time(scenario, span.line, &format!("{word} ends"), until)?;
    if until <= span.at {
        let message = format!("{word} ends before it begins; raise `until`");
        return refuse(span.line, message);
    }
    for (other, step) in scenario.steps.iter().enumerate() {
        let is_wipe = matches!(step.verb, LabVerb::Nodes(NodeVerb::Wipe, _));
        let is_same = step.verb.word() == word || is_wipe;
        let is_during = step.at >= span.at && step.at <= until;
        let mut named = step.verb.nodes().iter();
        let hit = named.find(|node| nodes.contains(node));
        if let Some(node) = hit.filter(|_| is_same && is_during && other != index) {
            let (later, line) = (step.verb.word(), step.line);
            let message =
                format!("{later} on {node}, whose {word} lasts until {end} s; choose a later time");
            return refuse(line, message);
        }
    }
    Ok(())
}

/// L1 does not replace finalized blocks, so the branch that it leaves must be short.
fn check_depth(scenario: &LabScenario, step: &LabStep, until: Duration) -> Checked {
    let longest = Duration::from_secs(DEEPEST * scenario.l1_block_time);
    if until.saturating_sub(step.at) <= longest {
        return Ok(());
    }
    let longest = longest.as_secs();
    let message = format!(
        "reorg lasts more than {longest} s, in which L1 makes {DEEPEST} blocks, and deeper ones are \
         final; lower `until`"
    );
    refuse(step.line, message)
}
