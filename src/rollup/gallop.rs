//! A search for the highest position at which something holds: it doubles its steps downward from the top,
//! and then bisects. Pure; [`head_search`](super::head_search) searches L2 blocks with it, the start of
//! derivation searches records of safe heads. Its callers bound the positions, and its requests grow with
//! the logarithm of how deep the result is.
//!
//! The top mostly holds, and a position that is not much lower than the result is enough: an endpoint need
//! not serve L1 blocks that are much older than a reorg is deep.

/// The result of a check, as far as the search goes by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GallopVerdict {
    /// The condition holds here and at all lower positions.
    Holds,
    /// L1 contradicts it here.
    Contradicted,
    /// L1 has no block for it: the block is above L1's head, or too old to be served.
    Unknown,
    /// The condition does not hold here, and L1 was not read.
    Fails,
}

/// The state of a search. `S` is what a caller's check found, and is returned with the result.
#[derive(Debug)]
pub struct GallopSearch<S> {
    /// No position below this one is checked.
    floor: u64,
    /// The highest position that is known to hold.
    low: Option<(u64, S)>,
    /// The lowest position that is known not to hold; at first the end of the positions.
    high: u64,
    /// The result of the check at `high`; `None` at the end of the positions.
    above: Option<(GallopVerdict, S)>,
    /// Positions between `high` and the next one to check. `None` once a position below a contradicted
    /// one was unknown: from then on the search bisects down to `floor`.
    stride: Option<u64>,
    /// The highest position that is unknown although a higher one is contradicted.
    not_served: Option<u64>,
}

impl<S: Copy> GallopSearch<S> {
    /// Searches the positions from `floor` to below `end`.
    pub fn new(floor: u64, end: u64) -> Self {
        Self {
            floor,
            low: None,
            high: end.max(floor),
            above: None,
            stride: Some(1),
            not_served: None,
        }
    }

    /// The next position to check; `None` if the search is over.
    pub fn next_check(&self) -> Option<u64> {
        let (floor, high) = (self.floor, self.high);
        match (self.low, self.stride) {
            (Some((low, _)), _) => (high - low > 1).then(|| low + (high - low) / 2),
            (None, _) if high <= floor => None,
            (None, Some(stride)) => Some(high.saturating_sub(stride).max(floor)),
            (None, None) => Some(floor + (high - floor) / 2),
        }
    }

    /// Enters the result of the check at `position`.
    pub fn record(&mut self, position: u64, verdict: GallopVerdict, status: S) {
        let above = self.above.map(|(verdict, _)| verdict);
        match verdict {
            GallopVerdict::Holds => self.low = Some((position, status)),
            // L1 has a block above: the endpoint does not serve headers as old as this one.
            GallopVerdict::Unknown
                if self.low.is_none() && above == Some(GallopVerdict::Contradicted) =>
            {
                self.not_served = Some(position);
                (self.floor, self.stride) = (position.saturating_add(1), None);
            }
            _ => {
                (self.high, self.above) = (position, Some((verdict, status)));
                self.stride = self.stride.map(|stride| stride.saturating_mul(2));
            }
        }
    }

    /// Takes the lowest position that does not hold as contradicted, as `status` says.
    pub fn contradict_above(&mut self, status: S) {
        self.above = Some((GallopVerdict::Contradicted, status));
    }

    /// The highest position that is known to hold.
    pub fn low(&self) -> Option<(u64, S)> {
        self.low
    }

    /// The lowest position that is known not to hold, and the result of its check; `None` at the end of
    /// the positions.
    pub fn high(&self) -> (u64, Option<S>) {
        (self.high, self.above.map(|(_, status)| status))
    }

    /// The highest position that L1 does not serve, although it contradicts a higher one.
    pub fn not_served(&self) -> Option<u64> {
        self.not_served
    }
}
