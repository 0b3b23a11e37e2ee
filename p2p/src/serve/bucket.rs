//! Token buckets, which limit the rate at which a peer is served. Pure: callers pass `now`.

use std::time::{Duration, Instant};

/// Rate at which one peer is served blocks by number, the same as in op-node: `rate` requests a
/// second in the long run, and `burst` requests without a wait after a quiet time. Range sync has
/// higher rates.
pub const PEER_RATE: TokenRate = TokenRate { rate: 4, burst: 15 };
/// Rate at which all peers together are served. op-node has one such limit, which five busy peers
/// can exhaust. Here untrusted peers share one bucket, and trusted peers another.
pub const SHARED_RATE: TokenRate = TokenRate {
    rate: 20,
    burst: 40,
};
/// Longest wait for a token; a request that would wait longer is refused.
pub const LONGEST_WAIT: Duration = Duration::from_secs(20);

/// The rate of a token bucket.
#[derive(Clone, Copy, Debug)]
pub struct TokenRate {
    /// Number of tokens added per second.
    pub rate: u32,
    /// Number of tokens in a full bucket.
    pub burst: u32,
}

/// A token bucket whose methods return how long to wait. Callers must bound the number of waits at
/// a time.
#[derive(Clone, Debug)]
pub struct TokenBucket {
    interval: Duration,
    depth: Duration,
    /// The time at which the bucket was, or will be, full again.
    full_at: Instant,
}

impl TokenBucket {
    pub fn new(TokenRate { rate, burst }: TokenRate, now: Instant) -> Self {
        let interval = Duration::from_secs(1) / rate.max(1);
        Self {
            interval,
            depth: interval * burst,
            full_at: now,
        }
    }

    /// Removes one token, in advance if the bucket is empty. Returns how long to wait for it.
    pub fn take(&mut self, now: Instant) -> Duration {
        self.take_many(1, now)
    }

    /// Removes one token if the wait for it is at most `limit`. Returns the wait.
    pub fn take_within(&mut self, limit: Duration, now: Instant) -> Option<Duration> {
        let before = self.full_at;
        let wait = self.take(now);
        if wait > limit {
            self.full_at = before;
            return None;
        }
        Some(wait)
    }

    /// Removes `tokens` at once, in advance if necessary. Returns how long to wait for them.
    pub fn take_many(&mut self, tokens: u32, now: Instant) -> Duration {
        self.full_at = self.full_at.max(now) + self.interval * tokens;
        self.full_at
            .saturating_duration_since(now)
            .saturating_sub(self.depth)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_is_free_then_the_rate_holds_and_quiet_refills() {
        let start = Instant::now();
        let mut bucket = TokenBucket::new(TokenRate { rate: 10, burst: 5 }, start);
        let waits: Vec<u128> = (0..8).map(|_| bucket.take(start).as_millis()).collect();
        assert_eq!(waits, [0, 0, 0, 0, 0, 100, 200, 300]);
        // After 800 ms the eight tokens have been added again, one every 100 ms, and the bucket is
        // full.
        let later = start + Duration::from_millis(800);
        let waits: Vec<bool> = (0..9).map(|_| bucket.take(later).is_zero()).collect();
        assert_eq!(waits.iter().filter(|free| **free).count(), 5);
    }

    #[test]
    fn a_request_that_would_wait_too_long_is_refused_and_takes_no_token() {
        let start = Instant::now();
        let mut bucket = TokenBucket::new(PEER_RATE, start);
        let waits: Vec<_> = (0..200)
            .map(|_| bucket.take_within(LONGEST_WAIT, start))
            .collect();
        assert_eq!(
            waits
                .iter()
                .filter(|wait| **wait == Some(Duration::ZERO))
                .count(),
            15
        );
        assert_eq!(waits.iter().flatten().max(), Some(&LONGEST_WAIT));
        assert_eq!(
            waits.iter().flatten().count(),
            15 + 20 * 4,
            "what is refused takes no token"
        );
        let later = start + Duration::from_millis(250);
        assert_eq!(bucket.take_within(LONGEST_WAIT, later), Some(LONGEST_WAIT));
    }
}
