//! The batcher's encoder: from batches to the frames of a channel. Derivation does not use this
//! module.

use super::{
    compress::{ChannelCompression, Compressor},
    max_rlp_bytes,
};
use crate::frame::{ChannelId, FRAME_OVERHEAD, Frame, MAX_FRAME_DATA};
use alloy_primitives::Bytes;
use alloy_rlp::Header;

/// The reason why a channel accepts no further batch, or returns no frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages document the variants")]
pub enum ChannelWriteError {
    #[error("brotli before Fjord")]
    BrotliBeforeFjord,
    /// The channel is unchanged.
    #[error("the channel would decompress to more than its limit")]
    TooLarge,
    #[error("the channel is closed")]
    Closed,
    #[error("a frame of {0} bytes holds no data")]
    FrameSize(usize),
    #[error("the channel has more than 65,536 frames")]
    TooManyFrames,
    #[error("the compressor fails")]
    Compressor,
}

/// Compresses batches and splits the result into frames. Frames can be taken while further batches
/// are added.
#[derive(Debug)]
pub struct ChannelWriter {
    id: ChannelId,
    compressor: Compressor,
    /// Number of bytes at the front of the compressor's output that are already in frames.
    framed: usize,
    /// Uncompressed bytes added.
    input: u64,
    /// Largest number of uncompressed bytes that a reader accepts.
    limit: u64,
    /// Total compressed bytes in the frames taken.
    taken: u64,
    /// Number of the next frame; `None` after the last possible one.
    number: Option<u16>,
    /// Whether the last frame was taken.
    is_complete: bool,
}

impl ChannelWriter {
    /// An open channel. `fjord` is whether the L1 origin of the readers' pipelines will be in
    /// Fjord.
    pub fn new(
        id: ChannelId,
        compression: ChannelCompression,
        fjord: bool,
    ) -> Result<Self, ChannelWriteError> {
        if compression.needs_fjord() && !fjord {
            return Err(ChannelWriteError::BrotliBeforeFjord);
        }
        Ok(Self::over(id, Compressor::new(compression), fjord))
    }

    /// An open channel whose batches are stored uncompressed, in a zlib stream.
    pub fn stored(id: ChannelId, fjord: bool) -> Self {
        Self::over(id, Compressor::stored(), fjord)
    }

    /// A closed channel with this complete compressed stream.
    pub(crate) fn closed(id: ChannelId, output: Vec<u8>) -> Self {
        Self::over(id, Compressor::Closed(output), true)
    }

    fn over(id: ChannelId, compressor: Compressor, fjord: bool) -> Self {
        Self {
            id,
            compressor,
            framed: 0,
            input: 0,
            limit: max_rlp_bytes(fjord),
            taken: 0,
            number: Some(0),
            is_complete: false,
        }
    }

    /// The channel's id, as in its frames.
    pub fn id(&self) -> ChannelId {
        self.id
    }

    /// Adds a batch, encoded with its type byte.
    pub fn add(&mut self, batch: &[u8]) -> Result<(), ChannelWriteError> {
        self.add_string(&alloy_rlp::encode(batch))
    }

    /// Adds a batch that is already encoded as an RLP string.
    pub(crate) fn add_string(&mut self, string: &[u8]) -> Result<(), ChannelWriteError> {
        let input = self.input + string.len() as u64;
        if input > self.limit {
            return Err(ChannelWriteError::TooLarge);
        }
        self.compressor.write(string)?;
        self.input = input;
        Ok(())
    }

    /// Uncompressed bytes that a batch of `len` bytes adds to a channel, with its RLP header.
    pub fn input_of(len: usize) -> u64 {
        let header = Header {
            list: false,
            payload_length: len,
        };
        header.length_with_payload() as u64
    }

    /// Uncompressed bytes added.
    pub fn input_len(&self) -> u64 {
        self.input
    }

    /// Compressed bytes so far, including those in frames. The compressor may buffer more input
    /// until [`Self::flush`] or [`Self::close`].
    pub fn output_len(&self) -> u64 {
        self.taken + self.pending_len() as u64
    }

    /// Compressed bytes that are in no frame yet.
    pub fn pending_len(&self) -> usize {
        self.compressor.output().len() - self.framed
    }

    /// Compresses all buffered input now, which makes the output slightly larger.
    pub fn flush(&mut self) -> Result<(), ChannelWriteError> {
        self.compressor.flush()
    }

    /// Ends the compressed stream. No batch can be added afterwards.
    pub fn close(&mut self) -> Result<(), ChannelWriteError> {
        self.compressor.close()
    }

    /// Whether no further batch can be added.
    pub fn is_closed(&self) -> bool {
        self.compressor.is_closed()
    }

    /// The next frame, of at most `max_size` bytes including its overhead of [`FRAME_OVERHEAD`].
    /// `None` while an open channel has too few pending bytes for a full frame, and after the last
    /// frame.
    pub fn next_frame(&mut self, max_size: usize) -> Result<Option<Frame>, ChannelWriteError> {
        let room = max_size.saturating_sub(FRAME_OVERHEAD).min(MAX_FRAME_DATA);
        if room == 0 {
            return Err(ChannelWriteError::FrameSize(max_size));
        }
        let (is_closed, pending) = (self.is_closed(), self.pending_len());
        if self.is_complete || (!is_closed && pending < room) {
            return Ok(None);
        }
        let number = self.number.ok_or(ChannelWriteError::TooManyFrames)?;
        let is_last = is_closed && pending <= room;
        let data = self.take(room.min(pending));
        self.number = number.checked_add(1);
        self.is_complete = is_last;
        Ok(Some(Frame {
            id: self.id,
            number,
            data,
            is_last,
        }))
    }

    /// Takes the next `len` pending bytes. Taken bytes are removed from the output only once they
    /// are at least half of it. Otherwise many small frames of a large output would move it each
    /// time.
    fn take(&mut self, len: usize) -> Bytes {
        let end = self.framed + len;
        let data = Bytes::copy_from_slice(&self.compressor.output()[self.framed..end]);
        self.taken += len as u64;
        self.framed = end;
        let output = self.compressor.output_mut();
        if 2 * end >= output.len() {
            output.drain(..end);
            self.framed = 0;
        }
        data
    }
}
