//! The stall clock of a gap: when the gap last made progress, and when a peer last answered a range
//! request to its end. Every decision about a stalled gap is made from this clock.

use std::time::{Duration, Instant};

/// Time without progress after which a gap gives way to a higher tip. Longer than a request may
/// take, so one silent peer does not cost the links already walked.
const ABANDON: Duration = Duration::from_secs(30);
/// Time without progress after which a gap is reported as stalled.
const REPORT: Duration = Duration::from_secs(15);
/// Time without a complete response after which a long gap is requested by number too: peers that
/// answer range requests slowly or not at all must not keep the gap open while others have its
/// blocks.
const FALL_BACK: Duration = Duration::from_secs(10);

#[derive(Clone, Copy, Debug)]
pub(super) struct StallClock {
    progress: Instant,
    /// The last complete response; at first, the time of the first range request.
    response: Option<Instant>,
}

impl StallClock {
    pub fn new(now: Instant) -> Self {
        Self {
            progress: now,
            response: None,
        }
    }

    /// The clock of the gap that replaces this one while its range requests go on.
    pub fn successor(&self, now: Instant) -> Self {
        Self {
            progress: now,
            ..*self
        }
    }

    /// A missing block or link has arrived, or peers are not the cause of the wait: the chain is
    /// busy.
    pub fn on_progress(&mut self, now: Instant) {
        self.progress = now;
    }

    /// A peer has answered a range request to its end, or no response is needed at present.
    pub fn on_response(&mut self, now: Instant) {
        self.response = Some(now);
    }

    /// Range requests are about to be sent: from now on a response is expected.
    pub fn expect_response(&mut self, now: Instant) {
        self.response.get_or_insert(now);
    }

    /// All range requests are cancelled.
    pub fn on_cancelled(&mut self) {
        self.response = None;
    }

    /// When the gap gives way to a higher tip.
    pub fn abandon_at(&self) -> Instant {
        self.progress + ABANDON
    }

    /// When blocks are requested by number too.
    pub fn fall_back_at(&self) -> Option<Instant> {
        self.response.map(|response| response + FALL_BACK)
    }

    /// For how long the gap has stalled, once that is worth a report.
    pub fn stalled_for(&self, now: Instant) -> Option<Duration> {
        Some(now.saturating_duration_since(self.progress)).filter(|waited| *waited >= REPORT)
    }
}
