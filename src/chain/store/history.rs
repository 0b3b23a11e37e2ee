//! The history window: how far back states can be read and blocks can be unwound, and the
//! compaction filter that drops older rows.
//!
//! A commit raises the bounds in its own batch. Rows below them stay until fjall compacts their
//! table on its own thread: there are no tombstones, and no commit waits. Two conditions must hold
//! before rows below a bound are dropped. The bound must be on disk, in a table of the same
//! keyspace: otherwise a power cut could restore an older bound whose rows are gone. And no
//! snapshot may still read by an older bound, except one of unwind records.

use crate::chain::{
    rows::codec,
    store::{
        FINALIZED_ROW, HEAD, OLDEST_ROW, Space, StoreBatch, StoreError, StoreInner, UNWIND_MARGIN,
        UNWIND_ROW, damaged_meta, get,
        proofs::{self, PASSER_BLOCKS, TrieHistorySize},
        value_index::{IndexWindow, PerIndex, ValueIndex},
    },
};
use fjall::{
    Keyspace,
    compaction::filter::{
        CompactionFilter, CompactionFilterResult, Context, Factory, ItemAccessor, Verdict,
    },
};
use parking_lot::Mutex;
use starling_proto::payload::BlockId;
use std::{
    collections::BTreeMap,
    panic::AssertUnwindSafe,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

/// Largest step of a bound, in blocks. Bounds move in steps, since each move flushes a memtable.
const MAX_STEP: u64 = 1024;

/// The step of a window's bound: the bound moves only when it can rise by this many blocks or more.
pub(super) fn step(window: u64) -> u64 {
    (window / 64).clamp(1, MAX_STEP)
}

/// Smallest rise of the bound of unwind records, in blocks, that is worth flushing a memtable.
const UNWIND_STEP: u64 = 256;

/// Key of the row with the oldest block whose state can be read. The row is in the keyspace whose
/// rows it bounds.
const STATES: &[u8] = b"_oldest";

/// Key of the row with the oldest block that can be unwound.
const UNWINDS: &[u8] = b"_unwinds";

/// Key of the row with two numbers: the oldest block whose tries can be read, and the oldest block
/// at which the message passer can be proven.
pub(super) const PROOFS: &[u8] = b"_proofs";

/// Bounds of the kept history, by kind of row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct HistoryBounds {
    /// The oldest block whose state can be read. History rows of this block and of older ones are
    /// unused.
    pub states: u64,
    /// The oldest block that can be unwound.
    pub unwinds: u64,
    /// The oldest block whose tries can be read, provided that its state can be read too.
    pub proofs: u64,
    /// The oldest block at which the message passer can be proven.
    pub passer: u64,
    /// For each index, the oldest block whose rows are used. In a running node only these bounds
    /// can fall: after an unwind, if `--history.logs` is raised, or if an index is turned on again.
    pub indexes: PerIndex<u64>,
}

impl HistoryBounds {
    /// The lower of each pair of bounds: rows that either side needs are kept.
    fn and(self, other: Self) -> Self {
        Self {
            states: self.states.min(other.states),
            unwinds: self.unwinds.min(other.unwinds),
            proofs: self.proofs.min(other.proofs),
            passer: self.passer.min(other.passer),
            indexes: std::array::from_fn(|at| self.indexes[at].min(other.indexes[at])),
        }
    }
}

/// The configured windows of history, and the bounds at each stage on their way to disk.
pub(super) struct History {
    /// Number of blocks whose states are kept; zero keeps all.
    window: AtomicU64,
    /// Bytes of trie history that are kept; zero keeps all.
    pub(super) proofs: AtomicU64,
    /// Number of blocks below the head at which the message passer can be proven.
    pub(super) passer: AtomicU64,
    /// The blocks that each index covers. `None` until a window is set: until then the index is
    /// neither pruned nor extended downwards.
    indexes: Mutex<PerIndex<Option<IndexWindow>>>,
    /// The bounds of the last commit.
    committed: Mutex<HistoryBounds>,
    /// Bounds in a memtable that is being flushed; `None` if no such flush is in progress.
    pending: Mutex<Option<HistoryBounds>>,
    floors: Arc<Floors>,
}

