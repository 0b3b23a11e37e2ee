//! The state of the model, and the loop over its events, heartbeats and samples.
//!
//! Heartbeats are not in the queue: each node has one every half second, at an offset of its own, so
//! a list in the order of the offsets is enough.

use super::{
    config::ModelConfig,
    lines::{LineWay, ModelLines},
    node::{ModelNode, ModelReceipts},
    processors::ModelProcessors,
    queue::{ModelEvent, ModelQueue},
    range::JoiningNode,
    samples::ModelSamples,
    topology::PeerTable,
};
use rand::{Rng, SeedableRng, rngs::StdRng};
use std::collections::BTreeMap;

pub(super) const SECOND: u64 = 1_000_000_000;
/// Time between two heartbeats, in ns.
pub(super) const HEARTBEAT: u64 = SECOND / 2;
/// Time before the first block, in ns: thirty heartbeats, in which the meshes settle.
pub(super) const WARM_UP: u64 = 15 * SECOND;
/// Longest time after the last block, in ns. A block is kept for requests for 6 s.
const SETTLE: u64 = 60 * SECOND;
/// Time without any event after which nothing more can happen, in ns: blocks are announced for
/// three heartbeats.
const IDLE: u64 = 2 * SECOND;
/// Bytes that frames, keys and the topic add to a message or a control message.
pub(super) const FRAMING: u64 = 100;
/// Bytes of a message id.
pub(super) const ID: u64 = 20;

/// Counts over the whole network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ModelCounts {
    pub events: u64,
    /// Copies that were dropped because they would have waited too long for the sender's line.
    pub dropped: u64,
    /// Copies that were not sent because the receiver already had the block and had said so.
    pub unwanted: u64,
    /// Announcements (IHAVE), ids in them, and blocks that were requested (IWANT).
    pub announcements: u64,
    pub announced: u64,
    pub requested: u64,
    pub grafts: u64,
    pub prunes: u64,
}

pub(super) struct ModelWorld<'a> {
    pub config: &'a ModelConfig,
    pub now: u64,
    pub table: PeerTable,
    pub lines: ModelLines,
    pub processors: Option<ModelProcessors>,
    pub queue: ModelQueue,
    pub nodes: Vec<ModelNode>,
    pub receipts: ModelReceipts,
    pub joining: Vec<JoiningNode>,
    pub counts: ModelCounts,
    /// Time until which the response to a request (IWANT) is awaited, by node and block.
    pub promises: BTreeMap<(u32, u32), u64>,
    pub samples: ModelSamples,
    pub dice: StdRng,
    /// Entries of connections, kept for reuse.
    pub scratch: Vec<usize>,
    /// Offsets of the heartbeats, with the nodes, in the order of time.
    beats: Vec<(u64, u32)>,
}

impl<'a> ModelWorld<'a> {
    pub fn new(config: &'a ModelConfig) -> Self {
        let mut dice = StdRng::seed_from_u64(config.seed);
        let table = PeerTable::random(config, &mut dice);
        let lines = ModelLines::new(config, table.peer.len(), &mut dice);
        let established = config.established();
        let node = |id| {
            let silent = id > 0 && id < established && dice.random_bool(config.silent);
            ModelNode::new(id < established, silent)
        };
        let nodes: Vec<ModelNode> = (0..config.nodes).map(node).collect();
        let mut beats: Vec<(u64, u32)> = (0..config.nodes)
            .map(|node| (dice.random_range(0..HEARTBEAT), node))
            .collect();
        beats.sort_unstable();
        let mut world = Self {
            config,
            now: 0,
            receipts: ModelReceipts::new(config),
            joining: JoiningNode::all(config),
            samples: ModelSamples::new(config),
            lines,
            processors: config.processors.as_ref().map(ModelProcessors::new),
            table,
            nodes,
            beats,
            dice,
            queue: ModelQueue::default(),
            counts: ModelCounts::default(),
            promises: BTreeMap::new(),
            scratch: Vec::new(),
        };
        let first = world.published(0);
        world.queue.push(first, 0, ModelEvent::Publish { block: 0 });
        for joining in &world.joining {
            let start = (joining.started, joining.node);
            world.queue.push(start.0, start.1, ModelEvent::Start);
        }
        world
    }

