//! The payload log: every accepted or built payload, in order of arrival, in a small database of its own (`wal/`).
//!
//! The chain writes a payload here before its state is persisted, and replays it after a crash. A sequencer writes the block it has
//! built together with its guard row, and fsyncs, before it signs: for one (height, parent, L1 origin) it never signs two blocks. The
//! L1 origin is part of the key because an L1 reorg must be able to fill a height again. Grows with the blocks of the chain until
//! [`PayloadLog::prune`].

use crate::chain::store::{DamagedJournal, check_journals, clear_begun, decode_whole, free_space, free_space_floor, is_database};
use alloy_consensus::Header;
use alloy_primitives::{B256, Bytes, keccak256};
use fjall::{Database, Keyspace, KeyspaceCreateOptions, OwnedWriteBatch, PersistMode, Readable};
use parking_lot::Mutex;
use starling_proto::payload::{BlockId, Payload};
use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

/// Blocks for which guard rows outlive their payloads: longer than any reorg of L1 reaches back.
pub const GUARD_WINDOW: u64 = 100_000;

/// While this file is in the log's folder, guard rows may be missing.
const GUARDS_CUT: &str = "guards-cut";

/// A repair is about to cut the log in this folder.
pub(in crate::chain) fn mark_cut(folder: &Path) -> std::io::Result<()> {
    std::fs::File::create(folder.join(GUARDS_CUT))?.sync_all()?;
    std::fs::File::open(folder)?.sync_all()
}

#[derive(Debug, thiserror::Error)]
pub enum LogError {
    #[error("another block was built for this height, parent and L1 origin: {have}")]
    GuardConflict { have: B256 },
    #[error(
        "row {row} of the payload log in {} is damaged: restore a backup of the folder. A node that never signs can do without it; a \
         sequencer cannot, for it holds what was signed",
        path.display()
    )]
    Damaged { row: String, path: PathBuf },
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
    #[error("an earlier write to the payload log failed and it takes no more: close and reopen it")]
    Poisoned,
    #[error("{0}: `starling db repair` cuts it at its last whole batch")]
    Journal(#[from] DamagedJournal),
    #[error("payload log: {0}")]
    Engine(String),
}

impl From<fjall::Error> for LogError {
    fn from(error: fjall::Error) -> Self {
        match error {
            fjall::Error::Poisoned => Self::Poisoned,
            fjall::Error::Locked => Self::Locked,
            other => Self::Engine(other.to_string()),
        }
    }
}

/// See [`Inner::index`].
const HEAD: &[u8] = b"followed";

/// A payload in the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Logged {
    pub payload: Payload,
    /// How it came: a number the caller gave, returned as it was.
    pub origin: u8,
}

/// The head as the log knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Followed {
    pub head: BlockId,
    /// The arrival number of the first payload that was logged after this became the head.
    pub next: u64,
}

/// What a log holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Size {
    pub payloads: u64,
    /// Of the payloads' rows.
    pub bytes: u64,
    /// The lowest and the highest height.
    pub heights: Option<(u64, u64)>,
    pub guards: u64,
}

/// A handle to the log; cheap to clone.
#[derive(Clone)]
pub struct PayloadLog(Arc<Inner>);

struct Inner {
    path: PathBuf,
    /// Bytes that must stay free on the disk.
    floor: u64,
    db: Database,
    /// Arrival number, big-endian → payload.
    payloads: Keyspace,
    /// `h‖hash` → arrival number; `n‖height‖hash` → arrival number; `followed` → see [`Followed`].
    index: Keyspace,
    /// Height, parent hash, L1 origin hash → block hash.
    guard: Keyspace,
    /// The next arrival number. Held during every write.
    writer: Mutex<u64>,
}

