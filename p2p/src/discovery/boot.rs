//! The schedule of bootnode queries. Bootnodes are queried at start, at growing intervals while
//! they do not respond, and every 30 s while the table has no responsive node. Pure.

use std::time::{Duration, Instant};

const RETRY: Duration = Duration::from_secs(5);
const MAX_RETRY: Duration = Duration::from_secs(300);
/// Interval of queries to a responsive bootnode while the table has no responsive node.
const ALONE: Duration = Duration::from_secs(30);
/// Time limit of a query that reports no result; the library's own limit is shorter.
const QUERY: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Debug)]
struct BootnodeState {
    next: Instant,
    failures: u32,
    responded: bool,
}

/// The states of the bootnodes, by their index in the configured list.
#[derive(Debug)]
pub struct BootSchedule {
    nodes: Vec<BootnodeState>,
}

impl BootSchedule {
    pub fn new(count: usize, now: Instant) -> Self {
        Self {
            nodes: vec![
                BootnodeState {
                    next: now,
                    failures: 0,
                    responded: false
                };
                count
            ],
        }
    }

    /// Indexes of the bootnodes to query now. `alone`: the table has no responsive node.
    pub fn due(&mut self, alone: bool, now: Instant) -> Vec<usize> {
        let due = self
            .nodes
            .iter_mut()
            .enumerate()
            .filter(|(_, node)| node.next <= now && (alone || !node.responded));
        due.map(|(index, node)| {
            node.next = now + QUERY;
            index
        })
        .collect()
    }

    /// Records the outcome of a query. Returns whether it is the first failure since the last
    /// response.
    pub fn on_outcome(&mut self, index: usize, responded: bool, now: Instant) -> bool {
        let Some(node) = self.nodes.get_mut(index) else {
            return false;
        };
        node.responded = responded;
        if responded {
            (node.failures, node.next) = (0, now + ALONE);
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
    fn an_unresponsive_bootnode_is_queried_ever_more_rarely() {
        let start = Instant::now();
        let mut boot = BootSchedule::new(2, start);
        assert_eq!(boot.due(true, start), [0, 1]);
        assert!(boot.due(true, start).is_empty(), "one query at a time");
        assert!(!boot.on_outcome(0, true, start));
        assert!(
            boot.on_outcome(1, false, start) && !boot.on_outcome(1, false, start),
            "reported once"
        );
        let (mut now, mut asked) = (start, Vec::new());
        while now < start + Duration::from_secs(3600) {
            now += Duration::from_secs(1);
            for index in boot.due(false, now) {
                assert_eq!(
                    index, 1,
                    "a responsive bootnode is not queried while other nodes respond"
                );
                asked.push(now);
                boot.on_outcome(1, false, now);
            }
        }
        assert!(asked.len() > 10 && asked.len() < 25, "{}", asked.len());
        assert!(asked.windows(2).all(|two| two[1] - two[0] <= MAX_RETRY));
    }

    #[test]
    fn bootnodes_are_queried_again_when_no_other_node_is_left() {
        let now = Instant::now();
        let mut boot = BootSchedule::new(1, now);
        boot.due(true, now);
        boot.on_outcome(0, true, now);
        assert!(
            boot.due(true, now + ALONE / 2).is_empty()
                && boot.due(false, now + ALONE * 9).is_empty()
        );
        assert_eq!(boot.due(true, now + ALONE), [0]);
        assert!(boot.due(true, now + ALONE).is_empty());
        assert_eq!(
            boot.due(true, now + ALONE + QUERY),
            [0],
            "a lost query is repeated"
        );
    }
}
