//! A channel of singular batches, which is compressed block by block.

use super::{
    BlockVerdict, CloseReason, CompressorKind, EncoderError, EncoderSettings, block::SourceBlock,
};
use crate::{
    channel::{ChannelCompression, ChannelWriteError, ChannelWriter, Compressor, max_rlp_bytes},
    frame::ChannelId,
};

/// Bytes that a stream adds to incompressible blocks, as op-batcher assumes.
const STREAM_OVERHEAD: u64 = 51;
/// Largest number of bytes that ending a flushed stream adds.
const CLOSE_OVERHEAD: u64 = 9;
/// Largest number of bytes that a flush adds.
const FLUSH_OVERHEAD: u64 = 32;

#[derive(Debug)]
pub(super) struct SingularChannel {
    writer: ChannelWriter,
    rule: FullRule,
    /// Target size of the compressed output, in bytes.
    target: u64,
    /// Largest number of compressed bytes that fit in frames.
    capacity: u64,
    /// Largest number of uncompressed bytes that readers accept.
    limit: u64,
    bound: OutputBound,
}

/// Rule that decides when the channel is full.
#[derive(Debug)]
enum FullRule {
    Shadow(Box<Shadow>),
    /// Number of input bytes at which the channel is full.
    Ratio(u64),
    Stored,
}

/// Upper bound of a stream's size if the stream were closed now.
#[derive(Debug)]
struct OutputBound {
    /// Size of the stream if it had been closed at the last flush.
    flushed: u64,
    /// Input bytes since the last flush.
    input: u64,
}

impl OutputBound {
    fn new() -> Self {
        Self {
            flushed: STREAM_OVERHEAD,
            input: 0,
        }
    }

    /// The bound after `input` more bytes are written.
    fn after(&self, input: u64) -> u64 {
        let input = self.input + input;
        // Incompressible input is stored in blocks of at least 16 KiB, each with a header of 5
        // bytes.
        self.flushed + input + input / 1_000
    }

    fn flush(&mut self, output: u64) {
        self.flushed = output + CLOSE_OVERHEAD;
        self.input = 0;
    }
}

/// A second compressor of the same batches, which measures their output. It is created, and each
/// time flushed, only when the bound of the output exceeds the target.
#[derive(Debug)]
struct Shadow {
    compression: ChannelCompression,
    /// `None` until the first flush.
    compressor: Option<Compressor>,
    /// Input before the compressor is created.
    held: Vec<u8>,
    /// Bytes written to the compressor, for statistics.
    input: u64,
    bound: OutputBound,
}

impl Shadow {
    fn new(compression: ChannelCompression) -> Self {
        Self {
            compression,
            compressor: None,
            held: Vec::new(),
            input: 0,
            bound: OutputBound::new(),
        }
    }

    /// Writes a batch. Returns whether the output stays within `target`.
    fn write(&mut self, string: &[u8], target: u64) -> Result<bool, ChannelWriteError> {
        let added = string.len() as u64;
        let may_pass = self.bound.after(added) > target;
        if !may_pass && self.compressor.is_none() {
            self.held.extend_from_slice(string);
            self.bound.input += added;
            return Ok(true);
        }
        let compressor = self
            .compressor
            .get_or_insert_with(|| Compressor::new(self.compression));
        let held = std::mem::take(&mut self.held);
        compressor.write(&held)?;
        compressor.write(string)?;
        self.input += (held.len() + string.len()) as u64;
        if !may_pass {
            self.bound.input += added;
            return Ok(true);
        }
        compressor.flush()?;
        self.bound.flush(compressor.output().len() as u64);
        Ok(self.bound.after(0) <= target)
    }
}

