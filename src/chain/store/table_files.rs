//! Table files, checked against the checksums in the manifest.
//!
//! A table's blocks have their own checksums, so damage inside a file is noticed when it is read.
//! An outdated file under the right name is not noticed: its blocks are intact, but its rows are
//! wrong. Such a file is possible, since the number of a table whose writing was interrupted by a
//! kill is used again after the restart. `starling db verify` therefore reads all files.

use crate::chain::store::{Space, Store};
use fjall::Keyspace;
use lsm_tree::AbstractTree;
use std::{
    fs::File,
    io::{self, BufReader, Read},
    path::{Path, PathBuf},
};
use xxhash_rust::xxh3::Xxh3;

impl Store {
    /// All table files that do not match their checksum. Reads every table, and reports the bytes
    /// of each to `progress`.
    pub fn damaged_tables(&self, mut progress: impl FnMut(u64)) -> io::Result<Vec<PathBuf>> {
        let mut damaged = vec![];
        for space in Space::ALL {
            let keyspace = &self.0.spaces[space as usize];
            damaged.extend(damaged_tables(keyspace, &mut progress)?);
        }
        Ok(damaged)
    }
}

/// The table files of a keyspace that do not match their checksum. Reports the bytes of each table
/// to `progress`.
fn damaged_tables(keyspace: &Keyspace, mut progress: impl FnMut(u64)) -> io::Result<Vec<PathBuf>> {
    // lsm-tree removes no file of this version until `version` is dropped.
    let version = keyspace.tree.current_version();
    let mut damaged = vec![];
    for table in version.iter_tables() {
        let path = keyspace.path().join("tables").join(table.id().to_string());
        if checksum_of(&path)? != table.checksum().into_u128() {
            damaged.push(path.clone());
        }
        progress(path.metadata()?.len());
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
        Space,
        tests::{block, create},
    };
    use std::time::Duration;

    #[test]
    fn a_table_file_that_is_not_what_was_written_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let store = create(dir.path());
        store.commit(&[block(store.head())], None, None).unwrap();
        store.rotate_within(Duration::from_secs(60)).unwrap();
        assert!(store.damaged_tables(|_| {}).unwrap().is_empty());
        let folder = store.0.spaces[Space::State as usize].path().join("tables");
        let table = folder.read_dir().unwrap().next().unwrap().unwrap().path();
        let mut bytes = std::fs::read(&table).unwrap();
        bytes[10] ^= 1;
        std::fs::write(&table, bytes).unwrap();
        assert_eq!(store.damaged_tables(|_| {}).unwrap(), [table]);
    }
}
