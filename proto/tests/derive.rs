//! The pipeline on chains that op-node derived: `../shared/fixtures/derivation-live`. From each
//! folder's L1 the pipeline must produce the attributes of every L2 block, and the same safe head
//! at each L1 block.

#[path = "derive/recorded.rs"]
mod recorded;

use alloy_primitives::{B64, B256};
use recorded::{Recording, lines, read};
use starling_proto::{
    attributes::FEE_RECIPIENT,
    derive::{DerivedAttributes, DropCounts, DropReason, L1Link, Need, Pipeline, PipelineStep},
    fork::Fork,
    payload::Payload,
};
use std::{collections::BTreeMap, sync::Arc};

/// op-node's safe head at each L1 block.
fn safe_heads(recording: &Recording) -> BTreeMap<u64, B256> {
    let path = format!("derivation-live/{}/safe-heads.jsonl.zst", recording.name);
    let heads = lines(&path).expect("the fixtures").into_iter();
    let heads = heads.filter(|line| line.get("error").is_none());
    heads
        .map(|line| {
            let number = line["l1"].as_u64().unwrap();
            (number, read(&line["safeHead"]["hash"]))
        })
        .collect()
}

impl Recording {
    fn block(&self, number: u64) -> &Arc<Payload> {
        &self.l2[usize::try_from(number - self.rollup.genesis.l2.number).unwrap()]
    }

    /// The first difference between the attributes and the recorded block with the same parent.
    fn difference(&self, derived: &DerivedAttributes) -> Option<&'static str> {
        let block = self.block(derived.parent.id.number + 1);
        let (header, attributes) = (&block.header, &derived.attributes);
        let inner = &attributes.payload_attributes;
        let active = |fork| self.rollup.forks.is_active(fork, header.timestamp);
        let eip1559 = attributes.eip_1559_params.map(|params| {
            let chain = self.rollup.chain_op_config.unwrap();
            if params != B64::ZERO {
                return params;
            }
            let denominator = u32::try_from(chain.eip1559_denominator_canyon.unwrap()).unwrap();
            let elasticity = u32::try_from(chain.eip1559_elasticity).unwrap();
            B64::from((u64::from(denominator) << 32 | u64::from(elasticity)).to_be_bytes())
        });
        let mut extra = Vec::new();
        if let Some(params) = eip1559 {
            extra.push(u8::from(active(Fork::Jovian)));
            extra.extend_from_slice(params.as_slice());
        }
        extra.extend(
            attributes
                .min_base_fee
                .iter()
                .flat_map(|fee| fee.to_be_bytes()),
        );
        [
            (derived.parent.id.hash == header.parent_hash, "parent"),
            (inner.timestamp == header.timestamp, "timestamp"),
            (inner.prev_randao == header.mix_hash, "randao"),
            (
                inner.suggested_fee_recipient == FEE_RECIPIENT,
                "fee recipient",
            ),
            (header.beneficiary == FEE_RECIPIENT, "beneficiary"),
            (attributes.gas_limit == Some(header.gas_limit), "gas limit"),
            (attributes.no_tx_pool == Some(true), "no_tx_pool"),
            (
                inner.parent_beacon_block_root == header.parent_beacon_block_root,
                "beacon root",
            ),
            (
                inner.withdrawals.is_some() == header.withdrawals_root.is_some(),
                "withdrawals",
            ),
            (extra == header.extra_data[..], "extra data"),
            (
                attributes.transactions.as_deref() == Some(&block.transactions[..]),
                "transactions",
            ),
        ]
        .into_iter()
        .find_map(|(is_equal, field)| (!is_equal).then_some(field))
    }
}

/// Random read failures and other events that must not change the result.
#[derive(Clone, Copy)]
struct Chaos {
    /// State of the random numbers; zero disables all events.
    state: u64,
    resets: Resets,
}

impl Chaos {
    /// Whether an event occurs now; `percent` is its probability.
    fn happens(&mut self, percent: u64) -> bool {
        if self.state == 0 {
            return false;
        }
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        (self.state >> 20) % 100 < percent
    }
}

/// The kind of random resets in a run.
#[derive(Clone, Copy, PartialEq)]
enum Resets {
    Never,
    /// Resets to the safe head.
    Plain,
    /// Resets to the safe head as of the beginning of the L1 block being derived from.
    Exact,
}

/// No events: every read succeeds at once.
const CALM: Chaos = Chaos {
    state: 0,
    resets: Resets::Never,
};

