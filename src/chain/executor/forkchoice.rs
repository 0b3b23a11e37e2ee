//! Fork choice: which blocks may be the heads, and how the heads are moved so that a restart after
//! a kill restores them.

use super::{Executor, MAX_UNWIND, switch::DisplacedHead};
use crate::chain::{
    ChainError, Heads,
    abandoned::{self, Abandoned},
    builder,
    execute::ExpectedTransactions,
    payload_log::FOLLOWED,
    persister::PersistWork,
    store::Snapshot,
    view::{ReadError, View},
};
use alloy_primitives::B256;
use op_alloy_rpc_types_engine::OpPayloadAttributes;
use starling_proto::payload::{BlockId, Payload};
use std::sync::Arc;

/// The choice of the safe and the finalized head when the head moves.
#[derive(Clone, Copy)]
pub(super) enum SafeHeads {
    /// The blocks that the caller names, otherwise our present safe or finalized head. Both, and
    /// the newest derived block, must be on the branch of the new head.
    Named {
        safe: Option<B256>,
        finalized: Option<B256>,
    },
    /// Our present safe and finalized heads, lowered to the newest blocks that the old and the new
    /// branch share.
    Lowered,
}

impl SafeHeads {
    pub const KEPT: Self = Self::Named {
        safe: None,
        finalized: None,
    };
}

/// The branch of a new head, to look up its blocks.
enum TargetBranch<'a> {
    View(&'a View),
    /// The stored chain up to the new head.
    Stored(&'a Snapshot),
}

impl TargetBranch<'_> {
    fn hash_of(&self, number: u64) -> Result<Option<B256>, ReadError> {
        match self {
            Self::View(view) => view.hash_of(number),
            Self::Stored(snapshot) => snapshot.hash_of(number),
        }
    }

    fn number_of(&self, hash: B256) -> Result<Option<u64>, ReadError> {
        match self {
            Self::View(view) => view.number_of(hash),
            Self::Stored(snapshot) => snapshot.number_of(&hash),
        }
    }
}

impl Executor {
    /// Moves the safe and the finalized head, but not the unsafe head. A displaced head stays held.
    pub(super) fn promote(
        &mut self,
        safe: Option<B256>,
        finalized: Option<B256>,
    ) -> Result<(), ChainError> {
        let named = SafeHeads::Named { safe, finalized };
        self.apply_forkchoice(self.heads.head.hash, named)
    }

    /// Sets the newest block derived from L1. If the block is not on the head's branch, this fails,
    /// and the earlier block stays protected.
    pub(super) fn protect(&mut self, derived: Option<B256>) -> Result<(), ChainError> {
        let find = |hash| {
            let head = self.heads.head.hash;
            let number = self.head.number_of(hash)?;
            let number = number.ok_or(ChainError::NotOnBranch { block: hash, head })?;
            Ok::<_, ChainError>(BlockId { number, hash })
        };
        self.derived = derived.map(find).transpose()?;
        Ok(())
    }

    /// Builds a block on `parent` with the transactions of the attributes and none of the pool,
    /// makes the block the head unless it is canonical already, and protects it. After an error no
    /// head has moved.
    pub(super) fn derive(
        &mut self,
        parent: B256,
        attributes: OpPayloadAttributes,
        expected: Option<ExpectedTransactions>,
    ) -> Result<Arc<Payload>, ChainError> {
        let view = self.view_of(parent)?;
        let block = builder::build_at_once(&self.shared, &view, attributes, expected)?;
        let payload = block.payload.clone();
        let id = payload.id();
        self.adopt(block)?;
        if parent == self.heads.head.hash && !self.displaced.is_held() {
            let heads = Heads {
                head: id,
                timestamp: payload.timestamp(),
                ..self.heads
            };
            let view = self.make_view(&heads)?;
            self.move_heads(heads, view.ok_or(ChainError::UnknownBlock(id.hash))?)?;
        } else if self.head.hash_of(id.number)? != Some(id.hash) {
            self.forkchoice(id.hash, None, None)?;
        }
        // Otherwise the block is canonical already: the swarm has brought it, maybe with blocks on
        // it.
        self.derived = Some(id);
        Ok(payload)
    }

    /// Applies a fork choice of the Engine API or the sequencer, and releases a displaced head. A
    /// safe or finalized head that is not named stays, but it must be on the branch of `head` like
    /// a named one. After an error nothing has moved.
    pub(super) fn forkchoice(
        &mut self,
        head: B256,
        safe: Option<B256>,
        finalized: Option<B256>,
    ) -> Result<(), ChainError> {
        let displaced = std::mem::take(&mut self.displaced);
        if let Err(error) = self.apply_forkchoice(head, SafeHeads::Named { safe, finalized }) {
            self.displaced = displaced;
            return Err(error);
        }
        if displaced.is_held() {
            // If this call names the head that we already have, the log still records the displaced
            // head, which may be higher. Log and store our head before the call is acknowledged.
            self.log_head(self.heads.head)?;
            self.finish_commits()?;
        }
        Ok(())
    }

