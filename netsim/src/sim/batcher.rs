//! The batcher of a world: puts the sequencer's blocks into channels and posts their frames to L1.
//! Channels, their deadlines and the progress of their frames are production machines
//! (`starling_proto::encoder`). The loop around them is a model: it stands for channel manager and
//! transaction manager of the `starling` crate, which this crate does not have.
//!
//! A transaction that an L1 reorg removed is posted again. If the safe head does not follow, or if
//! the sequencer's chain no longer has the posted blocks, all blocks above the safe head are posted
//! again, as op-batcher does.

use super::{
    checks::origin_of,
    l1::{PostState, SimL1},
    plan::DerivationPlan,
    planted::PlantedBug,
    queue::{SECOND, SimTime},
    rollup::WINDOW,
    tree::TreeChain,
    world::{BLOCK_TIME, CHAIN_ID, GENESIS_TIME, SimContext},
};
use starling_proto::{
    channel::{BatchContext, ChannelCompression, ChannelWriteError},
    derive::CHANNEL_TIMEOUT_GRANITE,
    encoder::{
        BatchFormat, ChannelDeadline, ChannelEncoder, ChannelTimes, CompressorKind, EncoderError,
        EncoderSettings, FrameProgress, FrameRange,
    },
    frame::{self, ChannelId, Frame},
    payload::{BlockId, Payload},
};
use std::{collections::VecDeque, sync::Arc};

/// L1 blocks on an inclusion after which it counts.
const CONFIRMATIONS: u64 = 2;
/// L1 blocks by which a channel closes before one of its limits.
const MARGIN: u64 = 4;
/// Time after which a safe head that does not follow counts as stalled. A channel takes at most
/// six L1 blocks to close, and its frames up to three to be derived from.
const STALL: SimTime = 110 * SECOND;

/// A channel whose frames are not all on L1.
struct SimChannel {
    encoder: ChannelEncoder,
    frames: Vec<Frame>,
    progress: FrameProgress,
    deadline: ChannelDeadline,
    /// Transactions in flight, with their frames.
    posts: Vec<(u64, FrameRange)>,
}

impl SimChannel {
    fn is_closed(&self) -> bool {
        self.encoder.close_reason().is_some()
    }

    fn is_complete(&self) -> bool {
        self.is_closed() && self.progress.is_complete(self.frames.len())
    }

    /// Closes the channel at its deadline, and takes the frames that are ready.
    fn advance(&mut self, l1_head: u64) -> Result<(), EncoderError> {
        if let Some(reason) = self.deadline.due(l1_head) {
            self.encoder.close(reason)?;
        }
        while let Some(frame) = self.encoder.next_frame().map_err(write_error)? {
            self.frames.push(frame);
        }
        Ok(())
    }

    /// Reports the transactions that L1 has included or lost.
    fn settle(&mut self, context: &SimContext) {
        let (l1, now) = (&context.l1, context.now);
        let forgotten = context.has_bug(PlantedBug::RepostForgotten);
        let (progress, deadline) = (&mut self.progress, &mut self.deadline);
        self.posts.retain(|(id, range)| match l1.state(*id, now) {
            PostState::Included(number) if number + CONFIRMATIONS <= SimL1::head(now) => {
                progress.on_inclusion(*range, number);
                deadline.on_inclusion(number);
                false
            }
            PostState::Pending | PostState::Included(_) => true,
            PostState::Lost if forgotten => true,
            PostState::Lost => {
                progress.on_failure(*range);
                false
            }
        });
    }
}

/// The block with its L1 attributes alone, as a batcher with that bug reads it.
fn without_transactions(block: &Payload) -> Arc<Payload> {
    let mut block = block.clone();
    block.transactions.truncate(1);
    Arc::new(block)
}

fn write_error(error: ChannelWriteError) -> EncoderError {
    error.into()
}

/// The batcher's state.
pub struct SimBatcher {
    settings: EncoderSettings,
    times: ChannelTimes,
    /// The channels in the order of their blocks. Only the last one may be open.
    channels: VecDeque<SimChannel>,
    /// The last block that is in a channel.
    last: BlockId,
    safe: BlockId,
    /// The last time at which the safe head moved, or at which it could not.
    moved: SimTime,
    /// Number of channels so far, and number of transactions.
    opened: u64,
    posted: u64,
}

