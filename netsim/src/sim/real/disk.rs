//! The files of a node of a real world, and those of them that survive a loss of power.
//!
//! A killed process leaves all that it has written. After a loss of power the store is as at its
//! last sync, and the payload log as at the last block that was logged to be signed, which is the
//! one write that production syncs. Sectors that a disk keeps or loses singly are left to the
//! power-cut tests of the node.

use crate::guard::MEMORY;
use starling::machines::{
    ChainError,
    genesis::{Genesis, GenesisError},
    init, payload_log_dir,
};
use std::{
    fs::{self, File},
    io::{self, Write},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
};
use tempfile::TempDir;

/// The reason why a real world cannot be set up, or a node cannot be opened again.
#[derive(Debug, thiserror::Error)]
pub enum RealWorldError {
    #[error("the files of a node: {0}")]
    Files(#[from] io::Error),
    #[error(transparent)]
    Genesis(#[from] GenesisError),
    #[error("a data directory: {0}")]
    Init(String),
    #[error(transparent)]
    Chain(#[from] ChainError),
}

/// The end of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CrashKind {
    /// The process ends, and its files stay as they are.
    Kill,
    /// Everything that is not synced is lost.
    PowerLoss,
    /// A power loss that takes the payload log too, which is a planted bug.
    LogLost,
}

/// The data directory of a node.
pub struct ChainDisk {
    now: TempDir,
    /// Copies of the store and of the payload log as they are on the disk; `None` if power is never
    /// lost.
    durable: Option<DurableFiles>,
}

struct DurableFiles {
    store: TempDir,
    log: TempDir,
}

/// The folder for temporary files of a world: in memory, where a sync takes no time, if the system
/// has such a file system.
pub fn memory_folder() -> PathBuf {
    let memory = Path::new(MEMORY);
    if memory.is_dir() {
        memory.to_owned()
    } else {
        std::env::temp_dir()
    }
}

fn new_folder(parent: &Path) -> io::Result<TempDir> {
    tempfile::Builder::new()
        .prefix("netsim-sim-")
        .tempdir_in(parent)
}

impl ChainDisk {
    /// Initialises a data directory in `parent`, which its copies will be in, too.
    pub fn init(genesis: &Genesis, parent: &Path) -> Result<Self, RealWorldError> {
        let now = new_folder(parent)?;
        init(now.path(), genesis).map_err(|error| RealWorldError::Init(error.to_string()))?;
        fs::create_dir_all(payload_log_dir(now.path()))?;
        Ok(Self { now, durable: None })
    }

    /// A copy of an initialised directory for a node.
    pub fn of_new_node(&self, loses_power: bool) -> io::Result<Self> {
        let now = copied(self.path(), self.path())?;
        let durable = loses_power.then(|| DurableFiles::of(self.path()));
        Ok(Self {
            now,
            durable: durable.transpose()?,
        })
    }

    pub fn path(&self) -> &Path {
        self.now.path()
    }

    /// Makes the store durable.
    pub fn sync_store(&mut self) -> io::Result<()> {
        let path = self.now.path();
        self.durable.iter_mut().try_for_each(|durable| {
            durable.store = copied(path, path)?;
            Ok(())
        })
    }

    /// Makes the payload log durable.
    pub fn sync_log(&mut self) -> io::Result<()> {
        let path = self.now.path();
        let log = payload_log_dir(path);
        self.durable.iter_mut().try_for_each(|durable| {
            durable.log = copied(&log, path)?;
            Ok(())
        })
    }

    /// The directory that a crash of this kind leaves. No call of the core may be in progress.
    pub fn after(&self, kind: CrashKind) -> io::Result<Self> {
        let now = match (kind, &self.durable) {
            (CrashKind::PowerLoss | CrashKind::LogLost, Some(durable)) => {
                let now = copied(durable.store.path(), self.path())?;
                let log = payload_log_dir(now.path());
                fs::remove_dir_all(&log)?;
                copy_folder(durable.log.path(), &log)?;
                now
            }
            _ => copied(self.path(), self.path())?,
        };
        if kind == CrashKind::LogLost {
            let log = payload_log_dir(now.path());
            fs::remove_dir_all(&log)?;
            fs::create_dir(&log)?;
        }
        let durable = self.durable.as_ref().map(|_| DurableFiles::of(now.path()));
        Ok(Self {
            durable: durable.transpose()?,
            now,
        })
    }
}

impl DurableFiles {
    /// All files of a data directory are durable.
    fn of(datadir: &Path) -> io::Result<Self> {
        Ok(Self {
            store: copied(datadir, datadir)?,
            log: copied(&payload_log_dir(datadir), datadir)?,
        })
    }
}

/// A copy of a folder, in the folder that `beside` is in.
fn copied(from: &Path, beside: &Path) -> io::Result<TempDir> {
    let to = new_folder(beside.parent().unwrap_or(beside))?;
    copy_folder(from, to.path())?;
    Ok(to)
}

fn copy_folder(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_folder(&entry.path(), &target)?;
        } else {
            copy_file(&entry.path(), &target)?;
        }
    }
    Ok(())
}

/// Copies a file up to its last written page. A journal is allocated far beyond its end.
fn copy_file(from: &Path, to: &Path) -> io::Result<()> {
    let (source, mut target) = (File::open(from)?, File::create(to)?);
    let end = nix::unistd::lseek(&source, 0, nix::unistd::Whence::SeekHole);
    // An empty file has no data to seek in.
    let end = end.map_or(0, |end| end as usize);
    let mut bytes = vec![0; end];
    source.read_exact_at(&mut bytes, 0)?;
    target.write_all(&bytes)
}
