//! Inputs and outputs of [`BatcherState`](super::BatcherState): its rules, the transactions that it makes,
//! the notices for log and metrics. No logic.

use crate::{
    batcher::{
        blocks::BlockTotals,
        channels::{BlockSpan, ChannelPlan, ChannelSizes},
        sync_actions::ClearCause,
    },
    txmgr::fees::TxClass,
};
use alloy_primitives::Bytes;
use starling_proto::{
    channel::BatchContext,
    encoder::{ChannelTimes, CloseReason, EncoderError, FrameRange},
    fork::ForkSchedule,
    frame::ChannelId,
};

/// Settings of a chain and its batcher.
#[derive(Clone, Debug)]
pub struct BatcherRules {
    /// Channels in calldata.
    pub calldata: ChannelPlan,
    /// Channels in blobs.
    pub blobs: ChannelPlan,
    /// Class of the first channel.
    pub first_class: TxClass,
    /// Limits of a channel's time.
    pub times: ChannelTimes,
    /// Constants of the chain that batches depend on.
    pub context: BatchContext,
    /// Forks of the chain.
    pub forks: ForkSchedule,
    /// Number of the chain's first L1 block.
    pub genesis_l1: u64,
    /// Bytes of bodies above which no more are loaded.
    pub body_budget: usize,
}

/// Number of a transaction, never used twice.
pub type BatchTxNumber = u64;

/// Data of a transaction to the batch inbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchTx {
    /// Number by which its outcome is reported.
    pub number: BatchTxNumber,
    /// The channel that it carries frames of.
    pub channel: ChannelId,
    /// Class of the transaction.
    pub class: TxClass,
    /// The frames.
    pub range: FrameRange,
    /// One item of calldata, or one for each blob.
    pub items: Vec<Bytes>,
}

/// Circumstances of [`BatcherState::next_tx`](super::BatcherState::next_tx).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PublishContext {
    /// Number of the newest L1 block.
    pub l1_head: u64,
    /// Whether more blocks are being loaded: then a channel stays open over its deadline, since they
    /// may still fill it.
    pub is_loading: bool,
    /// Blocks up to this one are to leave without waiting for more.
    pub close_through: Option<u64>,
}

/// Answer of [`BatcherState::next_tx`](super::BatcherState::next_tx).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NextTx {
    /// A transaction to send.
    Send(BatchTx),
    /// The first transaction of a channel is ready:
    /// [`BatcherState::set_class`](super::BatcherState::set_class) sets its class.
    NeedsClass,
    /// Nothing to send now.
    Nothing,
}

/// An event for the log and the metrics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BatcherNotice {
    Cleared(ClearCause),
    ClassChanged(TxClass),
    ChannelOpened {
        id: ChannelId,
        class: TxClass,
    },
    ChannelClosed(ClosedChannel),
    /// All frames are confirmed, between these L1 blocks.
    ChannelSubmitted {
        id: ChannelId,
        l1_blocks: (u64, u64),
    },
    ChannelTimedOut {
        id: ChannelId,
        l1_blocks: (u64, u64),
    },
    ChannelDropped {
        id: ChannelId,
        span: Option<BlockSpan>,
    },
    /// A block has no place in a channel; this is tried again.
    NotEncoded(EncoderError),
}

/// A channel that was closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClosedChannel {
    pub id: ChannelId,
    pub class: TxClass,
    pub reason: CloseReason,
    pub span: Option<BlockSpan>,
    pub sizes: ChannelSizes,
}

/// Batch data whose blocks are not safe yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UnsafeLoad {
    /// Loaded blocks that are in no channel.
    pub waiting: BlockTotals,
    /// Blocks that are not loaded.
    pub unloaded: u64,
    /// Blocks in open channels.
    pub open: BlockTotals,
    /// Bytes of frames of closed channels.
    pub closed_bytes: u64,
}

impl UnsafeLoad {
    /// Estimated bytes that L1 still has to take or to confirm. A block that is not loaded counts as
    /// the mean of those that are.
    pub fn da_bytes(&self) -> u64 {
        let loaded = self.waiting.blocks + self.open.blocks;
        let bytes = self.waiting.sizes.da + self.open.sizes.da;
        // The number of blocks that are not loaded is the rollup node's word.
        let unloaded = u128::from(self.unloaded) * u128::from(bytes);
        let unloaded = unloaded.checked_div(loaded.into()).unwrap_or(0);
        let unloaded = u64::try_from(unloaded).unwrap_or(u64::MAX);
        unloaded.saturating_add(bytes + self.closed_bytes)
    }
}