impl PayloadLog {
    /// Opens the log in `dir`, or starts one there.
    pub fn open(dir: &Path) -> Result<Self, LogError> {
        clear_begun(dir).map_err(|error| LogError::Engine(error.to_string()))?;
        if dir.read_dir().is_ok_and(|mut entries| entries.next().is_some()) && !is_database(dir) {
            return Err(LogError::NotALog(dir.into()));
        }
        if dir.is_dir()
            && let Some(damaged) = check_journals(dir).map_err(|error| LogError::Engine(error.to_string()))?
        {
            return Err(damaged.into());
        }
        let db = Database::builder(dir).cache_size(8 << 20).worker_threads(1).open()?;
        let options = || KeyspaceCreateOptions::default().max_memtable_size(8 << 20);
        let payloads = db.keyspace("payloads", options)?;
        let (index, guard) = (db.keyspace("index", options)?, db.keyspace("guard", options)?);
        // Below the floor of the store, so that blocks already executed can be logged to the last.
        let floor = free_space_floor(dir).map_err(|error| LogError::Engine(error.to_string()))? / 2;
        let inner = Inner { path: dir.into(), floor, db, payloads, index, guard, writer: Mutex::new(0) };
        let snapshot = inner.db.snapshot();
        if let Some(last) = snapshot.last_key_value(&inner.payloads) {
            let key = last.key()?;
            *inner.writer.lock() = inner.number(&key, &key)? + 1;
        }
        let log = Self(Arc::new(inner));
        // A log that was pruned empty does not use old numbers again.
        if let Some(followed) = log.head()? {
            let mut next = log.0.writer.lock();
            *next = followed.next.max(*next);
        }
        Ok(log)
    }

    /// Logs a payload. One that is there already is left as it is. Survives a kill of the process, not a power cut.
    pub fn append(&self, payload: &Payload, origin: u8) -> Result<(), LogError> {
        let mut next = self.0.writer.lock();
        let mut batch = self.0.db.batch();
        let added = self.0.add(&mut batch, *next, payload, origin)?;
        batch.commit()?;
        *next += u64::from(added);
        Ok(())
    }

    /// Logs a payload built here together with its guard row, durably. Err if the guard row of this (height, parent, L1 origin) holds
    /// another hash: that block may have been signed.
    pub fn append_built(&self, payload: &Payload, l1_origin: B256, origin: u8) -> Result<(), LogError> {
        let mut next = self.0.writer.lock();
        let cut = self.0.path.join(GUARDS_CUT);
        if cut.exists() {
            return Err(LogError::GuardsCut(cut));
        }
        if let Some(have) = self.guard(payload.number(), payload.parent_hash(), l1_origin)?.filter(|have| *have != payload.hash) {
            return Err(LogError::GuardConflict { have });
        }
        let mut batch = self.0.db.batch().durability(Some(PersistMode::SyncAll));
        let added = self.0.add(&mut batch, *next, payload, origin)?;
        let key = guard_key(payload.number(), &payload.parent_hash(), &l1_origin);
        batch.insert(&self.0.guard, key, payload.hash.as_slice());
        batch.commit()?;
        *next += u64::from(added);
        Ok(())
    }

    /// The block that was built for this height, parent and L1 origin.
    pub fn guard(&self, height: u64, parent: B256, l1_origin: B256) -> Result<Option<B256>, LogError> {
        let key = guard_key(height, &parent, &l1_origin);
        let Some(row) = self.0.db.snapshot().get(&self.0.guard, &key)? else { return Ok(None) };
        B256::try_from(&row[..]).map(Some).map_err(|_| self.0.damaged(&key))
    }

    pub fn by_hash(&self, hash: B256) -> Result<Option<Logged>, LogError> {
        let snapshot = self.0.db.snapshot();
        let key = hash_key(&hash);
        let Some(number) = snapshot.get(&self.0.index, &key)? else { return Ok(None) };
        let row = snapshot.get(&self.0.payloads, &number)?.ok_or_else(|| self.0.damaged(&key))?;
        self.0.decode(&number, &row).map(Some)
    }

