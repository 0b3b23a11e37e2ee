//! The history window: how far back states can be read and blocks be unwound, and the compaction filter that drops what is older.
//!
//! A commit moves the two bounds, in its own batch, and costs nothing more. Rows below them stay until the engine compacts the table
//! they are in, on its own threads: no tombstones are written, nobody waits. Two things come between a bound and its rows. It must be
//! on the disk, in a table of the same keyspace, or a power cut could bring back a bound whose rows are gone; and no snapshot may
//! still answer by an older one.

use crate::chain::store::{
    Batch, FINALIZED_ROW, HEAD, Inner, OLDEST_ROW, Space, StoreError, UNWIND_MARGIN, UNWIND_ROW,
    codec, damaged_meta, get,
    proofs::{self, PASSER_BLOCKS, Written},
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

/// Most blocks that a bound moves at once: each move writes a memtable out.
const MAX_STEP: u64 = 1024;

/// Unwind records that go together at least.
const UNWIND_STEP: u64 = 256;

/// The oldest state, in the keyspace whose rows it is about.
const STATES: &[u8] = b"_oldest";

/// The oldest block that can be unwound, likewise.
const UNWINDS: &[u8] = b"_unwinds";

/// The oldest block that can be proven, and the oldest at which the message passer can.
pub(super) const PROOFS: &[u8] = b"_proofs";

/// The bounds of history.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Kept {
    /// The oldest block whose state can be read: history rows of this block and older ones serve nobody.
    pub states: u64,
    /// The oldest block that can be unwound.
    pub unwinds: u64,
    /// The oldest block whose tries can be read, if its state can.
    pub proofs: u64,
    /// The oldest block at which the message passer can be proven.
    pub passer: u64,
}

impl Kept {
    /// What both keep.
    fn and(self, other: Self) -> Self {
        Self {
            states: self.states.min(other.states),
            unwinds: self.unwinds.min(other.unwinds),
            proofs: self.proofs.min(other.proofs),
            passer: self.passer.min(other.passer),
        }
    }
}

pub(super) struct History {
    /// Blocks; zero is all.
    window: AtomicU64,
    /// Bytes of trie history; zero is all.
    pub(super) proofs: AtomicU64,
    /// Blocks at which the message passer can be proven.
    pub(super) passer: AtomicU64,
    /// As committed.
    committed: Mutex<Kept>,
    /// On its way to the disk.
    pending: Mutex<Option<Kept>>,
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
            committed: Mutex::default(),
            pending: Mutex::default(),
            floors: Arc::default(),
        }
    }
}

/// What the filter may drop, and who still reads.
#[derive(Default)]
struct Floors {
    durable: Mutex<Kept>,
    /// How many snapshots read by these bounds.
    pins: Mutex<BTreeMap<Kept, usize>>,
}

/// Keeps the states that a snapshot can read.
pub(super) struct Pin {
    kept: Kept,
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
    /// What may be dropped now. No snapshot taken later can need it: bounds only rise.
    fn droppable(&self) -> Kept {
        let pins = self.pins.lock();
        let durable = *self.durable.lock();
        // Who goes back by unwind records finds out when one is missing.
        let unwinds = durable.unwinds;
        Kept {
            unwinds,
            ..pins.keys().copied().fold(durable, Kept::and)
        }
    }
}

/// A keyspace's compaction filter by its name, as the database asks for it.
type Filters = Arc<dyn Fn(&str) -> Option<Arc<dyn Factory>> + Send + Sync>;

impl History {
    pub(super) fn set_window(&self, blocks: Option<u64>) {
        self.window.store(blocks.unwrap_or(0), Ordering::Relaxed);
    }

    /// Before a snapshot is taken: what it can see stays until the pin is gone.
    pub(super) fn pin(&self) -> Pin {
        let mut pins = self.floors.pins.lock();
        let kept = *self.floors.durable.lock();
        *pins.entry(kept).or_default() += 1;
        Pin {
            kept,
            floors: self.floors.clone(),
        }
    }

    /// For the history keyspace.
    pub(super) fn filters(&self) -> Filters {
        let floors = self.floors.clone();
        Arc::new(move |name| {
            let factory =
                || Arc::new(DropsOld(AssertUnwindSafe(floors.clone()))) as Arc<dyn Factory>;
            (name == Space::History.name()).then(factory)
        })
    }

    pub(super) fn committed(&self, kept: Kept) {
        *self.committed.lock() = kept;
    }

