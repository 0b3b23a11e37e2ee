//! A pipeline with an engine that executes nothing, and with reads that may fail.

use super::batcher::FuzzBatcher;
use alloy_consensus::Header;
use alloy_primitives::{Address, B256, Bytes, keccak256};
use starling_proto::{
    config::RollupConfig,
    derive::{DerivedAttributes, DropReason, Need, Pipeline, PipelineStep},
    fork::{BlobSchedule, Fork, ForkSchedule},
    l1info::L1BlockInfo,
    payload::Payload,
    system_config::Eip1559Params,
};
use std::{collections::BTreeMap, sync::Arc};

/// Time of the L1 and L2 genesis blocks, in Unix seconds.
pub const START: u64 = 1_000_000;
pub const L1_TIME: u64 = 6;
pub const L2_TIME: u64 = 2;
pub const BATCHER: Address = Address::repeat_byte(0xba);
pub const PORTAL: Address = Address::repeat_byte(0xde);
pub const CONFIG: Address = Address::repeat_byte(0xc0);
/// Last byte of the transactions that the engine refuses.
pub const INVALID: u8 = 0xee;

/// A chain in one fork, or a chain on which Fjord, Granite and Holocene activate.
pub fn rollup(byte: u8) -> Arc<RollupConfig> {
    let json = serde_json::json!({
        "genesis": {
            "l1": { "hash": l1_hash(0), "number": 0 },
            "l2": { "hash": B256::repeat_byte(0x22), "number": 0 },
            "l2_time": START,
            "system_config": {
                "batcherAddr": BATCHER,
                "overhead": B256::ZERO,
                "scalar": B256::with_last_byte(1),
                "gasLimit": 30_000_000,
            },
        },
        "block_time": L2_TIME,
        "max_sequencer_drift": 20,
        "seq_window_size": 8,
        "channel_timeout": 4,
        "l1_chain_id": 900,
        "l2_chain_id": 901,
        "batch_inbox_address": Address::repeat_byte(0xff),
        "deposit_contract_address": PORTAL,
        "l1_system_config_address": CONFIG,
        "chain_op_config": {
            "eip1559Elasticity": 6,
            "eip1559Denominator": 50,
            "eip1559DenominatorCanyon": 250,
        },
    });
    let mut rollup = RollupConfig::from_json(&json.to_string()).expect("a rollup.json");
    let forks = &Fork::ALL[1..];
    rollup.forks = match forks.get(usize::from(byte) % (forks.len() + 1)) {
        Some(fork) => ForkSchedule::from_genesis(*fork),
        None => [(Fork::Fjord, 4), (Fork::Granite, 6), (Fork::Holocene, 9)]
            .into_iter()
            .fold(
                ForkSchedule::from_genesis(Fork::Ecotone),
                |forks, (fork, l1)| forks.with(fork, Some(START + l1 * L1_TIME)),
            ),
    };
    Arc::new(rollup)
}

pub fn l1_hash(number: u64) -> B256 {
    keccak256(number.to_be_bytes())
}

/// Random read failures (xorshift); a state of 0 means none.
#[derive(Clone, Copy, Debug)]
pub struct ReadFaults(u64);

impl ReadFaults {
    pub const NONE: Self = Self(0);

    /// The failures for an input, seeded by its hash.
    pub fn of(data: &[u8]) -> Self {
        let word = keccak256(data)
            .0
            .first_chunk()
            .map(|word| u64::from_be_bytes(*word));
        Self(word.unwrap_or_default() | 1)
    }

    /// Whether a failure occurs now; `percent` is its probability.
    fn happens(&mut self, percent: u64) -> bool {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 20) % 100 < percent && self.0 != 0
    }
}

/// The results in which two replicas of the same L1 must agree.
#[derive(Debug, PartialEq)]
pub struct ReplicaResult {
    pub chain: Vec<B256>,
    /// Number of blocks with transactions other than deposits.
    pub with_users: usize,
    /// Local-safe heads, each with the L1 block it was derived from.
    pub safe: Vec<(u64, u64)>,
    pub drops: BTreeMap<DropReason, u64>,
    /// The reason why derivation ended before the end of L1.
    pub stop: Option<String>,
}

pub struct Replica {
    pipeline: Pipeline,
    pub rollup: Arc<RollupConfig>,
    pub chain: Vec<Arc<Payload>>,
    safe: Vec<(u64, u64)>,
    faults: ReadFaults,
    /// Number of L1 blocks that the replica can see so far.
    visible: usize,
    pub steps: u64,
    stop: Option<String>,
}

impl Replica {
    pub fn new(rollup: Arc<RollupConfig>, faults: ReadFaults) -> Self {
        let header = Header {
            timestamp: START,
            gas_limit: 30_000_000,
            ..Header::default()
        };
        let genesis = Arc::new(Payload {
            hash: rollup.genesis.l2.hash,
            header,
            transactions: Vec::new(),
            ethereum: None,
        });
        let mut pipeline = Pipeline::new(rollup.clone(), BlobSchedule::default());
        pipeline.reset(genesis.clone(), 0);
        Self {
            pipeline,
            rollup,
            chain: vec![genesis],
            safe: Vec::new(),
            faults,
            visible: 0,
            steps: 0,
            stop: None,
        }
    }