    /// All payloads of this height, by hash.
    pub fn by_number(&self, height: u64) -> Result<Vec<Logged>, LogError> {
        let snapshot = self.0.db.snapshot();
        let rows = snapshot.prefix(&self.0.index, height_prefix(height)).map(|row| {
            let (key, number) = row.into_inner()?;
            let row = snapshot.get(&self.0.payloads, &number)?.ok_or_else(|| self.0.damaged(&key))?;
            self.0.decode(&number, &row)
        });
        rows.collect()
    }

    /// The blocks above this height with their arrival numbers, in order of arrival.
    pub fn arrivals(&self, height: u64) -> Result<Vec<(u64, BlockId)>, LogError> {
        let Some(lowest) = height.checked_add(1) else { return Ok(vec![]) };
        let snapshot = self.0.db.snapshot();
        let mut all = Vec::new();
        for row in snapshot.range(&self.0.index, height_prefix(lowest).as_slice()..b"o".as_slice()) {
            let (key, arrival) = row.into_inner()?;
            let (number, hash) = key.get(1..).and_then(|key| key.split_at_checked(8)).ok_or_else(|| self.0.damaged(&key))?;
            let hash = B256::try_from(hash).map_err(|_| self.0.damaged(&key))?;
            all.push((self.0.number(&key, &arrival)?, BlockId { number: self.0.number(&key, number)?, hash }));
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

    /// The payloads above this height in order of arrival, as the log is now.
    pub fn after(&self, height: u64) -> impl Iterator<Item = Result<Logged, LogError>> + use<> {
        let inner = self.0.clone();
        let snapshot = inner.db.snapshot();
        let rows = snapshot.iter(&inner.payloads);
        rows.filter_map(move |row| {
            let decoded = row.into_inner().map_err(LogError::from).and_then(|(key, row)| {
                let above = inner.height(&key, &row)? > height;
                above.then(|| inner.decode(&key, &row)).transpose()
            });
            decoded.transpose()
        })
    }

    /// Drops the payloads below this height, and guard rows [`GUARD_WINDOW`] blocks further down.
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
        for row in snapshot.range(&self.0.guard, ..below.saturating_sub(GUARD_WINDOW).to_be_bytes()) {
            batch.remove(&self.0.guard, row.key()?);
        }
        Ok(batch.commit()?)
    }

    /// Starts to write memtables out, so that journals can go: replay at open stays short.
    pub fn rotate(&self) -> Result<(), LogError> {
        for space in [&self.0.payloads, &self.0.index, &self.0.guard] {
            space.rotate_memtable()?;
        }
        Ok(())
    }

    /// Remembers which block is the head. Survives a kill of the process, not a power cut.
    pub fn set_head(&self, head: BlockId) -> Result<(), LogError> {
        let next = self.0.writer.lock();
        let row = [&head.number.to_be_bytes()[..], head.hash.as_slice(), &next.to_be_bytes()].concat();
        Ok(self.0.index.insert(HEAD, row)?)
    }

    /// The head that was remembered last.
    pub fn head(&self) -> Result<Option<Followed>, LogError> {
        let Some(row) = self.0.db.snapshot().get(&self.0.index, HEAD)? else { return Ok(None) };
        let (number, rest) = row.split_at_checked(8).ok_or_else(|| self.0.damaged(HEAD))?;
        let (hash, next) = rest.split_at_checked(32).ok_or_else(|| self.0.damaged(HEAD))?;
        let head = BlockId { number: self.0.number(HEAD, number)?, hash: B256::from_slice(hash) };
        Ok(Some(Followed { head, next: self.0.number(HEAD, next)? }))
    }

    /// What the log holds. Reads every row.
    pub fn size(&self) -> Result<Size, LogError> {
        let snapshot = self.0.db.snapshot();
        let mut size = Size::default();
        for row in snapshot.iter(&self.0.payloads) {
            let (key, row) = row.into_inner()?;
            let height = self.0.height(&key, &row)?;
            size.payloads += 1;
            size.bytes += (key.len() + row.len()) as u64;
            size.heights = Some(size.heights.map_or((height, height), |(low, high)| (low.min(height), high.max(height))));
        }
        size.guards = snapshot.iter(&self.0.guard).count() as u64;
        Ok(size)
    }

    /// Waits until everything logged is on the disk.
    pub fn sync(&self) -> Result<(), LogError> {
        Ok(self.0.db.persist(PersistMode::SyncAll)?)
    }
}

impl Inner {
    /// Adds the rows of a payload to a batch; false if it is in the log already.
    fn add(&self, batch: &mut OwnedWriteBatch, next: u64, payload: &Payload, origin: u8) -> Result<bool, LogError> {
        let free = free_space(&self.path).map_err(|e| LogError::Engine(e.to_string()))?;
        if free < self.floor {
            return Err(LogError::NoSpace { free, floor: self.floor });
        }
        if self.db.snapshot().contains_key(&self.index, hash_key(&payload.hash))? {
            return Ok(false);
        }
        let number = next.to_be_bytes();
        batch.insert(&self.payloads, number, encode(payload, origin));
        batch.insert(&self.index, hash_key(&payload.hash), number);
        batch.insert(&self.index, [&height_prefix(payload.number())[..], payload.hash.as_slice()].concat(), number);
        Ok(true)
    }

