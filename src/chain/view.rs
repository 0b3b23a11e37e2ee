//! A view: a consistent snapshot of the chain at a head, on that head's branch.
//!
//! The executor publishes views; RPC, execution, the builder and all other readers read the chain
//! through one. A view consists of a store snapshot, the executed blocks above it, and, for a
//! branch that forks off below the stored head, the unwind records down to the fork point. A point
//! read first looks the row up in an index of the rows of those blocks, which all views of a branch
//! share, and then reads the snapshot. A scan merges the blocks one by one, so its cost grows with
//! the number of blocks above the store, which the persister keeps low. A view pins its snapshot:
//! long readers take a fresh view now and then.

mod address_search;
mod blocks;
mod encoded;
mod log_search;
mod row_index;
mod state;
mod unwound;

pub use crate::chain::rows::{Account, ExecutedBlock, Overlay, ReadError, RowChange};
pub use blocks::Mined;
pub(crate) use blocks::recover;
pub use log_search::{LogCursor, LogSearch};
pub use state::{KeyNames, Scan, State};

use crate::chain::store::Snapshot;
#[cfg(test)]
use crate::chain::store::ValueIndex;
use alloy_consensus::Header;
use alloy_primitives::{Address, B256};
use row_index::RowIndex;
use starling_proto::payload::BlockId;
use state::At;
use std::sync::Arc;
use unwound::Unwound;

/// Largest number of bytes of unwind data in a view at a fork point below the stored head, a part
/// of the node's memory budget. A larger limit would be of no use: a side branch that replaces more
/// rows would not fit into the budget of executed blocks either.
pub const UNWIND_DATA: usize = 24_000_000;

/// A consistent reading of the chain: a head, the executed blocks from the store up to this head,
/// and the store snapshot below them.
#[derive(Clone)]
pub struct View {
    snapshot: Snapshot,
    /// The newest stored block on this branch: the stored head, or the fork point of a side branch.
    base: BlockId,
    /// Unwind data: the values at `base` of the rows that stored blocks above `base` have changed.
    /// Empty unless `base` is below the stored head.
    unwound: Arc<Unwound>,
    /// The executed blocks above `base`, oldest first.
    blocks: Vec<Arc<ExecutedBlock>>,
    /// Index of the rows of `blocks`.
    rows: Arc<RowIndex>,
    /// Executed blocks at or below `base` that are still in memory, oldest first. They save reads
    /// of headers, bodies and receipts from the store.
    recent: Vec<Arc<ExecutedBlock>>,
    header: Arc<Header>,
    safe: Option<BlockId>,
    finalized: Option<BlockId>,
}

impl View {
    /// A view of the stored branch. `blocks` are consecutive, oldest first, and end with the view's
    /// head. Blocks at or below the stored head must be stored blocks; they only serve lookups from
    /// memory. Without blocks above the store, the stored head is the view's head.
    pub fn new(
        snapshot: Snapshot,
        blocks: Vec<Arc<ExecutedBlock>>,
        safe: Option<BlockId>,
        finalized: Option<BlockId>,
    ) -> Result<Self, ReadError> {
        let base = snapshot.head();
        Self::assemble(snapshot, base, Arc::default(), &[], blocks, safe, finalized)
    }

    /// A view of a branch whose newest stored block is `fork`, at or below the stored head.
    /// `blocks` are as in [`View::new`], with `fork` in place of the stored head. Fails if an
    /// unwind record above `fork` is no longer kept, or if the unwind data exceed `limit` bytes.
    ///
    /// `near` are views to share memory with. If such a view has the same snapshot and its fork
    /// point is at or above `fork`, its unwind data are reused, and only records below its fork
    /// point are read. If such a view is of the same branch, its row index is reused.
    pub fn near_branch(
        near: &[&Self],
        snapshot: Snapshot,
        fork: u64,
        blocks: Vec<Arc<ExecutedBlock>>,
        safe: Option<BlockId>,
        finalized: Option<BlockId>,
        limit: usize,
    ) -> Result<Self, ReadError> {
        let stored = snapshot.head();
        if fork > stored.number {
            return Err(ReadError::Unlinked(fork));
        }
        let hash = snapshot.hash_of(fork)?.ok_or(ReadError::Pruned(fork))?;
        let lowest = near
            .iter()
            .filter(|near| near.snapshot.is_same(&snapshot) && near.base.number >= fork)
            .min_by_key(|near| near.base.number);
        let (from, mut unwound) = lowest.map_or((stored.number, Arc::default()), |near| {
            (near.base.number, near.unwound.clone())
        });
        if fork < from {
            let unwound = Arc::make_mut(&mut unwound);
            for number in (fork + 1..=from).rev() {
                unwound.add(&snapshot, number)?;
                if unwound.weight() > limit {
                    return Err(ReadError::Far(fork));
                }
            }
        }
        Self::assemble(
            snapshot,
            BlockId { hash, number: fork },
            unwound,
            near,
            blocks,
            safe,
            finalized,
        )
    }

