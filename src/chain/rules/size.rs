//! The size of a block (EIP-7934): bounded on Ethereum from Osaka on. OP chains have no such rule.

use super::ChainSpec;
use alloy_primitives::Bytes;
use alloy_rlp::Encodable;
use starling_proto::payload::Payload;

/// Largest block in RLP, bytes: a message of the network (10 MiB) without what a consensus client adds to
/// the block (2 MiB).
const MAX_BLOCK_BYTES: usize = (10 - 2) << 20;
/// Bytes for all of a block but its transactions, at most. A header takes some 700, and 16 withdrawals
/// less than 800.
const ENVELOPE_BYTES: usize = 2_048;
/// First bytes of a list in RLP begin here; the type of a transaction is below.
const FIRST_LIST_BYTE: u8 = 0xc0;

/// A block that is too large.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the block has {have} bytes, more than {limit} (EIP-7934)")]
pub struct BlockSizeError {
    /// Bytes in RLP.
    pub have: usize,
    pub limit: usize,
}

impl ChainSpec {
    /// Checks the size of a whole block.
    pub fn check_size(&self, payload: &Payload) -> Result<(), BlockSizeError> {
        let Some(limit) = self.max_block_bytes(payload.timestamp()) else {
            return Ok(());
        };
        let have = block_bytes(payload);
        if have > limit {
            return Err(BlockSizeError { have, limit });
        }
        Ok(())
    }

    /// Bytes that the transactions of a block at `timestamp` may take, each as
    /// [`transaction_bytes`] counts it, whatever header the block gets.
    pub fn room_for_transactions(&self, timestamp: u64) -> usize {
        self.max_block_bytes(timestamp)
            .map_or(usize::MAX, |limit| limit - ENVELOPE_BYTES)
    }

    fn max_block_bytes(&self, timestamp: u64) -> Option<usize> {
        let active = self.at(timestamp);
        (active.osaka && active.op.is_none()).then_some(MAX_BLOCK_BYTES)
    }
}

/// Bytes of a transaction within a block. `raw` is its EIP-2718 form: a legacy one is a list itself, the
/// others are strings.
pub fn transaction_bytes(raw: &Bytes) -> usize {
    if raw.first() >= Some(&FIRST_LIST_BYTE) {
        raw.len()
    } else {
        raw.length()
    }
}

/// Bytes of a block in RLP: header, transactions, uncles, and from Shanghai on withdrawals.
pub fn block_bytes(payload: &Payload) -> usize {
    let list = |payload_length| {
        let list = alloy_rlp::Header {
            list: true,
            payload_length,
        };
        list.length_with_payload()
    };
    let header = &payload.header;
    let transactions = payload.transactions.iter().map(transaction_bytes).sum();
    let uncles = list(payload.uncles().iter().map(Encodable::length).sum());
    let withdrawals = header.withdrawals_root.map_or(0, |_| {
        list(payload.withdrawals().iter().map(Encodable::length).sum())
    });
    list(header.length() + list(transactions) + uncles + withdrawals)
}

#[cfg(test)]
mod tests;
