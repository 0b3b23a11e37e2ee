//! Inputs and outputs of [`BatcherState`](super::BatcherState): its settings, the transactions to
//! send, the notices for log and metrics. No logic.

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
    payload::BlockId,
};

/// Settings of the batcher and constants of its chain.
#[derive(Clone, Debug)]
pub struct BatcherRules {
    /// Parameters of channels in calldata.
    pub calldata: ChannelPlan,
    /// Parameters of channels in blobs.
    pub blobs: ChannelPlan,
    /// Transaction class of the first channel.
    pub first_class: TxClass,
    /// Limits of a channel's duration.
    pub times: ChannelTimes,
    /// Chain constants that batch encoding depends on.
    pub context: BatchContext,
    /// Fork times of the chain.
    pub forks: ForkSchedule,
    /// Number of the L1 block at the L2 genesis.
    pub genesis_l1: u64,
    /// Bytes of block bodies in memory from which on only the next block to encode is loaded.
    pub body_budget: usize,
}

/// Number of a batch transaction, unique within a [`BatcherState`](super::BatcherState).
pub type BatchTxNumber = u64;

/// A transaction to the batch inbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchTx {
    /// Number by which the transaction's outcome is reported.
    pub number: BatchTxNumber,
    /// Channel whose frames the transaction carries.
    pub channel: ChannelId,
    /// Class of the transaction: calldata or blobs.
    pub class: TxClass,
    /// Range of the frames in the channel.
    pub range: FrameRange,
    /// The encoded frames: one item as calldata, or one item per blob.
    pub items: Vec<Bytes>,
}

/// Arguments of [`BatcherState::next_tx`](super::BatcherState::next_tx).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PublishContext {
    /// Number of the newest L1 block.
    pub l1_head: u64,
    /// Whether more blocks are being loaded. A channel then stays open past its deadline, since
    /// these blocks may still fill it.
    pub is_loading: bool,
    /// Block number for which a flush or stop waits: the open channel is closed once all blocks up
    /// to it are encoded.
    pub close_through: Option<u64>,
    /// L1 origin that is on L1's chain as far as L1 could say: the response to
    /// [`NextTx::NeedsOrigin`].
    pub canonical: Option<BlockId>,
}

/// Result of [`BatcherState::next_tx`](super::BatcherState::next_tx).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NextTx {
    /// Send this transaction.
    Send(BatchTx),
    /// A transaction of a channel is ready whose last block has this L1 origin. Put it into
    /// [`PublishContext::canonical`] if it is on L1's chain; otherwise call
    /// [`BatcherState::on_origin_gone`](super::BatcherState::on_origin_gone).
    NeedsOrigin(BlockId),
    /// The first transaction of a channel is ready. Call
    /// [`BatcherState::set_class`](super::BatcherState::set_class) with its class first.
    NeedsClass,
    /// No transaction is ready now.
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
    /// All frames of the channel are confirmed. `l1_blocks`: first and last L1 block that include
    /// them.
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
    /// A block could not be added to a channel. The batcher tries again.
    NotEncoded(EncoderError),
}

/// A channel that was closed, with the reason and its contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClosedChannel {
    pub id: ChannelId,
    pub class: TxClass,
    pub reason: CloseReason,
    pub span: Option<BlockSpan>,
    pub sizes: ChannelSizes,
}

/// Amount of batch data whose blocks are not safe yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UnsafeLoad {
    /// Loaded blocks, in channels or not.
    pub loaded: BlockTotals,
    /// Loaded blocks that are not in a channel yet.
    pub waiting: BlockTotals,
    /// Number of blocks up to the unsafe head that are not loaded.
    pub unloaded: u64,
    /// Blocks in the open channel.
    pub open: BlockTotals,
    /// Total bytes of the frames of closed channels.
    pub closed_bytes: u64,
}

impl UnsafeLoad {
    /// Estimated bytes on L1 of all blocks that are not safe. Each block that is not loaded counts
    /// with the mean size of the loaded blocks. `None` if there are blocks and none is loaded, since
    /// their size is unknown then.
    pub fn da_bytes(&self) -> Option<u64> {
        // The rollup node's head determines `unloaded`, so the product may be too large for 64
        // bits.
        let unloaded = u128::from(self.unloaded) * u128::from(self.loaded.sizes.da);
        let unloaded = match self.loaded.blocks {
            0 if self.unloaded > 0 => return None,
            loaded => unloaded / u128::from(loaded.max(1)),
        };
        let unloaded = u64::try_from(unloaded).unwrap_or(u64::MAX);
        let not_closed = self.waiting.sizes.da + self.open.sizes.da;
        Some(unloaded.saturating_add(not_closed + self.closed_bytes))
    }
}
