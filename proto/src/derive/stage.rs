//! Types that all stages share: the reasons for a pause, the limits of the protocol, and the lookup
//! of blocks of the safe chain.

use super::{CriticalError, DropCounts, Need, PipelineStep, ReadCounts, ResetReason};
use crate::{
    attributes::L1Block, channel::BatchContext, config::RollupConfig, fork::Fork,
    l1info::L2BlockRef, payload::Payload,
};
use std::sync::Arc;

/// Largest number of L1 blocks for which a channel may be open, from Granite on (specs: granite,
/// CHANNEL_TIMEOUT).
pub const CHANNEL_TIMEOUT_GRANITE: u64 = 50;
/// Largest total size of open channels before Fjord, in bytes (specs: derivation,
/// MAX_CHANNEL_BANK_SIZE).
const MAX_CHANNEL_BANK_SIZE: u64 = 100_000_000;
/// Largest total size of open channels from Fjord on, in bytes (specs: fjord,
/// MAX_CHANNEL_BANK_SIZE).
const MAX_CHANNEL_BANK_SIZE_FJORD: u64 = 1_000_000_000;

/// The reason why a stage returns no item.
#[derive(Clone, Debug)]
pub(super) enum Pause {
    /// Progress was made: call the stage again (op-node: NotEnoughData).
    More,
    /// Everything up to the L1 origin is read (op-node: io.EOF).
    End,
    /// No item: the step of the whole pipeline returns this result.
    Step(Box<PipelineStep>),
}

impl From<Need> for Pause {
    fn from(need: Need) -> Self {
        Self::Step(Box::new(PipelineStep::Need(need)))
    }
}

impl From<ResetReason> for Pause {
    fn from(reason: ResetReason) -> Self {
        Self::Step(Box::new(PipelineStep::Reset(reason)))
    }
}

impl From<CriticalError> for Pause {
    fn from(error: CriticalError) -> Self {
        Self::Step(Box::new(PipelineStep::Critical(error)))
    }
}

pub(super) type Pull<T> = Result<T, Pause>;

/// Configuration and counters for every stage.
#[derive(Debug)]
pub(super) struct StageContext {
    pub rollup: Arc<RollupConfig>,
    pub drops: DropCounts,
    pub reads: ReadCounts,
    /// The last block of the safe chain that the caller pushed, for overlap checks of span batches.
    pub safe_blocks: SafeBlocks,
}

impl StageContext {
    pub fn new(rollup: Arc<RollupConfig>) -> Self {
        Self {
            rollup,
            drops: DropCounts::default(),
            reads: ReadCounts::default(),
            safe_blocks: SafeBlocks::default(),
        }
    }
}

/// Protocol limits, which depend on the time of the pipeline's L1 origin.
impl RollupConfig {
    pub(super) fn l1_active(&self, fork: Fork, l1: &L1Block) -> bool {
        self.forks.is_active(fork, l1.time)
    }

    /// Largest number of L1 blocks for which a channel may be open, at this L1 time (Unix seconds).
    pub(super) fn channel_timeout_at(&self, l1_time: u64) -> u64 {
        if self.forks.is_active(Fork::Granite, l1_time) {
            CHANNEL_TIMEOUT_GRANITE
        } else {
            self.channel_timeout
        }
    }

    /// Largest total size of the channels in the channel bank, in bytes.
    pub(super) fn channel_bank_limit(&self, l1: &L1Block) -> u64 {
        if self.l1_active(Fork::Fjord, l1) {
            MAX_CHANNEL_BANK_SIZE_FJORD
        } else {
            MAX_CHANNEL_BANK_SIZE
        }
    }

    pub(super) fn batch_context(&self) -> BatchContext {
        BatchContext {
            genesis_time: self.genesis.l2_time,
            block_time: self.block_time,
            chain_id: self.l2_chain_id,
        }
    }
}

/// The reference of a block of the safe chain; an unreadable block is a critical error.
pub(super) fn safe_block_ref(
    rollup: &RollupConfig,
    block: &Payload,
) -> Result<L2BlockRef, CriticalError> {
    L2BlockRef::of(block, &rollup.genesis)
        .map_err(|error| CriticalError::safe_block(block.id(), error))
}

/// The last block of the safe chain that the caller pushed. Overlap checks read the chain upwards
/// block by block and remember their progress, so one block is enough.
#[derive(Debug, Default)]
pub(super) struct SafeBlocks {
    last: Option<Arc<Payload>>,
    /// Number of resets, and of times the pending-safe head moved back. Each makes the results of
    /// earlier lookups invalid.
    pub generation: u64,
}

impl SafeBlocks {
    pub fn get(&self, number: u64) -> Pull<Arc<Payload>> {
        match &self.last {
            Some(payload) if payload.number() == number => Ok(payload.clone()),
            _ => Err(Need::L2Block { number, hash: None }.into()),
        }
    }

    pub fn put(&mut self, payload: Arc<Payload>) {
        self.last = Some(payload);
    }

    /// Drops the block, because the pending-safe head moved back or the pipeline was reset.
    pub fn rewind(&mut self) {
        self.last = None;
        self.generation += 1;
    }
}
