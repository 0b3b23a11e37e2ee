//! Span batches: a range of L2 blocks in columns (specs: delta, span batches).

use alloy_primitives::{Bytes, FixedBytes};

/// A range of L2 blocks whose transactions have been rebuilt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpanBatch {
    /// The first 20 bytes of the hash of the first block's parent.
    pub parent_check: FixedBytes<20>,
    /// The first 20 bytes of the hash of the last block's L1 origin.
    pub l1_origin_check: FixedBytes<20>,
    /// At least one block, in order.
    pub blocks: Vec<SpanBlock>,
}

/// One block of a span batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpanBlock {
    /// The number of its L1 origin.
    pub epoch_number: u64,
    /// Unix seconds.
    pub timestamp: u64,
    /// Encoded transactions, in order.
    pub transactions: Vec<Bytes>,
}
