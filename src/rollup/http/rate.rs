//! A token bucket: a limit on items per second, with a burst. Pure: the time comes in as an
//! argument.

use std::time::{Duration, Instant};

/// A token bucket with reservations. If the bucket is empty, the caller gets the time to wait, and
/// callers wait in the order of their reservations.
#[derive(Clone, Debug)]
pub struct RateLimit {
    /// Items per second.
    rate: f64,
    /// Largest number of tokens in the bucket: items that may be sent at once after a pause.
    burst: f64,
    /// Tokens in the bucket. Negative while reserved items must wait.
    tokens: f64,
    at: Instant,
}

impl RateLimit {
    /// A full bucket; `None` if `rate` (items per second) sets no limit: not above zero, or not
    /// finite.
    pub fn new(rate: f64, burst: usize, now: Instant) -> Option<Self> {
        let burst = burst.max(1) as f64;
        (rate > 0.0 && rate.is_finite()).then_some(Self {
            rate,
            burst,
            tokens: burst,
            at: now,
        })
    }

    /// Reserves `items` and returns the time after which they may be sent. More items than the
    /// burst also go out together, after the time in which their tokens accrue.
    pub fn reserve(&mut self, items: usize, now: Instant) -> Duration {
        self.refill(now);
        self.tokens -= items as f64;
        self.until(-self.tokens)
    }

    /// Takes tokens for `items` if the items may be sent now. Otherwise takes no tokens and returns
    /// the time after which the items may be sent, unless other callers take tokens first. More
    /// items than the burst wait for a full bucket.
    pub fn try_take(&mut self, items: usize, now: Instant) -> Result<(), Duration> {
        self.refill(now);
        let wait = self.until((items as f64).min(self.burst) - self.tokens);
        if !wait.is_zero() {
            return Err(wait);
        }
        self.tokens -= items as f64;
        Ok(())
    }

    fn refill(&mut self, now: Instant) {
        let passed = now.saturating_duration_since(self.at).as_secs_f64();
        self.tokens = (self.tokens + passed * self.rate).min(self.burst);
        self.at = self.at.max(now);
    }

    /// The time in which `missing` tokens accrue.
    fn until(&self, missing: f64) -> Duration {
        // With a very small rate the wait exceeds what a `Duration` can represent.
        Duration::try_from_secs_f64((missing / self.rate).max(0.0)).unwrap_or(Duration::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_burst_is_free_and_then_items_come_at_the_rate() {
        let start = Instant::now();
        let mut limit = RateLimit::new(10.0, 20, start).unwrap();
        assert_eq!(limit.reserve(20, start), Duration::ZERO);
        assert_eq!(limit.reserve(5, start), Duration::from_millis(500));
        assert_eq!(limit.reserve(1, start), Duration::from_millis(600));
        // A long pause refills the bucket only up to the burst.
        let later = start + Duration::from_secs(3600);
        assert_eq!(limit.reserve(20, later), Duration::ZERO);
        assert_eq!(limit.reserve(1, later), Duration::from_millis(100));
    }

    #[test]
    fn taking_waits_for_the_items_and_leaves_no_debt() {
        let start = Instant::now();
        let mut limit = RateLimit::new(10.0, 20, start).unwrap();
        assert_eq!(limit.try_take(20, start), Ok(()));
        assert_eq!(limit.try_take(20, start), Err(Duration::from_secs(2)));
        assert_eq!(limit.reserve(1, start), Duration::from_millis(100));
        let later = start + Duration::from_secs(2);
        assert_eq!(limit.try_take(20, later), Err(Duration::from_millis(100)));
        let full = start + Duration::from_secs(3600);
        assert_eq!(limit.try_take(50, full), Ok(()), "more than a burst");
        assert_eq!(limit.reserve(0, full), Duration::from_secs(3));
    }

    #[test]
    fn nothing_negative_or_infinite_is_a_limit() {
        let now = Instant::now();
        for rate in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert!(RateLimit::new(rate, 1, now).is_none(), "{rate}");
        }
        let mut slowest = RateLimit::new(f64::MIN_POSITIVE, 1, now).unwrap();
        assert_eq!(slowest.reserve(usize::MAX, now), Duration::MAX);
    }

    proptest! {
        /// In every window that begins with a full bucket, no more than burst + rate × time is sent.
        #[test]
        fn no_more_than_the_rate_and_one_burst(
            rate in 1u32..1000,
            burst in 1usize..100,
            calls in proptest::collection::vec((0u64..2000, 1usize..100), 1..100),
        ) {
            let start = Instant::now();
            let mut limit = RateLimit::new(rate.into(), burst, start).unwrap();
            let (mut now, mut sent) = (start, 0);
            for (pause, items) in calls {
                now += Duration::from_millis(pause);
                let at = now + limit.reserve(items, now);
                sent += items;
                let allowed = burst as f64 + f64::from(rate) * (at - start).as_secs_f64();
                prop_assert!(sent as f64 <= allowed + 1e-3, "{sent} sent where {allowed} are allowed");
            }
        }
    }
}