impl Default for History {
    fn default() -> Self {
        let (window, proofs, passer) = (
            AtomicU64::new(0),
            AtomicU64::new(0),
            AtomicU64::new(PASSER_BLOCKS),
        );
        Self {
            window,
            proofs,
            passer,
            indexes: Mutex::default(),
            committed: Mutex::default(),
            pending: Mutex::default(),
            floors: Arc::default(),
        }
    }
}

/// Bounds that are on disk, and older bounds by which snapshots still read.
#[derive(Default)]
struct Floors {
    durable: Mutex<HistoryBounds>,
    /// Number of snapshots by the bounds that were durable when the snapshot was taken.
    pins: Mutex<BTreeMap<HistoryBounds, usize>>,
}

/// Protects the rows that a snapshot can read from being dropped.
pub(super) struct Pin {
    kept: HistoryBounds,
    floors: Arc<Floors>,
}

impl Drop for Pin {
    fn drop(&mut self) {
        let mut pins = self.floors.pins.lock();
        if let Some(count) = pins.get_mut(&self.kept) {
            *count -= 1;
            if *count == 0 {
                pins.remove(&self.kept);
            }
        }
    }
}

impl Floors {
    /// The bounds below which rows may be dropped now. No later snapshot can need those rows: a
    /// bound either rises, or falls before rows below the old bound are written.
    fn droppable(&self) -> HistoryBounds {
        let pins = self.pins.lock();
        let durable = *self.durable.lock();
        // Readers of unwind records handle a missing record, so snapshots do not pin this bound.
        let unwinds = durable.unwinds;
        HistoryBounds {
            unwinds,
            ..pins.keys().copied().fold(durable, HistoryBounds::and)
        }
    }
}

/// Function that returns the compaction filter of a keyspace, by the keyspace's name.
type FilterFactories = Arc<dyn Fn(&str) -> Option<Arc<dyn Factory>> + Send + Sync>;

impl History {
    pub(super) fn set_window(&self, blocks: Option<u64>) {
        self.window.store(blocks.unwrap_or(0), Ordering::Relaxed);
    }

    pub(super) fn set_index_window(&self, index: ValueIndex, window: IndexWindow) {
        self.indexes.lock()[index as usize] = Some(window);
    }

    pub(super) fn index_windows(&self) -> PerIndex<Option<IndexWindow>> {
        *self.indexes.lock()
    }

    /// Lowers the bound of an index. Call it before rows below the old bound are written: a
    /// compaction that is already running does not see those rows, and a later one has the new
    /// bound.
    pub(super) fn lower_index(&self, index: ValueIndex, bound: u64) {
        let lower = |bounds: &mut HistoryBounds| {
            let kept = &mut bounds.indexes[index as usize];
            *kept = bound.min(*kept);
        };
        let mut pending = self.pending.lock();
        pending.iter_mut().for_each(lower);
        lower(&mut self.committed.lock());
        lower(&mut self.floors.durable.lock());
    }

    /// Protects the rows above the durable bounds until the pin is dropped. Call it before taking a
    /// snapshot, so that no row is dropped that the snapshot can see.
    pub(super) fn pin(&self) -> Pin {
        let mut pins = self.floors.pins.lock();
        let kept = *self.floors.durable.lock();
        *pins.entry(kept).or_default() += 1;
        Pin {
            kept,
            floors: self.floors.clone(),
        }
    }

    /// The compaction filters by keyspace: only the history keyspace has one.
    pub(super) fn filters(&self) -> FilterFactories {
        let floors = self.floors.clone();
        Arc::new(move |name| {
            let factory =
                || Arc::new(PruneFilters(AssertUnwindSafe(floors.clone()))) as Arc<dyn Factory>;
            (name == Space::History.name()).then(factory)
        })
    }

    /// Remembers the bounds of the last commit, for the next sync.
    pub(super) fn committed(&self, kept: HistoryBounds) {
        *self.committed.lock() = kept;
    }

