//! The store: the canonical chain on disk, in an LSM database (fjall) of six keyspaces grouped by
//! the lifetime of their rows.
//!
//! In a running node only the persister writes blocks: a group of them, or the unwind of one, is
//! one atomic batch across all keyspaces. Every batch writes the same head row into each keyspace
//! except `blocks`, whose head is its newest block; at open all heads must agree. Readers use a
//! [`Snapshot`], since plain reads would see half-applied batches. A snapshot pins the versions of
//! all rows it can see. Compaction cannot drop them, except old unwind records: keep snapshots
//! short (long readers take a fresh view now and then).
//!
//! A batch is in the operating system's page cache when `commit` returns: it survives a kill of the
//! process, not a power cut. [`Store::sync`] makes it durable. State history and receipts can fill
//! the disk; commits and unwinds fail once less than [`free_space_floor`] is free.

mod batch;
mod cache;
mod disk_space;
mod error;
mod fjall;
mod history;
mod lock;
mod maintain;
mod memtables;
mod obsolete_files;
mod open;
mod proofs;
mod read;
mod space;
mod table_files;
mod torn_write;
mod unwind;
mod value_index;

pub use batch::{WrittenRow, written_rows};
pub(in crate::chain) use disk_space::{free_space, free_space_floor};
pub(in crate::chain) use error::describe_error;
pub use error::{Identity, StoreError, rebuild};
pub use fjall::journal::DamagedJournal;
pub(crate) use fjall::journal::check as check_journals;
pub(in crate::chain) use fjall::{folder, manifest::check as check_manifests};
pub(crate) use maintain::{KINDS, Rewrite, is_own};
pub(crate) use open::DATABASE;
pub(crate) use space::Space;
pub(crate) use unwind::mismatch;
pub use unwind::{Before, UnwindRecord};
use value_index::{BlockParts, PerIndex};
pub use value_index::{IndexStep, IndexWindow, ValueIndex};

use crate::chain::{
    memory_only,
    rows::{ExecutedBlock, ReadError, codec},
};
use ::fjall::{Database, Keyspace, Readable};
use alloy_primitives::Bytes;
use batch::StoreBatch;
use cache::RowCache;
use history::{History, HistoryBounds, Pin};
pub(crate) use lock::Lock;
use lsm_tree::AbstractTree;
use memtables::Memtables;
use obsolete_files::ObsoleteFiles;
use parking_lot::Mutex;
use starling_proto::payload::BlockId;
use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

/// Version of the row layout. Version 4 stores the senders of each block, version 5 indexes each
/// block by its logs and addresses. A store of [`OLDEST_SCHEMA`] or later is read without
/// conversion; any other store is refused. The first block written upgrades the store to this
/// version, since older programs would not delete the new rows when they unwind a block.
pub const SCHEMA: u32 = 5;
const OLDEST_SCHEMA: u32 = 3;
/// The first version of the row layout that stores senders.
const SENDERS_SCHEMA: u32 = 4;

/// Number of blocks below the finalized head whose unwind records are kept, for side branches and
/// readers that still need them.
pub const UNWIND_MARGIN: u64 = 1024;

const HEAD: &[u8] = b"_head";
const SCHEMA_ROW: &[u8] = b"schema";
const IDENTITY_ROW: &[u8] = b"identity";
const SAFE_ROW: &[u8] = b"safe";
const FINALIZED_ROW: &[u8] = b"finalized";
const OLDEST_ROW: &[u8] = b"oldest";
/// Key of the row with the first block from which on the senders of every block are stored.
const SENDERS_ROW: &[u8] = b"senders";
/// Key of the row with the oldest block whose unwind record is kept.
const UNWIND_ROW: &[u8] = b"unwind";

impl From<::fjall::Error> for StoreError {
    fn from(error: ::fjall::Error) -> Self {
        match error {
            ::fjall::Error::Poisoned => Self::Poisoned,
            ::fjall::Error::Locked => Self::Locked { pid: None },
            other => Self::Database(describe_error(&other)),
        }
    }
}

/// A handle to the store; cheap to clone. The store closes when the last handle and the last
/// snapshot are gone.
#[derive(Clone)]
pub struct Store(Arc<StoreInner>);

