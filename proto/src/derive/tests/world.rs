//! A small L1 and L2 for tests: an L1 that mines on command, an execution engine that executes
//! nothing, and a batcher's encoder that is independent of the real one.

pub use super::simulated::{BATCHER, L2_TIME, START};

use super::simulated::{self, CONFIG, PORTAL, seal};
use crate::{
    attributes::{L1Block, attributes},
    batch::SingularBatch,
    config::RollupConfig,
    config_update::CONFIG_UPDATE_EVENT,
    deposit::deposit_to_log,
    derive::*,
    fork::{BlobSchedule, Fork},
    frame::{self, ChannelId, Frame},
    l1info::{L1BlockInfo, L2BlockRef},
    payload::Payload,
};
use alloy_primitives::{Address, B256, Bytes, Log, LogData, U256, keccak256};
use op_alloy_consensus::TxDeposit;
use std::{collections::HashMap, io::Write as _, sync::Arc};

pub const STRANGER: Address = Address::repeat_byte(0x57);
pub const L1_TIME: u64 = 6;
pub const WINDOW: u64 = 10;
/// Channel timeout before Granite, in L1 blocks.
pub const TIMEOUT: u64 = 4;

/// A rollup with every fork up to `fork` active from genesis.
pub fn rollup(fork: Fork) -> RollupConfig {
    RollupConfig {
        max_sequencer_drift: 20,
        seq_window_size: WINDOW,
        channel_timeout: TIMEOUT,
        ..simulated::rollup(fork, l1_hash(0, 0))
    }
}

fn l1_hash(number: u64, branch: u64) -> B256 {
    keccak256([number.to_be_bytes(), branch.to_be_bytes()].concat())
}

/// A legacy transaction without replay protection. Nothing checks its signature.
pub fn transaction(nonce: u64) -> Bytes {
    let signature = U256::from(0x5151);
    let mut fields = Vec::new();
    for number in [nonce, 7, 21_000] {
        alloy_rlp::Encodable::encode(&number, &mut fields);
    }
    alloy_rlp::Encodable::encode(&Address::repeat_byte(0x70), &mut fields);
    alloy_rlp::Encodable::encode(&9u64, &mut fields);
    alloy_rlp::Encodable::encode(&Bytes::new(), &mut fields);
    alloy_rlp::Encodable::encode(&27u64, &mut fields);
    alloy_rlp::Encodable::encode(&signature, &mut fields);
    alloy_rlp::Encodable::encode(&signature, &mut fields);
    let mut raw = Vec::new();
    let header = alloy_rlp::Header {
        list: true,
        payload_length: fields.len(),
    };
    header.encode(&mut raw);
    raw.extend(fields);
    raw.into()
}

pub struct World {
    pub rollup: Arc<RollupConfig>,
    pub l1: Vec<L1Input>,
    /// The chain that the engine has accepted; the index is the block number.
    pub chain: Vec<Arc<Payload>>,
    /// Transactions for which the engine refuses a block.
    pub invalid: Vec<Bytes>,
    /// Blobs by versioned hash.
    pub blobs: HashMap<B256, Bytes>,
    /// Versioned hashes that the pipeline requested.
    pub fetched: Vec<B256>,
    pub pipeline: Pipeline,
    /// Number of each new local-safe head, with the number of the L1 block it was derived from.
    pub safe: Vec<(u64, u64)>,
    branch: u64,
    channels: u8,
}

impl World {
    pub fn new(rollup: RollupConfig) -> Self {
        let rollup = Arc::new(rollup);
        let genesis = simulated::genesis(&rollup);
        let mut pipeline = Pipeline::new(rollup.clone(), BlobSchedule::default());
        pipeline.reset(genesis.clone(), 0);
        let mut world = Self {
            rollup,
            l1: Vec::new(),
            chain: vec![genesis],
            invalid: Vec::new(),
            blobs: HashMap::new(),
            fetched: Vec::new(),
            pipeline,
            safe: Vec::new(),
            branch: 0,
            channels: 0,
        };
        world.mine([]);
        world
    }

    /// Mines an L1 block in which the batcher posts these data items, and returns the block.
    pub fn mine<const N: usize>(&mut self, items: [Vec<u8>; N]) -> &mut L1Input {
        let number = self.l1.len() as u64;
        let inbox = items.into_iter().map(|item| InboxTransaction {
            sender: BATCHER,
            calldata: item.into(),
            blobs: Vec::new(),
        });
        self.l1.push(L1Input {
            block: L1Block {
                number,
                hash: l1_hash(number, self.branch),
                parent_hash: self.l1.last().map(|l1| l1.block.hash).unwrap_or_default(),
                time: START + number * L1_TIME,
                base_fee: 7,
                ..L1Block::default()
            },
            logs: RelevantLogs::default(),
            inbox: inbox.collect(),
        });
        self.l1.last_mut().unwrap()
    }

    /// Mines empty L1 blocks until L1's head has this number.
    pub fn mine_to(&mut self, number: u64) {
        while (self.l1.len() as u64) <= number {
            self.mine([]);
        }
    }

