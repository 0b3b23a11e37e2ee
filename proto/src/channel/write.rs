//! The batcher's encoder: from batches to the frames of a channel. Derivation does not use it.

use super::{
    compress::{ChannelCompression, Compressor},
    max_rlp_bytes,
};
use crate::frame::{ChannelId, FRAME_OVERHEAD, Frame, MAX_FRAME_DATA};
use alloy_primitives::Bytes;
use alloy_rlp::Header;

/// The reason why a channel takes no further batch, or gives no frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages document the variants")]
pub enum ChannelWriteError {
    #[error("brotli before Fjord")]
    BrotliBeforeFjord,
    /// The channel stays as it was.
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

/// Compresses batches and splits the result into frames, which can be taken while further batches
/// are added.
#[derive(Debug)]
pub struct ChannelWriter {
    id: ChannelId,
    compressor: Compressor,
    /// Bytes at the front of the compressor's output that are in frames already.
    framed: usize,
    /// Uncompressed bytes added.
    input: u64,
    /// Uncompressed bytes that a reader accepts.
    limit: u64,
    /// Compressed bytes taken as frames.
    taken: u64,
    /// Number of the next frame; `None` after the last possible one.
    number: Option<u16>,
    /// Whether the last frame was taken.
    is_complete: bool,
}

impl ChannelWriter {
    /// `fjord` tells whether the L1 origin of the readers' pipelines will be in Fjord.
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

    /// A channel whose batches are stored uncompressed, in a zlib stream.
    pub fn stored(id: ChannelId, fjord: bool) -> Self {
        Self::over(id, Compressor::stored(), fjord)
    }

    /// A closed channel of a complete compressed stream.
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

    /// The channel's name in its frames.
    pub fn id(&self) -> ChannelId {
        self.id
    }

    /// Adds a batch, encoded with its type byte.
    pub fn add(&mut self, batch: &[u8]) -> Result<(), ChannelWriteError> {
        self.add_string(&alloy_rlp::encode(batch))
    }

    /// Adds a batch as the RLP string that the channel holds.
    pub(crate) fn add_string(&mut self, string: &[u8]) -> Result<(), ChannelWriteError> {
        let input = self.input + string.len() as u64;
        if input > self.limit {
            return Err(ChannelWriteError::TooLarge);
        }
        self.compressor.write(string)?;
        self.input = input;
        Ok(())
    }

    /// Uncompressed bytes that a batch of `len` bytes adds.
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

    /// Compressed bytes so far, those taken as frames included. The compressor holds back more until
    /// [`Self::flush`] or [`Self::close`].
    pub fn output_len(&self) -> u64 {
        self.taken + self.pending_len() as u64
    }

    /// Compressed bytes that are in no frame yet.
    pub fn pending_len(&self) -> usize {
        self.compressor.output().len() - self.framed
    }

    /// Compresses all that was added, at the cost of some compression.
    pub fn flush(&mut self) -> Result<(), ChannelWriteError> {
        self.compressor.flush()
    }

    /// Ends the compressed stream. No batch can be added from here on.
    pub fn close(&mut self) -> Result<(), ChannelWriteError> {
        self.compressor.close()
    }

    /// Whether no further batch can be added.
    pub fn is_closed(&self) -> bool {
        self.compressor.is_closed()
    }

    /// The next frame of at most `max_size` bytes, its overhead of [`FRAME_OVERHEAD`] included.
    /// `None` while the channel is open and has fewer bytes pending, and after the last frame.
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

    /// Takes pending bytes. Those before them are removed once they are half of the output, so that
    /// many small frames of a large output do not move it each time.
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
