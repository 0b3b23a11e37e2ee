//! Hostile peers: processes of this program that speak the protocols of the swarm and break one
//! rule each. They are built on libp2p and on the codecs of `starling-proto`, since a node's own
//! swarm cannot be made to break its rules.
//!
//! The lab draws their keys and starts them as `netsim hostile` ([`HostileArgs`]). They dial the
//! nodes directly over loopback, as an attacker with a fast line would. At the end the lab reads the
//! entries about them from the ledgers of the honest nodes ([`evidence`]).
//!
//! Everything is bounded: [`MAX_PEERS`] peers in a scenario, and in each peer 1,024 requests that are
//! being served, the newest 256 blocks, and 64 open requests to each target of a flood. Peers share
//! the machine with the nodes, so many of them slow the network without breaking a rule.

mod attack;
pub mod behaviour;
mod chain;
pub mod evidence;
mod ledgers;
mod log;
mod peer;
mod serve;
mod setup;

use behaviour::HostileBehaviour;
pub use ledgers::{LedgerTimes, disturbed, read_ledgers, receivers};
pub use peer::HostileArgs;
pub use setup::{HostileNode, node};
use std::{collections::BTreeMap, time::Duration};

/// Start of hostile peers for which a scenario gives no time, in seconds. The blocks before it show
/// how fast the same network is without them.
pub const DEFAULT_START_SECONDS: f64 = 20.0;

/// Largest number of hostile peers: a node accepts 64 connections of untrusted peers from one
/// address, and each peer needs a second one for a moment when it dials again.
pub const MAX_PEERS: u64 = 32;

/// Hostile peers of one behaviour in a scenario.
#[derive(Clone, Debug, PartialEq)]
pub struct HostileGroup {
    pub behaviour: HostileBehaviour,
    pub count: u64,
    pub start: Duration,
    /// Nodes that the peers dial; empty for all.
    pub targets: Vec<String>,
    pub line: usize,
}

impl HostileGroup {
    /// One hostile peer that dials all nodes.
    pub fn new(behaviour: HostileBehaviour, start: Duration) -> Self {
        Self {
            behaviour,
            count: 1,
            start,
            targets: Vec::new(),
            line: 0,
        }
    }
}

/// One hostile peer of a scenario.
#[derive(Clone, Debug, PartialEq)]
pub struct HostilePlan {
    /// The behaviour's word with a number.
    pub name: String,
    pub behaviour: HostileBehaviour,
    pub start: Duration,
    pub targets: Vec<String>,
    pub line: usize,
}

/// All hostile peers of a scenario, with their names.
pub fn peers(hostile: &[HostileGroup]) -> Vec<HostilePlan> {
    let mut numbers: BTreeMap<&str, u64> = BTreeMap::new();
    let mut peers = Vec::new();
    for group in hostile {
        for _ in 0..group.count {
            let word = group.behaviour.word();
            let number = numbers.entry(word).or_default();
            *number += 1;
            peers.push(HostilePlan {
                name: format!("{word}-{number}"),
                behaviour: group.behaviour,
                start: group.start,
                targets: group.targets.clone(),
                line: group.line,
            });
        }
    }
    peers
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_of_one_behaviour_are_numbered_across_groups() {
        let group = |behaviour, count| HostileGroup {
            count,
            ..HostileGroup::new(behaviour, Duration::from_secs(9))
        };
        let groups = [
            group(HostileBehaviour::Stall, 2),
            group(HostileBehaviour::Garbage, 1),
            group(HostileBehaviour::Stall, 1),
        ];
        let names: Vec<String> = peers(&groups).into_iter().map(|peer| peer.name).collect();
        assert_eq!(names, ["stall-1", "stall-2", "garbage-1", "stall-3"]);
    }
}
