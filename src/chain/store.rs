//! The store: the canonical chain on disk, in an LSM database (fjall) of six keyspaces grouped by life.
//!
//! Written by the persister alone: a group of blocks, or an unwind of one block, is one atomic batch across all keyspaces, and every
//! batch writes the same head row into each of them but `blocks`, where the newest block says it; at open all must agree. Read by
//! everybody, through a [`Snapshot`] only: plain reads would see half-applied batches. A snapshot pins the versions of all rows it can
//! see, so that compaction cannot drop them: keep snapshots short (long readers take a fresh view now and then).
//!
//! A batch is in the operating system's buffers when `commit` returns: it survives a kill of the process, not a power cut.
//! [`Store::sync`] makes it durable. What overloads the store: state history and receipts, by disk; writes stop above
//! [`free_space_floor`].

mod batch;
mod begun;
mod buffers;
mod cache;
mod codec;
mod error;
mod history;
mod journal;
pub mod keys;
mod lock;
mod maintain;
mod manifest;
mod proofs;
mod read;
mod retired;
mod space;
mod torn;
mod unwind;

pub use batch::{WrittenRow, written_rows};
pub(in crate::chain) use begun::{clear as clear_begun, is_database};
pub(super) use codec::decode_whole;
pub(in crate::chain) use error::words;
pub use error::{Identity, StoreError, rebuild};
pub use journal::DamagedJournal;
pub(in crate::chain) use journal::check as check_journals;
pub(in crate::chain) use maintain::{KINDS, Rewrite, is_own};
pub(in crate::chain) use manifest::check as check_lists;
pub(in crate::chain) use space::Space;
pub(in crate::chain) use unwind::misfit;
pub use unwind::{Before, UnwindRecord};

use crate::chain::view::{ExecutedBlock, Overlay, ReadError, RowChange};
use alloy_primitives::Bytes;
use batch::Batch;
use buffers::Buffers;
use cache::RowCache;
use fjall::{AbstractTree, CompressionType, Database, Keyspace, Readable};
use history::{History, Kept, Pin};
pub(crate) use lock::Lock;
use parking_lot::Mutex;
use retired::Retired;
use starling_proto::payload::{BlockId, Payload};
use std::{
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};
use torn::Heads;

/// Version of the row layout: version 4 keeps senders with each block. A store of [`OLDEST_SCHEMA`] or later is read as it is. The first
/// block that is written upgrades it to this version, since older versions of the program would not delete the senders of unwound blocks.
/// Any other store is refused.
pub const SCHEMA: u32 = 4;
const OLDEST_SCHEMA: u32 = 3;

/// Blocks below the finalized head whose unwind records are kept: deep enough for side branches and readers that still stand there.
pub const UNWIND_MARGIN: u64 = 1024;

/// The part of the disk, and within it the bytes, that must be free before a commit: a full disk would poison the database, and a
/// compaction, which nobody asks, writes tables anew before it removes the old ones.
const FREE_SPACE_PART: u64 = 32;
const FREE_SPACE: std::ops::RangeInclusive<u64> = 64 << 20..=2 << 30;

/// A genesis of more rows is written out at once: the first open should not find it in the journal.
const LARGE_GENESIS: usize = 100_000;
/// Longest wait for that: five million accounts take ten seconds.
const GENESIS_WRITTEN: Duration = Duration::from_secs(600);

const HEAD: &[u8] = b"_head";
const SCHEMA_ROW: &[u8] = b"schema";
const IDENTITY_ROW: &[u8] = b"identity";
const SAFE_ROW: &[u8] = b"safe";
const FINALIZED_ROW: &[u8] = b"finalized";
const OLDEST_ROW: &[u8] = b"oldest";
/// The first block from which on the senders of every block are kept.
const SENDERS_ROW: &[u8] = b"senders";
/// The oldest block whose unwind record is kept.
const UNWIND_ROW: &[u8] = b"unwind";

impl From<fjall::Error> for StoreError {
    fn from(error: fjall::Error) -> Self {
        match error {
            fjall::Error::Poisoned => Self::Poisoned,
            fjall::Error::Locked => Self::Locked { pid: None },
            other => Self::Engine(words(&other)),
        }
    }
}

