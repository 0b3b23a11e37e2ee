//! Options of the batcher: defaults, checks, and the channel settings that follow from them. Error
//! messages begin as op-batcher's do.

mod throttle;

pub use throttle::{PidOptions, ThrottleCurve, ThrottleOptions, UnknownCurve};

use starling_proto::{
    blob::MAX_BLOB_DATA,
    channel::ChannelCompression,
    config::RollupConfig,
    derive::CHANNEL_TIMEOUT_GRANITE,
    encoder::{
        BatchFormat, ChannelTimes, CompressorKind, EncoderSettings, SettingsError, ShortTimeout,
    },
    fork::Fork,
};
use std::{fmt, num::NonZeroUsize, str::FromStr, time::Duration};

/// Maximum number of blobs per block on an L1 in Prague.
const MAX_BLOBS: u64 = 9;
/// Maximum number of L1 blocks searched at start for transactions of our account.
const MAX_RECENT_TXS_DEPTH: u64 = 128;
/// `--batch-type` value for span batches, the largest valid one.
const SPAN_BATCH: u64 = 1;
/// Length of the version byte that precedes the frames in calldata or in a blob.
const VERSION_BYTES: u64 = 1;
/// Calldata bytes per transaction with `--data-availability-type=auto`.
const AUTO_CALLDATA_FRAME: usize = 120_000;

/// L1 data format of batches (`--data-availability-type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataAvailability {
    Calldata,
    Blobs,
    /// Calldata or blobs, whichever is cheaper, decided for each channel.
    Auto,
}

impl DataAvailability {
    /// Whether batches may go into blobs.
    pub fn has_blobs(self) -> bool {
        self != Self::Calldata
    }
}

impl fmt::Display for DataAvailability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Calldata => "calldata",
            Self::Blobs => "blobs",
            Self::Auto => "auto",
        })
    }
}

/// Error for a text that is not a [`DataAvailability`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown data availability type: use calldata, blobs or auto")]
pub struct UnknownDataAvailability;

impl FromStr for DataAvailability {
    type Err = UnknownDataAvailability;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let named = [Self::Calldata, Self::Blobs, Self::Auto];
        let mut named = named.into_iter();
        named
            .find(|one| one.to_string() == text)
            .ok_or(UnknownDataAvailability)
    }
}

/// Options of op-batcher, except for the endpoints ([`crate::l2_source`]) and the transaction
/// options ([`crate::txmgr::options`]).
#[derive(Clone, Debug, PartialEq)]
pub struct BatcherOptions {
    /// `--poll-interval`: interval of polling the L2 heads.
    pub poll_interval: Duration,
    /// `--sub-safety-margin`, in L1 blocks.
    pub sub_safety_margin: u64,
    /// `--max-pending-tx`: maximum number of transactions in flight; 0 means 64.
    pub max_pending_tx: u64,
    /// `--max-channel-duration`, in L1 blocks; 0 means no limit.
    pub max_channel_duration: u64,
    /// `--max-l1-tx-size-bytes`: maximum data of a calldata transaction; not used for blobs and
    /// auto.
    pub max_l1_tx_size_bytes: u64,
    /// `--max-blocks-per-span-batch`; 0 means no limit.
    pub max_blocks_per_span_batch: u64,
    /// `--target-num-frames`: frames per channel, and blobs per transaction.
    pub target_num_frames: u64,
    /// `--compressor`, with `--approx-compr-ratio`.
    pub compressor: CompressorKind,
    /// `--compression-algo`.
    pub compression: ChannelCompression,
    /// `--stopped`: do not post before `admin_startBatcher`.
    pub stopped: bool,
    /// `--batch-type`: 0 for singular batches, 1 for span batches.
    pub batch_type: u64,
    /// `--data-availability-type`.
    pub data_availability: DataAvailability,
    /// `--check-recent-txs-depth`: L1 blocks searched at start for own transactions; 0 disables it.
    pub check_recent_txs_depth: u64,
    /// `--wait-node-sync`: wait at start until the rollup node has derived up to the L1 head.
    pub wait_node_sync: bool,
    /// `--throttle.*`.
    pub throttle: ThrottleOptions,
}

impl Default for BatcherOptions {
    fn default() -> Self {
        Self {
            poll_interval: Duration::from_secs(6),
            sub_safety_margin: 10,
            max_pending_tx: 1,
            max_channel_duration: 0,
            max_l1_tx_size_bytes: 120_000,
            max_blocks_per_span_batch: 0,
            target_num_frames: 1,
            compressor: CompressorKind::Shadow,
            compression: ChannelCompression::Zlib,
            stopped: false,
            batch_type: 0,
            data_availability: DataAvailability::Calldata,
            check_recent_txs_depth: 0,
            wait_node_sync: false,
            throttle: ThrottleOptions::default(),
        }
    }
}

