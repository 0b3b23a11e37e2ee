//! The log index: the blocks in which an address, or a topic at one position, has logs.
//!
//! Each block has one row for each value of its logs, without content: `eth_getLogs` seeks from
//! block to block by the values of a filter (`view/log_search.rs`) instead of reading headers. The
//! rows lie in `history`, because they are pruned by block number as its other rows are. They are
//! written and removed with their block. One row holds the bounds: the index is whole from a block
//! on. In a store of an older version that block is the first one that this version writes. The
//! persister then extends the index downwards, a step at a time, whenever it has nothing else to do.

use crate::chain::{
    receipt::Receipt,
    rows::{
        ReadError, codec,
        keys::{self, LogPrefix, LogValue},
    },
    store::{
        SCHEMA, Snapshot, Space, Store, StoreBatch, StoreError, StoreInner, damaged_meta,
        describe_error, get, history,
    },
};
use alloy_primitives::{Address, B256, map::HashSet};
use fjall::Readable;
use std::{
    cell::RefCell,
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

/// Row with the bounds of the log index, in the keyspace of its rows.
const BOUNDS: &[u8] = b"_logs";

/// Most blocks, rows and time of one step downwards. The persister starts no step while work waits,
/// so a block waits for one step at most.
const STEP_BLOCKS: u64 = 512;
const STEP_ROWS: usize = 8192;
const STEP_TIME: Duration = Duration::from_millis(10);

/// The blocks whose logs are indexed (`--history.logs`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogWindow {
    All,
    /// Number of blocks below the head.
    Blocks(u64),
    Off,
}

/// The bounds of the log index as they are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LogBounds {
    /// The first block from which on the rows of every block were written.
    pub built: u64,
    /// Rows of older blocks are unused, and dropped at any time.
    pub kept: u64,
}

impl LogBounds {
    /// The bounds of a store that has no index yet.
    const UNBUILT: Self = Self {
        built: u64::MAX,
        kept: 0,
    };

    /// The first block from which on the index is whole. An unwind may have left it above the head:
    /// all blocks after the head will be indexed.
    pub(super) fn first(self, head: u64) -> u64 {
        self.built.min(head + 1).max(self.kept)
    }
}

/// The values of the logs of a block, each once.
#[derive(Default)]
struct LogValues(HashSet<LogValue>);

impl LogValues {
    fn add(&mut self, address: &Address, topics: &[B256]) {
        self.0.insert(keys::log_value(0, &address.into_word()));
        for (topic, position) in topics.iter().zip(1..) {
            self.0.insert(keys::log_value(position, topic));
        }
    }

    fn keys(&self, number: u64, mut put: impl FnMut(&[u8])) {
        for value in &self.0 {
            put(&keys::log(&keys::log_prefix(value), number));
        }
    }
}

/// Passes the keys of the rows of a block to `put`.
pub(super) fn rows(receipts: &[Receipt], number: u64, put: impl FnMut(&[u8])) {
    let mut values = LogValues::default();
    for log in receipts.iter().flat_map(|receipt| &receipt.logs) {
        values.add(&log.address, log.topics());
    }
    values.keys(number, put);
}

impl StoreBatch<'_> {
    pub(super) fn log_bounds(&mut self, LogBounds { built, kept }: LogBounds) {
        self.put(Space::History, BOUNDS, codec::encode_pair(built, kept));
    }
}

impl StoreInner {
    /// The stored bounds of the log index.
    pub(super) fn log_bounds(&self, snapshot: &fjall::Snapshot) -> Result<LogBounds, StoreError> {
        let Some(row) = get(snapshot, &self.spaces[Space::History as usize], BOUNDS)? else {
            return Ok(LogBounds::UNBUILT);
        };
        let (built, kept) = codec::decode_pair(&row).ok_or_else(|| damaged_meta(BOUNDS))?;
        Ok(LogBounds { built, kept })
    }

    /// Raises the bound of the log index as far as the head allows, and adds it to the batch of a
    /// commit of blocks above `below`. Returns the bound of rows that are kept.
    pub(super) fn advance_logs(
        &self,
        batch: &mut StoreBatch<'_>,
        snapshot: &fjall::Snapshot,
        head: u64,
        below: u64,
    ) -> Result<u64, StoreError> {
        let stored = self.log_bounds(snapshot)?;
        // Older versions would add blocks without rows to a store that has bounds.
        if head == below && self.schema.load(Ordering::Relaxed) != SCHEMA {
            return Ok(stored.kept);
        }
        let mut bounds = LogBounds {
            built: stored.built.min(below + 1),
            ..stored
        };
        let (wanted, step) = match self.history.log_window() {
            None | Some(LogWindow::All) => (0, 1),
            Some(LogWindow::Blocks(blocks)) => (head.saturating_sub(blocks), history::step(blocks)),
            Some(LogWindow::Off) => {
                bounds.built = head + 1;
                (head + 1, history::step(u64::MAX))
            }
        };
        if wanted >= stored.kept.saturating_add(step) {
            bounds.kept = wanted;
        }
        if bounds != stored {
            batch.log_bounds(bounds);
        }
        Ok(bounds.kept)
    }
}

/// The state of the log index after a step downwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogIndexStep {
    /// The first block from which on the index is whole.
    pub first: u64,
    /// The block down to which it is to be extended.
    pub goal: u64,
    /// Number of blocks that the step added.
    pub added: u64,
}

impl Store {
    /// Sets which blocks' logs are indexed.
    pub fn keep_logs(&self, window: LogWindow) {
        self.0.history.set_log_window(window);
    }