/// What a store is opened for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Open {
    /// To be read and written.
    Whole,
    /// To be made whole.
    Repair,
}

/// A handle to the store; cheap to clone. The store closes when the last handle and the last snapshot are gone.
#[derive(Clone)]
pub struct Store(Arc<Inner>);

struct Inner {
    db: Database,
    spaces: [Keyspace; 6],
    rows: RowCache,
    buffers: Buffers,
    retired: Retired,
    path: PathBuf,
    identity: Identity,
    /// Version of the row layout on the disk.
    schema: AtomicU32,
    history: History,
    /// Bytes that must stay free on the disk.
    floor: u64,
    /// The stored head. Held during every write.
    writer: Mutex<BlockId>,
    /// Last: released after the database is closed.
    _lock: Lock,
}

impl Store {
    /// Creates a store in `dir` that holds a genesis block and its state. An interrupted creation can be repeated.
    /// `overlay` is the genesis state as [`trie::genesis`](crate::chain::trie::genesis) gives it.
    pub fn create(
        dir: &Path,
        cache: u64,
        identity: Identity,
        genesis: &Payload,
        overlay: &Overlay,
    ) -> Result<Self, StoreError> {
        refuse_other_clients(dir)?;
        let path = dir.join(DATABASE);
        if holds_something(&path) && !is_database(&path) && !begun::is_begun(&path) {
            return Err(StoreError::NotStarling(path));
        }
        std::fs::create_dir_all(dir).map_err(|source| StoreError::Io {
            path: dir.into(),
            source,
        })?;
        let lock = Lock::take(dir)?;
        clear_begun(&path).map_err(|source| StoreError::Io {
            path: path.clone(),
            source,
        })?;
        let history = History::default();
        let db = database(&path, cache, &history)?;
        let spaces = open_spaces(&db)?;
        if let Some((have, _)) = read_identity(&db, &spaces)? {
            return Err(StoreError::Exists(have));
        }
        let head = genesis.id();
        let floor = free_space_floor(&path).map_err(|source| StoreError::Io {
            path: path.clone(),
            source,
        })?;
        let (writer, rows) = (Mutex::new(head), RowCache::new(reads(cache) / 2));
        let (buffers, retired) = (Buffers::default(), Retired::default());
        let schema = AtomicU32::new(SCHEMA);
        let inner = Inner {
            db,
            spaces,
            rows,
            buffers,
            retired,
            path,
            identity,
            schema,
            history,
            floor,
            writer,
            _lock: lock,
        };
        let store = Self(Arc::new(inner));
        store.0.check_space()?;
        let mut batch = Batch::new(&store.0);
        batch.genesis(genesis, overlay);
        batch.put(Space::Meta, SCHEMA_ROW, SCHEMA.to_be_bytes());
        batch.put(
            Space::Meta,
            IDENTITY_ROW,
            [
                &identity.chain_id.to_be_bytes()[..],
                identity.genesis_hash.as_slice(),
            ]
            .concat(),
        );
        batch.put(Space::Meta, SENDERS_ROW, head.number.to_be_bytes());
        batch.put(Space::Meta, OLDEST_ROW, head.number.to_be_bytes());
        batch.put(Space::Meta, UNWIND_ROW, (head.number + 1).to_be_bytes());
        batch.commit(head)?;
        store.sync()?;
        if overlay.rows.len() > LARGE_GENESIS {
            // All of them: while one is left, the engine keeps the whole journal for it.
            store.rotate_within(GENESIS_WRITTEN)?;
        }
        Ok(store)
    }

    /// Opens the store in `dir`; `cache` is the size of the block cache in bytes. With `want`, a store of another chain is refused.
    pub fn open(dir: &Path, cache: u64, want: Option<Identity>) -> Result<Self, StoreError> {
        Self::open_as(dir, cache, want, Open::Whole).map(|(store, _)| store)
    }

