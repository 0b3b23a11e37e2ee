//! The blobs of this chain's own blocks, on disk: one file for each block, named by its time and
//! hash.
//!
//! The builder thread writes the file of a block before the block leaves it, so a block that is
//! durable has its blobs. Files are synced and renamed into place: after `kill -9` a file is whole
//! or absent. Blobs are kept for [`RETENTION`] of block time, which with the chain's maximum of blobs
//! per block bounds the folder. Blocks that were sealed and never became canonical go with the
//! others. Blocks that come from elsewhere have no file here.

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

/// Ending of the name of a finished file.
const ENDING: &str = ".blobs";
/// Name of a file being written.
const UNFINISHED: &str = "unfinished";
/// Bytes of the Keccak hash at the end of a file.
const CHECKSUM: usize = 32;

/// Blobs, commitments and proofs of one transaction.
pub type TxSidecar = BlobTransactionSidecarVariant;

/// The sidecar of one transaction of a block.
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
    /// Whether the disk has no space left.
    pub fn is_full(&self) -> bool {
        matches!(self, Self::Io { error, .. } if error.kind() == io::ErrorKind::StorageFull)
    }
}

/// The folder of blobs, which is created with the first file.
pub struct BlobStore {
    folder: PathBuf,
    /// Block time and hash of each file.
    blocks: Mutex<BTreeSet<(u64, B256)>>,
}

impl BlobStore {
    /// Reads the names of the files in a folder, which may be missing.
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

    /// Stores the blobs of a block durably, and removes those of blocks that are older than it by
    /// more than [`RETENTION`]. `time` is the block's (Unix seconds), `sidecars` in block order.
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
            // A file that cannot be removed now is found again when the store is opened.
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

    /// The sidecars of a block in block order; `None` if none are stored. `time` is the block's.
    pub fn get(&self, time: u64, block: B256) -> Result<Option<Vec<BlockSidecar>>, BlobStoreError> {
        if !self.blocks.lock().contains(&(time, block)) {
            return Ok(None);
        }
        let path = self.path(time, block);
        match fs::read(&path) {
            Ok(bytes) => decode(&bytes)
                .map(Some)
                .ok_or(BlobStoreError::Damaged(path)),
            // Removed since.
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

/// Block time and hash in the name of a file; `None` if it is another file.
fn parse_name(name: &std::ffi::OsStr) -> Option<(u64, B256)> {
    let (time, hash) = name.to_str()?.strip_suffix(ENDING)?.split_once('-')?;
    Some((time.parse().ok()?, hash.parse().ok()?))
}

/// The sidecars in a file; `None` if it is damaged.
fn decode(bytes: &[u8]) -> Option<Vec<BlockSidecar>> {
    let (mut list, checksum) = bytes.split_at_checked(bytes.len().checked_sub(CHECKSUM)?)?;
    if keccak256(list) != checksum {
        return None;
    }
    let sidecars = Vec::decode(&mut list).ok()?;
    list.is_empty().then_some(sidecars)
}
