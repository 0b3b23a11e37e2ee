//! Memtables: rows that are committed but not yet in tables.
//!
//! fjall rotates full memtables on the thread that also compacts, so memtables would grow for as
//! long as a compaction takes. fjall also queues the rotations in a bounded channel that only this
//! thread empties: a long compaction could fill the queue and block the thread for good. The writer
//! therefore rotates memtables itself, keyspace by keyspace, and fjall flushes them in the
//! background. The writer also flushes sealed memtables once all memtables together exceed
//! [`BUDGET`], or once a keyspace has [`MAX_SEALED`] sealed ones, usually because of a compaction.
//! The writer waits only when L0 of a keyspace is so far behind that reads would suffer and fjall
//! would soon stall all writes. The writer is the persister, and the executor bounds its backlog.

use crate::chain::store::{Space, StoreInner, space::L0_TABLES};
use fjall::PersistMode;
use lsm_tree::AbstractTree;
use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

/// Number of L0 tables of a keyspace above which its compaction is behind.
const L0_BEHIND: usize = 2 * L0_TABLES as usize;
/// Bytes of all memtables, sealed ones included, above which the writer flushes sealed ones: about
/// the size of all memtables while none is being flushed. The bytes are counted in this file, since
/// fjall counts neither the nodes of its skip lists nor the overhead of an allocation, which
/// doubles the size of short rows. A compaction also pins the memtables that its keyspace had when
/// it began, usually one. With a budget of 60 MB and the default cache, a node with a long chain
/// used 300 MB once in half an hour.
const BUDGET: u64 = 48 << 20;
/// Number of sealed memtables of a keyspace from which the writer flushes them whatever their size.
/// With one more, fjall would make writers sleep.
const MAX_SEALED: usize = 3;
/// Longest wait for fjall after one batch. If fjall has stopped on an error, the next batch returns
/// that error.
const LONGEST_WAIT: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(2);
/// Estimated bytes that a row uses in a memtable beside its key and its value: a skip list node and
/// two allocations.
const ROW_OVERHEAD: usize = 140;

/// Bytes in the memtables of each keyspace.
#[derive(Default)]
pub(super) struct Memtables {
    /// Bytes of the active memtable of each keyspace.
    active: [AtomicU64; Space::ALL.len()],
    /// Bytes of the sealed memtables of each keyspace; meaningless while a keyspace has none.
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
    /// Size in bytes at which a memtable is rotated, given the number of L0 tables. fjall makes one
    /// compaction step per flush. A large state with many levels needs more steps when blocks come
    /// at full speed, and from thirty L0 tables on fjall would stall writes and wait for a step
    /// that is never requested. Smaller memtables mean more flushes, and so more steps.
    fn memtable_size(self, l0_tables: usize) -> u64 {
        let bytes = match self {
            // Keys of state are spread evenly, so each compaction of L0 rewrites all of L1.
            Self::State => 24 << 20,
            Self::History => 16 << 20,
            _ => 4 << 20,
        };
        if l0_tables > L0_BEHIND {
            bytes / 4
        } else {
            bytes
        }
    }
}

impl StoreInner {
    /// Counts a committed batch, rotates full memtables, and flushes sealed ones while they exceed
    /// the budget. After an error the database must not be used any more.
    pub(super) fn count_batch(&self, batch: &Weights) -> Result<(), fjall::Error> {
        self.remove_obsolete_files();
        for space in Space::ALL {
            let added = batch.0[space as usize];
            let bytes =
                self.memtables.active[space as usize].fetch_add(added, Ordering::Relaxed) + added;
            if bytes >= space.memtable_size(self.spaces[space as usize].tree.l0_run_count()) {
                self.seal(space)?;
            }
        }
        let started = Instant::now();
        while self.over_budget() && started.elapsed() < LONGEST_WAIT {
            match self.fullest() {
                Some(space) => self.flush_sealed(space)?,
                None => std::thread::sleep(POLL),
            }
        }
        Ok(())
    }

    /// The keyspace with the most sealed bytes, among those whose compaction keeps up.
    fn fullest(&self) -> Option<Space> {
        let keeps_up =
            |space: &Space| self.spaces[*space as usize].tree.l0_run_count() <= L0_BEHIND;
        let has_sealed = |space: &Space| self.spaces[*space as usize].sealed_memtable_count() > 0;
        Space::ALL
            .into_iter()
            .filter(has_sealed)
            .filter(keeps_up)
            .max_by_key(|space| self.sealed(*space))
    }

