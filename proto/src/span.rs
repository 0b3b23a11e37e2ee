//! Span batches: a range of L2 blocks in columns (specs: delta, span batches).
//!
//! Decoding has two steps, whose failures differ in effect. First the columns are found in the
//! bytes; a fault there ends the channel. Then the transactions are rebuilt; a fault there,
//! [`SpanError::Transaction`], costs this batch only. Memory is allocated for elements that are
//! there, never for announced ones.

mod columns;
mod encode;
mod transaction;

pub use encode::{SpanBuildError, SpanBuilder};
pub use transaction::RebuildError;

use alloy_primitives::{Bytes, FixedBytes};
use columns::{ColumnReader, Columns, bit};
use transaction::{LEGACY, SpanTransaction};

/// Most blocks of a span batch, most transactions of each block and of all blocks together, and
/// most bytes of the data of a transaction (specs: delta, span batch size limits).
pub const MAX_SPAN_ELEMENTS: u64 = 10_000_000;

/// Type byte of a span batch.
pub const SPAN_TYPE: u8 = 1;

/// Constants of the chain that readers and writers of span batches need.
#[derive(Clone, Copy, Debug)]
pub struct BatchContext {
    /// Unix seconds of the L2 genesis block.
    pub genesis_time: u64,
    /// Seconds.
    pub block_time: u64,
    /// The L2 chain id, which transactions are signed for.
    pub chain_id: u64,
}

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

/// Why bytes are no span batch. Names are those of the columns in the specification.
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

/// Reads the columns that follow the type byte, and rebuilds the transactions. Bytes after the last
/// column are ignored, as op-node does.
pub fn decode(body: &[u8], context: &BatchContext) -> Result<SpanBatch, SpanError> {
    let columns = Columns::decode(body)?;
    let mut ends = Vec::with_capacity(columns.transactions);
    let buffer = rebuild(&columns, context.chain_id, &mut ends)?;
    Ok(SpanBatch {
        parent_check: columns.parent_check,
        l1_origin_check: columns.l1_origin_check,
        blocks: blocks(&columns, context, &buffer, &ends)?,
    })
}

/// All transactions, one after another; appends the end of each to `ends`.
fn rebuild(
    columns: &Columns<'_>,
    chain_id: u64,
    ends: &mut Vec<usize>,
) -> Result<Bytes, SpanError> {
    // A rebuilt transaction has a header and mostly its chain id besides its columns.
    let size = columns.datas.len() + 96 * columns.transactions + columns.tos.len();
    let mut buffer = Vec::with_capacity(size);
    let mut datas = ColumnReader(columns.datas);
    let (mut nonces, mut gases) = (ColumnReader(columns.nonces), ColumnReader(columns.gases));
    let mut tos = columns.tos.as_chunks::<20>().0.iter();
    let signatures = columns.signatures.as_chunks::<64>().0;
    let mut legacy = 0;
    for (index, signature) in signatures.iter().enumerate() {
        let (kind, payload) = datas.transaction_data()?;
        let nonce = nonces.uvarint("tx_nonces")?;
        let gas = gases.uvarint("tx_gases")?;
        let is_creation = bit(columns.creations, index);
        let to = if is_creation { None } else { tos.next() };
        let is_protected = kind != LEGACY || bit(columns.protected, legacy);
        legacy += usize::from(kind == LEGACY);
        SpanTransaction {
            kind,
            nonce,
            gas,
            to,
            signature: *signature,
            parity: bit(columns.parities, index),
            is_protected,
            data: transaction::TransactionData::decode(kind, payload)?,
        }
        .write(chain_id, &mut buffer)?;
        ends.push(buffer.len());
    }
    Ok(buffer.into())
}

fn blocks(
    columns: &Columns<'_>,
    context: &BatchContext,
    buffer: &Bytes,
    ends: &[usize],
) -> Result<Vec<SpanBlock>, SpanError> {
    // op-node computes with wrapping integers; later checks refuse such times and origins.
    let first = context.genesis_time.wrapping_add(columns.rel_timestamp);
    let changes = (1..columns.blocks).filter(|index| bit(columns.origin_bits, *index));
    let mut epoch_number = columns.l1_origin_num.wrapping_sub(changes.count() as u64);
    let mut counts = ColumnReader(columns.tx_counts);
    let (mut begin, mut ends) = (0, ends.iter());
    let mut blocks = Vec::with_capacity(columns.blocks);
    for index in 0..columns.blocks {
        if index > 0 && bit(columns.origin_bits, index) {
            epoch_number = epoch_number.wrapping_add(1);
        }
        let count = counts.uvarint("block_tx_counts")?;
        let mut transactions = Vec::with_capacity(count as usize);
        for end in ends.by_ref().take(count as usize) {
            transactions.push(buffer.slice(begin..*end));
            begin = *end;
        }
        blocks.push(SpanBlock {
            epoch_number,
            timestamp: first.wrapping_add(context.block_time.wrapping_mul(index as u64)),
            transactions,
        });
    }
    Ok(blocks)
}

#[cfg(test)]
mod tests;
