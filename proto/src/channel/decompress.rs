//! Streaming decompression of a channel.

use super::{BROTLI_VERSION, ChannelData, ChannelError, zlib::ZlibReader};
use brotli::{BrotliDecompressStream, BrotliResult, BrotliState, enc::StandardAlloc};
use std::fmt;

/// Sizes of the pieces of compressed input: op-node first reads `FIRST_PIECE` bytes, including
/// brotli's version byte, and then passes `PIECE` bytes at a time to its brotli decoder. A decoder
/// returns nothing of a piece with a fault. So the piece sizes decide which batches before a fault
/// are read.
const FIRST_PIECE: usize = 4096;
const PIECE: usize = 32 << 10;

/// A compressed channel and the state of its decompression.
pub(super) enum Decompressor {
    Zlib(Box<ZlibReader>),
    Brotli(Box<BrotliReader>),
}

impl fmt::Debug for Decompressor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Zlib(_) => "Zlib",
            Self::Brotli(_) => "Brotli",
        })
    }
}

impl Decompressor {
    pub fn new(data: ChannelData, fjord: bool) -> Result<Self, ChannelError> {
        let first = data.first().ok_or(ChannelError::Empty)?;
        match first {
            BROTLI_VERSION if !fjord => Err(ChannelError::BrotliBeforeFjord),
            BROTLI_VERSION => Ok(Self::Brotli(Box::new(BrotliReader::new(data)))),
            _ if matches!(first & 0x0f, 8 | 15) => Ok(Self::Zlib(ZlibReader::new(data)?.into())),
            _ => Err(ChannelError::Compression(first)),
        }
    }

    /// Writes some decompressed bytes to `out`, which must not be empty. Returns their number, 0 at
    /// the end of the stream. Returns an error only after the bytes that op-node reads before the
    /// fault.
    pub fn read(&mut self, out: &mut [u8]) -> Result<usize, ChannelError> {
        match self {
            Self::Zlib(reader) => reader.read(out),
            Self::Brotli(reader) => reader.read(out),
        }
    }
}

/// Reads the brotli stream that follows the channel's version byte.
pub(super) struct BrotliReader {
    /// Input after the current piece.
    data: ChannelData,
    piece: Vec<u8>,
    /// Number of bytes of `piece` that were decompressed.
    position: usize,
    decoder: BrotliState<StandardAlloc, StandardAlloc, StandardAlloc>,
    state: StreamState,
    /// Whether the last output was full, so that the decoder may have more output without new
    /// input.
    is_full: bool,
}

/// Whether the decoder can return more bytes.
#[derive(Clone, Debug)]
enum StreamState {
    Open,
    Finished,
    Failed(ChannelError),
}

impl BrotliReader {
    fn new(mut data: ChannelData) -> Self {
        let mut piece = Vec::new();
        data.read(FIRST_PIECE, &mut piece);
        let alloc = StandardAlloc::default;
        Self {
            data,
            piece,
            // The version byte is not part of the stream.
            position: 1,
            // Strict mode refuses windows above 16 MiB, which RFC 7932 does not allow.
            decoder: BrotliState::new_strict(alloc(), alloc(), alloc()),
            state: StreamState::Open,
            is_full: false,
        }
    }

    /// Reads like [`Decompressor::read`].
    fn read(&mut self, out: &mut [u8]) -> Result<usize, ChannelError> {
        loop {
            match &self.state {
                StreamState::Open => {}
                StreamState::Finished => return Ok(0),
                StreamState::Failed(error) => return Err(error.clone()),
            }
            if self.position == self.piece.len() && !self.is_full {
                self.data.read(PIECE, &mut self.piece);
                self.position = 0;
            }
            let (consumed, written) = self.decompress(out);
            self.position += consumed;
            let was_full = std::mem::replace(&mut self.is_full, written == out.len());
            if written > 0 {
                return Ok(written);
            }
            if matches!(self.state, StreamState::Open) && consumed == 0 && !was_full {
                self.state = StreamState::Failed(ChannelError::Truncated);
            }
        }
    }

    /// Decompresses once. Returns the numbers of bytes consumed and written.
    fn decompress(&mut self, out: &mut [u8]) -> (usize, usize) {
        let input = &self.piece[self.position..];
        let (mut available_in, mut consumed) = (input.len(), 0);
        let (mut available_out, mut written) = (out.len(), 0);
        let result = BrotliDecompressStream(
            &mut available_in,
            &mut consumed,
            input,
            &mut available_out,
            &mut written,
            out,
            &mut 0,
            &mut self.decoder,
        );
        self.state = match result {
            BrotliResult::ResultSuccess => StreamState::Finished,
            BrotliResult::NeedsMoreInput | BrotliResult::NeedsMoreOutput => StreamState::Open,
            BrotliResult::ResultFailure => StreamState::Failed(ChannelError::Corrupt),
        };
        (consumed, written)
    }
}
