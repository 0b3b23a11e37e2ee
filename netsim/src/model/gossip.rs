//! Blocks in the mesh: copies, duplicates, announcements (IHAVE) and requests (IWANT).
//!
//! A node passes a block on after its check, to the peers in its mesh that have not sent it a copy
//! meanwhile. Large blocks have IDONTWANT: a node that receives the first copy says so to its mesh
//! at once, and a peer that knows does not send. This needs no events, since the time at which a
//! peer knows follows from the time of the receipt.

use super::{
    queue::ModelEvent,
    topology::{MESH, OPEN},
    world::{FRAMING, HEARTBEAT, ModelWorld, SECOND},
};
use rand::seq::SliceRandom;

/// Size in bytes above which the first copy of a block is answered by IDONTWANT.
const UNWANTED: u32 = 16 << 10;
/// Longest time that a published block, or a forwarded one, waits for the line, in ns.
const PUBLISH_WAIT: u64 = 5 * SECOND;
const FORWARD_WAIT: u64 = SECOND;
/// Time for which a block that was passed on can be requested: twelve heartbeats.
const KEPT: u64 = 12 * HEARTBEAT;
/// Time for which the response to a request is awaited before the block is requested from
/// another peer.
const PROMISE: u64 = 3 * SECOND;

impl ModelWorld<'_> {
    pub(super) fn publish(&mut self, block: u32) {
        self.receipts.add(block, 0, 0, 0);
        self.nodes[0].remember(block, self.now);
        let mut entries = std::mem::take(&mut self.scratch);
        entries.clear();
        entries.extend(self.table.with(0, MESH, MESH));
        let missing = (self.config.mesh.d as usize).saturating_sub(entries.len());
        let mut others: Vec<usize> = self.table.with(0, MESH | OPEN, OPEN).collect();
        let (added, _) = others.partial_shuffle(&mut self.dice, missing);
        entries.extend_from_slice(added);
        self.send_copies(0, &entries, block, 1, PUBLISH_WAIT);
        self.scratch = entries;
        if block + 1 < self.config.blocks {
            let next = ModelEvent::Publish { block: block + 1 };
            self.queue.push(self.published(block + 1), 0, next);
        }
    }

    pub(super) fn on_reach(&mut self, node: u32, entry: u32, block: u32, hop: u8) {
        let mut received = self.lines.receive(self.now, node, self.message_bytes());
        if let Some(processors) = &mut self.processors {
            received = processors.receive(received);
        }
        if received > self.now {
            let copy = ModelEvent::Copy { entry, block, hop };
            self.queue.push(received, node, copy);
        } else {
            self.on_copy(node, entry, block, hop);
        }
    }

    pub(super) fn on_copy(&mut self, node: u32, entry: u32, block: u32, hop: u8) {
        let bytes = self.message_bytes();
        self.table.heard[entry as usize] = block + 1;
        let state = &mut self.nodes[node as usize];
        state.received += bytes;
        state.copies += 1;
        if self.receipts.has(block, node) {
            state.duplicates += 1;
            return;
        }
        let after = self.now - self.published(block);
        self.receipts.add(block, node, after, hop);
        if !self.promises.is_empty() {
            self.promises.remove(&(node, block));
        }
        let check = self.config.check_time().as_nanos() as u64;
        let checked = match &mut self.processors {
            Some(processors) => processors.work(self.now, check),
            None => self.now + check,
        };
        self.queue
            .push(checked, node, ModelEvent::Checked { block, hop });
    }

    pub(super) fn on_adopted(&mut self) {
        if let Some(processors) = &mut self.processors {
            processors.finish(self.now);
        }
    }

    pub(super) fn on_checked(&mut self, node: u32, block: u32, hop: u8) {
        self.nodes[node as usize].remember(block, self.now);
        if let Some(processors) = &mut self.processors {
            let head = processors.import(self.now);
            let after = head - self.published(block);
            self.receipts.add_head(block, node, after);
            self.queue.push(head, node, ModelEvent::Adopted);
        }
        self.on_gossiped(node, block);
        if self.nodes[node as usize].silent {
            return;
        }
        let mut entries = std::mem::take(&mut self.scratch);
        entries.clear();
        let large = self.config.block_bytes > UNWANTED;
        for entry in self.table.row(node) {
            if self.table.flags[entry] & MESH == 0 || self.table.heard[entry] == block + 1 {
                continue;
            }
            if large {
                self.count_control(node, self.table.peer[entry], 1);
                if self.is_unwanted(node, entry, block) {
                    self.counts.unwanted += 1;
                    continue;
                }
            }
            entries.push(entry);
        }
        self.send_copies(node, &entries, block, hop.saturating_add(1), FORWARD_WAIT);
        self.scratch = entries;
    }

    /// Whether the peer of `entry` has the block, and its IDONTWANT is here.
    fn is_unwanted(&self, node: u32, entry: usize, block: u32) -> bool {
        let peer = self.table.peer[entry];
        let in_mesh = self.table.flags[self.table.twin[entry] as usize] & MESH != 0;
        let after = self.receipts.after(block, peer).filter(|_| in_mesh);
        after.is_some_and(|after| {
            let received = self.published(block) + u64::from(after) * 1_000;
            received + self.lines.delay(peer, node) <= self.now
        })
    }

    /// Sends copies at once over the connections `entries`, unless they would wait longer than
    /// `patience`.
    fn send_copies(&mut self, node: u32, entries: &[usize], block: u32, hop: u8, patience: u64) {
        let Some(first) = entries.first() else {
            return;
        };
        let bytes = self.message_bytes();
        if self.config.scope == super::BandwidthScope::Node {
            if self.lines.wait(self.now, node, *first) > patience {
                self.counts.dropped += entries.len() as u64;
                return;
            }
            let way = self.way(node, *first);
            let span = self
                .lines
                .occupy(self.now, way, entries.len() as u64, bytes);
            for entry in entries {
                self.send_copy(node, *entry, span, block, hop);
            }
            return;
        }
        for entry in entries {
            if self.lines.wait(self.now, node, *entry) > patience {
                self.counts.dropped += 1;
                continue;
            }
            let way = self.way(node, *entry);
            let span = self.lines.occupy(self.now, way, 1, bytes);
            self.send_copy(node, *entry, span, block, hop);
        }
    }

    fn send_copy(&mut self, node: u32, entry: usize, span: (u64, u64), block: u32, hop: u8) {
        let (bytes, way) = (self.message_bytes(), self.way(node, entry));
        self.nodes[node as usize].sent += bytes;
        let at = self.lines.reaches(way, span, bytes);
        let entry = self.table.twin[entry];
        let event = if self.lines.queues(way.to) || self.processors.is_some() {
            ModelEvent::Reach { entry, block, hop }
        } else {
            ModelEvent::Copy { entry, block, hop }
        };
        self.queue.push(at, way.to, event);
    }

    fn message_bytes(&self) -> u64 {
        u64::from(self.config.block_bytes) + FRAMING
    }

    /// Announces the blocks of the last three heartbeats to random peers outside the mesh.
    pub(super) fn announce(&mut self, node: u32) {
        let state = &self.nodes[node as usize];
        let since = self.now.saturating_sub(3 * HEARTBEAT);
        if state.silent || state.since(since).next().is_none() {
            return;
        }
        let blocks = state.since(since);
        let mut entries = std::mem::take(&mut self.scratch);
        entries.clear();
        entries.extend(self.table.with(node, MESH | OPEN, OPEN));
        let count = (entries.len() / 4).max(self.config.mesh.lazy as usize);
        let (chosen, _) = entries.partial_shuffle(&mut self.dice, count);
        let ids = blocks.clone().count() as u64;
        for entry in &*chosen {
            let (entry, peer) = (self.table.twin[*entry], self.table.peer[*entry]);
            self.count_control(node, peer, ids);
            self.counts.announcements += 1;
            self.counts.announced += ids;
            // A block that the peer has now is one that it has when the announcement arrives.
            for block in blocks.clone().filter(|it| !self.receipts.has(*it, peer)) {
                let at = self.lines.small(self.now, node, peer);
                self.queue
                    .push(at, peer, ModelEvent::Announce { entry, block });
            }
        }
        self.scratch = entries;
    }

    pub(super) fn on_announce(&mut self, node: u32, entry: u32, block: u32) {
        let promised = self.promises.get(&(node, block));
        let awaited = promised.is_some_and(|until| *until > self.now);
        if awaited || self.receipts.has(block, node) {
            return;
        }
        self.promises.insert((node, block), self.now + PROMISE);
        self.counts.requested += 1;
        let request = ModelEvent::Request {
            entry: self.table.twin[entry as usize],
            block,
        };
        self.send_control(node, entry as usize, 1, request);
    }

    pub(super) fn on_request(&mut self, node: u32, entry: u32, block: u32) {
        let Some(after) = self.receipts.after(block, node) else {
            return;
        };
        let received = self.published(block) + u64::from(after) * 1_000;
        if received + KEPT >= self.now {
            let hop = self.receipts.hop(block, node).saturating_add(1);
            self.send_copies(node, &[entry as usize], block, hop, FORWARD_WAIT);
        }
    }
}
