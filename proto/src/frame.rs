//! Frames: the pieces of a channel, as contained in batcher transactions and blobs (specs:
//! derivation, frame format).
//!
//! A data item is a version byte and one or more frames. A frame is `id` (16 bytes) ‖ `number`
//! (u16) ‖ length (u32) ‖ `data` ‖ `is_last` (one byte, 0 or 1). Integers are big-endian.

use alloy_primitives::{Bytes, FixedBytes};

/// Version byte of a data item with frames.
pub const VERSION: u8 = 0;
/// Version byte of a data item with an Alt-DA commitment.
pub const ALT_DA_VERSION: u8 = 1;
/// Bytes of an encoded frame in addition to its data: id, number, length and `is_last`.
pub const FRAME_OVERHEAD: usize = 16 + 2 + 4 + 1;
/// Largest data of a frame, in bytes (specs: derivation, frame format).
pub const MAX_FRAME_DATA: usize = 1_000_000;

/// The id of a channel, a random number chosen by the batcher.
pub type ChannelId = FixedBytes<16>;

/// A piece of a channel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Id of the frame's channel.
    pub id: ChannelId,
    /// Position of the frame in the channel, from 0.
    pub number: u16,
    /// A piece of the compressed channel, at most [`MAX_FRAME_DATA`] bytes.
    pub data: Bytes,
    /// Whether this is the channel's last frame.
    pub is_last: bool,
}

/// The reason why a whole data item is discarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages document the variants")]
pub enum FrameError {
    #[error("the item is empty")]
    Empty,
    /// The data item is an Alt-DA commitment.
    #[error("the item is an Alt-DA commitment")]
    AltDa,
    #[error("unknown version {0:#04x}")]
    Version(u8),
    #[error("the item has no frame")]
    NoFrame,
    #[error("the item ends inside a frame")]
    Truncated,
    #[error("a frame of {0} bytes is longer than {MAX_FRAME_DATA}")]
    TooLong(u32),
    #[error("the last byte of a frame is {0:#04x}, neither 0 nor 1")]
    IsLast(u8),
}

/// Decodes all frames of a data item, which begins with the version byte. One malformed frame
/// discards the whole item. The frames share the memory of `item`.
pub fn decode(item: &Bytes) -> Result<Vec<Frame>, FrameError> {
    match item.first() {
        None => return Err(FrameError::Empty),
        Some(&VERSION) => {}
        Some(&ALT_DA_VERSION) => return Err(FrameError::AltDa),
        Some(&version) => return Err(FrameError::Version(version)),
    }
    let mut frames = Vec::new();
    let mut at = 1;
    while at < item.len() {
        let frame = decode_one(item, at)?;
        at += FRAME_OVERHEAD + frame.data.len();
        frames.push(frame);
    }
    if frames.is_empty() {
        Err(FrameError::NoFrame)
    } else {
        Ok(frames)
    }
}

/// Decodes the frame that begins at byte `at`.
fn decode_one(item: &Bytes, at: usize) -> Result<Frame, FrameError> {
    let rest = &item[at..];
    let (id, rest) = rest.split_first_chunk().ok_or(FrameError::Truncated)?;
    let (number, rest) = rest.split_first_chunk().ok_or(FrameError::Truncated)?;
    let (length, rest) = rest.split_first_chunk().ok_or(FrameError::Truncated)?;
    let length = u32::from_be_bytes(*length);
    let len = length as usize;
    if len > MAX_FRAME_DATA {
        return Err(FrameError::TooLong(length));
    }
    let is_last = match rest.get(len) {
        Some(0) => false,
        Some(1) => true,
        Some(&other) => return Err(FrameError::IsLast(other)),
        None => return Err(FrameError::Truncated),
    };
    let begin = at + FRAME_OVERHEAD - 1;
    Ok(Frame {
        id: ChannelId::new(*id),
        number: u16::from_be_bytes(*number),
        data: item.slice(begin..begin + len),
        is_last,
    })
}

/// Encodes frames to a data item with its version byte. If a frame has more than [`MAX_FRAME_DATA`]
/// bytes of data, [`decode`] will refuse the item.
pub fn encode(frames: &[Frame]) -> Vec<u8> {
    let size = |frame: &Frame| FRAME_OVERHEAD + frame.data.len();
    let mut item = Vec::with_capacity(1 + frames.iter().map(size).sum::<usize>());
    item.push(VERSION);
    for frame in frames {
        item.extend_from_slice(frame.id.as_slice());
        item.extend_from_slice(&frame.number.to_be_bytes());
        item.extend_from_slice(&(frame.data.len() as u32).to_be_bytes());
        item.extend_from_slice(&frame.data);
        item.push(u8::from(frame.is_last));
    }
    item
}
