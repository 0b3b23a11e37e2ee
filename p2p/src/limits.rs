//! Token buckets: how fast a peer is served. Pure; `now` comes in.

use std::time::{Duration, Instant};

/// Requests a second that one peer is served in the long run. A replica that fetches 300 blocks in one go must not notice it;
/// a peer that asks for the whole chain takes a small part of our disk and CPU.
pub const PER_PEER_RATE: u32 = 100;
/// Requests served without any wait after a quiet time.
pub const PER_PEER_BURST: u32 = 200;

/// A bucket that never refuses: it says how long to wait. The number of callers that wait at once must be bounded elsewhere.
#[derive(Clone, Debug)]
pub struct Bucket {
    interval: Duration,
    depth: Duration,
    /// When the bucket was, or will be, full again.
    full_at: Instant,
}

impl Bucket {
    pub fn new(rate: u32, burst: u32, now: Instant) -> Self {
        let interval = Duration::from_secs(1) / rate.max(1);
        Self { interval, depth: interval * burst, full_at: now }
    }

    /// Takes one token, in advance if there is none; returns how long to wait for it.
    pub fn take(&mut self, now: Instant) -> Duration {
        self.take_many(1, now)
    }

    /// Takes so many tokens at once.
    pub fn take_many(&mut self, tokens: u32, now: Instant) -> Duration {
        self.full_at = self.full_at.max(now) + self.interval * tokens;
        self.full_at.saturating_duration_since(now).saturating_sub(self.depth)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_is_free_then_the_rate_holds_and_quiet_refills() {
        let start = Instant::now();
        let mut bucket = Bucket::new(10, 5, start);
        let waits: Vec<u128> = (0..8).map(|_| bucket.take(start).as_millis()).collect();
        assert_eq!(waits, [0, 0, 0, 0, 0, 100, 200, 300]);
        // After the debt is worked off and two intervals more, two tokens are there.
        let later = start + Duration::from_millis(1000 - 500 + 300 - 200 + 200);
        let waits: Vec<bool> = (0..9).map(|_| bucket.take(later).is_zero()).collect();
        assert_eq!(waits.iter().filter(|free| **free).count(), 5);
    }

    #[test]
    fn catching_up_on_300_blocks_takes_seconds_not_minutes() {
        let start = Instant::now();
        let mut bucket = Bucket::new(PER_PEER_RATE, PER_PEER_BURST, start);
        let last = (0..300).map(|_| bucket.take(start)).max().unwrap_or_default();
        assert!(last <= Duration::from_secs(1), "{last:?}");
    }
}