    /// Whether it is set which blocks' logs are indexed.
    pub fn has_log_window(&self) -> bool {
        self.0.history.log_window().is_some()
    }

    /// Extends the log index by some blocks downwards, as one atomic batch; `None` if there is no
    /// index to extend. Call it until `first` is `goal`.
    pub fn extend_log_index(&self) -> Result<Option<LogIndexStep>, StoreError> {
        let head = self.0.writer.lock();
        let window = self.0.history.log_window().unwrap_or(LogWindow::All);
        // The first block written makes an old store one of this version.
        if window == LogWindow::Off || self.0.schema.load(Ordering::Relaxed) != SCHEMA {
            return Ok(None);
        }
        let snapshot = self.snapshot()?;
        let stored = self.0.log_bounds(&snapshot.0.snapshot)?;
        let (oldest, step) = match window {
            LogWindow::Blocks(blocks) => {
                (head.number.saturating_sub(blocks), history::step(blocks))
            }
            _ => (0, 0),
        };
        let lowest = snapshot.genesis_header()?.map_or(0, |header| header.number);
        let oldest = oldest.max(lowest);
        // The bound of a window lags behind it by less than a step.
        let lowers = oldest.saturating_add(step) < stored.kept;
        let kept = if lowers { oldest } else { stored.kept };
        let goal = oldest.max(kept);
        // An index that was off over an unwind keeps nothing below a block above the head.
        let built = stored.first(head.number).min(head.number + 1);
        if built <= goal {
            return Ok(Some(LogIndexStep {
                first: built,
                goal,
                added: 0,
            }));
        }
        self.0.check_space()?;
        if lowers {
            self.0.history.lower_logs(kept);
        }
        let mut batch = StoreBatch::new(&self.0);
        let first = snapshot.index_logs(&mut batch, built, goal)?;
        batch.log_bounds(LogBounds { built: first, kept });
        batch.commit(*head)?;
        Ok(Some(LogIndexStep {
            first,
            goal,
            added: built - first,
        }))
    }

    /// Drops the log index: it begins anew after the head. Interrupted, it leaves rows that no bound
    /// includes.
    pub(crate) fn drop_log_index(&self) -> Result<(), StoreError> {
        let snapshot = self.snapshot()?;
        let kept = self.0.log_bounds(&snapshot.0.snapshot)?.kept;
        let bounds = codec::encode_pair(self.head().number + 1, kept);
        let mut rewrite = self.rewrite();
        rewrite.set(Space::History, BOUNDS, Some(&bounds.into()))?;
        for row in snapshot.rows(Space::History, &[keys::LOG]) {
            rewrite.set(Space::History, &row?.0, None)?;
        }
        rewrite.finish().map(drop)
    }
}

impl Snapshot {
    /// The first block from which on the logs of every stored block are indexed; above the head if
    /// none are.
    pub fn log_index(&self) -> u64 {
        self.0.log_index
    }

    /// The stored blocks that have this value in their logs, or another one with the same hash,
    /// ascending.
    pub(in crate::chain) fn log_blocks(
        &self,
        prefix: &LogPrefix,
        from: u64,
        last: u64,
    ) -> impl Iterator<Item = Result<u64, ReadError>> + use<> {
        let ends = keys::log(prefix, from)..=keys::log(prefix, last);
        let rows = self
            .0
            .snapshot
            .range(&self.0.inner.spaces[Space::History as usize], ends);
        rows.map(|row| {
            let key = row
                .key()
                .map_err(|error| ReadError::Store(describe_error(&error)))?;
            keys::log_number(&key).ok_or_else(|| ReadError::Damaged("row of the log index".into()))
        })
    }

    /// Passes the keys that a block must have in the log index to `put`. Returns false if the block
    /// has no receipts.
    pub(crate) fn log_rows(&self, number: u64, put: impl FnMut(&[u8])) -> Result<bool, ReadError> {
        let values = RefCell::new(LogValues::default());
        // No log is wanted, so none is copied.
        let found = self.logs(number, &|address, topics| {
            values.borrow_mut().add(address, topics);
            false
        })?;
        values.into_inner().keys(number, put);
        Ok(found.is_some())
    }

    /// Adds the rows of blocks below `built` to the batch, downwards to `goal` at most. Returns the
    /// lowest block that was added.
    fn index_logs(
        &self,
        batch: &mut StoreBatch<'_>,
        built: u64,
        goal: u64,
    ) -> Result<u64, ReadError> {
        let (started, mut rows, mut first) = (Instant::now(), 0, built);
        while first > goal {
            let number = first - 1;
            let found = self.log_rows(number, |key| {
                batch.put(Space::History, key, []);
                rows += 1;
            })?;
            if !found {
                return Err(ReadError::Damaged(format!(
                    "block {number} has no receipts"
                )));
            }
            first = number;
            if built - first >= STEP_BLOCKS || rows >= STEP_ROWS || started.elapsed() > STEP_TIME {
                break;
            }
        }
        Ok(first)
    }
}

#[cfg(test)]
impl Store {
    /// Turns the store into one that a version without the index wrote.
    pub(crate) fn forget_log_index(&self) {
        self.drop_log_index().unwrap();
        let mut rewrite = self.rewrite();
        rewrite.set(Space::History, BOUNDS, None).unwrap();
        let schema = (SCHEMA - 1).to_be_bytes().to_vec().into();
        rewrite
            .set(Space::Meta, super::SCHEMA_ROW, Some(&schema))
            .unwrap();
        rewrite.finish().unwrap();
        self.0.schema.store(SCHEMA - 1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests;
