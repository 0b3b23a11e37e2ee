//! The payload log: accepted and built payloads, in order of arrival, in a small database of its
//! own (`wal/`). Blocks of a gap or a file are left out, since they can be fetched or read again.
//!
//! The chain writes a payload here before its state is persisted, and replays it after a crash. A
//! sequencer writes a block together with its guard row, and fsyncs, before it sends the block to
//! the signer. A guard row says that the block may have been signed, whether or not the signer's
//! response was received. The sequencer never signs two blocks for one (height, parent, L1 origin).
//! The L1 origin is part of the key because after an L1 reorg a height must be filled again. Each
//! guard row has an order number, which shows the block of a height that was sent last. The log
//! grows with the chain until [`PayloadLog::prune`].

use crate::chain::rows::codec;
use crate::chain::store::{
    DamagedJournal, check_journals, check_manifests, describe_error, folder, free_space,
    free_space_floor,
};
use alloy_consensus::Header;
use alloy_primitives::{B256, Bytes, keccak256};
use fjall::{Database, Keyspace, KeyspaceCreateOptions, OwnedWriteBatch, PersistMode, Readable};
use parking_lot::Mutex;
use starling_proto::payload::{BlockId, EthereumBody, Payload};
pub use starling_proto::signed_before::SignGuard;
use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

/// Number of blocks for which guard rows outlive their payloads. No reorg of L1 reaches back as
/// far.
pub const GUARD_WINDOW: u64 = 100_000;

/// Origin of a payload that was received, or built but never sent to the signer.
pub const FOLLOWED: u8 = 0;
/// Origin of a payload that was built here and may be signed.
pub const BUILT: u8 = 1;

/// Marker file in the log's folder: while it exists, guard rows may be missing.
const GUARDS_CUT: &str = "guards-cut";

/// The path of the marker file `GUARDS_CUT` in a log's folder.
pub fn cut_mark(folder: &Path) -> PathBuf {
    folder.join(GUARDS_CUT)
}

/// Creates the marker file. Called before a repair cuts the log in this folder.
pub(crate) fn mark_cut(folder: &Path) -> std::io::Result<()> {
    std::fs::File::create(cut_mark(folder))?.sync_all()?;
    std::fs::File::open(folder)?.sync_all()
}

/// Moves everything except the marker file from the folder of a log into a new folder `to`. Can be
/// repeated after an interruption.
pub(crate) fn move_out(folder: &Path, to: &Path) -> std::io::Result<()> {
    std::fs::create_dir(to)?;
    for entry in folder.read_dir()? {
        let name = entry?.file_name();
        if name != GUARDS_CUT {
            std::fs::rename(folder.join(&name), to.join(&name))?;
        }
    }
    std::fs::File::open(folder)?.sync_all()
}

#[derive(Debug, thiserror::Error)]
pub enum LogError {
    #[error("another block was built for this height, parent and L1 origin: {have}")]
    GuardConflict { have: B256 },
    #[error(
        "row {row} of the payload log in {} is damaged: restore a backup of the folder, or run `starling db repair`, which puts it \
         aside. A node that never signs can do without it; a sequencer signs nothing then until its operator says so",
        path.display()
    )]
    Damaged { row: String, path: PathBuf },
    #[error(
        "the payload log in {} cannot be read: {what}. Restore a backup of the folder, or run `starling db repair`, which puts it \
         aside. A node that never signs can do without it; a sequencer signs nothing then until its operator says so",
        path.display()
    )]
    Unreadable { path: PathBuf, what: String },
    #[error(
        "the end of the payload log was cut, and with it perhaps what this sequencer has signed: nothing is signed until {} is removed. \
         Do so when the chain's head has passed every block that was signed here",
        .0.display()
    )]
    GuardsCut(PathBuf),
    #[error("the payload log is in use by another process")]
    Locked,
    #[error("{} does not hold a payload log", .0.display())]
    NotALog(PathBuf),
    #[error("only {free} bytes are free on the disk of the payload log, {floor} must stay free")]
    NoSpace { free: u64, floor: u64 },
    #[error(
        "a write to the payload log failed, and it accepts no more: the log says above what failed. Fix that (the disk, its file system) \
         and start again"
    )]
    Poisoned,
    #[error("{0}: `starling db repair` cuts it at its last whole batch")]
    Journal(#[from] DamagedJournal),
    #[error("payload log: {0}")]
    Database(String),
}

