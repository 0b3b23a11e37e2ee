//! Blocks that have been executed again as far as a traced transaction, kept for the request that
//! traces the next one.
//!
//! Explorers and indexers trace the transactions of a block one by one. Each request needs the
//! state after those before it: without what is kept here the last of 200 transactions would cost
//! the block. A request takes the replay that is nearest before its transaction, and leaves it
//! behind that; two clients at once have a replay each. The store is bounded by
//! [`MAX_REPLAYS`] and [`MAX_WEIGHT`], and a replay pins no view.

use crate::chain::replay::PausedReplay;
use alloy_primitives::B256;
use parking_lot::Mutex;
use std::collections::VecDeque;

/// Replays of all clients together.
const MAX_REPLAYS: usize = 8;
/// Bytes of one replay. Common blocks read some hundred kilobytes of state; one made to read as
/// much as its gas allows is executed again for each request.
const MAX_WEIGHT: usize = 16 << 20;

/// The replays that were paused last.
#[derive(Default)]
pub struct PausedReplays {
    /// Oldest first.
    paused: Mutex<VecDeque<PausedReplay>>,
}

impl PausedReplays {
    /// The replay of a block that is nearest to the transaction at `index`, and not beyond it.
    pub fn take(&self, block: B256, index: usize) -> Option<PausedReplay> {
        let mut paused = self.paused.lock();
        let usable = |replay: &PausedReplay| replay.block() == block && replay.done() <= index;
        let (position, _) = paused
            .iter()
            .enumerate()
            .filter(|(_, replay)| usable(replay))
            .max_by_key(|(_, replay)| replay.done())?;
        paused.remove(position)
    }

    /// Keeps a replay, in the place of the oldest if there are too many. One without further
    /// transactions is of no use.
    pub fn keep(&self, replay: PausedReplay) {
        if replay.is_complete() || replay.weight() > MAX_WEIGHT {
            return;
        }
        let mut paused = self.paused.lock();
        if paused.len() >= MAX_REPLAYS {
            paused.pop_front();
        }
        paused.push_back(replay);
    }
}

#[cfg(test)]
impl PausedReplays {
    /// The transactions that each replay has executed, oldest first.
    pub fn progress(&self) -> Vec<usize> {
        self.paused.lock().iter().map(PausedReplay::done).collect()
    }
}
