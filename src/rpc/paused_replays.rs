//! Replays of blocks that are paused after a traced transaction, and kept for the request that
//! traces the next transaction.
//!
//! Explorers and indexers trace the transactions of a block one by one. Each request needs the
//! state after the earlier transactions. Without a kept replay, the trace of the last of 200
//! transactions would execute the whole block again. A request takes the replay that is nearest
//! before its transaction, and returns it paused after that transaction. A request whose trace
//! failed returns the replay paused before the transaction.
//!
//! Two clients at once have a replay each. At the limit, a replay displaces another one at its own
//! transaction, if there is one, so that many traces of one transaction do not evict the replays at
//! others. The store is bounded by [`MAX_REPLAYS`] and [`MAX_WEIGHT`], and a replay pins no view.

use crate::chain::replay::PausedReplay;
use alloy_primitives::B256;
use parking_lot::Mutex;
use std::collections::VecDeque;

/// Maximum replays of all clients together.
const MAX_REPLAYS: usize = 8;
/// Maximum bytes of one replay. Common blocks read some hundred kilobytes of state. A block that is
/// made to read as much as its gas allows is executed again for each request.
const MAX_WEIGHT: usize = 16 << 20;

/// The most recently paused replays.
#[derive(Default)]
pub struct PausedReplays {
    /// Paused replays, oldest first.
    paused: Mutex<VecDeque<PausedReplay>>,
}

impl PausedReplays {
    /// Takes the replay of `block` that is nearest to the transaction at `index`, and not beyond
    /// it.
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

    /// Keeps a replay. If there are too many, drops another one at the same transaction, or else the
    /// oldest replay. A replay that saves no execution is not kept: it has executed nothing, or has
    /// no further transaction.
    pub fn keep(&self, replay: PausedReplay) {
        let is_useful = replay.done() > 0 && !replay.is_complete();
        if !is_useful || replay.weight() > MAX_WEIGHT {
            return;
        }
        let mut paused = self.paused.lock();
        let place = |replay: &PausedReplay| (replay.block(), replay.done());
        if paused.len() >= MAX_REPLAYS {
            let mut all = paused.iter();
            let same = all.position(|earlier| place(earlier) == place(&replay));
            paused.remove(same.unwrap_or(0));
        }
        paused.push_back(replay);
    }
}

#[cfg(test)]
impl PausedReplays {
    /// The number of transactions that each replay has executed, oldest replay first.
    pub fn progress(&self) -> Vec<usize> {
        self.paused.lock().iter().map(PausedReplay::done).collect()
    }
}
