//! Counters of the data that derivation reads and discards. A hostile batcher decides their amount,
//! so they are counted and not stored.

/// Counts of frames and batches that derivation has read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReadCounts {
    /// Frames, including those that no channel accepts.
    pub frames: u64,
    /// Channels that became the next one to read (op-node: RecordHeadChannelOpened). The channel
    /// bank counts the first channel of an empty bank, and each channel read. From Holocene on,
    /// each first frame counts.
    pub head_channels: u64,
    /// Compressed bytes of the complete channels that were read.
    pub channel_bytes: u64,
    /// Singular batches that decode.
    pub singular_batches: u64,
    /// Span batches that decode.
    pub span_batches: u64,
}

/// The reason why derivation discarded data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum DropReason {
    /// A configuration log without effect in the L1 traversal, because it is malformed.
    ConfigLog,
    /// A transaction to the batch inbox from another sender than the batcher.
    Sender,
    /// A blob that does not decode.
    Blob,
    /// A data item whose frames do not parse, or whose version is unknown.
    Frames,
    /// A frame out of order among the frames of its data item (Holocene).
    FrameOrder,
    /// A frame that its channel does not accept.
    Frame,
    /// A frame of a channel that has timed out.
    LateFrame,
    /// A channel that was open for longer than the channel timeout.
    ChannelTimeout,
    /// A channel that exceeded the size limit of a channel, or had to leave the full channel bank.
    ChannelSize,
    /// An incomplete channel that another one replaced (Holocene).
    ChannelReplaced,
    /// A channel that cannot be read, or only in part.
    Channel,
    /// A channel discarded because one of its batches, or a block built from it, was invalid.
    ChannelFlushed,
    /// One malformed batch; the channel's later batches are still read.
    BatchFormat,
    /// A span batch before Delta.
    SpanBeforeDelta,
    /// A batch that is not applied because its L1 block is too early: for the L1 origin of the safe
    /// head, or for the first L1 block that a reset applies.
    BatchBehind,
    /// A batch for blocks that are already safe.
    PastBatch,
    /// A batch for a block after the next one (Holocene).
    FutureBatch,
    /// A batch whose timestamps do not follow the safe chain, or are before the L1 origin.
    BatchTime,
    /// A batch whose parent is not the safe block before it.
    BatchParent,
    /// A batch included after the end of its sequencing window.
    BatchWindow,
    /// A batch whose L1 origin is too old, too new or on another branch.
    BatchOrigin,
    /// A batch with transactions beyond the sequencer drift, or one that had to move to the next L1
    /// origin and did not.
    SequencerDrift,
    /// A batch with an empty transaction, a deposit, or a transaction type that its fork does not
    /// have.
    BatchTransaction,
    /// A batch with transactions for a block that activates an upgrade.
    ActivationBlock,
    /// A span batch that differs from the safe chain in the blocks that it repeats.
    SpanOverlap,
    /// A batch that cannot be judged yet, usually because its L1 origin is not derived. Holocene
    /// skips such a batch instead of waiting (op-node: BatchUndecided).
    BatchUndecided,
    /// The remaining blocks of a span batch after one of its blocks was invalid.
    SpanRest,
    /// A block that the execution engine refused, or that cannot fit its gas limit.
    InvalidBlock,
}

impl DropReason {
    /// Every reason, in the order of the counters.
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

/// Number of times that each [`DropReason`] applied.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DropCounts([u64; DropReason::ALL.len()]);

impl DropCounts {
    /// Number of times that this reason applied.
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