    /// Moves the heads. A displaced head stays held if it outranks the new head
    /// ([`DisplacedHead::outranks`]). After an error nothing has moved.
    pub(super) fn apply_forkchoice(
        &mut self,
        head: B256,
        safe_heads: SafeHeads,
    ) -> Result<(), ChainError> {
        if self.below_stored_head(head)?.is_some() {
            // The commit in progress belongs to the old branch: wait for it.
            self.finish_commits()?;
            if let Some(number) = self.below_stored_head(head)? {
                return self.rewind(BlockId { number, hash: head }, safe_heads);
            }
        }
        let view = self.view_of(head)?;
        let heads = Heads {
            head: view.head(),
            timestamp: view.header().timestamp,
            ..self.heads
        };
        let heads = self.place_safe_heads(heads, safe_heads, &TargetBranch::View(&view))?;
        let view = self
            .make_view(&heads)?
            .ok_or(ChainError::UnknownBlock(head))?;
        self.move_heads(heads, view)
    }

    /// Sets the safe and the finalized head in `heads`, as `safe_heads` chooses them. `branch` is
    /// the branch of the new head.
    fn place_safe_heads(
        &self,
        heads: Heads,
        safe_heads: SafeHeads,
        branch: &TargetBranch,
    ) -> Result<Heads, ChainError> {
        let (safe, finalized) = match safe_heads {
            SafeHeads::Named { safe, finalized } => {
                named_or_kept(None, self.derived, heads.head, branch)?;
                (
                    named_or_kept(safe, self.heads.safe, heads.head, branch)?,
                    named_or_kept(finalized, self.heads.finalized, heads.head, branch)?,
                )
            }
            SafeHeads::Lowered => {
                let lower = |id| self.newest_shared(id, heads.head, branch);
                (
                    self.heads.safe.map(lower).transpose()?,
                    self.heads.finalized.map(lower).transpose()?,
                )
            }
        };
        match (safe, finalized) {
            (Some(safe), Some(finalized)) if finalized.number > safe.number => {
                Err(ChainError::FinalizedAboveSafe { safe, finalized })
            }
            _ => Ok(Heads {
                safe,
                finalized,
                ..heads
            }),
        }
    }

    /// The newest block at or below `id` that is on both our head's branch and the branch of
    /// `head`. `id` is on our head's branch.
    fn newest_shared(
        &self,
        id: BlockId,
        head: BlockId,
        branch: &TargetBranch,
    ) -> Result<BlockId, ChainError> {
        for number in (0..=id.number.min(head.number)).rev() {
            if let Some(hash) = branch.hash_of(number)?
                && self.head.hash_of(number)? == Some(hash)
            {
                return Ok(BlockId { number, hash });
            }
        }
        Err(ChainError::UnknownBlock(head.hash))
    }

    /// The number of this block, if it is on the stored chain below the stored head.
    fn below_stored_head(&self, hash: B256) -> Result<Option<u64>, ChainError> {
        let number = self.snapshot.number_of(&hash)?;
        Ok(number.filter(|number| *number < self.snapshot.head().number))
    }

    /// Unwinds the store to `head`, a block of the stored chain. No commit may be in progress.
    fn rewind(&mut self, head: BlockId, safe_heads: SafeHeads) -> Result<(), ChainError> {
        let heads = self.heads_at_stored(head, safe_heads)?;
        self.log_canonical_above(head.number)?;
        self.log_head(head)?;
        self.unwind(heads)
    }

    /// Logs `head` as the head that a restarted process restores, unless a displaced head that is
    /// still held outranks it.
    pub(super) fn log_head(&self, head: BlockId) -> Result<(), ChainError> {
        if self.displaced.outranks(head) {
            return Ok(());
        }
        Ok(self.log.set_head(head)?)
    }

    /// The heads to set when this block of the stored chain becomes the head. Fails if the store
    /// cannot be unwound to it.
    pub(super) fn heads_at_stored(
        &self,
        head: BlockId,
        safe_heads: SafeHeads,
    ) -> Result<Heads, ChainError> {
        let snapshot = &self.snapshot;
        if head.number + 1 < snapshot.oldest_unwind()
            || snapshot.head().number - head.number > MAX_UNWIND
        {
            tracing::warn!(%head, stored = %snapshot.head(), "a block is too deep below the stored head to unwind to it");
            return Err(ChainError::UnknownBlock(head.hash));
        }
        let header = snapshot
            .header(head.number)?
            .ok_or(ChainError::UnknownBlock(head.hash))?;
        let heads = Heads {
            head,
            timestamp: header.timestamp,
            ..self.heads
        };
        self.place_safe_heads(heads, safe_heads, &TargetBranch::Stored(snapshot))
    }

