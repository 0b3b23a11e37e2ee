//! Warnings about trouble that lasts: each cause is logged once, not with every attempt. Pure; the
//! list of causes is bounded.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

/// Causes that are remembered; a further one displaces the oldest.
const MAX_CAUSES: usize = 32;
/// A success ends the causes that were last seen so long ago: others succeed and fail in turn.
const QUIET: Duration = Duration::from_secs(30);
/// A cause that lasts is logged again after this time, so that a recent log names it.
const REMINDER: Duration = Duration::from_secs(600);

/// Causes that were logged and are not over.
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
    /// Notes a failure in `topic`; returns whether to log `cause`: it was not logged before, or long
    /// ago.
    /// Texts that differ in their numbers alone are one cause.
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

    /// Notes a success in `topic`: causes that were not seen lately are over. Returns whether there were
    /// any.
    pub fn note_success(&mut self, topic: &'static str, now: Instant) -> bool {
        let before = self.causes.len();
        let is_recent = |seen: Instant| now.saturating_duration_since(seen) < QUIET;
        let stays = |cause: &LoggedCause| cause.topic != topic || is_recent(cause.seen);
        self.causes.retain(stays);
        self.causes.len() < before
    }
}

/// The text with `#` in place of each word that has a digit, except for addresses of endpoints.
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
        // Causes that alternate stay quiet too, with each other and with successes.
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
