//! Obsolete files: tables that a compaction has replaced, and their removal by the writer.
//!
//! lsm-tree removes a table's file when its last reference is dropped, and drops its own reference
//! under the lock that every read of the keyspace needs. Removing a large file takes tens of
//! milliseconds on a file system that discards free space, and a compaction replaces a dozen files:
//! reads of the executor would wait for all of them. The writer therefore keeps references to the
//! tables of each version that lsm-tree still knows, and drops these references after lsm-tree has
//! dropped its own. The files are then removed while no lock is held. lsm-tree still syncs its own
//! manifests under the lock.

use crate::chain::store::{Space, StoreInner};
use lsm_tree::AbstractTree;
use parking_lot::Mutex;
use std::collections::VecDeque;

/// A version of a keyspace's list of tables.
struct HeldVersion {
    /// The version's number in lsm-tree.
    id: u64,
    /// References to the version's tables, which keep the files on disk.
    _tables: Box<dyn Send>,
}

/// Versions held of each keyspace, oldest first.
#[derive(Default)]
pub(super) struct ObsoleteFiles([Mutex<VecDeque<HeldVersion>>; Space::ALL.len()]);

impl StoreInner {
    /// References the files of new versions, and drops the references to versions that lsm-tree has
    /// dropped.
    pub(super) fn remove_obsolete_files(&self) {
        for space in Space::ALL {
            let tree = &self.spaces[space as usize].tree;
            // Read `current` first: a version created in between is then kept until the next call
            // instead of dropped too early.
            let (current, earlier) = (tree.current_version(), tree.version_free_list_len() as u64);
            let mut held = self.obsolete.0[space as usize].lock();
            let newest = current.id();
            if held.back().is_none_or(|last| last.id < newest) {
                held.push_back(HeldVersion {
                    id: newest,
                    _tables: Box::new(current),
                });
            }
            while held
                .pop_front_if(|oldest| oldest.id + earlier < newest)
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

    /// Writes a row to every keyspace directly, bypassing the writer and its removal of files.
    fn batch(store: &Store) {
        let mut batch = store.0.db.batch();
        store
            .0
            .spaces
            .iter()
            .for_each(|space| batch.insert(space, "x", "y"));
        batch.commit().unwrap();
    }

    /// The table files of the state keyspace.
    fn files(store: &Store) -> BTreeSet<PathBuf> {
        let folder = store.0.spaces[Space::State as usize].path().join("tables");
        folder
            .read_dir()
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .collect()
    }

    /// A store whose state is in a few tables.
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
        let compacted = tree.current_version().id();
        store.0.spaces[Space::State as usize]
            .major_compact()
            .unwrap();
        // lsm-tree drops replaced versions when it flushes the next memtables, unless a snapshot
        // still reads them.
        for _ in 0..2 {
            batch(&store);
            store
                .0
                .spaces
                .iter()
                .for_each(|space| space.rotate_memtable_and_wait().unwrap());
        }
        let oldest = tree.current_version().id() - tree.version_free_list_len() as u64;
        assert!(oldest > compacted, "{oldest} of {compacted}");
        assert!(files(&store).is_superset(&before), "fjall removes nothing");
        store.0.remove_obsolete_files();
        assert!(files(&store).is_disjoint(&before), "{before:?}");
    }

    #[test]
    fn an_old_snapshot_keeps_no_more_versions_than_lsm_tree_does() {
        let dir = tempfile::tempdir().unwrap();
        let store = spread(dir.path());
        let mut pin = store.snapshot().unwrap();
        for _ in 0..20 {
            commit(&store);
            store.rotate_within(Duration::from_secs(60)).unwrap();
            commit(&store);
            // The new snapshot is taken before the old one is dropped, so one always exists.
            pin = store.snapshot().unwrap();
            let held = store.0.obsolete.0[Space::State as usize].lock().len();
            let known = store.0.spaces[Space::State as usize]
                .tree
                .version_free_list_len()
                + 1;
            assert!(held <= known, "{held} of {known}");
        }
        drop(pin);
    }
}
