//! Channels as a batcher builds them: L2 blocks in, frames out (specs: derivation, batch
//! submission).
//!
//! A [`ChannelEncoder`] accepts consecutive blocks until it closes. It closes when its output has
//! the target size, or when the caller closes it, for instance at a deadline ([`ChannelDeadline`]).
//! Frames of singular batches are available while the channel is open. Frames of span batches are
//! available only after it closed. [`FrameProgress`] tracks the frames until they are on L1.
//!
//! Nothing here reads a clock or generates random numbers: the caller supplies the channel's id and
//! the numbers of L1 blocks. A channel needs memory for its compressed bytes, for the compressor's
//! state, and in span mode for the encoded blocks until it closes. It has at most [`MAX_BLOCKS`]
//! blocks.

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

/// Largest number of blocks in a channel. Even the smallest block costs some hundred bytes of
/// memory, and a block without transactions adds hardly any output.
pub const MAX_BLOCKS: usize = 100_000;
/// Largest number of frames in a channel: frame numbers have 16 bits.
const MAX_FRAMES: u64 = 1 << 16;

/// The reason why a channel accepts no further block, named as in op-batcher.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CloseReason {
    /// The output has its target size, or would exceed that size with the next block, or the
    /// channel has [`MAX_BLOCKS`] blocks.
    CompressorFull,
    /// The channel would decompress to more than readers accept.
    InputLimit,
    /// The channel's [`ChannelTimes::max_duration`] has passed.
    MaxDuration,
    /// The channel's first frames would otherwise time out before its last frames are on L1.
    ChannelTimeout,
    /// The sequencing window of the channel's first block would otherwise end.
    SequencingWindow,
    /// The output would need more frames than 16-bit frame numbers allow.
    MaxFrameIndex,
    /// The caller closed the channel: a flush, a stop, or a change of the DA type.
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

/// The reason why a block cannot be added. The channel is unchanged, except after
/// [`ChannelWriteError::Compressor`]: then it must be dropped.
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
    /// The block does not fit even in an empty channel.
    #[error("block {0} alone is larger than any channel")]
    BlockTooLarge(BlockId),
    #[error(transparent)]
    Write(#[from] ChannelWriteError),
}

/// Result of adding a block to the content of a channel.
enum BlockVerdict {
    /// The block is in the channel, which stays open.
    Open,
    /// The block is in the channel, which is full and must close.
    FullAfter(CloseReason),
    /// The block is not in the channel, which is full and must close.
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
    /// Number of frames returned by [`Self::next_frame`].
    frames: usize,
}

#[derive(Debug)]
enum ChannelContent {
    Singular(Box<SingularChannel>),
    Span(Box<SpanChannel>),
}

impl ChannelEncoder {
    /// An empty channel. The caller draws `id` at random. `fjord` is whether the channel's first
    /// block is in Fjord, so that brotli and the larger limit of uncompressed bytes apply.
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

    /// The channel's id, as in its frames.
    pub fn id(&self) -> ChannelId {
        self.id
    }

    /// Adds the child of the last block. The channel may close with the block, because the block
    /// fills it, or before the block, which is then not added. The first block is always added,
    /// even if its output exceeds the target, unless it exceeds a hard limit
    /// ([`EncoderError::BlockTooLarge`]).
    ///
    /// Returns whether the block is in [`Self::blocks`]. The output of an open channel of span
    /// batches is an estimate. If the estimate was too low, the last blocks are removed again when
    /// the channel closes. So the next channel must begin with the child of the last block in
    /// [`Self::blocks`], which need not be the refused block.
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

    /// Closes the channel, unless it is closed already. In span mode closing may remove the last
    /// blocks, as described at [`Self::add`]. A channel without a block closes without a frame.
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

    /// The reason why the channel is closed; `None` while it is open.
    pub fn close_reason(&self) -> Option<CloseReason> {
        self.closed
    }

    /// The next frame, of at most the size in the settings. `None` while an open channel has less
    /// output than a frame, and after the last frame. No error occurs in practice: the frame size
    /// was checked in [`Self::new`], and blocks that would need too many frames were refused.
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

    /// Blocks of the channel, in order. Closing a channel of span batches may remove the last
    /// blocks: see [`Self::add`].
    pub fn blocks(&self) -> &[ChannelBlock] {
        &self.blocks
    }

    /// The first block of the channel.
    pub fn first(&self) -> Option<&ChannelBlock> {
        self.blocks.first()
    }

    /// The last block of the channel so far.
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

    /// Compressed bytes so far, whether or not they are in frames. In an open channel the bytes
    /// that the compressor buffers are missing; in span mode that is all of them.
    pub fn output_len(&self) -> u64 {
        self.writer().map_or(0, ChannelWriter::output_len)
    }

    /// Compressed bytes that are in no frame yet, without the bytes that the compressor buffers
    /// (see [`Self::output_len`]).
    pub fn pending_len(&self) -> usize {
        self.writer().map_or(0, ChannelWriter::pending_len)
    }

    /// Uncompressed bytes that went through the compressor. This exceeds [`Self::input_len`] if the
    /// blocks were compressed more than once to measure the output.
    pub fn compressed_len(&self) -> u64 {
        match &self.content {
            ChannelContent::Singular(channel) => channel.compressed_len(),
            ChannelContent::Span(channel) => channel.compressed_len(),
        }
    }

    /// Number of frames returned so far.
    pub fn frames(&self) -> usize {
        self.frames
    }

    /// Total bytes of the frames returned so far, including their overhead.
    pub fn frame_bytes(&self) -> u64 {
        let overhead = self.frames * FRAME_OVERHEAD;
        self.output_len() - self.pending_len() as u64 + overhead as u64
    }
}
