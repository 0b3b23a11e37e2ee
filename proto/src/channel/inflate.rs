//! Reader of zlib streams with a fault after the header, with exactly the results of Go's
//! `compress/zlib` (RFC 1950, RFC 1951).
//!
//! op-node uses Go's reader, so that reader decides which batches before a fault are in the chain.
//! Go's reader differs from zlib only for streams that are cut or malformed. In a block with codes
//! of its own, it requires, before each symbol, as many bits as the end-of-block code has. It also
//! accepts blocks without an end-of-block code. [`super::zlib`] uses this reader once zlib finds a
//! fault.

use super::{ChannelData, ChannelError};

/// Farthest distance of a match, in bytes.
const HISTORY: usize = 32 << 10;
/// Bytes that are decompressed at a time, before the caller reads them.
const AHEAD: usize = 64 << 10;
/// Compressed bytes that are read from the channel at a time.
const PIECE: usize = 32 << 10;

/// Longest code of a symbol, in bits.
const MAX_CODE: usize = 15;
/// Largest number of symbols in the code for literals and lengths, and in the code for distances.
const MAX_LITERALS: usize = 286;
const MAX_DISTANCES: usize = 30;
/// The symbol that ends a block.
const END: usize = 256;
/// The order in which a block stores the lengths of the codes for code lengths.
const LENGTH_ORDER: [usize; 19] = [
    16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15,
];

/// State of reading a Deflate stream and the checksum after it.
#[derive(Debug)]
pub(super) struct GoInflate {
    bits: BitReader,
    block: DeflateBlock,
    /// Whether the current block is the last one.
    is_last: bool,
    /// The checksum of the bytes that [`Self::read`] returned.
    digest: Adler32,
    /// Whether the checksum at the stream's end was read.
    is_checked: bool,
    /// Decompressed bytes. Those before `given` were returned and are kept for matches; those from
    /// `given` on are still to be returned.
    window: Vec<u8>,
    given: usize,
    fault: Option<ChannelError>,
}

/// The unread part of the current block.
#[derive(Debug)]
enum DeflateBlock {
    /// No block: the next block follows, unless the last one was read.
    None,
    /// A stored block, with the number of bytes left.
    Stored(usize),
    Coded {
        literals: Box<PrefixCode>,
        /// The distance code; `None` in a block with the fixed codes.
        distances: Option<Box<PrefixCode>>,
    },
}

impl GoInflate {
    /// A reader of the stream that begins `offset` bytes into `data`.
    pub fn new(mut data: ChannelData, offset: usize) -> Self {
        let mut skipped = Vec::new();
        data.read(offset, &mut skipped);
        Self {
            bits: BitReader {
                data,
                piece: Vec::new(),
                position: 0,
                bits: 0,
                count: 0,
            },
            block: DeflateBlock::None,
            is_last: false,
            digest: Adler32::default(),
            is_checked: false,
            window: Vec::new(),
            given: 0,
            fault: None,
        }
    }

    /// Writes some decompressed bytes to `out` and returns their number, 0 at the end of the
    /// stream. Returns an error only after all bytes before the fault.
    pub fn read(&mut self, out: &mut [u8]) -> Result<usize, ChannelError> {
        while self.given == self.window.len() {
            if let Some(fault) = &self.fault {
                return Err(fault.clone());
            }
            if matches!(self.block, DeflateBlock::None) && self.is_last {
                if !std::mem::replace(&mut self.is_checked, true) {
                    self.fault = self.check().err();
                    continue;
                }
                return Ok(0);
            }
            let surplus = self.window.len().saturating_sub(HISTORY);
            self.window.drain(..surplus);
            self.given = self.window.len();
            self.fault = self.fill().err();
        }
        let waiting = &self.window[self.given..];
        let taken = waiting.len().min(out.len());
        out[..taken].copy_from_slice(&waiting[..taken]);
        self.digest.add(&out[..taken]);
        self.given += taken;
        Ok(taken)
    }

    /// Compares the checksum after the stream with the checksum of all returned bytes.
    fn check(&mut self) -> Result<(), ChannelError> {
        self.bits.align();
        let mut stored = 0;
        for _ in 0..4 {
            stored = stored << 8 | u32::from(self.bits.byte()?);
        }
        if stored == self.digest.value() {
            Ok(())
        } else {
            Err(ChannelError::Corrupt)
        }
    }

    /// Decompresses [`AHEAD`] bytes, or up to a match more; fewer, possibly none, at the end of a
    /// block.
    fn fill(&mut self) -> Result<(), ChannelError> {
        if matches!(self.block, DeflateBlock::None) {
            self.block = self.next_block()?;
        }
        let full = self.window.len() + AHEAD;
        while self.window.len() < full {
            let is_over = match &mut self.block {
                DeflateBlock::None => true,
                DeflateBlock::Stored(left) => {
                    if *left > 0 {
                        self.window.push(self.bits.byte()?);
                        *left -= 1;
                    }
                    *left == 0
                }
                DeflateBlock::Coded {
                    literals,
                    distances,
                } => {
                    let distances = distances.as_deref();
                    symbol(&mut self.bits, literals, distances, &mut self.window)?
                }
            };
            if is_over {
                self.block = DeflateBlock::None;
                break;
            }
        }
        Ok(())
    }

