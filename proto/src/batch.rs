//! Batches: what a channel holds. A singular batch is one L2 block without its deposits; a span
//! batch is a range of them ([`crate::span`]).

use crate::span::SpanBatch;
use alloy_primitives::{B256, Bytes};

/// One L2 block, without deposits (specs: derivation, batch format).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SingularBatch {
    pub parent_hash: B256,
    pub epoch_number: u64,
    pub epoch_hash: B256,
    /// Unix seconds.
    pub timestamp: u64,
    /// Encoded transactions, in order.
    pub transactions: Vec<Bytes>,
}

/// A batch of either kind, decoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Batch {
    Singular(SingularBatch),
    Span(SpanBatch),
}
