//! Chooses the active sequencer among several rollup nodes. Pure: responses and the time come in as
//! arguments.

use std::time::{Duration, Instant};

/// The endpoint in use, and the time of the last check that it is the active sequencer.
#[derive(Clone, Copy, Debug)]
pub struct ActiveChoice {
    index: usize,
    endpoints: usize,
    interval: Duration,
    checked: Option<Instant>,
}

impl ActiveChoice {
    /// Starts with the first endpoint, unchecked. `endpoints` is at least 1. With a zero `interval`
    /// the endpoint is checked before every use.
    pub fn new(endpoints: usize, interval: Duration) -> Self {
        Self {
            index: 0,
            endpoints,
            interval,
            checked: None,
        }
    }

    /// Position of the endpoint in use in the list of endpoints.
    pub fn index(&self) -> usize {
        self.index
    }

    /// Whether the endpoint in use must be checked for activity before the next request. A single
    /// endpoint is never checked.
    pub fn is_due(&self, now: Instant) -> bool {
        let is_fresh = |at: Instant| now.saturating_duration_since(at) < self.interval;
        self.endpoints > 1 && !self.checked.is_some_and(is_fresh)
    }

    /// Records that the endpoint in use is the active sequencer.
    pub fn is_active(&mut self, now: Instant) {
        self.checked = Some(now);
    }

    /// The endpoint in use is inactive or does not respond: switches to the next endpoint in the
    /// list.
    pub fn go_on(&mut self) {
        self.index = (self.index + 1) % self.endpoints.max(1);
        self.checked = None;
    }

    /// Records that a request failed: the endpoint in use is checked before the next request.
    pub fn has_failed(&mut self) {
        self.checked = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INTERVAL: Duration = Duration::from_secs(5);

    #[test]
    fn one_endpoint_is_never_checked() {
        let mut choice = ActiveChoice::new(1, INTERVAL);
        choice.has_failed();
        assert!(!choice.is_due(Instant::now()));
    }

    #[test]
    fn a_check_holds_for_the_interval_or_until_a_failure() {
        let now = Instant::now();
        let mut choice = ActiveChoice::new(3, INTERVAL);
        assert!(choice.is_due(now));
        choice.is_active(now);
        assert!(!choice.is_due(now + Duration::from_millis(4_999)));
        assert!(choice.is_due(now + INTERVAL));
        choice.has_failed();
        assert!(choice.is_due(now));
        assert_eq!(choice.index(), 0, "a failure alone moves nothing");
    }

    #[test]
    fn the_list_is_a_ring() {
        let now = Instant::now();
        let mut choice = ActiveChoice::new(3, Duration::ZERO);
        let mut seen = vec![];
        for _ in 0..4 {
            seen.push(choice.index());
            choice.go_on();
        }
        assert_eq!(seen, [0, 1, 2, 0]);
        choice.is_active(now);
        assert!(choice.is_due(now), "zero checks before every use");
    }
}
