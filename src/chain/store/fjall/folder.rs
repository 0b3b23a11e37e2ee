//! The folder of a database, and its partial initialisation: the files that are left if the process
//! is killed while fjall creates the database.
//!
//! fjall creates a lock file, an empty journal and an empty folder of keyspaces, and writes its
//! version file last. A folder with no more than these files contains no data, so the database is
//! created again.

use std::{
    fs::File,
    io::{self, Read},
    path::{Path, PathBuf},
};

const VERSION: &str = "version";
const KEYSPACES: &str = "keyspaces";
const LOCK: &str = "lock";
const FIRST_JOURNAL: &str = "0.jnl";

/// The file by which fjall marks a database as complete.
pub fn version_file(folder: &Path) -> PathBuf {
    folder.join(VERSION)
}

/// Whether fjall has finished creating this folder.
pub fn is_database(folder: &Path) -> bool {
    // Only a power cut leaves an empty version file.
    version_file(folder)
        .metadata()
        .is_ok_and(|file| file.is_file() && file.len() > 0)
}

/// Whether fjall has created keyspaces in this folder, even if other files are missing there.
pub fn has_keyspaces(folder: &Path) -> bool {
    folder
        .join(KEYSPACES)
        .read_dir()
        .is_ok_and(|mut entries| entries.next().is_some())
}

/// The files of a partial initialisation; `None` if the folder contains anything else or another
/// process has the database open.
fn partial_files(folder: &Path) -> io::Result<Option<Vec<PathBuf>>> {
    let mut files = Vec::new();
    for entry in folder.read_dir()? {
        let path = entry?.path();
        let expected = match path.file_name().and_then(|name| name.to_str()) {
            Some(KEYSPACES) => path.is_dir() && path.read_dir()?.next().is_none(),
            Some(LOCK) => path.is_file() && File::open(&path)?.try_lock().is_ok(),
            Some(FIRST_JOURNAL) => path.is_file() && is_zeros(&path)?,
            Some(VERSION) => path.is_file() && path.metadata()?.len() == 0,
            _ => false,
        };
        if !expected {
            return Ok(None);
        }
        files.push(path);
    }
    Ok(Some(files))
}

fn is_zeros(path: &Path) -> io::Result<bool> {
    let (mut file, mut buffer) = (File::open(path)?, vec![0; 1 << 18]);
    loop {
        let read = file.read(&mut buffer)?;
        if read == 0 || buffer[..read].iter().any(|byte| *byte != 0) {
            return Ok(read == 0);
        }
    }
}

/// Whether this folder holds a partial initialisation and nothing else.
pub fn is_partial(folder: &Path) -> bool {
    !is_database(folder)
        && partial_files(folder).is_ok_and(|files| files.is_some_and(|files| !files.is_empty()))
}

/// Removes a partial initialisation, so that the database can be created again. Any other folder
/// stays unchanged.
pub fn remove_partial(folder: &Path) -> io::Result<()> {
    if !folder.is_dir() || is_database(folder) {
        return Ok(());
    }
    for path in partial_files(folder)?.unwrap_or_default() {
        if path.is_dir() {
            std::fs::remove_dir(path)?
        } else {
            std::fs::remove_file(path)?
        }
    }
    Ok(())
}

/// Makes the directory entries of a database's keyspaces durable. fjall syncs a directory that it
/// creates, but not the parent, so a power cut can lose the directory entry. The keyspace would
/// then be empty, although the journal has its rows.
pub fn sync(folder: &Path) -> io::Result<()> {
    let folder = folder.canonicalize()?;
    let keyspaces = folder.join(KEYSPACES);
    let folders = [Some(&*keyspaces), Some(&*folder), folder.parent()];
    folders
        .into_iter()
        .flatten()
        .try_for_each(|folder| File::open(folder)?.sync_all())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chain::{
        payload_log::{LogError, PayloadLog},
        store::{StoreError, tests},
    };

    /// Creates a folder as left by a process that is killed just before fjall writes the version
    /// file.
    fn begin(folder: &Path, journal: &[u8]) {
        std::fs::create_dir_all(folder.join("keyspaces")).unwrap();
        std::fs::write(folder.join("lock"), "").unwrap();
        std::fs::write(folder.join("0.jnl"), journal).unwrap();
    }

    #[test]
    fn a_first_start_that_was_killed_can_be_repeated() {
        let dir = tempfile::tempdir().unwrap();
        begin(&dir.path().join("chain"), &[0; 4096]);
        let refused = crate::chain::store::Store::open(dir.path(), tests::CACHE, None).map(drop);
        assert!(
            matches!(refused, Err(StoreError::Uninitialised(_))),
            "{refused:?}"
        );
        drop(tests::create(dir.path()));
        drop(crate::chain::store::Store::open(dir.path(), tests::CACHE, None).unwrap());

        let log = dir.path().join("wal");
        begin(&log, &[]);
        std::fs::write(log.join("version"), "").unwrap();
        drop(PayloadLog::open(&log).unwrap());
        drop(PayloadLog::open(&log).unwrap());
    }

    #[test]
    fn what_holds_anything_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        begin(dir.path(), &[0, 0, 1]);
        assert!(matches!(
            PayloadLog::open(dir.path()),
            Err(LogError::NotALog(_))
        ));
        assert_eq!(std::fs::read(dir.path().join("0.jnl")).unwrap(), [0, 0, 1]);
        begin(dir.path(), &[]);
        std::fs::write(dir.path().join("keyspaces/file"), "x").unwrap();
        assert!(matches!(
            PayloadLog::open(dir.path()),
            Err(LogError::NotALog(_))
        ));
        assert!(dir.path().join("keyspaces/file").exists() && dir.path().join("lock").exists());
    }
}
