//! A channel from its first block until its blocks are safe: the encoder while the channel is open,
//! its frames, and their progress on L1.

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

/// Parameters of the channels of one transaction class.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ChannelPlan {
    /// Class of the transactions that carry the channels.
    pub class: TxClass,
    /// Settings of the channels' encoder.
    pub settings: EncoderSettings,
}

impl ChannelPlan {
    /// Frames per transaction: one in calldata, or one in each blob.
    fn frames_per_tx(&self) -> usize {
        match self.class {
            TxClass::Calldata => 1,
            TxClass::Blob => self.settings.target_frames as usize,
        }
    }
}

/// First and last block of a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockSpan {
    /// Oldest block of the channel.
    pub first: ChannelBlock,
    /// Newest block of the channel.
    pub last: ChannelBlock,
}

/// Sizes of a channel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChannelSizes {
    /// Number of blocks in the channel.
    pub blocks: usize,
    /// Number of frames encoded so far.
    pub frames: usize,
    /// Uncompressed bytes of the blocks.
    pub input: u64,
    /// Bytes of the encoded frames, frame headers included.
    pub output: u64,
}

/// A channel in the batcher's queue.
#[derive(Debug)]
pub struct QueuedChannel {
    id: ChannelId,
    class: TxClass,
    frames_per_tx: usize,
    /// `None` once the channel is closed: by then all its frames are in `items`.
    encoder: Option<Box<ChannelEncoder>>,
    span: Option<BlockSpan>,
    sizes: ChannelSizes,
    closed: Option<CloseReason>,
    /// Encoded frames, one data item per frame; emptied once the channel is complete.
    items: Vec<Bytes>,
    progress: FrameProgress,
    deadline: ChannelDeadline,
}

impl QueuedChannel {
    /// Creates an empty channel. `fjord` is whether the chain is in Fjord at the channel's first
    /// block.
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

    /// ID of the channel, which each of its frames carries.
    pub fn id(&self) -> ChannelId {
        self.id
    }

    /// Class of the transactions that carry the channel.
    pub fn class(&self) -> TxClass {
        self.class
    }

    /// First and last block; `None` while the channel is empty.
    pub fn span(&self) -> Option<BlockSpan> {
        self.span
    }

    /// Sizes of the channel so far.
    pub fn sizes(&self) -> ChannelSizes {
        self.sizes
    }

    /// The reason why the channel accepts no further block; `None` while it is open.
    pub fn closed(&self) -> Option<CloseReason> {
        self.closed
    }

    /// Numbers of the first and the last L1 block that include frames of the channel.
    pub fn inclusion(&self) -> Option<(u64, u64)> {
        Some((
            self.progress.first_inclusion()?,
            self.progress.last_inclusion()?,
        ))
    }

    /// Adds the next block; see [`ChannelEncoder::add`].
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

    /// Closes the channel if its deadline has come when L1 is at height `l1_head`.
    pub fn close_if_due(&mut self, l1_head: u64) -> Result<(), EncoderError> {
        match self.deadline.due(l1_head) {
            Some(reason) => self.close(reason),
            None => Ok(()),
        }
    }

    /// Closes the channel, which may remove its last blocks; see [`ChannelEncoder::close`].
    pub fn close(&mut self, reason: CloseReason) -> Result<(), EncoderError> {
        if let Some(encoder) = self.encoder.as_mut() {
            encoder.close(reason)?;
            self.update()?;
        }
        Ok(())
    }

    /// Copies the encoder's finished frames, blocks, sizes and close reason into this channel.
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

    /// Whether none of the channel's frames is in flight or on L1.
    pub fn is_untouched(&self) -> bool {
        self.progress.is_untouched()
    }

    /// Whether enough frames are ready for another transaction.
    pub fn has_data(&self) -> bool {
        self.next_range(&mut self.progress.clone()).is_some()
    }

    /// Takes the data items of the next transaction, with the range of frames that they are.
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

    /// Notes that the transaction with these frames failed, so that they are sent again.
    pub fn on_failure(&mut self, range: FrameRange) {
        self.progress.on_failure(range);
    }

    /// Notes that the transaction with these frames is confirmed in L1 block `l1_block`.
    pub fn on_inclusion(&mut self, range: FrameRange, l1_block: u64) {
        self.progress.on_inclusion(range, l1_block);
        self.deadline.on_inclusion(l1_block);
        if self.is_complete() {
            self.items = Vec::new();
        }
    }

    /// Whether derivation drops the channel because its frames are too far apart on L1.
    pub fn is_timed_out(&self, channel_timeout: u64) -> bool {
        self.progress.is_timed_out(channel_timeout)
    }

    /// Whether the channel is closed and all its frames are confirmed.
    pub fn is_complete(&self) -> bool {
        self.closed.is_some() && self.progress.is_complete(self.sizes.frames)
    }

    /// Progress of the channel for [`super::sync_actions::decide`]; `None` while the channel is
    /// empty.
    pub fn outcome(&self) -> Option<ChannelOutcome> {
        let last_inclusion = self.progress.last_inclusion();
        Some(ChannelOutcome {
            newest_l2: self.span?.last.id.number,
            complete_at: last_inclusion.filter(|_| self.is_complete()),
        })
    }
}
