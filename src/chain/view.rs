//! A view: one consistent reading of the chain at a head, on that head's branch.
//!
//! The executor publishes views; RPC, execution, the builder and everybody else read the chain through one. A view is a store
//! snapshot, the executed blocks above it, and, for a branch that leaves the stored chain below its head, the unwind records that
//! lead back to the fork. Point reads ask an index of the rows of those blocks, which the views of a branch share, and end in the
//! snapshot; scans go through the blocks one by one, so their cost grows with the blocks above the store: the persister keeps those
//! few. A view pins its snapshot: long readers take a fresh one now and then.

mod back;
mod blocks;
mod encoded;
mod rows;
mod state;

pub use blocks::Mined;
pub(in crate::chain) use blocks::recover;
pub use state::{Scan, State};

use crate::chain::{receipt::Receipt, store::Snapshot};
use alloy_consensus::Header;
use alloy_primitives::{Address, B256, Bytes, U256, keccak256};
use back::Back;
use rows::Rows;
use starling_proto::payload::{BlockId, Payload};
use state::At;
use std::{
    collections::BTreeMap,
    sync::{Arc, OnceLock},
};

/// One row of the flat state or the trie, before and after a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowChange {
    pub before: Option<Bytes>,
    pub after: Option<Bytes>,
}

/// All rows of the `state` keyspace that one block changes, by row key. The same value serves as overlay (newer than the store),
/// as the write set of a commit, as unwind record (befores), and turned around as an overlay that leads back in time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Overlay {
    pub rows: BTreeMap<Bytes, RowChange>,
    pub codes: Vec<(B256, Bytes)>,
}

/// Bytes that a row of a block takes in memory beside its key and its values, its place in the index of its branch included.
const ROW_OVERHEAD: usize = 300;

/// Bytes of what stored blocks have changed that a view of a branch below the stored head may hold, a part of the node's memory budget.
/// A side branch as heavy as these blocks were has no place among the executed blocks either.
pub const WAY_BACK: usize = 24_000_000;

impl Overlay {
    /// Approximate bytes held in memory: what budgets count.
    pub fn weight(&self) -> usize {
        let value = |value: &Option<Bytes>| value.as_ref().map_or(0, |v| v.len());
        let rows: usize = self
            .rows
            .iter()
            .map(|(key, row)| ROW_OVERHEAD + key.len() + value(&row.before) + value(&row.after))
            .sum();
        rows + self
            .codes
            .iter()
            .map(|(_, code)| 64 + code.len())
            .sum::<usize>()
    }
}

/// An account, as the state trie's leaf holds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Account {
    pub nonce: u64,
    pub balance: U256,
    pub storage_root: B256,
    pub code_hash: B256,
}

/// A block that has been executed: the last rung of the ladder.
#[derive(Debug)]
pub struct ExecutedBlock {
    pub payload: Arc<Payload>,
    pub senders: Vec<Address>,
    pub receipts: Arc<Vec<Receipt>>,
    pub overlay: Arc<Overlay>,
    transaction_hashes: OnceLock<Vec<B256>>,
}

impl ExecutedBlock {
    pub fn new(
        payload: Arc<Payload>,
        senders: Vec<Address>,
        receipts: Arc<Vec<Receipt>>,
        overlay: Arc<Overlay>,
    ) -> Self {
        Self {
            payload,
            senders,
            receipts,
            overlay,
            transaction_hashes: OnceLock::new(),
        }
    }

    /// Hashes of the transactions, in block order; computed once.
    pub fn transaction_hashes(&self) -> &[B256] {
        self.transaction_hashes
            .get_or_init(|| self.payload.transactions.iter().map(keccak256).collect())
    }

    /// Approximate bytes held in memory: what budgets count.
    pub fn weight(&self) -> usize {
        self.payload.weight()
            + self.overlay.weight()
            + self.receipts.iter().map(Receipt::weight).sum::<usize>()
    }
}

#[derive(Clone, Debug, thiserror::Error)]
pub enum ReadError {
    #[error(
        "the database cannot be read ({0}): stop the node and run `starling db verify`, which says what is damaged and what helps"
    )]
    Store(String),
    #[error(
        "a stored row is damaged ({0}): stop the node and run `starling db verify`, which says what else is, and what helps"
    )]
    Damaged(String),
    #[error("the records of block {0} are no longer kept")]
    Pruned(u64),
    #[error("no trie is kept for the state after block {0}, only its values")]
    NoTrie(u64),
    #[error("too much has changed since block {0} for a branch to stand on it")]
    Far(u64),
    #[error("block {0} does not stand on the block below it")]
    Unlinked(u64),
}

impl ReadError {
    /// What is wrong, for whoever says himself what to do about it.
    pub fn cause(&self) -> String {
        match self {
            Self::Store(what) | Self::Damaged(what) => what.clone(),
            other => other.to_string(),
        }
    }
}

