//! Files that a merge has replaced, and who removes them.
//!
//! The engine removes a table when nobody refers to it any more, and drops its own reference under the lock that every read of the
//! keyspace takes. To remove a large file takes tens of milliseconds where the file system tells the disk which space is free, and a
//! merge retires a dozen: the executor's reads would wait for all of them. So the writer holds the tables of each version that the engine
//! still knows, and lets go of them when it no longer does: then it is the last, and holds no lock. The engine's syncs of its own lists
//! are left under it.

use crate::chain::store::{Inner, Space};
use fjall::AbstractTree;
use parking_lot::Mutex;
use std::collections::VecDeque;

/// A list of a keyspace's tables, by the engine's count of such lists, and what keeps their files.
type Version = (u64, Box<dyn Send>);

/// Of each keyspace, oldest first.
#[derive(Default)]
pub(super) struct Retired([Mutex<VecDeque<Version>>; Space::ALL.len()]);

impl Inner {
    /// Takes hold of the files that came since the last call, and removes those that nobody needs.
    pub(super) fn remove_retired(&self) {
        for space in Space::ALL {
            let tree = &self.spaces[space as usize].tree;
            // In this order: a version that comes between the two makes this keep one too many until the next call, not one too few.
            let (current, earlier) = (tree.current_version(), tree.version_free_list_len() as u64);
            let mut held = self.retired.0[space as usize].lock();
            let newest = current.id();
            if held.back().is_none_or(|(id, _)| *id < newest) {
                held.push_back((newest, Box::new(current)));
            }
            while held
                .pop_front_if(|(id, _)| *id + earlier < newest)
                .is_some()
            {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chain::store::{
        Store,
        tests::{block, create},
    };
    use std::{collections::BTreeSet, path::PathBuf, time::Duration};

    fn commit(store: &Store) {
        store.commit(&[block(store.head())], None, None).unwrap();
    }

    /// Rows past the writer.
    fn batch(store: &Store) {
        let mut batch = store.0.db.batch();
        store
            .0
            .spaces
            .iter()
            .for_each(|space| batch.insert(space, "x", "y"));
        batch.commit().unwrap();
    }

    /// The files of tables of the state.
    fn files(store: &Store) -> BTreeSet<PathBuf> {
        let folder = store.0.spaces[Space::State as usize].path().join("tables");
        folder
            .read_dir()
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .collect()
    }

    /// A store whose state lies in a few tables.
    fn spread(dir: &std::path::Path) -> Store {
        let store = create(dir);
        for _ in 0..4 {
            commit(&store);
            store.rotate_within(Duration::from_secs(60)).unwrap();
        }
        commit(&store);
        store
    }

    #[test]
    fn replaced_tables_are_removed_by_the_writer() {
        let dir = tempfile::tempdir().unwrap();
        let store = spread(dir.path());
        let (before, tree) = (files(&store), &store.0.spaces[Space::State as usize].tree);
        assert!(before.len() > 1, "{before:?}");
        let merged = tree.current_version().id();
        store.0.spaces[Space::State as usize]
            .major_compact()
            .unwrap();
        // The engine forgets what it has replaced when it writes out the next memtables, if nobody can read an older state.
        for _ in 0..2 {
            batch(&store);
            store
                .0
                .spaces
                .iter()
                .for_each(|space| space.rotate_memtable_and_wait().unwrap());
        }
        let oldest = tree.current_version().id() - tree.version_free_list_len() as u64;
        assert!(oldest > merged, "{oldest} of {merged}");
        assert!(
            files(&store).is_superset(&before),
            "the engine removes nothing"
        );
        store.0.remove_retired();
        assert!(files(&store).is_disjoint(&before), "{before:?}");
    }

    #[test]
    fn who_reads_an_old_state_keeps_no_more_than_the_engine_does() {
        let dir = tempfile::tempdir().unwrap();
        let store = spread(dir.path());
        let mut pin = store.snapshot().unwrap();
        for _ in 0..20 {
            commit(&store);
            store.rotate_within(Duration::from_secs(60)).unwrap();
            commit(&store);
            // There is always one.
            pin = store.snapshot().unwrap();
            let held = store.0.retired.0[Space::State as usize].lock().len();
            let known = store.0.spaces[Space::State as usize]
                .tree
                .version_free_list_len()
                + 1;
            assert!(held <= known, "{held} of {known}");
        }
        drop(pin);
    }
}
