//! Decisions of the batcher: which blocks to load, how to group them into channels, which data to
//! send to L1 next, and what a transaction's outcome changes. Pure: reads no clock and does no I/O.
//!
//! Blocks, channels and transactions are three queues in the same order. The next block to encode
//! is the one after the newest channel's last block, so dropping a channel puts its blocks back in
//! the queue without a copy. A channel and all newer ones are dropped when its frames are too far
//! apart on L1, or when the class changes between calldata and blobs. If a transaction fails, its
//! frames and all later frames of its channel are sent again. Nothing is kept on disk: after a
//! restart, everything above the safe head is posted again.

mod encoding;
mod types;

pub use types::{
    BatchTx, BatchTxNumber, BatcherNotice, BatcherRules, ClosedChannel, NextTx, PublishContext,
    UnsafeLoad,
};

use super::{
    blocks::{BlockTotals, HeldBlocks, Insertion},
    channels::QueuedChannel,
    sync_actions::{ClearCause, OutOfSync, SourceStatus, SyncDecision, decide},
};
use crate::txmgr::fees::TxClass;
use alloy_primitives::B256;
use starling_proto::{
    encoder::FrameRange,
    frame::ChannelId,
    payload::{BlockId, Payload},
};
use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

/// Base-2 logarithm of the largest number of L1 blocks between two posts of the same lost blocks.
const MAX_PAUSE_BITS: u32 = 5;
/// Least number of such pauses in a sequencing window: blocks that wait must not miss it.
const PAUSES_IN_WINDOW: u64 = 16;

/// A transaction in flight.
#[derive(Clone, Copy, Debug)]
struct SentRange {
    channel: ChannelId,
    range: FrameRange,
}

/// Channels that were lost in succession.
#[derive(Clone, Copy, Debug, Default)]
struct RepeatedLoss {
    /// Safe head when the last channel was lost.
    safe: BlockId,
    /// Number of channels lost at that safe head.
    count: u32,
}

impl RepeatedLoss {
    /// Counts one more lost channel at this safe head.
    fn add(&mut self, safe: BlockId) {
        let before = if self.safe == safe { self.count } else { 0 };
        *self = Self {
            safe,
            count: before.saturating_add(1),
        };
    }

    /// L1 blocks until the same blocks are posted again. There is no pause after the first loss,
    /// whose cause is usually over. Each further one doubles the pause, up to a small part of the
    /// sequencing window.
    fn pause(&self, seq_window: u64) -> Option<u64> {
        let pause = (1 << self.count.min(MAX_PAUSE_BITS)).min(seq_window / PAUSES_IN_WINDOW);
        (self.count > 1 && pause > 0).then_some(pause)
    }
}

/// The batcher's queues and settings. See the module's documentation.
#[derive(Debug)]
pub struct BatcherState {
    rules: BatcherRules,
    /// Random seed of the channel IDs, the same for all channels of this state.
    seed: B256,
    held: HeldBlocks,
    /// Channels, oldest first. Only the last one may be open.
    channels: VecDeque<QueuedChannel>,
    /// Transactions in flight. If a transaction's channel was dropped, its outcome is ignored.
    sent: BTreeMap<BatchTxNumber, SentRange>,
    last_number: BatchTxNumber,
    channels_made: u64,
    class: TxClass,
    /// Whether [`Self::set_class`] was called for the channel whose first transaction is sent next.
    class_is_set: bool,
    /// L1 block up to which the rollup node had derived at the last status.
    last_l1: u64,
    /// Number of the newest L2 block; `None` before the first status, and after a reorg until the
    /// next.
    unsafe_head: Option<u64>,
    /// Highest number of a block ever loaded. Dropping all blocks does not lower this number.
    loaded_through: u64,
    /// Newest L1 origin of the safe head and of the channels of which frames were sent.
    last_origin: u64,
    losses: RepeatedLoss,
    notices: Vec<BatcherNotice>,
}

impl BatcherState {
    /// A state without blocks. `seed` must be random: the channel IDs are derived from it.
    pub fn new(rules: BatcherRules, seed: B256) -> Self {
        Self {
            class: rules.first_class,
            rules,
            seed,
            held: HeldBlocks::default(),
            channels: VecDeque::new(),
            sent: BTreeMap::new(),
            last_number: 0,
            channels_made: 0,
            class_is_set: false,
            last_l1: 0,
            unsafe_head: None,
            loaded_through: 0,
            last_origin: 0,
            losses: RepeatedLoss::default(),
            notices: Vec::new(),
        }
    }

