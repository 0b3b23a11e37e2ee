//! Frames: the pieces of a channel, as batcher transactions and blobs carry them (specs: derivation,
//! frame format).

use alloy_primitives::{Bytes, FixedBytes};

/// The random name that a batcher gives a channel.
pub type ChannelId = FixedBytes<16>;

/// A piece of a channel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    pub id: ChannelId,
    /// Position in the channel, from 0.
    pub number: u16,
    pub data: Bytes,
    pub is_last: bool,
}

/// Why a data item is discarded as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    #[error("the item is empty")]
    Empty,
}

/// Reads all frames of a data item, its version byte included. One malformed frame discards all.
pub fn decode(item: &Bytes) -> Result<Vec<Frame>, FrameError> {
    let _ = item;
    todo!()
}