    /// The commits with these bounds are in a synced journal. A few more unwind records that could go are not worth a flush, unless
    /// `all` is wanted.
    fn synced(&self, kept: Kept, space: &Keyspace, all: bool) -> Result<(), StoreError> {
        let mut pending = self.pending.lock();
        match *pending {
            // The memtable with the bound has become a table.
            Some(flushed) if space.sealed_memtable_count() == 0 => {
                *self.floors.durable.lock() = flushed;
                *pending = None;
            }
            Some(_) => {}
            None => {
                let durable = *self.floors.durable.lock();
                let more = if all { 1 } else { UNWIND_STEP };
                let risen = |bound: fn(&Kept) -> u64| bound(&kept) > bound(&durable);
                if risen(|kept| kept.states)
                    || risen(|kept| kept.proofs)
                    || risen(|kept| kept.passer)
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

impl Inner {
    /// The bounds as they are stored.
    pub(super) fn kept(&self, snapshot: &fjall::Snapshot) -> Result<Kept, StoreError> {
        let [history, meta] =
            [Space::History, Space::Meta].map(|space| &self.spaces[space as usize]);
        let number = |space, key: &'static [u8]| -> Result<Option<u64>, StoreError> {
            get(snapshot, space, key)?
                .map(|row| codec::decode_number(&row).ok_or_else(|| damaged_meta(key)))
                .transpose()
        };
        // Beside the rows it is about since there is a window; before, in meta alone.
        let states = match number(history, STATES)? {
            Some(states) => states,
            None => number(meta, OLDEST_ROW)?.ok_or_else(|| damaged_meta(OLDEST_ROW))?,
        };
        let unwinds = match number(history, UNWINDS)? {
            Some(unwinds) => unwinds,
            None => number(meta, UNWIND_ROW)?.ok_or_else(|| damaged_meta(UNWIND_ROW))?,
        };
        let (proofs, passer) = match get(snapshot, history, PROOFS)? {
            Some(row) => codec::decode_two(&row).ok_or_else(|| damaged_meta(PROOFS))?,
            // Written before there was trie history: it begins with the next block.
            None => {
                let head = get(snapshot, history, HEAD)?
                    .and_then(|row| codec::decode_id(&row))
                    .ok_or_else(|| damaged_meta(HEAD))?;
                (head.number, head.number)
            }
        };
        Ok(Kept {
            states,
            unwinds,
            proofs,
            passer,
        })
    }

    /// Moves the bounds up to where a head and a finalized head allow it; `None` is the stored one. A finalized state can always be
    /// read. Without a finalized head the window bounds the unwind records too.
    pub(super) fn advance(
        &self,
        batch: &mut Batch<'_>,
        head: u64,
        finalized: Option<BlockId>,
        written: Written,
    ) -> Result<Kept, StoreError> {
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
            if wanted >= old.states.saturating_add((window / 64).clamp(1, MAX_STEP)) {
                kept.states = wanted;
            }
        }
        let settled = finalized
            .unwrap_or(0)
            .max(if window > 0 { kept.states } else { 0 });
        kept.unwinds = old.unwinds.max(settled.saturating_sub(UNWIND_MARGIN));
        self.advance_proofs(&snapshot, &mut kept, head, written)?;
        // Trie history without the values it leads to proves nothing.
        kept.proofs = kept.proofs.max(kept.states);
        if (kept.proofs, kept.passer) != (old.proofs, old.passer) || !written.whole {
            batch.put(
                Space::History,
                PROOFS,
                codec::encode_two(kept.proofs, kept.passer),
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

    /// Waits until everything committed is on the disk. Bounds that rose take two calls and a flush between them until rows may go.
    pub(super) fn sync(&self) -> Result<(), StoreError> {
        self.sync_and_let_go(false)
    }

    fn sync_and_let_go(&self, all: bool) -> Result<(), StoreError> {
        let kept = *self.history.committed.lock();
        self.db.persist(fjall::PersistMode::SyncAll)?;
        self.history
            .synced(kept, &self.spaces[Space::History as usize], all)
    }

    /// Moves the bounds and drops what is below them now, however long that takes.
    pub(super) fn prune(&self) -> Result<(), StoreError> {
        let space = &self.spaces[Space::History as usize];
        let kept = *self.history.committed.lock();
        self.sync_and_let_go(true)?;
        while *self.history.floors.durable.lock() != kept {
            std::thread::sleep(std::time::Duration::from_millis(5));
            self.sync_and_let_go(true)?;
        }
        Ok(space.major_compact()?)
    }
}

/// Makes a filter for one compaction.
struct DropsOld(AssertUnwindSafe<Arc<Floors>>);

impl Factory for DropsOld {
    fn name(&self) -> &str {
        "history window"
    }

    fn make_filter(&self, _: &Context) -> Box<dyn CompactionFilter> {
        Box::new(Filter(self.0.droppable()))
    }
}

struct Filter(Kept);

impl CompactionFilter for Filter {
    fn filter_item(&mut self, item: ItemAccessor<'_>, _: &Context) -> CompactionFilterResult {
        // A row of a block that was unwound and stored again has an older version below: a tombstone, and then as old a row as this.
        Ok(if is_old(item.key(), self.0) {
            Verdict::Destroy
        } else {
            Verdict::Keep
        })
    }
}

fn is_old(key: &[u8], kept: Kept) -> bool {
    let number = || key.last_chunk().copied().map(u64::from_be_bytes);
    match key.first() {
        Some(b'H') => number().is_some_and(|number| {
            number <= kept.states && !(number > kept.passer && proofs::is_passers(key))
        }),
        Some(b'T') => number().is_some_and(|number| {
            number <= kept.proofs && !(number > kept.passer && proofs::is_passers(key))
        }),
        Some(b'B') => number().is_some_and(|number| number < kept.proofs.min(kept.passer)),
        Some(b'U') => number().is_some_and(|number| number < kept.unwinds),
        _ => false,
    }
}

#[cfg(test)]
mod tests;