/// A head, the blocks above the store that lead to it, and the store snapshot below them.
#[derive(Clone)]
pub struct View {
    snapshot: Snapshot,
    /// The newest stored block on this branch: the stored head, or the fork of a side branch.
    base: BlockId,
    /// What the rows were at `base` that stored blocks above it have changed. Empty unless `base` is below the stored head.
    back: Arc<Back>,
    /// The executed blocks above `base`, oldest first.
    blocks: Vec<Arc<ExecutedBlock>>,
    /// The rows of `blocks`.
    rows: Arc<Rows>,
    /// Executed blocks up to `base` that are still in memory, oldest first: they spare reads of headers, bodies and receipts.
    recent: Vec<Arc<ExecutedBlock>>,
    header: Arc<Header>,
    safe: Option<BlockId>,
    finalized: Option<BlockId>,
}

impl View {
    /// A view on the stored branch. `blocks` are consecutive, oldest first, and lead to the head; those at or below the stored head
    /// must be stored blocks and only serve lookups from memory. Without blocks above the store the stored head is the head.
    pub fn new(
        snapshot: Snapshot,
        blocks: Vec<Arc<ExecutedBlock>>,
        safe: Option<BlockId>,
        finalized: Option<BlockId>,
    ) -> Result<Self, ReadError> {
        let base = snapshot.head();
        Self::assemble(snapshot, base, Arc::default(), &[], blocks, safe, finalized)
    }

    /// A view on a branch whose newest stored block is `fork`, at or below the stored head. Err if an unwind record between the
    /// two is no longer kept, or they are more than [`WAY_BACK`]. `blocks` as in [`View::new`], above `fork`; without any, `fork` is
    /// the head.
    pub fn at_branch(
        snapshot: Snapshot,
        fork: u64,
        blocks: Vec<Arc<ExecutedBlock>>,
        safe: Option<BlockId>,
        finalized: Option<BlockId>,
    ) -> Result<Self, ReadError> {
        Self::near_branch(&[], snapshot, fork, blocks, safe, finalized, WAY_BACK)
    }

    /// As [`View::at_branch`], with `most` bytes for the way back. `near` are views on other branches, or of this one. With one that
    /// stands on the same snapshot the way back from its fork is shared, so that only records below that are read; with one of this
    /// branch, the index of its rows.
    pub fn near_branch(
        near: &[&Self],
        snapshot: Snapshot,
        fork: u64,
        blocks: Vec<Arc<ExecutedBlock>>,
        safe: Option<BlockId>,
        finalized: Option<BlockId>,
        most: usize,
    ) -> Result<Self, ReadError> {
        let stored = snapshot.head();
        if fork > stored.number {
            return Err(ReadError::Unlinked(fork));
        }
        let hash = snapshot.hash_of(fork)?.ok_or(ReadError::Pruned(fork))?;
        let lowest = near
            .iter()
            .filter(|near| near.snapshot.is_same(&snapshot) && near.base.number >= fork);
        let lowest = lowest.min_by_key(|near| near.base.number);
        let (from, mut back) = lowest.map_or((stored.number, Arc::default()), |near| {
            (near.base.number, near.back.clone())
        });
        if fork < from {
            let back = Arc::make_mut(&mut back);
            for number in (fork + 1..=from).rev() {
                back.add(&snapshot, number)?;
                if back.weight() > most {
                    return Err(ReadError::Far(fork));
                }
            }
        }
        Self::assemble(
            snapshot,
            BlockId { hash, number: fork },
            back,
            near,
            blocks,
            safe,
            finalized,
        )
    }

    /// The view one block further. Costs little, and less if nobody else holds this one.
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
        view.rows = Rows::of([&view.rows], view.base.number, &view.blocks);
        Ok(Self {
            safe,
            finalized,
            ..view
        })
    }

    /// The executor no longer makes views that stand below this one's newest stored block: what only they would need can go.
    pub fn release(&self) {
        self.rows.forget(self.base.number);
    }

    fn assemble(
        snapshot: Snapshot,
        base: BlockId,
        back: Arc<Back>,
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
        let rows = Rows::of(near.iter().map(|near| &near.rows), base.number, &blocks);
        Ok(Self {
            snapshot,
            base,
            back,
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

    /// Whether it reads the store through this snapshot.
    pub fn is_on(&self, snapshot: &Snapshot) -> bool {
        self.snapshot.is_same(snapshot)
    }

    /// How many stored blocks it takes back.
    #[cfg(test)]
    pub(in crate::chain) fn depth(&self) -> u64 {
        self.snapshot.head().number - self.base.number
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

    /// The state after an earlier block of this branch; `None` above the head or below the retained history. Below
    /// [`View::stored`] it may have values but no trie.
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

    /// The state after a block of this branch in which this account can be proven; `None` above the head or below the proof window.
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

    /// The oldest block that [`View::provable_state`] answers for: the message passer's are kept longer than others.
    pub fn oldest_proof(&self, address: Address) -> u64 {
        self.snapshot.oldest_proof(address).min(self.base.number)
    }

    /// The oldest block that [`View::state_at`] answers for.
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

    /// The number of a block if it is on this branch.
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

    /// Newest first.
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

    /// Part of a stored block of this branch.
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
