//! Indexes that find blocks by the values in them. The log index finds the blocks in which an
//! address, or a topic at one position, has logs. The address index finds the blocks with
//! transactions in which an address takes part.
//!
//! Each block has one row, with an empty value, for each of its indexed values. `eth_getLogs` seeks
//! from block to block by the values of a filter (`view/log_search.rs`) instead of reading headers.
//! Otterscan's searches seek from block to block of an address (`view/address_search.rs`). The rows
//! are in `history`, because they are pruned by block number as its other rows are. They are
//! written and removed with their block. One row of each index stores its bounds: the index is
//! complete from a block on. If an older version, or a node without the index, wrote the store,
//! that is the first block written now. The persister then extends the index downwards, a step at a
//! time, whenever it has nothing else to do.

mod block_values;

pub(super) use block_values::{BlockParts, rows};

use crate::chain::{
    rows::{ReadError, codec, keys},
    store::{
        SCHEMA, Snapshot, Space, Store, StoreBatch, StoreError, StoreInner, damaged_meta,
        describe_error, get, history,
    },
};
use fjall::Readable;
use std::{
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

/// Bounds of one downward step in blocks, rows and time. The persister starts no step while work is
/// queued, so a block waits for at most one step.
const STEP_BLOCKS: u64 = 512;
const STEP_ROWS: usize = 8192;
const STEP_TIME: Duration = Duration::from_millis(10);

/// An index of blocks by the values in them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueIndex {
    Logs,
    Addresses,
}

impl ValueIndex {
    pub const ALL: [Self; 2] = [Self::Logs, Self::Addresses];

    pub fn name(self) -> &'static str {
        match self {
            Self::Logs => "log index",
            Self::Addresses => "address index",
        }
    }

    /// Name of the index's rows, as `starling db` reports it.
    pub(crate) fn rows_name(self) -> &'static str {
        match self {
            Self::Logs => "rows of log index",
            Self::Addresses => "rows of address index",
        }
    }

    /// First byte of the keys of the index's rows.
    pub(crate) fn tag(self) -> u8 {
        match self {
            Self::Logs => keys::LOG,
            Self::Addresses => keys::PARTICIPANT,
        }
    }

    /// Key of the row with the index's bounds, in the keyspace of the index's rows.
    fn bounds_row(self) -> &'static [u8] {
        match self {
            Self::Logs => b"_logs",
            Self::Addresses => b"_addresses",
        }
    }
}

/// One value for each index, in the order of [`ValueIndex::ALL`].
pub(super) type PerIndex<T> = [T; ValueIndex::ALL.len()];

/// The blocks that an index covers (`--history.logs`, `--index.addresses`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IndexWindow {
    All,
    /// The head and this number of blocks below it.
    Blocks(u64),
    Off,
}

/// The stored bounds of an index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct IndexBounds {
    /// The first block from which on the rows of every block were written; `u64::MAX` if those of
    /// the newest block were not written.
    pub built: u64,
    /// Rows of blocks below this one are unused, and may be dropped at any time.
    pub kept: u64,
}

impl IndexBounds {
    /// The bounds of a store that never had this index.
    const UNBUILT: Self = Self {
        built: u64::MAX,
        kept: 0,
    };

    /// The first block from which on the index is complete. After an unwind `built` may be above
    /// the head; the index is then complete from the block after the head on.
    fn first(self, head: u64) -> u64 {
        self.built.min(head + 1).max(self.kept)
    }

    /// Whether a commit on top of block `below` writes rows. If no window is set, as in tools, logs
    /// are indexed, and addresses are indexed only if they were indexed up to `below`.
    fn grows(self, index: ValueIndex, window: Option<IndexWindow>, below: u64) -> bool {
        match window {
            Some(window) => window != IndexWindow::Off,
            None => index == ValueIndex::Logs || self.built <= below,
        }
    }

    /// The bounds after a commit of the blocks above `below` up to `head`.
    fn advanced(
        self,
        index: ValueIndex,
        window: Option<IndexWindow>,
        below: u64,
        head: u64,
    ) -> Self {
        if self.grows(index, window, below) {
            let kept = match window {
                Some(IndexWindow::Blocks(blocks)) => head.saturating_sub(blocks),
                _ => 0,
            };
            let step = match window {
                Some(IndexWindow::Blocks(blocks)) => history::step(blocks),
                _ => 1,
            };
            let rises = kept >= self.kept.saturating_add(step);
            return Self {
                built: self.built.min(below + 1),
                kept: if rises { kept } else { self.kept },
            };
        }
        if self.built == u64::MAX {
            return self;
        }
        // If the index was turned off, its existing rows are dropped once, by raising `kept`.
        let dropped = window == Some(IndexWindow::Off);
        Self {
            built: u64::MAX,
            kept: if dropped {
                self.kept.max(head + 1)
            } else {
                self.kept
            },
        }
    }
}

