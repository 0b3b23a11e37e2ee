//! The size of a block (EIP-7934): bounded on Ethereum from Osaka on. OP chains have no such rule.

use super::ChainSpec;
use alloy_primitives::Bytes;
use alloy_rlp::Encodable;
use starling_proto::payload::Payload;

/// Largest size of a block's RLP in bytes: a network message (10 MiB) minus the data that a
/// consensus client adds to the block (2 MiB).
const MAX_BLOCK_BYTES: usize = (10 - 2) << 20;
/// Upper bound in bytes of everything in a block except its transactions. A header has about 700
/// bytes, and 16 withdrawals have less than 800.
const ENVELOPE_BYTES: usize = 2_048;
/// Lowest first byte of an RLP list. The type byte of a typed transaction is below it.
const FIRST_LIST_BYTE: u8 = 0xc0;

/// The error for a block that is too large.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the block has {have} bytes, more than {limit} (EIP-7934)")]
pub struct BlockSizeError {
    /// Size of the block's RLP in bytes.
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

    /// Bytes available for the transactions of a block at `timestamp`, whatever the block's header.
    /// The size of each transaction is [`transaction_bytes`].
    pub fn room_for_transactions(&self, timestamp: u64) -> usize {
        self.max_block_bytes(timestamp)
            .map_or(usize::MAX, |limit| limit - ENVELOPE_BYTES)
    }

    fn max_block_bytes(&self, timestamp: u64) -> Option<usize> {
        let active = self.at(timestamp);
        (active.osaka && active.op.is_none()).then_some(MAX_BLOCK_BYTES)
    }
}

/// Size in bytes of a transaction within a block's RLP. `raw` is its EIP-2718 form: a legacy
/// transaction is an RLP list itself, any other is wrapped in an RLP string.
pub fn transaction_bytes(raw: &Bytes) -> usize {
    if raw.first() >= Some(&FIRST_LIST_BYTE) {
        raw.len()
    } else {
        raw.length()
    }
}

/// Size in bytes of a block's RLP: header, transactions, uncles, and from Shanghai on withdrawals.
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
