//! Settings of a batcher's channels, as its options give them.

use super::MAX_FRAMES;
use crate::{
    channel::ChannelCompression,
    frame::{FRAME_OVERHEAD, MAX_FRAME_DATA},
};
use std::{fmt, num::NonZeroUsize, str::FromStr};

/// Batches of a channel (`--batch-type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BatchFormat {
    /// A batch for each block (0).
    Singular,
    /// All blocks in one batch (1), or at most `max_blocks` in each
    /// (`--max-blocks-per-span-batch`).
    Span {
        /// `None` for no limit, which the option writes as 0.
        max_blocks: Option<NonZeroUsize>,
    },
}

/// Rule by which a channel of singular batches is full (`--compressor`). One of span batches is
/// compressed as a whole, and full at its target size whatever the kind.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum CompressorKind {
    /// A second compressor, which is flushed, measures the output. The channel keeps below the
    /// target.
    Shadow,
    /// The channel is full once its input times this ratio is the target
    /// (`--approx-compr-ratio`). The output may be above.
    Ratio(f64),
    /// The input is stored uncompressed, and can be taken as frames at once. The channel keeps below
    /// the target.
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

/// A text that names no [`CompressorKind`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown compressor: use shadow, ratio or none")]
pub struct UnknownCompressor;

/// The kind with this name; ratio has op-batcher's default.
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
    /// Kind of the batches.
    pub format: BatchFormat,
    /// Rule by which a channel of singular batches is full.
    pub kind: CompressorKind,
    /// Compression, if the kind is not [`CompressorKind::None`].
    pub compression: ChannelCompression,
    /// Most bytes of a frame, its overhead of [`FRAME_OVERHEAD`] included.
    pub max_frame_size: usize,
    /// Frames that a channel shall have (`--target-num-frames`).
    pub target_frames: u32,
}

/// The reason why settings make no channel.
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
    /// Checks the limits that readers set to frames, and the ratio.
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

    /// Bytes of data that a frame holds.
    fn frame_data(&self) -> u64 {
        self.max_frame_size.saturating_sub(FRAME_OVERHEAD) as u64
    }

    /// Compressed bytes that a channel shall have: those that fill its frames.
    pub fn target(&self) -> u64 {
        u64::from(self.target_frames) * self.frame_data()
    }

    /// Most compressed bytes of a channel.
    pub(super) fn capacity(&self) -> u64 {
        MAX_FRAMES * self.frame_data()
    }
}
