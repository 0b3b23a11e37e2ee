//! Log lines about a gap: its progress, and a warning when it has stalled.

use super::Sync;
use crate::types::SyncReport;
use std::time::{Duration, Instant};

/// Time between two log lines of progress.
const PROGRESS: Duration = Duration::from_secs(10);
/// Time between two warnings about a stalled gap.
const STALL_WARNING: Duration = Duration::from_secs(60);

/// The times of the last log lines about a gap.
#[derive(Debug, Default)]
pub(crate) struct GapProgressLog {
    /// Time of the last log line of progress, and the number of blocks that had arrived by then.
    progress: Option<(Instant, u64)>,
    /// Time of the last warning about the gap; `None` while the gap is not stalled.
    warned: Option<Instant>,
}

impl GapProgressLog {
    /// Logs progress and stalls when they are due; call it once a second.
    pub fn log(&mut self, sync: &Sync, now: Instant) {
        let (report, stall) = (sync.report(), sync.stall(now));
        if let Some(blocks_per_second) = self.rate(&report, sync.arrived(), now) {
            tracing::info!(
                target_block = report.target,
                missing = report.missing,
                linked = report.linked,
                peers = report.peers,
                blocks_per_second,
                "blocks are fetched from peers"
            );
        }
        if self.warns(stall.is_some(), now)
            && let Some((missing, why)) = stall
        {
            tracing::warn!(number = missing.number, hash = %missing.hash, why, "blocks are missing and no peer delivers them");
        }
    }

    /// Whether to warn now that the gap is stalled.
    fn warns(&mut self, stalled: bool, now: Instant) -> bool {
        let is_due = self
            .warned
            .is_none_or(|last| now.saturating_duration_since(last) >= STALL_WARNING);
        if is_due || !stalled {
            self.warned = stalled.then_some(now);
        }
        stalled && is_due
    }

    /// Blocks per second since the last log line, if another line is due. `arrived` counts the
    /// blocks that peers have delivered on request, by range or by number. `missing` does not
    /// measure progress: it grows during the backward walk and stays level while the tip moves.
    fn rate(&mut self, report: &SyncReport, arrived: u64, now: Instant) -> Option<f64> {
        if report.missing == 0 || report.peers == 0 {
            self.progress = None;
            return None;
        }
        let (since, before) = *self.progress.get_or_insert((now, arrived));
        let elapsed = now.saturating_duration_since(since);
        if elapsed < PROGRESS {
            return None;
        }
        self.progress = Some((now, arrived));
        let rate = arrived.saturating_sub(before) as f64 / elapsed.as_secs_f64();
        // Round to one decimal.
        Some((rate * 10.0).round() / 10.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stalled_gap_is_warned_of_once_a_minute_until_it_makes_progress() {
        let (mut log, start) = (GapProgressLog::default(), Instant::now());
        let mut warns = |stalled, seconds| log.warns(stalled, start + Duration::from_secs(seconds));
        assert!(warns(true, 0));
        assert!(!warns(true, 30), "it was logged");
        assert!(warns(true, 61));
        assert!(!warns(false, 71), "it makes progress");
        assert!(warns(true, 72), "and is stalled again");
        assert!(!warns(false, 82));
    }

    #[test]
    fn blocks_that_arrive_by_number_are_counted_while_the_gap_grows_downward() {
        let (mut log, start) = (GapProgressLog::default(), Instant::now());
        let mut rate = |missing, arrived, seconds| {
            let report = SyncReport {
                missing,
                peers: 2,
                ..Default::default()
            };
            log.rate(&report, arrived, start + Duration::from_secs(seconds))
        };
        assert_eq!(rate(1, 0, 0), None);
        assert_eq!(
            rate(401, 400, 10),
            Some(40.0),
            "the walk down: more is known to be missing than before"
        );
        assert_eq!(
            rate(401, 405, 20),
            Some(0.5),
            "the tip moves as fast as blocks arrive"
        );
        assert_eq!(rate(401, 405, 30), Some(0.0));
        assert_eq!(rate(0, 806, 40), None, "nothing is missing");
    }
}
