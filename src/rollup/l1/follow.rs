//! Follows the heads of L1: by subscription if the endpoint is a WebSocket or a Unix socket,
//! otherwise and without a working subscription by polling. Wakes the consumers of the heads. If
//! the endpoint fails, the last heads stay. A head may move back: consumers handle reorgs.

use super::{L1Block, L1Client, L1Error, L1Tag};
use crate::{rollup::metrics::L1HeadMetrics, telemetry::LoggedCauses};
use jsonrpsee::core::client::Subscription;
use serde_json::Value;
use std::time::Duration;
use tokio::{
    sync::watch,
    time::{Instant, Interval, MissedTickBehavior},
};
use tokio_util::sync::CancellationToken;

/// Polls are skipped if the subscription delivered a head within this many poll intervals. L1
/// misses a slot now and then. A longer silence may mean that the subscription no longer works.
const QUIET_POLLS: u32 = 3;
/// Number of unverifiable headers in a row after which a subscription is dropped.
const UNVERIFIED_HEADERS: u32 = 3;
/// Time without a new subscription after unverifiable headers. Meanwhile the endpoint may be
/// updated or replaced by another one.
const SUBSCRIPTION_PAUSE: Duration = Duration::from_secs(300);

// Texts of warnings; the end of a warning is logged under the same text.
const NO_HEAD: &str = "L1's head cannot be read; trying again until it can";
const NO_BLOCK: &str = "L1's safe or finalized block could not be read; the last one stays";

/// L1's heads as read last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct L1Heads {
    pub head: Option<L1Block>,
    pub safe: Option<L1Block>,
    pub finalized: Option<L1Block>,
}

/// Selects one of the heads.
type HeadSlot = fn(&mut L1Heads) -> &mut Option<L1Block>;

/// An L1 client and the heads that are followed with it.
pub struct FollowedL1 {
    pub client: L1Client,
    pub heads: watch::Receiver<L1Heads>,
}

/// Follows L1's heads until the token is cancelled. The head is read every `head_interval`
/// (`--l1.http-poll-interval`) unless a subscription delivers it. The safe and the finalized block
/// are read every `epoch_interval` (`--l1.epoch-poll-interval`); zero disables these reads.
pub async fn follow_heads(
    l1: L1Client,
    heads: watch::Sender<L1Heads>,
    head_interval: Duration,
    epoch_interval: Duration,
    token: CancellationToken,
) {
    let follow =
        |tag, slot: HeadSlot| follow_tag(l1.clone(), heads.clone(), tag, slot, epoch_interval);
    let safe = follow(L1Tag::Safe, |heads| &mut heads.safe);
    let finalized = follow(L1Tag::Finalized, |heads| &mut heads.finalized);
    let follower = HeadFollower {
        l1,
        heads,
        head_interval,
        causes: LoggedCauses::default(),
        last_pushed: None,
        metrics: L1HeadMetrics::new(),
        unverified: 0,
        subscribe_after: None,
    };
    // Concurrent, so that a slow request for one head does not delay the others.
    let all = async { tokio::join!(follower.run(), safe, finalized) };
    let _ = token.run_until_cancelled(all).await;
}

/// Reads the block with this tag every `interval`; never if the interval is zero.
async fn follow_tag(
    l1: L1Client,
    heads: watch::Sender<L1Heads>,
    tag: L1Tag,
    slot: HeadSlot,
    interval: Duration,
) {
    if interval.is_zero() {
        return;
    }
    let (mut ticks, mut causes) = (ticks(interval), LoggedCauses::default());
    loop {
        ticks.tick().await;
        let read = l1.block(tag).await;
        let now = Instant::now().into_std();
        match read {
            Ok(block) => {
                causes.note_success(NO_BLOCK, now);
                if let Some(block) = block {
                    heads.send_if_modified(|heads| replace(slot(heads), block));
                }
            }
            Err(error) => {
                if causes.note_failure(NO_BLOCK, &error.to_string(), now) {
                    tracing::warn!(tag = tag.name(), %error, "{NO_BLOCK}");
                }
            }
        }
    }
}