/// The result of a run.
#[derive(Debug, Default, PartialEq)]
struct Outcome {
    /// Numbers of the blocks whose derived transactions differ, which the test reports as invalid.
    invalid: Vec<u64>,
    /// The last local-safe head that was derived from each L1 block.
    safe: BTreeMap<u64, B256>,
    head: u64,
    drops: BTreeMap<DropReason, u64>,
}

struct Run<'a> {
    recording: &'a Recording,
    pipeline: Pipeline,
    chaos: Chaos,
    outcome: Outcome,
    /// Number of the local-safe head.
    safe: u64,
    /// The L1 block being derived from, and the local-safe head at its beginning.
    boundary: (u64, u64),
}

impl<'a> Run<'a> {
    fn new(recording: &'a Recording, chaos: Chaos) -> Self {
        let mut pipeline = Pipeline::new(recording.rollup.clone(), recording.schedule.clone());
        assert!(matches!(pipeline.step(), PipelineStep::Reset(_)));
        pipeline.reset(recording.l2[0].clone(), 0);
        Self {
            recording,
            pipeline,
            chaos,
            outcome: Outcome::default(),
            safe: recording.rollup.genesis.l2.number,
            boundary: (0, recording.rollup.genesis.l2.number),
        }
    }

    fn reset(&mut self) {
        if self.chaos.resets == Resets::Plain {
            let safe = self.recording.block(self.safe).clone();
            return self.pipeline.reset(safe, 0);
        }
        let (first, safe) = self.boundary;
        self.safe = safe;
        let safe = self.recording.block(safe).clone();
        self.pipeline.reset(safe, first);
    }

    /// Derives until L1 ends.
    fn finish(mut self) -> Outcome {
        loop {
            if self.chaos.resets != Resets::Never && self.chaos.happens(1) && self.chaos.happens(20)
            {
                self.reset();
            }
            match self.pipeline.step() {
                PipelineStep::More | PipelineStep::AwaitingVerdict => {}
                PipelineStep::Need(need) => self.answer(need),
                PipelineStep::Attributes(derived) => self.settle(&derived),
                PipelineStep::Idle { next, .. } => match self.recording.l1.get(&next) {
                    Some(input) => self.pipeline.push_l1(input.clone()).unwrap(),
                    None => break,
                },
                stop => panic!("{}: {stop:?}", self.recording.name),
            }
        }
        let drops: DropCounts = self.pipeline.drain_drops();
        self.outcome.drops = drops.iter().collect();
        self.outcome.head = self.pipeline.pending_safe().unwrap().id.number;
        self.outcome
    }

    fn answer(&mut self, need: Need) {
        if self.chaos.happens(30) {
            return match self.pipeline.step() {
                PipelineStep::Need(again) => assert_eq!(again, need, "a failed read"),
                other => panic!("{other:?} instead of {need:?}"),
            };
        }
        match need {
            Need::L1Block { number, link } => match self.recording.l1.get(&number) {
                Some(_) if self.chaos.happens(20) => self.pipeline.no_l1_yet(),
                Some(input) => {
                    let on_link = match link {
                        L1Link::Hash(hash) => input.block.hash == hash,
                        L1Link::ChildOf(parent) => input.block.parent_hash == parent,
                    };
                    assert!(on_link);
                    self.pipeline.push_l1(input.clone()).unwrap();
                }
                None => self.pipeline.no_l1_yet(),
            },
            Need::Blobs { block, blobs } => {
                assert!(self.pipeline.push_blobs(block.hash, &[]).is_err());
                let blobs: Vec<_> = blobs.iter().map(|blob| self.recording.blob(blob)).collect();
                self.pipeline.push_blobs(block.hash, &blobs).unwrap();
            }
            Need::L2Block { number, hash } => {
                let block = self.recording.block(number);
                assert!(hash.is_none_or(|hash| hash == block.hash));
                let other = self.recording.block(number + 1).clone();
                assert!(self.pipeline.push_l2(other).is_err());
                self.pipeline.push_l2(block.clone()).unwrap();
            }
        }
    }

    fn settle(&mut self, derived: &DerivedAttributes) {
        if self.chaos.happens(10) {
            assert!(matches!(
                self.pipeline.step(),
                PipelineStep::AwaitingVerdict
            ));
        }
        let number = derived.parent.id.number + 1;
        if derived.derived_from.number > self.boundary.0 {
            self.boundary = (derived.derived_from.number, self.safe);
        }
        if let Some(field) = self.recording.difference(derived) {
            assert_eq!(field, "transactions", "block {number}: {derived:?}");
            assert!(!derived.deposits_only, "block {number}: {derived:?}");
            self.outcome.invalid.push(number);
            return self.pipeline.invalid("refused by the test").unwrap();
        }
        let block = self.recording.block(number).clone();
        if derived.concluding {
            self.safe = number;
            let derived_from = derived.derived_from.number;
            self.outcome.safe.insert(derived_from, block.hash);
        }
        self.pipeline.accepted(block).unwrap();
    }
}

