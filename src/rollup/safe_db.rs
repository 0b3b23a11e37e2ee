//! Safe heads: for each L1 block that made an L2 block safe, the newest L2 block that was safe
//! after it. A record says that everything in its L1 block is applied: derivation continues at the
//! next L1 block.
//!
//! One file of fixed-size records, ordered by L1 number, each with a checksum. Readers see a record
//! only after it is synced. Records are appended. An L1 reorg or a reset truncates the file. The
//! truncation is synced before the next record is written; otherwise removed records could follow a
//! new one after a power cut. If a crash tore the last record, it is dropped when the file is
//! opened. The node always keeps this file: after a restart or an L1 reorg, the safe head is that
//! of the newest record with a canonical L1 block. With `--safedb.path`,
//! `optimism_safeHeadAtL1Block` is served from it.

use alloy_primitives::{B256, keccak256};
use parking_lot::RwLock;
use starling_proto::payload::BlockId;
use std::{
    fs::{File, OpenOptions},
    io,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::Arc,
};

/// Size of a record in bytes: L1 number, L1 hash, L2 number, L2 hash (numbers big-endian), and the
/// first 8 bytes of the Keccak hash of these fields.
const RECORD: u64 = 88;
/// Size of the fields that the checksum covers, in bytes.
const CONTENT: usize = 80;

/// The reason why safe heads cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum SafeDbError {
    #[error("{path}: {source}")]
    Io {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error(
        "{path}: record {position} is damaged; move the file away, and safe heads are recorded anew \
         from here on"
    )]
    Damaged { path: PathBuf, position: u64 },
}

/// The reason why no record says which L1 block made an L2 block safe, in op-node's words.
#[derive(Debug, thiserror::Error)]
pub enum UnknownL1 {
    /// The block is above the newest recorded safe head.
    #[error("l1 at safe head not found")]
    NotSafe,
    /// The block was safe before the records begin.
    #[error("l1 at safe head history unavailable")]
    Unrecorded,
    #[error(transparent)]
    Db(#[from] SafeDbError),
}

/// One record of the file: the newest L2 block that was safe after the L1 block `derived_from`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SafeRecord {
    pub l2: BlockId,
    pub derived_from: BlockId,
}

/// The file of safe heads. Clones are handles to the same file. Only the driver writes.
#[derive(Clone, Debug)]
pub struct SafeDb {
    path: Arc<Path>,
    file: Arc<File>,
    /// A reader holds the read lock while it reads a record, so that the record is not replaced
    /// meanwhile.
    index: Arc<RwLock<SafeDbIndex>>,
}

#[derive(Clone, Copy, Debug, Default)]
struct SafeDbIndex {
    /// Number of records in the file, all of them synced.
    count: u64,
    last: Option<SafeRecord>,
    /// A write, a truncation or its sync is in progress or has failed, so the file may have bytes
    /// after these records.
    has_tail: bool,
}

