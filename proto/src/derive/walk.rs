//! The reset walk: from a safe head back to the L1 block at which the pipeline starts. A channel
//! that completes after the safe head's L1 origin may have been opened up to a channel timeout
//! earlier.

use super::{CriticalError, L1Input, L1Link, Need, ResetReason, stage::safe_block_ref};
use crate::{
    attributes::L1Block,
    config::RollupConfig,
    l1info::{L1BlockInfo, L2BlockRef},
    payload::Payload,
    system_config::SystemConfig,
};
use std::sync::Arc;

/// State of the walk from the safe head back.
#[derive(Debug)]
pub(super) struct ResetWalk {
    pub safe: Arc<Payload>,
    safe_ref: L2BlockRef,
    /// Number of the first L1 block whose batches are applied.
    pub first_l1: u64,
    /// The last block read; `safe` at the beginning.
    at: Arc<Payload>,
    at_ref: L2BlockRef,
}

/// The reason why the pipeline cannot start from the block at which the walk ended.
#[derive(Debug)]
pub(super) enum WalkError {
    Reset(Box<ResetReason>),
    Critical(CriticalError),
}

impl ResetWalk {
    pub fn new(
        rollup: &RollupConfig,
        safe: Arc<Payload>,
        first_l1: u64,
    ) -> Result<Self, CriticalError> {
        let safe_ref = safe_block_ref(rollup, &safe)?;
        Ok(Self {
            at: safe.clone(),
            at_ref: safe_ref,
            safe,
            safe_ref,
            first_l1,
        })
    }

    pub fn safe_ref(&self) -> L2BlockRef {
        self.safe_ref
    }

    /// The next block to read: L2 blocks downwards, and at last the L1 block to start at.
    pub fn need(&self, rollup: &RollupConfig) -> Result<Need, CriticalError> {
        let (genesis, origin) = (&rollup.genesis, self.at_ref.origin);
        let is_after_genesis =
            self.at_ref.id.number > genesis.l2.number && origin.number > genesis.l1.number;
        if is_after_genesis {
            let info = L1BlockInfo::of(&self.at)
                .map_err(|error| CriticalError::safe_block(self.at_ref.id, error))?;
            let timeout = rollup.channel_timeout_at(info.time);
            if origin.number.saturating_add(timeout) > self.safe_ref.origin.number {
                return Ok(Need::L2Block {
                    number: self.at_ref.id.number - 1,
                    hash: Some(self.at_ref.parent_hash),
                });
            }
        }
        Ok(Need::L1Block {
            number: origin.number,
            link: L1Link::Hash(origin.hash),
        })
    }

    /// Moves the walk one block down, to `parent`.
    pub fn step_back(
        &mut self,
        rollup: &RollupConfig,
        parent: Arc<Payload>,
    ) -> Result<(), CriticalError> {
        self.at_ref = safe_block_ref(rollup, &parent)?;
        self.at = parent;
        Ok(())
    }

    /// Checks that `base` is the L1 block to start at, and returns the system configuration as of
    /// that block.
    pub fn arrive(&self, rollup: &RollupConfig, base: &L1Input) -> Result<SystemConfig, WalkError> {
        let L1Block { number, hash, .. } = base.block;
        if hash != self.at_ref.origin.hash || number != self.at_ref.origin.number {
            let reason = ResetReason::Origin {
                safe: self.at_ref.id,
                origin: self.at_ref.origin,
                canonical: base.block.id(),
            };
            return Err(WalkError::Reset(reason.into()));
        }
        SystemConfig::of(&self.at, rollup)
            .map_err(|error| WalkError::Critical(CriticalError::safe_block(self.at_ref.id, error)))
    }
}