    fn decode(&self, key: &[u8], row: &[u8]) -> Result<Logged, LogError> {
        let (payload, origin) = decode(row).ok_or_else(|| self.damaged(key))?;
        Ok(Logged { payload, origin })
    }

    /// The height in a row, without decoding the payload.
    fn height(&self, key: &[u8], row: &[u8]) -> Result<u64, LogError> {
        self.number(key, row.get(..8).unwrap_or_default())
    }

    fn number(&self, key: &[u8], bytes: &[u8]) -> Result<u64, LogError> {
        bytes.try_into().map(u64::from_be_bytes).map_err(|_| self.damaged(key))
    }

    fn damaged(&self, key: &[u8]) -> LogError {
        LogError::Damaged { row: alloy_primitives::hex::encode(key), path: self.path.clone() }
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
    [&height.to_be_bytes()[..], parent.as_slice(), l1_origin.as_slice()].concat()
}

/// A row: height, keccak of all that follows, origin, RLP list of header and raw transactions.
#[doc(hidden)]
pub fn encode(payload: &Payload, origin: u8) -> Vec<u8> {
    let mut tail = vec![origin];
    tail.extend(alloy_rlp::encode(StoredPayload { header: payload.header.clone(), transactions: payload.transactions.clone() }));
    [&payload.number().to_be_bytes()[..], keccak256(&tail).as_slice(), &tail].concat()
}

/// `None` for a damaged row.
#[doc(hidden)]
pub fn decode(row: &[u8]) -> Option<(Payload, u8)> {
    let (height, rest) = row.split_at_checked(8)?;
    let (checksum, tail) = rest.split_at_checked(32)?;
    let (origin, rlp) = tail.split_first()?;
    if keccak256(tail) != checksum {
        return None;
    }
    let StoredPayload { header, transactions } = decode_whole(rlp)?;
    let payload = Payload::sealed(header, transactions);
    (payload.number().to_be_bytes() == height).then_some((payload, *origin))
}

#[derive(alloy_rlp::RlpEncodable, alloy_rlp::RlpDecodable)]
struct StoredPayload {
    header: Header,
    transactions: Vec<Bytes>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn payload(number: u64, parent: B256, salt: u8) -> Payload {
        let header = Header { number, parent_hash: parent, extra_data: vec![salt].into(), ..Default::default() };
        Payload::sealed(header, vec![vec![salt; 40].into(), vec![1, 2, 3].into()])
    }

    fn heights(log: &PayloadLog, after: u64) -> Vec<u64> {
        log.after(after).map(|logged| logged.unwrap().payload.number()).collect()
    }