    /// And the head that each keyspace has.
    fn open_as(
        dir: &Path,
        cache: u64,
        want: Option<Identity>,
        how: Open,
    ) -> Result<(Self, Heads), StoreError> {
        refuse_other_clients(dir)?;
        let path = dir.join(DATABASE);
        if !holds_something(&path) {
            return Err(StoreError::Missing(dir.into()));
        }
        if begun::is_begun(&path) {
            return Err(StoreError::Uninitialised(dir.into()));
        }
        if !is_database(&path) {
            return Err(match begun::has_keyspaces(&path) {
                true => StoreError::Damaged {
                    dir: dir.into(),
                    what: format!("{} is missing or empty", path.join("version").display()),
                },
                false => StoreError::NotStarling(path),
            });
        }
        let lock = Lock::take(dir)?;
        if let Some(damaged) = journal::check(&path).map_err(|source| StoreError::Io {
            path: path.clone(),
            source,
        })? {
            return Err(damaged.into());
        }
        if let Some(file) = check_lists(&path).map_err(|source| StoreError::Io {
            path: path.clone(),
            source,
        })? {
            return Err(StoreError::Damaged {
                dir: dir.into(),
                what: format!("{} is not what was written", file.display()),
            });
        }
        let history = History::default();
        let (db, spaces, (identity, schema)) = opened(dir, || {
            let db = database(&path, cache, &history)?;
            if db
                .list_keyspace_names()
                .iter()
                .any(|name| Space::ALL.iter().all(|space| space.name() != &**name))
            {
                return Err(StoreError::NotStarling(path.clone()));
            }
            if !Space::ALL
                .iter()
                .all(|space| db.keyspace_exists(space.name()))
            {
                return Err(StoreError::Uninitialised(dir.into()));
            }
            let spaces = open_spaces(&db)?;
            let identity = read_identity(&db, &spaces)?
                .ok_or_else(|| StoreError::Uninitialised(dir.into()))?;
            Ok((db, spaces, identity))
        })?;
        if let Some(want) = want.filter(|want| *want != identity) {
            return Err(StoreError::OtherChain {
                have: identity,
                want,
            });
        }
        let heads = opened(dir, || torn::read_heads(&db, &spaces))?;
        let head = match (torn::lowest(&heads), how) {
            (Some(head), Open::Whole) if heads.iter().any(|other| *other != Some(head)) => None,
            (head, _) => head,
        };
        let head = head.ok_or_else(|| StoreError::Torn {
            dir: dir.into(),
            heads: torn::words(&heads),
        })?;
        if how == Open::Whole
            && opened(dir, || {
                Ok(get(
                    &db.snapshot(),
                    &spaces[Space::Meta as usize],
                    torn::UNPROVEN,
                )?)
            })?
            .is_some()
        {
            return Err(StoreError::Unproven(dir.into()));
        }
        let floor = free_space_floor(&path).map_err(|source| StoreError::Io {
            path: path.clone(),
            source,
        })?;
        let (writer, rows) = (Mutex::new(head), RowCache::new(reads(cache) / 2));
        let (buffers, retired) = (Buffers::default(), Retired::default());
        let schema = AtomicU32::new(schema);
        let inner = Inner {
            db,
            spaces,
            rows,
            buffers,
            retired,
            path,
            identity,
            schema,
            history,
            floor,
            writer,
            _lock: lock,
        };
        let store = Self(Arc::new(inner));
        store
            .0
            .history
            .committed(opened(dir, || store.0.kept(&store.0.db.snapshot()))?);
        Ok((store, heads))
    }

    pub fn identity(&self) -> Identity {
        self.0.identity
    }

    /// The newest stored block. Waits for a write that is under way.
    pub fn head(&self) -> BlockId {
        *self.0.writer.lock()
    }

    /// A consistent reading of all keyspaces as they are now. Taken by whoever writes (the persister), or while nobody does: the engine
    /// may show half of a batch that is being committed, when it writes a memtable out at that moment.
    pub fn snapshot(&self) -> Result<Snapshot, StoreError> {
        let pin = self.0.history.pin();
        let (snapshot, generation) = self.0.rows.at_generation(|| self.0.db.snapshot());
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
        let (safe, finalized) = (id(SAFE_ROW)?, id(FINALIZED_ROW)?);
        let inner = self.0.clone();
        Ok(Snapshot(Arc::new(SnapshotInner {
            snapshot,
            generation,
            head,
            safe,
            finalized,
            kept,
            _pin: pin,
            inner,
        })))
    }