    fn next_block(&mut self) -> Result<DeflateBlock, ChannelError> {
        let header = self.bits.take(3)?;
        self.is_last = header & 1 == 1;
        match header >> 1 {
            0 => {
                self.bits.align();
                let [length, complement] = [self.bits.take(16)?, self.bits.take(16)?];
                if length ^ complement == 0xffff {
                    Ok(DeflateBlock::Stored(length))
                } else {
                    Err(ChannelError::Corrupt)
                }
            }
            1 => Ok(DeflateBlock::Coded {
                literals: Box::new(PrefixCode::fixed()),
                distances: None,
            }),
            2 => self.coded_block(),
            _ => Err(ChannelError::Corrupt),
        }
    }

    /// Reads the codes at the beginning of a block that has its own codes.
    fn coded_block(&mut self) -> Result<DeflateBlock, ChannelError> {
        let counts = self.bits.take(14)?;
        let literals = (counts & 31) + 257;
        let distances = ((counts >> 5) & 31) + 1;
        let code_lengths = (counts >> 10) + 4;
        if literals > MAX_LITERALS || distances > MAX_DISTANCES {
            return Err(ChannelError::Corrupt);
        }
        let mut lengths = [0; LENGTH_ORDER.len()];
        for place in &LENGTH_ORDER[..code_lengths] {
            lengths[*place] = self.bits.take(3)? as u8;
        }
        let code = PrefixCode::new(&lengths)?;
        let lengths = self.code_lengths(&code, literals + distances)?;
        let (literal_lengths, distance_lengths) = lengths.split_at(literals);
        let mut literals = PrefixCode::new(literal_lengths)?;
        let distances = PrefixCode::new(distance_lengths)?;
        literals.least_bits = literals.least_bits.max(literal_lengths[END].into());
        Ok(DeflateBlock::Coded {
            literals: Box::new(literals),
            distances: Some(Box::new(distances)),
        })
    }

    /// Reads the lengths of `count` codes, which are compressed with `code`.
    fn code_lengths(&mut self, code: &PrefixCode, count: usize) -> Result<Vec<u8>, ChannelError> {
        let mut lengths = Vec::with_capacity(count);
        while lengths.len() < count {
            let (length, times) = match code.symbol(&mut self.bits)? {
                16 => {
                    let last = *lengths.last().ok_or(ChannelError::Corrupt)?;
                    (last, 3 + self.bits.take(2)?)
                }
                17 => (0, 3 + self.bits.take(3)?),
                18 => (0, 11 + self.bits.take(7)?),
                length => (length as u8, 1),
            };
            if lengths.len() + times > count {
                return Err(ChannelError::Corrupt);
            }
            lengths.resize(lengths.len() + times, length);
        }
        Ok(lengths)
    }
}

/// Reads one symbol and appends its literal or match to `window`. Returns whether the symbol ends
/// the block.
fn symbol(
    bits: &mut BitReader,
    literals: &PrefixCode,
    distances: Option<&PrefixCode>,
    window: &mut Vec<u8>,
) -> Result<bool, ChannelError> {
    let (base, extra) = match literals.symbol(bits)? {
        literal @ 0..END => {
            window.push(literal as u8);
            return Ok(false);
        }
        END => return Ok(true),
        short @ 257..265 => (short - 254, 0),
        long @ 265..285 => {
            let extra = (long - 261) / 4;
            (((4 + (long - 261) % 4) << extra) + 3, extra)
        }
        285 => (258, 0),
        _ => return Err(ChannelError::Corrupt),
    };
    let length = base + bits.take(extra)?;
    let distance = match distances {
        Some(code) => code.symbol(bits)?,
        None => bits.take(5)?.reverse_bits() >> (usize::BITS - 5),
    };
    let distance = match distance {
        0..4 => distance + 1,
        4..MAX_DISTANCES => {
            let extra = distance / 2 - 1;
            ((2 + distance % 2) << extra) + 1 + bits.take(extra)?
        }
        _ => return Err(ChannelError::Corrupt),
    };
    let start = window
        .len()
        .checked_sub(distance)
        .ok_or(ChannelError::Corrupt)?;
    let end = window.len() + length;
    while window.len() < end {
        // A match may overlap its own output, so copy in several steps.
        let known = window.len().min(start + end - window.len());
        window.extend_from_within(start..known);
    }
    Ok(false)
}

/// The checksum of a zlib stream (RFC 1950, Adler-32).
#[derive(Debug)]
struct Adler32 {
    low: u32,
    high: u32,
}