impl LogError {
    /// Whether a write failed only for lack of disk space.
    pub fn is_full(&self) -> bool {
        matches!(self, Self::NoSpace { .. })
    }
}

impl From<std::io::Error> for LogError {
    fn from(error: std::io::Error) -> Self {
        Self::Database(error.to_string())
    }
}

impl From<fjall::Error> for LogError {
    fn from(error: fjall::Error) -> Self {
        match error {
            fjall::Error::Poisoned => Self::Poisoned,
            fjall::Error::Locked => Self::Locked,
            other => Self::Database(describe_error(&other)),
        }
    }
}

/// Key of the head row: see [`LogInner::index`].
const HEAD: &[u8] = b"followed";

/// Prefix of the index rows by height and hash.
const HEIGHTS: &[u8] = b"n";

/// A payload in the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Logged {
    pub payload: Payload,
    /// Origin of the payload: [`FOLLOWED`] or [`BUILT`].
    pub origin: u8,
}

/// The head that the log records, to be restored by a restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoggedHead {
    pub head: BlockId,
    /// Arrival number of the first payload logged after the head was set.
    pub next: u64,
}

/// The size of a log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogSize {
    pub payloads: u64,
    /// Bytes of the payloads' rows.
    pub bytes: u64,
    /// The lowest and the highest height of a payload in the log.
    pub heights: Option<(u64, u64)>,
    pub guards: u64,
}

/// A handle to the log; cheap to clone.
#[derive(Clone)]
pub struct PayloadLog(Arc<LogInner>);

struct LogInner {
    path: PathBuf,
    /// Bytes that must stay free on the log's disk.
    floor: u64,
    db: Database,
    /// Rows: arrival number, big-endian → payload.
    payloads: Keyspace,
    /// `h‖hash` → arrival number; `n‖height‖hash` → arrival number; `followed` → see [`LoggedHead`].
    index: Keyspace,
    /// Height, parent hash, L1 origin hash → block hash and [`SignGuard::sent_order`].
    guard: Keyspace,
    /// The next arrival number. Locked during every write.
    writer: Mutex<u64>,
}

impl PayloadLog {
    /// Opens the log in `dir`, or creates one there.
    pub fn open(dir: &Path) -> Result<Self, LogError> {
        folder::remove_partial(dir)?;
        let mark = |entry: &std::fs::DirEntry| entry.file_name() == GUARDS_CUT;
        let holds_more = dir
            .read_dir()
            .is_ok_and(|entries| !entries.flatten().all(|entry| mark(&entry)));
        if holds_more && !folder::is_database(dir) {
            return Err(LogError::NotALog(dir.into()));
        }
        if dir.is_dir()
            && let Some(damaged) = check_journals(dir)?
        {
            return Err(damaged.into());
        }
        let unreadable = |what| LogError::Unreadable {
            path: dir.into(),
            what,
        };
        if folder::is_database(dir)
            && let Some(file) = check_manifests(dir)?
        {
            return Err(unreadable(format!(
                "{} is not what was written",
                file.display()
            )));
        }
        Self::start(dir).map_err(|error| match error {
            LogError::Database(what) => unreadable(what),
            other => other,
        })
    }

