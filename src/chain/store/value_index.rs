//! Indexes of blocks by the values in them. The log index: blocks in which an address, or a topic at
//! one position, has logs. The address index: blocks with transactions in which an address takes
//! part.
//!
//! Each block has one row for each of its values, without content: `eth_getLogs` seeks from block to
//! block by the values of a filter (`view/log_search.rs`) instead of reading headers, and Otterscan's
//! searches from block to block of an address (`view/address_search.rs`). The rows lie in `history`,
//! because they are pruned by block number as its other rows are. They are written and removed with
//! their block. One row of each index holds its bounds: the index is whole from a block on. In a
//! store of an older version, or with another option, that block is the first one that is written
//! now. The persister then extends the index downwards, a step at a time, whenever it has nothing
//! else to do.

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

/// Most blocks, rows and time of one step downwards. The persister starts no step while work waits,
/// so a block waits for one step at most.
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

    /// The name of its rows, as reports count them.
    pub(crate) fn rows_name(self) -> &'static str {
        match self {
            Self::Logs => "rows of log index",
            Self::Addresses => "rows of address index",
        }
    }

    /// First byte of its rows.
    pub(crate) fn tag(self) -> u8 {
        match self {
            Self::Logs => keys::LOG,
            Self::Addresses => keys::PARTICIPANT,
        }
    }

    /// Row with its bounds, in the keyspace of its rows.
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
    /// Number of blocks below the head.
    Blocks(u64),
    Off,
}

/// The bounds of an index as they are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct IndexBounds {
    /// The first block from which on the rows of every block were written; `u64::MAX` if the newest
    /// block has none.
    pub built: u64,
    /// Rows of older blocks are unused, and dropped at any time.
    pub kept: u64,
}

impl IndexBounds {
    /// The bounds of a store that never had this index.
    const UNBUILT: Self = Self {
        built: u64::MAX,
        kept: 0,
    };

    /// The first block from which on the index is whole. An unwind may have left it above the head:
    /// all blocks after the head will be indexed.
    fn first(self, head: u64) -> u64 {
        self.built.min(head + 1).max(self.kept)
    }

    /// Whether a commit on top of `below` writes rows. Without a window (tools set none) logs are
    /// indexed, and addresses if they were until now.
    fn grows(self, index: ValueIndex, window: Option<IndexWindow>, below: u64) -> bool {
        match window {
            Some(window) => window != IndexWindow::Off,
            None => index == ValueIndex::Logs || self.built <= below,
        }
    }

    /// The bounds after a commit of the blocks from `below` to `head`.
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
        // The rows that are there go, once.
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
    /// Writes the bounds of the indexes of a store that begins with this genesis block. Addresses are
    /// indexed on request only.
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

    /// The first block from which on each index is whole.
    pub(super) fn indexed_from(
        &self,
        snapshot: &fjall::Snapshot,
        head: u64,
    ) -> Result<PerIndex<u64>, StoreError> {
        self.for_each_index(snapshot, |_, bounds| bounds.first(head))
    }

    /// The bound of rows that each index keeps.
    pub(super) fn kept_indexes(
        &self,
        snapshot: &fjall::Snapshot,
    ) -> Result<PerIndex<u64>, StoreError> {
        self.for_each_index(snapshot, |_, bounds| bounds.kept)
    }

    /// The indexes that a commit on top of block `below` writes rows of.
    pub(super) fn growing_indexes(&self, below: u64) -> Result<PerIndex<bool>, StoreError> {
        let windows = self.history.index_windows();
        self.for_each_index(&self.db.snapshot(), |index, bounds| {
            bounds.grows(index, windows[index as usize], below)
        })
    }

    /// The indexes that may have rows of a block that is unwound.
    pub(super) fn present_indexes(
        &self,
        snapshot: &Snapshot,
    ) -> Result<PerIndex<bool>, StoreError> {
        self.for_each_index(&snapshot.0.snapshot, |_, bounds| {
            bounds != IndexBounds::UNBUILT
        })
    }

    /// Raises the bounds of the indexes as far as the head allows, and adds them to the batch of a
    /// commit of blocks above `below`. Returns the bounds of rows that are kept.
    pub(super) fn advance_indexes(
        &self,
        batch: &mut StoreBatch<'_>,
        snapshot: &fjall::Snapshot,
        head: u64,
        below: u64,
    ) -> Result<PerIndex<u64>, StoreError> {
        // Older versions would add blocks without rows to a store that has bounds.
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

/// The state of an index after a step downwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndexStep {
    /// The first block from which on the index is whole.
    pub first: u64,
    /// The block down to which it is to be extended.
    pub goal: u64,
    /// Number of blocks that the step added.
    pub added: u64,
}

impl Store {
    /// Sets which blocks' logs are indexed.
    pub fn keep_logs(&self, window: IndexWindow) {
        self.0.history.set_index_window(ValueIndex::Logs, window);
    }

    /// Sets whether transactions are indexed by address. An index that is not wanted is dropped.
    pub fn keep_addresses(&self, keep: bool) {
        let window = if keep {
            IndexWindow::All
        } else {
            IndexWindow::Off
        };
        self.0
            .history
            .set_index_window(ValueIndex::Addresses, window);
    }

    /// Whether it is set which blocks an index covers.
    pub fn has_index_window(&self, index: ValueIndex) -> bool {
        self.0.history.index_windows()[index as usize].is_some()
    }

    /// Extends an index by some blocks downwards, as one atomic batch; `None` if there is no index to
    /// extend. Call it until `first` is `goal`.
    pub fn extend_index(&self, index: ValueIndex) -> Result<Option<IndexStep>, StoreError> {
        let head = self.0.writer.lock();
        let window = self.0.history.index_windows()[index as usize].unwrap_or(IndexWindow::All);
        // The first block written makes an old store one of this version.
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
        // An unwind lowers the window by some blocks: less than a step is not worth it, unless the
        // window holds the whole chain.
        let lag = if oldest == lowest { 0 } else { step };
        let lowers = oldest.saturating_add(lag) < stored.kept;
        let kept = if lowers { oldest } else { stored.kept };
        let goal = oldest.max(kept);
        // An index that was off over an unwind keeps nothing below a block above the head.
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

    /// Drops an index: it begins anew after the head. Interrupted, it leaves rows that no bound
    /// includes.
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
    /// The first block from which on every stored block is in the index; above the head if none are.
    pub fn indexed_from(&self, index: ValueIndex) -> u64 {
        self.0.indexes[index as usize]
    }

    /// Whether the index is turned off.
    pub(in crate::chain) fn is_index_off(&self, index: ValueIndex) -> bool {
        match self.0.inner.history.index_windows()[index as usize] {
            Some(window) => window == IndexWindow::Off,
            None => self.indexed_from(index) > self.head().number,
        }
    }

    /// The stored blocks that have this value, or another one with the same hash, ascending; read
    /// them from the back for a descending order.
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
    /// Turns the store into one that a version without these indexes wrote.
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
