//! Channels as a batcher makes them: L2 blocks in, frames out (specs: derivation, batch submission).
//!
//! A [`ChannelEncoder`] takes consecutive blocks until it closes: because its output is as large as
//! wanted, or because the caller says so, for instance at a time that [`ChannelDeadline`] names.
//! Frames of a channel of singular batches can be taken while it is open, those of span batches
//! after it closed. [`FrameProgress`] follows the frames to L1.
//!
//! Nothing here reads a clock or makes random numbers: the caller gives the channel's id and the
//! numbers of L1 blocks. A channel costs its compressed bytes, the compressor's state, and in span
//! mode the encoded blocks until it closes; it takes at most [`MAX_BLOCKS`] blocks.

mod block;
mod da;
mod progress;
mod settings;
mod singular;
mod span;
mod time;

pub use block::{ChannelBlock, SourceBlockError};
pub use da::{block_da_size, block_raw_size, transaction_da_size};
pub use progress::{FrameProgress, FrameRange};
pub use settings::{
    BatchFormat, CompressorKind, EncoderSettings, SettingsError, UnknownCompressor,
};
pub use time::{ChannelDeadline, ChannelTimes, ShortTimeout};

use crate::{
    channel::{BatchContext, ChannelWriteError, ChannelWriter},
    frame::{ChannelId, FRAME_OVERHEAD, Frame},
    payload::{BlockId, Payload},
    span::SpanBuildError,
};
use block::SourceBlock;
use singular::SingularChannel;
use span::SpanChannel;
use std::fmt;

/// Most blocks of a channel. Each costs some hundred bytes of memory however small it is, and one
/// without transactions hardly any output.
pub const MAX_BLOCKS: usize = 100_000;
/// Most frames of a channel: their numbers have 16 bits.
const MAX_FRAMES: u64 = 1 << 16;

/// The reason why a channel takes no further block, in op-batcher's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CloseReason {
    /// The output has its target size, or would pass it with the next block, or the channel has
    /// [`MAX_BLOCKS`] blocks.
    CompressorFull,
    /// The channel would decompress to more than readers accept.
    InputLimit,
    /// See [`ChannelTimes::max_duration`].
    MaxDuration,
    /// The first frames would time out before the last ones are on L1.
    ChannelTimeout,
    /// The sequencing window of the first block would end.
    SequencingWindow,
    /// The output would not fit in frames with numbers of 16 bits.
    MaxFrameIndex,
    /// On the caller's order: a flush, a stop, another kind of data availability.
    Terminated,
}

impl fmt::Display for CloseReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::CompressorFull => "compressor is full",
            Self::InputLimit => "batch would cause RLP bytes to go over limit",
            Self::MaxDuration => "max channel duration reached",
            Self::ChannelTimeout => "close to channel timeout",
            Self::SequencingWindow => "close to sequencer window timeout",
            Self::MaxFrameIndex => "max frame index reached (uint16)",
            Self::Terminated => "channel terminated",
        })
    }
}

