//! The network of a test: an L1 that mines on command, a sequencer, a batcher and a verifier.

pub use crate::simulated::{BATCHER, CONFIG, L2_CHAIN, PORTAL, START};

use crate::{
    simulated::{self, seal},
    transactions::transaction,
    verifier::Verifier,
};
use alloy_primitives::{Address, B256, Bytes, Log, keccak256};
use starling_proto::{
    attributes::{L1Block, ReceiptLogs, attributes, is_upgrade_block},
    batch::SingularBatch,
    blob,
    channel::{BatchContext, ChannelCompression, ChannelWriter},
    config::RollupConfig,
    derive::{BlobRef, DropReason, InboxTransaction, L1Input, PipelineStep, RelevantLogs},
    fork::{BlobSchedule, Fork},
    frame::{self, ChannelId, FRAME_OVERHEAD, Frame},
    l1info::L2BlockRef,
    payload::Payload,
    span::{SpanBlock, SpanBuilder},
};
use std::{
    collections::{BTreeMap, HashMap},
    ops::RangeInclusive,
    sync::Arc,
};

pub const STRANGER: Address = Address::repeat_byte(0x57);
/// Default seconds between L1 blocks.
pub const L1_TIME: u64 = 6;
/// Sequencing window, in L1 blocks.
pub const WINDOW: u64 = 12;
/// Channel timeout before Granite, in L1 blocks.
pub const TIMEOUT: u64 = 4;

/// A rollup with every fork up to `fork` active from genesis.
pub fn rollup(fork: Fork) -> RollupConfig {
    RollupConfig {
        seq_window_size: WINDOW,
        channel_timeout: TIMEOUT,
        ..simulated::rollup(fork, l1_hash(0, 0))
    }
}

fn l1_hash(number: u64, branch: u64) -> B256 {
    keccak256([number.to_be_bytes(), branch.to_be_bytes()].concat())
}

/// An L1 block in the form that derivation reads, with its receipts.
#[derive(Clone)]
pub struct MinedBlock {
    pub input: L1Input,
    receipts: Vec<ReceiptLogs>,
}

pub struct Network {
    pub rollup: Arc<RollupConfig>,
    pub schedule: BlobSchedule,
    pub l1: Vec<MinedBlock>,
    /// Blobs by versioned hash.
    pub blobs: HashMap<B256, Bytes>,
    /// The sequencer's chain; the index is the block number.
    pub l2: Vec<Arc<Payload>>,
    pub verifier: Verifier,
    /// The account that posts the batcher's data.
    pub batcher: Address,
    pub compression: ChannelCompression,
    /// Seconds between L1 blocks.
    pub l1_time: u64,
    pub excess_blob_gas: u64,
    /// Transactions to the batch inbox and logs for the next L1 block.
    pub inbox: Vec<InboxTransaction>,
    logs: Vec<Log>,
    branch: u64,
    channels: u64,
    nonce: u64,
}

impl Network {
    /// A network whose rollup has every fork up to `fork` active from genesis.
    pub fn new(fork: Fork) -> Self {
        Self::with(rollup(fork))
    }

    pub fn with(rollup: RollupConfig) -> Self {
        Self::on(rollup, BlobSchedule::default())
    }

    /// A network with this rollup and this blob schedule of L1.
    pub fn on(rollup: RollupConfig, schedule: BlobSchedule) -> Self {
        let rollup = Arc::new(rollup);
        let genesis = simulated::genesis(&rollup);
        let mut network = Self {
            verifier: Verifier::new(rollup.clone(), schedule.clone(), genesis.clone()),
            rollup,
            schedule,
            l1: Vec::new(),
            blobs: HashMap::new(),
            l2: vec![genesis],
            batcher: BATCHER,
            compression: ChannelCompression::Zlib,
            l1_time: L1_TIME,
            excess_blob_gas: 0,
            inbox: Vec::new(),
            logs: Vec::new(),
            branch: 0,
            channels: 0,
            nonce: 0,
        };
        network.mine();
        network
    }

