//! The pause after a failed step of derivation: doubled each time, from one second to ten (op-node:
//! step back-off).

use std::time::Duration;

/// The first pause.
const FIRST: Duration = Duration::from_secs(1);
/// The longest pause.
const LONGEST: Duration = Duration::from_secs(10);
/// Random addition, so that nodes behind one endpoint do not return at the same moment.
const JITTER: Duration = Duration::from_millis(250);

/// Failures in a row.
#[derive(Debug, Default)]
pub(super) struct Backoff {
    failures: u32,
}

impl Backoff {
    /// A step succeeded.
    pub(super) fn reset(&mut self) {
        self.failures = 0;
    }

    /// The pause after one more failure.
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