    /// Opens a log whose files have been checked.
    fn start(dir: &Path) -> Result<Self, LogError> {
        let db = Database::builder(dir)
            .cache_size(8 << 20)
            .worker_threads(1)
            .open()?;
        let options = || KeyspaceCreateOptions::default().max_memtable_size(8 << 20);
        let payloads = db.keyspace("payloads", options)?;
        let (index, guard) = (
            db.keyspace("index", options)?,
            db.keyspace("guard", options)?,
        );
        folder::sync(dir)?;
        // Half of the store's floor: the store stops first, and blocks executed already can still
        // be logged.
        let floor = free_space_floor(dir)? / 2;
        let inner = LogInner {
            path: dir.into(),
            floor,
            db,
            payloads,
            index,
            guard,
            writer: Mutex::new(0),
        };
        let snapshot = inner.db.snapshot();
        let mut next = 0;
        if let Some(last) = snapshot.last_key_value(&inner.payloads) {
            let key = last.key()?;
            next = inner.number(&key, &key)? + 1;
        }
        // A repair that cuts the journal can lose a payload whose index rows are in tables already.
        // The number of a lost payload is not assigned again, because its index rows would then
        // lead to another payload.
        for row in snapshot.prefix(&inner.index, HEIGHTS) {
            let (key, arrival) = row.into_inner()?;
            next = next.max(inner.number(&key, &arrival)?.saturating_add(1));
        }
        *inner.writer.lock() = next;
        let log = Self(Arc::new(inner));
        // If pruning has emptied the log, the next number comes from the head row, so that later
        // payloads are still numbered after the head.
        if let Some(followed) = log.head()? {
            let mut next = log.0.writer.lock();
            *next = followed.next.max(*next);
        }
        Ok(log)
    }

    /// Appends a payload, unless the log already has it. Survives a kill of the process, but not a
    /// power cut.
    pub fn append(&self, payload: &Payload, origin: u8) -> Result<(), LogError> {
        let mut next = self.0.writer.lock();
        let mut batch = self.0.db.batch();
        let added = self.0.add(&mut batch, *next, payload, origin)?;
        batch.commit()?;
        *next += u64::from(added);
        Ok(())
    }

    /// Appends a payload together with its guard row, and syncs both to disk. The row gets the
    /// highest order number of its height and parent. Fails if the guard row of this (height,
    /// parent, L1 origin) holds another hash, since that block may have been signed.
    pub fn append_built(
        &self,
        payload: &Payload,
        l1_origin: B256,
        origin: u8,
    ) -> Result<(), LogError> {
        let mut next = self.0.writer.lock();
        let cut = cut_mark(&self.0.path);
        if cut.exists() {
            return Err(LogError::GuardsCut(cut));
        }
        let guards = self.guards(payload.number(), payload.parent_hash())?;
        if let Some(other) = guards
            .iter()
            .find(|guard| guard.l1_origin == l1_origin && guard.hash != payload.hash)
        {
            return Err(LogError::GuardConflict { have: other.hash });
        }
        let sent_order = match guards.last() {
            Some(last) if last.hash == payload.hash => last.sent_order.max(1),
            last => last.map_or(0, |last| last.sent_order) + 1,
        };
        let mut batch = self.0.db.batch().durability(Some(PersistMode::SyncAll));
        let added = self.0.add(&mut batch, *next, payload, origin)?;
        let key = guard_key(payload.number(), &payload.parent_hash(), &l1_origin);
        batch.insert(
            &self.0.guard,
            key,
            [payload.hash.as_slice(), &sent_order.to_be_bytes()].concat(),
        );
        batch.commit()?;
        *next += u64::from(added);
        Ok(())
    }

    /// The blocks of this height and parent that may have been signed here, one per L1 origin, in
    /// the order in which they were last sent to the signer. Rows of older versions have no order
    /// number and are sorted by arrival.
    pub fn guards(&self, height: u64, parent: B256) -> Result<Vec<SignGuard>, LogError> {
        let snapshot = self.0.db.snapshot();
        let mut guards = Vec::new();
        for row in snapshot.prefix(
            &self.0.guard,
            [&height.to_be_bytes()[..], parent.as_slice()].concat(),
        ) {
            let (key, row) = row.into_inner()?;
            let (hash, sent_order) = row
                .split_at_checked(32)
                .ok_or_else(|| self.0.damaged(&key))?;
            let sent_order = if sent_order.is_empty() {
                0
            } else {
                self.0.number(&key, sent_order)?
            };
            let l1_origin = key
                .get(40..)
                .and_then(|origin| B256::try_from(origin).ok())
                .ok_or_else(|| self.0.damaged(&key))?;
            let hash = B256::from_slice(hash);
            let arrival = match snapshot.get(&self.0.index, hash_key(&hash))? {
                Some(arrival) => self.0.number(&key, &arrival)?,
                None => 0,
            };
            guards.push((
                sent_order,
                arrival,
                SignGuard {
                    l1_origin,
                    hash,
                    sent_order,
                },
            ));
        }
        // Rows of older versions all have order number 0.
        guards.sort_unstable_by_key(|(sent_order, arrival, _)| (*sent_order, *arrival));
        Ok(guards.into_iter().map(|(_, _, guard)| guard).collect())
    }

