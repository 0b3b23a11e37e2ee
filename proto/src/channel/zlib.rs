//! A zlib stream (RFC 1950), read as op-node reads it by Go's `compress/zlib`.
//!
//! zlib reads it first. Where zlib finds a fault, [`GoInflate`] reads the stream from its beginning and
//! goes on from there: the two agree on streams without a fault, and before one as far as
//! [`WITHHELD`] says.

use super::{ChannelData, ChannelError, inflate::GoInflate};
use flate2::{Decompress, FlushDecompress, Status};

/// Flag of a zlib header that the checksum of a preset dictionary follows (RFC 1950, FDICT).
const PRESET_DICTIONARY: u8 = 0x20;
/// The checksum (Adler-32) of the empty dictionary.
const EMPTY_DICTIONARY: [u8; 4] = [0, 0, 0, 1];
/// A zlib header without dictionary, for the largest window. Go's reader has that window whatever the
/// header says.
const PLAIN_HEADER: [u8; 2] = [0x78, 0x9c];

/// Compressed bytes given to zlib at a time.
const PIECE: usize = 32 << 10;
/// Bytes decompressed at a time.
const OUTPUT: usize = 64 << 10;
/// Decompressed bytes that zlib may give of a cut stream and Go does not: those of symbols in the last
/// 14 bits, at most seven matches of 258 bytes. They are kept back until it is known that no fault
/// follows.
const WITHHELD: usize = 4096;

pub(super) struct ZlibReader {
    /// The whole channel, for a second reading.
    channel: ChannelData,
    /// Bytes of the header, and of a dictionary's checksum.
    header: usize,
    data: ChannelData,
    piece: Vec<u8>,
    /// Bytes of the piece that were decompressed.
    position: usize,
    zlib: Decompress,
    /// Whether the last output was full, so that zlib may hold more of the same input.
    is_full: bool,
    /// Decompressed bytes, of which the first `taken` were given out.
    output: Vec<u8>,
    taken: usize,
    /// Bytes that were given out in all.
    given: usize,
    state: ZlibState,
}

enum ZlibState {
    Open,
    Finished,
    /// zlib has found a fault.
    Faulty(Box<GoInflate>),
}

impl ZlibReader {
    /// Reads the header as op-node does before any batch, by Go's `zlib.NewReader`.
    ///
    /// A header that names a preset dictionary is valid if that is the empty one, which op-node gives.
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
        // zlib refuses preset dictionaries, so it gets a header without one.
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

    /// Fills `out`, which is not empty, with some decompressed bytes. 0 at the end of the stream; an
    /// error only after all bytes that precede the fault.
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
            // The input has ended, or is malformed.
            _ => self.state = ZlibState::Faulty(self.read_again()?),
        }
        Ok(())
    }

    /// The other reader, after the bytes that were given out.
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
