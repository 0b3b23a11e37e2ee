//! The blobs of blocks that this node has built, on disk. Each block has one file, named by its
//! time and hash.
//!
//! A block's file is written before the builder returns the block, so a durable block that was
//! built here has its blobs. Files are synced and renamed into place: after `kill -9` a file is
//! complete or absent. Blobs are kept for [`RETENTION`] of block time. Together with the chain's
//! maximum of blobs per block, this bounds the size of the folder. Files of blocks that never
//! became canonical are removed in the same way. Blocks from peers and imported blocks have no blob
//! file.

#[cfg(test)]
mod tests;

use alloy_eips::eip7594::BlobTransactionSidecarVariant;
use alloy_primitives::{B256, keccak256};
use alloy_rlp::{Decodable, RlpDecodable, RlpEncodable};
use parking_lot::Mutex;
use std::{
    collections::BTreeSet,
    fs::{self, File},
    io::{self, Write},
    path::{Path, PathBuf},
    sync::Arc,
};

/// Seconds that blobs are kept: 4,096 epochs of 32 slots of 12 seconds (consensus specs:
/// `MIN_EPOCHS_FOR_BLOB_SIDECARS_REQUESTS`).
pub const RETENTION: u64 = 4_096 * 32 * 12;

/// Suffix of the name of a complete file.
const ENDING: &str = ".blobs";
/// Name of the file that is being written.
const UNFINISHED: &str = "unfinished";
/// Length of the Keccak hash at the end of a file, in bytes.
const CHECKSUM: usize = 32;

/// Blobs of one transaction, with commitments and proofs.
pub type TxSidecar = BlobTransactionSidecarVariant;

/// The blobs of one transaction in a block.
#[derive(Clone, Debug, PartialEq, Eq, RlpEncodable, RlpDecodable)]
pub struct BlockSidecar {
    /// Hash of the transaction.
    pub transaction: B256,
    pub sidecar: Arc<TxSidecar>,
}

#[derive(Debug, thiserror::Error)]
pub enum BlobStoreError {
    #[error("the blobs in {}: {error}", .path.display())]
    Io { path: PathBuf, error: io::Error },
    #[error("the blobs in {} are damaged: remove the file, and the block is served without them", .0.display())]
    Damaged(PathBuf),
}

impl BlobStoreError {
    /// Whether a write failed because the disk has no space left.
    pub fn is_full(&self) -> bool {
        matches!(self, Self::Io { error, .. } if error.kind() == io::ErrorKind::StorageFull)
    }
}

/// The folder of blob files. It is created with the first file.
pub struct BlobStore {
    folder: PathBuf,
    /// Block time and block hash of each file in the folder.
    blocks: Mutex<BTreeSet<(u64, B256)>>,
}

impl BlobStore {
    /// Opens a folder, which may be missing, and reads the names of its files.
    pub fn open(folder: &Path) -> Result<Self, BlobStoreError> {
        let failed = |error| failed(folder, error);
        let mut blocks = BTreeSet::new();
        match fs::read_dir(folder) {
            Ok(entries) => {
                for entry in entries {
                    blocks.extend(parse_name(&entry.map_err(failed)?.file_name()));
                }
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(failed(error)),
        }
        Ok(Self {
            folder: folder.to_owned(),
            blocks: Mutex::new(blocks),
        })
    }

    /// Stores the blobs of a block durably. Removes the files of blocks that are more than
    /// [`RETENTION`] older. `time` is the block's time (Unix seconds), and `sidecars` is in block
    /// order.
    pub fn put(
        &self,
        time: u64,
        block: B256,
        sidecars: &[BlockSidecar],
    ) -> Result<(), BlobStoreError> {
        let mut bytes = Vec::new();
        alloy_rlp::encode_list(sidecars, &mut bytes);
        let checksum = keccak256(&bytes);
        bytes.extend(checksum);
        let path = self.path(time, block);
        self.write(&path, &bytes)
            .map_err(|error| failed(&path, error))?;
        let expired = {
            let mut blocks = self.blocks.lock();
            blocks.insert((time, block));
            let kept = blocks.split_off(&(time.saturating_sub(RETENTION), B256::ZERO));
            std::mem::replace(&mut *blocks, kept)
        };
        for (time, block) in expired {
            // A file that cannot be removed now is listed again at the next open.
            let _ = fs::remove_file(self.path(time, block));
        }
        Ok(())
    }

    fn write(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        fs::create_dir_all(&self.folder)?;
        let unfinished = self.folder.join(UNFINISHED);
        let mut file = File::create(&unfinished)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&unfinished, path)?;
        File::open(&self.folder)?.sync_all()
    }

    /// The sidecars of a block in block order; `None` if none are stored. `time` is the block's
    /// time.
    pub fn get(&self, time: u64, block: B256) -> Result<Option<Vec<BlockSidecar>>, BlobStoreError> {
        if !self.blocks.lock().contains(&(time, block)) {
            return Ok(None);
        }
        let path = self.path(time, block);
        match fs::read(&path) {
            Ok(bytes) => decode(&bytes)
                .map(Some)
                .ok_or(BlobStoreError::Damaged(path)),
            // The file has been removed since the check above.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(failed(&path, error)),
        }
    }

    fn path(&self, time: u64, block: B256) -> PathBuf {
        self.folder.join(format!("{time}-{block:x}{ENDING}"))
    }
}

fn failed(path: &Path, error: io::Error) -> BlobStoreError {
    BlobStoreError::Io {
        path: path.to_owned(),
        error,
    }
}

/// Parses block time and hash from the name of a file; `None` if the file is not a blob file.
fn parse_name(name: &std::ffi::OsStr) -> Option<(u64, B256)> {
    let (time, hash) = name.to_str()?.strip_suffix(ENDING)?.split_once('-')?;
    Some((time.parse().ok()?, hash.parse().ok()?))
}

/// Decodes the sidecars in a file; `None` if the file is damaged.
fn decode(bytes: &[u8]) -> Option<Vec<BlockSidecar>> {
    let (mut list, checksum) = bytes.split_at_checked(bytes.len().checked_sub(CHECKSUM)?)?;
    if keccak256(list) != checksum {
        return None;
    }
    let sidecars = Vec::decode(&mut list).ok()?;
    list.is_empty().then_some(sidecars)
}
