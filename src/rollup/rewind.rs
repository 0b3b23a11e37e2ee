//! The search for the head after an L1 reorg: the last L2 block whose L1 origin is canonical, not below
//! a floor. Pure; the sequencer and the start of derivation ask L1.
//!
//! The origins along an L2 chain are an L1 chain, so all origins below a canonical one are
//! canonical. The search begins at the head, which is mostly canonical, doubles its steps downward
//! and then bisects: an endpoint need not serve L1 blocks that are much older than a reorg is deep.
//! A reorg of 64 L1 blocks takes some twenty requests.

use alloy_primitives::B256;

/// Whether the L1 origin of an L2 block is canonical on the L1 that the endpoint serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OriginStatus {
    Canonical,
    /// L1 has another block at the origin's height.
    Gone {
        canonical: B256,
    },
    /// L1 has no block at the origin's height: the endpoint lags, or a reorg made L1 shorter. An
    /// endpoint that does not serve old headers answers the same.
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
    /// The origins of higher blocks are gone, and L1 does not serve that of the block of this number.
    NotServed(u64),
}

/// The next step of the search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SearchStep {
    /// Check the origin of the L2 block of this number on L1.
    Check(u64),
    Found(RewindTarget),
}

/// A search that gallops down from the head, and then bisects. Pure.
#[derive(Debug)]
pub struct HeadSearch {
    /// No block below this one is checked.
    floor: u64,
    /// The highest block whose origin is known to be canonical.
    low: Option<u64>,
    /// The lowest block whose origin is known not to be canonical, and the result of its check.
    high: (u64, OriginStatus),
    /// Blocks between `high` and the next one to check. `None` once an origin below a gone one was
    /// not served: from then on the search bisects down to `floor`.
    stride: Option<u64>,
    /// The highest block whose origin L1 does not serve, although that of a higher block is gone.
    not_served: Option<u64>,
}

impl HeadSearch {
    /// Searches the blocks from `floor` to `head`.
    pub fn new(floor: u64, head: u64) -> Self {
        Self {
            floor,
            low: None,
            high: (head.saturating_add(1), OriginStatus::Ahead),
            stride: Some(1),
            not_served: None,
        }
    }

    pub fn step(&self) -> SearchStep {
        let (high, above) = self.high;
        let found = match (self.low, above) {
            (Some(low), _) if high - low > 1 => {
                return SearchStep::Check(low + (high - low) / 2);
            }
            (None, _) if high > self.floor => {
                return SearchStep::Check(match self.stride {
                    Some(stride) => high.saturating_sub(stride).max(self.floor),
                    None => self.floor + (high - self.floor) / 2,
                });
            }
            (Some(low), OriginStatus::Gone { .. }) => RewindTarget::Block(low),
            (None, OriginStatus::Gone { canonical }) => match self.not_served {
                Some(number) => RewindTarget::NotServed(number),
                None => RewindTarget::FloorGone { canonical },
            },
            _ => RewindTarget::Stay,
        };
        SearchStep::Found(found)
    }

    /// Enters the result of [`SearchStep::Check`].
    pub fn answer(&mut self, number: u64, status: OriginStatus) {
        let is_gone_above = matches!(self.high.1, OriginStatus::Gone { .. });
        match status {
            OriginStatus::Canonical => self.low = Some(number),
            // L1 has a block above: the endpoint does not serve headers as old as this one.
            OriginStatus::Ahead if self.low.is_none() && is_gone_above => {
                self.not_served = Some(number);
                (self.floor, self.stride) = (number.saturating_add(1), None);
            }
            other => {
                self.high = (number, other);
                self.stride = self.stride.map(|stride| stride.saturating_mul(2));
            }
        }
    }
}

#[cfg(test)]
mod tests;
