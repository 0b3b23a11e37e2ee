//! Time on the way: access lines and links of the model's nodes.
//!
//! Copies that a node sends at once share its upload and arrive together, as the kernel divides a
//! line between connections. Later copies wait until the earlier ones are sent. Nodes on one rung
//! have its delay between them, and nodes on two rungs the mean of both.

use super::config::{BandwidthScope, ModelConfig};
use crate::{DirectionConditions, LinkConditions, SEGMENT};
use rand::{Rng, SeedableRng, distr::weighted::WeightedIndex, prelude::Distribution, rngs::StdRng};
use std::time::Duration;

/// Largest piece of a message that one loss stalls, in bytes, as in the lab's links.
const CHUNK: u64 = 64 << 10;
/// Largest number of losses of one segment in a row.
const MAX_LOSSES: u32 = 6;

/// Conditions between two classes of nodes, from the first to the second.
#[derive(Clone, Copy, Debug, Default)]
struct PairConditions {
    /// Nanoseconds.
    delay: u64,
    jitter: u64,
    retransmission: u64,
    loss: f64,
    /// Nanoseconds per byte of the slower side; zero is unlimited.
    per_byte: f64,
}

/// All lines of the network, with the time until which each is busy.
pub(super) struct ModelLines {
    scope: BandwidthScope,
    /// Index of each node's rung.
    class: Vec<u8>,
    classes: usize,
    pairs: Vec<PairConditions>,
    /// Nanoseconds per byte by class.
    up: Vec<f64>,
    down: Vec<f64>,
    /// Time until which a node's upload, or a connection's entry, is busy.
    up_busy: Vec<u64>,
    down_busy: Vec<u64>,
    dice: StdRng,
}

impl ModelLines {
    /// Lines for `config`, and for `entries` entries of connections.
    pub fn new(config: &ModelConfig, entries: usize, dice: &mut StdRng) -> Self {
        let rungs: Vec<LinkConditions> = config.links.iter().map(|it| it.rung.conditions).collect();
        let weights = WeightedIndex::new(config.links.iter().map(|it| it.weight));
        let weights = weights.expect("checked weights are positive");
        let class = (0..config.nodes)
            .map(|_| weights.sample(dice) as u8)
            .collect();
        let pairs = rungs
            .iter()
            .flat_map(|from| rungs.iter().map(|to| pair(from, to)));
        let lines = match config.scope {
            BandwidthScope::Node => config.nodes as usize,
            BandwidthScope::Link => entries,
        };
        Self {
            scope: config.scope,
            class,
            classes: rungs.len(),
            pairs: pairs.collect(),
            up: rungs.iter().map(|rung| per_byte(&rung.up)).collect(),
            down: rungs.iter().map(|rung| per_byte(&rung.down)).collect(),
            up_busy: vec![0; lines],
            down_busy: vec![0; config.nodes as usize],
            dice: StdRng::from_rng(dice),
        }
    }

    fn pair(&self, from: u32, to: u32) -> &PairConditions {
        let [from, to] = [from, to].map(|node| usize::from(self.class[node as usize]));
        &self.pairs[from * self.classes + to]
    }

    /// Delay without jitter from one node to another, in ns.
    pub fn delay(&self, from: u32, to: u32) -> u64 {
        self.pair(from, to).delay
    }

    /// Arrival of a small message, which waits for no line.
    pub fn small(&mut self, now: u64, from: u32, to: u32) -> u64 {
        now + self.travel(from, to, 1)
    }

    /// Time that a message would wait now before it is sent. `entry` is in the sender's row.
    pub fn wait(&self, now: u64, from: u32, entry: usize) -> u64 {
        self.up_busy[self.line(from, entry)].saturating_sub(now)
    }

