//! The pause after a failed step of derivation: doubled each time, from one second to ten (op-node:
//! step back-off).

use std::time::Duration;

/// The pause after the first failure.
const FIRST: Duration = Duration::from_secs(1);
/// The longest pause between two steps, without the jitter.
const LONGEST: Duration = Duration::from_secs(10);
/// Longest random addition to a pause, so that nodes with the same endpoint do not retry at the
/// same moment.
const JITTER: Duration = Duration::from_millis(250);

/// Counts the failures in a row.
#[derive(Debug, Default)]
pub(super) struct Backoff {
    failures: u32,
}

impl Backoff {
    /// Ends the run of failures after a successful step.
    pub(super) fn reset(&mut self) {
        self.failures = 0;
    }

    /// Counts one more failure and returns the pause after it.
    pub(super) fn next(&mut self) -> Duration {
        let pause = FIRST.saturating_mul(2u32.saturating_pow(self.failures));
        self.failures = self.failures.saturating_add(1);
        pause.min(LONGEST) + JITTER.mul_f64(rand::random::<f64>())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_ten_seconds_and_begin_again_after_a_success() {
        let mut backoff = Backoff::default();
        let whole = |pause: Duration| pause.as_millis() / 1000;
        let pauses: Vec<_> = (0..40).map(|_| whole(backoff.next())).collect();
        assert_eq!(pauses[..5], [1, 2, 4, 8, 10]);
        assert!(pauses[5..].iter().all(|pause| *pause == 10));
        backoff.reset();
        assert_eq!(whole(backoff.next()), 1);
    }
}