    #[test]
    fn payloads_come_back_in_order_of_arrival_also_after_a_reopen() {
        let dir = tempfile::tempdir().unwrap();
        let blocks: Vec<_> = [5u64, 3, 4, 3].iter().zip(0..).map(|(n, salt)| payload(*n, B256::ZERO, salt)).collect();
        {
            let log = PayloadLog::open(dir.path()).unwrap();
            for block in &blocks[..3] {
                log.append(block, 7).unwrap();
            }
            log.append(&blocks[0], 9).unwrap();
            assert_eq!(heights(&log, 0), [5, 3, 4]);
        }
        let log = PayloadLog::open(dir.path()).unwrap();
        log.append(&blocks[3], 2).unwrap();
        assert_eq!(heights(&log, 0), [5, 3, 4, 3]);
        assert_eq!(heights(&log, 3), [5, 4]);
        let logged = log.by_hash(blocks[0].hash).unwrap().unwrap();
        assert_eq!((logged.payload, logged.origin), (blocks[0].clone(), 7));
        assert_eq!(log.by_hash(B256::ZERO).unwrap(), None);
        let mut threes: Vec<_> = log.by_number(3).unwrap().into_iter().map(|l| l.payload.hash).collect();
        threes.sort();
        let mut want = vec![blocks[1].hash, blocks[3].hash];
        want.sort();
        assert_eq!(threes, want);
        log.prune(4).unwrap();
        assert_eq!(heights(&log, 0), [5, 4]);
        assert!(log.by_number(3).unwrap().is_empty());
        assert_eq!(log.by_hash(blocks[1].hash).unwrap(), None);
        log.prune(100).unwrap();
        drop(log);
        let log = PayloadLog::open(dir.path()).unwrap();
        log.append(&blocks[1], 0).unwrap();
        assert_eq!(heights(&log, 0), [3]);
    }

    #[test]
    fn the_head_is_told_from_what_came_later() {
        let dir = tempfile::tempdir().unwrap();
        let blocks: Vec<_> = (1..=3).map(|salt| payload(salt.into(), B256::ZERO, salt)).collect();
        {
            let log = PayloadLog::open(dir.path()).unwrap();
            assert_eq!(log.head().unwrap(), None);
            log.append(&blocks[1], 0).unwrap();
            log.append(&blocks[0], 0).unwrap();
            log.set_head(blocks[1].id()).unwrap();
            log.append(&blocks[2], 0).unwrap();
        }
        let log = PayloadLog::open(dir.path()).unwrap();
        assert_eq!(log.head().unwrap(), Some(Followed { head: blocks[1].id(), next: 2 }));
        assert_eq!(log.arrivals(0).unwrap(), [(0, blocks[1].id()), (1, blocks[0].id()), (2, blocks[2].id())]);
        assert_eq!(log.arrivals(2).unwrap(), [(2, blocks[2].id())]);
        assert_eq!(log.at(2).unwrap().unwrap().payload, blocks[2]);
        log.set_head(blocks[2].id()).unwrap();
        log.prune(9).unwrap();
        assert!(log.arrivals(0).unwrap().is_empty() && log.at(2).unwrap().is_none());
        drop(log);
        let log = PayloadLog::open(dir.path()).unwrap();
        log.append(&blocks[0], 0).unwrap();
        assert_eq!(log.arrivals(0).unwrap(), [(3, blocks[0].id())]);
    }

    #[test]
    fn one_block_for_one_height_parent_and_origin() {
        let dir = tempfile::tempdir().unwrap();
        let (parent, l1) = (B256::repeat_byte(1), B256::repeat_byte(2));
        let (first, second) = (payload(8, parent, 1), payload(8, parent, 2));
        {
            let log = PayloadLog::open(dir.path()).unwrap();
            log.append_built(&first, l1, 0).unwrap();
            log.append_built(&first, l1, 0).unwrap();
        }
        let log = PayloadLog::open(dir.path()).unwrap();
        let conflict = log.append_built(&second, l1, 0);
        assert!(matches!(conflict, Err(LogError::GuardConflict { have }) if have == first.hash));
        assert_eq!(log.by_hash(second.hash).unwrap(), None);
        log.append_built(&second, B256::repeat_byte(3), 0).unwrap();
        assert_eq!(heights(&log, 0), [8, 8]);
        log.prune(9).unwrap();
        assert_eq!(log.guard(8, parent, l1).unwrap(), Some(first.hash));
        log.prune(9 + GUARD_WINDOW).unwrap();
        assert_eq!(log.guard(8, parent, l1).unwrap(), None);
    }