    /// Removes the L1 blocks from this number on. Blocks mined afterwards have different hashes.
    pub fn fork_l1(&mut self, number: u64) {
        self.l1.truncate(number as usize);
        self.branch += 1;
    }

    /// The block that a sequencer would build on `parent`, with the L1 origin of number `epoch`.
    pub fn block(&self, parent: &Payload, epoch: u64, transactions: &[Bytes]) -> Arc<Payload> {
        let origin = &self.l1[epoch as usize];
        let receipts = origin.logs.to_receipts();
        let schedule = BlobSchedule::default();
        let derived = attributes(
            &self.rollup,
            &schedule,
            parent,
            &origin.block,
            Some(&receipts),
        );
        let mut attributes = derived.unwrap().attributes;
        let all = attributes.transactions.get_or_insert_default();
        all.extend_from_slice(transactions);
        seal(&self.rollup, parent, &attributes)
    }

    /// Consecutive blocks on `parent`, one for each (epoch, transactions).
    pub fn blocks(&self, parent: &Payload, blocks: &[(u64, &[Bytes])]) -> Vec<Arc<Payload>> {
        let mut built: Vec<Arc<Payload>> = Vec::new();
        for (epoch, transactions) in blocks {
            let parent = built.last().map_or(parent, |last| last);
            built.push(self.block(parent, *epoch, transactions));
        }
        built
    }

    /// Derives until the pipeline is idle or stops.
    pub fn run(&mut self) -> PipelineStep {
        for _ in 0..1_000_000 {
            match self.pipeline.step() {
                PipelineStep::More => {}
                PipelineStep::Need(need) => self.answer(need),
                PipelineStep::Attributes(derived) => self.settle(&derived),
                PipelineStep::Idle { next, .. } if (next as usize) < self.l1.len() => {
                    let input = self.l1[next as usize].clone();
                    self.pipeline.push_l1(input).unwrap();
                }
                stop => return stop,
            }
        }
        panic!("no end");
    }

    /// Derives until idle. Returns the epochs and user transactions of the blocks after genesis.
    pub fn derive(&mut self) -> Vec<(u64, Vec<Bytes>)> {
        let stop = self.run();
        assert!(matches!(stop, PipelineStep::Idle { .. }), "{stop:?}");
        self.contents()
    }

    /// Epochs and user transactions of the blocks after genesis.
    pub fn contents(&self) -> Vec<(u64, Vec<Bytes>)> {
        let chain = self.chain[1..].iter();
        chain.map(|payload| self.content(payload)).collect()
    }

    fn content(&self, payload: &Payload) -> (u64, Vec<Bytes>) {
        let user = payload.transactions.iter();
        let user = user.filter(|transaction| transaction[0] != 0x7e);
        let epoch = L1BlockInfo::of(payload).unwrap().number;
        (epoch, user.cloned().collect())
    }

    pub fn answer(&mut self, need: Need) {
        match need {
            Need::L1Block { number, .. } => match self.l1.get(number as usize) {
                Some(input) => self.pipeline.push_l1(input.clone()).unwrap(),
                None => self.pipeline.no_l1_yet(),
            },
            Need::L2Block { number, .. } => {
                let block = self.chain[number as usize].clone();
                self.pipeline.push_l2(block).unwrap();
            }
            Need::Blobs { block, blobs } => {
                let hashes = blobs.iter().map(|blob| blob.versioned_hash);
                self.fetched.extend(hashes.clone());
                let blobs: Vec<_> = hashes.map(|hash| self.blobs[&hash].clone()).collect();
                self.pipeline.push_blobs(block.hash, &blobs).unwrap();
            }
        }
    }

    fn settle(&mut self, derived: &DerivedAttributes) {
        let number = derived.parent.id.number;
        self.chain.truncate(number as usize + 1);
        let parent = self.chain.last().unwrap().clone();
        assert_eq!(parent.hash, derived.parent.id.hash);
        let transactions = derived.attributes.transactions.iter().flatten();
        if transactions.into_iter().any(|tx| self.invalid.contains(tx)) {
            return self.pipeline.invalid("refused by the test").unwrap();
        }
        let block = seal(&self.rollup, &parent, &derived.attributes);
        self.chain.push(block.clone());
        if derived.concluding {
            self.safe.push((number + 1, derived.derived_from.number));
        }
        self.pipeline.accepted(block).unwrap();
    }

    /// The batch of a block.
    pub fn batch(&self, block: &Payload) -> SingularBatch {
        let origin = L2BlockRef::of(block, &self.rollup.genesis).unwrap().origin;
        SingularBatch {
            parent_hash: block.parent_hash(),
            epoch_number: origin.number,
            epoch_hash: origin.hash,
            timestamp: block.timestamp(),
            transactions: self.content(block).1.into(),
        }
    }

    /// Encoded singular batches of these blocks.
    pub fn singular(&self, blocks: &[Arc<Payload>]) -> Vec<Vec<u8>> {
        let batches = blocks.iter();
        batches.map(|block| self.batch(block).encode()).collect()
    }

