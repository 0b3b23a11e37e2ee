//! `starling db stats`: sizes of the contents of a data directory. Reads every row once.

use crate::{
    chain::{
        self,
        payload_log::{self, PayloadLog},
        rules::MESSAGE_PASSER,
        store::{Identity, KINDS, Snapshot, Store, ValueIndex},
    },
    db::verify::ProgressFn,
};
use alloy_primitives::Address;
use starling_proto::payload::BlockId;
use std::path::Path;

/// Number and size of the rows of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KindSize {
    pub keyspace: &'static str,
    pub kind: &'static str,
    pub rows: u64,
    /// Bytes of keys and values, uncompressed.
    pub bytes: u64,
}

#[derive(Clone, Debug)]
pub struct Stats {
    pub identity: Identity,
    pub schema: u32,
    pub head: BlockId,
    pub safe: Option<BlockId>,
    pub finalized: Option<BlockId>,
    pub oldest_state: u64,
    pub oldest_unwind: u64,
    pub oldest_proof: u64,
    /// The oldest block at which storage of `L2ToL1MessagePasser` can be proven.
    pub oldest_withdrawal: u64,
    /// The block from which on logs are indexed.
    pub oldest_log: u64,
    /// The block from which on transactions are indexed by address; `None` if they are not.
    pub oldest_address: Option<u64>,
    pub rows: Vec<KindSize>,
    /// Bytes of files on the disk, by keyspace.
    pub disk: Vec<(&'static str, u64)>,
    pub journals: u64,
    pub payload_log: payload_log::LogSize,
    /// Bytes of the payload log's folder on the disk.
    pub payload_log_disk: u64,
    /// Bytes of the whole data directory on the disk.
    pub whole: u64,
}

pub fn stats(
    store: &Store,
    datadir: &Path,
    progress: &mut ProgressFn<'_>,
) -> anyhow::Result<Stats> {
    let snapshot = store.snapshot()?;
    let rows = row_sizes(&snapshot, progress)?;
    let wal = chain::payload_log_dir(datadir);
    let payload_log = if wal.is_dir() {
        PayloadLog::open(&wal)
            .and_then(|log| log.size())
            .map_err(|error| anyhow::anyhow!("{error} (in {})", wal.display()))?
    } else {
        payload_log::LogSize::default()
    };
    Ok(Stats {
        identity: store.identity(),
        schema: snapshot.schema(),
        head: snapshot.head(),
        safe: snapshot.safe(),
        finalized: snapshot.finalized(),
        oldest_state: snapshot.oldest_state(),
        oldest_unwind: snapshot.oldest_unwind(),
        oldest_proof: snapshot.oldest_proof(Address::ZERO),
        oldest_withdrawal: snapshot.oldest_proof(MESSAGE_PASSER),
        oldest_log: snapshot.indexed_from(ValueIndex::Logs),
        oldest_address: Some(snapshot.indexed_from(ValueIndex::Addresses))
            .filter(|first| *first <= snapshot.head().number),
        rows,
        disk: store.disk_use(),
        journals: store.journal_use()?,
        payload_log,
        payload_log_disk: folder(&wal),
        whole: folder(datadir),
    })
}

/// Number and size of the rows, by kind.
fn row_sizes(snapshot: &Snapshot, progress: &mut ProgressFn<'_>) -> anyhow::Result<Vec<KindSize>> {
    let mut rows = Vec::new();
    for (space, kinds) in KINDS {
        let mut counts: Vec<KindSize> = kinds
            .iter()
            .map(|(_, kind)| KindSize {
                keyspace: space.name(),
                kind,
                ..Default::default()
            })
            .collect();
        let rest = if kinds.is_empty() { "rows" } else { "other" };
        counts.push(KindSize {
            keyspace: space.name(),
            kind: rest,
            ..Default::default()
        });
        let mut seen = 0u64;
        for row in snapshot.rows(space, &[]) {
            let (key, value) = row?;
            let kind = space.kind(&key).unwrap_or(kinds.len());
            counts[kind].rows += 1;
            counts[kind].bytes += (key.len() + value.len()) as u64;
            seen += 1;
            if seen.is_multiple_of(65_536) {
                progress(space.name(), seen, 0);
            }
        }
        rows.extend(counts.into_iter().filter(|count| count.rows > 0));
    }
    Ok(rows)
}

/// Bytes that the files of a folder use on the disk. Unreadable entries are left out.
pub fn folder(path: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let Ok(entries) = path.read_dir() else {
        return 0;
    };
    let size = |entry: std::fs::DirEntry| match entry.metadata() {
        Ok(metadata) if metadata.is_dir() => folder(&entry.path()),
        // Journals are preallocated, so count the allocated blocks of 512 bytes instead of the
        // length.
        Ok(metadata) => metadata.blocks() * 512,
        Err(_) => 0,
    };
    entries.flatten().map(size).sum()
}
