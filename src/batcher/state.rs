//! Everything that the batcher decides: which blocks to load, how they become channels, which data
//! go to L1 next, and what an answer of L1 changes. Pure: it reads no clock and does no I/O.
//!
//! Blocks, channels and transactions are three queues in the same order. The next block to encode is
//! the one after the newest channel's last block, so that dropping channels takes their blocks back
//! without a copy. A channel is dropped together with all newer ones when its frames are too far
//! apart on L1, or when the data move between calldata and blobs. A transaction that fails takes back the
//! frames from its first one on. Nothing is kept on disk: after a restart everything above the safe
//! head is posted again.

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

/// A transaction in flight.
#[derive(Clone, Copy, Debug)]
struct SentRange {
    channel: ChannelId,
    range: FrameRange,
}

/// The queues. See the module's documentation.
#[derive(Debug)]
pub struct BatcherState {
    rules: BatcherRules,
    /// Random, the same for all channels of the state.
    seed: B256,
    held: HeldBlocks,
    /// Oldest first; only the last may be open.
    channels: VecDeque<QueuedChannel>,
    /// Transactions in flight. The outcome of one whose channel was dropped changes nothing.
    sent: BTreeMap<BatchTxNumber, SentRange>,
    last_number: BatchTxNumber,
    channels_made: u64,
    class: TxClass,
    /// Whether [`Self::set_class`] was called for the channel whose first transaction is next.
    class_is_set: bool,
    /// L1 block up to which the node had derived at the last status.
    last_l1: u64,
    /// Number of the newest L2 block; `None` until a status is accepted, also after a reorg.
    unsafe_head: Option<u64>,
    /// Highest number of a block that was loaded, also before everything was dropped.
    loaded_through: u64,
    /// Newest L1 origin of the channels that were sent, or that of the safe head.
    last_origin: u64,
    notices: Vec<BatcherNotice>,
}

