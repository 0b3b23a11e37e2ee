//! A database whose making was interrupted: the engine marks a folder with its version last, after an empty journal and an empty folder
//! for keyspaces. What holds no more than these holds nothing, and is made anew.

use std::{
    fs::File,
    io::{self, Read},
    path::{Path, PathBuf},
};

const VERSION: &str = "version";
const KEYSPACES: &str = "keyspaces";

/// Whether the engine finished making this folder.
pub(in crate::chain) fn is_database(folder: &Path) -> bool {
    // Written whole or not at all, but for a power cut.
    folder
        .join(VERSION)
        .metadata()
        .is_ok_and(|file| file.is_file() && file.len() > 0)
}

/// Whether the engine has made keyspaces in this folder, whatever else is missing there.
pub(super) fn has_keyspaces(folder: &Path) -> bool {
    folder
        .join(KEYSPACES)
        .read_dir()
        .is_ok_and(|mut entries| entries.next().is_some())
}

/// What the engine has made in a folder, if that is all there is in it and no process is at it.
fn begun(folder: &Path) -> io::Result<Option<Vec<PathBuf>>> {
    let mut made = Vec::new();
    for entry in folder.read_dir()? {
        let path = entry?.path();
        let expected = match path.file_name().and_then(|name| name.to_str()) {
            Some(KEYSPACES) => path.is_dir() && path.read_dir()?.next().is_none(),
            Some("lock") => path.is_file() && File::open(&path)?.try_lock().is_ok(),
            Some("0.jnl") => path.is_file() && is_zeros(&path)?,
            Some(VERSION) => path.is_file() && path.metadata()?.len() == 0,
            _ => false,
        };
        if !expected {
            return Ok(None);
        }
        made.push(path);
    }
    Ok(Some(made))
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

/// Whether a folder that is no database is the beginning of one.
pub(in crate::chain) fn is_begun(folder: &Path) -> bool {
    !is_database(folder)
        && begun(folder).is_ok_and(|made| made.is_some_and(|made| !made.is_empty()))
}

/// Removes the beginning of a database, so that it can be made anew. Anything else stays as it is.
pub(in crate::chain) fn clear(folder: &Path) -> io::Result<()> {
    if !folder.is_dir() || is_database(folder) {
        return Ok(());
    }
    for path in begun(folder)?.unwrap_or_default() {
        if path.is_dir() {
            std::fs::remove_dir(path)?
        } else {
            std::fs::remove_file(path)?
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chain::{
        payload_log::{LogError, PayloadLog},
        store::{StoreError, tests},
    };

    /// As the engine leaves a folder that is killed just before it writes its version.
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
