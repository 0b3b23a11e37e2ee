//! The blocks of a span batch, rebuilt one by one from the batch's columns.

use super::{
    BatchTransactions,
    columns::{ColumnPosition, Columns, bit},
    transaction::SpanTransaction,
};
use alloy_primitives::Bytes;
use std::{fmt, sync::Arc};

/// Lowest possible first byte of a legacy transaction, which is encoded as an RLP list.
const LIST: u8 = 0xc0;

/// One block of a span batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpanBlock {
    /// Number of the block's L1 origin.
    pub epoch_number: u64,
    /// Timestamp of the block, in Unix seconds.
    pub timestamp: u64,
    /// Transactions of the block, without deposits.
    pub transactions: BatchTransactions,
}

/// L1 origin and time of the first or last block of a span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpanEdge {
    /// Number of the block's L1 origin.
    pub epoch_number: u64,
    /// Timestamp of the block, in Unix seconds.
    pub timestamp: u64,
}

/// An iterator over the remaining blocks of a span batch. A clone shares the memory of the batch.
#[derive(Clone)]
pub struct SpanBlocks {
    columns: Arc<Columns>,
    at: ColumnPosition,
    /// L1 origin and time of the next block.
    edge: SpanEdge,
}

impl SpanBlocks {
    /// All blocks of the span. The caller has checked the columns' transactions.
    pub(super) fn new(columns: Columns) -> Self {
        // Wrapping arithmetic like op-node's: later checks refuse the resulting times and origins.
        let bits: u32 = columns
            .origin_bits
            .iter()
            .map(|byte| byte.count_ones())
            .sum();
        let changes = u64::from(bits) - u64::from(bit(&columns.origin_bits, 0));
        let genesis_time = columns.context.genesis_time;
        let edge = SpanEdge {
            epoch_number: columns.l1_origin_num.wrapping_sub(changes),
            timestamp: genesis_time.wrapping_add(columns.rel_timestamp),
        };
        Self {
            columns: Arc::new(columns),
            at: ColumnPosition::default(),
            edge,
        }
    }

    /// L1 origin and time of the next block, and of the last block.
    pub(super) fn edges(&self) -> (SpanEdge, SpanEdge) {
        let after = (self.len() as u64).saturating_sub(1);
        let seconds = self.columns.context.block_time.wrapping_mul(after);
        let last = SpanEdge {
            epoch_number: self.columns.l1_origin_num,
            timestamp: self.edge.timestamp.wrapping_add(seconds),
        };
        (self.edge, last)
    }

    /// L1 origin and time of the next block, without consuming the block.
    pub fn peek(&self) -> Option<SpanEdge> {
        (self.len() > 0).then_some(self.edge)
    }
}

impl Iterator for SpanBlocks {
    type Item = SpanBlock;

    fn next(&mut self) -> Option<SpanBlock> {
        let edge = self.peek()?;
        let count = self.columns.tx_count(&mut self.at).ok()?;
        let begin = self.at;
        for _ in 0..count {
            self.columns.row(&mut self.at).ok()?;
        }
        let advances = bit(&self.columns.origin_bits, self.at.block);
        self.edge = SpanEdge {
            epoch_number: edge.epoch_number.wrapping_add(advances.into()),
            timestamp: edge.timestamp.wrapping_add(self.columns.context.block_time),
        };
        let transactions = SpanTransactions {
            columns: self.columns.clone(),
            at: begin,
            data_size: self.at.datas - begin.datas,
            count,
        };
        Some(SpanBlock {
            epoch_number: edge.epoch_number,
            timestamp: edge.timestamp,
            transactions: transactions.into(),
        })
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = self.columns.blocks.saturating_sub(self.at.block);
        (left, Some(left))
    }
}

impl ExactSizeIterator for SpanBlocks {}

/// Two spans are equal if their blocks are, however the columns are encoded.
impl PartialEq for SpanBlocks {
    fn eq(&self, other: &Self) -> bool {
        self.clone().eq(other.clone())
    }
}

impl Eq for SpanBlocks {}

impl fmt::Debug for SpanBlocks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.clone()).finish()
    }
}

/// An iterator over the remaining transactions of a block in a span batch.
#[derive(Clone)]
pub(super) struct SpanTransactions {
    columns: Arc<Columns>,
    at: ColumnPosition,
    /// Bytes that the block's transactions have in the column `tx_datas`.
    data_size: usize,
    /// Number of remaining transactions.
    count: usize,
}

impl SpanTransactions {
    /// Bytes that the block's transactions have in the column `tx_datas`.
    pub fn data_size(&self) -> usize {
        self.data_size
    }

    /// The type byte of the next transaction. For a legacy one the lowest possible first byte
    /// ([`LIST`]), which need not be the actual one.
    pub fn next_first_byte(&mut self) -> Option<u8> {
        self.count = self.count.checked_sub(1)?;
        let row = self.columns.row(&mut self.at).ok()?;
        Some(row.kind.unwrap_or(LIST))
    }
}

impl Iterator for SpanTransactions {
    type Item = Bytes;

    fn next(&mut self) -> Option<Bytes> {
        self.count = self.count.checked_sub(1)?;
        let row = self.columns.row(&mut self.at).ok()?;
        let transaction = SpanTransaction::of(&row).ok()?;
        Some(transaction.encode(self.columns.context.chain_id).into())
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.count, Some(self.count))
    }
}

impl ExactSizeIterator for SpanTransactions {}
