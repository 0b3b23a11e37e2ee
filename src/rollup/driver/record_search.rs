//! The search for the newest record of a safe head whose L1 block is canonical. Pure: the start of
//! derivation compares records with L1.
//!
//! From the oldest record to the newest, L1 blocks are canonical, then orphaned, then above L1's head. The
//! L2 blocks of the newest records may have been displaced.

use crate::rollup::gallop::{GallopSearch, GallopVerdict};

/// A record of a safe head, compared with both chains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RecordStatus {
    /// Its L1 block is canonical, and its L2 block is in the chain. The L1 block's time in Unix seconds.
    Canonical { l1_time: u64 },
    /// L1 has another block at this height.
    Orphaned,
    /// L1 has no block at this height.
    Ahead,
    /// The L2 block is not in the chain. Its L1 block was not compared.
    Displaced,
}

/// The next step of the search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RecordStep {
    /// Compare the record at this position.
    Check(u64),
    /// The newest record whose L1 block is canonical and whose L2 block is in the chain, and the time
    /// of that L1 block.
    Found { position: u64, l1_time: u64 },
    /// No record is of use.
    Nothing,
    /// The lowest record that is not canonical has an L1 block above L1's head. The caller decides
    /// whether the endpoint lags or L1 has switched to a shorter branch.
    Behind(u64),
}

/// A search that gallops down from the newest record, and then bisects.
#[derive(Debug)]
pub(super) struct RecordSearch(GallopSearch<RecordStatus>);

impl RecordSearch {
    /// Searches the positions from `floor` to below `end`.
    pub fn new(floor: u64, end: u64) -> Self {
        Self(GallopSearch::new(floor, end))
    }

    pub fn step(&self) -> RecordStep {
        if let Some(position) = self.0.next_check() {
            return RecordStep::Check(position);
        }
        let (high, above) = self.0.high();
        match (self.0.low(), above) {
            (_, Some(RecordStatus::Ahead)) => RecordStep::Behind(high),
            (Some((position, RecordStatus::Canonical { l1_time })), _) => {
                RecordStep::Found { position, l1_time }
            }
            _ => RecordStep::Nothing,
        }
    }

    /// Goes on after [`RecordStep::Behind`]: the records above L1's head are not canonical.
    pub fn discard_ahead(&mut self) {
        self.0.contradict_above(RecordStatus::Orphaned);
    }

    /// Enters the result of [`RecordStep::Check`].
    pub fn record(&mut self, position: u64, status: RecordStatus) {
        let verdict = match status {
            RecordStatus::Canonical { .. } => GallopVerdict::Holds,
            RecordStatus::Orphaned => GallopVerdict::Contradicted,
            RecordStatus::Ahead => GallopVerdict::Unknown,
            RecordStatus::Displaced => GallopVerdict::Fails,
        };
        self.0.record(position, verdict, status);
    }
}

#[cfg(test)]
mod tests;
