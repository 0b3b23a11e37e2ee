//! Connections of the model's nodes as compressed rows: each connection is two entries, one in the
//! row of each end. An entry takes 21 bytes, so 50,000 nodes with 20 peers take 21 MB.

use super::config::ModelConfig;
use rand::{Rng, rngs::StdRng, seq::index};
use std::ops::Range;

/// The entry's owner has the peer in its mesh.
pub(super) const MESH: u8 = 1;
/// The entry's owner dialled the peer.
pub(super) const OUTBOUND: u8 = 2;
/// Both ends have finished the handshake.
pub(super) const OPEN: u8 = 4;

/// All connections. The fields are parallel, one value per entry.
pub(super) struct PeerTable {
    /// Index at which each node's row starts; one value more than nodes.
    rows: Vec<u32>,
    /// The node at the other end.
    pub peer: Vec<u32>,
    /// The entry of the same connection in the other end's row.
    pub twin: Vec<u32>,
    pub flags: Vec<u8>,
    /// Time in ns before which the owner neither grafts the peer nor lets it graft.
    pub backoff: Vec<u64>,
    /// Number, plus one, of the newest block of which the peer sent the owner a copy.
    pub heard: Vec<u32>,
}

impl PeerTable {
    /// Connections of the established nodes, which are open, and of the nodes that join later,
    /// which dial established ones.
    pub fn random(config: &ModelConfig, dice: &mut StdRng) -> Self {
        let established = config.established();
        let mut dialled: Vec<Vec<u32>> = vec![Vec::new(); config.nodes as usize];
        let mut degree = vec![0_u32; config.nodes as usize];
        if config.peers.lo + 1 >= established {
            dial_all(established, &mut dialled, &mut degree, dice);
        } else {
            // Half of a node's connections are outbound, and the other half comes from its peers.
            for node in 0..established {
                let wanted = config.peers.lo.div_ceil(2);
                dial(node, wanted, config, &mut dialled, &mut degree, dice);
            }
        }
        for node in established..config.nodes {
            dial(
                node,
                config.peers.lo,
                config,
                &mut dialled,
                &mut degree,
                dice,
            );
        }
        Self::of(&dialled, &degree, established)
    }

    fn of(dialled: &[Vec<u32>], degree: &[u32], established: u32) -> Self {
        let mut rows = vec![0];
        for degree in degree {
            rows.push(rows[rows.len() - 1] + degree);
        }
        let entries = rows[rows.len() - 1] as usize;
        let mut next = rows.clone();
        let mut table = Self {
            rows,
            peer: vec![0; entries],
            twin: vec![0; entries],
            flags: vec![0; entries],
            backoff: vec![0; entries],
            heard: vec![0; entries],
        };
        let mut take = |node: u32| {
            let entry = next[node as usize];
            next[node as usize] += 1;
            entry
        };
        for (node, peers) in (0..).zip(dialled) {
            for peer in peers {
                let (own, other) = (take(node), take(*peer));
                let open = if node < established { OPEN } else { 0 };
                table.set(own, *peer, other, OUTBOUND | open);
                table.set(other, node, own, open);
            }
        }
        table
    }

    fn set(&mut self, entry: u32, peer: u32, twin: u32, flags: u8) {
        self.peer[entry as usize] = peer;
        self.twin[entry as usize] = twin;
        self.flags[entry as usize] = flags;
    }

    /// The entries of a node.
    pub fn row(&self, node: u32) -> Range<usize> {
        self.rows[node as usize] as usize..self.rows[node as usize + 1] as usize
    }

    /// Entries of a node with exactly the flags `wanted` among `mask`.
    pub fn with(&self, node: u32, mask: u8, wanted: u8) -> impl Iterator<Item = usize> + '_ {
        self.row(node)
            .filter(move |entry| self.flags[*entry] & mask == wanted)
    }

    /// Nodes that have a path to node 0, among those below `established`.
    pub fn connected(&self, established: u32) -> Vec<bool> {
        let mut reached = vec![false; established as usize];
        reached[0] = true;
        let mut stack = vec![0];
        while let Some(node) = stack.pop() {
            for entry in self.row(node) {
                let peer = self.peer[entry];
                if peer < established && !reached[peer as usize] {
                    reached[peer as usize] = true;
                    stack.push(peer);
                }
            }
        }
        reached
    }
}

