//! Opening a store: creating one with a genesis, checking the files of an existing one, and
//! refusing folders that hold anything else.

use crate::chain::{
    rows::{Overlay, codec},
    store::{
        IDENTITY_ROW, Identity, Lock, Memtables, OLDEST_ROW, OLDEST_SCHEMA, ObsoleteFiles,
        RowCache, SCHEMA, SCHEMA_ROW, SENDERS_ROW, Space, Store, StoreBatch, StoreError,
        StoreInner, UNWIND_ROW, check_journals, check_manifests, damaged_meta,
        disk_space::free_space_floor,
        folder, get,
        history::History,
        torn_write::{self, KeyspaceHeads},
    },
};
use fjall::{CompressionType, Database, Keyspace};
use parking_lot::Mutex;
use starling_proto::payload::{BlockId, Payload};
use std::{
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32},
    },
    time::Duration,
};

/// The database's folder inside the directory of a store.
pub(crate) const DATABASE: &str = "chain";

/// Number of rows of a genesis above which it is flushed at once, so that the first open need not
/// replay it from the journal.
pub(super) const LARGE_GENESIS: usize = 100_000;
/// Longest wait for the flush of a large genesis: five million accounts take ten seconds.
const GENESIS_FLUSH: Duration = Duration::from_secs(600);

/// Files by which the data directories of other execution clients are recognised.
pub(super) const OTHER_CLIENTS: [(&str, &str); 3] = [
    ("geth/chaindata", "geth"),
    ("db/mdbx.dat", "reth"),
    ("chaindata/mdbx.dat", "erigon"),
];

/// Purpose of opening a store.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum OpenPurpose {
    /// Reading and writing.
    Normal,
    /// Repair; keyspaces may disagree on the head.
    Repair,
}

impl Store {
    /// Creates a store in `dir` that holds a genesis block and its state. An interrupted creation
    /// can be repeated. `overlay` is the genesis state as
    /// [`trie::genesis`](crate::chain::trie::genesis) computes it.
    pub fn create(
        dir: &Path,
        cache: u64,
        identity: Identity,
        genesis: &Payload,
        overlay: &Overlay,
    ) -> Result<Self, StoreError> {
        refuse_other_clients(dir)?;
        let path = dir.join(DATABASE);
        if holds_files(&path) && !folder::is_database(&path) && !folder::is_partial(&path) {
            return Err(StoreError::NotStarling(path));
        }
        std::fs::create_dir_all(dir).map_err(StoreError::io(dir))?;
        let lock = Lock::take(dir)?;
        folder::remove_partial(&path).map_err(StoreError::io(&path))?;
        let history = History::default();
        let db = database(&path, cache, &history)?;
        let spaces = open_spaces(&db)?;
        if let Some((have, _)) = read_identity(&db, &spaces)? {
            return Err(StoreError::Exists(have));
        }
        let opened = OpenDatabase {
            db,
            spaces,
            history,
            identity,
            schema: SCHEMA,
        };
        let head = genesis.id();
        let floor = free_space_floor(&path).map_err(StoreError::io(&path))?;
        let store = opened.into_store(path, cache, floor, head, lock);
        store.0.check_space()?;
        store.write_genesis(genesis, overlay)?;
        store.sync()?;
        if overlay.rows.len() > LARGE_GENESIS {
            // Flush all keyspaces: fjall keeps the whole journal while any keyspace is unflushed.
            store.rotate_within(GENESIS_FLUSH)?;
        }
        Ok(store)
    }

    fn write_genesis(&self, genesis: &Payload, overlay: &Overlay) -> Result<(), StoreError> {
        let (head, identity) = (genesis.id(), self.identity());
        let mut batch = StoreBatch::new(&self.0);
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
        batch.genesis_indexes(head.number);
        batch.commit(head)
    }

    /// Opens the store in `dir`. `cache` is the memory for reads and memtables, in bytes. A store
    /// of another chain than `want` is refused.
    pub fn open(dir: &Path, cache: u64, want: Option<Identity>) -> Result<Self, StoreError> {
        Self::open_as(dir, cache, want, OpenPurpose::Normal).map(|(store, _)| store)
    }

