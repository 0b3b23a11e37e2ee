//! Heads that a driver chooses: which blocks they may be, and how they are moved so that a killed process finds them again.

use super::{Executor, MAX_UNWIND};
use crate::chain::{
    ChainError, Heads,
    persister::Work,
    view::{ReadError, View},
};
use alloy_primitives::B256;
use starling_proto::payload::BlockId;
use std::sync::Arc;

impl Executor {
    /// A head that is not named stays, and must be on the branch like one that is. In every error nothing has moved.
    pub(super) fn forkchoice(&mut self, head: B256, safe: Option<B256>, finalized: Option<B256>) -> Result<(), ChainError> {
        if self.below_stored_head(head)?.is_some() {
            // What is being stored leads to the heads that are left.
            while self.persisting {
                self.collect(true)?;
            }
            if let Some(number) = self.below_stored_head(head)? {
                return self.rewind(BlockId { number, hash: head }, safe, finalized);
            }
        }
        let view = self.view_of(head)?;
        let heads = self.heads_on(view.head(), view.header().timestamp, (safe, finalized), |hash| view.number_of(hash))?;
        let view = self.make_view(&heads)?.ok_or(ChainError::UnknownBlock(head))?;
        self.move_heads(heads, view)
    }

    /// The heads when this block is the head. `number_of` knows the blocks of its branch.
    fn heads_on(
        &self,
        head: BlockId,
        timestamp: u64,
        (safe, finalized): (Option<B256>, Option<B256>),
        number_of: impl Fn(B256) -> Result<Option<u64>, ReadError>,
    ) -> Result<Heads, ChainError> {
        let on_branch = |named: Option<B256>, kept: Option<BlockId>| -> Result<Option<BlockId>, ChainError> {
            let Some(hash) = named.or(kept.map(|id| id.hash)) else { return Ok(None) };
            match number_of(hash).map_err(ChainError::store)? {
                Some(number) => Ok(Some(BlockId { number, hash })),
                None => Err(ChainError::NotOnBranch { block: hash, head: head.hash }),
            }
        };
        let (safe, finalized) = (on_branch(safe, self.heads.safe)?, on_branch(finalized, self.heads.finalized)?);
        match (safe, finalized) {
            (Some(safe), Some(finalized)) if finalized.number > safe.number => {
                Err(ChainError::FinalizedAboveSafe { safe, finalized })
            }
            _ => Ok(Heads { head, timestamp, safe, finalized }),
        }
    }

    /// The number of a stored block that is not the newest.
    fn below_stored_head(&self, hash: B256) -> Result<Option<u64>, ChainError> {
        let number = self.snapshot.number_of(&hash).map_err(ChainError::store)?;
        Ok(number.filter(|number| *number < self.snapshot.head().number))
    }

    /// Takes the store back to a block of its chain, one block after the other, and only then shows that as the head: no view has to
    /// hold what all the blocks above it have changed. Nothing is being stored.
    fn rewind(&mut self, head: BlockId, safe: Option<B256>, finalized: Option<B256>) -> Result<(), ChainError> {
        let snapshot = self.snapshot.clone();
        if head.number + 1 < snapshot.oldest_unwind() || snapshot.head().number - head.number > MAX_UNWIND {
            tracing::warn!(%head, stored = %snapshot.head(), "a block is too deep below the stored head to go back to it");
            return Err(ChainError::UnknownBlock(head.hash));
        }
        let header = snapshot.header(head.number).map_err(ChainError::store)?.ok_or(ChainError::UnknownBlock(head.hash))?;
        let on_branch = |hash| Ok(snapshot.number_of(&hash)?.filter(|number| *number <= head.number));
        let heads = self.heads_on(head, header.timestamp, (safe, finalized), on_branch)?;
        drop(snapshot);
        self.log.set_head(head).map_err(ChainError::store)?;
        self.heads = heads;
        self.send(Work { unwind_to: head.number, blocks: vec![], safe: heads.safe, finalized: heads.finalized })?;
        while self.persisting {
            self.collect(true)?;
        }
        Ok(())
    }

    /// Moves the heads so that a killed process finds the head again: the log says which it is, and holds what leads to it from the
    /// store. What does not only rise (another branch below the safe block, a lower head) is stored before it is acknowledged, so that
    /// a head in the log that is not above the stored one is an old one.
    pub(super) fn move_heads(&mut self, heads: Heads, view: Arc<View>) -> Result<(), ChainError> {
        let old = self.heads;
        self.log_adopted(heads.head.hash)?;
        if heads.head != old.head {
            self.log.set_head(heads.head).map_err(ChainError::store)?;
        }
        let mut rises = heads.head == old.head || heads.head.number > old.head.number;
        for (old, new) in [(old.safe, heads.safe), (old.finalized, heads.finalized)] {
            if let Some(old) = old {
                rises &= new.is_some_and(|new| new.number >= old.number);
                rises &= view.hash_of(old.number).map_err(ChainError::store)? == Some(old.hash);
            }
        }
        self.set_heads(heads, view)?;
        if !rises {
            while self.persisting {
                self.collect(true)?;
            }
        }
        Ok(())
    }
}