    /// Mines an L1 block with everything posted since the last block. Returns its number.
    pub fn mine(&mut self) -> u64 {
        let number = self.l1.len() as u64;
        let hash = l1_hash(number, self.branch);
        let parent = self.l1.last().map(|mined| mined.input.block);
        let receipts = vec![(true, std::mem::take(&mut self.logs))];
        let block = L1Block {
            number,
            hash,
            parent_hash: parent.map(|parent| parent.hash).unwrap_or_default(),
            time: parent.map_or(START, |parent| parent.time + self.l1_time),
            base_fee: 7 + number,
            mix_hash: keccak256(hash),
            excess_blob_gas: Some(self.excess_blob_gas),
            parent_beacon_root: Some(keccak256(keccak256(hash))),
            ..L1Block::default()
        };
        let input = L1Input {
            block,
            logs: RelevantLogs::of(&receipts, &self.rollup),
            inbox: std::mem::take(&mut self.inbox),
        };
        self.l1.push(MinedBlock { input, receipts });
        number
    }

    /// Mines L1 blocks until L1's head has this number.
    pub fn mine_to(&mut self, number: u64) {
        while self.l1_head() < number {
            self.mine();
        }
    }

    pub fn l1_head(&self) -> u64 {
        self.l1.len() as u64 - 1
    }

    /// Removes the L1 blocks from this number on and returns them. Blocks mined afterwards have
    /// different hashes.
    pub fn fork_l1(&mut self, number: u64) -> Vec<MinedBlock> {
        self.branch += 1;
        self.l1.split_off(number as usize)
    }

    /// Adds a log to the next L1 block.
    pub fn log(&mut self, log: Log) {
        self.logs.push(log);
    }

    /// Posts a data item of the batcher as calldata.
    pub fn post(&mut self, item: Vec<u8>) {
        self.inbox.push(InboxTransaction {
            sender: self.batcher,
            calldata: item.into(),
            blobs: Vec::new(),
        });
    }

    /// Posts data items of the batcher in the blobs of one transaction.
    pub fn post_blobs(&mut self, items: &[Vec<u8>]) {
        let blobs = items.iter().map(|item| blob::encode(item).unwrap());
        let blobs = blobs.map(Bytes::from).collect();
        self.post_raw_blobs(blobs);
    }

    /// Posts a transaction with these blobs, which need not be decodable.
    pub fn post_raw_blobs(&mut self, blobs: Vec<Bytes>) {
        let before: usize = self.inbox.iter().map(|posted| posted.blobs.len()).sum();
        let blobs = (before as u64..).zip(blobs).map(|(index, blob)| {
            let versioned_hash = keccak256(&blob);
            self.blobs.insert(versioned_hash, blob);
            BlobRef {
                index,
                versioned_hash,
            }
        });
        let blobs = blobs.collect();
        self.inbox.push(InboxTransaction {
            sender: self.batcher,
            calldata: Bytes::from_static(b"calldata beside blobs"),
            blobs,
        });
    }

    pub fn head(&self) -> &Arc<Payload> {
        self.l2.last().unwrap()
    }

    pub fn reference(&self, block: &Payload) -> L2BlockRef {
        L2BlockRef::of(block, &self.rollup.genesis).unwrap()
    }

    /// Builds the next L2 block with the newest L1 origin that its time allows.
    pub fn build(&mut self, transactions: &[Bytes]) -> Arc<Payload> {
        let origin = self.reference(self.head()).origin.number;
        let time = self.head().timestamp() + self.rollup.block_time;
        let next = self.l1.get(origin as usize + 1);
        let is_reached = next.is_some_and(|next| next.input.block.time <= time);
        self.build_at(origin + u64::from(is_reached), transactions)
    }

