//! Counters of nodes over time, which tasks read from their metrics: duplicates of gossip, and the
//! size of the mesh.

use super::rpc;
use parking_lot::Mutex;
use std::{
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::time::sleep;

/// Interval between two readings. A reading costs a node some milliseconds, so metrics are read less
/// often than heads. The counts since the last reading are lost when a node is killed.
const INTERVAL: Duration = Duration::from_secs(2);

const EVENTS: &str = "op_node_default_p2p_gossip_events_total{";
const DUPLICATE: &str = "type=\"DUPLICATE_MESSAGE\"";
const DELIVERED: &str = "type=\"DELIVER_MESSAGE\"";
const MESH: &str = "starling_p2p_mesh_peers{";
const CHECK_SECONDS: &str = "starling_p2p_check_seconds_sum ";
const CHECKS: &str = "starling_p2p_check_seconds_count ";

/// Time of a check in tests.
#[cfg(test)]
const CHECK_NS: u64 = 300_000;

/// A counter of a process that begins at zero again when the process restarts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RestartedCounter {
    /// Sum over the processes before.
    before: u64,
    last: u64,
}

impl RestartedCounter {
    fn observe(&mut self, value: u64) {
        if value < self.last {
            self.before += self.last;
        }
        self.last = value;
    }

    pub fn total(&self) -> u64 {
        self.before + self.last
    }
}

/// The size of a node's mesh at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MeshSample {
    pub at: Duration,
    /// Peers in the largest mesh: each topic has one, and blocks use one topic.
    pub peers: u64,
}

/// The counters of one node.
#[derive(Clone, Debug, Default)]
pub struct NodeCounters {
    /// Messages that arrived again.
    pub duplicates: RestartedCounter,
    /// Messages that arrived for the first time and were accepted.
    pub delivered: RestartedCounter,
    /// Checks of messages, and the nanoseconds that they took together.
    pub checks: RestartedCounter,
    pub check_ns: RestartedCounter,
    pub mesh: Vec<MeshSample>,
}

impl NodeCounters {
    /// Counters of a node that has one size of mesh, and whose checks take [`CHECK_NS`].
    #[cfg(test)]
    pub fn counted(delivered: u64, duplicates: u64, peers: u64) -> Self {
        let counter = |last| RestartedCounter { before: 0, last };
        let at = Duration::ZERO;
        Self {
            duplicates: counter(duplicates),
            delivered: counter(delivered),
            checks: counter(delivered),
            check_ns: counter(delivered * CHECK_NS),
            mesh: vec![MeshSample { at, peers }],
        }
    }

    /// Takes the text of a metrics page. Metrics that a page does not have are zero.
    fn observe(&mut self, at: Duration, page: &str) {
        let event = |kind| values(page, EVENTS, kind).sum();
        self.duplicates.observe(event(DUPLICATE));
        self.delivered.observe(event(DELIVERED));
        self.checks.observe(plain(page, CHECKS) as u64);
        self.check_ns
            .observe((plain(page, CHECK_SECONDS) * 1e9) as u64);
        let peers = values(page, MESH, "").max().unwrap_or(0);
        self.mesh.push(MeshSample { at, peers });
    }
}

/// The value of the metric without labels on the line that starts with `prefix`; zero without such a
/// line.
fn plain(page: &str, prefix: &str) -> f64 {
    let mut lines = page.lines();
    let value = lines.find_map(|line| line.strip_prefix(prefix)?.parse().ok());
    value.unwrap_or(0.0)
}

/// Values of the lines that start with `prefix` and have `label` among their labels.
fn values<'a>(page: &'a str, prefix: &'a str, label: &'a str) -> impl Iterator<Item = u64> + 'a {
    let lines = page.lines().filter_map(move |line| {
        let (labels, value) = line.strip_prefix(prefix)?.rsplit_once("} ")?;
        labels.contains(label).then(|| value.parse().ok()).flatten()
    });
    lines.map(|value: f64| value as u64)
}

/// The counters of all nodes, which tasks fill.
pub type SharedCounters = Arc<Vec<Mutex<NodeCounters>>>;

/// Reads the metrics of one node until the task is aborted.
pub async fn follow(counters: SharedCounters, node: usize, metrics: SocketAddr, start: Instant) {
    loop {
        if let Some(page) = rpc::get(metrics, "/metrics").await {
            counters[node].lock().observe(start.elapsed(), &page);
        }
        sleep(INTERVAL).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_summed_over_restarts_and_the_largest_mesh_counts() {
        let page = |duplicates: u64| {
            format!(
                "# TYPE op_node_default_p2p_gossip_events_total counter\n\
                 op_node_default_p2p_gossip_events_total{{type=\"DUPLICATE_MESSAGE\"}} {duplicates}\n\
                 op_node_default_p2p_gossip_events_total{{type=\"DELIVER_MESSAGE\"}} 16\n\
                 starling_p2p_check_seconds_bucket{{le=\"1\"}} 4\n\
                 starling_p2p_check_seconds_sum 0.001\n\
                 starling_p2p_check_seconds_count 4\n\
                 starling_p2p_mesh_peers{{topic=\"V3\"}} 1\n\
                 starling_p2p_mesh_peers{{topic=\"V4\"}} 4\n"
            )
        };
        let mut counters = NodeCounters::default();
        for (at, duplicates) in [(1, 5), (2, 9), (3, 2), (4, 3)] {
            counters.observe(Duration::from_secs(at), &page(duplicates));
        }
        assert_eq!(counters.duplicates.total(), 12);
        assert_eq!(counters.delivered.total(), 16);
        let checks = (counters.checks.total(), counters.check_ns.total());
        assert_eq!(checks, (4, 1_000_000));
        assert_eq!(counters.mesh.len(), 4);
        assert_eq!(counters.mesh[0].peers, 4);
    }
}
