//! Streaming decompression of a channel.

use super::{BROTLI_VERSION, ChannelData, ChannelError};
use brotli::{BrotliDecompressStream, BrotliResult, BrotliState, enc::StandardAlloc};
use flate2::{Decompress, FlushDecompress, Status};
use std::fmt;

/// Bytes of compressed input that op-node reads first, the version byte of brotli among them; and
/// bytes that it gives its brotli decoder from then on. A decoder returns nothing of a piece in which
/// it finds a fault, so the pieces decide which batches before a fault are read.
const FIRST_PIECE: usize = 4096;
const PIECE: usize = 32 << 10;

/// Flag of a zlib header that the checksum of a preset dictionary follows (RFC 1950, FDICT).
const PRESET_DICTIONARY: u8 = 0x20;
/// The checksum (Adler-32) of the empty dictionary.
const EMPTY_DICTIONARY: [u8; 4] = [0, 0, 0, 1];
/// A zlib header without dictionary, for the largest window. Go's reader has that window whatever the
/// header says.
const PLAIN_HEADER: [u8; 2] = [0x78, 0x9c];

/// A compressed channel and how far it was decompressed.
#[derive(Debug)]
pub(super) struct Decompressor {
    /// Input after the current piece.
    data: ChannelData,
    piece: Vec<u8>,
    /// Bytes of the piece that were decompressed.
    position: usize,
    decoder: Decoder,
    state: StreamState,
    /// Whether the last output was full, so that the decoder may hold more of the same input.
    is_full: bool,
}

/// Whether the decoder can give more.
#[derive(Clone, Debug)]
enum StreamState {
    Open,
    Finished,
    Failed(ChannelError),
}

enum Decoder {
    Zlib(Decompress),
    Brotli(Box<BrotliState<StandardAlloc, StandardAlloc, StandardAlloc>>),
}

impl fmt::Debug for Decoder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Zlib(_) => "Zlib",
            Self::Brotli(_) => "Brotli",
        })
    }
}

impl Decompressor {
    pub fn new(mut data: ChannelData, fjord: bool) -> Result<Self, ChannelError> {
        let mut piece = Vec::new();
        data.read(FIRST_PIECE, &mut piece);
        let first = *piece.first().ok_or(ChannelError::Empty)?;
        let (decoder, position) = match first {
            BROTLI_VERSION if !fjord => return Err(ChannelError::BrotliBeforeFjord),
            BROTLI_VERSION => (Decoder::brotli(), 1),
            _ if matches!(first & 0x0f, 8 | 15) => Decoder::zlib(&piece)?,
            _ => return Err(ChannelError::Compression(first)),
        };
        Ok(Self {
            data,
            piece,
            position,
            decoder,
            state: StreamState::Open,
            is_full: false,
        })
    }

    /// Fills `out`, which is not empty, with some decompressed bytes. 0 at the end of the stream; an
    /// error only after all bytes that precede the fault.
    pub fn read(&mut self, out: &mut [u8]) -> Result<usize, ChannelError> {
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
            let piece = &self.piece[self.position..];
            let (consumed, written, state) = match &mut self.decoder {
                Decoder::Zlib(decoder) => read_zlib(decoder, piece, out),
                Decoder::Brotli(decoder) => read_brotli(decoder, piece, out),
            };
            self.position += consumed;
            self.state = state;
            let was_full = std::mem::replace(&mut self.is_full, written == out.len());
            if written > 0 {
                return Ok(written);
            }
            if matches!(self.state, StreamState::Open) && consumed == 0 && !was_full {
                self.state = StreamState::Failed(ChannelError::Truncated);
            }
        }
    }
}

impl Decoder {
    fn brotli() -> Self {
        let alloc = StandardAlloc::default;
        // Strict: no windows above 16 MiB, which RFC 7932 does not have.
        Self::Brotli(Box::new(BrotliState::new_strict(alloc(), alloc(), alloc())))
    }

    /// Reads the header of RFC 1950 as op-node does before any batch, by Go's `zlib.NewReader`. Returns
    /// the decoder of the rest, and where that begins.
    ///
    /// A header that names a preset dictionary is valid if that is the empty one, which op-node gives.
    fn zlib(data: &[u8]) -> Result<(Self, usize), ChannelError> {
        let (header, rest) = data.split_first_chunk().ok_or(ChannelError::Truncated)?;
        let [method, flags] = *header;
        let is_multiple = u16::from_be_bytes(*header).is_multiple_of(31);
        if method & 0x0f != 8 || method >> 4 > 7 || !is_multiple {
            return Err(ChannelError::ZlibHeader);
        }
        let mut length = header.len();
        if flags & PRESET_DICTIONARY != 0 {
            let dictionary = rest.first_chunk().ok_or(ChannelError::Truncated)?;
            if *dictionary != EMPTY_DICTIONARY {
                return Err(ChannelError::ZlibHeader);
            }
            length += dictionary.len();
        }
        let mut decoder = Decompress::new(true);
        // The decoder refuses preset dictionaries, so it gets a header without one.
        decoder
            .decompress(&PLAIN_HEADER, &mut [0], FlushDecompress::None)
            .map_err(|_| ChannelError::ZlibHeader)?;
        Ok((Self::Zlib(decoder), length))
    }
}

/// Bytes consumed and written, and whether there can be more.
fn read_zlib(
    decoder: &mut Decompress,
    input: &[u8],
    out: &mut [u8],
) -> (usize, usize, StreamState) {
    let (begin_in, begin_out) = (decoder.total_in(), decoder.total_out());
    let status = decoder.decompress(input, out, FlushDecompress::None);
    let state = match status {
        Ok(Status::Ok | Status::BufError) => StreamState::Open,
        Ok(Status::StreamEnd) => StreamState::Finished,
        Err(_) => StreamState::Failed(ChannelError::Corrupt),
    };
    let consumed = decoder.total_in() - begin_in;
    let written = decoder.total_out() - begin_out;
    (consumed as usize, written as usize, state)
}

/// Bytes consumed and written, and whether there can be more.
fn read_brotli(
    decoder: &mut BrotliState<StandardAlloc, StandardAlloc, StandardAlloc>,
    input: &[u8],
    out: &mut [u8],
) -> (usize, usize, StreamState) {
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
        decoder,
    );
    let state = match result {
        BrotliResult::ResultSuccess => StreamState::Finished,
        BrotliResult::NeedsMoreInput | BrotliResult::NeedsMoreOutput => StreamState::Open,
        BrotliResult::ResultFailure => StreamState::Failed(ChannelError::Corrupt),
    };
    (consumed, written, state)
}