    /// Opens the store as [`Store::open`] does, for the given purpose. Also returns the head of
    /// each keyspace.
    pub(super) fn open_as(
        dir: &Path,
        cache: u64,
        want: Option<Identity>,
        purpose: OpenPurpose,
    ) -> Result<(Self, KeyspaceHeads), StoreError> {
        refuse_other_clients(dir)?;
        let path = dir.join(DATABASE);
        check_folder(dir, &path)?;
        let lock = Lock::take(dir)?;
        check_files(dir, &path)?;
        let opened = damaged_if_unreadable(dir, || OpenDatabase::open(dir, &path, cache))?;
        if let Some(want) = want.filter(|want| *want != opened.identity) {
            return Err(StoreError::OtherChain {
                have: opened.identity,
                want,
            });
        }
        let heads =
            damaged_if_unreadable(dir, || torn_write::read_heads(&opened.db, &opened.spaces))?;
        let head = common_head(dir, &heads, purpose)?;
        if purpose == OpenPurpose::Normal
            && damaged_if_unreadable(dir, || {
                torn_write::is_unverified(&opened.db, &opened.spaces)
            })?
        {
            return Err(StoreError::Unproven(dir.into()));
        }
        let floor = free_space_floor(&path).map_err(StoreError::io(&path))?;
        let store = opened.into_store(path, cache, floor, head, lock);
        let kept = damaged_if_unreadable(dir, || store.0.kept(&store.0.db.snapshot()))?;
        store.0.history.committed(kept);
        Ok((store, heads))
    }
}

/// An open database and the contents of its meta rows, before it becomes a [`Store`].
struct OpenDatabase {
    db: Database,
    spaces: [Keyspace; 6],
    history: History,
    identity: Identity,
    schema: u32,
}

impl OpenDatabase {
    /// Opens the database in `path`, a folder of the store in `dir`.
    fn open(dir: &Path, path: &Path, cache: u64) -> Result<Self, StoreError> {
        let history = History::default();
        let db = database(path, cache, &history)?;
        if db
            .list_keyspace_names()
            .iter()
            .any(|name| Space::ALL.iter().all(|space| space.name() != &**name))
        {
            return Err(StoreError::NotStarling(path.into()));
        }
        if !Space::ALL
            .iter()
            .all(|space| db.keyspace_exists(space.name()))
        {
            return Err(StoreError::Uninitialised(dir.into()));
        }
        let spaces = open_spaces(&db)?;
        let (identity, schema) =
            read_identity(&db, &spaces)?.ok_or_else(|| StoreError::Uninitialised(dir.into()))?;
        Ok(Self {
            db,
            spaces,
            history,
            identity,
            schema,
        })
    }

    fn into_store(self, path: PathBuf, cache: u64, floor: u64, head: BlockId, lock: Lock) -> Store {
        Store(Arc::new(StoreInner {
            db: self.db,
            spaces: self.spaces,
            rows: RowCache::new(read_cache(cache) / 2 - block_row_cache(cache)),
            block_rows: RowCache::new(block_row_cache(cache)),
            memtables: Memtables::default(),
            obsolete: ObsoleteFiles::default(),
            path,
            identity: self.identity,
            schema: AtomicU32::new(self.schema),
            history: self.history,
            keeps_names: AtomicBool::new(false),
            floor,
            writer: Mutex::new(head),
            _lock: lock,
        }))
    }
}

/// Refuses a folder that does not contain a complete database.
fn check_folder(dir: &Path, path: &Path) -> Result<(), StoreError> {
    if !holds_files(path) {
        return Err(StoreError::Missing(dir.into()));
    }
    if folder::is_partial(path) {
        return Err(StoreError::Uninitialised(dir.into()));
    }
    if folder::is_database(path) {
        Ok(())
    } else if folder::has_keyspaces(path) {
        Err(StoreError::Damaged {
            dir: dir.into(),
            what: format!(
                "{} is missing or empty",
                folder::version_file(path).display()
            ),
        })
    } else {
        Err(StoreError::NotStarling(path.into()))
    }
}

/// Checks the files that fjall would read without noticing damage: journals and manifests.
fn check_files(dir: &Path, path: &Path) -> Result<(), StoreError> {
    if let Some(damaged) = check_journals(path).map_err(StoreError::io(path))? {
        return Err(damaged.into());
    }
    if let Some(file) = check_manifests(path).map_err(StoreError::io(path))? {
        return Err(StoreError::Damaged {
            dir: dir.into(),
            what: format!("{} is not what was written", file.display()),
        });
    }
    Ok(())
}

