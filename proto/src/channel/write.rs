//! The batcher's encoder: from batches to the frames of a channel. Derivation does not use it.

use super::{BROTLI_VERSION, MAX_RLP_BYTES, MAX_RLP_BYTES_FJORD};
use crate::frame::{ChannelId, FRAME_OVERHEAD, Frame, MAX_FRAME_DATA};
use alloy_primitives::Bytes;
use alloy_rlp::Header;
use brotli::CompressorWriter;
use flate2::write::ZlibEncoder;
use std::{fmt, io::Write};

/// Size of the window of brotli, as a power of 2: 4 MiB, the default of brotli's command line.
const BROTLI_WINDOW: u32 = 22;
/// Bytes that the brotli encoder writes at a time.
const BROTLI_BUFFER: usize = 4096;

/// Compression of a channel, as op-batcher offers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChannelCompression {
    /// Level 9.
    Zlib,
    /// From Fjord.
    Brotli9,
    /// From Fjord.
    Brotli10,
    /// From Fjord.
    Brotli11,
}

impl ChannelCompression {
    /// Whether the chain must be in Fjord.
    pub fn needs_fjord(self) -> bool {
        self != Self::Zlib
    }
}

/// Why a channel takes no further batch, or gives no frame.
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
    encoder: Encoder,
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

enum Encoder {
    Zlib(ZlibEncoder<Vec<u8>>),
    Brotli(Box<CompressorWriter<Vec<u8>>>),
    Closed(Vec<u8>),
}

impl fmt::Debug for Encoder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Zlib(_) => "Zlib",
            Self::Brotli(_) => "Brotli",
            Self::Closed(_) => "Closed",
        })
    }
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
        Ok(Self {
            id,
            encoder: Encoder::new(compression),
            input: 0,
            limit: if fjord {
                MAX_RLP_BYTES_FJORD
            } else {
                MAX_RLP_BYTES
            },
            taken: 0,
            number: Some(0),
            is_complete: false,
        })
    }

    /// The channel's name in its frames.
    pub fn id(&self) -> ChannelId {
        self.id
    }

    /// Adds a batch, encoded with its type byte.
    pub fn add(&mut self, batch: &[u8]) -> Result<(), ChannelWriteError> {
        let mut string = Vec::with_capacity(batch.len() + 9);
        alloy_rlp::Encodable::encode(batch, &mut string);
        let input = self.input + string.len() as u64;
        if input > self.limit {
            return Err(ChannelWriteError::TooLarge);
        }
        self.encoder.write(&string)?;
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
        self.taken + self.encoder.output().len() as u64
    }

    /// Compressed bytes that are in no frame yet.
    pub fn pending_len(&self) -> usize {
        self.encoder.output().len()
    }

    /// Compresses all that was added, at the cost of some compression.
    pub fn flush(&mut self) -> Result<(), ChannelWriteError> {
        self.encoder.flush()
    }

    /// Ends the compressed stream. No batch can be added from here on.
    pub fn close(&mut self) -> Result<(), ChannelWriteError> {
        self.encoder.close()
    }

    /// Whether no further batch can be added.
    pub fn is_closed(&self) -> bool {
        matches!(self.encoder, Encoder::Closed(_))
    }

    /// The next frame of at most `max_size` bytes, its overhead of [`FRAME_OVERHEAD`] included.
    /// `None` while the channel is open and has fewer bytes pending, and after the last frame.
    pub fn next_frame(&mut self, max_size: usize) -> Result<Option<Frame>, ChannelWriteError> {
        let room = max_size.saturating_sub(FRAME_OVERHEAD).min(MAX_FRAME_DATA);
        if room == 0 {
            return Err(ChannelWriteError::FrameSize(max_size));
        }
        let is_closed = self.is_closed();
        let pending = self.encoder.output_mut();
        if self.is_complete || (!is_closed && pending.len() < room) {
            return Ok(None);
        }
        let number = self.number.ok_or(ChannelWriteError::TooManyFrames)?;
        let is_last = is_closed && pending.len() <= room;
        let data: Bytes = pending.drain(..room.min(pending.len())).collect();
        self.taken += data.len() as u64;
        self.number = number.checked_add(1);
        self.is_complete = is_last;
        Ok(Some(Frame {
            id: self.id,
            number,
            data,
            is_last,
        }))
    }
}

impl Encoder {
    fn new(compression: ChannelCompression) -> Self {
        let level = match compression {
            ChannelCompression::Zlib => {
                let level = flate2::Compression::best();
                return Self::Zlib(ZlibEncoder::new(Vec::new(), level));
            }
            ChannelCompression::Brotli9 => 9,
            ChannelCompression::Brotli10 => 10,
            ChannelCompression::Brotli11 => 11,
        };
        let out = vec![BROTLI_VERSION];
        let writer = CompressorWriter::new(out, BROTLI_BUFFER, level, BROTLI_WINDOW);
        Self::Brotli(Box::new(writer))
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), ChannelWriteError> {
        match self {
            Self::Zlib(writer) => writer.write_all(bytes),
            Self::Brotli(writer) => writer.write_all(bytes),
            Self::Closed(_) => return Err(ChannelWriteError::Closed),
        }
        .map_err(|_| ChannelWriteError::Compressor)
    }

    fn flush(&mut self) -> Result<(), ChannelWriteError> {
        match self {
            Self::Zlib(writer) => writer.flush(),
            Self::Brotli(writer) => writer.flush(),
            Self::Closed(_) => Ok(()),
        }
        .map_err(|_| ChannelWriteError::Compressor)
    }

    fn close(&mut self) -> Result<(), ChannelWriteError> {
        let output = match std::mem::replace(self, Self::Closed(Vec::new())) {
            Self::Zlib(writer) => writer.finish(),
            Self::Brotli(writer) => Ok(writer.into_inner()),
            Self::Closed(output) => Ok(output),
        };
        *self = Self::Closed(output.map_err(|_| ChannelWriteError::Compressor)?);
        Ok(())
    }

    /// Compressed bytes that are in no frame yet.
    fn output(&self) -> &Vec<u8> {
        match self {
            Self::Zlib(writer) => writer.get_ref(),
            Self::Brotli(writer) => writer.get_ref(),
            Self::Closed(output) => output,
        }
    }

    fn output_mut(&mut self) -> &mut Vec<u8> {
        match self {
            Self::Zlib(writer) => writer.get_mut(),
            Self::Brotli(writer) => writer.get_mut(),
            Self::Closed(output) => output,
        }
    }
}