    /// Writes a group of blocks that stand on the stored head, oldest first, as one atomic batch, together with the heads.
    /// A `None` head keeps what is stored. Unwind records [`UNWIND_MARGIN`] blocks below the finalized head are let go, and old states
    /// by [`Store::keep_states`].
    pub fn commit(
        &self,
        blocks: &[Arc<ExecutedBlock>],
        safe: Option<BlockId>,
        finalized: Option<BlockId>,
    ) -> Result<(), StoreError> {
        let mut head = self.0.writer.lock();
        self.0.check_space()?;
        let mut new_head = *head;
        for block in blocks {
            let id = block.payload.id();
            if block.payload.parent_hash() != new_head.hash || id.number != new_head.number + 1 {
                return Err(StoreError::Unlinked {
                    block: id,
                    head: new_head,
                });
            }
            new_head = id;
        }
        let mut batch = Batch::new(&self.0);
        let mut written = self.0.written(*head)?;
        batch.blocks(blocks, &mut written.bytes);
        let upgrades = !blocks.is_empty() && self.0.schema.load(Ordering::Relaxed) != SCHEMA;
        if upgrades {
            batch.put(Space::Meta, SCHEMA_ROW, SCHEMA.to_be_bytes());
            batch.put(Space::Meta, SENDERS_ROW, (head.number + 1).to_be_bytes());
        }
        for (key, id) in [(SAFE_ROW, safe), (FINALIZED_ROW, finalized)] {
            if let Some(id) = id {
                batch.put(Space::Meta, key, codec::encode_id(id));
            }
        }
        let kept = self
            .0
            .advance(&mut batch, new_head.number, finalized, written)?;
        batch.commit(new_head)?;
        *head = new_head;
        if upgrades {
            self.0.schema.store(SCHEMA, Ordering::Relaxed);
        }
        self.0.history.committed(kept);
        Ok(())
    }

    /// Takes the newest stored block back, as one atomic batch: its parent is the stored head afterwards. Codes stay. A safe or
    /// finalized head above the new head comes down to it. Returns the new head.
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
        let parent = BlockId {
            hash: header.parent_hash,
            number: gone.number.saturating_sub(1),
        };

        let mut batch = Batch::new(&self.0);
        let mut overlay = Overlay::default();
        for (key, before) in record {
            let after = snapshot.state_row(&key)?;
            let before = before
                .row(after.as_ref())
                .ok_or_else(|| unwind::misfit(gone.number, &key))?;
            batch.state(&key, before.as_ref());
            match keys::is_flat(&key) {
                true => batch.set(Space::History, &keys::history(&key, gone.number), None),
                false => drop(overlay.rows.insert(key, RowChange { before, after })),
            }
        }
        proofs::rows(&overlay, gone.number, |key, _| {
            batch.set(Space::History, key, None)
        });
        batch.set(Space::History, &keys::trie_history_bytes(gone.number), None);
        batch.set(Space::History, &keys::unwind(gone.number), None);
        for key in
            [keys::header, keys::body, keys::receipts, keys::senders].map(|key| key(gone.number))
        {
            batch.set(Space::Blocks, &key, None);
        }
        batch.set(Space::Index, &keys::hash_of(gone.number), None);
        batch.set(Space::Index, &keys::number_of(&gone.hash), None);
        for transaction in &body {
            batch.set(
                Space::Index,
                &keys::transaction(&alloy_primitives::keccak256(transaction)),
                None,
            );
        }
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

    /// How many blocks below the head keep their states readable; `None` is all.
    pub fn keep_states(&self, blocks: Option<u64>) {
        self.0.history.set_window(blocks);
    }