    /// The encoded span batch of these blocks on `parent`. All their transactions must come from
    /// [`transaction`].
    pub fn span(&self, parent: &Payload, blocks: &[Arc<Payload>]) -> Vec<u8> {
        let batches: Vec<_> = blocks.iter().map(|block| self.batch(block)).collect();
        let (first, last) = (&batches[0], &batches[batches.len() - 1]);
        let parent = match parent.number() {
            0 => 0,
            _ => self.content(parent).0,
        };
        let mut out = vec![1];
        uvarint(&mut out, first.timestamp - START);
        uvarint(&mut out, last.epoch_number);
        out.extend_from_slice(&first.parent_hash[..20]);
        out.extend_from_slice(&last.epoch_hash[..20]);
        uvarint(&mut out, batches.len() as u64);
        let epochs = batches.iter().map(|batch| batch.epoch_number);
        let before = std::iter::once(parent).chain(epochs.clone());
        bits(
            &mut out,
            epochs.zip(before).map(|(epoch, before)| epoch != before),
        );
        for batch in &batches {
            uvarint(&mut out, batch.transactions.len() as u64);
        }
        let all: Vec<_> = batches
            .iter()
            .flat_map(|batch| batch.transactions.iter())
            .collect();
        let none = || all.iter().map(|_| false);
        bits(&mut out, none());
        bits(&mut out, none());
        for _ in &all {
            out.extend_from_slice(&U256::from(0x5151).to_be_bytes::<32>());
            out.extend_from_slice(&U256::from(0x5151).to_be_bytes::<32>());
        }
        all.iter().for_each(|_| out.extend([0x70; 20]));
        all.iter().for_each(|_| out.extend([0xc3, 9, 7, 0x80]));
        all.iter().for_each(|raw| uvarint(&mut out, nonce(raw)));
        all.iter().for_each(|_| uvarint(&mut out, 21_000));
        bits(&mut out, none());
        out
    }

    /// Encodes a new channel with these batches, split into `pieces` frames.
    pub fn frames(&mut self, batches: &[Vec<u8>], pieces: usize) -> Vec<Frame> {
        self.channels += 1;
        let mut zlib = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::default());
        for batch in batches {
            let mut string = Vec::new();
            alloy_rlp::Encodable::encode(&Bytes::copy_from_slice(batch), &mut string);
            zlib.write_all(&string).unwrap();
        }
        let data = zlib.finish().unwrap();
        let size = data.len().div_ceil(pieces);
        let pieces = data.chunks(size).collect::<Vec<_>>();
        let last = pieces.len() - 1;
        let frames = pieces.iter().enumerate().map(|(number, data)| Frame {
            id: ChannelId::repeat_byte(self.channels),
            number: number as u16,
            data: Bytes::copy_from_slice(data),
            is_last: number == last,
        });
        frames.collect()
    }

    /// A data item with a whole new channel of these batches.
    pub fn channel(&mut self, batches: &[Vec<u8>]) -> Vec<u8> {
        frame::encode(&self.frames(batches, 1))
    }
}

impl L1Input {
    /// Adds a log that sets a configuration value to this L1 block.
    pub fn configure(&mut self, kind: u8, value: U256) {
        let word = |value: U256| B256::from(value);
        let data = [word(U256::from(32)), word(U256::from(32)), word(value)].concat();
        let topics = vec![CONFIG_UPDATE_EVENT, B256::ZERO, B256::with_last_byte(kind)];
        self.log(Log {
            address: CONFIG,
            data: LogData::new_unchecked(topics, data.into()),
        });
    }

    /// Adds a deposit log to this L1 block; the log is malformed unless `is_good`.
    pub fn deposit(&mut self, is_good: bool) {
        let mut log = deposit_to_log(PORTAL, &TxDeposit::default());
        if !is_good {
            log.data.data = Bytes::from_static(b"no deposit");
        }
        self.log(log);
    }

    fn log(&mut self, log: Log) {
        let mut receipts = self.logs.to_receipts();
        receipts[0].1.push(log);
        self.logs = RelevantLogs::of(&receipts, &rollup(Fork::Bedrock));
    }
}

fn nonce(raw: &Bytes) -> u64 {
    let mut rest = &raw[..];
    alloy_rlp::Header::decode(&mut rest).unwrap();
    alloy_rlp::Decodable::decode(&mut rest).unwrap()
}

fn uvarint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Appends bits as a big-endian integer: item 0 becomes the lowest bit of the last byte.
fn bits(out: &mut Vec<u8>, items: impl Iterator<Item = bool>) {
    let items: Vec<bool> = items.collect();
    let mut bytes = vec![0u8; items.len().div_ceil(8)];
    for (at, _) in items.iter().enumerate().filter(|(_, set)| **set) {
        let byte = bytes.len() - 1 - at / 8;
        bytes[byte] |= 1 << (at % 8);
    }
    out.extend(bytes);
}
