//! A channel of span batches. A span cannot be compressed block by block, because each block adds
//! to every column.
//!
//! All blocks are compressed together once an estimate predicts an output of the target size. The
//! first estimate assumes no compression. Later estimates extrapolate from measurements. The
//! channel is full when its output is so near to the target that another measurement is not worth
//! its cost. If the output is above the target, the channel keeps only its first blocks: as many as
//! interpolation finds to fit. In total this compresses about three times as many bytes as the
//! channel has.

use super::{BlockVerdict, CloseReason, EncoderError, EncoderSettings, block::SourceBlock};
use crate::{
    channel::{
        BatchContext, ChannelCompression, ChannelWriteError, ChannelWriter, Compressor,
        max_rlp_bytes,
    },
    frame::ChannelId,
    span::{SpanBuildError, SpanBuilder, SpanEdge},
};
use std::num::NonZeroUsize;

/// Divisor for the part of the target that a full channel may leave unused: less than one percent.
const SLACK: u64 = 128;
/// Largest number of measurements after an output above the target. Interpolation usually needs one
/// or two.
const TRIES: usize = 8;
/// Number of measurements at the beginning of a search that interpolate. Later ones halve the
/// interval, which converges for any blocks.
const INTERPOLATED: usize = 4;
/// Fixed bytes that compression adds to random input. [`SLACK`] covers the proportional part.
const STREAM_OVERHEAD: u64 = 64;
/// Largest growth of the input between two measurements, as a factor.
const GROWTH: u64 = 4;

#[derive(Debug)]
pub(super) struct SpanChannel {
    id: ChannelId,
    compression: ChannelCompression,
    context: BatchContext,
    /// Largest number of blocks in a span batch.
    max_blocks: usize,
    /// Target size of the compressed output, in bytes.
    target: u64,
    /// Largest number of compressed bytes that fit in frames.
    capacity: u64,
    /// Largest number of uncompressed bytes that readers accept.
    limit: u64,
    spans: Vec<SpanBuilder>,
    /// Uncompressed bytes of all spans but the last.
    sealed: u64,
    /// For each block: uncompressed bytes of the channel up to and including this block.
    inputs: Vec<u64>,
    /// Number of input bytes at which the output is measured next.
    next_measurement: u64,
    /// The largest measured channel whose output is within the target, or the first block alone.
    fit: Option<Measurement>,
    /// Sum of the uncompressed bytes of all measurements.
    compressed: u64,
    /// The compressed stream; `None` while the channel is open.
    writer: Option<ChannelWriter>,
}

/// The compressed stream of the channel's first `blocks` blocks.
#[derive(Debug)]
struct Measurement {
    blocks: usize,
    input: u64,
    output: Vec<u8>,
}

/// The numbers of a [`Measurement`], in blocks and bytes.
#[derive(Clone, Copy)]
struct Size {
    blocks: usize,
    input: u64,
    output: u64,
}

impl Measurement {
    fn size(&self) -> Size {
        Size {
            blocks: self.blocks,
            input: self.input,
            output: self.output.len() as u64,
        }
    }
}

impl SpanChannel {
    pub fn new(
        id: ChannelId,
        settings: &EncoderSettings,
        max_blocks: Option<NonZeroUsize>,
        context: BatchContext,
        fjord: bool,
    ) -> Result<Self, ChannelWriteError> {
        let (compression, target) = (settings.compression, settings.target());
        if compression.needs_fjord() && !fjord {
            return Err(ChannelWriteError::BrotliBeforeFjord);
        }
        Ok(Self {
            id,
            compression,
            context,
            max_blocks: max_blocks.map_or(usize::MAX, NonZeroUsize::get),
            target,
            capacity: settings.capacity(),
            limit: max_rlp_bytes(fjord),
            spans: Vec::new(),
            sealed: 0,
            inputs: Vec::new(),
            // Random input grows in compression, but by less than the slack.
            next_measurement: (target - target / SLACK).saturating_sub(STREAM_OVERHEAD),
            fit: None,
            compressed: 0,
            writer: None,
        })
    }

    /// Uncompressed bytes of all blocks.
    pub fn input_len(&self) -> u64 {
        self.inputs.last().copied().unwrap_or_default()
    }

    /// Uncompressed bytes that went through the compressor in all measurements.
    pub fn compressed_len(&self) -> u64 {
        self.compressed
    }

    pub fn writer(&self) -> Option<&ChannelWriter> {
        self.writer.as_ref()
    }

    pub fn writer_mut(&mut self) -> Option<&mut ChannelWriter> {
        self.writer.as_mut()
    }

    pub fn add(&mut self, block: &SourceBlock<'_>) -> Result<BlockVerdict, EncoderError> {
        let id = block.at.id;
        let is_first = self.inputs.is_empty();
        match self.push(block) {
            Err(SpanBuildError::TooLarge) if is_first => {
                return Err(EncoderError::BlockTooLarge(id));
            }
            Err(SpanBuildError::TooLarge) => {
                return Ok(BlockVerdict::FullBefore(CloseReason::InputLimit));
            }
            Err(error) => return Err(EncoderError::Span { block: id, error }),
            Ok(()) => {}
        }
        let input = self.input_len();
        if input > self.limit {
            self.inputs.pop();
            if is_first {
                self.spans.clear();
                return Err(EncoderError::BlockTooLarge(id));
            }
            return Ok(BlockVerdict::FullBefore(CloseReason::InputLimit));
        }
        if input < self.next_measurement {
            return Ok(BlockVerdict::Open);
        }
        let measured = self.measure(self.inputs.len())?;
        let output = measured.output.len() as u64;
        if output > self.capacity && is_first {
            self.inputs.clear();
            self.spans.clear();
            return Err(EncoderError::BlockTooLarge(id));
        }
        if output > self.target && !is_first {
            self.search(measured.size())?;
            return Ok(BlockVerdict::FullBefore(CloseReason::CompressorFull));
        }
        self.next_measurement = self.predict(measured.size());
        self.fit = Some(measured);
        Ok(if self.is_near(output) {
            BlockVerdict::FullAfter(CloseReason::CompressorFull)
        } else {
            BlockVerdict::Open
        })
    }