    /// The head of the derived chain.
    pub fn head(&self) -> &Arc<Payload> {
        &self.chain[self.chain.len() - 1]
    }

    /// Number of the head's L1 origin.
    pub fn origin(&self) -> u64 {
        L1BlockInfo::of(self.head()).map_or(0, |info| info.number)
    }

    /// Derives until all of L1 is read, or the pipeline stops.
    pub fn derive(&mut self, l1: &FuzzBatcher<'_>) {
        if self.faults.0 == 0 {
            self.visible = l1.l1.len();
        }
        while self.stop.is_none() {
            self.steps += 1;
            match self.pipeline.step() {
                PipelineStep::More | PipelineStep::AwaitingVerdict => {}
                PipelineStep::Need(need) => self.answer(l1, need),
                PipelineStep::Attributes(derived) => self.settle(&derived),
                PipelineStep::Idle { next, .. } if (next as usize) < self.visible => {
                    let input = l1.l1[next as usize].clone();
                    self.pipeline.push_l1(input).expect("the next L1 block");
                }
                PipelineStep::Idle { .. } if self.visible < l1.l1.len() => self.visible += 1,
                PipelineStep::Idle { .. } => return,
                stop => self.stop = Some(format!("{stop:?}")),
            }
        }
    }

    fn answer(&mut self, l1: &FuzzBatcher<'_>, need: Need) {
        if self.faults.happens(30) {
            return;
        }
        match need {
            Need::L1Block { number, .. } if (number as usize) < self.visible => {
                let input = l1.l1[number as usize].clone();
                self.pipeline.push_l1(input).expect("the L1 block needed");
            }
            Need::L1Block { .. } => self.pipeline.no_l1_yet(),
            Need::L2Block { number, .. } => {
                let block = self.chain[number as usize].clone();
                self.pipeline.push_l2(block).expect("the L2 block needed");
            }
            Need::Blobs { block, blobs } => {
                let hashes = blobs.iter().map(|blob| blob.versioned_hash);
                let blobs: Vec<Bytes> = hashes.map(|hash| l1.blobs[&hash].clone()).collect();
                if self.faults.happens(30) {
                    assert!(self.pipeline.push_blobs(block.hash, &blobs[1..]).is_err());
                    return;
                }
                let pushed = self.pipeline.push_blobs(block.hash, &blobs);
                pushed.expect("the blobs needed");
            }
        }
    }

    fn settle(&mut self, derived: &DerivedAttributes) {
        if self.faults.happens(30) {
            assert!(matches!(
                self.pipeline.step(),
                PipelineStep::AwaitingVerdict
            ));
        }
        let number = derived.parent.id.number + 1;
        self.chain.truncate(number as usize);
        assert_eq!(self.head().hash, derived.parent.id.hash);
        let mut transactions = derived.attributes.transactions.iter().flatten();
        let is_invalid = |raw: &Bytes| raw.first() != Some(&0x7e) && raw.last() == Some(&INVALID);
        if transactions.any(is_invalid) {
            return self
                .pipeline
                .invalid("refused by the test")
                .expect("a verdict");
        }
        let block = self.seal(derived);
        self.chain.push(block.clone());
        if derived.concluding {
            self.safe.push((number, derived.derived_from.number));
        }
        self.pipeline.accepted(block).expect("the block asked for");
    }

    fn seal(&self, derived: &DerivedAttributes) -> Arc<Payload> {
        let attributes = &derived.attributes;
        let mut extra_data = Vec::new();
        if let Some(params) = attributes.eip_1559_params {
            let mut params = Eip1559Params::decode(params);
            if params.denominator == 0 {
                (params.denominator, params.elasticity) = (250, 6);
            }
            extra_data.push(u8::from(attributes.min_base_fee.is_some()));
            extra_data.extend_from_slice(params.encode().as_slice());
        }
        let fee = attributes.min_base_fee.iter();
        extra_data.extend(fee.flat_map(|fee| fee.to_be_bytes()));
        let transactions = attributes.transactions.clone().unwrap_or_default();
        let header = Header {
            parent_hash: derived.parent.id.hash,
            number: derived.parent.id.number + 1,
            timestamp: attributes.payload_attributes.timestamp,
            gas_limit: attributes.gas_limit.unwrap_or_default(),
            extra_data: extra_data.into(),
            transactions_root: keccak256(transactions.concat()),
            ..Header::default()
        };
        Arc::new(Payload::sealed(header, transactions))
    }

    /// Returns the result, and resets the pipeline's drop counts.
    pub fn result(&mut self) -> ReplicaResult {
        let has_user = |block: &&Arc<Payload>| {
            let mut transactions = block.transactions.iter();
            transactions.any(|raw| raw.first() != Some(&0x7e))
        };
        ReplicaResult {
            chain: self.chain.iter().map(|block| block.hash).collect(),
            with_users: self.chain.iter().filter(has_user).count(),
            safe: self.safe.clone(),
            drops: self.pipeline.drain_drops().iter().collect(),
            stop: self.stop.clone(),
        }
    }
}
