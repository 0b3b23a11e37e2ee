//! Decides which safe L2 block is final, given L1's finalized block (specs: derivation, finality).
//!
//! A safe block is final when the L1 block that made it safe is final. Pure: the driver reports
//! safe blocks and L1's finalized blocks, checks the proposal of [`Finality::candidate`] against
//! L1, and promotes the block. At start and after a reset the driver restores the safe blocks from
//! their records. Memory is bounded by the lookback.

use crate::rollup::safe_db::SafeRecord;
use starling_proto::payload::BlockId;
use std::collections::VecDeque;

/// Number of recent L1 blocks whose safe heads are kept: 4 epochs of 32 slots, and one more
/// (op-node's finality lookback; `--finality.lookback`).
pub const LOOKBACK: usize = 4 * 32 + 1;
/// Derived L1 blocks between two attempts with the same finalized L1 block (op-node's finality
/// delay; `--finality.delay`).
pub const DELAY: u64 = 64;

/// A safe block that is final if both L1 blocks, `block.derived_from` and `finalized_l1`, are
/// canonical.
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
    /// The last safe block of each L1 block, oldest first.
    safe: VecDeque<SafeRecord>,
    /// Number of the newest L1 block with a restored safe block.
    restored_through: Option<u64>,
    finalized_l1: Option<BlockId>,
    /// The last reported finalized L1 block that was found not to be canonical.
    refused: Option<BlockId>,
    /// The next attempt is due when derivation reaches this L1 block number.
    next_attempt: u64,
    /// Number of the newest finalized L2 block.
    finalized: u64,
}

impl Finality {
    /// `lookback` is in L1 blocks, at least 1. `delay` is in derived L1 blocks.
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

    /// The newest reported finalized block of L1.
    pub fn finalized_l1(&self) -> Option<BlockId> {
        self.finalized_l1
    }

    /// Drops the safe blocks, since their L1 blocks may be orphaned. L1's finalized block is kept.
    /// A refused finalized block may be reported again.
    pub fn reset(&mut self) {
        self.safe.clear();
        self.restored_through = None;
        self.refused = None;
        self.next_attempt = 0;
    }

    /// Adds the recorded safe blocks at the start of derivation, oldest first, since they are not
    /// derived again. `finalized` is the number of the finalized L2 block.
    pub fn restore(&mut self, finalized: u64, records: impl IntoIterator<Item = SafeRecord>) {
        self.finalized = self.finalized.max(finalized);
        records.into_iter().for_each(|block| self.on_safe(block));
        self.restored_through = self.safe.back().map(|newest| newest.derived_from.number);
    }

    /// Drops a safe block after its L1 block was found orphaned. Returns whether derivation must be
    /// reset. A restored block must not cause a reset, since the reset would restore it again. The
    /// L1 block of the newest record is checked elsewhere, by the search for the start and by the
    /// driver.
    pub fn on_reorged(&mut self, block: SafeRecord) -> bool {
        self.safe.retain(|safe| *safe != block);
        let restored = self.restored_through;
        restored.is_none_or(|through| block.derived_from.number > through)
    }

    /// Adds a new safe block. It replaces earlier entries of the same and of later L1 blocks.
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

    /// Whether this finalized L1 block replaces the known one: it must be higher, or another block
    /// of the same number, and must not be the refused one.
    pub fn is_news(&self, block: BlockId) -> bool {
        let replaces = |known: BlockId| known.number <= block.number && known != block;
        self.refused != Some(block) && self.finalized_l1.is_none_or(replaces)
    }

    /// Drops L1's finalized block after it was found not to be canonical. The same block is refused
    /// until another one is dropped in this way or finality is reset.
    pub fn refuse_finalized_l1(&mut self) {
        if let Some(block) = self.finalized_l1.take() {
            self.refused = Some(block);
        }
    }

    /// Sets L1's finalized block and makes an attempt due. A block that [`Finality::is_news`]
    /// rejects is ignored.
    pub fn on_finalized_l1(&mut self, block: BlockId) {
        if self.is_news(block) {
            self.finalized_l1 = Some(block);
            self.next_attempt = 0;
        }
    }

    /// Makes an attempt due when all available L1 blocks are derived, since the next block may be
    /// long in coming.
    pub fn on_idle(&mut self) {
        self.next_attempt = 0;
    }

    /// The candidate to check against L1; `None` before an attempt is due. `derived` is the L1
    /// block from which derivation currently reads.
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

    /// Records the end of an attempt. `finalized` is the block that became final, if any. The next
    /// attempt is due `delay` L1 blocks after `derived`, the current L1 block of derivation.
    pub fn attempted(&mut self, derived: BlockId, finalized: Option<BlockId>) {
        self.next_attempt = derived.number.saturating_add(self.delay.max(1));
        if let Some(block) = finalized {
            self.finalized = self.finalized.max(block.number);
        }
    }
}

#[cfg(test)]
mod tests;