    /// Takes the next step to make these bounds durable. Call it after the journal with their
    /// commits is synced. The first step flushes the memtable with the bounds; once it is flushed,
    /// the next step raises the durable bounds. If only the unwind bound has risen, a flush is
    /// worth it from `UNWIND_STEP` records on, or from one if `all` is set.
    fn synced(&self, kept: HistoryBounds, space: &Keyspace, all: bool) -> Result<(), StoreError> {
        let mut pending = self.pending.lock();
        match *pending {
            // The memtable with these bounds has been flushed, so the bounds are on disk.
            Some(flushed) if space.sealed_memtable_count() == 0 => {
                *self.floors.durable.lock() = flushed;
                *pending = None;
            }
            Some(_) => {}
            None => {
                let durable = *self.floors.durable.lock();
                let more = if all { 1 } else { UNWIND_STEP };
                let risen = |bound: fn(&HistoryBounds) -> u64| bound(&kept) > bound(&durable);
                if risen(|kept| kept.states)
                    || risen(|kept| kept.proofs)
                    || risen(|kept| kept.passer)
                    || ValueIndex::ALL.iter().any(|index| {
                        kept.indexes[*index as usize] > durable.indexes[*index as usize]
                    })
                    || kept.unwinds >= durable.unwinds.saturating_add(more)
                {
                    space.rotate_memtable()?;
                    *pending = Some(kept);
                }
            }
        }
        Ok(())
    }
}

impl StoreInner {
    /// The bounds stored in this snapshot.
    pub(super) fn kept(&self, snapshot: &fjall::Snapshot) -> Result<HistoryBounds, StoreError> {
        let [history, meta] =
            [Space::History, Space::Meta].map(|space| &self.spaces[space as usize]);
        let number = |space, key: &'static [u8]| -> Result<Option<u64>, StoreError> {
            get(snapshot, space, key)?
                .map(|row| codec::decode_number(&row).ok_or_else(|| damaged_meta(key)))
                .transpose()
        };
        // Stores written before this row existed have the bound in the meta keyspace alone.
        let states = match number(history, STATES)? {
            Some(states) => states,
            None => number(meta, OLDEST_ROW)?.ok_or_else(|| damaged_meta(OLDEST_ROW))?,
        };
        let unwinds = match number(history, UNWINDS)? {
            Some(unwinds) => unwinds,
            None => number(meta, UNWIND_ROW)?.ok_or_else(|| damaged_meta(UNWIND_ROW))?,
        };
        let (proofs, passer) = match get(snapshot, history, PROOFS)? {
            Some(row) => codec::decode_pair(&row).ok_or_else(|| damaged_meta(PROOFS))?,
            // Stores written before trie history existed: trie history begins with the next block.
            None => {
                let head = get(snapshot, history, HEAD)?
                    .and_then(|row| codec::decode_id(&row))
                    .ok_or_else(|| damaged_meta(HEAD))?;
                (head.number, head.number)
            }
        };
        Ok(HistoryBounds {
            states,
            unwinds,
            proofs,
            passer,
            indexes: self.kept_indexes(snapshot)?,
        })
    }

    /// Raises the bounds as far as the head and the finalized head allow, and adds them to the
    /// batch. `None` as `finalized` means the stored finalized head. The bound of states does not
    /// rise above the finalized head. Without any finalized head, the state window bounds the
    /// unwind records too.
    pub(super) fn advance(
        &self,
        batch: &mut StoreBatch<'_>,
        head: u64,
        finalized: Option<BlockId>,
        written: TrieHistorySize,
    ) -> Result<HistoryBounds, StoreError> {
        let snapshot = self.db.snapshot();
        let finalized = match finalized {
            Some(finalized) => Some(finalized),
            None => get(&snapshot, &self.spaces[Space::Meta as usize], FINALIZED_ROW)?
                .and_then(|row| codec::decode_id(&row)),
        };
        let finalized = finalized.map(|id| id.number.min(head));
        let old = self.kept(&snapshot)?;
        let mut kept = old;
        let window = self.history.window.load(Ordering::Relaxed);
        if window > 0 {
            let wanted = head.saturating_sub(window).min(finalized.unwrap_or(head));
            if wanted >= old.states.saturating_add(step(window)) {
                kept.states = wanted;
            }
        }
        let settled = finalized
            .unwrap_or(0)
            .max(if window > 0 { kept.states } else { 0 });
        kept.unwinds = old.unwinds.max(settled.saturating_sub(UNWIND_MARGIN));
        kept.indexes = self.advance_indexes(batch, &snapshot, head, written.below.number)?;
        self.advance_proofs(&snapshot, &mut kept, head, written)?;
        // A proof needs the values in the leaves too, so trie history is useless without the state.
        kept.proofs = kept.proofs.max(kept.states);
        if (kept.proofs, kept.passer) != (old.proofs, old.passer) || !written.whole {
            batch.put(
                Space::History,
                PROOFS,
                codec::encode_pair(kept.proofs, kept.passer),
            );
        }
        if kept.states != old.states {
            batch.put(Space::History, STATES, kept.states.to_be_bytes());
            batch.put(Space::Meta, OLDEST_ROW, kept.states.to_be_bytes());
        }
        if kept.unwinds != old.unwinds {
            batch.put(Space::History, UNWINDS, kept.unwinds.to_be_bytes());
            batch.put(Space::Meta, UNWIND_ROW, kept.unwinds.to_be_bytes());
        }
        Ok(kept)
    }

    /// Waits until everything committed is on disk. Also moves risen bounds on their way to disk:
    /// rows below them may be dropped after two calls and a flush between the calls.
    pub(super) fn sync(&self) -> Result<(), StoreError> {
        self.sync_and_raise_floors(false)
    }

    fn sync_and_raise_floors(&self, all: bool) -> Result<(), StoreError> {
        let kept = *self.history.committed.lock();
        self.db.persist(fjall::PersistMode::SyncAll)?;
        self.history
            .synced(kept, &self.spaces[Space::History as usize], all)
    }

    /// Makes the last commit's bounds durable and drops the rows below them now, however long that
    /// takes.
    pub(super) fn prune(&self) -> Result<(), StoreError> {
        let space = &self.spaces[Space::History as usize];
        let kept = *self.history.committed.lock();
        self.sync_and_raise_floors(true)?;
        while *self.history.floors.durable.lock() != kept {
            std::thread::sleep(std::time::Duration::from_millis(5));
            self.sync_and_raise_floors(true)?;
        }
        Ok(space.major_compact()?)
    }
}

