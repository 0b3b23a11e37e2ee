//! Channels: a compressed stream of batches (specs: derivation, channel format).
//!
//! A channel is compressed with zlib or, from Fjord on, with brotli. A byte 0x01 precedes a brotli
//! stream. The decompressed bytes are a sequence of RLP strings, each of them a batch.
//!
//! Channels are decompressed as a stream: like op-node, the reader returns the batches before a
//! fault. Besides the channel itself a reader keeps one decompressed batch, a buffer, and the
//! decompressor's window of at most 16 MiB, however large the decompressed channel is.

mod compress;
mod data;
mod decompress;
mod inflate;
mod write;
mod zlib;

pub use crate::span::BatchContext;
pub(crate) use compress::Compressor;
pub use compress::{ChannelCompression, UnknownCompression};
pub use data::ChannelData;
pub use write::{ChannelWriteError, ChannelWriter};

use crate::batch::{self, Batch, BatchError};
use alloy_primitives::Bytes;
use decompress::Decompressor;

/// First byte of a channel that is compressed with brotli.
pub const BROTLI_VERSION: u8 = 1;
/// Largest decompressed size of a channel before Fjord, in bytes (specs: derivation,
/// MAX_RLP_BYTES_PER_CHANNEL).
pub const MAX_RLP_BYTES: u64 = 10_000_000;
/// Largest decompressed size of a channel from Fjord on, in bytes (specs: fjord,
/// MAX_RLP_BYTES_PER_CHANNEL).
pub const MAX_RLP_BYTES_FJORD: u64 = 100_000_000;

/// Largest decompressed size of a channel, in bytes; `fjord` selects the limit from Fjord on.
pub(crate) fn max_rlp_bytes(fjord: bool) -> u64 {
    if fjord {
        MAX_RLP_BYTES_FJORD
    } else {
        MAX_RLP_BYTES
    }
}

/// Bytes decompressed at a time. A batch that fits in this buffer is copied once.
const BUFFER: usize = 64 << 10;
/// Below this size, a batch's memory doubles as its bytes arrive. From this size on, all announced
/// bytes are allocated at once. So less than twice this many bytes are copied at a time.
const DOUBLING_LIMIT: usize = 32 << 20;

/// Reads the batches of a complete channel, one by one.
#[derive(Debug)]
pub struct BatchReader {
    source: Decompressor,
    context: BatchContext,
    /// Decompressed bytes; those from `position` on are not read yet.
    buffer: Vec<u8>,
    position: usize,
    /// Decompressed bytes that may still be read before the channel's limit.
    remaining: u64,
    /// Whether the reader has returned the end of the channel, or an error that ends it.
    ended: bool,
}

/// The reason why a channel ends, or why one of its batches is skipped.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages document the variants")]
pub enum ChannelError {
    #[error("the channel is empty")]
    Empty,
    #[error("unknown compression {0:#04x}")]
    Compression(u8),
    #[error("brotli before Fjord")]
    BrotliBeforeFjord,
    #[error("malformed zlib header")]
    ZlibHeader,
    #[error("malformed compressed data")]
    Corrupt,
    /// The compressed data end early, or the decompressed data end inside a batch.
    #[error("the channel ends early")]
    Truncated,
    #[error("the channel decompresses to more than its limit")]
    TooLarge,
    #[error("a batch is no RLP string")]
    Rlp,
    #[error(transparent)]
    Batch(#[from] BatchError),
}

impl ChannelError {
    /// Whether the next batch of the same channel can be read.
    pub fn skips_only_this_batch(&self) -> bool {
        matches!(self, Self::Batch(error) if error.skips_only_this_batch())
    }
}

impl BatchReader {
    /// `data` are the data of all frames. `fjord` is whether the L1 origin of the pipeline is in
    /// Fjord, so that brotli and the larger limit of decompressed bytes apply. Fails if `data` do
    /// not begin like compressed data at all.
    pub fn new(
        data: impl Into<ChannelData>,
        context: BatchContext,
        fjord: bool,
    ) -> Result<Self, ChannelError> {
        Ok(Self {
            source: Decompressor::new(data.into(), fjord)?,
            context,
            buffer: Vec::new(),
            position: 0,
            remaining: max_rlp_bytes(fjord),
            ended: false,
        })
    }

