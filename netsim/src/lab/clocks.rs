//! Processor clocks of all processes of a lab, read before the block of each second and after it. The
//! work that a block causes at once is the difference to the rest of the second.
//!
//! A sequencer publishes a block at most 100 ms before the second of its timestamp.

pub use super::usage::ProcessClocks;
use super::{report::millis, usage};
use parking_lot::Mutex;
use std::{
    sync::Arc,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};
use tokio::time::sleep;

/// Parts of a second at which clocks are read, in milliseconds: before a block, and after it.
const BEFORE: u64 = 900;
const AFTER: u64 = 250;

/// The clocks of all nodes, and then of the controller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClockReading {
    pub at_ms: u64,
    /// Whether the block of a second follows.
    pub is_before: bool,
    pub clocks: Vec<ProcessClocks>,
}

pub type SharedReadings = Arc<Mutex<Vec<ClockReading>>>;

/// Reads the clocks of processes until the task is aborted. A process that is started later or again
/// is not read.
pub async fn follow(readings: SharedReadings, pids: Vec<Option<u32>>, start: Instant) {
    loop {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let (pause, is_before) = next(now.unwrap_or_default().subsec_millis().into());
        sleep(Duration::from_millis(pause)).await;
        let at_ms = millis(start.elapsed());
        let clocks = pids.iter().map(|pid| pid.and_then(usage::clocks));
        let clocks = clocks.map(Option::unwrap_or_default).collect();
        readings.lock().push(ClockReading {
            at_ms,
            is_before,
            clocks,
        });
    }
}

/// Milliseconds until the next reading, and whether it is one before a block. `now` is the part of
/// the present second.
fn next(now: u64) -> (u64, bool) {
    if now < AFTER {
        (AFTER - now, false)
    } else if now < BEFORE {
        (BEFORE - now, true)
    } else {
        (1_000 + AFTER - now, false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readings_alternate_before_and_after_the_end_of_a_second() {
        assert_eq!(next(0), (250, false));
        assert_eq!(next(249), (1, false));
        assert_eq!(next(250), (650, true));
        assert_eq!(next(899), (1, true));
        assert_eq!(next(900), (350, false));
        assert_eq!(next(999), (251, false));
    }
}
