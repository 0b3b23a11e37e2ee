//! Two verifiers on the same hostile L1. One derives each L1 block as it is mined. The other sees
//! L1 grow in pieces of random size, and its reads fail at random. Both must agree on every block,
//! on the L1 block that each safe head was derived from, and on every count.

use crate::{
    network::{L1_TIME, Network, START, rollup},
    transactions::{config_log, deposit, set_code},
    verifier::{Faults, Verifier},
};
use alloy_primitives::{Bytes, U256};
use starling_proto::{
    channel::ChannelCompression,
    config::RollupConfig,
    derive::{DropReason, PipelineStep},
    fork::Fork,
    payload::{BlockId, Payload},
};
use std::{collections::BTreeMap, sync::Arc};

/// Number of L1 blocks in each chain.
const L1_BLOCKS: u64 = 26;

/// Seeds of each test: as many as `STARLING_DERIVE_SEEDS` says, or 200.
fn seeds() -> u64 {
    let count = std::env::var("STARLING_DERIVE_SEEDS").ok();
    count.map_or(200, |count| count.parse().unwrap())
}

/// A batcher that usually posts valid data, and makes many kinds of mistakes.
struct HostileBatcher {
    network: Network,
    dice: Faults,
    /// Data items that are not posted yet, and some posted ones to be repeated.
    pending: Vec<Vec<u8>>,
    posted: Vec<Vec<u8>>,
    /// Number of the first block that is not in any data item yet.
    next: u64,
}

impl HostileBatcher {
    fn new(config: RollupConfig, seed: u64) -> Self {
        Self {
            network: Network::with(config),
            dice: Faults::seeded(seed),
            pending: Vec::new(),
            posted: Vec::new(),
            next: 1,
        }
    }

    fn step(&mut self) {
        for _ in 0..self.dice.below(7) {
            self.build();
        }
        for _ in 0..self.dice.below(4) {
            self.act();
        }
        self.configure();
        for _ in 0..self.dice.below(5) {
            self.post();
        }
        self.network.mine();
        self.network.derive();
        self.follow();
    }

    /// Builds an L2 block with a random number of transactions, some of them invalid.
    fn build(&mut self) {
        let network = &mut self.network;
        let mut transactions = Vec::new();
        for _ in 0..self.dice.below(3) {
            transactions.push(network.transaction());
        }
        if self.dice.happens(2) {
            transactions.push(set_code(self.dice.below(1 << 40)));
        }
        if self.dice.happens(3) {
            let refused = network.transaction();
            network.verifier.refused.insert(refused.clone());
            transactions.push(refused);
        }
        network.build(&transactions);
    }

    /// Performs one random action, which adds data items to the pending ones.
    fn act(&mut self) {
        let head = self.network.head().number();
        match self.dice.below(12) {
            0..=4 if self.next <= head => {
                let next = self.next;
                self.next = head + 1;
                self.enqueue(next, head);
            }
            5 if self.next + 2 < head => self.enqueue(self.next + 2, head),
            6 if head > 3 => {
                self.enqueue(self.next.min(head) - self.next.min(head).min(3) + 1, head)
            }
            7 => self.contradict(),
            8 => self.junk(),
            9 if !self.posted.is_empty() => {
                let again = self.dice.below(self.posted.len() as u64) as usize;
                self.pending.push(self.posted[again].clone());
            }
            10 => self.shuffle(),
            11 if head > 0 => self.break_a_batch(head),
            _ => {}
        }
    }

    /// Adds a channel with blocks `first..=last`, as a span or as singular batches.
    fn enqueue(&mut self, first: u64, last: u64) {
        let is_span = self.dice.happens(50);
        let batches = self.network.batches(first..=last, is_span);
        self.enqueue_batches(&batches);
    }

