//! A verifier: the pipeline, an engine that executes nothing, and reads of L1 that may fail.

use crate::{network::MinedBlock, simulated::seal};
use alloy_primitives::{B256, Bytes};
use starling_proto::{
    config::RollupConfig,
    consolidate::consolidates,
    derive::{DerivedAttributes, Need, Pipeline, PipelineStep},
    fork::BlobSchedule,
    payload::Payload,
};
use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
};

/// Random events (xorshift); a state of 0 disables them.
#[derive(Clone, Copy, Debug)]
pub struct Faults(u64);

impl Faults {
    pub const NONE: Self = Self(0);

    pub fn seeded(seed: u64) -> Self {
        Self((seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// A random number below `bound`; always 0 if events are disabled.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 20) % bound
    }

    /// Whether an event occurs now; `percent` is its probability.
    pub fn happens(&mut self, percent: u64) -> bool {
        self.0 != 0 && self.below(100) < percent
    }
}

pub struct Verifier {
    pub pipeline: Pipeline,
    rollup: Arc<RollupConfig>,
    /// The derived chain; the index is the block number.
    pub chain: Vec<Arc<Payload>>,
    /// Transactions for which the engine refuses a block.
    pub refused: HashSet<Bytes>,
    /// Unsafe blocks that the verifier received before they were on L1, by number.
    pub heard: BTreeMap<u64, Arc<Payload>>,
    /// Number of unsafe blocks that matched the derived attributes.
    pub consolidated: u64,
    /// Number of each new local-safe head, with the number of the L1 block it was derived from.
    pub safe: Vec<(u64, u64)>,
    /// Versioned hashes of the blobs that the pipeline requested.
    pub fetched: Vec<B256>,
    pub faults: Faults,
    /// Number of L1 blocks that the verifier can see so far.
    visible: usize,
}

impl Verifier {
    pub fn new(rollup: Arc<RollupConfig>, schedule: BlobSchedule, genesis: Arc<Payload>) -> Self {
        let mut pipeline = Pipeline::new(rollup.clone(), schedule);
        pipeline.reset(genesis.clone(), 0);
        Self {
            pipeline,
            rollup,
            chain: vec![genesis],
            refused: HashSet::new(),
            heard: BTreeMap::new(),
            consolidated: 0,
            safe: Vec::new(),
            fetched: Vec::new(),
            faults: Faults::NONE,
            visible: 0,
        }
    }

    /// Restarts derivation from the block of this number.
    pub fn reset(&mut self, number: u64) {
        self.chain.truncate(number as usize + 1);
        self.safe.retain(|(safe, _)| *safe <= number);
        self.pipeline.reset(self.chain[number as usize].clone(), 0);
    }

    /// Derives until the pipeline has read all of `l1`, or stops.
    pub fn run(&mut self, l1: &[MinedBlock], blobs: &HashMap<B256, Bytes>) -> PipelineStep {
        if self.faults.0 == 0 {
            self.visible = l1.len();
        }
        for _ in 0..10_000_000 {
            if self.faults.happens(5) {
                self.push_ahead(l1);
            }
            match self.pipeline.step() {
                PipelineStep::More | PipelineStep::AwaitingVerdict => {}
                PipelineStep::Need(need) => self.answer(l1, blobs, need),
                PipelineStep::Attributes(derived) => self.settle(&derived),
                PipelineStep::Idle { next, .. } if (next as usize) < self.visible => {
                    let input = l1[next as usize].input.clone();
                    self.pipeline.push_l1(input).unwrap();
                }
                PipelineStep::Idle { .. } if self.visible < l1.len() => {
                    let piece = 1 + self.faults.below(4) as usize;
                    self.visible = l1.len().min(self.visible + piece);
                }
                stop => return stop,
            }
        }
        panic!("derivation does not end");
    }

    /// Pushes the next L1 block before the pipeline requests it.
    fn push_ahead(&mut self, l1: &[MinedBlock]) {
        let next = self.pipeline.origin().map(|origin| origin.number + 1);
        let next = next.filter(|next| (*next as usize) < self.visible);
        if let Some(next) = next {
            // Ignore the error: the block may have been pushed already.
            let _ = self.pipeline.push_l1(l1[next as usize].input.clone());
        }
    }

    fn answer(&mut self, l1: &[MinedBlock], blobs: &HashMap<B256, Bytes>, need: Need) {
        if self.faults.happens(30) {
            return match self.pipeline.step() {
                PipelineStep::Need(again) => assert_eq!(again, need, "after a failed read"),
                other => panic!("{other:?} instead of {need:?}"),
            };
        }
        match need {
            Need::L1Block { number, .. } => {
                if (number as usize) < self.visible && !self.faults.happens(20) {
                    let input = l1[number as usize].input.clone();
                    self.pipeline.push_l1(input).unwrap();
                } else {
                    self.pipeline.no_l1_yet();
                }
            }
            Need::L2Block { number, hash } => {
                let block = self.chain[number as usize].clone();
                assert!(hash.is_none_or(|hash| hash == block.hash));
                if self.faults.happens(20) && self.chain.len() > 1 {
                    let wrong = self.chain[usize::from(number == 0)].clone();
                    assert!(self.pipeline.push_l2(wrong).is_err());
                }
                self.pipeline.push_l2(block).unwrap();
            }
            Need::Blobs { block, blobs: refs } => {
                let hashes = refs.iter().map(|blob| blob.versioned_hash);
                let found: Vec<_> = hashes.clone().map(|hash| blobs[&hash].clone()).collect();
                if self.faults.happens(20) {
                    let some = &found[1..];
                    assert!(self.pipeline.push_blobs(block.hash, some).is_err());
                }
                self.fetched.extend(hashes);
                self.pipeline.push_blobs(block.hash, &found).unwrap();
            }
        }
    }

    fn settle(&mut self, derived: &DerivedAttributes) {
        while self.faults.happens(30) {
            assert!(matches!(
                self.pipeline.step(),
                PipelineStep::AwaitingVerdict
            ));
        }
        let number = derived.parent.id.number + 1;
        self.chain.truncate(number as usize);
        let parent = self.chain[number as usize - 1].clone();
        assert_eq!(parent.hash, derived.parent.id.hash);
        let mut transactions = derived.attributes.transactions.iter().flatten();
        if transactions.any(|raw| self.refused.contains(raw)) {
            return self.pipeline.invalid("refused by the test").unwrap();
        }
        let block = self.consolidate(derived, number);
        let block = block.unwrap_or_else(|| seal(&self.rollup, &parent, &derived.attributes));
        self.chain.push(block.clone());
        if derived.concluding {
            self.safe.push((number, derived.derived_from.number));
        }
        self.pipeline.accepted(block).unwrap();
    }

    /// Returns the unsafe block of this number if the block matches the derived attributes.
    /// Otherwise drops all unsafe blocks.
    fn consolidate(&mut self, derived: &DerivedAttributes, number: u64) -> Option<Arc<Payload>> {
        let block = self.heard.get(&number)?.clone();
        let parent = derived.parent.id.hash;
        if consolidates(&self.rollup, parent, &derived.attributes, &block).is_err() {
            self.heard.clear();
            return None;
        }
        self.consolidated += 1;
        Some(block)
    }
}
