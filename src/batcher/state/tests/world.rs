//! A simulated L1 with a transaction pool, and a rollup node that derives by Holocene's rules,
//! around a [`BatcherState`].

use crate::{
    batcher::{
        blocks::Insertion,
        channels::ChannelPlan,
        state::{BatchTx, BatcherNotice, BatcherRules, BatcherState, NextTx, PublishContext},
        sync_actions::SourceStatus,
        testing::{CONTEXT, FIRST_ORIGIN, L2},
    },
    txmgr::fees::TxClass,
};
use alloy_primitives::{B256, Bytes};
use starling_proto::{
    batch::Batch,
    channel::{BatchReader, ChannelCompression},
    encoder::{BatchFormat, ChannelTimes, CompressorKind, EncoderSettings},
    fork::{Fork, ForkSchedule},
    frame::{self, ChannelId, Frame},
    payload::Payload,
};
use std::{collections::VecDeque, sync::Arc};

/// Channel timeout, in L1 blocks.
pub const CHANNEL_TIMEOUT: u64 = 12;
/// Safety margin (`--sub-safety-margin`), in L1 blocks.
pub const MARGIN: u64 = 4;
/// Number of the simulation's first L1 block.
pub const L1_START: u64 = FIRST_ORIGIN + 10;
/// L1 blocks from the one that includes a transaction, itself counted, until the transaction is
/// confirmed.
const CONFIRMATIONS: u64 = 2;
/// Maximum number of transactions in flight.
const MAX_PENDING: usize = 4;
/// Maximum bytes of a frame: in calldata, in a blob.
const FRAME_SIZES: [usize; 2] = [300, 250];

pub fn rules(format: BatchFormat, kind: CompressorKind) -> BatcherRules {
    let plan = |class, max_frame_size, target_frames| ChannelPlan {
        class,
        settings: EncoderSettings {
            format,
            kind,
            compression: ChannelCompression::Zlib,
            max_frame_size,
            target_frames,
        },
    };
    BatcherRules {
        calldata: plan(TxClass::Calldata, FRAME_SIZES[0], 2),
        blobs: plan(TxClass::Blob, FRAME_SIZES[1], 3),
        first_class: TxClass::Calldata,
        times: ChannelTimes::new(0, CHANNEL_TIMEOUT, 200, MARGIN).unwrap(),
        context: CONTEXT,
        forks: ForkSchedule::from_genesis(Fork::Holocene),
        genesis_l1: FIRST_ORIGIN,
        body_budget: 12_000,
    }
}

/// Contents of an L1 block: the data items of its transactions, in order.
type Items = Vec<Bytes>;

/// A transaction in the pool or in a block.
#[derive(Clone)]
struct PoolTx {
    /// `None` if the transaction manager has given the transaction up.
    number: Option<u64>,
    items: Items,
}

pub struct World {
    pub l2: L2,
    /// Every L2 block ever created, on all branches.
    known: Vec<Arc<Payload>>,
    salt: u64,
    l1: Vec<Items>,
    pool: VecDeque<PoolTx>,
    /// Transactions included but not confirmed yet, with their L1 block numbers.
    mined: VecDeque<(u64, PoolTx)>,
    pub derived_to: u64,
    pub safe: Vec<Arc<Payload>>,
    reader: FrameReader,
    /// Number of L1 blocks that the frame reader has read.
    read: usize,
    pub state: BatcherState,
    rules: BatcherRules,
    restarts: u64,
    /// The class to set when the state needs one.
    pub class: TxClass,
    /// L1 origins of this height and above are not on L1's chain any more.
    pub gone_from: Option<u64>,
    pub notices: Vec<BatcherNotice>,
    /// Every transaction that the state has sent.
    pub sent: Vec<BatchTx>,
}

impl World {
    pub fn new(rules: BatcherRules) -> Self {
        let l2 = L2::new(0);
        Self {
            safe: vec![l2.payload(0)],
            reader: FrameReader::new(l2.payload(0)),
            read: 0,
            known: vec![l2.payload(0)],
            l2,
            salt: 0,
            l1: vec![vec![]],
            pool: VecDeque::new(),
            mined: VecDeque::new(),
            derived_to: L1_START,
            state: BatcherState::new(rules.clone(), B256::ZERO),
            class: rules.first_class,
            gone_from: None,
            rules,
            restarts: 0,
            notices: Vec::new(),
            sent: Vec::new(),
        }
    }

    pub fn l1_head(&self) -> u64 {
        L1_START + self.l1.len() as u64 - 1
    }

    pub fn safe_head(&self) -> u64 {
        self.safe.len() as u64 - 1
    }

    /// Appends `blocks` L2 blocks.
    pub fn grow(&mut self, blocks: u64) {
        let first = self.l2.newest() + 1;
        self.l2.extend(self.l2.newest() + blocks, self.salt);
        self.remember(first);
    }

    fn remember(&mut self, first: u64) {
        let made = first..=self.l2.newest();
        self.known
            .extend(made.map(|number| self.l2.payload(number)));
    }