    fn enqueue_batches(&mut self, batches: &[Vec<u8>]) {
        let network = &mut self.network;
        network.compression = if network.is_fjord_next() && self.dice.happens(5) {
            ChannelCompression::Brotli9
        } else {
            ChannelCompression::Zlib
        };
        let pieces = 1 + self.dice.below(4) as usize;
        let mut frames = network.frames(batches, pieces);
        if self.dice.happens(5) {
            let last = frames.len() - 1;
            let data = &mut frames[last].data;
            let half = data.len() / 2;
            data.truncate(half);
        }
        if self.dice.happens(8) {
            frames.reverse();
        }
        let together = 1 + self.dice.below(3) as usize;
        let items = frames.chunks(together).map(starling_proto::frame::encode);
        self.pending.extend(items);
    }

    /// Adds a span of another branch, which forks off below the head.
    fn contradict(&mut self) {
        let chain = self.network.l2.clone();
        let kept = chain.len() - self.dice.below(6.min(chain.len() as u64)) as usize;
        self.network.l2.truncate(kept);
        let first = self.network.head().number() + 1;
        for _ in 0..1 + self.dice.below(4) {
            let user = [self.network.transaction()];
            self.network.build(&user);
        }
        let last = self.network.head().number();
        self.enqueue(first, last);
        self.network.l2 = chain;
    }

    fn junk(&mut self) {
        let length = self.dice.below(60);
        let mut item: Vec<u8> = (0..length).map(|_| self.dice.below(256) as u8).collect();
        if let Some(version) = item.first_mut() {
            *version = 0;
        }
        self.pending.push(item);
    }

    fn shuffle(&mut self) {
        for index in 1..self.pending.len() {
            let other = self.dice.below(index as u64 + 1) as usize;
            self.pending.swap(index, other);
        }
    }

    fn break_a_batch(&mut self, head: u64) {
        let number = 1 + self.dice.below(head);
        let mut batch = self.network.batch(number);
        match self.dice.below(6) {
            0 => batch.epoch_number += 1,
            1 => batch.timestamp += 1,
            2 => batch.parent_hash = batch.epoch_hash,
            3 => batch.transactions.push(Bytes::new()),
            4 => batch.transactions.push([0x7e].into()),
            _ => batch.epoch_hash = batch.parent_hash,
        }
        let mut batches = self.network.singular(number..=head);
        batches.insert(0, batch.encode());
        self.enqueue_batches(&batches);
    }

    /// Adds random logs of L1's contracts.
    fn configure(&mut self) {
        let network = &mut self.network;
        if self.dice.happens(10) {
            network.log(deposit(self.dice.below(256) as u8));
        }
        if self.dice.happens(5) {
            let limit = 20_000_000 + self.dice.below(1_000_000);
            network.log(config_log(2, &[U256::from(limit)]));
        }
        if self.dice.happens(3) {
            network.log(config_log(200, &[U256::ZERO]));
        }
    }

    /// Posts the first pending data item, if any, sometimes from another account or in a blob.
    fn post(&mut self) {
        if self.pending.is_empty() {
            return;
        }
        let item = self.pending.remove(0);
        if !self.dice.happens(3) {
            self.posted.push(item.clone());
        }
        if self.dice.happens(4) {
            self.network.batcher = crate::network::STRANGER;
        }
        if self.dice.happens(20) {
            self.network.post_blobs(&[item]);
        } else {
            self.network.post(item);
        }
        self.network.batcher = crate::network::BATCHER;
    }

    /// If the safe chain differs from the sequencer's or is longer, the sequencer adopts it, and
    /// the batcher continues from its head.
    fn follow(&mut self) {
        let (chain, safe) = (&self.network.l2, &self.network.verifier.chain);
        let agree = chain.iter().zip(safe).all(|(a, b)| a.hash == b.hash);
        if !agree || safe.len() > chain.len() {
            self.network.l2.clone_from(safe);
            self.next = self.network.head().number() + 1;
        } else if self.dice.happens(10) {
            self.next = safe.len() as u64;
        }
    }
}