    /// The view of a child block of the head. Copies the list of blocks, unless `self` is the only
    /// reference to this view.
    pub fn child(
        self: Arc<Self>,
        block: Arc<ExecutedBlock>,
        safe: Option<BlockId>,
        finalized: Option<BlockId>,
    ) -> Result<Self, ReadError> {
        let (head, number) = (self.head(), block.payload.number());
        if block.payload.parent_hash() != head.hash || number != head.number + 1 {
            return Err(ReadError::Unlinked(number));
        }
        let mut view = Arc::unwrap_or_clone(self);
        view.header = Arc::new(block.payload.header.clone());
        view.blocks.push(block);
        view.rows = RowIndex::of([&view.rows], view.base.number, &view.blocks);
        Ok(Self {
            safe,
            finalized,
            ..view
        })
    }

    /// The view of a child block that may never become part of the chain. The child's rows are not
    /// added to the branch's row index, which the actual next block will extend. Reads search the
    /// blocks above the store one by one instead.
    pub fn with_pending(self: Arc<Self>, block: Arc<ExecutedBlock>) -> Result<Self, ReadError> {
        let (head, number) = (self.head(), block.payload.number());
        if block.payload.parent_hash() != head.hash || number != head.number + 1 {
            return Err(ReadError::Unlinked(number));
        }
        let mut view = Arc::unwrap_or_clone(self);
        view.header = Arc::new(block.payload.header.clone());
        view.blocks.push(block);
        view.rows = RowIndex::none();
        Ok(view)
    }

    /// Releases the row index's entries of stored blocks. Call it when no more views will be
    /// created whose newest stored block is below this view's.
    pub fn release(&self) {
        self.rows.release(self.base.number);
    }

    /// Splits `blocks` at `base`, checks that they link, and finds or creates their row index.
    fn assemble(
        snapshot: Snapshot,
        base: BlockId,
        unwound: Arc<Unwound>,
        near: &[&Self],
        blocks: Vec<Arc<ExecutedBlock>>,
        safe: Option<BlockId>,
        finalized: Option<BlockId>,
    ) -> Result<Self, ReadError> {
        for pair in blocks.windows(2) {
            let (parent, child) = (pair[0].payload.id(), &pair[1].payload);
            if child.parent_hash() != parent.hash || child.number() != parent.number + 1 {
                return Err(ReadError::Unlinked(child.number()));
            }
        }
        let mut recent = blocks;
        let blocks =
            recent.split_off(recent.partition_point(|block| block.payload.number() <= base.number));
        let on_base = recent.last().is_none_or(|block| block.payload.id() == base)
            && blocks.first().is_none_or(|b| {
                b.payload.parent_hash() == base.hash && b.payload.number() == base.number + 1
            });
        if !on_base {
            return Err(ReadError::Unlinked(base.number));
        }
        let header = match blocks.last().or(recent.last()) {
            Some(block) => block.payload.header.clone(),
            None => snapshot
                .header(base.number)?
                .ok_or_else(|| ReadError::Damaged(format!("block {} has no header", base.hash)))?,
        };
        let rows = RowIndex::of(near.iter().map(|near| &near.rows), base.number, &blocks);
        Ok(Self {
            snapshot,
            base,
            unwound,
            blocks,
            rows,
            recent,
            header: Arc::new(header),
            safe,
            finalized,
        })
    }

    pub fn head(&self) -> BlockId {
        self.blocks
            .last()
            .map_or(self.base, |block| block.payload.id())
    }

    pub fn header(&self) -> &Header {
        &self.header
    }

    pub fn safe(&self) -> Option<BlockId> {
        self.safe
    }

    pub fn finalized(&self) -> Option<BlockId> {
        self.finalized
    }

    /// Whether this view's store snapshot is `snapshot`.
    pub fn is_on(&self, snapshot: &Snapshot) -> bool {
        self.snapshot.is_same(snapshot)
    }

