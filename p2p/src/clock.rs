//! The wall clock. Durations are measured with `Instant`; Unix time is only compared with the
//! timestamps of blocks and of stored records.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// One point in time on both clocks, for machines that need both.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    /// The monotonic clock, which measures durations.
    pub instant: Instant,
    /// The wall clock in whole Unix seconds.
    pub unix: u64,
}

impl Moment {
    /// The present time.
    pub fn now() -> Self {
        Self {
            instant: Instant::now(),
            unix: unix_now(),
        }
    }
}

/// The time since the Unix epoch; zero if the clock is set before it.
fn since_epoch() -> Duration {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
}

/// The wall clock in whole Unix seconds.
pub fn unix_now() -> u64 {
    since_epoch().as_secs()
}

/// The wall clock in Unix seconds, with the fraction of the second.
pub fn unix_now_exact() -> f64 {
    since_epoch().as_secs_f64()
}
