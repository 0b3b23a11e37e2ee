//! Admission of L1 requests: how many are in flight, and how many calls are sent per second.
//!
//! Requests of the head follower and the sequencer are urgent, those of derivation are bulk. A node
//! that catches up has bulk requests waiting all the time. They leave a permit to urgent ones, and
//! take calls of the rate limit only when no urgent request waits for any.

use super::L1Config;
use crate::rollup::http::rate::RateLimit;
use parking_lot::Mutex;
use std::time::{Duration, Instant};
use tokio::sync::{AcquireError, Semaphore, SemaphorePermit};

/// Permits that bulk requests leave to urgent ones, if there are several.
const KEPT_FOR_URGENT: usize = 1;
/// Bulk requests in flight at most: 64 MiB of responses of the usual size.
const MAX_BULK_REQUESTS: usize = 16;
/// Bytes of a response to a bulk request; more are allowed to one response at a time. Four times the
/// size that fetching ahead aims at.
pub(super) const USUAL_RESPONSE: u32 = 4 << 20;

/// How soon a request has to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Urgency {
    /// Blocks are not sequenced or followed without it.
    Urgent,
    /// Derivation is slower without it.
    Bulk,
}

/// Permits and the rate limit of one client and its clones.
pub(super) struct L1Gate {
    rate: Option<Mutex<RateLimit>>,
    /// Bulk requests wait for the rate limit one after the other.
    bulk_rate: tokio::sync::Mutex<()>,
    requests: Semaphore,
    bulk: Semaphore,
    large: Semaphore,
}

/// Permission to send one request, until it is dropped.
pub(super) struct L1Permit<'a> {
    _request: SemaphorePermit<'a>,
    _bulk: Option<SemaphorePermit<'a>>,
}

impl L1Gate {
    pub(super) fn new(config: &L1Config, now: Instant) -> Self {
        let requests = config.max_concurrency.max(1);
        let bulk = requests.saturating_sub(KEPT_FOR_URGENT);
        let burst = config.max_batch.max(1);
        Self {
            rate: RateLimit::new(config.rate_limit, burst, now).map(Mutex::new),
            bulk_rate: tokio::sync::Mutex::new(()),
            requests: Semaphore::new(requests.min(Semaphore::MAX_PERMITS)),
            bulk: Semaphore::new(bulk.clamp(1, MAX_BULK_REQUESTS)),
            large: Semaphore::new(1),
        }
    }

    /// Waits until a request of `calls` calls may be sent. A permit is taken last: no request holds
    /// one while it waits for the rate limit.
    pub(super) async fn enter(
        &self,
        urgency: Urgency,
        calls: usize,
    ) -> Result<L1Permit<'_>, AcquireError> {
        let bulk = if urgency == Urgency::Bulk {
            let permit = self.bulk.acquire().await?;
            let _turn = self.bulk_rate.lock().await;
            self.wait_for_rate(urgency, calls).await;
            Some(permit)
        } else {
            self.wait_for_rate(urgency, calls).await;
            None
        };
        Ok(L1Permit {
            _request: self.requests.acquire().await?,
            _bulk: bulk,
        })
    }

    /// Waits until a bulk request may have a response of more than [`USUAL_RESPONSE`].
    pub(super) async fn enter_large(&self) -> Result<SemaphorePermit<'_>, AcquireError> {
        self.large.acquire().await
    }

    async fn wait_for_rate(&self, urgency: Urgency, calls: usize) {
        let Some(rate) = &self.rate else { return };
        loop {
            let step = take(&mut rate.lock(), urgency, calls, Instant::now());
            match step {
                RateStep::Send(wait) => return tokio::time::sleep(wait).await,
                RateStep::Retry(wait) => tokio::time::sleep(wait).await,
            }
        }
    }
}

/// The next step of a request that waits for the rate limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RateStep {
    /// The calls are reserved, and may be sent after this time.
    Send(Duration),
    /// Nothing is reserved; to be tried again after this time.
    Retry(Duration),
}

/// Urgent calls are reserved at once, ahead of time if need be. Bulk calls are not: reserved ones
/// would delay every urgent call after them.
fn take(rate: &mut RateLimit, urgency: Urgency, calls: usize, now: Instant) -> RateStep {
    match urgency {
        Urgency::Urgent => RateStep::Send(rate.reserve(calls, now)),
        Urgency::Bulk => match rate.try_take(calls, now) {
            Ok(()) => RateStep::Send(Duration::ZERO),
            Err(wait) => RateStep::Retry(wait),
        },
    }
}

#[cfg(test)]
mod tests;
