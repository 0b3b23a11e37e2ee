//! Channels: a compressed stream of batches (specs: derivation, channel format).
//!
//! Decompression streams: batches before a fault are returned, as op-node does.

use crate::batch::Batch;
use alloy_primitives::Bytes;

/// What a reader must know of the chain.
#[derive(Clone, Copy, Debug)]
pub struct BatchContext {
    /// Unix seconds of the L2 genesis block.
    pub genesis_time: u64,
    /// Seconds.
    pub block_time: u64,
    pub chain_id: u64,
}

/// Reads the batches of a channel that is complete, one by one.
#[derive(Debug)]
pub struct BatchReader {
    _data: Bytes,
}

/// Why a channel gives no further batch, or why one batch of it is skipped.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChannelError {
    #[error("unknown compression {0:#04x}")]
    Compression(u8),
}

impl BatchReader {
    /// `data` is the concatenation of the frames; `fjord` tells whether the L1 origin of the pipeline
    /// is in Fjord (brotli, and the larger limit of decompressed bytes).
    pub fn new(data: Bytes, context: BatchContext, fjord: bool) -> Result<Self, ChannelError> {
        let _ = (context, fjord);
        Ok(Self { _data: data })
    }

    /// The next batch; `None` at the end of the channel. `Err` with [`ChannelError::is_one_batch`]
    /// costs that batch only; any other error ends the channel.
    pub fn next_batch(&mut self) -> Option<Result<Batch, ChannelError>> {
        todo!()
    }
}

impl ChannelError {
    /// Whether the next batch of the same channel can be read.
    pub fn is_one_batch(&self) -> bool {
        todo!()
    }
}