    /// Appends a block to the last span, or to a new one.
    fn push(&mut self, block: &SourceBlock<'_>) -> Result<(), SpanBuildError> {
        let edge = SpanEdge {
            epoch_number: block.at.origin.number,
            timestamp: block.timestamp,
        };
        let transactions: Vec<&[u8]> = block.transactions.iter().map(|bytes| &bytes[..]).collect();
        let append = |span: &mut SpanBuilder| {
            let (parent, origin) = (block.parent_hash, block.at.origin.hash);
            span.push_encoded(edge, &transactions, parent, origin, block.begins_epoch)?;
            Ok(ChannelWriter::input_of(span.encoded_len()))
        };
        let input = match self.spans.last_mut() {
            Some(span) if span.blocks() < self.max_blocks => append(span)?,
            _ => {
                let mut span = SpanBuilder::new(self.context);
                let input = append(&mut span)?;
                self.sealed = self.input_len();
                self.spans.push(span);
                input
            }
        };
        self.inputs.push(self.sealed + input);
        Ok(())
    }

    /// Whether this output is near enough to the target, or above it, for the channel to be full.
    fn is_near(&self, output: u64) -> bool {
        output + self.target / SLACK >= self.target
    }

    /// The input at which the output reaches the target size, if the ratio of growth since the last
    /// measurement stays the same.
    fn predict(&self, now: Size) -> u64 {
        let before = self.fit.as_ref().map(Measurement::size);
        let before = before.filter(|before| before.output < now.output);
        let (input, output) = before.map_or((now.input, now.output), |before| {
            (now.input - before.input, now.output - before.output)
        });
        let room = self.wanted().saturating_sub(now.output);
        // No overflow: the factors are below 2^37 and 2^27.
        let growth = room * input / output.max(1);
        now.input + growth.min((GROWTH - 1) * now.input)
    }

    /// The output size that predictions aim at: the middle of the range that [`Self::is_near`]
    /// accepts.
    fn wanted(&self) -> u64 {
        self.target - self.target / (2 * SLACK)
    }

    /// The channel of size `above` exceeds the target: looks for the largest prefix of its blocks
    /// that fits, in at most [`TRIES`] measurements.
    fn search(&mut self, mut above: Size) -> Result<(), ChannelWriteError> {
        for attempt in 0..TRIES {
            let below = self.fit.as_ref().map_or(
                Size {
                    blocks: 0,
                    input: 0,
                    output: 0,
                },
                Measurement::size,
            );
            if above.blocks <= below.blocks + 1 || self.is_near(below.output) {
                break;
            }
            let blocks = if attempt < INTERPOLATED {
                self.interpolate(below, above)
            } else {
                below.blocks.midpoint(above.blocks)
            };
            let measured = self.measure(blocks)?;
            if measured.size().output <= self.target {
                self.fit = Some(measured);
            } else {
                above = measured.size();
            }
        }
        if self.fit.is_none() {
            // The first block is always kept, whatever its size.
            self.fit = Some(self.measure(1)?);
        }
        let blocks = self.fit.as_ref().map_or(0, |fit| fit.blocks);
        self.inputs.truncate(blocks);
        Ok(())
    }

    /// The number of blocks, between the two sizes, whose output is expected to be
    /// [`Self::wanted`].
    fn interpolate(&self, below: Size, above: Size) -> usize {
        let room = self.wanted().saturating_sub(below.output);
        let slope = (above.input - below.input, above.output - below.output);
        let input = below.input + room * slope.0 / slope.1.max(1);
        let blocks = self.inputs.partition_point(|sum| *sum <= input);
        blocks.clamp(below.blocks + 1, above.blocks - 1)
    }

    /// Compresses the first `blocks` blocks, at least one.
    fn measure(&mut self, blocks: usize) -> Result<Measurement, ChannelWriteError> {
        let mut left = blocks;
        let input = self.inputs[..blocks].last().copied().unwrap_or_default();
        let mut strings = Vec::with_capacity(input as usize);
        for span in &self.spans {
            let taken = left.min(span.blocks());
            if let Some(batch) = span.encode_first(taken) {
                alloy_rlp::Encodable::encode(&batch[..], &mut strings);
            }
            left -= taken;
        }
        self.compressed += strings.len() as u64;
        Ok(Measurement {
            blocks,
            input,
            output: Compressor::compress(self.compression, &strings)?,
        })
    }

    /// Closes the channel and releases its blocks. If the output is unknown, it is measured first.
    /// If the output is above the target, the last blocks are removed. Returns the number of
    /// remaining blocks.
    pub fn close(&mut self) -> Result<usize, ChannelWriteError> {
        let blocks = self.inputs.len();
        let is_measured = self.fit.as_ref().is_some_and(|fit| fit.blocks == blocks);
        if blocks > 0 && !is_measured {
            let measured = self.measure(blocks)?;
            let size = measured.size();
            if size.output > self.target && blocks > 1 {
                self.search(size)?;
            } else {
                self.fit = Some(measured);
            }
        }
        let output = self.fit.take().map_or_else(Vec::new, |fit| fit.output);
        self.writer = Some(ChannelWriter::closed(self.id, output));
        self.spans = Vec::new();
        Ok(self.inputs.len())
    }
}
