//! Table files, held against the checksums that the manifest has for them.
//!
//! A table's blocks have checksums of their own, so damage inside a file is noticed when it is read.
//! A whole file of an earlier time is not: its blocks are intact, and their rows are wrong. The
//! number of a table whose writing a kill interrupted is used again after the restart, so such a file
//! may have the name of a newer one. Opening a store therefore checks the newest tables of each
//! keyspace, within [`CHECKED_AT_OPEN`]; `starling db verify` checks them all.

use crate::chain::store::{Space, Store};
use fjall::Keyspace;
use lsm_tree::AbstractTree;
use std::{
    fs::File,
    io::{self, BufReader, Read},
    path::{Path, PathBuf},
};
use xxhash_rust::xxh3::Xxh3;

/// Bytes of table files that are checked of each keyspace when a store is opened. Read from the page
/// cache after a kill, they take a few milliseconds.
const CHECKED_AT_OPEN: u64 = 8 << 20;

/// The first table file that is not what was written among the newest tables of each keyspace.
pub(super) fn newest_damaged(spaces: &[Keyspace]) -> io::Result<Option<PathBuf>> {
    for space in spaces {
        let damaged = damaged_tables(space, CHECKED_AT_OPEN, |_| {})?;
        if let Some(file) = damaged.into_iter().next() {
            return Ok(Some(file));
        }
    }
    Ok(None)
}

impl Store {
    /// All table files that are not what was written. Reads every table; `progress` gets the bytes of
    /// each.
    pub fn damaged_tables(&self, mut progress: impl FnMut(u64)) -> io::Result<Vec<PathBuf>> {
        let mut damaged = vec![];
        for space in Space::ALL {
            let keyspace = &self.0.spaces[space as usize];
            damaged.extend(damaged_tables(keyspace, u64::MAX, &mut progress)?);
        }
        Ok(damaged)
    }
}

/// Table files of a keyspace that are not what was written, newest first. Ends before the table that
/// exceeds `limit` bytes in all; `progress` gets the bytes of each.
fn damaged_tables(
    keyspace: &Keyspace,
    limit: u64,
    mut progress: impl FnMut(u64),
) -> io::Result<Vec<PathBuf>> {
    // The version keeps its files until it is dropped.
    let version = keyspace.tree.current_version();
    let mut tables: Vec<_> = version
        .iter_tables()
        .map(|table| (table.id(), table.checksum().into_u128()))
        .collect();
    tables.sort_unstable_by_key(|(id, _)| std::cmp::Reverse(*id));
    let (mut damaged, mut read) = (vec![], 0u64);
    for (id, checksum) in tables {
        let path = keyspace.path().join("tables").join(id.to_string());
        let length = path.metadata()?.len();
        read = read.saturating_add(length);
        if read > limit {
            break;
        }
        if checksum_of(&path)? != checksum {
            damaged.push(path);
        }
        progress(length);
    }
    Ok(damaged)
}

/// XXH3 of a whole file, 128 bits.
fn checksum_of(path: &Path) -> io::Result<u128> {
    let mut file = BufReader::with_capacity(1 << 20, File::open(path)?);
    let (mut hasher, mut buffer) = (Xxh3::new(), vec![0; 1 << 16]);
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(hasher.digest128()),
            length => hasher.update(&buffer[..length]),
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::chain::store::{
        Space, Store, StoreError,
        tests::{block, create},
    };
    use std::{
        path::{Path, PathBuf},
        time::Duration,
    };

    /// A closed store of `blocks` blocks, and the newest table file of its state keyspace.
    fn flushed(dir: &Path, blocks: usize) -> PathBuf {
        let store = create(dir);
        for _ in 0..blocks {
            store.commit(&[block(store.head())], None, None).unwrap();
        }
        store.rotate_within(Duration::from_secs(60)).unwrap();
        assert_eq!(store.damaged_tables(|_| {}).unwrap(), [PathBuf::new(); 0]);
        let folder = store.0.spaces[Space::State as usize].path().join("tables");
        let number = |path: &PathBuf| path.file_name()?.to_str()?.parse::<u64>().ok();
        folder
            .read_dir()
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .max_by_key(number)
            .expect("a table")
    }

    #[test]
    fn an_intact_table_with_other_rows_is_noticed_at_open() {
        let (dir, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (newest, of_other) = (flushed(dir.path(), 1), flushed(other.path(), 2));
        assert_eq!(newest.file_name(), of_other.file_name());
        let written = std::fs::read(&newest).unwrap();
        std::fs::copy(&of_other, &newest).unwrap();
        match Store::open(dir.path(), 4 << 20, None).map(|_| ()) {
            Err(StoreError::Damaged { what, .. }) => {
                assert!(what.contains(newest.to_str().unwrap()), "{what}");
            }
            other => panic!("{other:?}"),
        }
        std::fs::write(&newest, written).unwrap();
        Store::open(dir.path(), 4 << 20, None).expect("the file is restored");
    }
}
