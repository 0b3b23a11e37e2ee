//! The stall clock of a gap: the time of the gap's last progress, and the time of the last complete
//! response to a range request. Every decision about a stalled gap is based on this clock.

use std::time::{Duration, Instant};

/// Time without progress after which a gap is abandoned for a higher tip. It exceeds the timeout of
/// a request, so one silent peer does not cost the links already walked.
const ABANDON: Duration = Duration::from_secs(30);
/// Time without progress after which a gap is reported as stalled.
const REPORT: Duration = Duration::from_secs(15);
/// Time without a complete range response after which a long gap is requested by number too. Peers
/// that respond to range requests slowly or not at all must not keep the gap open while other peers
/// have its blocks.
const FALL_BACK: Duration = Duration::from_secs(10);

#[derive(Clone, Copy, Debug)]
pub(super) struct StallClock {
    progress: Instant,
    /// Time of the last complete response; before any response, the time of the first range
    /// request.
    response: Option<Instant>,
}

impl StallClock {
    pub fn new(now: Instant) -> Self {
        Self {
            progress: now,
            response: None,
        }
    }

    /// The clock of a gap that replaces this gap and keeps its range requests.
    pub fn successor(&self, now: Instant) -> Self {
        Self {
            progress: now,
            ..*self
        }
    }

    /// Records progress: a missing block or link has arrived, or the chain is busy, so that peers
    /// are not the cause of the wait.
    pub fn on_progress(&mut self, now: Instant) {
        self.progress = now;
    }

    /// Records that a peer completed a range response, or that no response is needed at present.
    pub fn on_response(&mut self, now: Instant) {
        self.response = Some(now);
    }

    /// Range requests are about to be sent: from now on a response is expected.
    pub fn expect_response(&mut self, now: Instant) {
        self.response.get_or_insert(now);
    }

    /// Records that all range requests are cancelled.
    pub fn on_cancelled(&mut self) {
        self.response = None;
    }

    /// The time at which the gap is abandoned for a higher tip.
    pub fn abandon_at(&self) -> Instant {
        self.progress + ABANDON
    }

    /// The time from which blocks are requested by number too.
    pub fn fall_back_at(&self) -> Option<Instant> {
        self.response.map(|response| response + FALL_BACK)
    }

    /// The time since the last progress, once it is long enough for a report.
    pub fn stalled_for(&self, now: Instant) -> Option<Duration> {
        Some(now.saturating_duration_since(self.progress)).filter(|waited| *waited >= REPORT)
    }
}
