//! Reader of a zlib stream (RFC 1950), with the results of op-node's reader, Go's `compress/zlib`.
//!
//! The stream is first read with zlib. If zlib finds a fault, [`GoInflate`] reads the stream again
//! from its beginning and continues behind the bytes already returned. zlib and Go agree on streams
//! without a fault. Before a fault they agree except for the last [`WITHHELD`] bytes.

use super::{ChannelData, ChannelError, inflate::GoInflate};
use flate2::{Decompress, FlushDecompress, Status};

/// Flag in a zlib header: the checksum of a preset dictionary follows (RFC 1950, FDICT).
const PRESET_DICTIONARY: u8 = 0x20;
/// The checksum (Adler-32) of the empty dictionary.
const EMPTY_DICTIONARY: [u8; 4] = [0, 0, 0, 1];
/// A zlib header without dictionary, for the largest window. Go's reader always uses the largest
/// window, whatever the header declares.
const PLAIN_HEADER: [u8; 2] = [0x78, 0x9c];

/// Compressed bytes passed to zlib at a time.
const PIECE: usize = 32 << 10;
/// Bytes decompressed at a time.
const OUTPUT: usize = 64 << 10;
/// Bound of the decompressed bytes of a cut stream that zlib may return and Go does not. These come
/// from symbols in the last 14 bits: at most seven matches of 258 bytes. So this many bytes are
/// held back until zlib reaches the end of the stream without a fault.
const WITHHELD: usize = 4096;

pub(super) struct ZlibReader {
    /// The whole channel, for reading it again after a fault.
    channel: ChannelData,
    /// Length of the zlib header and of a dictionary's checksum, in bytes.
    header: usize,
    data: ChannelData,
    piece: Vec<u8>,
    /// Number of bytes of `piece` that were decompressed.
    position: usize,
    zlib: Decompress,
    /// Whether the last output was full, so that zlib may have more output without new input.
    is_full: bool,
    /// Decompressed bytes. The first `taken` of them were returned.
    output: Vec<u8>,
    taken: usize,
    /// Total number of bytes returned.
    given: usize,
    state: ZlibState,
}

enum ZlibState {
    Open,
    Finished,
    /// zlib has found a fault: this reader continues.
    Faulty(Box<GoInflate>),
}

impl ZlibReader {
    /// Reads the header. op-node does the same before any batch, with Go's `zlib.NewReader`.
    ///
    /// A header that names a preset dictionary is valid only if that dictionary is empty, because
    /// op-node passes an empty dictionary.
    pub fn new(channel: ChannelData) -> Result<Self, ChannelError> {
        let (mut data, mut start) = (channel.clone(), Vec::new());
        data.read(PLAIN_HEADER.len(), &mut start);
        let &[method, flags] = &start[..] else {
            return Err(ChannelError::Truncated);
        };
        let is_multiple = u16::from_be_bytes([method, flags]).is_multiple_of(31);
        if method & 0x0f != 8 || method >> 4 > 7 || !is_multiple {
            return Err(ChannelError::ZlibHeader);
        }
        let mut header = start.len();
        if flags & PRESET_DICTIONARY != 0 {
            data.read(EMPTY_DICTIONARY.len(), &mut start);
            if start.len() < EMPTY_DICTIONARY.len() {
                return Err(ChannelError::Truncated);
            }
            if start != EMPTY_DICTIONARY {
                return Err(ChannelError::ZlibHeader);
            }
            header += start.len();
        }
        let mut zlib = Decompress::new(true);
        // zlib refuses preset dictionaries, so pass a header without one.
        zlib.decompress(&PLAIN_HEADER, &mut [0], FlushDecompress::None)
            .map_err(|_| ChannelError::ZlibHeader)?;
        Ok(Self {
            channel,
            header,
            data,
            piece: Vec::new(),
            position: 0,
            zlib,
            is_full: false,
            output: Vec::new(),
            taken: 0,
            given: 0,
            state: ZlibState::Open,
        })
    }

    /// Writes some decompressed bytes to `out`, which must not be empty. Returns their number, 0 at
    /// the end of the stream. Returns an error only after all bytes before the fault.
    pub fn read(&mut self, out: &mut [u8]) -> Result<usize, ChannelError> {
        loop {
            let withheld = match &mut self.state {
                ZlibState::Faulty(exact) => return exact.read(out),
                ZlibState::Finished => 0,
                ZlibState::Open => WITHHELD,
            };
            let ready = self.output.len().saturating_sub(self.taken + withheld);
            if ready > 0 {
                let count = ready.min(out.len());
                out[..count].copy_from_slice(&self.output[self.taken..][..count]);
                self.taken += count;
                self.given += count;
                return Ok(count);
            }
            if matches!(self.state, ZlibState::Finished) {
                return Ok(0);
            }
            self.decompress()?;
        }
    }

    fn decompress(&mut self) -> Result<(), ChannelError> {
        if self.position == self.piece.len() && !self.is_full {
            self.data.read(PIECE, &mut self.piece);
            self.position = 0;
        }
        self.output.drain(..self.taken);
        self.taken = 0;
        let begin = self.output.len();
        self.output.resize(begin + OUTPUT, 0);
        let [in_before, out_before] = [self.zlib.total_in(), self.zlib.total_out()];
        let input = &self.piece[self.position..];
        let status = self
            .zlib
            .decompress(input, &mut self.output[begin..], FlushDecompress::None);
        let consumed = (self.zlib.total_in() - in_before) as usize;
        let written = (self.zlib.total_out() - out_before) as usize;
        self.output.truncate(begin + written);
        self.position += consumed;
        let was_full = std::mem::replace(&mut self.is_full, written == OUTPUT);
        let is_stuck = consumed == 0 && written == 0 && !was_full;
        match status {
            Ok(Status::StreamEnd) => self.state = ZlibState::Finished,
            Ok(_) if !is_stuck => {}
            // The input ends too early or is malformed.
            _ => self.state = ZlibState::Faulty(self.read_again()?),
        }
        Ok(())
    }

    /// A [`GoInflate`] at the position behind the bytes already returned.
    fn read_again(&self) -> Result<Box<GoInflate>, ChannelError> {
        let mut exact = Box::new(GoInflate::new(self.channel.clone(), self.header));
        let (mut left, mut skipped) = (self.given, vec![0; OUTPUT]);
        while left > 0 {
            let most = left.min(OUTPUT);
            match exact.read(&mut skipped[..most])? {
                0 => break,
                count => left -= count,
            }
        }
        Ok(exact)
    }
}