    /// Replaces the L2 blocks above `common` by as many different ones.
    pub fn reorg_l2(&mut self, common: u64) {
        let newest = self.l2.newest();
        self.salt += 1;
        self.l2.truncate(common);
        self.l2.extend(newest, self.salt);
        self.remember(common + 1);
    }

    fn status(&self) -> SourceStatus {
        SourceStatus {
            current_l1: self.derived_to,
            local_safe_l2: L2::reference_of(&self.safe[self.safe.len() - 1]),
            unsafe_l2: self.l2.reference(self.l2.newest()),
        }
    }

    /// Delivers the rollup node's status, loads blocks, and sends data.
    pub fn poll(&mut self) {
        self.poll_closing(None);
    }

    /// Polls like [`Self::poll`], with all blocks up to `close_through` closed into channels.
    pub fn poll_closing(&mut self, close_through: Option<u64>) {
        if self.state.on_status(&self.status()).is_ok() {
            let mut context = PublishContext {
                l1_head: self.l1_head(),
                is_loading: true,
                close_through,
                canonical: None,
            };
            loop {
                let is_done = !self.load();
                context.is_loading = !is_done;
                self.publish(&context);
                if is_done || self.pool.len() >= MAX_PENDING {
                    break;
                }
            }
        }
        self.notices.extend(self.state.take_notices());
    }

    /// Loads blocks while the state wants more; returns whether the state accepted any.
    fn load(&mut self) -> bool {
        let mut took = false;
        let mut after = None;
        while let Some(number) = self.state.wanted(after, u64::MAX) {
            let Some(payload) = self.l2.get(number) else {
                break;
            };
            after = Some(number);
            match self.state.on_block(payload.clone()) {
                Insertion::Held => took = true,
                Insertion::Unwanted => panic!("block {number} was asked for"),
                Insertion::Reorg => {
                    self.state.on_reorg();
                    return false;
                }
            }
        }
        took
    }

    fn publish(&mut self, context: &PublishContext) {
        let mut context = *context;
        while self.pool.len() < MAX_PENDING {
            match self.state.next_tx(&context) {
                NextTx::Send(tx) => self.send(tx),
                NextTx::NeedsOrigin(origin)
                    if self.gone_from.is_some_and(|at| at <= origin.number) =>
                {
                    return self.state.on_origin_gone(origin);
                }
                NextTx::NeedsOrigin(origin) => context.canonical = Some(origin),
                NextTx::NeedsClass => self.state.set_class(self.class),
                NextTx::Nothing => return,
            }
        }
    }

    fn send(&mut self, tx: BatchTx) {
        let plan = match tx.class {
            TxClass::Calldata => &self.rules.calldata,
            TxClass::Blob => &self.rules.blobs,
        };
        let most = match tx.class {
            TxClass::Calldata => 1,
            TxClass::Blob => 3,
        };
        assert!(!tx.items.is_empty() && tx.items.len() <= most);
        let size = plan.settings.max_frame_size + 1;
        assert!(tx.items.iter().all(|item| item.len() <= size));
        self.pool.push_back(PoolTx {
            number: Some(tx.number),
            items: tx.items.clone(),
        });
        self.sent.push(tx);
    }

    /// Mines an L1 block with the first `count` transactions of the pool.
    pub fn mine(&mut self, count: usize) {
        let count = count.min(self.pool.len());
        let taken: Vec<PoolTx> = self.pool.drain(..count).collect();
        let items = taken.iter().flat_map(|tx| tx.items.clone());
        self.l1.push(items.collect());
        let head = self.l1_head();
        self.mined.extend(taken.into_iter().map(|tx| (head, tx)));
        while let Some((block, tx)) = self
            .mined
            .pop_front_if(|(at, _)| *at + CONFIRMATIONS <= head + 1)
        {
            if let Some(number) = tx.number {
                self.state.on_confirmed(number, block);
            }
        }
    }

    /// Makes the manager give up a transaction in the pool. With `still_lands`, L1 may still
    /// include it.
    pub fn fail(&mut self, index: usize, still_lands: bool) {
        if self.pool.is_empty() {
            return;
        }
        let index = index % self.pool.len();
        if let Some(number) = self.pool[index].number.take() {
            self.state.on_failed(number);
        }
        if !still_lands {
            self.pool.remove(index);
        }
    }

    /// Drops the `depth` newest L1 blocks. Confirmed transactions in them are lost.
    pub fn reorg_l1(&mut self, depth: usize) {
        let depth = depth.min(self.l1.len() - 1);
        self.l1.truncate(self.l1.len() - depth);
        if self.read > self.l1.len() {
            self.reader = FrameReader::new(self.known[0].clone());
            self.read = 0;
        }
        let head = self.l1_head();
        while let Some((_, tx)) = self.mined.pop_back_if(|(at, _)| *at > head) {
            self.pool.push_front(tx);
        }
        if self.derived_to > head {
            self.derive(head);
        }
    }

