//! Heads that a driver chooses: which blocks they may be, and how they are moved so that a killed process finds them again.

use super::{Executor, FOLLOWED, Left, MAX_UNWIND};
use crate::chain::{
    ChainError, Heads, Inserted,
    abandoned::{self, Abandoned},
    execute::Preparation,
    persister::Work,
    view::{ReadError, View},
};
use alloy_primitives::B256;
use starling_p2p::Provenance;
use starling_proto::payload::{BlockId, Payload};
use std::sync::Arc;

impl Executor {
    /// A head that is not named stays, and must be on the branch like one that is. In every error nothing has moved.
    pub(super) fn forkchoice(
        &mut self,
        head: B256,
        safe: Option<B256>,
        finalized: Option<B256>,
    ) -> Result<(), ChainError> {
        let left = self.left.take();
        self.go(head, safe, finalized)
            .inspect_err(|_| self.left = left)
    }

    fn go(
        &mut self,
        head: B256,
        safe: Option<B256>,
        finalized: Option<B256>,
    ) -> Result<(), ChainError> {
        if self.below_stored_head(head)?.is_some() {
            // What is being stored leads to the heads that are left.
            self.idle()?;
            if let Some(number) = self.below_stored_head(head)? {
                return self.rewind(BlockId { number, hash: head }, safe, finalized);
            }
        }
        let view = self.view_of(head)?;
        let heads = self.heads_on(
            view.head(),
            view.header().timestamp,
            (safe, finalized),
            |hash| view.number_of(hash),
        )?;
        let view = self
            .make_view(&heads)?
            .ok_or(ChainError::UnknownBlock(head))?;
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
        let on_branch =
            |named: Option<B256>, kept: Option<BlockId>| -> Result<Option<BlockId>, ChainError> {
                let Some(hash) = named.or(kept.map(|id| id.hash)) else {
                    return Ok(None);
                };
                match number_of(hash).map_err(ChainError::store)? {
                    Some(number) => Ok(Some(BlockId { number, hash })),
                    None => Err(ChainError::NotOnBranch {
                        block: hash,
                        head: head.hash,
                    }),
                }
            };
        let (safe, finalized) = (
            on_branch(safe, self.heads.safe)?,
            on_branch(finalized, self.heads.finalized)?,
        );
        match (safe, finalized) {
            (Some(safe), Some(finalized)) if finalized.number > safe.number => {
                Err(ChainError::FinalizedAboveSafe { safe, finalized })
            }
            _ => Ok(Heads {
                head,
                timestamp,
                safe,
                finalized,
            }),
        }
    }

    /// The number of a stored block that is not the newest.
    fn below_stored_head(&self, hash: B256) -> Result<Option<u64>, ChainError> {
        let number = self.snapshot.number_of(&hash).map_err(ChainError::store)?;
        Ok(number.filter(|number| *number < self.snapshot.head().number))
    }

    /// Takes the store back to a block of its chain. Nothing is being stored.
    fn rewind(
        &mut self,
        head: BlockId,
        safe: Option<B256>,
        finalized: Option<B256>,
    ) -> Result<(), ChainError> {
        let heads = self.heads_below(head, safe, finalized)?;
        self.log_abandoned(head.number)?;
        self.log_head(head)?;
        self.unwind(heads)
    }

    /// A restarted process goes to this head, unless one was left that is not lower.
    fn log_head(&self, head: BlockId) -> Result<(), ChainError> {
        match self.left {
            Some(left) if left.head.number >= head.number => Ok(()),
            _ => self.log.set_head(head).map_err(ChainError::store),
        }
    }

    /// The heads when this block of the stored chain is the head. In every error it cannot be.
    fn heads_below(
        &self,
        head: BlockId,
        safe: Option<B256>,
        finalized: Option<B256>,
    ) -> Result<Heads, ChainError> {
        let snapshot = &self.snapshot;
        if head.number + 1 < snapshot.oldest_unwind()
            || snapshot.head().number - head.number > MAX_UNWIND
        {
            tracing::warn!(%head, stored = %snapshot.head(), "a block is too deep below the stored head to go back to it");
            return Err(ChainError::UnknownBlock(head.hash));
        }
        let header = snapshot
            .header(head.number)
            .map_err(ChainError::store)?
            .ok_or(ChainError::UnknownBlock(head.hash))?;
        let on_branch = |hash| {
            Ok(snapshot
                .number_of(&hash)?
                .filter(|number| *number <= head.number))
        };
        self.heads_on(head, header.timestamp, (safe, finalized), on_branch)
    }

