//! The executor's side of the persister: it hands over blocks, handles finished commits, and keeps
//! the memory of executed blocks within its budget.
//!
//! One piece of work is in progress at a time, so the blocks executed meanwhile form the next
//! commit. When a commit has finished, the tree and the payload log are pruned, and the head's view
//! is rebuilt on the new snapshot.

use super::{Executor, is_stored};
use crate::chain::{
    ChainError, Heads,
    persister::{PersistReport, PersistResult, PersistWork},
    store::Snapshot,
    tree::Branch,
};
use alloy_primitives::B256;
use std::sync::mpsc::TryRecvError;

/// Blocks below the store's head that stay in the payload log: a restarted sequencer may have to
/// publish them again.
const LOG_RETAINED: u64 = 1024;
/// Blocks between two prunings of the payload log.
const LOG_PRUNE_EVERY: u64 = 256;

impl Executor {
    /// Hands the persister the blocks between the store's heads and ours, if no commit is in
    /// progress.
    pub(super) fn persist(&mut self) -> Result<(), ChainError> {
        let Heads {
            head,
            safe,
            finalized,
            ..
        } = self.heads;
        let stored = (
            self.snapshot.head(),
            self.snapshot.safe(),
            self.snapshot.finalized(),
        );
        if self.persisting || stored == (head, safe, finalized) {
            return Ok(());
        }
        let Branch { base, blocks } = self.branch(head)?;
        self.send_work(PersistWork {
            unwind_to: base.number,
            blocks,
            safe,
            finalized,
        })
    }

    pub(super) fn send_work(&mut self, work: PersistWork) -> Result<(), ChainError> {
        self.work.send(work).map_err(|_| ChainError::Stopped)?;
        self.persisting = true;
        Ok(())
    }

    /// Handles a report of the persister, if there is one: a finished commit or a longer index.
    pub(super) fn poll_commit(&mut self) -> Result<(), ChainError> {
        match self.done.try_recv() {
            Ok(result) => self.on_report(result),
            Err(TryRecvError::Empty) => Ok(()),
            Err(TryRecvError::Disconnected) => Err(ChainError::Stopped),
        }
    }

    /// Waits for the persister's next report and handles it. The report may be a longer index
    /// instead of the commit in progress.
    fn wait_for_report(&mut self) -> Result<(), ChainError> {
        let result = self.done.recv().map_err(|_| ChainError::Stopped)?;
        self.on_report(result)
    }

    /// Waits until no commit is in progress and none is needed.
    pub(super) fn finish_commits(&mut self) -> Result<(), ChainError> {
        while self.persisting {
            self.wait_for_report()?;
        }
        Ok(())
    }

    fn on_report(&mut self, result: PersistResult) -> Result<(), ChainError> {
        match result? {
            PersistReport::Stored(snapshot) => self.on_committed(snapshot),
            PersistReport::Indexed(snapshot) => self.on_indexed(snapshot),
        }
    }

    /// Publishes a view with the longer index. A commit may be in progress: its report is still to
    /// come.
    fn on_indexed(&mut self, snapshot: Snapshot) -> Result<(), ChainError> {
        self.snapshot = snapshot;
        self.cached_view.take();
        self.renew_head_view()?;
        self.publish();
        Ok(())
    }

    /// Rebuilds the head's view on the new snapshot, and hands the persister the blocks executed
    /// meanwhile.
    fn on_committed(&mut self, snapshot: Snapshot) -> Result<(), ChainError> {
        self.persisting = false;
        self.snapshot = snapshot;
        self.cached_view.take();
        // The head may be on a branch that forks off far below the store's head. Prune below that
        // fork point only, so that the blocks leading to the head stay.
        let base = self.branch(self.heads.head)?.base.number;
        let snapshot = &self.snapshot;
        let dropped = self.tree.prune(base, |id| is_stored(snapshot, id))?;
        self.on_dropped(&dropped);
        self.prune_log(base)?;
        self.renew_head_view()?;
        self.publish();
        self.head.release();
        self.persist()
    }

    /// Prunes the payload log below `base`, the newest stored block on the head's branch, and below
    /// the fork point of a displaced head.
    fn prune_log(&mut self, base: u64) -> Result<(), ChainError> {
        let stored = self.snapshot.head().number;
        if stored < self.log_pruned.saturating_add(LOG_PRUNE_EVERY) {
            return Ok(());
        }
        let lowest = self
            .displaced
            .fork()
            .map_or(base, |fork| fork.min(base))
            .min(stored);
        self.log.prune(lowest.saturating_sub(LOG_RETAINED))?;
        self.log.rotate()?;
        self.log_pruned = stored;
        Ok(())
    }

    /// Rebuilds the head's view on the new snapshot. If that is impossible, the stored head becomes
    /// the head.
    fn renew_head_view(&mut self) -> Result<(), ChainError> {
        // If we switched branches during this commit, the head's view needs the unwind data of the
        // blocks just committed. Do not limit its size here: a view over the limit is not made, and
        // the head would be lost.
        if let Some(view) = self.make_view_within(&self.heads, usize::MAX)? {
            self.head = view;
            return Ok(());
        }
        // The commit may have pruned unwind records above the fork point of our head's branch.
        let head = self.snapshot.head();
        tracing::error!(lost = %self.heads.head, stored = %head, "the head cannot be reached any more: the stored one is the head");
        let mut heads = Heads {
            head,
            timestamp: 0,
            safe: self.snapshot.safe(),
            finalized: self.snapshot.finalized(),
        };
        let view = self.make_view(&heads)?;
        let view = view.ok_or(ChainError::UnknownBlock(head.hash))?;
        heads.timestamp = view.header().timestamp;
        (self.heads, self.head, self.derived) = (heads, view, None);
        Ok(())
    }

    /// Waits for the persister while executed blocks exceed their memory budget. If everything is
    /// stored and the budget is still exceeded, the excess is side branches. They are dropped if
    /// `parent` is the head; otherwise this returns false.
    pub(super) fn wait_for_memory(&mut self, parent: B256) -> Result<bool, ChainError> {
        while self.tree.weight_above(self.snapshot.head().number) > self.limits.overlays {
            if self.persisting {
                self.wait_for_report()?;
            } else if parent == self.heads.head.hash {
                self.drop_side_branches(self.snapshot.head().number);
                break;
            } else {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Drops all blocks above this height that are not on the head's branch.
    pub(super) fn drop_side_branches(&mut self, above: u64) {
        let dropped = self.tree.keep_branch(above, self.heads.head.hash);
        tracing::warn!(
            blocks = dropped.len(),
            "blocks on side branches are dropped"
        );
        self.on_dropped(&dropped);
    }

    /// If height `number` is full, drops the oldest block there that is not on the head's branch.
    pub(super) fn drop_oldest_sibling(&mut self, number: u64) {
        let dropped = self.tree.drop_oldest_sibling(number, self.heads.head.hash);
        self.on_dropped(&dropped);
    }

    /// Removes blocks that have left the tree from the known and the unlogged blocks.
    fn on_dropped(&mut self, hashes: &[B256]) {
        let mut known = self.shared.known.write();
        for hash in hashes {
            known.remove(hash);
            self.unlogged.remove(hash);
        }
    }
}
