//! The search for the head after an L1 reorg: the last L2 block whose L1 origin is canonical, not below
//! a floor. Pure; the sequencer and the start of derivation ask L1.
//!
//! The origins along an L2 chain are an L1 chain, so all origins below a canonical one are
//! canonical, and the last canonical one is found by bisection: a reorg of 64 L1 blocks takes some
//! ten requests.

use alloy_primitives::B256;

/// Whether the L1 origin of an L2 block is canonical on the L1 that the endpoint serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OriginStatus {
    Canonical,
    /// L1 has another block at the origin's height.
    Gone {
        canonical: B256,
    },
    /// L1 has no block at the origin's height: the endpoint lags, or a reorg made L1 shorter.
    Ahead,
}

/// The result of the search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RewindTarget {
    /// The head stays. Its origin is canonical, or L1 has not reached it yet and no lower origin is
    /// gone.
    Stay,
    /// The head is rewound to the block of this number.
    Block(u64),
    /// Even the lowest block's origin is gone.
    FloorGone { canonical: B256 },
}

/// The next step of the search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SearchStep {
    /// Check the origin of the L2 block of this number on L1.
    Check(u64),
    Found(RewindTarget),
}

/// A bisection between the lowest block that may become the head and the head. Pure.
#[derive(Debug)]
pub struct HeadSearch {
    floor: u64,
    /// The highest block whose origin is known to be canonical.
    low: Option<u64>,
    /// The lowest block whose origin is known not to be canonical, and the result of its check.
    high: (u64, OriginStatus),
}

impl HeadSearch {
    pub fn new(floor: u64, head: u64) -> Self {
        Self {
            floor,
            low: None,
            high: (head.saturating_add(1), OriginStatus::Ahead),
        }
    }

    pub fn step(&self) -> SearchStep {
        let (high, above) = self.high;
        match (self.low, above) {
            (None, OriginStatus::Gone { canonical }) if high == self.floor => {
                SearchStep::Found(RewindTarget::FloorGone { canonical })
            }
            (None, _) if high == self.floor => SearchStep::Found(RewindTarget::Stay),
            (None, _) => SearchStep::Check(self.floor),
            (Some(low), _) if high - low > 1 => SearchStep::Check(low + (high - low) / 2),
            (Some(low), OriginStatus::Gone { .. }) => SearchStep::Found(RewindTarget::Block(low)),
            _ => SearchStep::Found(RewindTarget::Stay),
        }
    }

    /// Enters the result of [`SearchStep::Check`].
    pub fn answer(&mut self, number: u64, status: OriginStatus) {
        match status {
            OriginStatus::Canonical => self.low = Some(number),
            other => self.high = (number, other),
        }
    }
}

#[cfg(test)]
mod tests;
