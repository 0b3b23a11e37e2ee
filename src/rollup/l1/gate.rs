//! Admission of L1 requests: bounds the requests in flight and the calls per second.
//!
//! Requests of the head follower and the sequencer are urgent, those of derivation are bulk
//! requests. A node that catches up always has bulk requests waiting. Bulk requests leave one
//! permit to urgent requests, and use the rate limit only when no urgent request waits for it.

use super::L1Config;
use crate::rollup::http::rate::RateLimit;
use parking_lot::Mutex;
use std::time::{Duration, Instant};
use tokio::sync::{AcquireError, Semaphore, SemaphorePermit};

/// Permits that bulk requests leave to urgent ones, if there is more than one permit.
const KEPT_FOR_URGENT: usize = 1;
/// Largest number of bulk requests in flight. With responses of [`USUAL_RESPONSE`] they hold 64
/// MiB.
const MAX_BULK_REQUESTS: usize = 16;
/// Largest usual response to a bulk request, in bytes: four times the size that fetching ahead aims
/// at. Only one bulk response at a time may be larger.
pub(super) const USUAL_RESPONSE: u32 = 4 << 20;

/// The urgency of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Urgency {
    /// Sequencing or following blocks waits for the response.
    Urgent,
    /// Only derivation waits for the response.
    Bulk,
}

/// Permits and the rate limit of one client and its clones.
pub(super) struct L1Gate {
    rate: Option<Mutex<RateLimit>>,
    /// Taken while a bulk request waits for the rate limit, so that bulk requests wait one after
    /// the other.
    bulk_rate: tokio::sync::Mutex<()>,
    requests: Semaphore,
    bulk: Semaphore,
    large: Semaphore,
}

/// Permission to send one request. Dropping it releases the permits.
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

    /// Waits until a request with `calls` calls may be sent. The permit that both classes share is
    /// acquired last, so that no request occupies it while it waits for the rate limit.
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

    /// Waits until a bulk request may have a response larger than [`USUAL_RESPONSE`].
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
    /// The calls are reserved and may be sent after this time.
    Send(Duration),
    /// The calls are not reserved; try again after this time.
    Retry(Duration),
}

/// Applies the rate limit to `calls` calls. Urgent calls are reserved at once, even ahead of time.
/// Bulk calls are not reserved ahead, since they would delay every later urgent call.
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