/// The reason why the options are invalid.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum BatcherOptionError {
    #[error("must set PollInterval (--poll-interval)")]
    PollInterval,
    #[error("MaxL1TxSize must be greater than 1 (--max-l1-tx-size-bytes)")]
    TxSize,
    #[error("TargetNumFrames must be at least 1 (--target-num-frames)")]
    NoFrames,
    #[error("too many frames for blob transactions, max {MAX_BLOBS} (--target-num-frames)")]
    BlobFrames,
    #[error("invalid ApproxComprRatio {0} for ratio compressor (--approx-compr-ratio)")]
    Ratio(f64),
    #[error("unknown batch type: {0} (--batch-type)")]
    BatchType(u64),
    #[error(
        "CheckRecentTxsDepth cannot be set higher than {MAX_RECENT_TXS_DEPTH}: {0} (--check-recent-txs-depth)"
    )]
    RecentTxsDepth(u64),
    #[error("{0}")]
    Throttle(&'static str),
    #[error("cannot use Blobs before Ecotone (--data-availability-type)")]
    BlobsBeforeEcotone,
    #[error("cannot use brotli compression before Fjord (--compression-algo)")]
    BrotliBeforeFjord,
    #[error("invalid channel configuration: {0}")]
    Settings(#[from] SettingsError),
    #[error("invalid channel configuration: {0} (--sub-safety-margin)")]
    Times(#[from] ShortTimeout),
}

impl BatcherOptions {
    /// Checks everything that does not depend on the chain, in op-batcher's order.
    pub fn check(&self) -> Result<(), BatcherOptionError> {
        let frames = self.target_num_frames;
        if self.poll_interval.is_zero() {
            Err(BatcherOptionError::PollInterval)
        } else if self.max_l1_tx_size_bytes <= VERSION_BYTES {
            Err(BatcherOptionError::TxSize)
        } else if frames < 1 {
            Err(BatcherOptionError::NoFrames)
        } else if let CompressorKind::Ratio(ratio) = self.compressor
            && !(ratio > 0.0 && ratio <= 1.0)
        {
            Err(BatcherOptionError::Ratio(ratio))
        } else if self.batch_type > SPAN_BATCH {
            Err(BatcherOptionError::BatchType(self.batch_type))
        } else if self.check_recent_txs_depth > MAX_RECENT_TXS_DEPTH {
            let depth = self.check_recent_txs_depth;
            Err(BatcherOptionError::RecentTxsDepth(depth))
        } else if self.data_availability.has_blobs() && frames > MAX_BLOBS {
            Err(BatcherOptionError::BlobFrames)
        } else {
            self.throttle.check()?;
            Ok(self.calldata_settings().check()?)
        }
    }

    /// Checks the options against the chain at `now` (Unix seconds). Call [`BatcherOptions::check`]
    /// first.
    pub fn check_chain(&self, rollup: &RollupConfig, now: u64) -> Result<(), BatcherOptionError> {
        let is_active = |fork| rollup.forks.is_active(fork, now);
        if self.data_availability.has_blobs() && !is_active(Fork::Ecotone) {
            return Err(BatcherOptionError::BlobsBeforeEcotone);
        }
        if self.compression.needs_fjord() && !is_active(Fork::Fjord) {
            return Err(BatcherOptionError::BrotliBeforeFjord);
        }
        self.channel_times(rollup).map(|_| ())
    }

    /// Warnings to log about options that are valid but not advisable.
    pub fn notices(&self, rollup: &RollupConfig, now: u64) -> Vec<&'static str> {
        let is_ecotone = rollup.forks.is_active(Fork::Ecotone, now);
        let calldata_only = is_ecotone && !self.data_availability.has_blobs();
        let notices = [
            (
                calldata_only,
                "Ecotone upgrade is active, but batcher is not configured to use Blobs! (--data-availability-type)",
            ),
            (
                !self.throttle.is_enabled(),
                "Throttling loop is DISABLED due to 0 throttle-threshold. This should not be disabled in prod. \
                 (--throttle.unsafe-da-bytes-lower-threshold)",
            ),
        ];
        let given = notices.into_iter().filter(|(is_given, _)| *is_given);
        given.map(|(_, notice)| notice).collect()
    }

    /// Limits of a channel's duration on this chain.
    pub fn channel_times(&self, rollup: &RollupConfig) -> Result<ChannelTimes, BatcherOptionError> {
        // Use Granite's shorter timeout before the fork too: a channel may still be open at the
        // fork.
        let timeout = if rollup.forks.is_scheduled(Fork::Granite) {
            CHANNEL_TIMEOUT_GRANITE
        } else {
            rollup.channel_timeout
        };
        Ok(ChannelTimes::new(
            self.max_channel_duration,
            timeout,
            rollup.seq_window_size,
            self.sub_safety_margin,
        )?)
    }

    /// Encoder settings for channels in calldata, with one frame per transaction.
    pub fn calldata_settings(&self) -> EncoderSettings {
        if self.data_availability == DataAvailability::Auto {
            return self.settings(AUTO_CALLDATA_FRAME, 1);
        }
        let frame = self.max_l1_tx_size_bytes.saturating_sub(VERSION_BYTES);
        let frames = self.target_num_frames;
        self.settings(usize::try_from(frame).unwrap_or(usize::MAX), frames)
    }

    /// Encoder settings for channels in blobs, with one frame per blob.
    pub fn blob_settings(&self) -> EncoderSettings {
        self.settings(
            MAX_BLOB_DATA - VERSION_BYTES as usize,
            self.target_num_frames,
        )
    }

    fn settings(&self, max_frame_size: usize, frames: u64) -> EncoderSettings {
        let most = usize::try_from(self.max_blocks_per_span_batch).unwrap_or(usize::MAX);
        EncoderSettings {
            format: if self.batch_type == SPAN_BATCH {
                BatchFormat::Span {
                    max_blocks: NonZeroUsize::new(most),
                }
            } else {
                BatchFormat::Singular
            },
            kind: self.compressor,
            compression: self.compression,
            max_frame_size,
            target_frames: u32::try_from(frames).unwrap_or(u32::MAX),
        }
    }
}

#[cfg(test)]
mod tests;