impl StoreBatch<'_> {
    /// Writes the bounds of the log index of a new store that begins with this genesis block.
    /// Addresses are indexed on request only.
    pub(super) fn genesis_indexes(&mut self, number: u64) {
        let bounds = IndexBounds {
            built: number,
            kept: number,
        };
        self.index_bounds(ValueIndex::Logs, bounds);
    }

    fn index_bounds(&mut self, index: ValueIndex, IndexBounds { built, kept }: IndexBounds) {
        self.put(
            Space::History,
            index.bounds_row(),
            codec::encode_pair(built, kept),
        );
    }
}

impl StoreInner {
    /// The stored bounds of an index.
    fn index_bounds(
        &self,
        snapshot: &fjall::Snapshot,
        index: ValueIndex,
    ) -> Result<IndexBounds, StoreError> {
        let key = index.bounds_row();
        let Some(row) = get(snapshot, &self.spaces[Space::History as usize], key)? else {
            return Ok(IndexBounds::UNBUILT);
        };
        let (built, kept) = codec::decode_pair(&row).ok_or_else(|| damaged_meta(key))?;
        Ok(IndexBounds { built, kept })
    }

    fn for_each_index<T>(
        &self,
        snapshot: &fjall::Snapshot,
        mut read: impl FnMut(ValueIndex, IndexBounds) -> T,
    ) -> Result<PerIndex<T>, StoreError> {
        let [logs, addresses] = ValueIndex::ALL;
        Ok([
            read(logs, self.index_bounds(snapshot, logs)?),
            read(addresses, self.index_bounds(snapshot, addresses)?),
        ])
    }

    /// For each index, the first block from which on the index is complete.
    pub(super) fn indexed_from(
        &self,
        snapshot: &fjall::Snapshot,
        head: u64,
    ) -> Result<PerIndex<u64>, StoreError> {
        self.for_each_index(snapshot, |_, bounds| bounds.first(head))
    }

    /// For each index, the bound below which its rows are unused.
    pub(super) fn kept_indexes(
        &self,
        snapshot: &fjall::Snapshot,
    ) -> Result<PerIndex<u64>, StoreError> {
        self.for_each_index(snapshot, |_, bounds| bounds.kept)
    }

    /// The indexes to which a commit on top of block `below` adds rows.
    pub(super) fn growing_indexes(&self, below: u64) -> Result<PerIndex<bool>, StoreError> {
        let windows = self.history.index_windows();
        self.for_each_index(&self.db.snapshot(), |index, bounds| {
            bounds.grows(index, windows[index as usize], below)
        })
    }

    /// The indexes that may have rows of a block that is being unwound.
    pub(super) fn present_indexes(
        &self,
        snapshot: &Snapshot,
    ) -> Result<PerIndex<bool>, StoreError> {
        self.for_each_index(&snapshot.0.snapshot, |_, bounds| {
            bounds != IndexBounds::UNBUILT
        })
    }

    /// Updates the bounds of the indexes for a commit of the blocks above `below` up to `head`, and
    /// adds them to its batch. Returns the bounds below which rows are unused.
    pub(super) fn advance_indexes(
        &self,
        batch: &mut StoreBatch<'_>,
        snapshot: &fjall::Snapshot,
        head: u64,
        below: u64,
    ) -> Result<PerIndex<u64>, StoreError> {
        // Until a block is written, an older version may open the store again and add blocks
        // without index rows. Bounds written now would then be wrong.
        if head == below && self.schema.load(Ordering::Relaxed) != SCHEMA {
            return self.kept_indexes(snapshot);
        }
        let windows = self.history.index_windows();
        self.for_each_index(snapshot, |index, stored| {
            let bounds = stored.advanced(index, windows[index as usize], below, head);
            if bounds != stored {
                batch.index_bounds(index, bounds);
            }
            bounds.kept
        })
    }
}

/// Progress of an index after one downward step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndexStep {
    /// The first block from which on the index is whole.
    pub first: u64,
    /// The block down to which the index is to be extended.
    pub goal: u64,
    /// Number of blocks that the step added.
    pub added: u64,
}

impl Store {
    /// Sets the blocks whose logs are indexed. Waits for a commit in progress.
    pub fn keep_logs(&self, window: IndexWindow) {
        self.set_index_window(ValueIndex::Logs, window);
    }

    /// Sets whether transactions are indexed by address. With `false`, an existing index is
    /// dropped. Waits for a commit in progress.
    pub fn keep_addresses(&self, keep: bool) {
        let window = if keep {
            IndexWindow::All
        } else {
            IndexWindow::Off
        };
        self.set_index_window(ValueIndex::Addresses, window);
    }

    fn set_index_window(&self, index: ValueIndex, window: IndexWindow) {
        // A commit reads the window for its rows and again for the bounds. If it changed in between,
        // the bounds could include blocks whose rows were not written.
        let _no_commit = self.0.writer.lock();
        self.0.history.set_index_window(index, window);
    }

    /// Whether the window of this index has been set.
    pub fn has_index_window(&self, index: ValueIndex) -> bool {
        self.0.history.index_windows()[index as usize].is_some()
    }

