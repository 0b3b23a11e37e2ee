//! The write buffers: what is committed but not in tables yet.
//!
//! The engine turns full memtables over on the thread that also merges, and asks for it by a bounded queue that the same thread
//! empties: they would grow for as long as a merge takes, and a long one could fill the queue and stop the thread for good. So the
//! writer turns them over itself, keyspace by keyspace. The engine writes them out to tables, beside the writer. Where it has not come to
//! that, mostly for a merge, and more is in memory than the budget, the writer does that too, and no merge makes it wait; unless so much
//! is written out and not merged that reads would suffer, and soon the engine would stop all writes: then it waits for the engine. The
//! writer is the persister: its back-pressure is what the executor may keep unstored.

use crate::chain::store::{Inner, Space, space::GATHERED_TABLES};
use fjall::{AbstractTree, PersistMode};
use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

/// Written out tables of a keyspace above which merging falls behind.
const BEHIND: usize = 2 * GATHERED_TABLES as usize;
/// Bytes of all memtables, full ones included, above which the writer writes the full ones out: about what they hold when none is being
/// written out. Counted here and not by the engine, which counts neither the nodes of its lists nor what an allocation costs: for the
/// short rows of trie history that is as much again. A merge holds those that its keyspace had when it began until it ends, mostly one
/// more: with a budget of 60 MB the node of a long chain comes to 300 MB once in half an hour, with the default cache.
const BUDGET: u64 = 48 << 20;
/// Full memtables of a keyspace that are written out in any case: with one more, the engine makes writers sleep.
const QUEUED: usize = 3;
/// Longest wait for the engine after one batch. It may have stopped on an error, which the next batch is told.
const LONGEST_WAIT: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(2);
/// Bytes that a row takes in a memtable beside its key and its value: a node of the list, and two allocations.
const ROW_OVERHEAD: usize = 140;

/// Bytes that the memtables of each keyspace hold.
#[derive(Default)]
pub(super) struct Buffers {
    /// The one that is written to.
    active: [AtomicU64; Space::ALL.len()],
    /// The full ones, as long as there are any.
    sealed: [AtomicU64; Space::ALL.len()],
}

/// Bytes of a batch, by keyspace.
#[derive(Clone, Copy, Default)]
pub(super) struct Weights([u64; Space::ALL.len()]);

impl Weights {
    pub fn add(&mut self, space: Space, key: &[u8], value: Option<&[u8]>) {
        self.0[space as usize] += (key.len() + value.map_or(0, <[u8]>::len) + ROW_OVERHEAD) as u64;
    }
}

impl Space {
    /// Bytes at which a memtable is written out, with so many written out and not merged. The engine merges one step for each that is
    /// written out: a state of many levels needs more steps than that when blocks come at full speed, and with thirty tables unmerged the
    /// engine would wait for a step that nothing asks for any more.
    fn memtable(self, unmerged: usize) -> u64 {
        let bytes = match self {
            // Its keys are spread evenly, so that each compaction of what was written out rewrites all of the next level.
            Self::State => 24 << 20,
            Self::History => 16 << 20,
            _ => 4 << 20,
        };
        if unmerged > BEHIND { bytes / 4 } else { bytes }
    }
}

impl Inner {
    /// Counts a batch that was committed, and turns the memtables over that are full. After an error the memtables are as they were, but
    /// the engine should not be used any more.
    pub(super) fn buffered(&self, batch: &Weights) -> Result<(), fjall::Error> {
        self.remove_retired();
        for space in Space::ALL {
            let added = batch.0[space as usize];
            let bytes =
                self.buffers.active[space as usize].fetch_add(added, Ordering::Relaxed) + added;
            if bytes >= space.memtable(self.spaces[space as usize].tree.l0_run_count()) {
                self.seal(space)?;
            }
        }
        let begun = Instant::now();
        while self.over_budget() && begun.elapsed() < LONGEST_WAIT {
            match self.fullest() {
                Some(space) => self.write_out(space)?,
                None => std::thread::sleep(POLL),
            }
        }
        Ok(())
    }

    /// The keyspace that has most to be written out, of those whose merges keep up.
    fn fullest(&self) -> Option<Space> {
        let keeps_up = |space: &Space| self.spaces[*space as usize].tree.l0_run_count() <= BEHIND;
        let full = |space: &Space| self.spaces[*space as usize].sealed_memtable_count() > 0;
        Space::ALL
            .into_iter()
            .filter(full)
            .filter(keeps_up)
            .max_by_key(|space| self.sealed(*space))
    }

