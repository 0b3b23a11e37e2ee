//! A channel from its first block until its blocks are safe: the encoder while it is open, its data
//! items, and their way to L1.

use super::sync_actions::ChannelOutcome;
use crate::txmgr::fees::TxClass;
use alloy_primitives::Bytes;
use starling_proto::{
    channel::{BatchContext, ChannelWriteError},
    encoder::{
        ChannelBlock, ChannelDeadline, ChannelEncoder, CloseReason, EncoderError, EncoderSettings,
        FrameProgress, FrameRange,
    },
    frame::{self, ChannelId},
    payload::Payload,
};

/// Channels of one class of transactions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ChannelPlan {
    /// Class of the transactions.
    pub class: TxClass,
    /// Settings of the encoder.
    pub settings: EncoderSettings,
}

impl ChannelPlan {
    /// Frames in a transaction: one in calldata, one in each blob.
    fn frames_per_tx(&self) -> usize {
        match self.class {
            TxClass::Calldata => 1,
            TxClass::Blob => self.settings.target_frames as usize,
        }
    }
}

/// Consecutive blocks of a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockSpan {
    /// Oldest block.
    pub first: ChannelBlock,
    /// Newest block.
    pub last: ChannelBlock,
}

/// Sizes of a channel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChannelSizes {
    /// Blocks.
    pub blocks: usize,
    /// Frames that are made.
    pub frames: usize,
    /// Uncompressed bytes.
    pub input: u64,
    /// Compressed bytes in frames, with the frames' overhead.
    pub output: u64,
}

/// A channel in the queue.
#[derive(Debug)]
pub struct QueuedChannel {
    id: ChannelId,
    class: TxClass,
    frames_per_tx: usize,
    /// `None` once the channel is closed and its frames are taken.
    encoder: Option<Box<ChannelEncoder>>,
    span: Option<BlockSpan>,
    sizes: ChannelSizes,
    closed: Option<CloseReason>,
    /// Data items of one frame each; empty once the channel is complete.
    items: Vec<Bytes>,
    progress: FrameProgress,
    deadline: ChannelDeadline,
}

impl QueuedChannel {
    /// An empty channel. `fjord` tells whether its first block is in Fjord.
    pub fn new(
        id: ChannelId,
        plan: &ChannelPlan,
        context: BatchContext,
        fjord: bool,
        deadline: ChannelDeadline,
    ) -> Result<Self, EncoderError> {
        let encoder = ChannelEncoder::new(id, &plan.settings, context, fjord)?;
        Ok(Self {
            id,
            class: plan.class,
            frames_per_tx: plan.frames_per_tx(),
            encoder: Some(Box::new(encoder)),
            span: None,
            sizes: ChannelSizes::default(),
            closed: None,
            items: Vec::new(),
            progress: FrameProgress::default(),
            deadline,
        })
    }

    /// Name of the channel in its frames.
    pub fn id(&self) -> ChannelId {
        self.id
    }

    /// Class of the transactions.
    pub fn class(&self) -> TxClass {
        self.class
    }

    /// The blocks; `None` before the first.
    pub fn span(&self) -> Option<BlockSpan> {
        self.span
    }

    /// Sizes so far.
    pub fn sizes(&self) -> ChannelSizes {
        self.sizes
    }

    /// The reason why the channel takes no further block; `None` while it is open.
    pub fn closed(&self) -> Option<CloseReason> {
        self.closed
    }

    /// Numbers of the first and the last L1 block with frames.
    pub fn inclusion(&self) -> Option<(u64, u64)> {
        Some((
            self.progress.first_inclusion()?,
            self.progress.last_inclusion()?,
        ))
    }

    /// Adds the next block, as [`ChannelEncoder::add`] does.
    pub fn add(&mut self, payload: &Payload) -> Result<(), EncoderError> {
        let Some(encoder) = self.encoder.as_mut() else {
            return Ok(());
        };
        if encoder.add(payload)?
            && let Some(added) = encoder.last()
        {
            self.deadline.on_block(added.origin.number);
        }
        self.update()?;
        Ok(())
    }

    /// Closes the channel if L1 at this height leaves it no more time.
    pub fn close_if_due(&mut self, l1_head: u64) -> Result<(), EncoderError> {
        match self.deadline.due(l1_head) {
            Some(reason) => self.close(reason),
            None => Ok(()),
        }
    }

    /// Closes the channel. Its last blocks may leave it, as [`ChannelEncoder::close`] says.
    pub fn close(&mut self, reason: CloseReason) -> Result<(), EncoderError> {
        if let Some(encoder) = self.encoder.as_mut() {
            encoder.close(reason)?;
            self.update()?;
        }
        Ok(())
    }

    /// Takes over what the encoder has: blocks, finished frames, the reason to close.
    fn update(&mut self) -> Result<(), ChannelWriteError> {
        let Some(encoder) = self.encoder.as_mut() else {
            return Ok(());
        };
        while let Some(frame) = encoder.next_frame()? {
            self.items.push(frame::encode(&[frame]).into());
        }
        let ends = encoder.first().zip(encoder.last());
        self.span = ends.map(|(first, last)| BlockSpan {
            first: *first,
            last: *last,
        });
        self.closed = encoder.close_reason();
        self.sizes = ChannelSizes {
            blocks: encoder.blocks().len(),
            frames: encoder.frames(),
            input: encoder.input_len(),
            output: encoder.frame_bytes(),
        };
        if self.closed.is_some() {
            self.encoder = None;
        }
        Ok(())
    }

    /// Whether no frame is in flight or on L1.
    pub fn is_untouched(&self) -> bool {
        self.progress.is_untouched()
    }

    /// Whether a transaction can be made.
    pub fn has_data(&self) -> bool {
        self.next_range(&mut self.progress.clone()).is_some()
    }

    /// Data items of the next transaction, and their place in the channel.
    pub fn take(&mut self) -> Option<(FrameRange, Vec<Bytes>)> {
        let mut progress = std::mem::take(&mut self.progress);
        let range = self.next_range(&mut progress);
        self.progress = progress;
        let range = range?;
        Some((range, self.items.get(range.indices())?.to_vec()))
    }

    fn next_range(&self, progress: &mut FrameProgress) -> Option<FrameRange> {
        progress.take(self.items.len(), self.frames_per_tx, self.closed.is_some())
    }

    /// The transaction with these frames failed.
    pub fn on_failure(&mut self, range: FrameRange) {
        self.progress.on_failure(range);
    }

    /// The transaction with these frames is confirmed in an L1 block.
    pub fn on_inclusion(&mut self, range: FrameRange, l1_block: u64) {
        self.progress.on_inclusion(range, l1_block);
        self.deadline.on_inclusion(l1_block);
        if self.is_complete() {
            self.items = Vec::new();
        }
    }

    /// Whether readers drop the channel because its frames are too far apart.
    pub fn is_timed_out(&self, channel_timeout: u64) -> bool {
        self.progress.is_timed_out(channel_timeout)
    }

    /// Whether all frames are confirmed, and there will be no more.
    pub fn is_complete(&self) -> bool {
        self.closed.is_some() && self.progress.is_complete(self.sizes.frames)
    }

    /// Posting of the channel; `None` without a block.
    pub fn outcome(&self) -> Option<ChannelOutcome> {
        let last_inclusion = self.progress.last_inclusion();
        Some(ChannelOutcome {
            newest_l2: self.span?.last.id.number,
            complete_at: last_inclusion.filter(|_| self.is_complete()),
        })
    }
}