impl Default for Adler32 {
    fn default() -> Self {
        Self { low: 1, high: 0 }
    }
}

impl Adler32 {
    const MODULUS: u32 = 65_521;
    /// Largest number of bytes that can be added before both sums must be reduced to fit in 32
    /// bits.
    const BYTES: usize = 5_552;

    fn add(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(Self::BYTES) {
            for byte in chunk {
                self.low += u32::from(*byte);
                self.high += self.low;
            }
            self.low %= Self::MODULUS;
            self.high %= Self::MODULUS;
        }
    }

    fn value(&self) -> u32 {
        self.high << 16 | self.low
    }
}

/// A prefix code, defined by the lengths of its codes (RFC 1951, 3.2.2).
#[derive(Debug)]
struct PrefixCode {
    /// Number of codes of each length.
    counts: [u16; MAX_CODE + 1],
    /// The symbols in the order of their codes.
    symbols: Vec<u16>,
    /// Number of bits that must be available before a symbol is read.
    least_bits: usize,
}

impl PrefixCode {
    /// The code with these lengths. Fails unless the codes use up all bit strings. Two exceptions
    /// are allowed: a single code of one bit, and no code at all.
    fn new(lengths: &[u8]) -> Result<Self, ChannelError> {
        let code = Self::unchecked(lengths);
        let mut free = 1;
        for count in &code.counts[1..] {
            free = 2 * free - i32::from(*count);
            if free < 0 {
                return Err(ChannelError::Corrupt);
            }
        }
        let is_single_bit = code.symbols.len() == 1 && code.counts[1] == 1;
        if free > 0 && !code.symbols.is_empty() && !is_single_bit {
            return Err(ChannelError::Corrupt);
        }
        Ok(code)
    }

    fn unchecked(lengths: &[u8]) -> Self {
        let mut counts = [0; MAX_CODE + 1];
        for length in lengths.iter().filter(|length| **length > 0) {
            counts[usize::from(*length)] += 1;
        }
        let mut symbols = Vec::with_capacity(lengths.len());
        for length in 1..=MAX_CODE {
            let of_length = lengths.iter().zip(0..);
            let of_length = of_length.filter(|(of, _)| usize::from(**of) == length);
            symbols.extend(of_length.map(|(_, symbol): (_, u16)| symbol));
        }
        Self {
            counts,
            symbols,
            least_bits: counts.iter().position(|count| *count > 0).unwrap_or(0),
        }
    }

    /// The fixed code for literals and lengths, for blocks without their own codes.
    fn fixed() -> Self {
        let mut lengths = [8; 288];
        lengths[144..256].fill(9);
        lengths[256..280].fill(7);
        Self::unchecked(&lengths)
    }

    /// Reads one symbol.
    fn symbol(&self, bits: &mut BitReader) -> Result<usize, ChannelError> {
        bits.need(self.least_bits)?;
        let (mut code, mut first, mut index) = (0, 0, 0);
        for length in 1..=MAX_CODE {
            code |= bits.take(1)?;
            let count = usize::from(self.counts[length]);
            if code < first + count {
                return Ok(self.symbols[index + code - first].into());
            }
            index += count;
            (first, code) = ((first + count) << 1, code << 1);
        }
        Err(ChannelError::Corrupt)
    }
}

/// Reads the stream bit by bit, starting with the lowest bit of each byte.
#[derive(Debug)]
struct BitReader {
    data: ChannelData,
    piece: Vec<u8>,
    position: usize,
    /// Bits that were loaded from `piece` but not yet taken.
    bits: u64,
    count: usize,
}

impl BitReader {
    /// Makes `count` bits available; `count` is at most 48. Fails if the stream has fewer.
    fn need(&mut self, count: usize) -> Result<(), ChannelError> {
        while self.count < count {
            let byte = self.next_byte().ok_or(ChannelError::Truncated)?;
            self.bits |= u64::from(byte) << self.count;
            self.count += 8;
        }
        Ok(())
    }

    /// Takes `count` bits, at most 16.
    fn take(&mut self, count: usize) -> Result<usize, ChannelError> {
        self.need(count)?;
        let taken = self.bits & ((1 << count) - 1);
        self.bits >>= count;
        self.count -= count;
        Ok(taken as usize)
    }

    /// Skips the remaining bits of a partly read byte.
    fn align(&mut self) {
        let rest = self.count % 8;
        self.bits >>= rest;
        self.count -= rest;
    }

    /// Takes a whole byte.
    fn byte(&mut self) -> Result<u8, ChannelError> {
        Ok(self.take(8)? as u8)
    }

    fn next_byte(&mut self) -> Option<u8> {
        if self.position == self.piece.len() {
            self.data.read(PIECE, &mut self.piece);
            self.position = 0;
        }
        let byte = *self.piece.get(self.position)?;
        self.position += 1;
        Some(byte)
    }
}

#[cfg(test)]
mod tests;