    #[test]
    fn nothing_is_signed_after_a_cut() {
        let dir = tempfile::tempdir().unwrap();
        let log = PayloadLog::open(dir.path()).unwrap();
        mark_cut(dir.path()).unwrap();
        let block = payload(1, B256::ZERO, 1);
        let refused = log.append_built(&block, B256::ZERO, 0);
        assert!(matches!(&refused, Err(LogError::GuardsCut(file)) if *file == dir.path().join(GUARDS_CUT)));
        log.append(&block, 0).unwrap();
        std::fs::remove_file(dir.path().join(GUARDS_CUT)).unwrap();
        log.append_built(&block, B256::ZERO, 0).unwrap();
    }

    #[test]
    fn damage_and_strangers_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let log = PayloadLog::open(dir.path()).unwrap();
        let block = payload(1, B256::ZERO, 1);
        log.append(&block, 0).unwrap();
        let mut row = encode(&block, 0);
        row[60] ^= 1;
        log.0.payloads.insert(0u64.to_be_bytes(), row).unwrap();
        assert!(matches!(log.at(0), Err(LogError::Damaged { .. })));
        assert!(matches!(log.by_hash(block.hash), Err(LogError::Damaged { .. })));
        assert!(matches!(log.after(0).next(), Some(Err(LogError::Damaged { .. }))));
        assert!(matches!(PayloadLog::open(dir.path()), Err(LogError::Locked)));
        let other = tempfile::tempdir().unwrap();
        std::fs::write(other.path().join("file"), "x").unwrap();
        assert!(matches!(PayloadLog::open(other.path()), Err(LogError::NotALog(_))));
    }

    #[test]
    fn nothing_is_logged_on_a_full_disk() {
        let dir = tempfile::tempdir().unwrap();
        let mut log = PayloadLog::open(dir.path()).unwrap();
        Arc::get_mut(&mut log.0).unwrap().floor = u64::MAX;
        assert!(matches!(log.append(&payload(1, B256::ZERO, 1), 0), Err(LogError::NoSpace { floor: u64::MAX, .. })));
        assert!(heights(&log, 0).is_empty());
    }

    proptest! {
        #[test]
        fn rows_round_trip(
            number in any::<u64>(), parent in any::<[u8; 32]>(), origin in any::<u8>(), extra in prop::collection::vec(any::<u8>(), 0..40),
            base_fee in prop::option::of(any::<u64>()), transactions in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..50), 0..5)
        ) {
            let header = Header {
                number, parent_hash: parent.into(), extra_data: extra.into(), base_fee_per_gas: base_fee, ..Default::default()
            };
            let payload = Payload::sealed(header, transactions.into_iter().map(Bytes::from).collect());
            prop_assert_eq!(decode(&encode(&payload, origin)), Some((payload, origin)));
        }

        #[test]
        fn damaged_rows_are_refused(at in any::<prop::sample::Index>(), flip in 1u8.., cut in any::<bool>()) {
            let mut row = encode(&payload(3, B256::ZERO, 5), 1);
            let at = at.index(row.len());
            if cut { row.truncate(at) } else { row[at] ^= flip }
            prop_assert_eq!(decode(&row), None);
        }

        #[test]
        fn hostile_rows_never_panic(row in prop::collection::vec(any::<u8>(), 0..300)) {
            prop_assert_eq!(decode(&row), None);
        }
    }
}
