//! Budgets for work that has a cost: a cost per second, and a burst after a pause. A gate makes its
//! callers wait until their cost is available.

use parking_lot::Mutex;
use std::time::{Duration, Instant};

/// A cost that is available per second, and a cost that is available at once after a pause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Cost that is regained per second; not zero.
    pub rate: u64,
    /// Cost that is available at once after a pause.
    pub burst: u64,
}

impl Budget {
    /// Time in which `cost` is regained.
    fn time(&self, cost: u64) -> Duration {
        Duration::try_from_secs_f64(cost as f64 / self.rate as f64).unwrap_or(Duration::MAX)
    }
}

/// The remaining part of a budget. A new bucket is full.
#[derive(Clone, Copy, Debug, Default)]
pub struct CostBucket {
    /// The moment at which the bucket is full again.
    full_at: Option<Instant>,
}

impl CostBucket {
    /// Time to wait before `cost` can be taken.
    pub fn wait(&self, budget: &Budget, cost: u64, now: Instant) -> Duration {
        let missing = self.full_at.map_or(Duration::ZERO, |moment| {
            moment.saturating_duration_since(now)
        });
        // Callers wait only if more than `burst` is missing from the bucket.
        missing
            .saturating_add(budget.time(cost))
            .saturating_sub(budget.time(budget.burst))
    }

    /// Takes `cost`, even if the caller has to wait for it first.
    pub fn take(&mut self, budget: &Budget, cost: u64, now: Instant) {
        let from = self.full_at.map_or(now, |moment| moment.max(now));
        self.full_at = from.checked_add(budget.time(cost)).or(Some(from));
    }
}

/// A token bucket whose callers wait until their cost is available.
#[derive(Debug)]
pub struct CostGate {
    budget: Budget,
    bucket: Mutex<CostBucket>,
}

impl CostGate {
    pub fn new(rate: u64, burst: u64) -> Self {
        Self {
            budget: Budget { rate, burst },
            bucket: Mutex::new(CostBucket::default()),
        }
    }

    /// Reserves `cost` and returns how long to wait for it. Returns `None`, and reserves nothing,
    /// if the wait is longer than `patience` or if the gate can never let this cost pass.
    pub fn reserve(&self, cost: u64, now: Instant, patience: Duration) -> Option<Duration> {
        if cost == 0 {
            return Some(Duration::ZERO);
        }
        if cost > self.budget.burst || self.budget.rate == 0 {
            return None;
        }
        let mut bucket = self.bucket.lock();
        let wait = bucket.wait(&self.budget, cost, now);
        if wait > patience {
            return None;
        }
        bucket.take(&self.budget, cost, now);
        Some(wait)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_passes_and_more_waits_for_the_rate() {
        let gate = CostGate::new(100, 50);
        let start = Instant::now();
        let second = Duration::from_secs(1);
        let reserve = |cost, after: Duration| gate.reserve(cost, start + after, second);
        assert_eq!(reserve(51, Duration::ZERO), None, "more than ever passes");
        assert_eq!(reserve(50, Duration::ZERO), Some(Duration::ZERO));
        assert_eq!(reserve(50, Duration::ZERO), Some(second / 2));
        assert_eq!(reserve(50, Duration::ZERO), Some(second));
        assert_eq!(
            reserve(1, Duration::ZERO),
            None,
            "the wait would be too long"
        );
        assert_eq!(reserve(50, second * 2), Some(Duration::ZERO));
        assert_eq!(CostGate::new(0, 50).reserve(1, start, second), None);
    }
}