/// Connects every two established nodes, as the static peers of a lab. A random one of both dials.
fn dial_all(established: u32, dialled: &mut [Vec<u32>], degree: &mut [u32], dice: &mut StdRng) {
    for one in 0..established {
        for other in 0..one {
            let (from, to) = if dice.random() {
                (one, other)
            } else {
                (other, one)
            };
            dialled[from as usize].push(to);
            degree[one as usize] += 1;
            degree[other as usize] += 1;
        }
    }
}

/// Connects `node` to as many random established nodes as it wants, if they have capacity.
fn dial(
    node: u32,
    wanted: u32,
    config: &ModelConfig,
    dialled: &mut [Vec<u32>],
    degree: &mut [u32],
    dice: &mut StdRng,
) {
    let established = config.established();
    let others = established - u32::from(node < established);
    let connected = |dialled: &[Vec<u32>], peer: u32| {
        dialled[node as usize].contains(&peer) || dialled[peer as usize].contains(&node)
    };
    let mut left = wanted;
    // Few nodes are tried one by one, so that a small network is complete.
    let tries: Vec<u32> = if others <= 4 * wanted {
        let order = index::sample(dice, established as usize, established as usize);
        order.into_iter().map(|peer| peer as u32).collect()
    } else {
        (0..20 * wanted)
            .map(|_| dice.random_range(0..established))
            .collect()
    };
    for peer in tries {
        if left == 0 {
            break;
        }
        let full =
            degree[peer as usize] >= config.peers.hi || degree[node as usize] >= config.peers.hi;
        if peer == node || full || connected(dialled, peer) {
            continue;
        }
        dialled[node as usize].push(peer);
        degree[node as usize] += 1;
        degree[peer as usize] += 1;
        left -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;

    fn table(nodes: u32, joins: u32) -> PeerTable {
        let config = ModelConfig {
            nodes,
            joins,
            ..ModelConfig::default()
        };
        PeerTable::random(&config, &mut StdRng::seed_from_u64(7))
    }

    #[test]
    fn each_connection_has_two_entries_that_name_each_other() {
        for (nodes, joins) in [(2, 0), (30, 3), (500, 20)] {
            let table = table(nodes, joins);
            for node in 0..nodes {
                let mut peers = Vec::new();
                for entry in table.row(node) {
                    let twin = table.twin[entry] as usize;
                    assert_eq!((table.twin[twin] as usize, table.peer[twin]), (entry, node));
                    let ends = [entry, twin].map(|it| table.flags[it] & OUTBOUND);
                    assert_ne!(ends[0], ends[1], "one end dialled");
                    peers.push(table.peer[entry]);
                }
                let count = peers.len();
                peers.sort_unstable();
                peers.dedup();
                assert!(peers.len() == count && !peers.contains(&node) && count <= 30);
            }
        }
    }

    #[test]
    fn a_network_no_larger_than_the_wanted_peers_is_complete() {
        let whole = table(21, 0);
        assert!((0..21).all(|node| whole.row(node).len() == 20));
        let larger = table(40, 0);
        assert!((0..40).any(|node| larger.row(node).len() < 39));
    }

    #[test]
    fn all_established_nodes_are_connected_and_joining_ones_are_closed() {
        let table = table(500, 20);
        assert!(table.connected(480).into_iter().all(|it| it));
        assert_eq!(
            (480..500)
                .map(|node| table.with(node, OPEN, OPEN).count())
                .sum::<usize>(),
            0
        );
        let degree = table.row(3).len();
        assert!((10..=30).contains(&degree), "{degree}");
    }
}
