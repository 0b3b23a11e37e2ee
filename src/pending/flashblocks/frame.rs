//! One message of the flashblock stream: JSON, plain or compressed with brotli.

use alloy_primitives::{Address, B64, B256, Bytes, U64};
use serde::Deserialize;
use std::io::Read;

/// Maximum bytes of a message as received.
pub const MAX_MESSAGE: usize = 8 << 20;
/// Maximum bytes of an unpacked message, which contains a block's transactions in hex, with
/// receipts.
const MAX_JSON: u64 = 32 << 20;
/// Bytes that are unpacked at a time.
const BUFFER: usize = 16 << 10;

/// The reason why a message is not a valid flashblock.
#[derive(Debug, thiserror::Error)]
pub enum FlashblockFrameError {
    #[error("it has more than {MAX_JSON} bytes unpacked")]
    TooLarge,
    #[error("it cannot be unpacked: {0}")]
    Brotli(std::io::Error),
    #[error("it is no flashblock: {0}")]
    Json(#[from] serde_json::Error),
}

/// One part of a block in progress.
#[derive(Clone, Debug, Deserialize)]
pub struct Flashblock {
    /// Identifier of the block, the same in all of its parts.
    pub payload_id: B64,
    /// Index of the part in the block, from 0 on.
    pub index: u64,
    /// Fields of the whole block. The first part must contain them.
    #[serde(default)]
    pub base: Option<FlashblockBase>,
    pub diff: FlashblockDiff,
}

/// The fields of a block that are known before the block is built.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct FlashblockBase {
    pub parent_hash: B256,
    #[serde(default)]
    pub parent_beacon_block_root: Option<B256>,
    pub fee_recipient: Address,
    pub prev_randao: B256,
    pub block_number: U64,
    pub gas_limit: U64,
    pub timestamp: U64,
    pub extra_data: Bytes,
    pub base_fee_per_gas: alloy_primitives::U256,
}

/// Changes that one part makes to the block. The roots in the message are not read: they are those
/// of the block so far, or zero.
#[derive(Clone, Debug, Deserialize)]
pub struct FlashblockDiff {
    /// Total gas of the block up to this part.
    pub gas_used: U64,
    pub transactions: Vec<Bytes>,
    #[serde(default)]
    pub withdrawals: Vec<serde::de::IgnoredAny>,
}

impl FlashblockDiff {
    /// Approximate bytes held in memory.
    pub fn weight(&self) -> usize {
        let transactions = self.transactions.iter();
        64 + transactions.map(|raw| raw.len() + 32).sum::<usize>()
    }
}

impl Flashblock {
    /// Decodes a message. Memory grows with the bytes unpacked, up to `MAX_JSON`.
    pub fn read(message: &[u8]) -> Result<Self, FlashblockFrameError> {
        let first = message.iter().find(|byte| !byte.is_ascii_whitespace());
        if first == Some(&b'{') {
            return Ok(serde_json::from_slice(message)?);
        }
        let mut json = Vec::new();
        let unpacked = brotli::Decompressor::new(message, BUFFER)
            .take(MAX_JSON + 1)
            .read_to_end(&mut json);
        unpacked.map_err(FlashblockFrameError::Brotli)?;
        if json.len() as u64 > MAX_JSON {
            return Err(FlashblockFrameError::TooLarge);
        }
        Ok(serde_json::from_slice(&json)?)
    }
}