/// Derives a folder to its end and compares the safe head at each L1 block.
fn derive(recording: &Recording, chaos: Chaos) -> Outcome {
    let outcome = Run::new(recording, chaos).finish();
    assert_eq!(
        outcome.head as usize,
        recording.l2.len() - 1,
        "{}",
        recording.name
    );
    for (l1, expected) in &safe_heads(recording) {
        let genesis = recording.rollup.genesis.l2.hash;
        let (_, safe) = outcome
            .safe
            .range(..=l1)
            .next_back()
            .unwrap_or((&0, &genesis));
        assert_eq!(safe, expected, "{} at L1 block {l1}", recording.name);
    }
    outcome
}

macro_rules! recording {
    ($name:literal) => {
        match Recording::load($name) {
            Some(recording) => recording,
            None => return,
        }
    };
}

#[test]
fn every_fork_from_regolith_to_jovian_in_singular_batches() {
    let outcome = derive(&recording!("ladder-singular"), CALM);
    assert!(outcome.invalid.is_empty());
    assert!(outcome.drops.is_empty(), "{:?}", outcome.drops);
}

#[test]
fn span_batches_in_calldata() {
    let outcome = derive(&recording!("jovian-span"), CALM);
    assert!(outcome.invalid.is_empty());
    // The batcher posted again some blocks that it did not know to be safe.
    let flushed = [DropReason::ChannelFlushed, DropReason::FutureBatch];
    assert!(outcome.drops.keys().eq(&flushed), "{:?}", outcome.drops);
}

#[test]
fn span_batches_in_blobs() {
    let outcome = derive(&recording!("jovian-blobs"), CALM);
    assert!(outcome.invalid.is_empty());
    assert!(outcome.drops.is_empty(), "{:?}", outcome.drops);
}

/// Blocks 191 and 269 were posted with transactions that cannot execute (see `actions.jsonl`). Only
/// the deposits of these blocks remain.
#[test]
fn a_batcher_that_misbehaves() {
    let outcome = derive(&recording!("hostile-1"), CALM);
    assert_eq!(outcome.invalid, [191, 269]);
    use DropReason::*;
    let expected = [
        (Sender, 8),
        (Frames, 30),
        (Frame, 5),
        (ChannelTimeout, 3),
        (ChannelReplaced, 8),
        (Channel, 10),
        (ChannelFlushed, 10),
        (PastBatch, 280),
        (FutureBatch, 2),
        (BatchParent, 4),
        (BatchTransaction, 5),
        (InvalidBlock, 2),
    ];
    assert_eq!(outcome.drops, expected.into());
}

/// Seeds per folder: as many as `STARLING_DERIVE_SEEDS` says, or ten.
fn seeds() -> std::ops::RangeInclusive<u64> {
    let count = std::env::var("STARLING_DERIVE_SEEDS").ok();
    1..=count.map_or(10, |count| count.parse().unwrap())
}

/// Failing reads at any step change nothing, not even a count.
fn failing_reads(recording: &Recording) {
    let calm = derive(recording, CALM);
    for seed in seeds() {
        let chaos = Chaos {
            state: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15),
            resets: Resets::Never,
        };
        let outcome = derive(recording, chaos);
        assert_eq!(outcome, calm, "{} seed {seed}", recording.name);
    }
}

/// After resets at any step, the same chain is derived from the same L1 blocks.
fn resets(recording: &Recording, resets: Resets) {
    let calm = derive(recording, CALM);
    for seed in seeds() {
        let chaos = Chaos {
            state: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15),
            resets,
        };
        let outcome = derive(recording, chaos);
        assert_eq!(outcome.safe, calm.safe, "{} seed {seed}", recording.name);
    }
}

#[test]
fn failing_reads_change_nothing() {
    failing_reads(&recording!("ladder-singular"));
    failing_reads(&recording!("hostile-1"));
    failing_reads(&recording!("jovian-blobs"));
}

#[test]
fn resets_change_nothing() {
    resets(&recording!("ladder-singular"), Resets::Plain);
    resets(&recording!("ladder-singular"), Resets::Exact);
    resets(&recording!("hostile-1"), Resets::Exact);
}
