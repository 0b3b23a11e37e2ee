//! lsm-tree's manifests, the lists of a keyspace's tables.
//!
//! In the folder of each keyspace a file `current` names the newest manifest and contains its
//! checksum. lsm-tree reads the name and ignores the checksum. A flipped bit in a manifest would
//! lead to a panic, an allocation for billions of tables, or a table whose rows have a wrong age.
//!
//! `current`: number u64, XXH3 of the file `v<number>` u128, kind of checksum u8 (0).
//! Little-endian.

use std::{
    fs, io,
    path::{Path, PathBuf},
};
use xxhash_rust::xxh3::xxh3_128;

/// The first missing or damaged `current` file or manifest of a database; `None` if all are intact.
pub fn check(database: &Path) -> io::Result<Option<PathBuf>> {
    let folder = database.join("keyspaces");
    if !folder.is_dir() {
        return Ok(Some(folder));
    }
    let mut keyspaces = folder
        .read_dir()?
        .map(|entry| Ok(entry?.path()))
        .collect::<io::Result<Vec<_>>>()?;
    keyspaces.sort();
    for keyspace in keyspaces.into_iter().filter(|path| path.is_dir()) {
        let number = keyspace
            .file_name()
            .and_then(|name| name.to_str()?.parse::<u64>().ok());
        if number.is_none() {
            return Ok(Some(keyspace));
        }
        if let Some(damaged) = check_keyspace(&keyspace)? {
            return Ok(Some(damaged));
        }
    }
    Ok(None)
}

fn check_keyspace(keyspace: &Path) -> io::Result<Option<PathBuf>> {
    let current = keyspace.join("current");
    let Some(entry) = read(&current)? else {
        // A keyspace whose creation was interrupted has no tables yet.
        let tables = keyspace.join("tables");
        let empty = !tables.is_dir() || tables.read_dir()?.next().is_none();
        return Ok((!empty).then_some(current));
    };
    let Some((number, rest)) = entry.split_first_chunk() else {
        return Ok(Some(current));
    };
    let (Some((sum, [0])), number) = (rest.split_first_chunk(), u64::from_le_bytes(*number)) else {
        return Ok(Some(current));
    };
    let manifest = keyspace.join(format!("v{number}"));
    let intact =
        read(&manifest)?.is_some_and(|bytes| xxh3_128(&bytes) == u128::from_le_bytes(*sum));
    Ok((!intact).then_some(manifest))
}

/// Reads a file; `None` if it does not exist.
fn read(path: &Path) -> io::Result<Option<Vec<u8>>> {
    match fs::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chain::{
        payload_log::PayloadLog,
        store::{Store, StoreError, tests},
        tests::killed,
    };

    /// The manifests of a database, and the `current` files that name them.
    fn manifests(database: &Path) -> Vec<PathBuf> {
        let entries = |path: &Path| {
            path.read_dir()
                .unwrap()
                .map(|entry| entry.unwrap().path())
                .collect::<Vec<_>>()
        };
        let keyspaces = entries(&database.join("keyspaces"));
        let mut files: Vec<_> = keyspaces
            .iter()
            .flat_map(|keyspace| entries(keyspace))
            .filter(|path| path.is_file())
            .collect();
        files.sort();
        files
    }

    /// A flipped bit in any byte of any manifest is refused, and the error names the file.
    #[test]
    fn a_flipped_bit_is_found_before_fjall_sees_it() {
        let dir = tempfile::tempdir().unwrap();
        let store = tests::create(dir.path());
        let first = tests::block(store.head());
        store
            .commit(std::slice::from_ref(&first), None, None)
            .unwrap();
        store.flush().unwrap();
        drop(store);
        drop(PayloadLog::open(&dir.path().join("wal")).unwrap());
        for database in ["chain", "wal"] {
            let database = dir.path().join(database);
            assert_eq!(check(&database).unwrap(), None);
            let files = manifests(&database);
            assert!(files.len() >= 8, "{files:?}");
            for file in &files {
                let sound = fs::read(file).unwrap();
                for at in 0..sound.len() {
                    let mut bytes = sound.clone();
                    bytes[at] ^= 1 << (at % 8);
                    fs::write(file, &bytes).unwrap();
                    assert!(
                        check(&database).unwrap().is_some() || is_stale(file),
                        "byte {at} of {}",
                        file.display()
                    );
                }
                fs::write(file, &sound[..sound.len() - 1]).unwrap();
                assert!(
                    check(&database).unwrap().is_some() || is_stale(file),
                    "the end of {}",
                    file.display()
                );
                fs::remove_file(file).unwrap();
                assert!(
                    check(&database).unwrap().is_some() || is_stale(file) || is_empty(file),
                    "no {}",
                    file.display()
                );
                fs::write(file, &sound).unwrap();
            }
            assert_eq!(check(&database).unwrap(), None);
        }
    }

    /// Whether this file is a manifest that `current` no longer names.
    fn is_stale(file: &Path) -> bool {
        let current = file.with_file_name("current");
        let name = fs::read(current)
            .map(|entry| format!("v{}", u64::from_le_bytes(*entry.first_chunk().unwrap())));
        !file.ends_with("current") && name.is_ok_and(|name| !file.ends_with(name))
    }

    /// Whether the keyspace of this file has no tables.
    fn is_empty(file: &Path) -> bool {
        file.ends_with("current")
            && file
                .with_file_name("tables")
                .read_dir()
                .unwrap()
                .next()
                .is_none()
    }

    #[test]
    fn the_file_and_what_rebuilds_it_are_named() {
        let dir = tempfile::tempdir().unwrap();
        drop(tests::create(dir.path()));
        let copy = killed(dir.path());
        let is_listed = |file: &PathBuf| !file.ends_with("current") && !is_stale(file);
        let file = manifests(&copy.path().join("chain"))
            .into_iter()
            .find(is_listed)
            .unwrap();
        let mut bytes = fs::read(&file).unwrap();
        bytes[0] ^= 1;
        fs::write(&file, bytes).unwrap();
        let error = Store::open(copy.path(), tests::CACHE, None)
            .map(drop)
            .unwrap_err();
        assert!(matches!(error, StoreError::Damaged { .. }), "{error}");
        let text = error.to_string();
        for part in [
            file.to_str().unwrap(),
            "starling init",
            "starling import",
            copy.path().join("chain").to_str().unwrap(),
        ] {
            assert!(text.contains(part), "no {part} in: {text}");
        }
    }

    #[test]
    fn a_table_that_fjall_cannot_open_is_a_refusal() {
        let dir = tempfile::tempdir().unwrap();
        let store = tests::create(dir.path());
        store.flush().unwrap();
        drop(store);
        let tables = dir.path().join("chain/keyspaces/1/tables");
        let table = tables.read_dir().unwrap().next().unwrap().unwrap().path();
        fs::File::options()
            .write(true)
            .open(&table)
            .unwrap()
            .set_len(100)
            .unwrap();
        let error = Store::open(dir.path(), tests::CACHE, None)
            .map(drop)
            .unwrap_err();
        assert!(matches!(error, StoreError::Damaged { .. }), "{error}");
    }
}