    /// Writes the full memtables of a keyspace out. The engine then finds nothing to write, and merges.
    fn write_out(&self, space: Space) -> Result<(), fjall::Error> {
        // No keyspace may have a batch on the disk of which the journal, and with it the others, could lose the rest.
        self.db.persist(PersistMode::SyncAll)?;
        let tree = &self.spaces[space as usize].tree;
        tree.flush(
            &tree.get_flush_lock(),
            self.db.supervisor.snapshot_tracker.get_seqno_safe_to_gc(),
        )?;
        Ok(())
    }

    /// Turns all memtables over.
    pub(super) fn turn_over(&self) -> Result<(), fjall::Error> {
        self.remove_retired();
        Space::ALL
            .into_iter()
            .try_for_each(|space| self.seal(space))
    }

    fn seal(&self, space: Space) -> Result<(), fjall::Error> {
        let before = self.sealed(space);
        self.spaces[space as usize].rotate_memtable()?;
        let bytes = self.buffers.active[space as usize].swap(0, Ordering::Relaxed);
        self.buffers.sealed[space as usize].store(before + bytes, Ordering::Relaxed);
        Ok(())
    }

    /// Bytes of a keyspace's full memtables.
    fn sealed(&self, space: Space) -> u64 {
        match self.spaces[space as usize].sealed_memtable_count() {
            0 => 0,
            _ => self.buffers.sealed[space as usize].load(Ordering::Relaxed),
        }
    }

    /// Whether memtables hold too much, and some are to be written out.
    fn over_budget(&self) -> bool {
        let active: u64 = self
            .buffers
            .active
            .iter()
            .map(|held| held.load(Ordering::Relaxed))
            .sum();
        let sealed: u64 = Space::ALL.into_iter().map(|space| self.sealed(space)).sum();
        let queued = self
            .spaces
            .iter()
            .any(|space| space.sealed_memtable_count() >= QUEUED);
        queued || (sealed > 0 && active + sealed > BUDGET)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chain::store::{Batch, Store, tests::create};

    fn put(store: &Store, key: u64, bytes: usize) {
        let mut batch = Batch::new(&store.0);
        batch.put(Space::State, key.to_be_bytes(), vec![1; bytes]);
        batch.commit(store.head()).unwrap();
    }

    fn tables(store: &Store, space: Space) -> usize {
        store.0.spaces[space as usize].tree.l0_run_count()
    }

    /// While it runs, the engine's thread stands still.
    fn while_engine_is_busy(store: &Store, check: impl FnOnce()) {
        let code = &store.0.spaces[Space::Code as usize];
        let lock = code.tree.get_flush_lock();
        assert!(
            code.rotate_memtable().unwrap(),
            "there is something to write out"
        );
        check();
        drop(lock);
    }

    #[test]
    fn merging_that_falls_behind_is_asked_for_more_often() {
        for space in Space::ALL {
            assert_eq!(space.memtable(BEHIND), space.memtable(0));
            assert_eq!(space.memtable(BEHIND + 1), space.memtable(0) / 4);
        }
    }

    #[test]
    fn the_writer_writes_out_what_a_busy_engine_leaves() {
        let dir = tempfile::tempdir().unwrap();
        let store = create(dir.path());
        while_engine_is_busy(&store, || {
            let before = tables(&store, Space::State);
            for key in 0..(2 * BUDGET) >> 20 {
                put(&store, key, 1 << 20);
                assert!(!store.0.over_budget(), "{key}");
            }
            assert!(tables(&store, Space::State) > before);
        });
        let snapshot = store.0.db.snapshot();
        for key in 0..(2 * BUDGET) >> 20 {
            let row = crate::chain::store::get(
                &snapshot,
                &store.0.spaces[Space::State as usize],
                &key.to_be_bytes(),
            )
            .unwrap();
            assert_eq!(row.map(|row| row.len()), Some(1 << 20), "{key}");
        }
    }

    #[test]
    fn the_writer_waits_for_merges_that_fall_behind() {
        let dir = tempfile::tempdir().unwrap();
        let store = create(dir.path());
        while_engine_is_busy(&store, || {
            while tables(&store, Space::State) <= BEHIND {
                put(&store, 0, 1 << 10);
                store.0.seal(Space::State).unwrap();
                assert_eq!(store.0.fullest(), Some(Space::State));
                store.0.write_out(Space::State).unwrap();
            }
            put(&store, 0, 1 << 10);
            store.0.seal(Space::State).unwrap();
            assert_eq!(
                store.0.spaces[Space::State as usize].sealed_memtable_count(),
                1
            );
            assert_ne!(store.0.fullest(), Some(Space::State));
        });
    }
}