    /// Simulates a new batcher process with an empty state. The pool keeps its transactions.
    pub fn restart(&mut self) {
        self.restarts += 1;
        let seed = B256::with_last_byte(self.restarts as u8);
        self.state = BatcherState::new(self.rules.clone(), seed);
        for tx in self
            .pool
            .iter_mut()
            .chain(self.mined.iter_mut().map(|(_, tx)| tx))
        {
            tx.number = None;
        }
    }

    /// Derives up to L1 block `to`. If the derived blocks contradict the sequencer's, the sequencer
    /// continues from the safe head.
    pub fn derive(&mut self, to: u64) {
        self.derived_to = to.min(self.l1_head());
        let blocks = (self.derived_to - L1_START) as usize + 1;
        if blocks < self.read {
            self.reader = FrameReader::new(self.known[0].clone());
            self.read = 0;
        }
        for (at, items) in self.l1[..blocks].iter().enumerate().skip(self.read) {
            for item in items {
                for frame in frame::decode(item).expect("whole frames") {
                    self.reader.read(frame, L1_START + at as u64, &self.known);
                }
            }
        }
        self.read = blocks;
        self.safe = self.reader.safe.clone();
        let safe = self.safe_head();
        if self.l2.get(safe).map(|block| block.hash) != self.safe.last().map(|block| block.hash) {
            let newest = self.l2.newest().max(safe);
            self.l2 = L2::of(self.safe.clone());
            self.salt += 1;
            self.l2.extend(newest, self.salt);
            self.remember(safe + 1);
        }
    }

    /// Runs without further faults until all blocks are safe.
    pub fn settle(&mut self) {
        for _ in 0..200 {
            self.derive(self.l1_head());
            self.poll_closing(Some(self.l2.newest()));
            self.mine(MAX_PENDING);
            if self.safe_head() == self.l2.newest() {
                return;
            }
        }
        panic!(
            "safe {} of {}: {:#?}",
            self.safe_head(),
            self.l2.newest(),
            self.notices.iter().rev().take(20).collect::<Vec<_>>()
        );
    }
}

/// Derives blocks from frames in strict order, one channel at a time, as Holocene requires.
struct FrameReader {
    safe: Vec<Arc<Payload>>,
    open: Option<OpenChannel>,
}

/// A block as decoded from a batch.
struct ReadBlock {
    timestamp: u64,
    epoch: u64,
    transactions: Vec<Bytes>,
}

struct OpenChannel {
    id: ChannelId,
    since: u64,
    next: u16,
    data: Vec<u8>,
}

impl FrameReader {
    fn new(genesis: Arc<Payload>) -> Self {
        Self {
            safe: vec![genesis],
            open: None,
        }
    }

    fn read(&mut self, frame: Frame, l1_block: u64, known: &[Arc<Payload>]) {
        if frame.number == 0 {
            self.open = Some(OpenChannel {
                id: frame.id,
                since: l1_block,
                next: 0,
                data: Vec::new(),
            });
        }
        let Some(open) = &mut self.open else {
            return;
        };
        if open.id != frame.id
            || open.next != frame.number
            || l1_block > open.since + CHANNEL_TIMEOUT
        {
            return;
        }
        open.next += 1;
        open.data.extend_from_slice(&frame.data);
        if !frame.is_last {
            return;
        }
        let data = std::mem::take(&mut open.data);
        self.open = None;
        let mut batches = BatchReader::new(data, CONTEXT, true).expect("a channel");
        while let Some(batch) = batches.next_batch() {
            let is_used = match batch.expect("a batch") {
                Batch::Singular(batch) => {
                    let block = ReadBlock {
                        timestamp: batch.timestamp,
                        epoch: batch.epoch_number,
                        transactions: batch.transactions.iter().collect(),
                    };
                    self.derive(&block, Some(batch.parent_hash), known)
                }
                Batch::Span(span) => span.blocks.clone().all(|block| {
                    let block = ReadBlock {
                        timestamp: block.timestamp,
                        epoch: block.epoch_number,
                        transactions: block.transactions.iter().collect(),
                    };
                    self.derive(&block, None, known)
                }),
            };
            if !is_used {
                return;
            }
        }
    }

    /// Appends the block of a batch if it is the next one. Returns whether reading continues.
    fn derive(&mut self, read: &ReadBlock, parent: Option<B256>, known: &[Arc<Payload>]) -> bool {
        let number = (read.timestamp - CONTEXT.genesis_time) / CONTEXT.block_time;
        let next = self.safe.len() as u64;
        let tip = self.safe[self.safe.len() - 1].hash;
        let matches = |block: &&Arc<Payload>| {
            let origin = L2::reference_of(block).origin.number;
            block.number() == number
                && origin == read.epoch
                && block.transactions[1..] == read.transactions[..]
        };
        if number < next {
            let is_same = matches(&&self.safe[number as usize]);
            return is_same || parent.is_some();
        }
        if number > next || parent.is_some_and(|parent| parent != tip) {
            return false;
        }
        let mut found = known.iter().filter(matches);
        let block = found.find(|block| block.parent_hash() == tip);
        // No known block matches on this tip: the batch belongs to another branch.
        let Some(block) = block else {
            return false;
        };
        self.safe.push(block.clone());
        true
    }
}