    /// Applies a status with new heads of the rollup node.
    pub fn on_status(&mut self, status: &SourceStatus) -> Result<(), OutOfSync> {
        let outcomes = self.channels.iter().filter_map(QueuedChannel::outcome);
        match decide(status, self.last_l1, &self.held, outcomes) {
            SyncDecision::Wait(reason) => return Err(reason),
            SyncDecision::Clear(cause) => {
                if cause == ClearCause::LostChannel {
                    self.losses.add(status.local_safe_l2.id);
                }
                self.clear(cause);
                self.restart(status);
            }
            SyncDecision::Prune if self.held.is_empty() => self.restart(status),
            SyncDecision::Prune => self.prune(status.local_safe_l2.id.number),
        }
        self.last_l1 = status.current_l1;
        self.unsafe_head = Some(status.unsafe_l2.id.number);
        Ok(())
    }

    /// Drops all blocks and channels, so that loading begins above the safe head.
    fn restart(&mut self, status: &SourceStatus) {
        self.held.restart(status.local_safe_l2.id);
        self.channels.clear();
        // The node may report the L1 origin of the L2 genesis block as zero.
        let origin = status.local_safe_l2.origin.number;
        self.last_origin = self.last_origin.max(origin).max(self.rules.genesis_l1);
    }

    fn prune(&mut self, safe: u64) {
        let is_safe = |channel: &QueuedChannel| {
            let span = channel.span();
            span.is_none_or(|span| span.last.id.number <= safe)
        };
        let safe_channels = self.channels.iter().take_while(|channel| is_safe(channel));
        let count = safe_channels.count();
        self.channels.drain(..count);
        self.held.prune(safe);
    }

    /// Drops all blocks and channels. Transactions in flight continue, but their outcomes are
    /// ignored.
    fn clear(&mut self, cause: ClearCause) {
        self.notices.push(BatcherNotice::Cleared(cause));
        self.held.restart(BlockId::default());
        self.channels.clear();
        (self.last_origin, self.unsafe_head) = (0, None);
    }

    /// Drops all blocks and channels because of an L2 reorg. Loading waits for the next status.
    pub fn on_reorg(&mut self) {
        self.clear(ClearCause::UnsafeReorg);
    }

    /// Drops all blocks and channels because an L1 reorg has removed the L1 origin of a channel's
    /// last block, so that derivation would ignore the channel. Loading waits for the next status.
    pub fn on_origin_gone(&mut self, origin: BlockId) {
        let has_origin = |channel: &QueuedChannel| {
            let span = channel.span();
            span.is_some_and(|span| span.last.origin == origin)
        };
        // The channel may have been dropped meanwhile.
        if self.channels.iter().any(has_origin) {
            self.clear(ClearCause::OriginReorg);
        }
    }

    /// Number of the next block to load, up to `last`. If `after` is already being loaded, returns
    /// a higher number. `None` if enough bodies are in memory, or if no block up to the unsafe head
    /// is missing.
    pub fn wanted(&self, after: Option<u64>, last: u64) -> Option<u64> {
        let next = self.next_block();
        let is_full = self.held.body_bytes() >= self.rules.body_budget;
        if is_full && self.held.body(next).is_some() {
            return None;
        }
        let from = after.map_or(next, |after| next.max(after + 1));
        let number = self.held.first_missing(from);
        (number <= self.unsafe_head?.min(last)).then_some(number)
    }

    /// Inserts a block that was loaded.
    pub fn on_block(&mut self, payload: Arc<Payload>) -> Insertion {
        let number = payload.number();
        let insertion = self.held.insert(payload);
        if matches!(insertion, Insertion::Held) {
            self.loaded_through = self.loaded_through.max(number);
        }
        insertion
    }

    /// L1 block up to which the rollup node must derive before the blocks of a lost channel are
    /// posted again; `None` if they need not wait.
    pub fn repeat_at(&self) -> Option<u64> {
        let pause = self.losses.pause(self.rules.times.sequencing_window())?;
        Some(self.last_l1.saturating_add(pause))
    }