impl SimBatcher {
    pub fn new(plan: &DerivationPlan, genesis: BlockId) -> Self {
        let duration = plan.channel_duration;
        Self {
            settings: EncoderSettings {
                format: BatchFormat::Singular,
                kind: CompressorKind::Ratio(0.6),
                compression: ChannelCompression::Zlib,
                max_frame_size: plan.frame_size,
                target_frames: plan.target_frames,
            },
            times: ChannelTimes::new(duration, CHANNEL_TIMEOUT_GRANITE, WINDOW, MARGIN)
                .expect("the margin is below the timeout"),
            channels: VecDeque::new(),
            last: genesis,
            safe: genesis,
            moved: 0,
            opened: 0,
            posted: 0,
        }
    }

    /// Does the work that is due. `chain` is that of the sequencer's node.
    pub fn step(&mut self, node: usize, chain: &TreeChain, context: &mut SimContext) {
        let (now, safe) = (context.now, chain.heads().safe);
        if !context.l1.reachable {
            self.moved = now;
            return;
        }
        if safe != self.safe {
            (self.safe, self.moved) = (safe, now);
        }
        let stalled = safe.number < self.last.number && now - self.moved > STALL;
        let stalled = stalled && !context.has_bug(PlantedBug::RepostForgotten);
        let timeout = self.times.channel_timeout();
        let late = |channel: &SimChannel| channel.progress.is_timed_out(timeout);
        if stalled || self.channels.iter().any(late) || !self.continues(chain) {
            let text = format_args!("posts again from {safe}");
            context.history.note(now, node, text);
            self.channels.clear();
            (self.last, self.moved) = (safe, now);
        }
        if let Err(error) = self.fill(chain, context) {
            let detail = format!("the batcher stops: {error}");
            context.checks.fail(now, node, "batcher", detail);
        }
        for channel in &mut self.channels {
            channel.settle(context);
        }
        self.post(node, context);
        self.channels.retain(|channel| !channel.is_complete());
    }

    /// Whether the next block of this chain extends the blocks in channels.
    fn continues(&self, chain: &TreeChain) -> bool {
        let safe = chain.heads().safe.number;
        chain.is_canonical(self.last) && safe <= self.last.number
    }

    /// Adds the blocks that are in no channel yet.
    fn fill(&mut self, chain: &TreeChain, context: &SimContext) -> Result<(), EncoderError> {
        let l1_head = SimL1::head(context.now);
        while let Some(block) = chain.at(self.last.number + 1).cloned() {
            if self.channels.back().is_none_or(SimChannel::is_closed) {
                let channel = self.open(chain, context)?;
                self.channels.push_back(channel);
            }
            let emptied = context.has_bug(PlantedBug::BatchWithoutTransactions)
                && block.number().is_multiple_of(10);
            self.add(&if emptied {
                without_transactions(&block)
            } else {
                block
            })?;
            if let Some(channel) = self.channels.back_mut() {
                channel.advance(l1_head)?;
            }
        }
        self.channels
            .iter_mut()
            .try_for_each(|channel| channel.advance(l1_head))
    }

    fn open(
        &mut self,
        chain: &TreeChain,
        context: &SimContext,
    ) -> Result<SimChannel, EncoderError> {
        self.opened += 1;
        let id = ChannelId::left_padding_from(&self.opened.to_be_bytes());
        let last = chain.get(&self.last.hash).unwrap_or(&context.genesis);
        let origin = SimL1::number(&origin_of(last));
        let batches = BatchContext {
            genesis_time: GENESIS_TIME,
            block_time: BLOCK_TIME,
            chain_id: CHAIN_ID,
        };
        Ok(SimChannel {
            encoder: ChannelEncoder::new(id, &self.settings, batches, true)?,
            frames: Vec::new(),
            progress: FrameProgress::default(),
            deadline: ChannelDeadline::new(self.times, origin),
            posts: Vec::new(),
        })
    }

    /// Adds a block to the open channel, unless the channel is full without it.
    fn add(&mut self, block: &Arc<Payload>) -> Result<(), EncoderError> {
        let Some(channel) = self.channels.back_mut() else {
            return Ok(());
        };
        if channel.encoder.add(block)? {
            let origin = SimL1::number(&origin_of(block));
            channel.deadline.on_block(origin);
            self.last = block.id();
        }
        Ok(())
    }

    /// Posts the frames that are ready, one transaction for each.
    fn post(&mut self, node: usize, context: &mut SimContext) {
        for channel in &mut self.channels {
            let (made, closed) = (channel.frames.len(), channel.is_closed());
            while let Some(range) = channel.progress.take(made, 1, closed) {
                self.posted += 1;
                let data = frame::encode(&channel.frames[range.indices()]);
                let text = format_args!("posts frame {} of {}", range.begin, channel.encoder.id());
                context.history.note(context.now, node, text);
                context.l1.post(self.posted, data.into());
                channel.posts.push((self.posted, range));
            }
        }
    }
}