    pub fn by_hash(&self, hash: B256) -> Result<Option<Logged>, LogError> {
        let snapshot = self.0.db.snapshot();
        let key = hash_key(&hash);
        let Some(number) = snapshot.get(&self.0.index, &key)? else {
            return Ok(None);
        };
        let row = snapshot
            .get(&self.0.payloads, &number)?
            .ok_or_else(|| self.0.damaged(&key))?;
        self.0.decode(&number, &row).map(Some)
    }

    /// All payloads of this height, sorted by hash. A damaged payload is reported in a log message
    /// and left out, as if it had never been received.
    pub fn by_number(&self, height: u64) -> Result<Vec<Logged>, LogError> {
        let snapshot = self.0.db.snapshot();
        let mut all = Vec::new();
        for row in snapshot.prefix(&self.0.index, height_prefix(height)) {
            let (key, number) = row.into_inner()?;
            let row = snapshot
                .get(&self.0.payloads, &number)?
                .ok_or_else(|| self.0.damaged(&key));
            match row.and_then(|row| self.0.decode(&number, &row)) {
                Ok(logged) => all.push(logged),
                Err(error @ LogError::Damaged { .. }) => {
                    tracing::warn!(height, %error, "a payload in the log cannot be read and is left out");
                }
                Err(error) => return Err(error),
            }
        }
        Ok(all)
    }

    /// The blocks above this height with their arrival numbers, in order of arrival.
    pub fn arrivals(&self, height: u64) -> Result<Vec<(u64, BlockId)>, LogError> {
        let Some(lowest) = height.checked_add(1) else {
            return Ok(vec![]);
        };
        let snapshot = self.0.db.snapshot();
        let mut all = Vec::new();
        for row in snapshot.range(
            &self.0.index,
            height_prefix(lowest).as_slice()..b"o".as_slice(),
        ) {
            let (key, arrival) = row.into_inner()?;
            let (number, hash) = key
                .get(1..)
                .and_then(|key| key.split_at_checked(8))
                .ok_or_else(|| self.0.damaged(&key))?;
            let hash = B256::try_from(hash).map_err(|_| self.0.damaged(&key))?;
            all.push((
                self.0.number(&key, &arrival)?,
                BlockId {
                    number: self.0.number(&key, number)?,
                    hash,
                },
            ));
        }
        all.sort_unstable_by_key(|(arrival, _)| *arrival);
        Ok(all)
    }

    /// The payload with this arrival number.
    pub fn at(&self, arrival: u64) -> Result<Option<Logged>, LogError> {
        let key = arrival.to_be_bytes();
        let row = self.0.db.snapshot().get(&self.0.payloads, key)?;
        row.map(|row| self.0.decode(&key, &row)).transpose()
    }

    /// The payloads above this height in order of arrival, as the log is at the time of the call.
    pub fn after(&self, height: u64) -> impl Iterator<Item = Result<Logged, LogError>> + use<> {
        let inner = self.0.clone();
        let snapshot = inner.db.snapshot();
        let rows = snapshot.iter(&inner.payloads);
        rows.filter_map(move |row| {
            let decoded = row
                .into_inner()
                .map_err(LogError::from)
                .and_then(|(key, row)| {
                    let above = inner.height(&key, &row)? > height;
                    above.then(|| inner.decode(&key, &row)).transpose()
                });
            decoded.transpose()
        })
    }

