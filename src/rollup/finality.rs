//! Finality: which safe L2 block is final, given the finalized L1 block (specs: derivation, finality).
//!
//! A safe block is final when the L1 block that made it safe is. Pure: the driver reports safe blocks
//! and L1 signals, checks the proposal of [`Finality::candidate`] against L1, and promotes it. At start
//! and after a reset it restores the safe blocks from their records. Memory is bounded by the lookback.

use crate::rollup::safe_db::SafeRecord;
use starling_proto::payload::BlockId;
use std::collections::VecDeque;

/// L1 blocks whose safe heads are remembered: 4 epochs of 32 slots, and one more (op-node's finality
/// lookback; `--finality.lookback`).
pub const LOOKBACK: usize = 4 * 32 + 1;
/// Derived L1 blocks between two attempts with the same signal (op-node's finality delay;
/// `--finality.delay`).
pub const DELAY: u64 = 64;

/// A block that may be final. Both L1 blocks must be canonical for that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FinalityCandidate {
    pub block: SafeRecord,
    /// L1's finalized block.
    pub finalized_l1: BlockId,
}

/// Safe blocks of the recent L1 blocks, and L1's newest finalized block.
#[derive(Debug)]
pub struct Finality {
    lookback: usize,
    delay: u64,
    /// One entry for each L1 block, oldest first.
    safe: VecDeque<SafeRecord>,
    /// Number of the newest L1 block whose safe block was restored.
    restored_through: Option<u64>,
    finalized_l1: Option<BlockId>,
    /// The last finalized block of L1 that was found not to be canonical.
    refused: Option<BlockId>,
    /// L1 number from which on the next attempt is due.
    next_attempt: u64,
    /// Number of the newest block that is final.
    finalized: u64,
}

impl Finality {
    /// `lookback` in L1 blocks, at least 1; `delay` in derived L1 blocks.
    pub fn new(lookback: usize, delay: u64) -> Self {
        Self {
            lookback: lookback.max(1),
            delay,
            safe: VecDeque::new(),
            restored_through: None,
            finalized_l1: None,
            refused: None,
            next_attempt: 0,
            finalized: 0,
        }
    }

    /// The newest finalized block of L1 that was reported.
    pub fn finalized_l1(&self) -> Option<BlockId> {
        self.finalized_l1
    }

    /// Forgets safe blocks: their L1 blocks may be orphaned. L1's signal stays, and a refused one may be
    /// reported again.
    pub fn reset(&mut self) {
        self.safe.clear();
        self.restored_through = None;
        self.refused = None;
        self.next_attempt = 0;
    }

    /// Takes the safe blocks that the records hold at the start of derivation, oldest first: they are not
    /// derived again. `finalized` is the number of the finalized block.
    pub fn restore(&mut self, finalized: u64, records: impl IntoIterator<Item = SafeRecord>) {
        self.finalized = self.finalized.max(finalized);
        records.into_iter().for_each(|block| self.on_safe(block));
        self.restored_through = self.safe.back().map(|newest| newest.derived_from.number);
    }

    /// The L1 block that this safe block was derived from is not canonical: the safe block is forgotten.
    /// Returns whether derivation must be reset. Not for a restored one: the reset would restore it. The
    /// search of the start and the driver compare the L1 block of the newest record by themselves.
    pub fn on_reorged(&mut self, block: SafeRecord) -> bool {
        self.safe.retain(|safe| *safe != block);
        let restored = self.restored_through;
        restored.is_none_or(|through| block.derived_from.number > through)
    }

    /// A block became safe. It replaces earlier ones of the same and later L1 blocks.
    pub fn on_safe(&mut self, block: SafeRecord) {
        let l1 = block.derived_from.number;
        while self
            .safe
            .back()
            .is_some_and(|last| last.derived_from.number >= l1)
        {
            self.safe.pop_back();
        }
        self.restored_through = self
            .restored_through
            .map(|through| through.min(l1.saturating_sub(1)));
        if self.safe.len() >= self.lookback {
            self.safe.pop_front();
        }
        self.safe.push_back(block);
    }

    /// Whether this finalized block of L1 takes the place of the known one: it is higher, or another
    /// one of the same number, and it was not refused.
    pub fn is_news(&self, block: BlockId) -> bool {
        let replaces = |known: BlockId| known.number <= block.number && known != block;
        self.refused != Some(block) && self.finalized_l1.is_none_or(replaces)
    }

    /// The finalized block of L1 is not canonical on L1. It is forgotten, and not taken again before
    /// another one or a reset.
    pub fn refuse_finalized_l1(&mut self) {
        if let Some(block) = self.finalized_l1.take() {
            self.refused = Some(block);
        }
    }

    /// L1's finalized block was read. Older ones than the known one are ignored. An attempt is due.
    pub fn on_finalized_l1(&mut self, block: BlockId) {
        if self.is_news(block) {
            self.finalized_l1 = Some(block);
            self.next_attempt = 0;
        }
    }

    /// Everything that L1 has is derived: an attempt is due, since nothing else may come for a while.
    pub fn on_idle(&mut self) {
        self.next_attempt = 0;
    }

    /// The block to check against L1, once an attempt is due. `derived` is the L1 block that is
    /// derived from at present.
    pub fn candidate(&self, derived: BlockId) -> Option<FinalityCandidate> {
        let finalized_l1 = self.finalized_l1?;
        if derived.number < self.next_attempt {
            return None;
        }
        let block = self
            .safe
            .iter()
            .rev()
            .find(|safe| safe.derived_from.number <= finalized_l1.number)
            .filter(|safe| safe.l2.number > self.finalized)?;
        Some(FinalityCandidate {
            block: *block,
            finalized_l1,
        })
    }

    /// Records the end of an attempt; `finalized` is the block that became final, if any. The next
    /// attempt is due `delay` L1 blocks after `derived`, the L1 block that is derived from.
    pub fn attempted(&mut self, derived: BlockId, finalized: Option<BlockId>) {
        self.next_attempt = derived.number.saturating_add(self.delay.max(1));
        if let Some(block) = finalized {
            self.finalized = self.finalized.max(block.number);
        }
    }
}

#[cfg(test)]
mod tests;