    /// Builds the next L2 block with this L1 origin.
    pub fn build_at(&mut self, epoch: u64, transactions: &[Bytes]) -> Arc<Payload> {
        let (parent, origin) = (self.head(), &self.l1[epoch as usize]);
        let receipts = Some(&origin.receipts[..]);
        let (rollup, schedule) = (&self.rollup, &self.schedule);
        let derived = attributes(rollup, schedule, parent, &origin.input.block, receipts);
        let mut attributes = derived.unwrap().attributes;
        let all = attributes.transactions.get_or_insert_default();
        all.extend_from_slice(transactions);
        let block = seal(rollup, parent, &attributes);
        self.l2.push(block.clone());
        block
    }

    /// A new transaction that no block has yet.
    pub fn transaction(&mut self) -> Bytes {
        self.nonce += 1;
        transaction(self.nonce)
    }

    /// Builds `count` L2 blocks with one transaction each; blocks that activate an upgrade have
    /// none. L1 blocks are mined as time passes.
    pub fn sequence(&mut self, count: u64) {
        for _ in 0..count {
            let parent = self.head().timestamp();
            let time = parent + self.rollup.block_time;
            while self.l1[self.l1.len() - 1].input.block.time + self.l1_time <= time {
                self.mine();
            }
            let one = [self.transaction()];
            let is_upgrade = is_upgrade_block(&self.rollup.forks, parent, time);
            self.build(if is_upgrade { &[] } else { &one });
        }
    }

    /// The singular batch of a block.
    pub fn batch(&self, number: u64) -> SingularBatch {
        let block = &self.l2[number as usize];
        let origin = self.reference(block).origin;
        let user = block.transactions.iter().filter(|raw| raw[0] != 0x7e);
        SingularBatch {
            parent_hash: block.parent_hash(),
            epoch_number: origin.number,
            epoch_hash: origin.hash,
            timestamp: block.timestamp(),
            transactions: user.cloned().collect(),
        }
    }

    /// Encoded singular batches of these blocks.
    pub fn singular(&self, numbers: RangeInclusive<u64>) -> Vec<Vec<u8>> {
        numbers.map(|number| self.batch(number).encode()).collect()
    }

    /// The encoded span batch of these blocks.
    pub fn span(&self, numbers: RangeInclusive<u64>) -> Vec<u8> {
        let blocks = numbers.clone().map(|number| self.span_block(number));
        let parent = &self.l2[*numbers.start() as usize - 1];
        self.span_of(&blocks.collect::<Vec<_>>(), parent.hash, None)
    }

    /// A block in the form of span batches.
    pub fn span_block(&self, number: u64) -> SpanBlock {
        let batch = self.batch(number);
        SpanBlock {
            epoch_number: batch.epoch_number,
            timestamp: batch.timestamp,
            transactions: batch.transactions,
        }
    }

    /// The encoded span batch of these blocks, with the hashes of its parent and of its last L1
    /// origin. If `origin` is `None`, the hash is that of L1's block.
    pub fn span_of(&self, blocks: &[SpanBlock], parent: B256, origin: Option<B256>) -> Vec<u8> {
        let mut builder = SpanBuilder::new(BatchContext {
            genesis_time: START,
            block_time: self.rollup.block_time,
            chain_id: L2_CHAIN,
        });
        for block in blocks {
            let epoch = &self.l1[block.epoch_number as usize].input.block;
            let origin = origin.unwrap_or(epoch.hash);
            builder.push(block, parent, origin, true).unwrap();
        }
        builder.encode().unwrap()
    }

    /// The encoded batches of these blocks: one span batch, or a singular batch each.
    pub fn batches(&self, numbers: RangeInclusive<u64>, is_span: bool) -> Vec<Vec<u8>> {
        if is_span {
            vec![self.span(numbers)]
        } else {
            self.singular(numbers)
        }
    }

    /// A new channel id.
    pub fn channel_id(&mut self) -> ChannelId {
        self.channels += 1;
        ChannelId::left_padding_from(&self.channels.to_be_bytes())
    }

    /// Whether Fjord is active in the next L1 block.
    pub fn is_fjord_next(&self) -> bool {
        let time = self.l1[self.l1.len() - 1].input.block.time + self.l1_time;
        self.rollup.forks.is_active(Fork::Fjord, time)
    }