/// Creates the filter for each compaction, with the bounds at its start.
struct PruneFilters(AssertUnwindSafe<Arc<Floors>>);

impl Factory for PruneFilters {
    fn name(&self) -> &str {
        "history window"
    }

    fn make_filter(&self, _: &Context) -> Box<dyn CompactionFilter> {
        Box::new(PruneFilter(self.0.droppable()))
    }
}

struct PruneFilter(HistoryBounds);

impl CompactionFilter for PruneFilter {
    fn filter_item(&mut self, item: ItemAccessor<'_>, _: &Context) -> CompactionFilterResult {
        // If the newest version of a row is destroyed, readers see an older version. An older
        // version exists if the block was unwound and stored again, and is then a tombstone.
        Ok(if is_old(item.key(), self.0) {
            Verdict::Destroy
        } else {
            Verdict::Keep
        })
    }
}

/// Whether a row of the history keyspace is below its bound.
fn is_old(key: &[u8], kept: HistoryBounds) -> bool {
    let number = || key.last_chunk().copied().map(u64::from_be_bytes);
    match key.first() {
        Some(b'H') => number().is_some_and(|number| {
            number <= kept.states
                && !(number > kept.passer && proofs::is_message_passer_history(key))
        }),
        Some(b'T') => number().is_some_and(|number| {
            number <= kept.proofs
                && !(number > kept.passer && proofs::is_message_passer_history(key))
        }),
        Some(b'B') => number().is_some_and(|number| number < kept.proofs.min(kept.passer)),
        Some(b'U') => number().is_some_and(|number| number < kept.unwinds),
        Some(tag) => {
            let index = ValueIndex::ALL
                .into_iter()
                .find(|index| index.tag() == *tag);
            index.is_some_and(|index| {
                number().is_some_and(|number| number < kept.indexes[index as usize])
            })
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests;
