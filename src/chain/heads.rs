//! Heads without gaps: a cursor that walks block by block from its owner's position to the head.
//!
//! `watch<Heads>` only wakes its receivers and may skip changes. After each wake-up, a [`Cursor`]
//! reports the removed and added blocks in order, via the common ancestor. Subscriptions, filters
//! and the pool all use it. A cursor is only a position. On an abandoned branch it looks up each
//! block with [`Chain::abandoned`](super::Chain::abandoned) and continues at the parent, so it
//! needs no record of earlier steps. The payload log keeps every block that a reorg abandons, down
//! to the unwind limit, until the chain is 1,024 blocks above the block. If a cursor needs a block
//! that has been dropped, it returns [`StepError::Lost`], and its owner must start again from the
//! head.

use crate::chain::{abandoned::Abandoned, rows::ReadError, view::View};
use alloy_primitives::B256;
use starling_proto::payload::BlockId;

/// One step of a cursor along the canonical chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    Removed(Abandoned),
    Added(BlockId),
}

/// The reason why a cursor cannot take its next step.
#[derive(Debug, thiserror::Error)]
pub enum StepError {
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error(
        "block {0} was abandoned in a reorg and is no longer kept, so the blocks removed below it are unknown: start again from the head"
    )]
    Lost(BlockId),
}

/// A consumer's position: the last block that it has processed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cursor {
    at: BlockId,
}

impl Cursor {
    /// A cursor at this block. The block itself is not reported.
    pub fn new(at: BlockId) -> Self {
        Self { at }
    }

    pub fn at(&self) -> BlockId {
        self.at
    }

    /// The next step towards the head of `view`; `None` if the cursor is at the head. `abandoned`
    /// looks up blocks that are not canonical.
    pub fn step(
        &mut self,
        view: &View,
        abandoned: impl Fn(B256) -> Result<Option<Abandoned>, ReadError>,
    ) -> Result<Option<Step>, StepError> {
        if view.hash_of(self.at.number)? != Some(self.at.hash) {
            let block = abandoned(self.at.hash)?.ok_or(StepError::Lost(self.at))?;
            self.at = BlockId {
                number: self.at.number.saturating_sub(1),
                hash: block.payload.parent_hash(),
            };
            return Ok(Some(Step::Removed(block)));
        }
        let number = self.at.number.saturating_add(1);
        Ok(view.hash_of(number)?.map(|hash| {
            self.at = BlockId { number, hash };
            Step::Added(self.at)
        }))
    }
}

#[cfg(test)]
mod tests;