    /// Extends an index downwards by one step, as one atomic batch. Returns `None` if the index is
    /// off or the store still has an older layout. Call it again until `first` reaches `goal`.
    pub fn extend_index(&self, index: ValueIndex) -> Result<Option<IndexStep>, StoreError> {
        let head = self.0.writer.lock();
        let window = self.0.history.index_windows()[index as usize].unwrap_or(IndexWindow::All);
        // A store of an older layout is upgraded by the first block written to it.
        if window == IndexWindow::Off || self.0.schema.load(Ordering::Relaxed) != SCHEMA {
            return Ok(None);
        }
        let snapshot = self.snapshot()?;
        let stored = self.0.index_bounds(&snapshot.0.snapshot, index)?;
        let (oldest, step) = match window {
            IndexWindow::Blocks(blocks) => {
                (head.number.saturating_sub(blocks), history::step(blocks))
            }
            _ => (0, 0),
        };
        let lowest = snapshot.lowest_block()?;
        let oldest = oldest.max(lowest);
        // After an unwind the window begins some blocks lower. Extending the index by less than a
        // step is not worth a batch, unless the window includes the whole chain.
        let lag = if oldest == lowest { 0 } else { step };
        let lowers = oldest.saturating_add(lag) < stored.kept;
        let kept = if lowers { oldest } else { stored.kept };
        let goal = oldest.max(kept);
        // If the index was off during an unwind, `kept` may be above the head: begin after the
        // head.
        let built = stored.first(head.number).min(head.number + 1);
        if built <= goal {
            return Ok(Some(IndexStep {
                first: built,
                goal,
                added: 0,
            }));
        }
        self.0.check_space()?;
        if lowers {
            self.0.history.lower_index(index, kept);
        }
        let mut batch = StoreBatch::new(&self.0);
        let first = snapshot.index_down(&mut batch, index, built, goal)?;
        batch.index_bounds(index, IndexBounds { built: first, kept });
        batch.commit(*head)?;
        Ok(Some(IndexStep {
            first,
            goal,
            added: built - first,
        }))
    }

    /// Drops an index, which then begins again after the head. An interruption leaves only rows
    /// outside the index's bounds.
    pub(crate) fn drop_index(&self, index: ValueIndex) -> Result<(), StoreError> {
        let snapshot = self.snapshot()?;
        let kept = self.0.index_bounds(&snapshot.0.snapshot, index)?.kept;
        let bounds = codec::encode_pair(self.head().number + 1, kept);
        let mut rewrite = self.rewrite();
        rewrite.set(Space::History, index.bounds_row(), Some(&bounds.into()))?;
        for row in snapshot.rows(Space::History, &[index.tag()]) {
            rewrite.set(Space::History, &row?.0, None)?;
        }
        rewrite.finish().map(drop)
    }
}

impl Snapshot {
    /// The first block from which on every stored block is in the index; above the head if no block
    /// is.
    pub fn indexed_from(&self, index: ValueIndex) -> u64 {
        self.0.indexes[index as usize]
    }

    /// Whether the index is turned off, or, if no window is set, lacks the head.
    pub(in crate::chain) fn is_index_off(&self, index: ValueIndex) -> bool {
        match self.0.inner.history.index_windows()[index as usize] {
            Some(window) => window == IndexWindow::Off,
            None => self.indexed_from(index) > self.head().number,
        }
    }

    /// The stored blocks that have this value, or another value with the same hash prefix,
    /// ascending. Iterate from the back for descending order.
    pub(in crate::chain) fn blocks_with(
        &self,
        prefix: &keys::ValuePrefix,
        from: u64,
        last: u64,
    ) -> impl DoubleEndedIterator<Item = Result<u64, ReadError>> + use<> {
        let ends = keys::value_row(prefix, from)..=keys::value_row(prefix, last);
        let rows = self
            .0
            .snapshot
            .range(&self.0.inner.spaces[Space::History as usize], ends);
        rows.map(|row| {
            let key = row
                .key()
                .map_err(|error| ReadError::Store(describe_error(&error)))?;
            keys::value_row_number(&key)
                .ok_or_else(|| ReadError::Damaged("row of an index of blocks".into()))
        })
    }

    /// Adds the rows of blocks below `built` to the batch, downwards to `goal` at most. Returns the
    /// lowest block that was added.
    fn index_down(
        &self,
        batch: &mut StoreBatch<'_>,
        index: ValueIndex,
        built: u64,
        goal: u64,
    ) -> Result<u64, ReadError> {
        let (started, mut rows, mut first) = (Instant::now(), 0, built);
        while first > goal {
            let number = first - 1;
            let found = self.value_rows(index, number, |key| {
                batch.put(Space::History, key, []);
                rows += 1;
            })?;
            if !found {
                return Err(ReadError::Damaged(format!(
                    "block {number} has no transactions or no receipts"
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
    /// Turns the store into one written by a version without these indexes.
    pub(crate) fn forget_indexes(&self) {
        for index in ValueIndex::ALL {
            self.drop_index(index).unwrap();
        }
        let mut rewrite = self.rewrite();
        for index in ValueIndex::ALL {
            let row = index.bounds_row();
            rewrite.set(Space::History, row, None).unwrap();
        }
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