struct HeadFollower {
    l1: L1Client,
    heads: watch::Sender<L1Heads>,
    head_interval: Duration,
    /// Causes of failed reads that have been logged already.
    causes: LoggedCauses,
    /// Time at which the subscription last delivered a verified head.
    last_pushed: Option<Instant>,
    metrics: L1HeadMetrics,
    /// Number of headers in a row from the subscription that could not be verified.
    unverified: u32,
    /// No new subscription is made before this time.
    subscribe_after: Option<Instant>,
}

impl HeadFollower {
    async fn run(mut self) {
        let mut head_tick = ticks(self.head_interval);
        let mut subscription = None;
        loop {
            tokio::select! {
                _ = head_tick.tick() => {
                    let quiet = self.last_pushed.map(|at| at.elapsed());
                    if quiet.is_some_and(|quiet| quiet < self.head_interval * QUIET_POLLS) {
                        continue;
                    }
                    self.last_pushed = None;
                    subscription = self.subscribe().await;
                    self.poll().await;
                }
                Some(header) = next(&mut subscription) => {
                    let is_kept = match header {
                        Some(header) => self.on_header(header).await,
                        None => false,
                    };
                    if !is_kept {
                        // A later poll subscribes again.
                        (self.last_pushed, subscription) = (None, None);
                    }
                }
            }
        }
    }

    async fn poll(&mut self) {
        let read = self.l1.block(L1Tag::Latest).await;
        self.publish(read);
    }

    /// Handles a header from the subscription. An unverifiable header still indicates a new head,
    /// so the head is polled at once. Returns false if the subscription must be dropped.
    async fn on_header(&mut self, header: Value) -> bool {
        let error = match self.l1.read_new_head(header) {
            Ok(block) => {
                (self.last_pushed, self.unverified) = (Some(Instant::now()), 0);
                self.publish(Ok(Some(block)));
                return true;
            }
            Err(error) => error,
        };
        self.last_pushed = None;
        self.unverified += 1;
        let is_kept = self.unverified < UNVERIFIED_HEADERS;
        if !is_kept {
            tracing::warn!(%error, "headers of the subscription to L1's heads cannot be verified; heads are polled");
            self.unverified = 0;
            self.subscribe_after = Instant::now().checked_add(SUBSCRIPTION_PAUSE);
        }
        self.poll().await;
        is_kept
    }

    /// A subscription to the endpoint in use. `None` if the endpoint has no subscriptions, or if
    /// they are paused after unverifiable headers.
    async fn subscribe(&self) -> Option<Subscription<Value>> {
        if self
            .subscribe_after
            .is_some_and(|after| Instant::now() < after)
        {
            return None;
        }
        match self.l1.subscribe_heads().await? {
            Ok(subscription) => Some(subscription),
            Err(error) => {
                tracing::debug!(%error, "no subscription to L1's heads; they are polled");
                None
            }
        }
    }

    fn publish(&mut self, read: Result<Option<L1Block>, L1Error>) {
        let now = Instant::now().into_std();
        match &read {
            Ok(_) if self.causes.note_success(NO_HEAD, now) => {
                tracing::info!(endpoint = self.l1.endpoint(), "L1's head can be read again");
            }
            Err(error) if self.causes.note_failure(NO_HEAD, &error.to_string(), now) => {
                tracing::warn!(%error, "{NO_HEAD}");
            }
            _ => {}
        }
        if let Ok(Some(block)) = read {
            self.metrics
                .on_head(self.heads.borrow().head.as_ref(), &block);
            self.heads.send_if_modified(|h| replace(&mut h.head, block));
        }
    }
}

fn ticks(interval: Duration) -> Interval {
    let mut ticks = tokio::time::interval(interval);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}

/// The next header of a subscription; `Some(None)` when the subscription ends. `None` at once if
/// there is no subscription.
async fn next(subscription: &mut Option<Subscription<Value>>) -> Option<Option<Value>> {
    // A header that is not JSON ends the subscription, like a lost connection.
    Some(subscription.as_mut()?.next().await.and_then(Result::ok))
}

fn replace(slot: &mut Option<L1Block>, block: L1Block) -> bool {
    slot.replace(block) != Some(block)
}

#[cfg(test)]
mod tests;