    /// Number of stored blocks that this view unwinds.
    #[cfg(test)]
    pub(in crate::chain) fn depth(&self) -> u64 {
        self.snapshot.head().number - self.base.number
    }

    /// The first block from which on this view's snapshot has every block in `index`.
    #[cfg(test)]
    pub(in crate::chain) fn indexed_from(&self, index: ValueIndex) -> u64 {
        self.snapshot.indexed_from(index)
    }

    /// The newest block of this branch that is in the store.
    pub fn stored(&self) -> BlockId {
        self.base
    }

    /// The state at the head.
    pub fn state(self: &Arc<Self>) -> State {
        State::new(
            self.clone(),
            self.header.clone(),
            At::Tip(self.blocks.len()),
        )
    }

    /// The state after an earlier block of this branch; `None` above the head or below the kept
    /// history. Below [`View::stored`] the state may have values but no trie.
    pub fn state_at(self: &Arc<Self>, number: u64) -> Result<Option<State>, ReadError> {
        if number == self.header.number {
            return Ok(Some(self.state()));
        }
        if number > self.header.number || number < self.snapshot.oldest_state() {
            return Ok(None);
        }
        let header = self
            .header_of(number)?
            .ok_or_else(|| ReadError::Damaged(format!("block {number} has no header")))?;
        let at = match number.checked_sub(self.base.number) {
            Some(above) => At::Tip(above as usize),
            None => At::Stored(number),
        };
        Ok(Some(State::new(self.clone(), Arc::new(header), at)))
    }

    /// The state after a block of this branch, with the trie that proofs of this account need;
    /// `None` above the head or below the proof window.
    pub fn provable_state(
        self: &Arc<Self>,
        number: u64,
        address: Address,
    ) -> Result<Option<State>, ReadError> {
        if number >= self.base.number {
            return self.state_at(number);
        }
        if number < self.oldest_proof(address) {
            return Ok(None);
        }
        let header = self.header_of(number)?.map(Arc::new);
        Ok(header.map(|header| State::new(self.clone(), header, At::Stored(number))))
    }

    /// The oldest block for which [`View::provable_state`] returns a state. The message passer's
    /// proofs are kept longer than those of other accounts.
    pub fn oldest_proof(&self, address: Address) -> u64 {
        self.snapshot.oldest_proof(address).min(self.base.number)
    }

    /// The oldest block for which [`View::state_at`] returns a state.
    pub fn oldest_state(&self) -> u64 {
        self.snapshot.oldest_state()
    }

    pub fn hash_of(&self, number: u64) -> Result<Option<B256>, ReadError> {
        match self.in_memory(number) {
            Some(block) => Ok(Some(block.payload.hash)),
            None if number <= self.base.number => self.snapshot.hash_of(number),
            None => Ok(None),
        }
    }

    /// The number of the block with this hash; `None` if the block is not on this branch.
    pub fn number_of(&self, hash: B256) -> Result<Option<u64>, ReadError> {
        if let Some(block) = self
            .all_in_memory()
            .find(|block| block.payload.hash == hash)
        {
            return Ok(Some(block.payload.number()));
        }
        Ok(self
            .snapshot
            .number_of(&hash)?
            .filter(|number| *number <= self.base.number))
    }

    pub fn header_of(&self, number: u64) -> Result<Option<Header>, ReadError> {
        if let Some(block) = self.in_memory(number) {
            return Ok(Some(block.payload.header.clone()));
        }
        self.stored_part(number, Snapshot::header)
    }

    /// Blocks in memory, newest first.
    fn all_in_memory(&self) -> impl Iterator<Item = &Arc<ExecutedBlock>> {
        self.blocks.iter().rev().chain(self.recent.iter().rev())
    }

    fn in_memory(&self, number: u64) -> Option<&Arc<ExecutedBlock>> {
        let oldest = self
            .recent
            .first()
            .or(self.blocks.first())?
            .payload
            .number();
        let index = usize::try_from(number.checked_sub(oldest)?).ok()?;
        self.recent
            .get(index)
            .or_else(|| self.blocks.get(index.checked_sub(self.recent.len())?))
    }

    /// Reads a part of a stored block with `read`; `None` if the block is not a stored block of
    /// this branch.
    fn stored_part<T>(
        &self,
        number: u64,
        read: impl FnOnce(&Snapshot, u64) -> Result<Option<T>, ReadError>,
    ) -> Result<Option<T>, ReadError> {
        if number <= self.base.number {
            read(&self.snapshot, number)
        } else {
            Ok(None)
        }
    }
}

#[cfg(test)]
mod tests;
