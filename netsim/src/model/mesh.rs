//! Heartbeats: each node keeps its mesh between `lo` and `hi` peers, and announces its newest
//! blocks to peers outside of it.

use super::{
    queue::ModelEvent,
    topology::{MESH, OPEN, OUTBOUND},
    world::{HEARTBEAT, ModelWorld, SECOND},
};
use rand::seq::SliceRandom;

/// Time for which a pruned peer is not grafted again.
const BACKOFF: u64 = 60 * SECOND;
/// Least number of dialled peers in the mesh: an attacker that dials us cannot fill it.
const LEAST_OUTBOUND: u32 = 2;

impl ModelWorld<'_> {
    pub(super) fn heartbeat(&mut self, node: u32) {
        let state = &self.nodes[node as usize];
        if !state.joined {
            return;
        }
        let shape = self.config.mesh;
        let outbound = LEAST_OUTBOUND.min(shape.lo).min(shape.d / 2);
        if state.mesh < shape.lo {
            self.graft_some(node, shape.d - state.mesh, MESH | OPEN, OPEN);
        } else if state.mesh >= shape.hi && state.mesh > shape.d {
            self.prune_some(node, state.mesh - shape.d, outbound);
        } else if state.outbound < outbound {
            let missing = outbound - state.outbound;
            self.graft_some(node, missing, MESH | OPEN | OUTBOUND, OPEN | OUTBOUND);
        }
        self.announce(node);
    }

    /// Grafts at most `count` random peers whose flags in `mask` are `wanted`.
    fn graft_some(&mut self, node: u32, count: u32, mask: u8, wanted: u8) {
        let candidates = self.table.with(node, mask, wanted);
        // One more heartbeat, since the peer's own backoff began later.
        let passed = |entry: &usize| match self.table.backoff[*entry] {
            0 => true,
            until => until + HEARTBEAT <= self.now,
        };
        let mut candidates: Vec<usize> = candidates.filter(passed).collect();
        let (chosen, _) = candidates.partial_shuffle(&mut self.dice, count as usize);
        for entry in &*chosen {
            self.graft(node, *entry);
        }
    }

    /// Adds a peer to the mesh, and says so.
    pub(super) fn graft(&mut self, node: u32, entry: usize) {
        self.add(node, entry);
        self.counts.grafts += 1;
        let entry_there = self.table.twin[entry];
        self.send_control(node, entry, 0, ModelEvent::Graft { entry: entry_there });
    }

    fn prune_some(&mut self, node: u32, count: u32, outbound: u32) {
        let mut members: Vec<usize> = self.table.with(node, MESH, MESH).collect();
        members.shuffle(&mut self.dice);
        let mut left = count;
        for entry in members {
            let dialled = self.table.flags[entry] & OUTBOUND != 0;
            if left == 0 || (dialled && self.nodes[node as usize].outbound <= outbound) {
                continue;
            }
            self.remove(node, entry);
            self.send_prune(node, entry);
            left -= 1;
        }
    }

    fn send_prune(&mut self, node: u32, entry: usize) {
        self.counts.prunes += 1;
        self.table.backoff[entry] = self.now + BACKOFF;
        let entry_there = self.table.twin[entry];
        self.send_control(node, entry, 0, ModelEvent::Prune { entry: entry_there });
    }

    pub(super) fn on_graft(&mut self, node: u32, entry: usize) {
        let flags = self.table.flags[entry];
        if flags & MESH != 0 {
            return;
        }
        let full = self.nodes[node as usize].mesh >= self.config.mesh.hi;
        if self.table.backoff[entry] > self.now || (full && flags & OUTBOUND == 0) {
            self.send_prune(node, entry);
        } else {
            self.add(node, entry);
        }
    }

    pub(super) fn on_prune(&mut self, node: u32, entry: usize) {
        if self.table.flags[entry] & MESH != 0 {
            self.remove(node, entry);
        }
        self.table.backoff[entry] = self.now + BACKOFF;
    }

    fn add(&mut self, node: u32, entry: usize) {
        self.table.flags[entry] |= MESH;
        let state = &mut self.nodes[node as usize];
        state.mesh += 1;
        state.outbound += u32::from(self.table.flags[entry] & OUTBOUND != 0);
    }

    fn remove(&mut self, node: u32, entry: usize) {
        self.table.flags[entry] &= !MESH;
        let state = &mut self.nodes[node as usize];
        state.mesh -= 1;
        state.outbound -= u32::from(self.table.flags[entry] & OUTBOUND != 0);
    }
}