    /// Encodes a new channel with these batches in at most `pieces` frames.
    pub fn frames(&mut self, batches: &[Vec<u8>], pieces: usize) -> Vec<Frame> {
        let (id, fjord) = (self.channel_id(), self.is_fjord_next());
        let mut writer = ChannelWriter::new(id, self.compression, fjord).unwrap();
        for batch in batches {
            writer.add(batch).unwrap();
        }
        writer.close().unwrap();
        let size = FRAME_OVERHEAD + writer.pending_len().div_ceil(pieces);
        let mut frames = Vec::new();
        while let Some(frame) = writer.next_frame(size).unwrap() {
            frames.push(frame);
        }
        frames
    }

    /// A data item with a whole new channel of these batches.
    pub fn channel(&mut self, batches: &[Vec<u8>]) -> Vec<u8> {
        frame::encode(&self.frames(batches, 1))
    }

    /// Splits a new channel into at most `pieces` frames. Returns a data item for each frame.
    pub fn pieces(&mut self, batches: &[Vec<u8>], pieces: usize) -> Vec<Vec<u8>> {
        let frames = self.frames(batches, pieces).into_iter();
        frames.map(|frame| frame::encode(&[frame])).collect()
    }

    /// Posts a channel with these blocks, in singular batches or in one span.
    pub fn post_blocks(&mut self, numbers: RangeInclusive<u64>, is_span: bool) {
        let batches = self.batches(numbers, is_span);
        let item = self.channel(&batches);
        self.post(item);
    }

    /// Derives until the verifier is idle or stops.
    pub fn run(&mut self) -> PipelineStep {
        self.verifier.run(&self.l1, &self.blobs)
    }

    /// Derives until the verifier is idle.
    pub fn derive(&mut self) {
        let stop = self.run();
        assert!(matches!(stop, PipelineStep::Idle { .. }), "{stop:?}");
    }

    /// Derives, and checks that the verifier's chain ends at `head` and equals the sequencer's up
    /// to there. The drop counts must be exactly `drops`.
    pub fn expect_head(&mut self, head: u64, drops: &[(DropReason, u64)]) {
        self.derive();
        let counts: BTreeMap<_, _> = self.verifier.pipeline.drain_drops().iter().collect();
        let expected: BTreeMap<_, _> = drops.iter().copied().collect();
        let derived = self.verifier.chain.iter().map(|block| block.id());
        let wanted = self.l2[..=head as usize].iter().map(|block| block.id());
        let (derived, wanted): (Vec<_>, Vec<_>) = (derived.collect(), wanted.collect());
        let agree = derived.iter().zip(&wanted).take_while(|(a, b)| a == b);
        let (agree, length) = (agree.count(), wanted.len());
        assert!(
            derived.len() == agree && length == agree,
            "derived {} blocks, expected {length}, the first {agree} agree; {counts:?}",
            derived.len()
        );
        assert_eq!(counts, expected);
    }

    /// Like [`Network::expect_head`], for the sequencer's head.
    pub fn expect(&mut self, drops: &[(DropReason, u64)]) {
        self.expect_head(self.head().number(), drops);
    }

    /// Checks that derivation still works: builds blocks on the verifier's head, posts and derives
    /// them.
    pub fn moves_on(&mut self) {
        self.l2.clone_from(&self.verifier.chain);
        let first = self.head().number() + 1;
        // More blocks than an epoch has, so that no window expires with the next L1 block.
        let count = self.l1_time / self.rollup.block_time + 1;
        self.sequence(count);
        self.post_blocks(first..=first + count - 1, false);
        self.mine();
        self.derive();
        self.verifier.pipeline.drain_drops();
        self.expect(&[]);
    }

    /// L1 origin and number of user transactions of each block in the verifier's chain after
    /// genesis.
    pub fn contents(&self) -> Vec<(u64, usize)> {
        let chain = self.verifier.chain[1..].iter();
        chain
            .map(|block| {
                let user = block.transactions.iter().filter(|raw| raw[0] != 0x7e);
                (self.reference(block).origin.number, user.count())
            })
            .collect()
    }
}
