//! A gate for work that has a cost: so much of it a second, and as much as one call's at once.

use parking_lot::Mutex;
use std::time::{Duration, Instant};

/// A token bucket whose callers wait for their tokens.
#[derive(Debug)]
pub struct CostGate {
    /// Cost per second.
    rate: u64,
    /// Cost that passes at once after a pause.
    burst: u64,
    /// The moment at which the bucket is full again.
    full_at: Mutex<Option<Instant>>,
}

impl CostGate {
    pub fn new(rate: u64, burst: u64) -> Self {
        Self {
            rate,
            burst,
            full_at: Mutex::new(None),
        }
    }

    /// Reserves `cost`. Returns how long to wait for it; `None`, and reserves nothing, if that is
    /// longer than `patience`, or if the gate never lets so much pass.
    pub fn reserve(&self, cost: u64, now: Instant, patience: Duration) -> Option<Duration> {
        if cost == 0 {
            return Some(Duration::ZERO);
        }
        if cost > self.burst || self.rate == 0 {
            return None;
        }
        let time = |cost: u64| Duration::from_secs_f64(cost as f64 / self.rate as f64);
        let mut full_at = self.full_at.lock();
        let from = full_at.map_or(now, |moment| moment.max(now));
        let after = from.checked_add(time(cost))?;
        // Until `burst` of cost is missing from a full bucket nobody waits.
        let wait = after.duration_since(now).saturating_sub(time(self.burst));
        if wait > patience {
            return None;
        }
        *full_at = Some(after);
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
