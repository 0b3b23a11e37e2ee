//! Batches: the content of a channel. A singular batch is one L2 block without its deposits. A span
//! batch is a range of such blocks ([`crate::span`]).
//!
//! A batch is a type byte and a body: 0 ‖ RLP list of a singular batch, or 1 ‖ columns of a span
//! batch. The pipeline checks later whether a batch is valid on the chain.

pub use crate::span::BatchTransactions;

use crate::span::{self, BatchContext, SpanBatch, SpanError};
use alloy_primitives::{B256, Bytes};
use alloy_rlp::{Decodable, Encodable, Header};

/// Type byte of a singular batch.
pub const SINGULAR_TYPE: u8 = 0;

/// One L2 block, without deposits (specs: derivation, batch format).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SingularBatch {
    /// Hash of the block's parent.
    pub parent_hash: B256,
    /// Number of the block's L1 origin.
    pub epoch_number: u64,
    /// Hash of the block's L1 origin.
    pub epoch_hash: B256,
    /// Timestamp of the block, in Unix seconds.
    pub timestamp: u64,
    /// Transactions of the block, without deposits.
    pub transactions: BatchTransactions,
}

/// A decoded batch, singular or span.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Batch {
    /// A batch of one block.
    Singular(SingularBatch),
    /// A batch of a range of blocks.
    Span(SpanBatch),
}

/// The reason why bytes are not a batch.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages document the variants")]
pub enum BatchError {
    #[error("the batch is empty")]
    Empty,
    #[error("unknown batch type {0:#04x}")]
    Type(u8),
    #[error("singular batch: {0}")]
    Singular(#[from] alloy_rlp::Error),
    #[error("span batch: {0}")]
    Span(#[from] SpanError),
}

impl BatchError {
    /// Whether the channel's later batches can still be read: the columns are complete, and only
    /// the transactions cannot be rebuilt.
    pub fn skips_only_this_batch(&self) -> bool {
        matches!(self, Self::Span(SpanError::Transaction(_)))
    }
}

/// Reads a batch with its type byte. Bytes after the batch are ignored, as in op-node. The batch
/// shares the memory of `data`.
pub fn decode(data: &Bytes, context: &BatchContext) -> Result<Batch, BatchError> {
    match data.first() {
        None => Err(BatchError::Empty),
        Some(&SINGULAR_TYPE) => Ok(Batch::Singular(SingularBatch::decode(&data.slice(1..))?)),
        Some(&span::SPAN_TYPE) => Ok(Batch::Span(span::decode(&data.slice(1..), context)?)),
        Some(&other) => Err(BatchError::Type(other)),
    }
}

impl SingularBatch {
    /// Reads the RLP list that follows the type byte.
    pub fn decode(body: &Bytes) -> Result<Self, alloy_rlp::Error> {
        let mut rest: &[u8] = body;
        let mut fields = Header::decode_bytes(&mut rest, true)?;
        let (parent_hash, epoch_number) = (
            Decodable::decode(&mut fields)?,
            Decodable::decode(&mut fields)?,
        );
        let (epoch_hash, timestamp) = (
            Decodable::decode(&mut fields)?,
            Decodable::decode(&mut fields)?,
        );
        let list = Header::decode_bytes(&mut fields, true)?;
        if !fields.is_empty() {
            return Err(alloy_rlp::Error::UnexpectedLength);
        }
        Ok(Self {
            parent_hash,
            epoch_number,
            epoch_hash,
            timestamp,
            transactions: BatchTransactions::decode(body.slice_ref(list))?,
        })
    }

    /// Encodes the batch with its type byte.
    pub fn encode(&self) -> Vec<u8> {
        let strings = self.transactions.strings();
        let list = Header {
            list: true,
            payload_length: strings.len(),
        };
        let fields: [&dyn Encodable; 4] = [
            &self.parent_hash,
            &self.epoch_number,
            &self.epoch_hash,
            &self.timestamp,
        ];
        let length: usize = fields.iter().map(|field| field.length()).sum();
        let batch = Header {
            list: true,
            payload_length: length + list.length_with_payload(),
        };
        let mut out = Vec::with_capacity(1 + batch.length_with_payload());
        out.push(SINGULAR_TYPE);
        batch.encode(&mut out);
        fields.iter().for_each(|field| field.encode(&mut out));
        list.encode(&mut out);
        out.extend_from_slice(&strings);
        out
    }
}
