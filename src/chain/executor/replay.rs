//! The replay of the payload log: after a kill it executes the blocks again that were logged but
//! not stored, and restores the logged head, which may be a displaced one.

use super::{Executor, forkchoice::SafeHeads};
use crate::chain::{
    ChainError, Inserted,
    execute::Preparation,
    payload_log::{BUILT, Logged},
    tree,
};
use alloy_primitives::B256;
use starling_proto::payload::BlockId;
use starling_proto::provenance::Provenance;
use std::sync::Arc;

/// The rules by which logged blocks that arrived after the logged head become the head.
#[derive(Clone, Copy)]
struct LaterBlocks {
    /// Arrival number of the first block that was logged after the head.
    first: u64,
    /// The logged head cannot be restored: any later block may become the head, not only one built
    /// here.
    head_lost: bool,
}

impl Executor {
    /// Executes the blocks again that the payload log holds and the store does not, and returns
    /// their number. The branch of the logged head comes first, and becomes the head. The other
    /// blocks follow in order of arrival: side branches, and blocks logged later. A later block
    /// that was built here may already be signed. It therefore becomes the head if it extends the
    /// head, unless another block of the same height and parent was sent to the signer after it.
    /// Runs before any request is served.
    pub fn replay(&mut self) -> Result<usize, ChainError> {
        let mut replayed = 0;
        let mut later = LaterBlocks {
            first: 0,
            head_lost: false,
        };
        if let Some(followed) = self.log.head()? {
            // A head that does not rise is stored before it is acknowledged, so a logged head at or
            // below the stored one is outdated.
            later.head_lost = followed.head.number > self.snapshot.head().number
                && !self.restore(followed.head, &mut replayed)?;
            if !later.head_lost {
                later.first = followed.next;
            }
        }
        // Newer blocks of the log may be on a branch that forks off below the stored head: start
        // further down.
        let lowest = self
            .snapshot
            .head()
            .number
            .min(self.heads.head.number)
            .saturating_sub(tree::RETAINED);
        let head = self.heads.head;
        for (arrival, id) in self.log.arrivals(lowest)? {
            replayed += usize::from(self.replay_one(arrival, id, head, later)?);
        }
        Ok(replayed)
    }

    /// Executes one payload of the log and makes it the head if the rules in `later` allow it.
    /// `head` is the head before the first of these payloads was replayed. Returns false if the
    /// payload was known or cannot be executed.
    fn replay_one(
        &mut self,
        arrival: u64,
        id: BlockId,
        head: BlockId,
        later: LaterBlocks,
    ) -> Result<bool, ChainError> {
        let known = self.tree.get(&id.hash).is_some() || self.stored(&id)?;
        if known && arrival < later.first {
            return Ok(false);
        }
        let Some(Logged { payload, origin }) = self.logged(|log| log.at(arrival), id) else {
            return Ok(false);
        };
        let (timestamp, parent) = (payload.timestamp(), payload.parent_hash());
        if !known {
            let preparation = Preparation::later(Arc::new(payload));
            // A block without a known parent is not an error: pruning may have dropped the lower
            // part of its branch from the log.
            if self.insert(preparation, Provenance::Imported)? != Inserted::Valid {
                return Ok(false);
            }
        }
        let wanted = if origin == BUILT {
            self.is_last_signed(id, parent)?
        } else {
            later.head_lost
        };
        if arrival >= later.first
            && wanted
            && let Some((heads, view)) = self.preferred_heads(id, timestamp)?
            && view.hash_of(head.number)? == Some(head.hash)
        {
            self.set_heads(heads, view)?;
        }
        self.poll_commit()?;
        Ok(!known)
    }

    /// Whether this block was the last one of its height and parent to be sent to the signer.
    fn is_last_signed(&self, id: BlockId, parent: B256) -> Result<bool, ChainError> {
        let guards = self.log.guards(id.number, parent)?;
        Ok(guards.last().is_none_or(|last| last.hash == id.hash))
    }

    /// Makes a logged block the head again. Returns false if that is impossible: a block between it
    /// and the store is not in the log or not valid, the store cannot be unwound to the fork point,
    /// or the fork choice prefers another head.
    pub(super) fn restore(
        &mut self,
        head: BlockId,
        replayed: &mut usize,
    ) -> Result<bool, ChainError> {
        self.finish_commits()?;
        let (mut path, mut at) = (Vec::new(), head);
        while !self.stored(&at)? {
            let Some(logged) = self.logged(|log| log.by_hash(at.hash), at) else {
                return Ok(false);
            };
            path.push(at);
            at = BlockId {
                number: at.number.saturating_sub(1),
                hash: logged.payload.parent_hash(),
            };
        }
        if !self.return_to_fork_point(at)? {
            return Ok(false);
        }
        for id in path.into_iter().rev() {
            // Read payloads again one at a time, since all payloads of a long path would not fit in
            // memory.
            let Some(logged) = self.logged(|log| log.by_hash(id.hash), id) else {
                return Ok(false);
            };
            let timestamp = logged.payload.timestamp();
            let preparation = Preparation::later(Arc::new(logged.payload));
            if self.insert(preparation, Provenance::Imported)? != Inserted::Valid {
                return Ok(false);
            }
            *replayed += 1;
            // Each block becomes the head at once, so that it is stored and its memory freed.
            if let Some((heads, view)) = self.preferred_heads(id, timestamp)? {
                self.set_heads(heads, view)?;
            }
            self.poll_commit()?;
        }
        Ok(self.heads.head == head)
    }

    /// Makes a stored block the head. Returns false if the store cannot be unwound to it. No commit
    /// may be in progress.
    fn return_to_fork_point(&mut self, fork: BlockId) -> Result<bool, ChainError> {
        if fork == self.heads.head {
            return Ok(true);
        }
        let heads = match self.heads_at_stored(fork, SafeHeads::KEPT) {
            Ok(heads) => heads,
            Err(error) if error.is_fatal() => return Err(error),
            Err(_) => return Ok(false),
        };
        match self.make_view(&heads)? {
            Some(view) => self.set_heads(heads, view)?,
            // The unwind data exceeds its budget: unwind the store first.
            None => self.unwind(heads)?,
        }
        Ok(true)
    }
}
