//! Limits the logging of lasting problems: a cause is logged at its first failure and then every
//! [`REMINDER`], not at every attempt. Pure. The list of causes is bounded.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

/// Maximum number of causes remembered; an additional one replaces the oldest.
const MAX_CAUSES: usize = 32;
/// Time without a failure after which a success ends a cause. Until then, successes and failures
/// may alternate.
const QUIET: Duration = Duration::from_secs(30);
/// Interval at which a lasting cause is logged again, so that a recent log contains it.
const REMINDER: Duration = Duration::from_secs(600);

/// Causes that were logged and have not ended.
#[derive(Debug, Default)]
pub struct LoggedCauses {
    causes: VecDeque<LoggedCause>,
}

#[derive(Debug)]
struct LoggedCause {
    topic: &'static str,
    shape: String,
    logged: Instant,
    seen: Instant,
}

impl LoggedCauses {
    /// Notes a failure in `topic`. Returns whether to log `cause`, which is the case if it was not
    /// logged before, or at least [`REMINDER`] ago. Texts that differ only in numbers count as one
    /// cause.
    pub fn note_failure(&mut self, topic: &'static str, cause: &str, now: Instant) -> bool {
        let shape = shape(cause);
        let is_same = |known: &&mut LoggedCause| known.topic == topic && known.shape == shape;
        if let Some(known) = self.causes.iter_mut().find(is_same) {
            known.seen = now;
            let is_due = now.saturating_duration_since(known.logged) >= REMINDER;
            if is_due {
                known.logged = now;
            }
            return is_due;
        }
        if self.causes.len() >= MAX_CAUSES {
            self.causes.pop_front();
        }
        self.causes.push_back(LoggedCause {
            topic,
            shape,
            logged: now,
            seen: now,
        });
        true
    }

    /// Notes a success in `topic`, which ends the topic's causes that have not been seen for
    /// [`QUIET`]. Returns whether a cause ended.
    pub fn note_success(&mut self, topic: &'static str, now: Instant) -> bool {
        let before = self.causes.len();
        let is_recent = |seen: Instant| now.saturating_duration_since(seen) < QUIET;
        let stays = |cause: &LoggedCause| cause.topic != topic || is_recent(cause.seen);
        self.causes.retain(stays);
        self.causes.len() < before
    }
}

/// Replaces each word that contains a digit by `#`, except for endpoint URLs.
fn shape(text: &str) -> String {
    let has_digit = |word: &str| word.bytes().any(|byte| byte.is_ascii_digit());
    let shaped = text.split_whitespace().map(|word| {
        if has_digit(word) && !word.contains("://") {
            "#"
        } else {
            word
        }
    });
    shaped.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_is_logged_once_until_it_is_over_and_again_as_a_reminder() {
        let start = Instant::now();
        let mut causes = LoggedCauses::default();
        assert!(causes.note_failure("publish", "txpool is full", start));
        assert!(!causes.note_failure("publish", "txpool is full", start));
        assert!(
            causes.note_failure("poll", "txpool is full", start),
            "elsewhere"
        );
        assert!(causes.note_failure("publish", "nonce too low", start));
        // Causes that alternate with each other or with successes are not logged again.
        assert!(!causes.note_failure("publish", "txpool is full", start));
        assert!(!causes.note_success("publish", start + QUIET / 2));
        assert!(!causes.note_failure("publish", "txpool is full", start));
        assert!(causes.note_success("publish", start + QUIET));
        assert!(!causes.note_success("publish", start + QUIET));
        assert!(causes.note_failure("publish", "txpool is full", start));
        assert!(!causes.note_failure("publish", "txpool is full", start + REMINDER / 2));
        assert!(causes.note_failure("publish", "txpool is full", start + REMINDER));
        assert!(!causes.note_failure("publish", "txpool is full", start + REMINDER));
    }

    #[test]
    fn numbers_do_not_make_another_cause_and_endpoints_do() {
        let now = Instant::now();
        let mut causes = LoggedCauses::default();
        let mut is_new = |text: &str| causes.note_failure("send", text, now);
        assert!(is_new("insufficient funds: balance 0, tx cost 1234"));
        assert!(!is_new("insufficient funds: balance 7, tx cost 99"));
        assert!(is_new("http://127.0.0.1:1 refused"));
        assert!(is_new("http://127.0.0.1:2 refused"));
    }

    #[test]
    fn the_list_is_bounded() {
        let now = Instant::now();
        let mut causes = LoggedCauses::default();
        for letter in 'a'..='z' {
            for other in 'a'..='c' {
                assert!(causes.note_failure("send", &format!("{letter}{other}"), now));
            }
        }
        assert_eq!(causes.causes.len(), MAX_CAUSES);
    }
}