impl SafeDb {
    /// Opens or creates the file. Drops the last record if a crash tore it.
    pub fn open(path: &Path) -> Result<Self, SafeDbError> {
        let failed = |source| SafeDbError::Io {
            path: path.to_owned(),
            source,
        };
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder).map_err(failed)?;
        }
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)
            .map_err(failed)?;
        // Sync the folder, otherwise a new file with all its records may be lost in a power cut.
        let folder = path
            .parent()
            .filter(|folder| !folder.as_os_str().is_empty());
        let folder = folder.unwrap_or(Path::new("."));
        File::open(folder)
            .and_then(|folder| folder.sync_all())
            .map_err(failed)?;
        let bytes = file.metadata().map_err(failed)?.len();
        let db = Self {
            path: path.into(),
            file: Arc::new(file),
            index: Arc::default(),
        };
        let mut count = bytes / RECORD;
        if let Some(index) = count.checked_sub(1) {
            // Only the last record can be torn: earlier ones were synced before it was written.
            match db.read(index) {
                Ok(_) => {}
                Err(SafeDbError::Damaged { .. }) => count = index,
                Err(error) => return Err(error),
            }
        }
        db.cut(count)?;
        Ok(db)
    }

    /// The newest record.
    pub fn last(&self) -> Option<SafeRecord> {
        self.index.read().last
    }

    /// The number of records.
    pub fn len(&self) -> u64 {
        self.index.read().count
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The record at this position; 0 is the oldest. Fails beyond the last record.
    pub fn record_at(&self, position: u64) -> Result<SafeRecord, SafeDbError> {
        let _reading = self.index.read();
        self.read(position)
    }

    /// At most `most` of the newest records, oldest first.
    pub fn newest(&self, most: usize) -> Result<Vec<SafeRecord>, SafeDbError> {
        let index = self.index.read();
        let first = index.count.saturating_sub(most as u64);
        (first..index.count).map(|at| self.read(at)).collect()
    }

    /// The position of the first record of this or a higher L2 block; the number of records if
    /// there is none.
    pub fn first_from_l2(&self, number: u64) -> Result<u64, SafeDbError> {
        let index = self.index.read();
        self.first(index.count, |at| at.l2.number >= number)
    }

    /// The safe head after derivation from the L1 block of this number: the newest record at or
    /// below it. `None` if there is no such record.
    pub fn at_l1(&self, number: u64) -> Result<Option<SafeRecord>, SafeDbError> {
        let index = self.index.read();
        let above = self.first(index.count, |at| at.derived_from.number > number)?;
        above
            .checked_sub(1)
            .map(|position| self.read(position))
            .transpose()
    }

    /// The L1 block that made this L2 block safe: that of the first record of the block or a later
    /// one. The first record of all says nothing of earlier blocks.
    pub fn l1_of(&self, number: u64) -> Result<BlockId, UnknownL1> {
        let index = self.index.read();
        let position = self.first(index.count, |at| at.l2.number >= number)?;
        if position == index.count {
            return Err(UnknownL1::NotSafe);
        }
        let record = self.read(position)?;
        if position == 0 && record.l2.number != number {
            return Err(UnknownL1::Unrecorded);
        }
        Ok(record.derived_from)
    }

    /// Records that a block is safe. Replaces records of the same and later L1 blocks. Durable when
    /// this returns. After an error the block is not recorded, and the call can be repeated.
    pub fn record(&self, block: SafeRecord) -> Result<(), SafeDbError> {
        let SafeDbIndex {
            count,
            last,
            has_tail,
        } = *self.index.read();
        if last == Some(block) && !has_tail {
            return Ok(());
        }
        let keep = match last {
            Some(last) if last.derived_from.number >= block.derived_from.number => self
                .first(count, |at| {
                    at.derived_from.number >= block.derived_from.number
                })?,
            _ => count,
        };
        if keep < count || has_tail {
            self.cut(keep)?;
        }
        // If the sync fails, repeating only the sync may succeed without writing the data. With
        // this flag the next call writes the record again.
        self.index.write().has_tail = true;
        self.file
            .write_all_at(&encode(&block), keep * RECORD)
            .and_then(|()| self.file.sync_data())
            .map_err(|e| self.failed(e))?;
        *self.index.write() = SafeDbIndex {
            count: keep + 1,
            last: Some(block),
            has_tail: false,
        };
        Ok(())
    }

    /// Moves the safe head back to `head`: removes the records of higher L2 blocks, and one of
    /// another block at its height. A record says that everything in its L1 block is applied, so
    /// none is written for `head`: which L1 block made it safe is only known if a record says so.
    /// (op-node instead writes `head` to the first removed record, which it never starts from.)
    pub fn reset(&self, head: BlockId) -> Result<(), SafeDbError> {
        let higher = self.first_from_l2(head.number)?;
        let is_recorded = higher < self.len() && self.record_at(higher)?.l2 == head;
        self.truncate(higher + u64::from(is_recorded))
    }

    /// Removes the newest record. Durable when this returns.
    pub fn remove_newest(&self) -> Result<(), SafeDbError> {
        self.truncate(self.len().saturating_sub(1))
    }

    /// Keeps the first `count` records and removes the rest. Durable when this returns.
    pub fn truncate(&self, count: u64) -> Result<(), SafeDbError> {
        let index = *self.index.read();
        if count == index.count && !index.has_tail {
            return Ok(());
        }
        self.cut(count)
    }

    /// Truncates the file after `count` records and syncs it. Readers no longer see the removed
    /// records, even if the truncation fails.
    fn cut(&self, count: u64) -> Result<(), SafeDbError> {
        let last = count.checked_sub(1).map(|position| self.read(position));
        let last = last.transpose()?;
        let mut index = self.index.write();
        *index = SafeDbIndex {
            count,
            last,
            has_tail: true,
        };
        let cut = self.file.set_len(count * RECORD);
        drop(index);
        // `sync_data` need not write a smaller file size, so sync the metadata too.
        cut.and_then(|()| self.file.sync_all())
            .map_err(|e| self.failed(e))?;
        self.index.write().has_tail = false;
        Ok(())
    }

    /// The first position from which on `is_true` holds, among the first `count` records; `count`
    /// if it holds for none of them.
    fn first(&self, count: u64, is_true: impl Fn(&SafeRecord) -> bool) -> Result<u64, SafeDbError> {
        let (mut low, mut high) = (0, count);
        while low < high {
            let middle = low + (high - low) / 2;
            if is_true(&self.read(middle)?) {
                high = middle;
            } else {
                low = middle + 1;
            }
        }
        Ok(low)
    }

    fn read(&self, position: u64) -> Result<SafeRecord, SafeDbError> {
        let mut record = [0; RECORD as usize];
        self.file
            .read_exact_at(&mut record, position * RECORD)
            .map_err(|e| self.failed(e))?;
        decode(&record).ok_or_else(|| SafeDbError::Damaged {
            path: self.path.to_path_buf(),
            position,
        })
    }

    fn failed(&self, source: io::Error) -> SafeDbError {
        SafeDbError::Io {
            path: self.path.to_path_buf(),
            source,
        }
    }
}

fn encode(block: &SafeRecord) -> [u8; RECORD as usize] {
    let mut record = [0; RECORD as usize];
    for (at, id) in [(0, block.derived_from), (40, block.l2)] {
        record[at..at + 8].copy_from_slice(&id.number.to_be_bytes());
        record[at + 8..at + 40].copy_from_slice(id.hash.as_slice());
    }
    let sum = keccak256(&record[..CONTENT]);
    record[CONTENT..].copy_from_slice(&sum[..8]);
    record
}

fn decode(record: &[u8; RECORD as usize]) -> Option<SafeRecord> {
    let id = |at: usize| {
        let number = record[at..at + 8].try_into().ok()?;
        Some(BlockId {
            number: u64::from_be_bytes(number),
            hash: B256::from_slice(&record[at + 8..at + 40]),
        })
    };
    let sum = keccak256(&record[..CONTENT]);
    (record[CONTENT..] == sum[..8]).then_some(())?;
    Some(SafeRecord {
        derived_from: id(0)?,
        l2: id(40)?,
    })
}

#[cfg(test)]
mod tests;