    /// Unwinds the store block by block to `heads.head`, a block of the stored chain. Publishes the
    /// head only afterwards, so that no view has to hold the unwind data of all blocks above it. No
    /// commit may be in progress.
    pub(super) fn unwind(&mut self, heads: Heads) -> Result<(), ChainError> {
        let remaining = |number: u64| {
            if number <= heads.head.number {
                self.snapshot.hash_of(number)
            } else {
                Ok(None)
            }
        };
        self.record_abandoned(remaining)?;
        self.heads = heads;
        self.send_work(PersistWork {
            unwind_to: heads.head.number,
            blocks: vec![],
            safe: heads.safe,
            finalized: heads.finalized,
        })?;
        self.finish_commits()
    }

    /// Keeps the blocks that are about to be abandoned, with their receipts, for subscriptions,
    /// filters and the pool. `next` returns the hash of the new chain's block at a number. Blocks
    /// beyond the bounds of [`abandoned`] are not loaded.
    fn record_abandoned(
        &self,
        next: impl Fn(u64) -> Result<Option<B256>, ReadError>,
    ) -> Result<(), ChainError> {
        let (mut gone, mut weight) = (Vec::new(), 0);
        for number in (0..=self.head.head().number).rev().take(abandoned::BLOCKS) {
            if self.head.hash_of(number)? == next(number)? {
                break;
            }
            let Some(payload) = self.head.payload(number)? else {
                continue;
            };
            let receipts = self.head.receipts(number)?;
            let block = Abandoned { payload, receipts };
            weight += block.weight();
            if weight > abandoned::BYTES {
                break;
            }
            gone.push(block);
        }
        self.shared.abandoned.lock().add(gone);
        Ok(())
    }

    /// Logs the canonical blocks above `base` before the store unwinds them, so the branch can be
    /// replayed. Call before `log_head`: after a kill, a replay that restores the logged head unwinds
    /// the store without logging these blocks.
    fn log_canonical_above(&mut self, base: u64) -> Result<(), ChainError> {
        if base >= self.snapshot.head().number {
            return Ok(());
        }
        let stored = View::new(self.snapshot.clone(), vec![], None, None)?;
        for number in base + 1..=stored.head().number {
            // Skip a missing payload: the store is damaged there, since bodies are never pruned.
            // The unwind of this block reports the damage.
            if let Some(payload) = stored.payload(number)? {
                self.log_payload(&payload, FOLLOWED)?;
            }
        }
        Ok(())
    }

    /// Moves the heads so that a restart after a kill restores the head: the payload log names the
    /// head and holds the blocks that lead to it from the store. A move that lowers a head, or
    /// abandons the branch of the safe or the finalized head, is stored before it is acknowledged.
    /// A logged head at or below the stored one is therefore always outdated.
    pub(super) fn move_heads(&mut self, heads: Heads, view: Arc<View>) -> Result<(), ChainError> {
        let old = self.heads;
        if view.hash_of(old.head.number)? != Some(old.head.hash) {
            // Log the blocks of the old branch that are still being committed: they are not stored
            // yet.
            self.log_unlogged(old.head.hash)?;
        }
        self.log_unlogged(heads.head.hash)?;
        // Log stored blocks that this move abandons and that no earlier move has logged.
        if view.stored().number < self.head.stored().number {
            self.log_canonical_above(view.stored().number)?;
        }
        if heads.head != old.head {
            self.log_head(heads.head)?;
        }
        let mut rises = heads.head == old.head || heads.head.number > old.head.number;
        for (old, new) in [(old.safe, heads.safe), (old.finalized, heads.finalized)] {
            if let Some(old) = old {
                rises &= new.is_some_and(|new| new.number >= old.number);
                rises &= view.hash_of(old.number)? == Some(old.hash);
            }
        }
        self.set_heads(heads, view)?;
        if rises { Ok(()) } else { self.finish_commits() }
    }

    /// Publishes `heads` and hands their blocks to the persister. `view` is the view of these
    /// heads. Releases a displaced head that does not outrank the new head.
    pub(super) fn set_heads(&mut self, heads: Heads, view: Arc<View>) -> Result<(), ChainError> {
        self.record_abandoned(|number| view.hash_of(number))?;
        (self.heads, self.head) = (heads, view);
        if self.displaced.is_held() && !self.displaced.outranks(heads.head) {
            self.displaced = DisplacedHead::Released;
            self.log_head(heads.head)?;
        }
        self.publish();
        self.persist()
    }
}

/// The safe or the finalized head to set: the block that the caller names, otherwise the present
/// one. Fails if that block is above `head` or not on its branch. The newest derived block is only
/// checked with this function, not set.
fn named_or_kept(
    named: Option<B256>,
    kept: Option<BlockId>,
    head: BlockId,
    branch: &TargetBranch,
) -> Result<Option<BlockId>, ChainError> {
    let Some(hash) = named.or(kept.map(|id| id.hash)) else {
        return Ok(None);
    };
    match branch.number_of(hash)? {
        Some(number) if number <= head.number => Ok(Some(BlockId { number, hash })),
        _ => Err(ChainError::NotOnBranch {
            block: hash,
            head: head.hash,
        }),
    }
}