/// The reason why a block cannot be added. The channel stays as it was, except after
/// [`ChannelWriteError::Compressor`], when it must be dropped.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages document the variants")]
pub enum EncoderError {
    #[error(transparent)]
    Settings(#[from] SettingsError),
    #[error("the channel is closed: {0}")]
    Closed(CloseReason),
    #[error(transparent)]
    Block(#[from] SourceBlockError),
    #[error("block {block} does not extend {last}")]
    NotConsecutive { block: BlockId, last: BlockId },
    #[error("block {block}: {error}")]
    Span {
        block: BlockId,
        error: SpanBuildError,
    },
    /// Not even an empty channel can hold the block.
    #[error("block {0} alone is larger than any channel")]
    BlockTooLarge(BlockId),
    #[error(transparent)]
    Write(#[from] ChannelWriteError),
}

/// Result of adding a block.
enum BlockVerdict {
    /// The channel has the block, and takes more.
    Open,
    /// The channel has the block, and ends with it.
    FullAfter(CloseReason),
    /// The channel ends before the block.
    FullBefore(CloseReason),
}

/// A channel that is being made.
#[derive(Debug)]
pub struct ChannelEncoder {
    id: ChannelId,
    max_frame_size: usize,
    content: ChannelContent,
    blocks: Vec<ChannelBlock>,
    closed: Option<CloseReason>,
    /// Number of frames taken.
    frames: usize,
}

#[derive(Debug)]
enum ChannelContent {
    Singular(Box<SingularChannel>),
    Span(Box<SpanChannel>),
}

impl ChannelEncoder {
    /// An empty channel. `id` is random; `fjord` tells whether the channel's first block is in Fjord
    /// (brotli, and the larger limit of uncompressed bytes).
    pub fn new(
        id: ChannelId,
        settings: &EncoderSettings,
        context: BatchContext,
        fjord: bool,
    ) -> Result<Self, EncoderError> {
        settings.check()?;
        let content = match settings.format {
            BatchFormat::Singular => {
                ChannelContent::Singular(Box::new(SingularChannel::new(id, settings, fjord)?))
            }
            BatchFormat::Span { max_blocks } => {
                let span = SpanChannel::new(id, settings, max_blocks, context, fjord)?;
                ChannelContent::Span(Box::new(span))
            }
        };
        Ok(Self {
            id,
            max_frame_size: settings.max_frame_size,
            content,
            blocks: Vec::new(),
            closed: None,
            frames: 0,
        })
    }

    /// The channel's name in its frames.
    pub fn id(&self) -> ChannelId {
        self.id
    }

    /// Adds the block that follows the last one. The channel may close: because the block fills it,
    /// or before the block, which it then refuses. The first block is always taken, even if its
    /// output is above the target, unless it exceeds a hard limit ([`EncoderError::BlockTooLarge`]).
    ///
    /// Returns whether [`Self::blocks`] has the block. While a channel of span batches is open, its
    /// output is an estimate. If it was too low, blocks that were taken before are given back when
    /// the channel closes. So the next channel begins with the block after the last of
    /// [`Self::blocks`], not with the block refused.
    pub fn add(&mut self, payload: &Payload) -> Result<bool, EncoderError> {
        if let Some(reason) = self.closed {
            return Err(EncoderError::Closed(reason));
        }
        let block = SourceBlock::read(payload)?;
        if let Some(last) = self.last()
            && last.id.hash != block.parent_hash
        {
            let (block, last) = (block.at.id, last.id);
            return Err(EncoderError::NotConsecutive { block, last });
        }
        if self.blocks.len() == MAX_BLOCKS {
            self.close(CloseReason::CompressorFull)?;
            return Ok(false);
        }
        let verdict = match &mut self.content {
            ChannelContent::Singular(channel) => channel.add(&block)?,
            ChannelContent::Span(channel) => channel.add(&block)?,
        };
        let reason = match verdict {
            BlockVerdict::Open => None,
            BlockVerdict::FullAfter(reason) => Some(reason),
            BlockVerdict::FullBefore(reason) => {
                self.close(reason)?;
                return Ok(false);
            }
        };
        self.blocks.push(block.at);
        if let Some(reason) = reason {
            self.close(reason)?;
        }
        Ok(true)
    }

    /// Ends the channel; nothing if it is closed already. In span mode this may give back the last
    /// blocks, as [`Self::add`] says. A channel without a block closes without a frame.
    pub fn close(&mut self, reason: CloseReason) -> Result<(), EncoderError> {
        if self.closed.is_some() {
            return Ok(());
        }
        match &mut self.content {
            ChannelContent::Singular(channel) => channel.close()?,
            ChannelContent::Span(channel) => {
                let blocks = channel.close()?;
                self.blocks.truncate(blocks);
            }
        }
        self.closed = Some(reason);
        Ok(())
    }

    /// The reason why the channel takes no further block; `None` while it is open.
    pub fn close_reason(&self) -> Option<CloseReason> {
        self.closed
    }

    /// The next frame, of at most the settings' size. `None` while the channel is open and has less
    /// output, and after the last frame. Errors do not happen: the settings' sizes were checked, and
    /// blocks whose frames would have no number were refused.
    pub fn next_frame(&mut self) -> Result<Option<Frame>, ChannelWriteError> {
        if self.blocks.is_empty() {
            return Ok(None);
        }
        let writer = match &mut self.content {
            ChannelContent::Singular(channel) => Some(channel.writer_mut()),
            ChannelContent::Span(channel) => channel.writer_mut(),
        };
        let Some(writer) = writer else {
            return Ok(None);
        };
        let frame = writer.next_frame(self.max_frame_size)?;
        self.frames += usize::from(frame.is_some());
        Ok(frame)
    }

    /// Blocks of the channel, in order. Those of an open channel of span batches may become fewer:
    /// see [`Self::add`].
    pub fn blocks(&self) -> &[ChannelBlock] {
        &self.blocks
    }

    /// The first block.
    pub fn first(&self) -> Option<&ChannelBlock> {
        self.blocks.first()
    }

    /// The last block.
    pub fn last(&self) -> Option<&ChannelBlock> {
        self.blocks.last()
    }

    /// The compressed stream; `None` for an open channel of span batches.
    fn writer(&self) -> Option<&ChannelWriter> {
        match &self.content {
            ChannelContent::Singular(channel) => Some(channel.writer()),
            ChannelContent::Span(channel) => channel.writer(),
        }
    }

    /// Uncompressed bytes of all blocks.
    pub fn input_len(&self) -> u64 {
        match &self.content {
            ChannelContent::Singular(channel) => channel.writer().input_len(),
            ChannelContent::Span(channel) => channel.input_len(),
        }
    }

    /// Compressed bytes so far, in frames or not. Those of an open channel lack what the compressor
    /// holds, which is everything in span mode.
    pub fn output_len(&self) -> u64 {
        self.writer().map_or(0, ChannelWriter::output_len)
    }

    /// Compressed bytes that are in no frame yet, with the same exception as [`Self::output_len`].
    pub fn pending_len(&self) -> usize {
        self.writer().map_or(0, ChannelWriter::pending_len)
    }

    /// Uncompressed bytes that were compressed: more than [`Self::input_len`] where the output was
    /// measured.
    pub fn compressed_len(&self) -> u64 {
        match &self.content {
            ChannelContent::Singular(channel) => channel.compressed_len(),
            ChannelContent::Span(channel) => channel.compressed_len(),
        }
    }

    /// Number of frames taken.
    pub fn frames(&self) -> usize {
        self.frames
    }

    /// Bytes of the frames taken, their overhead included.
    pub fn frame_bytes(&self) -> u64 {
        let overhead = self.frames * FRAME_OVERHEAD;
        self.output_len() - self.pending_len() as u64 + overhead as u64
    }
}