impl SingularChannel {
    pub fn new(
        id: ChannelId,
        settings: &EncoderSettings,
        fjord: bool,
    ) -> Result<Self, ChannelWriteError> {
        let (compression, target) = (settings.compression, settings.target());
        let (writer, rule) = match settings.kind {
            CompressorKind::Shadow => (
                ChannelWriter::new(id, compression, fjord)?,
                FullRule::Shadow(Box::new(Shadow::new(compression))),
            ),
            CompressorKind::Ratio(ratio) => (
                ChannelWriter::new(id, compression, fjord)?,
                FullRule::Ratio((target as f64 / ratio) as u64),
            ),
            CompressorKind::None => (ChannelWriter::stored(id, fjord), FullRule::Stored),
        };
        Ok(Self {
            writer,
            rule,
            target,
            capacity: settings.capacity(),
            limit: max_rlp_bytes(fjord),
            bound: OutputBound::new(),
        })
    }

    pub fn add(&mut self, block: &SourceBlock<'_>) -> Result<BlockVerdict, EncoderError> {
        let string = alloy_rlp::encode(&block.singular().encode()[..]);
        let added = string.len() as u64;
        let is_first = self.writer.input_len() == 0;
        let refuse = |reason| {
            if is_first {
                Err(EncoderError::BlockTooLarge(block.at.id))
            } else {
                Ok(BlockVerdict::FullBefore(reason))
            }
        };
        if self.writer.input_len() + added > self.limit {
            return refuse(CloseReason::InputLimit);
        }
        if !self.fits_in_frames(added)? {
            return refuse(CloseReason::MaxFrameIndex);
        }
        let fits = self.fits_in_target(&string)?;
        if !fits && !is_first {
            return Ok(BlockVerdict::FullBefore(CloseReason::CompressorFull));
        }
        self.writer.add_string(&string)?;
        self.bound.input += added;
        let is_full = match self.rule {
            FullRule::Shadow(_) => !fits,
            FullRule::Ratio(most) => self.writer.input_len() >= most,
            FullRule::Stored => {
                self.writer.flush()?;
                self.bound.flush(self.writer.output_len());
                !fits
            }
        };
        Ok(if is_full {
            BlockVerdict::FullAfter(CloseReason::CompressorFull)
        } else {
            BlockVerdict::Open
        })
    }

    /// Whether the output stays within the target with the next batch, as far as the rule can
    /// decide.
    fn fits_in_target(&mut self, string: &[u8]) -> Result<bool, ChannelWriteError> {
        match &mut self.rule {
            FullRule::Shadow(shadow) => shadow.write(string, self.target),
            FullRule::Ratio(_) => Ok(true),
            FullRule::Stored => {
                let bound = self.bound.after(string.len() as u64) + FLUSH_OVERHEAD;
                Ok(bound <= self.target)
            }
        }
    }

    /// Whether frames can carry all output after `added` more bytes of input. If the bound cannot
    /// decide, this flushes to learn the exact size, which only happens with frames of less than
    /// about 1,600 bytes.
    fn fits_in_frames(&mut self, added: u64) -> Result<bool, ChannelWriteError> {
        let fits = |bound: &OutputBound| bound.after(added) + FLUSH_OVERHEAD <= self.capacity;
        if fits(&self.bound) || self.writer.input_len() == 0 {
            return Ok(fits(&self.bound));
        }
        self.writer.flush()?;
        self.bound.flush(self.writer.output_len());
        Ok(fits(&self.bound))
    }

    pub fn writer(&self) -> &ChannelWriter {
        &self.writer
    }

    pub fn writer_mut(&mut self) -> &mut ChannelWriter {
        &mut self.writer
    }

    /// Uncompressed bytes that went through the compressors, including the shadow.
    pub fn compressed_len(&self) -> u64 {
        let shadow = match &self.rule {
            FullRule::Shadow(shadow) => shadow.input,
            FullRule::Ratio(_) | FullRule::Stored => 0,
        };
        self.writer.input_len() + shadow
    }

    /// Closes the channel and releases the memory of the shadow.
    pub fn close(&mut self) -> Result<(), ChannelWriteError> {
        if let FullRule::Shadow(shadow) = &mut self.rule {
            (shadow.compressor, shadow.held) = (None, Vec::new());
        }
        self.writer.close()
    }
}