    /// Drops the payloads below this height, and the guard rows more than [`GUARD_WINDOW`] blocks
    /// below it.
    pub fn prune(&self, below: u64) -> Result<(), LogError> {
        let _writer = self.0.writer.lock();
        let snapshot = self.0.db.snapshot();
        let mut batch = self.0.db.batch();
        for row in snapshot.range(&self.0.index, height_prefix(0)..height_prefix(below)) {
            let (key, number) = row.into_inner()?;
            let hash = B256::try_from(&key[9..]).map_err(|_| self.0.damaged(&key))?;
            batch.remove(&self.0.payloads, number);
            batch.remove(&self.0.index, hash_key(&hash));
            batch.remove(&self.0.index, key);
        }
        for row in snapshot.range(
            &self.0.guard,
            ..below.saturating_sub(GUARD_WINDOW).to_be_bytes(),
        ) {
            batch.remove(&self.0.guard, row.key()?);
        }
        Ok(batch.commit()?)
    }

    /// Rotates memtables, so that fjall flushes them and removes their journals. The next open then
    /// has little to replay.
    pub fn rotate(&self) -> Result<(), LogError> {
        for space in [&self.0.payloads, &self.0.index, &self.0.guard] {
            space.rotate_memtable()?;
        }
        Ok(())
    }

    /// Records the head that a restart restores. Survives a kill of the process, but not a power
    /// cut.
    pub fn set_head(&self, head: BlockId) -> Result<(), LogError> {
        let next = self.0.writer.lock();
        let row = [
            &head.number.to_be_bytes()[..],
            head.hash.as_slice(),
            &next.to_be_bytes(),
        ]
        .concat();
        Ok(self.0.index.insert(HEAD, row)?)
    }

    /// The head that was recorded last; `None` if none ever was.
    pub fn head(&self) -> Result<Option<LoggedHead>, LogError> {
        let Some(row) = self.0.db.snapshot().get(&self.0.index, HEAD)? else {
            return Ok(None);
        };
        let (number, rest) = row
            .split_at_checked(8)
            .ok_or_else(|| self.0.damaged(HEAD))?;
        let (hash, next) = rest
            .split_at_checked(32)
            .ok_or_else(|| self.0.damaged(HEAD))?;
        let head = BlockId {
            number: self.0.number(HEAD, number)?,
            hash: B256::from_slice(hash),
        };
        Ok(Some(LoggedHead {
            head,
            next: self.0.number(HEAD, next)?,
        }))
    }

    /// The size of the log. Reads all payloads and guard rows.
    pub fn size(&self) -> Result<LogSize, LogError> {
        let snapshot = self.0.db.snapshot();
        let mut size = LogSize::default();
        for row in snapshot.iter(&self.0.payloads) {
            let (key, row) = row.into_inner()?;
            let height = self.0.height(&key, &row)?;
            size.payloads += 1;
            size.bytes += (key.len() + row.len()) as u64;
            size.heights = Some(size.heights.map_or((height, height), |(low, high)| {
                (low.min(height), high.max(height))
            }));
        }
        for row in snapshot.iter(&self.0.guard) {
            row.into_inner()?;
            size.guards += 1;
        }
        Ok(size)
    }

    /// Reads every row of the log in `dir` and returns the number of payloads. Fails if a row
    /// cannot be read.
    pub fn check(dir: &Path) -> Result<u64, LogError> {
        let log = Self::open(dir)?;
        for space in [&log.0.index, &log.0.guard] {
            for row in log.0.db.snapshot().iter(space) {
                row.into_inner()?;
            }
        }
        log.after(0)
            .try_fold(0, |count, logged| logged.map(|_| count + 1))
    }

    /// Syncs everything logged so far to disk.
    pub fn sync(&self) -> Result<(), LogError> {
        Ok(self.0.db.persist(PersistMode::SyncAll)?)
    }
}

