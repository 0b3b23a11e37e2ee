//! Span batches: a range of L2 blocks in columns (specs: delta, span batches).
//!
//! Decoding has two steps. The first finds the columns in the bytes; an error there ends the
//! channel. The second checks the transactions; an error there ([`SpanError::Transaction`]) only
//! skips this batch.
//!
//! However many blocks or transactions a span has, it needs no more memory than its bytes. Blocks
//! and transactions stay in the columns, and [`SpanBlocks`] rebuilds the blocks one by one.

mod blocks;
mod columns;
mod encode;
mod list;
mod transaction;

pub use blocks::{SpanBlock, SpanBlocks, SpanEdge};
pub use encode::{SpanBuildError, SpanBuilder};
pub use list::BatchTransactions;
pub use transaction::RebuildError;

use alloy_primitives::{Bytes, FixedBytes};
use columns::Columns;

/// Limit of the blocks in a span batch, of the transactions in a block and in the whole batch, and
/// of the bytes of a transaction's data (specs: delta, span batch size limits).
pub const MAX_SPAN_ELEMENTS: u64 = 10_000_000;

/// Type byte of a span batch.
pub const SPAN_TYPE: u8 = 1;

/// Constants of the chain that span batches depend on.
#[derive(Clone, Copy, Debug)]
pub struct BatchContext {
    /// Time of the L2 genesis block, in Unix seconds.
    pub genesis_time: u64,
    /// Seconds between L2 blocks.
    pub block_time: u64,
    /// The L2 chain id, which transactions are signed for.
    pub chain_id: u64,
}

/// A range of L2 blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpanBatch {
    /// The first 20 bytes of the hash of the first block's parent.
    pub parent_check: FixedBytes<20>,
    /// The first 20 bytes of the hash of the last block's L1 origin.
    pub l1_origin_check: FixedBytes<20>,
    /// The first block.
    pub first: SpanEdge,
    /// The last block, which may be the first.
    pub last: SpanEdge,
    /// At least one block, in order.
    pub blocks: SpanBlocks,
}

/// The reason why bytes are not a span batch. Errors name columns as the specification does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages document the variants")]
pub enum SpanError {
    #[error("the batch ends in {0}")]
    Truncated(&'static str),
    #[error("a number of {0} exceeds 64 bits")]
    Varint(&'static str),
    #[error("more than {MAX_SPAN_ELEMENTS} elements in {0}")]
    TooLarge(&'static str),
    #[error("no block")]
    NoBlock,
    #[error("{0} has a bit beyond its items")]
    Bits(&'static str),
    #[error("tx_datas has an item that is no RLP list")]
    Data,
    #[error("a transaction cannot be rebuilt: {0}")]
    Transaction(#[from] RebuildError),
}

/// Reads the columns that follow the type byte, and checks that every transaction can be rebuilt.
/// Bytes after the last column are ignored, as in op-node. The batch shares the memory of `body`.
pub fn decode(body: &Bytes, context: &BatchContext) -> Result<SpanBatch, SpanError> {
    let columns = Columns::decode(body, context)?;
    columns.check_transactions()?;
    let (parent_check, l1_origin_check) = (columns.parent_check, columns.l1_origin_check);
    let blocks = SpanBlocks::new(columns);
    let (first, last) = blocks.edges();
    Ok(SpanBatch {
        parent_check,
        l1_origin_check,
        first,
        last,
        blocks,
    })
}

#[cfg(test)]
mod tests;