/// The results in which two verifiers must agree.
#[derive(Debug, PartialEq)]
struct SeedResult {
    chain: Vec<BlockId>,
    safe: Vec<(u64, u64)>,
    drops: BTreeMap<DropReason, u64>,
}

impl SeedResult {
    fn of(verifier: &mut Verifier) -> Self {
        let id = |block: &Arc<Payload>| block.id();
        Self {
            chain: verifier.chain.iter().map(id).collect(),
            safe: verifier.safe.clone(),
            drops: verifier.pipeline.drain_drops().iter().collect(),
        }
    }
}

/// Derives the L1 of a seed twice. Returns the number of blocks with user transactions, and the
/// drop counts.
fn derive_twice(config: &RollupConfig, seed: u64) -> (u64, BTreeMap<DropReason, u64>) {
    let mut hostile = HostileBatcher::new(config.clone(), seed);
    for _ in 0..L1_BLOCKS {
        hostile.step();
    }
    let mut network = hostile.network;
    let calm = SeedResult::of(&mut network.verifier);
    let genesis = network.verifier.chain[0].clone();
    let schedule = network.schedule.clone();
    let mut verifier = Verifier::new(network.rollup.clone(), schedule, genesis);
    verifier.refused.clone_from(&network.verifier.refused);
    verifier.faults = Faults::seeded(seed ^ (1 << 40));
    let stop = verifier.run(&network.l1, &network.blobs);
    assert!(
        matches!(stop, PipelineStep::Idle { .. }),
        "seed {seed}: {stop:?}"
    );
    assert_eq!(SeedResult::of(&mut verifier), calm, "seed {seed}");
    let contents = network.contents();
    let with_users = contents.iter().filter(|(_, user)| *user > 0).count() as u64;
    (with_users, calm.drops)
}

/// Runs every seed. Checks that some blocks were derived, and that each of `reasons` caused a drop.
fn all_seeds(config: &RollupConfig, reasons: &[DropReason]) {
    let (mut blocks, mut drops) = (0, BTreeMap::<_, u64>::new());
    for seed in 0..seeds() {
        let (with_users, dropped) = derive_twice(config, seed);
        blocks += with_users;
        for (reason, count) in dropped {
            *drops.entry(reason).or_default() += count;
        }
    }
    println!(
        "{} seeds, {blocks} blocks with transactions, {drops:?}",
        seeds()
    );
    assert!(blocks >= 5 * seeds());
    if seeds() >= 100 {
        let missing = reasons.iter().filter(|reason| !drops.contains_key(reason));
        assert_eq!(missing.collect::<Vec<_>>(), [] as [&DropReason; 0]);
    }
}

use DropReason::*;

/// Drop reasons that occur in both batch stages.
const COMMON: [DropReason; 13] = [
    ConfigLog,
    Sender,
    Frames,
    Frame,
    Channel,
    PastBatch,
    BatchParent,
    BatchWindow,
    BatchOrigin,
    BatchTransaction,
    SpanOverlap,
    SpanRest,
    InvalidBlock,
];

#[test]
fn failing_reads_change_nothing_before_holocene() {
    all_seeds(
        &rollup(Fork::Fjord),
        &[&COMMON[..], &[ChannelTimeout]].concat(),
    );
}

#[test]
fn failing_reads_change_nothing_since_holocene() {
    let holocene = [FrameOrder, ChannelReplaced, ChannelFlushed, FutureBatch];
    all_seeds(&rollup(Fork::Isthmus), &[&COMMON[..], &holocene].concat());
}

#[test]
fn failing_reads_change_nothing_as_holocene_activates() {
    let mut config = rollup(Fork::Ecotone);
    for (fork, number) in [
        (Fork::Fjord, 5),
        (Fork::Granite, 9),
        (Fork::Holocene, 13),
        (Fork::Isthmus, 17),
    ] {
        config.forks = config.forks.with(fork, Some(START + number * L1_TIME));
    }
    all_seeds(&config, &COMMON);
}
