//! When bootnodes are asked: at start, again at growing waits while they do not answer, and again when nobody else is left. Pure.

use std::time::{Duration, Instant};

const RETRY: Duration = Duration::from_secs(5);
const MAX_RETRY: Duration = Duration::from_secs(300);
/// Between questions to a bootnode that answers, while the table holds nobody who does.
const LONELY: Duration = Duration::from_secs(30);
/// A question that reports nothing is given up after this; the library's own limit is shorter.
const QUESTION: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Debug)]
struct Node {
    next: Instant,
    failures: u32,
    answered: bool,
}

/// The bootnodes, by their place in the list.
#[derive(Debug)]
pub struct Boot {
    nodes: Vec<Node>,
}

impl Boot {
    pub fn new(count: usize, now: Instant) -> Self {
        Self {
            nodes: vec![
                Node {
                    next: now,
                    failures: 0,
                    answered: false
                };
                count
            ],
        }
    }

    /// Whom to ask now. `lonely`: the table holds nobody who answers.
    pub fn due(&mut self, lonely: bool, now: Instant) -> Vec<usize> {
        let due = self
            .nodes
            .iter_mut()
            .enumerate()
            .filter(|(_, node)| node.next <= now && (lonely || !node.answered));
        due.map(|(place, node)| {
            node.next = now + QUESTION;
            place
        })
        .collect()
    }

    /// Whether this is the first failure since it last answered.
    pub fn on_outcome(&mut self, place: usize, answered: bool, now: Instant) -> bool {
        let Some(node) = self.nodes.get_mut(place) else {
            return false;
        };
        node.answered = answered;
        if answered {
            (node.failures, node.next) = (0, now + LONELY);
            return false;
        }
        node.next = now + (RETRY * 2u32.saturating_pow(node.failures.min(16))).min(MAX_RETRY);
        node.failures = node.failures.saturating_add(1);
        node.failures == 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_does_not_answer_is_asked_again_ever_more_rarely() {
        let start = Instant::now();
        let mut boot = Boot::new(2, start);
        assert_eq!(boot.due(true, start), [0, 1]);
        assert!(boot.due(true, start).is_empty(), "one question at a time");
        assert!(!boot.on_outcome(0, true, start));
        assert!(
            boot.on_outcome(1, false, start) && !boot.on_outcome(1, false, start),
            "said once"
        );
        let (mut now, mut asked) = (start, Vec::new());
        while now < start + Duration::from_secs(3600) {
            now += Duration::from_secs(1);
            for place in boot.due(false, now) {
                assert_eq!(place, 1, "who answered is not asked while others do");
                asked.push(now);
                boot.on_outcome(1, false, now);
            }
        }
        assert!(asked.len() > 10 && asked.len() < 25, "{}", asked.len());
        assert!(asked.windows(2).all(|two| two[1] - two[0] <= MAX_RETRY));
    }

    #[test]
    fn when_nobody_is_left_bootnodes_are_asked_again() {
        let now = Instant::now();
        let mut boot = Boot::new(1, now);
        boot.due(true, now);
        boot.on_outcome(0, true, now);
        assert!(
            boot.due(true, now + LONELY / 2).is_empty()
                && boot.due(false, now + LONELY * 9).is_empty()
        );
        assert_eq!(boot.due(true, now + LONELY), [0]);
        assert!(boot.due(true, now + LONELY).is_empty());
        assert_eq!(
            boot.due(true, now + LONELY + QUESTION),
            [0],
            "a lost question is asked again"
        );
    }
}