struct StoreInner {
    db: Database,
    spaces: [Keyspace; 6],
    /// Cache of the rows of `state`.
    rows: RowCache,
    /// Cache of the rows of `blocks` and `index`, by [`block_cache_key`].
    block_rows: RowCache,
    memtables: Memtables,
    obsolete: ObsoleteFiles,
    path: PathBuf,
    identity: Identity,
    /// Version of the row layout on the disk.
    schema: AtomicU32,
    history: History,
    /// Whether new blocks store the addresses and slots whose hashes are the keys of the state.
    keeps_names: AtomicBool,
    /// Bytes that must stay free on the disk.
    floor: u64,
    /// The stored head. The lock is held during every write.
    writer: Mutex<BlockId>,
    /// Lock of the directory. The last field, so that it is released after the database is closed.
    _lock: Lock,
}

impl Store {
    pub fn identity(&self) -> Identity {
        self.0.identity
    }

    /// The newest stored block. Waits for a write in progress.
    pub fn head(&self) -> BlockId {
        *self.0.writer.lock()
    }

    /// A consistent snapshot of all keyspaces. Call it on the writer's thread (the persister) or
    /// while no write is in progress: fjall may show half of a batch that is being committed if it
    /// flushes a memtable at that moment.
    pub fn snapshot(&self) -> Result<Snapshot, StoreError> {
        let pin = self.0.history.pin();
        let ((snapshot, block_generation), generation) = self
            .0
            .rows
            .at_generation(|| self.0.block_rows.at_generation(|| self.0.db.snapshot()));
        let get = |key| -> Result<Option<Bytes>, StoreError> {
            Ok(get(&snapshot, &self.0.spaces[Space::Meta as usize], key)?)
        };
        let id = |key: &'static [u8]| -> Result<Option<BlockId>, StoreError> {
            get(key)?
                .map(|row| codec::decode_id(&row).ok_or_else(|| damaged_meta(key)))
                .transpose()
        };
        let head = id(HEAD)?.ok_or_else(|| damaged_meta(HEAD))?;
        let kept = self.0.kept(&snapshot)?;
        let indexes = self.0.indexed_from(&snapshot, head.number)?;
        let (safe, finalized) = (id(SAFE_ROW)?, id(FINALIZED_ROW)?);
        let inner = self.0.clone();
        Ok(Snapshot(Arc::new(SnapshotInner {
            snapshot,
            generation,
            block_generation,
            head,
            safe,
            finalized,
            kept,
            indexes,
            _pin: pin,
            inner,
        })))
    }

    /// Writes a group of blocks, oldest first, that build on the stored head, and the safe and
    /// finalized heads, as one atomic batch. `None` leaves the stored safe or finalized head
    /// unchanged. Raises the bounds below which compactions drop rows: of unwind records to
    /// [`UNWIND_MARGIN`] blocks below the finalized head, of states to the window set by
    /// [`Store::keep_states`].
    pub fn commit(
        &self,
        blocks: &[Arc<ExecutedBlock>],
        safe: Option<BlockId>,
        finalized: Option<BlockId>,
    ) -> Result<(), StoreError> {
        let mut head = self.0.writer.lock();
        self.0.check_space()?;
        let new_head = tip(*head, blocks)?;
        let mut batch = StoreBatch::new(&self.0);
        let mut trie_history = self.0.written(*head)?;
        let indexes = self.0.growing_indexes(head.number)?;
        batch.blocks(blocks, indexes, &mut trie_history.bytes);
        let schema = self.0.schema.load(Ordering::Relaxed);
        let upgrades = !blocks.is_empty() && schema != SCHEMA;
        if upgrades {
            batch.put(Space::Meta, SCHEMA_ROW, SCHEMA.to_be_bytes());
        }
        if upgrades && schema < SENDERS_SCHEMA {
            batch.put(Space::Meta, SENDERS_ROW, (head.number + 1).to_be_bytes());
        }
        for (key, id) in [(SAFE_ROW, safe), (FINALIZED_ROW, finalized)] {
            if let Some(id) = id {
                batch.put(Space::Meta, key, codec::encode_id(id));
            }
        }
        let kept = self
            .0
            .advance(&mut batch, new_head.number, finalized, trie_history)?;
        batch.commit(new_head)?;
        *head = new_head;
        if upgrades {
            self.0.schema.store(SCHEMA, Ordering::Relaxed);
        }
        self.0.history.committed(kept);
        Ok(())
    }

    /// Unwinds the newest stored block, as one atomic batch, so that its parent becomes the stored
    /// head. Codes stay. A safe or finalized head above the new head is lowered to it. Returns the
    /// new head.
    pub fn unwind_one(&self) -> Result<BlockId, StoreError> {
        let mut head = self.0.writer.lock();
        self.0.check_space()?;
        let snapshot = self.snapshot()?;
        let gone = *head;
        if gone.hash == self.0.identity.genesis_hash {
            return Err(StoreError::Genesis);
        }
        let record = snapshot
            .unwind_record(gone.number)?
            .ok_or(StoreError::NoUnwindRecord(gone.number))?;
        let lacks = |what: &str| ReadError::Damaged(format!("block {} has no {what}", gone.hash));
        let header = snapshot
            .header(gone.number)?
            .ok_or_else(|| lacks("header"))?;
        let body = snapshot.body(gone.number)?.ok_or_else(|| lacks("body"))?;
        // Damaged receipts must not stop an unwind. Index rows may then be left behind; readers
        // check the blocks that an index names.
        let receipts = match snapshot.receipts(gone.number) {
            Err(ReadError::Damaged(_)) => vec![],
            receipts => receipts?.unwrap_or_default(),
        };
        let parent = BlockId {
            hash: header.parent_hash,
            number: gone.number.saturating_sub(1),
        };
        let mut batch = StoreBatch::new(&self.0);
        batch.unwind_state(&snapshot, gone.number, record)?;
        let senders = match snapshot.senders(gone.number) {
            Err(ReadError::Damaged(_)) => vec![],
            senders => senders?.unwrap_or_default(),
        };
        let parts = BlockParts {
            transactions: &body,
            senders: &senders,
            receipts: &receipts,
        };
        batch.remove_values(gone.number, &parts, self.0.present_indexes(&snapshot)?);
        batch.remove_block(gone, &body);
        for (key, id) in [
            (SAFE_ROW, snapshot.safe()),
            (FINALIZED_ROW, snapshot.finalized()),
        ] {
            if id.is_some_and(|id| id.number > parent.number) {
                batch.put(Space::Meta, key, codec::encode_id(parent));
            }
        }
        batch.commit(parent)?;
        *head = parent;
        Ok(parent)
    }

    /// Waits until everything committed is on the disk.
    pub fn sync(&self) -> Result<(), StoreError> {
        self.0.sync()
    }

    /// Sets how many blocks below the head keep readable states; `None` keeps all.
    pub fn keep_states(&self, blocks: Option<u64>) {
        self.0.history.set_window(blocks);
    }

    /// Sets whether blocks written from now on store the addresses and slots whose hashes are the
    /// keys of the state. The addresses and slots of genesis are always stored.
    pub fn keep_names(&self, keep: bool) {
        self.0.keeps_names.store(keep, Ordering::Relaxed);
    }

    /// Rotates all memtables, so that fjall flushes them and removes old journals. This keeps the
    /// replay at the next open short.
    pub fn rotate(&self) -> Result<(), StoreError> {
        Ok(self.0.rotate_all()?)
    }

    /// Rotates all memtables and waits at most `limit` until they are flushed, so that the next open
    /// has little to replay. Fails with [`StoreError::NoSpace`] on a full disk.
    pub fn rotate_within(&self, limit: Duration) -> Result<(), StoreError> {
        self.0.check_space()?;
        self.rotate()?;
        let started = Instant::now();
        while started.elapsed() < limit
            && self
                .0
                .spaces
                .iter()
                .any(|space| space.sealed_memtable_count() > 0)
        {
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// Bytes in the active memtables. An open after a kill has to replay their rows from the
    /// journal.
    pub fn buffered(&self) -> u64 {
        self.0
            .spaces
            .iter()
            .map(|space| space.tree.active_memtable().size())
            .sum()
    }

    /// A named value stored with the chain, for example the genesis file.
    pub fn setting(&self, name: &str) -> Result<Option<Bytes>, StoreError> {
        Ok(get(
            &self.0.db.snapshot(),
            &self.0.spaces[Space::Meta as usize],
            setting_key(name).as_bytes(),
        )?)
    }

    /// Writes a named value, durably.
    pub fn set_setting(&self, name: &str, value: &[u8]) -> Result<(), StoreError> {
        let head = self.0.writer.lock();
        let mut batch = StoreBatch::new(&self.0);
        batch.put(Space::Meta, setting_key(name).as_bytes(), value);
        batch.commit(*head)?;
        self.sync()
    }
}

/// The new head after `blocks`, which must build on `head` and on each other: the last block, or
/// `head` if there are none.
fn tip(head: BlockId, blocks: &[Arc<ExecutedBlock>]) -> Result<BlockId, StoreError> {
    blocks.iter().try_fold(head, |head, block| {
        let id = block.payload.id();
        if block.payload.parent_hash() == head.hash && id.number == head.number + 1 {
            Ok(id)
        } else {
            Err(StoreError::Unlinked { block: id, head })
        }
    })
}

fn damaged_meta(key: &[u8]) -> StoreError {
    ReadError::Damaged(format!("row {} of meta", String::from_utf8_lossy(key))).into()
}

fn setting_key(name: &str) -> String {
    format!("setting/{name}")
}

/// A consistent snapshot of the store; cheap to clone, and keeps the store open. Typed reads are in
/// `store/read.rs`.
#[derive(Clone)]
pub struct Snapshot(Arc<SnapshotInner>);

struct SnapshotInner {
    snapshot: ::fjall::Snapshot,
    /// Generation of the cache of `state` at this snapshot; `None` if its reads must bypass the
    /// cache.
    generation: Option<u64>,
    /// Like `generation`, for the cache of rows of blocks.
    block_generation: Option<u64>,
    head: BlockId,
    safe: Option<BlockId>,
    finalized: Option<BlockId>,
    kept: HistoryBounds,
    /// For each index, the first block from which on the index has every block.
    indexes: PerIndex<u64>,
    inner: Arc<StoreInner>,
    /// Keeps the rows that this snapshot can read, except unwind records, from being pruned. The
    /// last field, so that it is released after the snapshot.
    _pin: Pin,
}

impl Snapshot {
    /// The newest stored block.
    pub fn head(&self) -> BlockId {
        self.0.head
    }

    pub fn safe(&self) -> Option<BlockId> {
        self.0.safe
    }

    pub fn finalized(&self) -> Option<BlockId> {
        self.0.finalized
    }

    /// Whether both handles refer to the same snapshot.
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// The oldest block whose state can still be read.
    pub fn oldest_state(&self) -> u64 {
        self.0.kept.states
    }

    fn get(&self, space: Space, key: &[u8]) -> Result<Option<Bytes>, ReadError> {
        let read = || {
            if memory_only::refuses() {
                return Err(ReadError::NotInMemory);
            }
            get(&self.0.snapshot, &self.0.inner.spaces[space as usize], key)
        };
        match (space, self.0.block_generation) {
            (Space::Blocks | Space::Index, Some(generation)) => {
                let cache = &self.0.inner.block_rows;
                cache.get(&block_cache_key(space, key), generation, read)
            }
            _ => read(),
        }
    }

    /// The rows of a keyspace whose keys begin with `prefix`, from key `from` on, ascending, loaded
    /// lazily.
    fn scan(
        &self,
        space: Space,
        prefix: &[u8],
        from: &[u8],
    ) -> impl Iterator<Item = Result<(Bytes, Bytes), ReadError>> + use<> {
        let mut refused = memory_only::refuses();
        let prefix = Bytes::copy_from_slice(prefix);
        let range = from.max(&prefix)..;
        let mut rows = (!refused).then(|| {
            let space = &self.0.inner.spaces[space as usize];
            self.0.snapshot.range(space, range)
        });
        std::iter::from_fn(move || {
            if std::mem::take(&mut refused) {
                return Some(Err(ReadError::NotInMemory));
            }
            let row = match rows.as_mut()?.next()?.into_inner() {
                Ok((key, value)) => {
                    Ok((Bytes::copy_from_slice(&key), Bytes::copy_from_slice(&value)))
                }
                Err(error) => Err(unreadable(space.name(), &error)),
            };
            // The range has no upper bound: stop at the first row without the prefix.
            let is_within = |(key, _): &(Bytes, Bytes)| key.starts_with(&prefix);
            row.as_ref().map_or(true, is_within).then_some(row)
        })
        .fuse()
    }
}

/// The key of a row of `blocks` or `index` in their common cache.
fn block_cache_key(space: Space, key: &[u8]) -> Box<[u8]> {
    [&[space as u8], key].concat().into()
}

fn get(
    snapshot: &::fjall::Snapshot,
    space: &Keyspace,
    key: &[u8],
) -> Result<Option<Bytes>, ReadError> {
    match snapshot.get(space, key) {
        Ok(row) => Ok(row.map(|row| Bytes::copy_from_slice(&row))),
        Err(error) => Err(unreadable(space.name(), &error)),
    }
}

fn unreadable(keyspace: &str, error: &::fjall::Error) -> ReadError {
    ReadError::Store(format!("keyspace {keyspace}: {}", describe_error(error)))
}

#[cfg(test)]
mod tests;