    /// Flushes the sealed memtables of a keyspace. fjall's thread then finds nothing to flush, and
    /// compacts.
    fn flush_sealed(&self, space: Space) -> Result<(), fjall::Error> {
        // Sync the journal first. Otherwise a power cut could leave a batch in this keyspace's
        // table alone, and lose its rows in the other keyspaces with the journal.
        self.db.persist(PersistMode::SyncAll)?;
        let tree = &self.spaces[space as usize].tree;
        tree.flush(
            &tree.get_flush_lock(),
            self.db.supervisor.snapshot_tracker.get_seqno_safe_to_gc(),
        )?;
        Ok(())
    }

    /// Rotates all memtables.
    pub(super) fn rotate_all(&self) -> Result<(), fjall::Error> {
        self.remove_obsolete_files();
        Space::ALL
            .into_iter()
            .try_for_each(|space| self.seal(space))
    }

    /// Rotates the memtable of a keyspace.
    fn seal(&self, space: Space) -> Result<(), fjall::Error> {
        let before = self.sealed(space);
        self.spaces[space as usize].rotate_memtable()?;
        let bytes = self.memtables.active[space as usize].swap(0, Ordering::Relaxed);
        self.memtables.sealed[space as usize].store(before + bytes, Ordering::Relaxed);
        Ok(())
    }

    /// Bytes of a keyspace's sealed memtables.
    fn sealed(&self, space: Space) -> u64 {
        match self.spaces[space as usize].sealed_memtable_count() {
            0 => 0,
            _ => self.memtables.sealed[space as usize].load(Ordering::Relaxed),
        }
    }

    /// Whether the writer must flush sealed memtables.
    fn over_budget(&self) -> bool {
        let active: u64 = self
            .memtables
            .active
            .iter()
            .map(|held| held.load(Ordering::Relaxed))
            .sum();
        let sealed: u64 = Space::ALL.into_iter().map(|space| self.sealed(space)).sum();
        let too_many = self
            .spaces
            .iter()
            .any(|space| space.sealed_memtable_count() >= MAX_SEALED);
        too_many || (sealed > 0 && active + sealed > BUDGET)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chain::store::{Store, StoreBatch, tests::create};

    fn put(store: &Store, key: u64, bytes: usize) {
        let mut batch = StoreBatch::new(&store.0);
        batch.put(Space::State, key.to_be_bytes(), vec![1; bytes]);
        batch.commit(store.head()).unwrap();
    }

    fn tables(store: &Store, space: Space) -> usize {
        store.0.spaces[space as usize].tree.l0_run_count()
    }

    /// Runs `check` while fjall's thread is blocked.
    fn while_fjall_is_busy(store: &Store, check: impl FnOnce()) {
        let code = &store.0.spaces[Space::Code as usize];
        let lock = code.tree.get_flush_lock();
        assert!(
            code.rotate_memtable().unwrap(),
            "there is something to flush"
        );
        check();
        drop(lock);
    }

    #[test]
    fn memtables_are_rotated_sooner_when_compaction_falls_behind() {
        for space in Space::ALL {
            assert_eq!(space.memtable_size(L0_BEHIND), space.memtable_size(0));
            assert_eq!(
                space.memtable_size(L0_BEHIND + 1),
                space.memtable_size(0) / 4
            );
        }
    }

    #[test]
    fn the_writer_flushes_while_fjall_is_busy() {
        let dir = tempfile::tempdir().unwrap();
        let store = create(dir.path());
        while_fjall_is_busy(&store, || {
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
    fn the_writer_waits_when_compaction_falls_behind() {
        let dir = tempfile::tempdir().unwrap();
        let store = create(dir.path());
        while_fjall_is_busy(&store, || {
            while tables(&store, Space::State) <= L0_BEHIND {
                put(&store, 0, 1 << 10);
                store.0.seal(Space::State).unwrap();
                assert_eq!(store.0.fullest(), Some(Space::State));
                store.0.flush_sealed(Space::State).unwrap();
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