    /// Starts to write memtables out that have been filling for long, so that the journal can be cut: replay at open stays short.
    pub fn rotate(&self) -> Result<(), StoreError> {
        Ok(self.0.turn_over()?)
    }

    /// Writes memtables out, so that the next open has little to replay, if there is room; waits for it no longer than this.
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

    /// Bytes in memtables that are not being written out: what an open after a kill has to replay.
    pub fn buffered(&self) -> u64 {
        self.0
            .spaces
            .iter()
            .map(|space| space.tree.active_memtable().size())
            .sum()
    }

    /// A named value that lives with the chain, for example the genesis file it was made from.
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
        let mut batch = Batch::new(&self.0);
        batch.put(Space::Meta, setting_key(name).as_bytes(), value);
        batch.commit(*head)?;
        self.sync()
    }
}

/// What is left of the cache for reading, half for rows and half for the blocks of tables that they lie in: write buffers are memory for
/// the database too.
fn reads(cache: u64) -> u64 {
    cache / 4 * 3
}

fn database(path: &Path, cache: u64, history: &History) -> Result<Database, fjall::Error> {
    let builder = Database::builder(path)
        .cache_size(reads(cache) / 2)
        .journal_compression(CompressionType::None);
    // With more threads than one, one of them would turn in circles while another compacts.
    builder
        .worker_threads(1)
        .with_compaction_filter_factories(history.filters())
        .open()
}

/// What cannot be read while a store is opened is a damaged database.
fn opened<T>(dir: &Path, open: impl FnOnce() -> Result<T, StoreError>) -> Result<T, StoreError> {
    let damaged = |what| StoreError::Damaged {
        dir: dir.into(),
        what,
    };
    open().map_err(|error| match error {
        StoreError::Engine(what) => damaged(what),
        StoreError::Read(error) => damaged(error.cause()),
        other => other,
    })
}

/// The database's folder inside the directory of a store.
pub(in crate::chain) const DATABASE: &str = "chain";

/// Where other execution clients keep their databases.
const OTHER_CLIENTS: [(&str, &str); 3] = [
    ("geth/chaindata", "geth"),
    ("db/mdbx.dat", "reth"),
    ("chaindata/mdbx.dat", "erigon"),
];

fn refuse_other_clients(dir: &Path) -> Result<(), StoreError> {
    match OTHER_CLIENTS
        .iter()
        .find(|(sign, _)| dir.join(sign).exists())
    {
        Some((_, client)) => Err(StoreError::OtherClient {
            path: dir.into(),
            client,
        }),
        None => Ok(()),
    }
}

fn holds_something(path: &Path) -> bool {
    path.read_dir()
        .is_ok_and(|mut entries| entries.next().is_some())
}

fn open_spaces(db: &Database) -> Result<[Keyspace; 6], StoreError> {
    let [state, history, blocks, index, code, meta] =
        Space::ALL.map(|space| db.keyspace(space.name(), || space.options()));
    Ok([state?, history?, blocks?, index?, code?, meta?])
}

/// The chain and the version of the row layout. `None`: nothing was ever committed.
fn read_identity(
    db: &Database,
    spaces: &[Keyspace; 6],
) -> Result<Option<(Identity, u32)>, StoreError> {
    let snapshot = db.snapshot();
    let meta = &spaces[Space::Meta as usize];
    let Some(schema) = get(&snapshot, meta, SCHEMA_ROW)? else {
        return Ok(None);
    };
    let have = schema
        .as_ref()
        .try_into()
        .map(u32::from_be_bytes)
        .map_err(|_| damaged_meta(SCHEMA_ROW))?;
    if !(OLDEST_SCHEMA..=SCHEMA).contains(&have) {
        return Err(StoreError::Schema { have, want: SCHEMA });
    }
    let row = get(&snapshot, meta, IDENTITY_ROW)?.ok_or_else(|| damaged_meta(IDENTITY_ROW))?;
    let (chain_id, hash) = row
        .split_at_checked(8)
        .ok_or_else(|| damaged_meta(IDENTITY_ROW))?;
    let chain_id = codec::decode_number(chain_id).ok_or_else(|| damaged_meta(IDENTITY_ROW))?;
    let genesis_hash = hash.try_into().map_err(|_| damaged_meta(IDENTITY_ROW))?;
    Ok(Some((
        Identity {
            chain_id,
            genesis_hash,
        },
        have,
    )))
}