    /// Takes the store back to this head of its chain, one block after the other, and only then shows it: no view has to hold what all
    /// the blocks above it have changed. Nothing is being stored.
    fn unwind(&mut self, heads: Heads) -> Result<(), ChainError> {
        let stays = |number: u64| {
            if number <= heads.head.number {
                self.snapshot.hash_of(number)
            } else {
                Ok(None)
            }
        };
        self.record_abandoned(stays)?;
        self.heads = heads;
        self.send(Work {
            unwind_to: heads.head.number,
            blocks: vec![],
            safe: heads.safe,
            finalized: heads.finalized,
        })?;
        self.idle()
    }

    /// Keeps the blocks that are about to be abandoned, with their receipts, for subscriptions, filters and the pool. `next` gives the
    /// block hashes of the new chain by number. Blocks beyond the bounds of [`abandoned`] are not loaded.
    pub(super) fn record_abandoned(
        &self,
        next: impl Fn(u64) -> Result<Option<B256>, ReadError>,
    ) -> Result<(), ChainError> {
        let (mut gone, mut weight) = (Vec::new(), 0);
        for number in (0..=self.head.head().number).rev().take(abandoned::BLOCKS) {
            if self.head.hash_of(number).map_err(ChainError::store)?
                == next(number).map_err(ChainError::store)?
            {
                break;
            }
            let Some(payload) = self.head.payload(number).map_err(ChainError::store)? else {
                continue;
            };
            let receipts = self.head.receipts(number).map_err(ChainError::store)?;
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

    /// What the store is to leave above this height is in the log, so that it can be brought back. Before the head is set there: what is
    /// logged after it is preferred by a restarted process.
    fn log_abandoned(&mut self, base: u64) -> Result<(), ChainError> {
        if base >= self.snapshot.head().number {
            return Ok(());
        }
        let stored =
            View::new(self.snapshot.clone(), vec![], None, None).map_err(ChainError::store)?;
        for number in base + 1..=stored.head().number {
            // Whose transactions are pruned is below any block that can be left.
            if let Some(payload) = stored.payload(number).map_err(ChainError::store)? {
                self.log_payload(&payload, FOLLOWED)?;
            }
        }
        Ok(())
    }

    /// Executes a block that is to become the head whatever it leaves, where it cannot be executed beside our chain: the head goes to
    /// its parent first, and comes back if the block is not valid. The error is one that ends the chain, or says why the head cannot go
    /// there.
    pub(super) fn lead(
        &mut self,
        payload: &Arc<Payload>,
        provenance: Provenance,
    ) -> Result<Inserted, ChainError> {
        // What is being stored is lost, if it is not known to be left.
        self.idle()?;
        self.make_room(payload.number());
        let (before, stood, parent) = (self.left, self.heads.head, payload.parent_hash());
        // Where the parent's branch leaves the store, if that is not at the parent.
        let leaves = match self.tree.get(&parent).map(|block| block.payload.id()) {
            Some(parent) => Some(self.branch(parent)?.base),
            None => None,
        };
        let base = leaves
            .map_or(payload.number().saturating_sub(1), |leaves| leaves.number)
            .min(self.branch(stood)?.base.number);
        let left = match before {
            Some(left) => Left {
                base: base.min(left.base),
                ..left
            },
            None => Left { head: stood, base },
        };
        self.log.set_head(left.head).map_err(ChainError::store)?;
        self.left = Some(left);
        // What lies between may be too much to stand on the parent before the store has gone.
        let stop = if self.find_view(parent)?.is_none() {
            leaves
        } else {
            None
        };
        for at in stop.map(|leaves| leaves.hash).into_iter().chain([parent]) {
            if let Err(error) = self.go(at, None, None) {
                match self.heads.head == stood {
                    true => self.left = before,
                    false => self.come_back()?,
                }
                return Err(error);
            }
        }
        let inserted = self.insert(Preparation::later(payload.clone()), provenance)?;
        match (&inserted, provenance) {
            // A file is authority, however low it ends.
            (Inserted::Valid, Provenance::Imported) => {
                self.left = None;
                self.log_head(self.heads.head)?;
            }
            (Inserted::Valid, _) => {}
            _ => self.come_back()?,
        }
        Ok(inserted)
    }

    /// To the head that was left, if one was.
    pub(super) fn come_back(&mut self) -> Result<(), ChainError> {
        let Some(Left { head, .. }) = self.left else {
            return Ok(());
        };
        let back = self.restore(head, &mut 0)?;
        self.left = None;
        if !back {
            tracing::error!(lost = %head, head = %self.heads.head, "a head that was left cannot be reached any more");
            self.log_head(self.heads.head)?;
        }
        Ok(())
    }

    /// Makes a logged block the head again. False if something on the way to it is not in the log.
    pub(super) fn restore(
        &mut self,
        head: BlockId,
        replayed: &mut usize,
    ) -> Result<bool, ChainError> {
        self.idle()?;
        let (mut way, mut at) = (Vec::new(), head);
        while !self.stored(&at)? {
            let Some(logged) = self.logged(|log| log.by_hash(at.hash), at) else {
                return Ok(false);
            };
            way.push(at);
            at = BlockId {
                number: at.number.saturating_sub(1),
                hash: logged.payload.parent_hash(),
            };
        }
        if at != self.heads.head {
            let heads = match self.heads_below(at, None, None) {
                Ok(heads) => heads,
                Err(error @ (ChainError::Store(_) | ChainError::Stopped)) => return Err(error),
                Err(_) => return Ok(false),
            };
            match self.make_view(&heads)? {
                Some(view) => self.set_heads(heads, view)?,
                // What leads back from the store's head is more than memory should hold.
                None => self.unwind(heads)?,
            }
        }
        for id in way.into_iter().rev() {
            // Read again, one at a time: the way may be long.
            let Some(logged) = self.logged(|log| log.by_hash(id.hash), id) else {
                return Ok(false);
            };
            let timestamp = logged.payload.timestamp();
            if self.insert(
                Preparation::later(Arc::new(logged.payload)),
                Provenance::Imported,
            )? != Inserted::Valid
            {
                return Ok(false);
            }
            *replayed += 1;
            // So that it is stored on the way, and its memory freed.
            if let Some((heads, view)) = self.preferred(id, timestamp)? {
                self.set_heads(heads, view)?;
            }
            self.collect(false)?;
        }
        Ok(self.heads.head == head)
    }

    /// Moves the heads so that a killed process finds the head again: the log says which it is, and holds what leads to it from the
    /// store. What does not only rise (another branch below the safe block, a lower head) is stored before it is acknowledged, so that
    /// a head in the log that is not above the stored one is an old one.
    pub(super) fn move_heads(&mut self, heads: Heads, view: Arc<View>) -> Result<(), ChainError> {
        let old = self.heads;
        if view.hash_of(old.head.number).map_err(ChainError::store)? != Some(old.head.hash) {
            // Some of it may be on its way to the store.
            self.log_adopted(old.head.hash)?;
        }
        self.log_adopted(heads.head.hash)?;
        // Else nothing is left that was not left before.
        if view.stored().number < self.head.stored().number {
            self.log_abandoned(view.stored().number)?;
        }
        if heads.head != old.head {
            self.log_head(heads.head)?;
        }
        let mut rises = heads.head == old.head || heads.head.number > old.head.number;
        for (old, new) in [(old.safe, heads.safe), (old.finalized, heads.finalized)] {
            if let Some(old) = old {
                rises &= new.is_some_and(|new| new.number >= old.number);
                rises &= view.hash_of(old.number).map_err(ChainError::store)? == Some(old.hash);
            }
        }
        self.set_heads(heads, view)?;
        if rises { Ok(()) } else { self.idle() }
    }

    /// Waits until nothing is being stored.
    pub(super) fn idle(&mut self) -> Result<(), ChainError> {
        while self.persisting {
            self.collect(true)?;
        }
        Ok(())
    }
}
