//! Settings of a batcher's channels, as its command-line options define them.

use super::MAX_FRAMES;
use crate::{
    channel::ChannelCompression,
    frame::{FRAME_OVERHEAD, MAX_FRAME_DATA},
};
use std::{fmt, num::NonZeroUsize, str::FromStr};

/// Format of the batches in a channel (`--batch-type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BatchFormat {
    /// One batch per block (option value 0).
    Singular,
    /// All blocks in one batch (option value 1), or at most `max_blocks` in each
    /// (`--max-blocks-per-span-batch`).
    Span {
        /// Largest number of blocks in a batch; `None` for no limit, which is 0 in the option.
        max_blocks: Option<NonZeroUsize>,
    },
}

/// Rule that decides when a channel of singular batches is full (`--compressor`). A channel of span
/// batches is compressed as a whole and is full at its target size, whatever this kind is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum CompressorKind {
    /// A second compressor with the same input is flushed to measure the output. The channel stays
    /// within the target size, unless its first block alone is larger.
    Shadow,
    /// The channel is full once its input times this ratio reaches the target size
    /// (`--approx-compr-ratio`). The output may be larger than the target.
    Ratio(f64),
    /// The input is stored uncompressed, so that frames are available at once. The channel stays
    /// within the target size, unless its first block alone is larger.
    None,
}

impl fmt::Display for CompressorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Shadow => "shadow",
            Self::Ratio(_) => "ratio",
            Self::None => "none",
        })
    }
}

/// op-batcher's default of `--approx-compr-ratio`.
const APPROXIMATE_RATIO: f64 = 0.6;

/// A text that is not the name of a [`CompressorKind`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown compressor: use shadow, ratio or none")]
pub struct UnknownCompressor;

/// Parses the kind of this name. `ratio` gets op-batcher's default ratio.
impl FromStr for CompressorKind {
    type Err = UnknownCompressor;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "shadow" => Ok(Self::Shadow),
            "ratio" => Ok(Self::Ratio(APPROXIMATE_RATIO)),
            "none" => Ok(Self::None),
            _ => Err(UnknownCompressor),
        }
    }
}

/// Settings of a channel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EncoderSettings {
    /// Format of the batches.
    pub format: BatchFormat,
    /// Rule that decides when a channel of singular batches is full.
    pub kind: CompressorKind,
    /// Compression algorithm. Singular batches with [`CompressorKind::None`] do not use it.
    pub compression: ChannelCompression,
    /// Largest size of a frame in bytes, including its overhead of [`FRAME_OVERHEAD`].
    pub max_frame_size: usize,
    /// Number of frames that a channel aims at (`--target-num-frames`).
    pub target_frames: u32,
}

/// The reason why settings are invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages document the variants")]
pub enum SettingsError {
    #[error("max frame size {0} is less than the minimum {least}", least = FRAME_OVERHEAD + 1)]
    FrameTooSmall(usize),
    #[error("max frame size {0} is more than readers accept, {most}", most = FRAME_OVERHEAD + MAX_FRAME_DATA)]
    FrameTooLarge(usize),
    #[error("invalid number of frames {0}: use 1 to {MAX_FRAMES}")]
    Frames(u32),
    #[error("the approximate compression ratio must be above 0")]
    Ratio,
}

impl EncoderSettings {
    /// Checks the frame size and the number of frames against the limits of readers, and the ratio.
    pub fn check(&self) -> Result<(), SettingsError> {
        let size = self.max_frame_size;
        if size <= FRAME_OVERHEAD {
            Err(SettingsError::FrameTooSmall(size))
        } else if size > FRAME_OVERHEAD + MAX_FRAME_DATA {
            Err(SettingsError::FrameTooLarge(size))
        } else if self.target_frames == 0 || u64::from(self.target_frames) > MAX_FRAMES {
            Err(SettingsError::Frames(self.target_frames))
        } else if matches!(self.kind, CompressorKind::Ratio(ratio) if ratio.is_nan() || ratio <= 0.0)
        {
            Err(SettingsError::Ratio)
        } else {
            Ok(())
        }
    }

    /// Largest number of bytes of channel data in a frame.
    fn frame_data(&self) -> u64 {
        self.max_frame_size.saturating_sub(FRAME_OVERHEAD) as u64
    }

    /// Compressed bytes that a channel aims at: as many as fill its target frames.
    pub fn target(&self) -> u64 {
        u64::from(self.target_frames) * self.frame_data()
    }

    /// Largest compressed size of a channel: the bytes that fill its largest number of frames.
    pub(super) fn capacity(&self) -> u64 {
        MAX_FRAMES * self.frame_data()
    }
}
