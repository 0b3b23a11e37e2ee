//! The wall clock. No other module of this crate reads it.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Time since the Unix epoch; zero if the system's clock is before it.
pub fn since_epoch() -> Duration {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
}

/// Current wall-clock time in whole Unix seconds.
pub fn unix_now() -> u64 {
    since_epoch().as_secs()
}
