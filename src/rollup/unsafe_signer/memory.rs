//! Stores the block signer that L1 named last, across restarts: in the chain's database, or in a
//! file of a rollup node with a core in another process. Written at every change, read at start.

use crate::chain::{Chain, ChainError};
use alloy_primitives::Address;
use std::{
    io::{ErrorKind, Write},
    path::{Path, PathBuf},
};

/// Key of the stored signer in the chain's settings.
pub(super) const SETTING: &str = "unsafe_block_signer";

/// The place where the signer is stored.
#[derive(Clone)]
pub enum SignerMemory {
    Chain(Chain),
    /// A text file with the address.
    File(PathBuf),
}

/// The reason why the signer cannot be stored or read.
#[derive(Debug, thiserror::Error)]
pub enum SignerMemoryError {
    #[error(transparent)]
    Chain(#[from] ChainError),
    #[error("the block signer cannot be kept in {}: {error}; check the directory of --datadir", path.display())]
    Io {
        path: PathBuf,
        error: std::io::Error,
    },
}

impl SignerMemory {
    /// The stored signer; `None` if nothing valid is stored.
    pub(super) fn remembered(&self) -> Result<Option<Address>, SignerMemoryError> {
        match self {
            Self::Chain(chain) => {
                let kept = chain.remembered(SETTING)?;
                Ok(kept.and_then(|bytes| Address::try_from(&bytes[..]).ok()))
            }
            Self::File(path) => match std::fs::read_to_string(path) {
                Ok(text) => Ok(text.trim().parse().ok()),
                Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
                Err(error) => Err(SignerMemoryError::Io {
                    path: path.clone(),
                    error,
                }),
            },
        }
    }

    /// Stores the signer durably.
    pub(super) async fn remember(&self, signer: Address) -> Result<(), SignerMemoryError> {
        match self {
            Self::Chain(chain) => Ok(chain.remember(SETTING, signer.to_vec()).await?),
            Self::File(path) => {
                let kept = path.clone();
                let written = tokio::task::spawn_blocking(move || write(&kept, signer)).await;
                let written = written.map_err(|_| ChainError::Stopped)?;
                written.map_err(|error| SignerMemoryError::Io {
                    path: path.clone(),
                    error,
                })
            }
        }
    }
}

/// Replaces the file atomically.
fn write(path: &Path, signer: Address) -> std::io::Result<()> {
    let new = path.with_extension("new");
    let mut file = std::fs::File::create(&new)?;
    writeln!(file, "{signer}")?;
    file.sync_all()?;
    std::fs::rename(&new, path)?;
    // Without this, a power cut could undo the rename.
    let folder = path.parent().filter(|it| !it.as_os_str().is_empty());
    std::fs::File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_file_keeps_the_last_signer() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("unsafe-block-signer");
        let memory = SignerMemory::File(path.clone());
        assert_eq!(memory.remembered().unwrap(), None);
        for byte in [1, 2] {
            let signer = Address::repeat_byte(byte);
            memory.remember(signer).await.unwrap();
            assert_eq!(memory.remembered().unwrap(), Some(signer));
        }
        std::fs::write(&path, "torn").unwrap();
        assert_eq!(memory.remembered().unwrap(), None);
        let nowhere = SignerMemory::File(folder.path().join("no/folder"));
        assert!(nowhere.remember(Address::ZERO).await.is_err());
    }
}
