//! Searches for the highest position at which a condition holds: the steps double downward from the
//! top, then the search bisects. Pure. [`head_search`](super::head_search) searches L2 blocks, and
//! the start of derivation searches records of safe heads. Callers bound the positions. The number
//! of checks grows with the logarithm of the result's depth below the top.
//!
//! The condition usually holds at the top. The search checks no position more than about twice as
//! deep as the result, since an endpoint may not serve L1 blocks much older than the reorg.

/// The result of a check, as the search uses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GallopVerdict {
    /// The condition holds here and at all lower positions.
    Holds,
    /// L1 contradicts the condition at this position.
    Contradicted,
    /// L1 has no block for this position: the block is above L1's head, or too old to be served.
    Unknown,
    /// The condition does not hold here, which was found without reading L1.
    Fails,
}

/// The state of a search. `S` is the detailed result of a caller's check, returned with the result
/// of the search.
#[derive(Debug)]
pub struct GallopSearch<S> {
    /// The lowest position to check.
    floor: u64,
    /// The highest position at which the condition is known to hold.
    low: Option<(u64, S)>,
    /// The lowest position at which the condition is known not to hold. Until there is one: the end
    /// of the search range, which is not checked itself.
    high: u64,
    /// The result of the check at `high`; `None` while `high` is the end of the search range.
    above: Option<(GallopVerdict, S)>,
    /// Distance from `high` down to the next position to check. `None` once a position below a
    /// contradicted one was unknown: from then on the search bisects down to `floor`.
    stride: Option<u64>,
    /// The highest unknown position below a contradicted one.
    not_served: Option<u64>,
}

impl<S: Copy> GallopSearch<S> {
    /// Searches the positions from `floor` up to, but not including, `end`.
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

    /// Records the result of the check at `position`.
    pub fn record(&mut self, position: u64, verdict: GallopVerdict, status: S) {
        let above = self.above.map(|(verdict, _)| verdict);
        match verdict {
            GallopVerdict::Holds => self.low = Some((position, status)),
            // L1 contradicts a higher position, so this block is not above L1's head: the endpoint
            // does not serve such old headers.
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

    /// Marks the lowest position that does not hold as contradicted, with the result `status`.
    pub fn contradict_above(&mut self, status: S) {
        self.above = Some((GallopVerdict::Contradicted, status));
    }

    /// The highest position at which the condition is known to hold.
    pub fn low(&self) -> Option<(u64, S)> {
        self.low
    }

    /// The lowest position at which the condition is known not to hold, with the result of its
    /// check. If there is none yet: the end of the search range, without a result.
    pub fn high(&self) -> (u64, Option<S>) {
        (self.high, self.above.map(|(_, status)| status))
    }

    /// The highest position that L1 does not serve although L1 contradicts a higher one.
    pub fn not_served(&self) -> Option<u64> {
        self.not_served
    }
}
