//! The status for `eth_syncing` while a gap below the newest block is filled from peers.
//!
//! Reads the swarm's report every [`INTERVAL`] while the head is old or a gap is reported, so a
//! node at the head of the network causes no work for the swarm. Everything except [`run`] is pure.
//! No input can overload this task.

use crate::{clock::unix_now, rollup::engine::Engine, rpc::SyncStatus};
use starling_p2p::Network;
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// Time between two readings of the swarm's report.
const INTERVAL: Duration = Duration::from_secs(1);
/// Age of the head in seconds below which no gap is reported, since such a gap is filled within a
/// second.
const FRESH: u64 = 10;

/// Time after which a gap counts as abandoned if the swarm does not report it and the head does not
/// advance. Before that, the last blocks of the gap may still wait for the executor, which needs at
/// most seconds per block.
const GIVEN_UP: Duration = Duration::from_secs(30);

/// The synchronisation in progress, as derived from the head and the gap.
#[derive(Debug, Default)]
struct Tracker {
    current: Option<TrackedSync>,
    /// Number of the head at the last update.
    head: u64,
}

#[derive(Clone, Copy, Debug)]
struct TrackedSync {
    status: SyncStatus,
    /// Time at which the head last advanced, or the swarm last reported the gap.
    progressed: Instant,
}

impl Tracker {
    /// Whether a report of the swarm about a gap is needed.
    fn needs_report(&self, head_age: u64) -> bool {
        self.current.is_some() || head_age >= FRESH
    }

    /// Updates the status. `target` is the highest block of the gap that is being filled. The swarm
    /// closes a gap once it has sent the gap's last block. The synchronisation continues until the
    /// head has reached that block, or until there is no progress for [`GIVEN_UP`].
    fn update(&mut self, now: Instant, head: u64, target: Option<u64>) -> Option<SyncStatus> {
        let advanced = head > std::mem::replace(&mut self.head, head);
        let before = self.current.take();
        let mut progressed = before
            .filter(|_| !advanced)
            .map_or(now, |sync| sync.progressed);
        let kept = before
            .map(|sync| sync.status)
            .filter(|_| now.saturating_duration_since(progressed) < GIVEN_UP);
        let highest = target
            .max(kept.map(|status| status.highest))
            .filter(|highest| *highest > head)?;
        if target == Some(highest) {
            progressed = now;
        }
        let status = SyncStatus {
            starting: kept.map_or(head, |status| status.starting),
            highest,
        };
        self.current = Some(TrackedSync { status, progressed });
        Some(status)
    }
}

/// Writes the status to `status` until the token is cancelled.
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
        let new = tracker.update(Instant::now(), heads.borrow().head.number, target);
        status.send_if_modified(|status| std::mem::replace(status, new) != new);
    }
}

#[cfg(test)]
mod tests;