    /// Occupies the line for `copies` copies of `bytes` bytes, which share it. Returns the times at
    /// which the line begins and ends to send them. With a line for each link call it once for each
    /// copy.
    pub fn occupy(&mut self, now: u64, way: LineWay, copies: u64, bytes: u64) -> (u64, u64) {
        let per_byte = match self.scope {
            BandwidthScope::Node => self.up[usize::from(self.class[way.from as usize])],
            BandwidthScope::Link => self.pair(way.from, way.to).per_byte,
        };
        let line = self.line(way.from, way.entry);
        let begin = now.max(self.up_busy[line]);
        let end = begin + (per_byte * (copies * bytes) as f64) as u64;
        self.up_busy[line] = end;
        (begin, end)
    }

    /// Time at which the last byte is at the receiver's access line, if the sender sent the message
    /// from `begin` to `end`. A slower line at the receiver takes longer from the first byte on.
    pub fn reaches(&mut self, way: LineWay, (begin, end): (u64, u64), bytes: u64) -> u64 {
        let travel = self.travel(way.from, way.to, bytes);
        (end + travel).max(begin + travel + self.receive_time(way.to, bytes))
    }

    /// Whether copies must queue at the receiver's access line.
    pub fn queues(&self, to: u32) -> bool {
        self.scope == BandwidthScope::Node && self.down[usize::from(self.class[to as usize])] > 0.0
    }

    /// Time at which a message is received whose last byte is at the access line now.
    pub fn receive(&mut self, now: u64, to: u32, bytes: u64) -> u64 {
        let time = self.receive_time(to, bytes);
        let busy = &mut self.down_busy[to as usize];
        *busy = now.max(*busy + time);
        *busy
    }

    fn receive_time(&self, to: u32, bytes: u64) -> u64 {
        match self.scope {
            BandwidthScope::Link => 0,
            BandwidthScope::Node => {
                (self.down[usize::from(self.class[to as usize])] * bytes as f64) as u64
            }
        }
    }

    fn line(&self, from: u32, entry: usize) -> usize {
        match self.scope {
            BandwidthScope::Node => from as usize,
            BandwidthScope::Link => entry,
        }
    }

    /// Delay, jitter and stalls of a message.
    fn travel(&mut self, from: u32, to: u32, bytes: u64) -> u64 {
        let pair = *self.pair(from, to);
        let mut time = pair.delay;
        if pair.jitter > 0 {
            time += self.dice.random_range(0..=2 * pair.jitter);
            time = time.saturating_sub(pair.jitter);
        }
        if pair.loss > 0.0 {
            for chunk in 0..bytes.div_ceil(CHUNK) {
                let size = CHUNK.min(bytes - chunk * CHUNK);
                let passes = (1.0 - pair.loss).powf(size.div_ceil(SEGMENT as u64) as f64);
                let mut losses = u32::from(self.dice.random::<f64>() >= passes);
                while losses > 0 && losses < MAX_LOSSES && self.dice.random_bool(pair.loss) {
                    losses += 1;
                }
                time += pair.retransmission * (2_u64.pow(losses) - 1);
            }
        }
        time
    }
}

/// A message's way: both ends, and the entry in the sender's row.
#[derive(Clone, Copy)]
pub(super) struct LineWay {
    pub from: u32,
    pub to: u32,
    pub entry: usize,
}

fn ns(time: Duration) -> u64 {
    time.as_nanos() as u64
}

/// Nanoseconds per byte, zero if unlimited.
fn per_byte(direction: &DirectionConditions) -> f64 {
    direction
        .bandwidth
        .map_or(0.0, |it| 1e9 / it.rate.get() as f64)
}

fn pair(from: &LinkConditions, to: &LinkConditions) -> PairConditions {
    let (up, down) = (from.up, to.down);
    PairConditions {
        delay: ns(up.delay + down.delay) / 2,
        jitter: ns(up.jitter + down.jitter) / 2,
        retransmission: ns(from.retransmission() + to.retransmission()) / 2,
        loss: (up.loss + down.loss) / 2.0,
        per_byte: per_byte(&from.up).max(per_byte(&to.down)),
    }
}
