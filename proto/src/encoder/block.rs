//! The part of an L2 block that goes into batches.

use crate::{
    batch::SingularBatch,
    deposit::DEPOSIT_TX_TYPE,
    l1info::{L1BlockInfo, L1InfoError},
    payload::{BlockId, Payload},
};
use alloy_primitives::{B256, Bytes};

/// An L2 block and its L1 origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChannelBlock {
    /// The L2 block.
    pub id: BlockId,
    /// The L1 block that the block's L1 attributes name.
    pub origin: BlockId,
}

/// The reason why a block cannot be put in a batch.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("block {block}: {error}")]
pub struct SourceBlockError {
    /// The L2 block.
    pub block: BlockId,
    /// Fault of the block's first transaction.
    pub error: L1InfoError,
}

/// The parts of an L2 block that its batch encodes.
pub(super) struct SourceBlock<'a> {
    pub at: ChannelBlock,
    pub parent_hash: B256,
    /// Timestamp of the block, in Unix seconds.
    pub timestamp: u64,
    /// Whether the parent has a different L1 origin.
    pub begins_epoch: bool,
    /// Transactions, EIP-2718 encoded, without deposits.
    pub transactions: Vec<&'a Bytes>,
}

impl<'a> SourceBlock<'a> {
    pub fn read(payload: &'a Payload) -> Result<Self, SourceBlockError> {
        let id = payload.id();
        let info =
            L1BlockInfo::of(payload).map_err(|error| SourceBlockError { block: id, error })?;
        let is_batched = |transaction: &&Bytes| transaction.first() != Some(&DEPOSIT_TX_TYPE);
        Ok(Self {
            at: ChannelBlock {
                id,
                origin: info.origin(),
            },
            parent_hash: payload.parent_hash(),
            timestamp: payload.timestamp(),
            begins_epoch: info.sequence_number == 0,
            transactions: payload.transactions.iter().filter(is_batched).collect(),
        })
    }

    pub fn singular(&self) -> SingularBatch {
        SingularBatch {
            parent_hash: self.parent_hash,
            epoch_number: self.at.origin.number,
            epoch_hash: self.at.origin.hash,
            timestamp: self.timestamp,
            transactions: self.transactions.iter().copied().cloned().collect(),
        }
    }
}