    /// Number of the next block to encode.
    pub fn next_block(&self) -> u64 {
        let mut spans = self.channels.iter().rev().filter_map(QueuedChannel::span);
        let last = spans.next().map(|span| span.last.id.number);
        last.unwrap_or(self.held.base().number) + 1
    }

    /// Number of the newest held block.
    pub fn newest(&self) -> u64 {
        self.held.newest().number
    }

    /// Highest number of a block ever loaded. After a reorg, the chain may be shorter.
    pub fn loaded_through(&self) -> u64 {
        self.loaded_through
    }

    /// Number of the newest L2 block at the last status; `None` if unknown.
    pub fn unsafe_head(&self) -> Option<u64> {
        self.unsafe_head
    }

    /// Whether every block up to `number` is posted. Blocks above the unsafe head do not count,
    /// since an L2 reorg removed them. Without a status since a reorg the unsafe head is unknown,
    /// and the result is false.
    pub fn is_posted_through(&self, number: u64) -> bool {
        let is_closed = |head: u64| self.is_closed_through(number.min(head));
        number == 0 || (self.unsafe_head.is_some_and(is_closed) && self.is_submitted())
    }

    /// Whether all blocks up to `number` are in closed channels.
    pub fn is_closed_through(&self, number: u64) -> bool {
        let open = self.channels.back().filter(|last| last.closed().is_none());
        let first_open = open.and_then(|open| Some(open.span()?.first.id.number));
        self.next_block() > number && first_open.is_none_or(|first| first > number)
    }

    /// Whether every channel is closed and confirmed.
    pub fn is_submitted(&self) -> bool {
        self.channels.iter().all(QueuedChannel::is_complete)
    }

    /// Newest L1 block that includes frames of a channel that is not safe yet.
    pub fn last_inclusion(&self) -> Option<u64> {
        let inclusions = self.channels.iter().filter_map(QueuedChannel::inclusion);
        inclusions.map(|(_, last)| last).max()
    }

    /// Numbers of the first and the last block not known to be on L1; `None` if there are none.
    pub fn unposted(&self) -> Option<(u64, u64)> {
        let mut channels = self.channels.iter();
        let open = channels.find(|channel| !channel.is_complete());
        let first = open.and_then(|open| Some(open.span()?.first.id.number));
        let first = first.unwrap_or_else(|| self.next_block());
        let last = match self.unsafe_head {
            Some(head) => self.newest().max(head),
            // All blocks were dropped, and no status has arrived since.
            None => self.loaded_through,
        };
        (first <= last).then_some((first, last))
    }

    /// Returns the next transaction to send. If none is ready, first encodes blocks until a channel
    /// closes or no body is left. For a large channel, this takes up to some seconds of CPU time.
    pub fn next_tx(&mut self, context: &PublishContext) -> NextTx {
        let class_is_set = std::mem::take(&mut self.class_is_set);
        if !self.channels.iter().any(QueuedChannel::has_data) {
            self.encode(context);
        }
        let Some(at) = self.channels.iter().position(QueuedChannel::has_data) else {
            return NextTx::Nothing;
        };
        let channel = &mut self.channels[at];
        let origin = channel.span().map(|span| span.last.origin);
        if let Some(origin) = origin.filter(|origin| context.canonical != Some(*origin)) {
            self.class_is_set = class_is_set;
            return NextTx::NeedsOrigin(origin);
        }
        if channel.is_untouched() && !class_is_set {
            return NextTx::NeedsClass;
        }
        let Some((range, items)) = channel.take() else {
            return NextTx::Nothing;
        };
        let (id, class) = (channel.id(), channel.class());
        let origin = origin.map_or(0, |origin| origin.number);
        self.last_origin = self.last_origin.max(origin);
        self.last_number += 1;
        let sent = SentRange { channel: id, range };
        self.sent.insert(self.last_number, sent);
        NextTx::Send(BatchTx {
            number: self.last_number,
            channel: id,
            class,
            range,
            items,
        })
    }

    /// Sets the class after [`NextTx::NeedsClass`]. If the class changes, the first channel without
    /// a sent frame and all newer ones are dropped, and their blocks are encoded again.
    pub fn set_class(&mut self, class: TxClass) {
        self.class_is_set = true;
        if class == self.class {
            return;
        }
        self.class = class;
        self.notices.push(BatcherNotice::ClassChanged(class));
        let is_next = |channel: &QueuedChannel| channel.is_untouched() && channel.class() != class;
        if let Some(at) = self.channels.iter().position(is_next) {
            self.drop_channels(at);
        }
    }

