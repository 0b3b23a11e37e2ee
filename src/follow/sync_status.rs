//! Reports to `eth_syncing` while a gap below the newest block is filled from peers.
//!
//! Reads the swarm's report every [`INTERVAL`] while the head is old, so a node at the head of the
//! network costs the swarm nothing. Pure but for [`run`]. Nothing can overload it.

use crate::{clock::unix_now, rollup::engine::Engine, rpc::SyncStatus};
use starling_p2p::Network;
use std::time::Duration;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// Time between two readings of the swarm's report.
const INTERVAL: Duration = Duration::from_secs(1);
/// Age of a head, seconds, below which no gap is worth reporting: a few blocks are fetched within
/// a second.
const FRESH: u64 = 10;

/// The synchronisation in progress, as far as it is known from the head and the gap.
#[derive(Debug, Default)]
struct Tracker {
    status: Option<SyncStatus>,
    /// Head at the last update.
    head: u64,
}

impl Tracker {
    /// Whether the swarm has to be asked about a gap.
    fn needs_report(&self, head_age: u64) -> bool {
        self.status.is_some() || head_age >= FRESH
    }

    /// Updates the status. `target` is the top of the gap that is being filled.
    fn update(&mut self, head: u64, target: Option<u64>) -> Option<SyncStatus> {
        let advanced = head > std::mem::replace(&mut self.head, head);
        // The swarm closes a gap when its last block has been handed over. The synchronisation goes
        // on while these blocks are executed.
        let executing = self
            .status
            .filter(|_| advanced)
            .map(|status| status.highest);
        self.status = target
            .or(executing)
            .filter(|highest| *highest > head)
            .map(|highest| SyncStatus {
                starting: self.status.map_or(head, |status| status.starting),
                highest,
            });
        self.status
    }
}

/// Reports to `status` until the token is cancelled.
pub async fn run(
    engine: Engine,
    network: Network,
    status: watch::Sender<Option<SyncStatus>>,
    token: CancellationToken,
) -> anyhow::Result<()> {
    let mut ticks = tokio::time::interval(INTERVAL);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let heads = engine.heads();
    let mut tracker = Tracker::default();
    loop {
        tokio::select! {
            () = token.cancelled() => return Ok(()),
            _ = ticks.tick() => {}
        }
        if !tracker.needs_report(unix_now().saturating_sub(heads.borrow().timestamp)) {
            continue;
        }
        let Some(report) = token.run_until_cancelled(network.report()).await else {
            return Ok(());
        };
        let target = match report {
            Ok(report) => report.sync.target,
            Err(_) if token.is_cancelled() => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        let new = tracker.update(heads.borrow().head.number, target);
        status.send_if_modified(|status| std::mem::replace(status, new) != new);
    }
}

#[cfg(test)]
mod tests;
