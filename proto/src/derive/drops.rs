//! Counters of what derivation reads and discards. A hostile batcher decides how much that is, so it is
//! counted and not stored.

/// Counts of frames and batches that derivation has read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReadCounts {
    /// Frames, also those that no channel takes.
    pub frames: u64,
    /// Channels that became the head of the channel bank (op-node: RecordHeadChannelOpened): the first
    /// of an empty bank, and one for each channel read.
    pub head_channels: u64,
    /// Compressed bytes of the channels that are read.
    pub channel_bytes: u64,
    /// Singular batches that decode.
    pub singular_batches: u64,
    /// Span batches that decode.
    pub span_batches: u64,
}

/// The reason why derivation discarded something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum DropReason {
    /// A configuration log that changes nothing, seen by the L1 traversal.
    ConfigLog,
    /// A transaction to the inbox by anybody but the batcher.
    Sender,
    /// A blob that holds no data.
    Blob,
    /// A data item whose frames do not parse, or whose version is unknown.
    Frames,
    /// A frame out of order among the frames of its data item (Holocene).
    FrameOrder,
    /// A frame whose channel does not take it.
    Frame,
    /// A frame of a channel that has timed out.
    LateFrame,
    /// A channel that was open for too long.
    ChannelTimeout,
    /// A channel that exceeded the size of a channel or of the bank.
    ChannelSize,
    /// A channel that another one replaced before it was complete (Holocene).
    ChannelReplaced,
    /// A channel whose data cannot be decompressed, or only up to some batch.
    Channel,
    /// A channel discarded because one of its batches, or a block made of it, was invalid.
    ChannelFlushed,
    /// One malformed batch of a channel that can be read on.
    BatchFormat,
    /// A span batch before Delta.
    SpanBeforeDelta,
    /// A batch included in or before the L1 origin of the safe head.
    BatchBehind,
    /// A batch for blocks that are already safe.
    PastBatch,
    /// A batch beyond the next block (Holocene).
    FutureBatch,
    /// A batch whose blocks do not follow the safe chain by time.
    BatchTime,
    /// A batch on another parent.
    BatchParent,
    /// A batch included after the end of its sequencing window.
    BatchWindow,
    /// A batch whose L1 origin is too old, too new or on another branch.
    BatchOrigin,
    /// A batch with transactions beyond the sequencer drift, or that should have taken the next
    /// L1 origin.
    SequencerDrift,
    /// A batch with an empty transaction, a deposit, or a type that its fork does not have.
    BatchTransaction,
    /// A batch with transactions for a block that activates an upgrade.
    ActivationBlock,
    /// A span batch that differs from the safe chain where they overlap.
    SpanOverlap,
    /// A batch that cannot be judged yet, mostly because its L1 origin is not derived: Holocene
    /// skips the batch instead of waiting (op-node: BatchUndecided).
    BatchUndecided,
    /// The remaining blocks of a span batch after one of them turned out invalid.
    SpanRest,
    /// A block that the execution engine refused.
    InvalidBlock,
}

impl DropReason {
    /// Every reason, in the order of its counter.
    pub const ALL: [DropReason; 28] = [
        Self::ConfigLog,
        Self::Sender,
        Self::Blob,
        Self::Frames,
        Self::FrameOrder,
        Self::Frame,
        Self::LateFrame,
        Self::ChannelTimeout,
        Self::ChannelSize,
        Self::ChannelReplaced,
        Self::Channel,
        Self::ChannelFlushed,
        Self::BatchFormat,
        Self::SpanBeforeDelta,
        Self::BatchBehind,
        Self::PastBatch,
        Self::FutureBatch,
        Self::BatchTime,
        Self::BatchParent,
        Self::BatchWindow,
        Self::BatchOrigin,
        Self::SequencerDrift,
        Self::BatchTransaction,
        Self::ActivationBlock,
        Self::SpanOverlap,
        Self::BatchUndecided,
        Self::SpanRest,
        Self::InvalidBlock,
    ];

    /// The label of this reason in logs and metrics.
    pub const fn label(self) -> &'static str {
        match self {
            Self::ConfigLog => "config_log",
            Self::Sender => "sender",
            Self::Blob => "blob",
            Self::Frames => "frames",
            Self::FrameOrder => "frame_order",
            Self::Frame => "frame",
            Self::LateFrame => "late_frame",
            Self::ChannelTimeout => "channel_timeout",
            Self::ChannelSize => "channel_size",
            Self::ChannelReplaced => "channel_replaced",
            Self::Channel => "channel",
            Self::ChannelFlushed => "channel_flushed",
            Self::BatchFormat => "batch_format",
            Self::SpanBeforeDelta => "span_before_delta",
            Self::BatchBehind => "batch_behind",
            Self::PastBatch => "past_batch",
            Self::FutureBatch => "future_batch",
            Self::BatchTime => "batch_time",
            Self::BatchParent => "batch_parent",
            Self::BatchWindow => "batch_window",
            Self::BatchOrigin => "batch_origin",
            Self::SequencerDrift => "sequencer_drift",
            Self::BatchTransaction => "batch_transaction",
            Self::ActivationBlock => "activation_block",
            Self::SpanOverlap => "span_overlap",
            Self::BatchUndecided => "batch_undecided",
            Self::SpanRest => "span_rest",
            Self::InvalidBlock => "invalid_block",
        }
    }
}

/// How often each [`DropReason`] applied.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DropCounts([u64; DropReason::ALL.len()]);

impl DropCounts {
    /// How often this reason applied.
    pub fn get(&self, reason: DropReason) -> u64 {
        self.0[reason as usize]
    }

    /// The reasons that applied at least once, with their counts.
    pub fn iter(&self) -> impl Iterator<Item = (DropReason, u64)> {
        let all = DropReason::ALL.map(|reason| (reason, self.get(reason)));
        all.into_iter().filter(|(_, count)| *count > 0)
    }

    pub(super) fn add(&mut self, reason: DropReason) {
        self.add_many(reason, 1);
    }

    pub(super) fn add_many(&mut self, reason: DropReason, count: u64) {
        self.0[reason as usize] += count;
    }
}
