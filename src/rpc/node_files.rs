//! Files of the node that methods read or write: the data directory, exports and imports.
//!
//! The node creates [`NodeFiles`]. Methods write only below `traces` in the data directory, and one
//! export or import runs at a time.

use futures::future::BoxFuture;
use std::{
    path::{Component, Path, PathBuf},
    sync::Arc,
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Folder of the data directory to which methods write.
const TRACES: &str = "traces";

/// The outcome of an export or import; the error is a sentence.
pub type TransferOutcome = BoxFuture<'static, Result<(), String>>;

/// The first and the last block of an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockRange {
    pub first: u64,
    pub last: u64,
}

/// An export of blocks. It continues even if its caller disconnects.
#[derive(Debug)]
pub struct ExportJob {
    pub path: PathBuf,
    /// The exported blocks; `None` for all blocks.
    pub range: Option<BlockRange>,
    /// Permit that is held until the export ends.
    pub permit: OwnedSemaphorePermit,
}

/// An import of the blocks of a file. It continues even if its caller disconnects.
#[derive(Debug)]
pub struct ImportJob {
    pub path: PathBuf,
    /// Permit that is held until the import ends.
    pub permit: OwnedSemaphorePermit,
}

/// The node's data directory, and functions that export and import blocks.
#[derive(Clone)]
pub struct NodeFiles {
    pub datadir: PathBuf,
    pub export: Arc<dyn Fn(ExportJob) -> TransferOutcome + Send + Sync>,
    pub import: Arc<dyn Fn(ImportJob) -> TransferOutcome + Send + Sync>,
    /// Permit of the one export or import that may run at a time.
    pub running: Arc<Semaphore>,
}

/// The reason why a method cannot write to a file.
#[derive(Debug, thiserror::Error)]
pub enum FilePathError {
    #[error("{0} is outside of {1}: methods write files only there; give a name alone")]
    Outside(PathBuf, PathBuf),
    #[error("location would overwrite an existing file: {0}")]
    Exists(PathBuf),
    #[error("{path} cannot be created: {source}")]
    Io {
        path: PathBuf,
        source: std::io::Error,
    },
}

impl NodeFiles {
    /// The path of a new file that a caller names. It must be below the folder `traces`.
    pub fn new_file(&self, name: &str) -> Result<PathBuf, FilePathError> {
        let folder = self.datadir.join(TRACES);
        let path = inside(&folder, Path::new(name))?;
        let parent = path.parent().unwrap_or(&folder);
        std::fs::create_dir_all(parent).map_err(|source| FilePathError::Io {
            path: parent.to_owned(),
            source,
        })?;
        // A symbolic link would lead out of the folder.
        if path.symlink_metadata().is_ok() {
            return Err(FilePathError::Exists(path));
        }
        let real = |path: &Path| {
            path.canonicalize().map_err(|source| FilePathError::Io {
                path: path.to_owned(),
                source,
            })
        };
        if !real(parent)?.starts_with(real(&folder)?) {
            return Err(FilePathError::Outside(path, folder));
        }
        Ok(path)
    }
}

/// The path of `name` below `folder`. A path with `..` is refused, and so is an absolute path
/// outside `folder`.
fn inside(folder: &Path, name: &Path) -> Result<PathBuf, FilePathError> {
    let plain = |path: &Path| {
        let mut parts = path.components();
        path.file_name().is_some() && parts.all(|part| matches!(part, Component::Normal(_)))
    };
    let relative = name.strip_prefix(folder).unwrap_or(name);
    if plain(relative) {
        Ok(folder.join(relative))
    } else {
        Err(FilePathError::Outside(name.to_owned(), folder.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;

    fn files(datadir: &Path) -> NodeFiles {
        NodeFiles {
            datadir: datadir.to_owned(),
            export: Arc::new(|_| async { Ok(()) }.boxed()),
            import: Arc::new(|_| async { Ok(()) }.boxed()),
            running: Arc::new(Semaphore::new(1)),
        }
    }

    #[test]
    fn files_stay_inside_of_their_folder() {
        let dir = tempfile::tempdir().unwrap();
        let files = files(dir.path());
        let folder = dir.path().join("traces");
        assert_eq!(files.new_file("a.rlp").unwrap(), folder.join("a.rlp"));
        let absolute = folder.join("b/c.rlp");
        assert_eq!(
            files.new_file(absolute.to_str().unwrap()).unwrap(),
            absolute
        );
        for name in [
            "",
            ".",
            "..",
            "../a",
            "a/../../b",
            "/etc/passwd",
            "/",
            "traces/../../x",
        ] {
            assert!(files.new_file(name).is_err(), "{name:?}");
        }
        std::fs::write(folder.join("old"), "").unwrap();
        assert!(matches!(
            files.new_file("old"),
            Err(FilePathError::Exists(_))
        ));
        let outside = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink(outside.path(), folder.join("link")).unwrap();
        assert!(matches!(
            files.new_file("link/x"),
            Err(FilePathError::Outside(..))
        ));
    }
}
