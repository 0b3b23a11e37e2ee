//! Epochs: the L1 blocks that the next batches may have as their L1 origin.

use super::RelevantLogs;
use crate::{attributes::L1Block, l1info::L2BlockRef};
use std::collections::VecDeque;

/// An L1 block in the window, with its logs.
#[derive(Clone, Debug)]
pub(super) struct EpochBlock {
    pub block: L1Block,
    pub logs: RelevantLogs,
}

/// Consecutive L1 blocks, about a sequencing window of them at most. The first is the L1 origin of
/// the pending-safe head, or the child of that origin once all L2 blocks of the head's epoch exist.
#[derive(Clone, Debug, Default)]
pub(super) struct EpochBlocks {
    blocks: VecDeque<EpochBlock>,
}

impl EpochBlocks {
    pub fn push(&mut self, origin: EpochBlock) {
        self.blocks.push_back(origin);
    }

    pub fn clear(&mut self) {
        self.blocks.clear();
    }

    pub fn len(&self) -> usize {
        self.blocks.len()
    }

    pub fn first(&self) -> Option<&L1Block> {
        self.blocks.front().map(|origin| &origin.block)
    }

    pub fn second(&self) -> Option<&L1Block> {
        self.blocks.get(1).map(|origin| &origin.block)
    }

    pub fn pop_first(&mut self) {
        self.blocks.pop_front();
    }

    /// The L1 block with this number, if it is in the window.
    pub fn get(&self, number: u64) -> Option<&EpochBlock> {
        let offset = number.checked_sub(self.first()?.number)?;
        self.blocks.get(usize::try_from(offset).ok()?)
    }

    /// Removes the L1 blocks before the origin of `pending_safe`, if that origin is in the window.
    pub fn prune(&mut self, pending_safe: &L2BlockRef) {
        if self.get(pending_safe.origin.number).is_some() {
            while self
                .first()
                .is_some_and(|first| first.number < pending_safe.origin.number)
            {
                self.pop_first();
            }
        }
    }
}
