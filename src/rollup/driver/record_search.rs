//! Searches for the newest record of a safe head with a canonical L1 block. Pure: the start of
//! derivation compares the records with L1.
//!
//! From the oldest record to the newest, the L1 blocks are first canonical, then orphaned, then
//! above L1's head. The L2 blocks of the newest records may have been displaced.

use crate::rollup::gallop::{GallopSearch, GallopVerdict};

/// The result of comparing a record of a safe head with L1 and with the L2 chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RecordStatus {
    /// The L1 block is canonical, and the L2 block is in the chain. `l1_time` is the time of the L1
    /// block in Unix seconds.
    Canonical { l1_time: u64 },
    /// L1 has another block at the height of the record's L1 block.
    Orphaned,
    /// L1 has no block at the height of the record's L1 block.
    Ahead,
    /// The record's L2 block is not in the chain. The L1 block was not compared.
    Displaced,
}

/// The next step of the search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RecordStep {
    /// Compare the record at this position.
    Check(u64),
    /// The newest record with a canonical L1 block and an L2 block in the chain. `l1_time` is the
    /// time of that L1 block.
    Found { position: u64, l1_time: u64 },
    /// No record is usable.
    Nothing,
    /// The lowest record known not to be canonical has an L1 block above L1's head. The caller
    /// decides whether the endpoint lags or L1 has switched to a shorter branch.
    Behind(u64),
}

/// A search that doubles its steps downward from the newest record, and then bisects.
#[derive(Debug)]
pub(super) struct RecordSearch(GallopSearch<RecordStatus>);

impl RecordSearch {
    /// Searches the record positions from `floor` up to, but not including, `end`.
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

    /// Continues after [`RecordStep::Behind`], with the records above L1's head taken as orphaned.
    pub fn discard_ahead(&mut self) {
        self.0.contradict_above(RecordStatus::Orphaned);
    }

    /// Records the result of [`RecordStep::Check`] for `position`.
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