    /// Time at which a block is published, in ns.
    pub fn published(&self, block: u32) -> u64 {
        WARM_UP + u64::from(block) * self.config.block_time.as_nanos() as u64
    }

    /// Runs until nothing more can happen, at most a minute after the last block.
    pub fn run(&mut self) {
        let last = self.published(self.config.blocks - 1);
        let (mut round, mut position, mut busy) = (0, 0, 0);
        loop {
            let (offset, beating) = self.beats[position];
            let beat = round * HEARTBEAT + offset;
            let event = self.queue.next_at();
            let next = event.unwrap_or(u64::MAX).min(beat);
            if next > last + SETTLE || (event.is_none() && next > busy.max(last) + IDLE) {
                return;
            }
            self.sample_until(next);
            self.now = next;
            if beat <= next {
                self.heartbeat(beating);
                position += 1;
                if position == self.beats.len() {
                    (round, position) = (round + 1, 0);
                }
            } else if let Some((_, node, event)) = self.queue.pop() {
                busy = next;
                self.counts.events += 1;
                self.handle(node, event);
            }
        }
    }

    fn handle(&mut self, node: u32, event: ModelEvent) {
        match event {
            ModelEvent::Publish { block } => self.publish(block),
            ModelEvent::Reach { entry, block, hop } => self.on_reach(node, entry, block, hop),
            ModelEvent::Copy { entry, block, hop } => self.on_copy(node, entry, block, hop),
            ModelEvent::Checked { block, hop } => self.on_checked(node, block, hop),
            ModelEvent::Graft { entry } => self.on_graft(node, entry as usize),
            ModelEvent::Prune { entry } => self.on_prune(node, entry as usize),
            ModelEvent::Announce { entry, block } => self.on_announce(node, entry, block),
            ModelEvent::Request { entry, block } => self.on_request(node, entry, block),
            ModelEvent::Start => self.on_start(node),
            ModelEvent::Opened { entry } => self.on_opened(node, entry as usize),
            ModelEvent::Serve { entry, window } => self.on_serve(node, entry, window),
            ModelEvent::Piece {
                entry,
                window,
                left,
            } => self.send_piece(node, entry, window, left),
            ModelEvent::Arrive {
                entry,
                window,
                left,
            } => self.on_piece(node, entry, window, left),
            ModelEvent::Complete { entry, window } => self.on_response(node, entry, window),
            ModelEvent::Adopted => self.on_adopted(),
            ModelEvent::Imported => self.on_imported(node),
        }
    }

    fn sample_until(&mut self, time: u64) {
        while let Some(at) = self.samples.due(time) {
            let since = at.checked_sub(WARM_UP);
            let begun = since.map_or(0, |it| 1 + it / self.config.block_time.as_nanos() as u64);
            let blocks = begun.min(self.config.blocks.into()) as u32;
            let established = self.config.established() as usize;
            self.samples.take(at, blocks, &self.nodes[..established]);
        }
    }

    /// Sends a control message of `ids` message ids to the peer of `entry`.
    pub fn send_control(&mut self, node: u32, entry: usize, ids: u64, event: ModelEvent) {
        let peer = self.table.peer[entry];
        self.count_control(node, peer, ids);
        let at = self.lines.small(self.now, node, peer);
        self.queue.push(at, peer, event);
    }

    /// Counts the bytes of a control message at both ends.
    pub fn count_control(&mut self, from: u32, to: u32, ids: u64) {
        let bytes = FRAMING + ID * ids;
        self.nodes[from as usize].sent += bytes;
        self.nodes[to as usize].received += bytes;
    }

    pub fn way(&self, from: u32, entry: usize) -> LineWay {
        LineWay {
            from,
            to: self.table.peer[entry],
            entry,
        }
    }
}
