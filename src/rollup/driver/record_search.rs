//! The search for the newest record of a safe head whose L1 block is canonical. Pure: the start of
//! derivation compares records with L1.
//!
//! From the oldest record to the newest, L1 blocks are canonical, then gone, then above L1's head. The L2
//! blocks of the newest records may have been displaced. The search begins at the newest one, which is
//! mostly canonical, and doubles its steps downward: an endpoint need not serve L1 blocks that are much
//! older than a reorg is deep.

/// A record of a safe head, compared with both chains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RecordStatus {
    /// Its L1 block is canonical, and its L2 block is in the chain. The L1 block's time in Unix seconds.
    Canonical { l1_time: u64 },
    /// L1 has another block at this height.
    Gone,
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
pub(super) struct RecordSearch {
    /// No record below this position is compared.
    floor: u64,
    /// The position of the highest record that is known to be canonical, and the time of its L1 block.
    low: Option<(u64, u64)>,
    /// The lowest position that is known not to be canonical.
    high: u64,
    /// The record at `high`; `None` if that is the end of the records.
    above: Option<RecordStatus>,
    /// Records between `high` and the next one to compare. `None` once the endpoint was found not to
    /// serve old L1 blocks: from then on the search bisects down to `floor`.
    stride: Option<u64>,
}

impl RecordSearch {
    /// Searches the positions from `floor` to below `end`.
    pub fn new(floor: u64, end: u64) -> Self {
        Self {
            floor,
            low: None,
            high: end.max(floor),
            above: None,
            stride: Some(1),
        }
    }

    pub fn step(&self) -> RecordStep {
        let (floor, high) = (self.floor, self.high);
        match (self.low, self.above) {
            (Some((low, _)), _) if high - low > 1 => RecordStep::Check(low + (high - low) / 2),
            (None, _) if high > floor => RecordStep::Check(match self.stride {
                Some(stride) => high.saturating_sub(stride).max(floor),
                None => floor + (high - floor) / 2,
            }),
            (_, Some(RecordStatus::Ahead)) => RecordStep::Behind(high),
            (Some((position, l1_time)), _) => RecordStep::Found { position, l1_time },
            (None, _) => RecordStep::Nothing,
        }
    }

    /// Goes on after [`RecordStep::Behind`]: the records above L1's head are not canonical.
    pub fn discard_ahead(&mut self) {
        self.above = Some(RecordStatus::Gone);
    }

    /// Enters the result of [`RecordStep::Check`].
    pub fn answer(&mut self, position: u64, status: RecordStatus) {
        match status {
            RecordStatus::Canonical { l1_time } => self.low = Some((position, l1_time)),
            // L1 has a block above: the endpoint does not serve headers as old as this one.
            RecordStatus::Ahead if self.low.is_none() && self.above == Some(RecordStatus::Gone) => {
                (self.floor, self.stride) = (position + 1, None);
            }
            status => {
                (self.high, self.above) = (position, Some(status));
                self.stride = self.stride.map(|stride| stride.saturating_mul(2));
            }
        }
    }
}

#[cfg(test)]
mod tests;