    /// The next batch; `None` at the end of the channel. An error with
    /// [`ChannelError::skips_only_this_batch`] only skips this batch; any other error ends the
    /// channel. Before Delta the caller skips span batches and reads on.
    pub fn next_batch(&mut self) -> Option<Result<Batch, ChannelError>> {
        let result = self.next_string().and_then(|batch| match batch {
            Some(batch) => Ok(Some(batch::decode(&batch, &self.context)?)),
            None => Ok(None),
        });
        self.ended = match &result {
            Ok(batch) => batch.is_none(),
            Err(error) => !error.skips_only_this_batch(),
        };
        result.transpose()
    }

    /// The content of the next RLP string.
    fn next_string(&mut self) -> Result<Option<Bytes>, ChannelError> {
        if self.ended || self.available(1)? == 0 {
            return Ok(None);
        }
        let first = self.header(1)?[0];
        let length = match first {
            0..0x80 => return Ok(Some(Bytes::copy_from_slice(&[first]))),
            0x80..0xb8 => usize::from(first - 0x80),
            0xb8..0xc0 => self.long_length(usize::from(first - 0xb7))?,
            0xc0.. => return Err(ChannelError::Rlp),
        };
        let string = self.string(length)?;
        if length == 1 && string[0] < 0x80 {
            return Err(ChannelError::Rlp);
        }
        Ok(Some(string.into()))
    }

    /// Reads a length of `bytes` big-endian bytes. Fails if a shorter RLP header could encode it.
    fn long_length(&mut self, bytes: usize) -> Result<usize, ChannelError> {
        let mut word = [0; 8];
        word[8 - bytes..].copy_from_slice(self.header(bytes)?);
        let length = u64::from_be_bytes(word);
        if word[8 - bytes] == 0 || length < 56 {
            return Err(ChannelError::Rlp);
        }
        usize::try_from(length).map_err(|_| ChannelError::TooLarge)
    }

    /// Reads the next `len` bytes, at most 8.
    fn header(&mut self, len: usize) -> Result<&[u8], ChannelError> {
        self.charge(len)?;
        if self.available(len)? < len {
            return Err(ChannelError::Truncated);
        }
        self.position += len;
        Ok(&self.buffer[self.position - len..self.position])
    }

    /// Reads the next `length` bytes. Below [`DOUBLING_LIMIT`] the allocation is at most twice the
    /// bytes received, or a small buffer, however large the announced `length` is.
    fn string(&mut self, length: usize) -> Result<Vec<u8>, ChannelError> {
        self.charge(length)?;
        let unread = &self.buffer[self.position..];
        let taken = unread.len().min(length);
        let mut string = Vec::with_capacity(length.min(BUFFER.max(taken)));
        string.extend_from_slice(&unread[..taken]);
        self.position += taken;
        while string.len() < length {
            let have = string.len();
            if have == string.capacity() {
                let target = if have < DOUBLING_LIMIT {
                    length.min(2 * have)
                } else {
                    length
                };
                string.reserve_exact(target - have);
            }
            let end = string.capacity().min(length).min(have + BUFFER);
            string.resize(end, 0);
            let written = self.source.read(&mut string[have..])?;
            string.truncate(have + written);
            if written == 0 {
                return Err(ChannelError::Truncated);
            }
        }
        Ok(string)
    }

    /// Counts `len` bytes against the channel's limit, before they are read.
    fn charge(&mut self, len: usize) -> Result<(), ChannelError> {
        self.remaining = self
            .remaining
            .checked_sub(len as u64)
            .ok_or(ChannelError::TooLarge)?;
        Ok(())
    }

    /// Decompresses until at least `len` bytes are buffered or the stream ends. Returns the number
    /// of buffered bytes.
    fn available(&mut self, len: usize) -> Result<usize, ChannelError> {
        while self.buffer.len() - self.position < len {
            self.buffer.drain(..self.position);
            self.position = 0;
            let have = self.buffer.len();
            self.buffer.resize(have + BUFFER, 0);
            let written = self.source.read(&mut self.buffer[have..]);
            self.buffer.truncate(have + *written.as_ref().unwrap_or(&0));
            if written? == 0 {
                break;
            }
        }
        Ok(self.buffer.len() - self.position)
    }
}