fn damaged_meta(key: &[u8]) -> StoreError {
    ReadError::Damaged(format!("row {} of meta", String::from_utf8_lossy(key))).into()
}

fn setting_key(name: &str) -> String {
    format!("setting/{name}")
}

impl Inner {
    fn check_space(&self) -> Result<(), StoreError> {
        let free = || {
            free_space(&self.path).map_err(|source| StoreError::Io {
                path: self.path.clone(),
                source,
            })
        };
        if free()? >= self.floor {
            return Ok(());
        }
        self.remove_retired();
        let free = free()?;
        if free < self.floor {
            Err(StoreError::NoSpace {
                free,
                floor: self.floor,
            })
        } else {
            Ok(())
        }
    }
}

/// Bytes that must be free on the disk of `path`.
pub(super) fn free_space_floor(path: &Path) -> std::io::Result<u64> {
    let stat = nix::sys::statvfs::statvfs(path)?;
    let size = stat.blocks().saturating_mul(stat.fragment_size());
    Ok((size / FREE_SPACE_PART).clamp(*FREE_SPACE.start(), *FREE_SPACE.end()))
}

/// Bytes free on the disk of `path`.
pub(super) fn free_space(path: &Path) -> std::io::Result<u64> {
    let stat = nix::sys::statvfs::statvfs(path)?;
    Ok(stat.blocks_available().saturating_mul(stat.fragment_size()))
}

/// A consistent reading of the store; cheap to clone, and keeps the store open. Typed reads are in `store/read.rs`.
#[derive(Clone)]
pub struct Snapshot(Arc<SnapshotInner>);

struct SnapshotInner {
    snapshot: fjall::Snapshot,
    /// Of the row cache; `None` if it must not be asked.
    generation: Option<u64>,
    head: BlockId,
    safe: Option<BlockId>,
    finalized: Option<BlockId>,
    kept: Kept,
    inner: Arc<Inner>,
    /// Last: the states stay as long as the snapshot.
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

    /// Whether this is the same reading.
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// The oldest block whose state can still be read.
    pub fn oldest_state(&self) -> u64 {
        self.0.kept.states
    }

    fn get(&self, space: Space, key: &[u8]) -> Result<Option<Bytes>, ReadError> {
        get(&self.0.snapshot, &self.0.inner.spaces[space as usize], key)
    }

    fn scan(
        &self,
        space: Space,
        prefix: &[u8],
        from: &[u8],
    ) -> impl Iterator<Item = Result<(Bytes, Bytes), ReadError>> + use<> {
        let prefix = Bytes::copy_from_slice(prefix);
        let rows = self
            .0
            .snapshot
            .range(&self.0.inner.spaces[space as usize], from.max(&prefix)..);
        let mut rows = rows.map(move |row| match row.into_inner() {
            Ok((key, value)) => Ok((Bytes::copy_from_slice(&key), Bytes::copy_from_slice(&value))),
            Err(error) => Err(unreadable(space.name(), &error)),
        });
        // After the last row with the prefix nothing more is read.
        std::iter::from_fn(move || {
            rows.next().filter(|row| {
                row.as_ref()
                    .map_or(true, |(key, _)| key.starts_with(&prefix))
            })
        })
        .fuse()
    }
}

fn get(
    snapshot: &fjall::Snapshot,
    space: &Keyspace,
    key: &[u8],
) -> Result<Option<Bytes>, ReadError> {
    match snapshot.get(space, key) {
        Ok(row) => Ok(row.map(|row| Bytes::copy_from_slice(&row))),
        Err(error) => Err(unreadable(space.name(), &error)),
    }
}

fn unreadable(keyspace: &str, error: &fjall::Error) -> ReadError {
    ReadError::Store(format!("keyspace {keyspace}: {}", words(error)))
}

#[cfg(test)]
mod tests;