/// The head that all keyspaces agree on; for a repair, the lowest head.
fn common_head(
    dir: &Path,
    heads: &KeyspaceHeads,
    purpose: OpenPurpose,
) -> Result<BlockId, StoreError> {
    torn_write::lowest(heads)
        .filter(|lowest| {
            purpose == OpenPurpose::Repair || heads.iter().all(|head| *head == Some(*lowest))
        })
        .ok_or_else(|| StoreError::Torn {
            dir: dir.into(),
            heads: torn_write::describe(heads),
        })
}

/// Share of `--cache` for reads: half row caches, half block cache. The rest is set aside for
/// memtables, whose budget does not depend on the size of the cache.
fn read_cache(cache: u64) -> u64 {
    cache / 4 * 3
}

/// Share of the row caches for rows of blocks and their index. Clients ask for few of them again,
/// and 32 MiB are enough for thousands of small blocks.
fn block_row_cache(cache: u64) -> u64 {
    (read_cache(cache) / 16).min(32 << 20)
}

fn database(path: &Path, cache: u64, history: &History) -> Result<Database, fjall::Error> {
    let builder = Database::builder(path)
        .cache_size(read_cache(cache) / 2)
        .journal_compression(CompressionType::None);
    // With more worker threads, one of them would spin while another compacts.
    builder
        .worker_threads(1)
        .with_compaction_filter_factories(history.filters())
        .open()
}

/// Turns a read error into [`StoreError::Damaged`], which explains how to replace the database.
fn damaged_if_unreadable<T>(
    dir: &Path,
    open: impl FnOnce() -> Result<T, StoreError>,
) -> Result<T, StoreError> {
    let damaged = |what| StoreError::Damaged {
        dir: dir.into(),
        what,
    };
    open().map_err(|error| match error {
        StoreError::Database(what) => damaged(what),
        StoreError::Read(error) => damaged(error.cause()),
        other => other,
    })
}

fn refuse_other_clients(dir: &Path) -> Result<(), StoreError> {
    match OTHER_CLIENTS
        .iter()
        .find(|(file, _)| dir.join(file).exists())
    {
        Some((_, client)) => Err(StoreError::OtherClient {
            path: dir.into(),
            client,
        }),
        None => Ok(()),
    }
}

fn holds_files(path: &Path) -> bool {
    path.read_dir()
        .is_ok_and(|mut entries| entries.next().is_some())
}

/// Opens the keyspaces, or creates them in a new database.
fn open_spaces(db: &Database) -> Result<[Keyspace; 6], StoreError> {
    let [state, history, blocks, index, code, meta] =
        Space::ALL.map(|space| db.keyspace(space.name(), || space.options()));
    Ok([state?, history?, blocks?, index?, code?, meta?])
}

/// Reads the identity of the chain and the version of the row layout. `None` if no batch was ever
/// committed.
fn read_identity(
    db: &Database,
    spaces: &[Keyspace; 6],
) -> Result<Option<(Identity, u32)>, StoreError> {
    let snapshot = db.snapshot();
    let meta = &spaces[Space::Meta as usize];
    let Some(row) = get(&snapshot, meta, SCHEMA_ROW)? else {
        return Ok(None);
    };
    let schema = row
        .as_ref()
        .try_into()
        .map(u32::from_be_bytes)
        .map_err(|_| damaged_meta(SCHEMA_ROW))?;
    if !(OLDEST_SCHEMA..=SCHEMA).contains(&schema) {
        return Err(StoreError::Schema {
            have: schema,
            want: SCHEMA,
        });
    }
    let row = get(&snapshot, meta, IDENTITY_ROW)?.ok_or_else(|| damaged_meta(IDENTITY_ROW))?;
    let (chain_id, hash) = row
        .split_at_checked(8)
        .ok_or_else(|| damaged_meta(IDENTITY_ROW))?;
    let chain_id = codec::decode_number(chain_id).ok_or_else(|| damaged_meta(IDENTITY_ROW))?;
    let genesis_hash = hash.try_into().map_err(|_| damaged_meta(IDENTITY_ROW))?;
    let identity = Identity {
        chain_id,
        genesis_hash,
    };
    Ok(Some((identity, schema)))
}
