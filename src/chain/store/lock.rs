//! The LOCK file of a directory, which only one process at a time can lock. The lock is the
//! kernel's lock on the file, so it is released when the process ends, however it ends. The pid
//! inside the file only serves the error message.

use crate::chain::store::StoreError;
use std::{
    fs::{File, OpenOptions, TryLockError},
    io::{Read, Seek, Write},
    path::Path,
};

/// The lock of a directory, released when dropped.
#[derive(Debug)]
pub(crate) struct Lock(File);

impl Lock {
    /// The file's name.
    pub(crate) const NAME: &str = "LOCK";

    /// Locks a directory. Fails with [`StoreError::Locked`] if the lock is already held.
    pub(crate) fn take(dir: &Path) -> Result<Self, StoreError> {
        let path = dir.join(Self::NAME);
        let io = |source| StoreError::Io {
            path: path.clone(),
            source,
        };
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .map_err(io)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let mut pid = String::new();
                // A pid that cannot be read is omitted from the message.
                let _ = file.take(16).read_to_string(&mut pid);
                return Err(StoreError::Locked {
                    pid: pid.trim().parse().ok(),
                });
            }
            Err(TryLockError::Error(source)) => return Err(io(source)),
        }
        file.set_len(0).map_err(io)?;
        file.rewind().map_err(io)?;
        writeln!(file, "{}", std::process::id()).map_err(io)?;
        Ok(Self(file))
    }
}

/// Unlocks explicitly instead of relying on the close. A child process that is being started has a
/// copy of the file descriptor until its exec, and the copy keeps the file locked. A store that is
/// closed and reopened at that moment would fail with [`StoreError::Locked`].
impl Drop for Lock {
    fn drop(&mut self) {
        // An error is harmless: closing the file unlocks it a moment later.
        let _ = self.0.unlock();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_at_a_time_and_free_again_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let lock = Lock::take(dir.path()).unwrap();
        assert!(
            matches!(Lock::take(dir.path()), Err(StoreError::Locked { pid: Some(pid) }) if pid == std::process::id())
        );
        // Stands for the copy of the descriptor that a child process has between fork and exec.
        let _inherited = lock.0.try_clone().unwrap();
        drop(lock);
        Lock::take(dir.path()).unwrap();
    }
}