impl BatcherState {
    /// Without blocks. `seed` is random; the channels' ids come from it.
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
            notices: Vec::new(),
        }
    }

    /// Takes over the heads of the rollup node.
    pub fn on_status(&mut self, status: &SourceStatus) -> Result<(), OutOfSync> {
        let outcomes = self.channels.iter().filter_map(QueuedChannel::outcome);
        match decide(status, self.last_l1, &self.held, outcomes) {
            SyncDecision::Wait(reason) => return Err(reason),
            SyncDecision::Clear(cause) => {
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

    /// Loading begins above the safe head.
    fn restart(&mut self, status: &SourceStatus) {
        self.held.restart(status.local_safe_l2.id);
        self.channels.clear();
        // The L1 origin of the L2 genesis block may be reported as zero.
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

    /// Drops everything. Transactions in flight go on; their outcome does not matter any more.
    fn clear(&mut self, cause: ClearCause) {
        self.notices.push(BatcherNotice::Cleared(cause));
        self.held.restart(BlockId::default());
        self.channels.clear();
        (self.last_origin, self.unsafe_head) = (0, None);
    }

    /// Drops everything because of an L2 reorg, until the next status.
    pub fn on_reorg(&mut self) {
        self.clear(ClearCause::UnsafeReorg);
    }

    /// Number of the block to load next, above `after` if that is being loaded. `None` if the bodies
    /// in memory are enough for now. `last` is the newest block to load.
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

    /// Takes a block that was loaded.
    pub fn on_block(&mut self, payload: Arc<Payload>) -> Insertion {
        let number = payload.number();
        let insertion = self.held.insert(payload);
        if matches!(insertion, Insertion::Held) {
            self.loaded_through = self.loaded_through.max(number);
        }
        insertion
    }

    /// Number of the next block to encode.
    pub fn next_block(&self) -> u64 {
        let mut spans = self.channels.iter().rev().filter_map(QueuedChannel::span);
        let last = spans.next().map(|span| span.last.id.number);
        last.unwrap_or(self.held.base().number) + 1
    }

    /// Number of the newest block that was loaded.
    pub fn newest(&self) -> u64 {
        self.held.newest().number
    }

    /// Highest number of a block that was loaded. A reorg may have made the chain shorter since.
    pub fn loaded_through(&self) -> u64 {
        self.loaded_through
    }

    /// Number of the newest L2 block, as the last status has it. `None`: any block may exist.
    pub fn unsafe_head(&self) -> Option<u64> {
        self.unsafe_head
    }

    /// Whether nothing is left to post of the blocks up to this one. Blocks above the newest one do
    /// not exist since an L2 reorg; without a status it is not known which do.
    pub fn is_posted_through(&self, number: u64) -> bool {
        let is_closed = |head: u64| self.is_closed_through(number.min(head));
        number == 0 || (self.unsafe_head.is_some_and(is_closed) && self.is_submitted())
    }

    /// Whether all blocks up to this one are in closed channels.
    pub fn is_closed_through(&self, number: u64) -> bool {
        let open = self.channels.back().filter(|last| last.closed().is_none());
        let first_open = open.and_then(|open| Some(open.span()?.first.id.number));
        self.next_block() > number && first_open.is_none_or(|first| first > number)
    }

    /// Whether all channels are closed and confirmed.
    pub fn is_submitted(&self) -> bool {
        self.channels.iter().all(QueuedChannel::is_complete)
    }

    /// The last L1 block with frames of a channel that is not safe.
    pub fn last_inclusion(&self) -> Option<u64> {
        let inclusions = self.channels.iter().filter_map(QueuedChannel::inclusion);
        inclusions.map(|(_, last)| last).max()
    }

    /// First and last block that are not known to be on L1.
    pub fn unposted(&self) -> Option<(u64, u64)> {
        let mut channels = self.channels.iter();
        let open = channels.find(|channel| !channel.is_complete());
        let first = open.and_then(|open| Some(open.span()?.first.id.number));
        let first = first.unwrap_or_else(|| self.next_block());
        let last = match self.unsafe_head {
            Some(head) => self.newest().max(head),
            // Everything was dropped, and no status has come since.
            None => self.loaded_through,
        };
        (first <= last).then_some((first, last))
    }

    /// The next transaction. This encodes blocks until one is ready or none is left, which takes
    /// processor time: up to some seconds for a large channel.
    pub fn next_tx(&mut self, context: &PublishContext) -> NextTx {
        let class_is_set = std::mem::take(&mut self.class_is_set);
        if !self.channels.iter().any(QueuedChannel::has_data) {
            self.encode(context);
        }
        let Some(at) = self.channels.iter().position(QueuedChannel::has_data) else {
            return NextTx::Nothing;
        };
        let channel = &mut self.channels[at];
        if channel.is_untouched() && !class_is_set {
            return NextTx::NeedsClass;
        }
        let Some((range, items)) = channel.take() else {
            return NextTx::Nothing;
        };
        let (id, class) = (channel.id(), channel.class());
        let origin = channel.span().map_or(0, |span| span.last.origin.number);
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

    /// Answers [`NextTx::NeedsClass`]. If the class is another one than before, the channel and those
    /// after it are dropped; their blocks are encoded again.
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

    /// A transaction is confirmed in the L1 block with this number.
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

    /// A transaction was given up: its frames and those of the channel after them are sent again.
    pub fn on_failed(&mut self, number: BatchTxNumber) {
        let Some((at, range)) = self.take_sent(number) else {
            return;
        };
        let channel = &mut self.channels[at];
        channel.on_failure(range);
        // Later frames in flight may arrive before the ones that are repeated, and be ignored.
        let id = channel.id();
        let is_later = |sent: &SentRange| sent.channel == id && sent.range.begin >= range.begin;
        self.sent.retain(|_, sent| {
            if is_later(sent) {
                channel.on_failure(sent.range);
            }
            !is_later(sent)
        });
    }

    /// Removes a transaction in flight. Returns its channel's position and its frames; `None` if they do not
    /// count any more.
    fn take_sent(&mut self, number: BatchTxNumber) -> Option<(usize, FrameRange)> {
        let sent = self.sent.remove(&number)?;
        let mut channels = self.channels.iter();
        let at = channels.position(|channel| channel.id() == sent.channel)?;
        Some((at, sent.range))
    }

    /// Events since the last call.
    pub fn take_notices(&mut self) -> Vec<BatcherNotice> {
        std::mem::take(&mut self.notices)
    }

    /// Batch data whose blocks are not safe yet.
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
            waiting,
            unloaded: self
                .unsafe_head
                .map_or(0, |head| head.saturating_sub(self.newest())),
            open: in_open,
            closed_bytes: closed.map(|channel| channel.sizes().output).sum(),
        }
    }

    /// Bytes of the bodies in memory.
    pub fn body_bytes(&self) -> usize {
        self.held.body_bytes()
    }

    /// Class of the next channel.
    pub fn class(&self) -> TxClass {
        self.class
    }

    /// Number of channels that are not safe.
    pub fn queue_len(&self) -> usize {
        self.channels.len()
    }

    /// Drops a channel and those after it. Their blocks are encoded again.
    fn drop_channels(&mut self, from: usize) {
        for channel in self.channels.split_off(from) {
            let (id, span) = (channel.id(), channel.span());
            self.notices
                .push(BatcherNotice::ChannelDropped { id, span });
        }
        // The budget of bodies is for the blocks that come next now.
        self.held.drop_bodies();
    }
}

#[cfg(test)]
mod tests;
