//! Nodes and links of a scenario, by index. The pure parts of the lab work on these indices; the
//! processes and sockets behind them belong to [`super::network`].

use super::{
    hostile,
    scenario::{BATCHER, L1, LabScenario, LabTarget, PROPOSER},
};
use crate::LinkConditions;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The role of a node in the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LabRole {
    L1,
    Sequencer,
    Replica,
    /// A replica through which the other nodes find each other.
    Bootnode,
    Batcher,
    Proposer,
    Hostile,
}

impl LabRole {
    /// The role as reports write it.
    pub fn word(self) -> &'static str {
        match self {
            Self::L1 => "l1",
            Self::Sequencer => "sequencer",
            Self::Replica => "replica",
            Self::Bootnode => "bootnode",
            Self::Batcher => "batcher",
            Self::Proposer => "proposer",
            Self::Hostile => "hostile",
        }
    }

    /// Whether the node has a chain of L2 and a swarm.
    pub fn is_l2(self) -> bool {
        matches!(self, Self::Sequencer | Self::Replica | Self::Bootnode)
    }

    pub fn has_chain(self) -> bool {
        self.is_l2() || self == Self::L1
    }

    /// The role that `starling devnet` knows the node by.
    pub fn described(self) -> Self {
        if self == Self::Bootnode {
            return Self::Replica;
        }
        self
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct TopologyNode {
    pub name: String,
    pub role: LabRole,
    /// Start of the node on the scenario's clock.
    pub start: Duration,
}

/// A link between two nodes. The near node has the higher index; it is the home of a rung that has
/// one.
#[derive(Clone, Debug, PartialEq)]
pub struct TopologyLink {
    pub near: usize,
    pub far: usize,
    pub conditions: LinkConditions,
    pub rung: &'static str,
}

#[derive(Clone, Debug, PartialEq)]
pub struct LabTopology {
    pub nodes: Vec<TopologyNode>,
    pub links: Vec<TopologyLink>,
}

/// Index of the L1.
pub const L1_INDEX: usize = 0;
/// Index of the sequencer.
pub const SEQUENCER_INDEX: usize = 1;

impl LabTopology {
    pub fn new(scenario: &LabScenario) -> Self {
        let mut nodes = vec![
            TopologyNode::new(L1, LabRole::L1),
            TopologyNode::new(&scenario.sequencer, LabRole::Sequencer),
        ];
        nodes.extend(scenario.replicas.iter().map(|replica| TopologyNode {
            start: replica.start,
            ..TopologyNode::new(&replica.name, LabRole::Replica)
        }));
        let bootnode = scenario.bootnode.as_deref();
        nodes.extend(bootnode.map(|name| TopologyNode::new(name, LabRole::Bootnode)));
        for (is_present, name, role) in [
            (scenario.batcher, BATCHER, LabRole::Batcher),
            (scenario.proposer, PROPOSER, LabRole::Proposer),
        ] {
            nodes.extend(is_present.then(|| TopologyNode::new(name, role)));
        }
        let hostile = hostile::peers(&scenario.hostile).into_iter();
        nodes.extend(hostile.map(|peer| TopologyNode {
            start: peer.start,
            ..TopologyNode::new(&peer.name, LabRole::Hostile)
        }));
        let mut topology = Self {
            nodes,
            links: Vec::new(),
        };
        topology.links = topology.plan_links(scenario);
        topology
    }

    /// A link from every node to the L1, between every two nodes with a swarm, and from batcher and
    /// proposer to the sequencer. Nodes that find each other by discovery have no links between
    /// them, since a record has one address for all peers. Hostile peers have none.
    fn plan_links(&self, scenario: &LabScenario) -> Vec<TopologyLink> {
        let mut links = Vec::new();
        for (near, node) in self.nodes.iter().enumerate() {
            for (far, other) in self.nodes.iter().enumerate().take(near) {
                let is_swarm = node.role.is_l2() && other.role.is_l2();
                let is_linked = if is_swarm {
                    scenario.bootnode.is_none()
                } else {
                    far <= SEQUENCER_INDEX && node.role != LabRole::Hostile
                };
                if is_linked {
                    links.push(TopologyLink::new(near, far, scenario, self));
                }
            }
        }
        links
    }

    pub fn node(&self, name: &str) -> Option<usize> {
        self.nodes.iter().position(|node| node.name == name)
    }

    pub fn link(&self, one: usize, other: usize) -> Option<usize> {
        let (near, far) = (one.max(other), one.min(other));
        let is_this = |link: &TopologyLink| link.near == near && link.far == far;
        self.links.iter().position(is_this)
    }

    /// Links that a verb changes. Names that do not exist, which validation refuses, give none.
    pub fn targets(&self, target: &LabTarget) -> Vec<usize> {
        match target {
            LabTarget::All => (0..self.links.len()).collect(),
            LabTarget::Node(name) => {
                let node = self.node(name);
                let has = |link: &TopologyLink| Some(link.near) == node || Some(link.far) == node;
                let links = self.links.iter().enumerate();
                links
                    .filter(|(_, link)| has(link))
                    .map(|(at, _)| at)
                    .collect()
            }
            LabTarget::Pair(one, other) => {
                let (one, other) = (self.node(one), self.node(other));
                let link = one
                    .zip(other)
                    .and_then(|(one, other)| self.link(one, other));
                link.into_iter().collect()
            }
        }
    }

    /// Names of the link's ends: near, far.
    pub fn ends(&self, link: usize) -> [&str; 2] {
        let link = &self.links[link];
        [link.near, link.far].map(|node| self.nodes[node].name.as_str())
    }
}

impl TopologyNode {
    fn new(name: &str, role: LabRole) -> Self {
        Self {
            name: name.to_owned(),
            role,
            start: Duration::ZERO,
        }
    }
}

impl TopologyLink {
    /// A link with the scenario's conditions for it.
    fn new(near: usize, far: usize, scenario: &LabScenario, topology: &LabTopology) -> Self {
        let name = |node: usize| topology.nodes[node].name.as_str();
        let (near_name, far_name) = (name(near), name(far));
        let own = scenario.links.iter().find_map(|link| {
            let given = (link.near.as_str(), link.far.as_str());
            if given == (near_name, far_name) {
                return Some((link.rung, link.rung.conditions));
            }
            let is_reversed = given == (far_name, near_name);
            is_reversed.then(|| (link.rung, link.rung.conditions.reversed()))
        });
        let (rung, conditions) = own.unwrap_or((scenario.rung, scenario.rung.conditions));
        Self {
            near,
            far,
            conditions,
            rung: rung.name,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{lab::scenario::LabLink, ladder::Rung};

    #[test]
    fn every_two_swarms_have_a_link_and_everybody_reaches_the_l1() {
        let scenario = LabScenario::new("x", "y").replicas(["a", "b"]).batcher();
        let topology = LabTopology::new(&scenario);
        let links: Vec<_> = (0..topology.links.len())
            .map(|at| topology.ends(at))
            .collect();
        let expected = [
            ["seq", "l1"],
            ["a", "l1"],
            ["a", "seq"],
            ["b", "l1"],
            ["b", "seq"],
            ["b", "a"],
            ["batcher", "l1"],
            ["batcher", "seq"],
        ];
        assert_eq!(links, expected);
        assert_eq!(topology.targets(&LabTarget::Node("b".into())), [3, 4, 5]);
        let pair = LabTarget::Pair("a".into(), "b".into());
        assert_eq!(topology.targets(&pair), [5]);
    }

    #[test]
    fn the_home_of_a_link_is_its_first_node() {
        let mut scenario = LabScenario::new("x", "y").replicas(["a"]);
        let rung = Rung::named("home-dsl").unwrap();
        let [near, far] = ["seq", "a"].map(str::to_owned);
        let line = 0;
        scenario.links = vec![LabLink {
            near,
            far,
            rung,
            line,
        }];
        let topology = LabTopology::new(&scenario);
        let link = &topology.links[topology.link(1, 2).unwrap()];
        assert_eq!((link.near, link.far), (2, 1));
        assert_eq!(link.conditions, rung.conditions.reversed());
    }
}
