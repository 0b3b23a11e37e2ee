//! What a data directory holds: `starling db stats`. Reads every row once.

use crate::chain::{
    self, ChainError,
    execute::MESSAGE_PASSER,
    payload_log::{self, PayloadLog},
    store::{Identity, KINDS, Store},
    verify::Tell,
};
use alloy_primitives::Address;
use starling_proto::payload::BlockId;
use std::path::Path;

/// Rows of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rows {
    pub keyspace: &'static str,
    pub kind: &'static str,
    pub rows: u64,
    /// Bytes of keys and values, not compressed.
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
    /// The oldest block at which the message passer can be proven.
    pub oldest_withdrawal: u64,
    pub rows: Vec<Rows>,
    /// Bytes on the disk, by keyspace.
    pub disk: Vec<(&'static str, u64)>,
    pub journals: u64,
    pub payload_log: payload_log::Size,
    /// Bytes of the payload log's folder.
    pub payload_log_disk: u64,
    /// Bytes of the whole data directory.
    pub whole: u64,
}

pub fn stats(store: &Store, datadir: &Path, tell: &mut Tell<'_>) -> Result<Stats, ChainError> {
    let snapshot = store.snapshot().map_err(ChainError::store)?;
    let mut rows = Vec::new();
    for (space, kinds) in KINDS {
        let mut counts: Vec<Rows> = kinds
            .iter()
            .map(|(_, kind)| Rows {
                keyspace: space.name(),
                kind,
                ..Default::default()
            })
            .collect();
        let rest = if kinds.is_empty() { "rows" } else { "other" };
        counts.push(Rows {
            keyspace: space.name(),
            kind: rest,
            ..Default::default()
        });
        let mut seen = 0u64;
        for row in snapshot.rows(space, &[]) {
            let (key, value) = row.map_err(ChainError::store)?;
            let kind = space.kind(&key).unwrap_or(kinds.len());
            counts[kind].rows += 1;
            counts[kind].bytes += (key.len() + value.len()) as u64;
            seen += 1;
            if seen.is_multiple_of(65_536) {
                tell(space.name(), seen, 0);
            }
        }
        rows.extend(counts.into_iter().filter(|count| count.rows > 0));
    }
    let wal = chain::payload_log_dir(datadir);
    let payload_log = match wal.is_dir() {
        true => PayloadLog::open(&wal)
            .and_then(|log| log.size())
            .map_err(|error| ChainError::Store(format!("{error} (in {})", wal.display())))?,
        false => payload_log::Size::default(),
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
        rows,
        disk: store.disk_use(),
        journals: store.journal_use().map_err(ChainError::store)?,
        payload_log,
        payload_log_disk: folder(&wal),
        whole: folder(datadir),
    })
}

/// Bytes that a folder takes on the disk. What cannot be looked at is left out.
pub fn folder(path: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let Ok(entries) = path.read_dir() else {
        return 0;
    };
    let size = |entry: std::fs::DirEntry| match entry.metadata() {
        Ok(metadata) if metadata.is_dir() => folder(&entry.path()),
        // Journals are longer than what they hold: blocks of 512 bytes are what is taken.
        Ok(metadata) => metadata.blocks() * 512,
        Err(_) => 0,
    };
    entries.flatten().map(size).sum()
}