impl LogInner {
    /// Adds the rows of a payload to a batch. Returns false if the log already has the payload.
    fn add(
        &self,
        batch: &mut OwnedWriteBatch,
        next: u64,
        payload: &Payload,
        origin: u8,
    ) -> Result<bool, LogError> {
        let snapshot = self.db.snapshot();
        // An index row whose payload a repair has lost is overwritten.
        if let Some(known) = snapshot.get(&self.index, hash_key(&payload.hash))?
            && snapshot.contains_key(&self.payloads, &known)?
        {
            return Ok(false);
        }
        let free = free_space(&self.path)?;
        if free < self.floor {
            return Err(LogError::NoSpace {
                free,
                floor: self.floor,
            });
        }
        let number = next.to_be_bytes();
        batch.insert(&self.payloads, number, encode(payload, origin));
        batch.insert(&self.index, hash_key(&payload.hash), number);
        batch.insert(
            &self.index,
            [
                &height_prefix(payload.number())[..],
                payload.hash.as_slice(),
            ]
            .concat(),
            number,
        );
        Ok(true)
    }

    fn decode(&self, key: &[u8], row: &[u8]) -> Result<Logged, LogError> {
        let (payload, origin) = decode(row).ok_or_else(|| self.damaged(key))?;
        Ok(Logged { payload, origin })
    }

    /// The height at the start of a payload's row, without decoding the payload.
    fn height(&self, key: &[u8], row: &[u8]) -> Result<u64, LogError> {
        self.number(key, row.get(..8).unwrap_or_default())
    }

    fn number(&self, key: &[u8], bytes: &[u8]) -> Result<u64, LogError> {
        bytes
            .try_into()
            .map(u64::from_be_bytes)
            .map_err(|_| self.damaged(key))
    }

    fn damaged(&self, key: &[u8]) -> LogError {
        LogError::Damaged {
            row: alloy_primitives::hex::encode(key),
            path: self.path.clone(),
        }
    }
}

fn hash_key(hash: &B256) -> Vec<u8> {
    [b"h", hash.as_slice()].concat()
}

fn height_prefix(height: u64) -> [u8; 9] {
    let mut key = [b'n'; 9];
    key[1..].copy_from_slice(&height.to_be_bytes());
    key
}

fn guard_key(height: u64, parent: &B256, l1_origin: &B256) -> Vec<u8> {
    [
        &height.to_be_bytes()[..],
        parent.as_slice(),
        l1_origin.as_slice(),
    ]
    .concat()
}

/// Encodes a row: height, keccak of the rest, origin, RLP list of header, raw transactions and
/// Ethereum body.
#[doc(hidden)]
pub fn encode(payload: &Payload, origin: u8) -> Vec<u8> {
    let mut tail = vec![origin];
    tail.extend(alloy_rlp::encode(StoredPayload {
        header: payload.header.clone(),
        transactions: payload.transactions.clone(),
        ethereum: payload.ethereum.as_deref().cloned(),
    }));
    [
        &payload.number().to_be_bytes()[..],
        keccak256(&tail).as_slice(),
        &tail,
    ]
    .concat()
}

/// Decodes a row; `None` if it is damaged.
#[doc(hidden)]
pub fn decode(row: &[u8]) -> Option<(Payload, u8)> {
    let (height, rest) = row.split_at_checked(8)?;
    let (checksum, tail) = rest.split_at_checked(32)?;
    let (origin, rlp) = tail.split_first()?;
    if keccak256(tail) != checksum {
        return None;
    }
    let StoredPayload {
        header,
        transactions,
        ethereum,
    } = codec::decode_whole(rlp)?;
    let payload = Payload::sealed(header, transactions).with_ethereum(ethereum.unwrap_or_default());
    (payload.number().to_be_bytes() == height).then_some((payload, *origin))
}

#[derive(alloy_rlp::RlpEncodable, alloy_rlp::RlpDecodable)]
#[rlp(trailing)]
struct StoredPayload {
    header: Header,
    transactions: Vec<Bytes>,
    ethereum: Option<EthereumBody>,
}

#[cfg(test)]
mod tests;
