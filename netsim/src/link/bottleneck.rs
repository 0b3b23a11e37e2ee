//! The slowest hop of a direction: a token bucket with a queue before it. The caller passes in
//! `now`. Times of departure are exact even if the caller polls late, so that a busy machine does
//! not lower the rate.
//!
//! The caller bounds the queue: it checks [`Bottleneck::queued`] before it pushes.

use super::conditions::LinkBandwidth;
use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

/// Tokens per byte. A token is a byte divided by nanoseconds per second, so that no division loses
/// a fraction of a token.
const BYTE: i128 = 1_000_000_000;

/// Smallest burst after a pause, in bytes: one Ethernet frame.
const SMALLEST_BURST: u64 = 1_514;

/// Divisor of the rate for the burst after a pause: one millisecond of tokens.
const BURSTS_PER_SECOND: u64 = 1_000;

pub(super) struct Bottleneck<T> {
    bandwidth: Option<LinkBandwidth>,
    queue: VecDeque<(usize, T)>,
    /// Total number of bytes in `queue`.
    queued: usize,
    /// Number of tokens at the time `at`. The first item of the queue departs as soon as its tokens
    /// are there.
    tokens: i128,
    at: Instant,
}

impl<T> Bottleneck<T> {
    pub fn new(bandwidth: Option<LinkBandwidth>, now: Instant) -> Self {
        Self {
            bandwidth,
            queue: VecDeque::new(),
            queued: 0,
            tokens: 0,
            at: now,
        }
    }

    /// Sets the rate, also for the items in the queue. The caller must already have popped those
    /// that departed by `now`.
    pub fn set(&mut self, bandwidth: Option<LinkBandwidth>, now: Instant) {
        if let Some(old) = self.bandwidth {
            self.refill(old, now);
        }
        self.bandwidth = bandwidth;
        self.at = now;
    }

    pub fn queued(&self) -> usize {
        self.queued
    }

    pub fn push(&mut self, len: usize, item: T, now: Instant) {
        if let Some(bandwidth) = self.bandwidth.filter(|_| self.queue.is_empty()) {
            self.refill(bandwidth, now);
        }
        self.queued += len;
        self.queue.push_back((len, item));
    }

    /// The next item that has departed by `now`, with the time of its departure.
    pub fn pop(&mut self, now: Instant) -> Option<(Instant, T)> {
        let departure = self.next().unwrap_or(now);
        if departure > now {
            return None;
        }
        let (len, item) = self.queue.pop_front()?;
        self.queued -= len;
        if let Some(bandwidth) = self.bandwidth {
            self.earn(bandwidth, departure);
            self.tokens -= len as i128 * BYTE;
        }
        Some((departure.max(self.at), item))
    }

    /// The time at which the first item of the queue departs; `None` if the queue is empty or
    /// without a limit.
    pub fn next(&self) -> Option<Instant> {
        let (rate, (len, _)) = (self.bandwidth?.rate.get(), self.queue.front()?);
        let owed = (*len as i128 * BYTE - self.tokens).max(0);
        let nanos = owed.unsigned_abs().div_ceil(u128::from(rate));
        Some(self.at + Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX / 4)))
    }

    /// Whether no item waits because of the rate.
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Removes the items that `keep` refuses.
    pub fn retain(&mut self, mut keep: impl FnMut(&T) -> bool) {
        self.queue.retain(|(_, item)| keep(item));
        self.queued = self.queue.iter().map(|(len, _)| len).sum();
    }

    /// Adds the tokens for the time up to `until`.
    fn earn(&mut self, bandwidth: LinkBandwidth, until: Instant) {
        let nanos = until.saturating_duration_since(self.at).as_nanos();
        self.tokens += i128::from(bandwidth.rate.get()) * nanos as i128;
        self.at = self.at.max(until);
    }

    /// Adds tokens like [`Self::earn`]. If no item waited for them, keeps at most one burst.
    fn refill(&mut self, bandwidth: LinkBandwidth, now: Instant) {
        self.earn(bandwidth, now);
        if self.queue.is_empty() {
            let burst = (bandwidth.rate.get() / BURSTS_PER_SECOND).max(SMALLEST_BURST);
            self.tokens = self.tokens.min(i128::from(burst) * BYTE);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bandwidth(rate: u64) -> Option<LinkBandwidth> {
        Some(LinkBandwidth::new(rate, usize::MAX))
    }

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn packets_depart_at_the_rate_however_late_anybody_asks() {
        let start = Instant::now();
        let mut bottleneck = Bottleneck::new(bandwidth(1_000_000), start);
        for number in 0..10 {
            bottleneck.push(1_000, number, start);
        }
        assert_eq!(bottleneck.queued(), 10_000);
        assert_eq!(bottleneck.next(), Some(start + ms(1)));
        assert_eq!(bottleneck.pop(start), None);
        for number in 0..10 {
            let departure = start + ms(number + 1);
            assert_eq!(bottleneck.pop(start + ms(500)), Some((departure, number)));
        }
        assert_eq!(bottleneck.pop(start + ms(500)), None);
        assert_eq!(bottleneck.queued(), 0);
    }

    #[test]
    fn a_pause_saves_up_one_burst() {
        let start = Instant::now();
        let mut bottleneck = Bottleneck::new(bandwidth(10_000_000), start);
        let later = start + ms(60_000);
        bottleneck.push(10_000, "paid by the pause", later);
        bottleneck.push(10_000, "not paid", later);
        assert_eq!(bottleneck.pop(later), Some((later, "paid by the pause")));
        assert_eq!(bottleneck.next(), Some(later + ms(1)));
    }

    #[test]
    fn a_new_rate_holds_for_what_is_queued() {
        let start = Instant::now();
        let mut bottleneck = Bottleneck::new(bandwidth(1_000), start);
        bottleneck.push(1_000, "half sent at the old rate", start);
        bottleneck.push(1_000, "sent at the new rate", start);
        let now = start + ms(500);
        bottleneck.set(bandwidth(100_000), now);
        let first = now + ms(5);
        assert_eq!(
            bottleneck.pop(first),
            Some((first, "half sent at the old rate"))
        );
        assert_eq!(bottleneck.next(), Some(first + ms(10)));
        bottleneck.set(None, first);
        assert_eq!(bottleneck.next(), None);
        assert_eq!(bottleneck.pop(first), Some((first, "sent at the new rate")));
    }

    #[test]
    fn the_largest_rate_and_the_slowest_do_not_overflow() {
        let start = Instant::now();
        let mut bottleneck = Bottleneck::new(bandwidth(u64::MAX), start);
        let later = start + Duration::from_secs(1_000_000_000);
        bottleneck.push(65_535, (), later);
        assert_eq!(bottleneck.pop(later), Some((later, ())));
        bottleneck.set(bandwidth(1), later);
        bottleneck.push(65_535, (), later);
        bottleneck.push(65_535, (), later);
        assert!(bottleneck.next().is_some());
    }
}
