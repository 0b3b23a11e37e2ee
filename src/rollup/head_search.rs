//! Finds the head after an L1 reorg: the last L2 block with a canonical L1 origin, not below a
//! floor. Pure; the sequencer and the start of derivation read L1.
//!
//! The origins along an L2 chain form an L1 chain, so all origins below a canonical one are
//! canonical too. The search after a reorg of 64 L1 blocks takes some twenty requests.

use super::gallop::{GallopSearch, GallopVerdict};
use alloy_primitives::B256;

/// Whether the L1 origin of an L2 block is canonical on the L1 that the endpoint serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OriginStatus {
    Canonical,
    /// L1 has another block at the origin's height, `canonical`.
    Orphaned {
        canonical: B256,
    },
    /// L1 has no block at the origin's height: the endpoint lags, or a reorg made L1 shorter. An
    /// endpoint that does not serve old headers returns the same result.
    Ahead,
}

/// The head that the search found, or the reason why there is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RewindTarget {
    /// The head stays: its origin is canonical, or L1 has not reached it yet and no lower origin is
    /// orphaned.
    Stay,
    /// The head is rewound to the block with this number.
    Block(u64),
    /// Even the origin of the lowest block is orphaned.
    FloorOrphaned { canonical: B256 },
    /// The origins of higher blocks are orphaned, and L1 does not serve the origin of the block
    /// with this number.
    NotServed(u64),
}

/// The next step of the search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SearchStep {
    /// Check the L1 origin of the L2 block with this number.
    Check(u64),
    Found(RewindTarget),
}

/// A search that doubles its steps downward from the head, and then bisects. Pure.
#[derive(Debug)]
pub struct HeadSearch(GallopSearch<OriginStatus>);

impl HeadSearch {
    /// Searches the blocks from `floor` to `head`, both included.
    pub fn new(floor: u64, head: u64) -> Self {
        Self(GallopSearch::new(floor, head.saturating_add(1)))
    }

    pub fn step(&self) -> SearchStep {
        if let Some(number) = self.0.next_check() {
            return SearchStep::Check(number);
        }
        let Some(OriginStatus::Orphaned { canonical }) = self.0.high().1 else {
            return SearchStep::Found(RewindTarget::Stay);
        };
        SearchStep::Found(match (self.0.low(), self.0.not_served()) {
            (Some((low, _)), _) => RewindTarget::Block(low),
            (None, Some(number)) => RewindTarget::NotServed(number),
            (None, None) => RewindTarget::FloorOrphaned { canonical },
        })
    }

    /// Records the result of [`SearchStep::Check`] for block `number`.
    pub fn record(&mut self, number: u64, status: OriginStatus) {
        let verdict = match status {
            OriginStatus::Canonical => GallopVerdict::Holds,
            OriginStatus::Orphaned { .. } => GallopVerdict::Contradicted,
            OriginStatus::Ahead => GallopVerdict::Unknown,
        };
        self.0.record(number, verdict, status);
    }
}

#[cfg(test)]
mod tests;