    /// Notes that transaction `number` is confirmed in L1 block `l1_block`.
    pub fn on_confirmed(&mut self, number: BatchTxNumber, l1_block: u64) {
        let Some((at, range)) = self.take_sent(number) else {
            return;
        };
        let channel = &mut self.channels[at];
        channel.on_inclusion(range, l1_block);
        let id = channel.id();
        let l1_blocks = channel.inclusion().unwrap_or_default();
        if channel.is_timed_out(self.rules.times.channel_timeout()) {
            let notice = BatcherNotice::ChannelTimedOut { id, l1_blocks };
            self.notices.push(notice);
            self.drop_channels(at);
        } else if channel.is_complete() {
            let notice = BatcherNotice::ChannelSubmitted { id, l1_blocks };
            self.notices.push(notice);
        }
    }

    /// Notes that transaction `number` failed: its frames and all later ones of its channel are
    /// sent again.
    pub fn on_failed(&mut self, number: BatchTxNumber) {
        let Some((at, range)) = self.take_sent(number) else {
            return;
        };
        let channel = &mut self.channels[at];
        channel.on_failure(range);
        // L1 may include later frames in flight before the repeated ones. Derivation would ignore
        // them.
        let id = channel.id();
        let is_later = |sent: &SentRange| sent.channel == id && sent.range.begin >= range.begin;
        self.sent.retain(|_, sent| {
            if is_later(sent) {
                channel.on_failure(sent.range);
            }
            !is_later(sent)
        });
    }

    /// Removes a transaction in flight. Returns its channel's position and its frames, or `None` if
    /// the outcome no longer matters.
    fn take_sent(&mut self, number: BatchTxNumber) -> Option<(usize, FrameRange)> {
        let sent = self.sent.remove(&number)?;
        let mut channels = self.channels.iter();
        let at = channels.position(|channel| channel.id() == sent.channel)?;
        Some((at, sent.range))
    }

    /// Takes the notices since the last call.
    pub fn take_notices(&mut self) -> Vec<BatcherNotice> {
        std::mem::take(&mut self.notices)
    }

    /// Amount of batch data whose blocks are not safe yet.
    pub fn load(&self) -> UnsafeLoad {
        let open = self.channels.back().filter(|last| last.closed().is_none());
        let closed = self.channels.iter().filter(|one| one.closed().is_some());
        let next = self.next_block();
        let waiting = self.held.totals(next);
        let mut in_open = BlockTotals::default();
        if let Some(span) = open.and_then(QueuedChannel::span) {
            let from_open = self.held.totals(span.first.id.number);
            in_open = BlockTotals {
                blocks: from_open.blocks - waiting.blocks,
                ..from_open
            };
            in_open.sizes.da -= waiting.sizes.da;
            in_open.sizes.raw -= waiting.sizes.raw;
        }
        UnsafeLoad {
            loaded: self.held.totals(self.held.base().number + 1),
            waiting,
            unloaded: self
                .unsafe_head
                .map_or(0, |head| head.saturating_sub(self.newest())),
            open: in_open,
            closed_bytes: closed.map(|channel| channel.sizes().output).sum(),
        }
    }

    /// Total bytes of the bodies in memory.
    pub fn body_bytes(&self) -> usize {
        self.held.body_bytes()
    }

    /// Class of the next channel.
    pub fn class(&self) -> TxClass {
        self.class
    }

    /// Number of channels in the queue, which are those not yet safe.
    pub fn queue_len(&self) -> usize {
        self.channels.len()
    }

    /// Drops the channel at position `from` and all newer ones. Their blocks are encoded again.
    fn drop_channels(&mut self, from: usize) {
        for channel in self.channels.split_off(from) {
            let (id, span) = (channel.id(), channel.span());
            self.notices
                .push(BatcherNotice::ChannelDropped { id, span });
        }
        // Free the memory budget for the bodies of the dropped channels' blocks, which are encoded
        // first.
        self.held.drop_bodies();
    }
}

#[cfg(test)]
mod tests;
