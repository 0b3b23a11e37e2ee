//! Memory of requests and responses: the budgets of an endpoint, in KiB. Bytes count from their
//! arrival until the response has been sent, so slow senders and slow readers cannot use up the
//! memory.

use super::{
    error::{self, Reply, RpcError},
    schedule::Client,
};
use futures::{FutureExt, future::BoxFuture};
use std::sync::Arc;
use tokio::sync::{Mutex, MutexGuard, OwnedSemaphorePermit, Semaphore};

/// Maximum live subscriptions of one endpoint.
const ALL_SUBSCRIPTIONS: usize = 4096;

/// Limits of an endpoint on requests and responses, for one client.
#[derive(Clone, Debug)]
pub struct Allowance {
    /// Maximum calls in one batch.
    pub batch: usize,
    /// Maximum bytes of results in one batch. Every result after the one that exceeds this limit is
    /// replaced by an error.
    pub batch_response: usize,
    /// Free memory for requests, in KiB. A request holds permits while it arrives and while it is
    /// handled.
    requests: Arc<Semaphore>,
    most_requests: usize,
    /// Permit of the one request that may grow although no memory is free. Requests that each hold
    /// a part of the memory would otherwise wait for each other.
    exemption: Arc<Semaphore>,
    /// Free memory for responses, in KiB. A response holds permits until its reader has received
    /// it.
    responses: Arc<Semaphore>,
    /// Free response memory of the client's address, in KiB; `None` without a per-address limit.
    address_responses: Option<Arc<Semaphore>>,
    /// Permits of subscriptions, shared by all connections.
    subscriptions: Arc<Semaphore>,
    /// The client for which heavy calls are scheduled.
    pub(super) client: Client,
}

/// Memory of a response or of events, released when dropped.
pub type MemoryPermit = OwnedSemaphorePermit;

/// Memory of a request, released when dropped.
#[derive(Debug, Default)]
pub struct RequestMemory {
    /// Part of the memory that all requests share; `None` for a small request.
    shared: Option<MemoryPermit>,
    /// Permit to grow without further memory.
    exemption: Option<MemoryPermit>,
}

impl RequestMemory {
    pub fn merge(&mut self, more: Self) {
        if let Some(shared) = more.shared {
            merge(&mut self.shared, shared);
        }
        self.exemption = self.exemption.take().or(more.exemption);
    }

    fn kib(&self) -> usize {
        self.shared.as_ref().map_or(0, MemoryPermit::num_permits)
    }

    /// KiB of the memory that all requests share.
    #[cfg(test)]
    pub fn shared_kib(&self) -> usize {
        self.kib()
    }
}

/// Memory of a response or of an event, released when dropped.
#[derive(Debug)]
pub struct ResponseMemory {
    /// Part of the memory that all clients share.
    permit: MemoryPermit,
    /// Part of the memory of the client's address (a response) or connection (an event).
    client: Option<MemoryPermit>,
}

impl From<MemoryPermit> for ResponseMemory {
    /// Memory that is not charged to a client yet.
    fn from(permit: MemoryPermit) -> Self {
        let client = None;
        Self { permit, client }
    }
}

impl ResponseMemory {
    /// Takes out the memory of one event of a batch, in KiB; `None` for zero. The client's part of a
    /// batch that is larger than the client's limit is released last.
    pub fn split(&mut self, kib: usize) -> Option<Self> {
        let permit = self.permit.split(kib).filter(|_| kib > 0)?;
        let rest = self.permit.num_permits();
        let client = self.client.as_mut().and_then(|client| {
            let part = client.num_permits().saturating_sub(rest);
            client.split(part)
        });
        Some(Self { permit, client })
    }

    /// KiB of the memory that all clients share, and KiB that are charged to the client.
    #[cfg(test)]
    pub fn parts(&self) -> [usize; 2] {
        let client = self.client.as_ref();
        [
            self.permit.num_permits(),
            client.map_or(0, MemoryPermit::num_permits),
        ]
    }
}

/// Memory of one connection's events, from the moment at which a subscription reads a batch of them
/// until they have been sent. Events that hold no permit are not counted.
#[derive(Clone)]
pub struct EventMemory {
    free: Arc<Semaphore>,
    /// Lock of the subscription that reads a batch. With one reader at a time, only one batch can
    /// exceed its reservation and wait for more memory.
    reader: Arc<Mutex<()>>,
}

/// Maximum memory of one connection's waiting events, in KiB. A larger event or batch waits until
/// all earlier events are sent.
const CONNECTION_EVENTS: u32 = 1024;

impl Default for EventMemory {
    fn default() -> Self {
        Self {
            free: Arc::new(Semaphore::new(CONNECTION_EVENTS as usize)),
            reader: Arc::default(),
        }
    }
}

impl EventMemory {
    /// Waits until the connection has memory for an event, which holds `held`. An event of a batch
    /// is charged already.
    pub async fn admit(&self, mut held: ResponseMemory) -> ResponseMemory {
        if held.client.is_none() {
            held.client = self.take(held.permit.num_permits()).await;
        }
        held
    }

    /// Waits until the connection has `kib` KiB of memory for a batch of events, and until none of
    /// its other subscriptions reads a batch.
    pub async fn reserve(&self, kib: usize) -> BatchReservation<'_> {
        let reading = self.reader.lock().await;
        let reserved = self.take(kib).await;
        BatchReservation {
            memory: self,
            reserved,
            _reading: reading,
        }
    }

    async fn take(&self, kib: usize) -> Option<MemoryPermit> {
        let size = u32::try_from(kib).unwrap_or(u32::MAX);
        let taken = self.free.clone();
        let taken = taken.acquire_many_owned(size.min(CONNECTION_EVENTS));
        taken.await.ok()
    }
}

/// A connection's memory for the batch of events that one of its subscriptions reads.
pub struct BatchReservation<'a> {
    memory: &'a EventMemory,
    reserved: Option<MemoryPermit>,
    _reading: MutexGuard<'a, ()>,
}

impl BatchReservation<'_> {
    /// Charges the connection for the batch, which holds `permit`. A batch that is larger than the
    /// reservation waits for memory.
    pub async fn charge(self, permit: MemoryPermit) -> ResponseMemory {
        let size = permit.num_permits();
        let client = match self.reserved {
            Some(mut reserved) if reserved.num_permits() >= size => reserved.split(size),
            reserved => {
                // An event may wait for the memory of the reservation, and this batch behind it.
                drop(reserved);
                self.memory.take(size).await
            }
        };
        ResponseMemory { permit, client }
    }
}

/// Unit of the memory budgets. Smaller responses are not counted: the limit on connections bounds
/// their number.
pub const KIB: usize = 1024;
/// Largest request that is not counted, in bytes. If each of 10,000 connections has such a request,
/// they take 40 MB together.
pub const SMALL: usize = 4 * KIB;

/// Bytes of a result, or of the message and data of an error.
pub(super) fn weight(reply: &Reply) -> usize {
    match reply {
        Ok(result) => result.get().len(),
        Err(error) => error.message.len() + error.data.as_ref().map_or(0, |data| data.get().len()),
    }
}

impl Allowance {
    /// The limits of an endpoint, not yet for one client. `requests` and `responses` are in bytes.
    pub fn new(batch: usize, batch_response: usize, requests: usize, responses: usize) -> Self {
        let most = |bytes: usize| bytes.div_ceil(KIB).min(Semaphore::MAX_PERMITS);
        let memory = |bytes| Arc::new(Semaphore::new(most(bytes)));
        let most_requests = most(requests);
        let subscriptions = Arc::new(Semaphore::new(ALL_SUBSCRIPTIONS));
        let (requests, responses) = (memory(requests), memory(responses));
        let client = Client::Connection(0);
        Self {
            batch,
            batch_response,
            requests,
            most_requests,
            exemption: Arc::new(Semaphore::new(1)),
            responses,
            address_responses: None,
            subscriptions,
            client,
        }
    }

    /// These limits for one client. `address_responses` bounds the memory of all responses to the
    /// client's address, in KiB.
    pub fn of(&self, client: Client, address_responses: Option<Arc<Semaphore>>) -> Self {
        Self {
            client,
            address_responses,
            ..self.clone()
        }
    }

    /// Free memory for requests, in KiB.
    #[cfg(test)]
    pub fn free_requests(&self) -> usize {
        self.requests.available_permits()
    }

    /// A permit for one more subscription; `None` if all connections together have reached the
    /// limit.
    pub(super) fn subscribe(&self) -> Option<OwnedSemaphorePermit> {
        self.subscriptions.clone().try_acquire_owned().ok()
    }

    /// KiB that a request of `bytes` bytes needs in addition to those in `held`.
    fn missing(&self, bytes: usize, held: &RequestMemory) -> u32 {
        if bytes <= SMALL || held.exemption.is_some() {
            return 0;
        }
        let size = bytes.div_ceil(KIB).min(self.most_requests);
        u32::try_from(size.saturating_sub(held.kib())).unwrap_or(u32::MAX)
    }

    /// Reserves memory for a request, of which `bytes` bytes have arrived so far. Bytes that are
    /// announced but have not arrived take no memory. Returns the wait for the missing memory if it
    /// is not free.
    pub fn reserve(
        &self,
        bytes: usize,
        held: &mut RequestMemory,
    ) -> Option<BoxFuture<'static, RequestMemory>> {
        let missing = self.missing(bytes, held);
        if missing == 0 {
            return None;
        }
        let (requests, exemption) = (self.requests.clone(), self.exemption.clone());
        if let Ok(more) = requests.clone().try_acquire_many_owned(missing) {
            merge(&mut held.shared, more);
            return None;
        }
        let wait = async move {
            tokio::select! {
                biased;
                Ok(more) = requests.acquire_many_owned(missing) => RequestMemory {
                    shared: Some(more),
                    exemption: None,
                },
                Ok(permit) = exemption.acquire_owned() => RequestMemory {
                    shared: None,
                    exemption: Some(permit),
                },
                else => RequestMemory::default(),
            }
        };
        Some(wait.boxed())
    }

    /// Waits for memory for a request, of which `bytes` bytes have arrived so far.
    pub async fn admit(&self, bytes: usize, held: &mut RequestMemory) {
        if let Some(wait) = self.reserve(bytes, held) {
            held.merge(wait.await);
        }
    }

    /// Reserves memory for a response of `bytes` bytes in total. Returns an error if there is not
    /// enough memory, because a slow reader must not take the memory of others.
    pub(super) fn cover(
        &self,
        bytes: usize,
        held: &mut Option<ResponseMemory>,
    ) -> Result<(), RpcError> {
        let missing =
            (bytes / KIB).saturating_sub(held.as_ref().map_or(0, |held| held.permit.num_permits()));
        if missing == 0 {
            return Ok(());
        }
        let take = |from: &Arc<Semaphore>| {
            let permit = u32::try_from(missing)
                .ok()
                .and_then(|missing| from.clone().try_acquire_many_owned(missing).ok());
            let refused = "response too large: too many answers wait for their readers";
            permit.ok_or_else(|| RpcError::new(error::RESPONSE_TOO_LARGE, refused))
        };
        let address = self.address_responses.as_ref().map(take).transpose()?;
        let permit = take(&self.responses)?;
        match held {
            Some(held) => {
                held.permit.merge(permit);
                if let Some(more) = address {
                    merge(&mut held.client, more);
                }
            }
            None => {
                *held = Some(ResponseMemory {
                    permit,
                    client: address,
                })
            }
        }
        Ok(())
    }

    /// Reserves memory for one more result. Returns the result, or an error if there is not enough
    /// memory.
    pub(super) fn hold(&self, reply: Reply, held: &mut Option<ResponseMemory>) -> Reply {
        let before = held
            .as_ref()
            .map_or(0, |held| held.permit.num_permits() * KIB);
        self.cover(before + weight(&reply), held)?;
        reply
    }
}

/// Adds a permit to the one in `held`, if there is one.
fn merge(held: &mut Option<MemoryPermit>, more: MemoryPermit) {
    match held {
        Some(held) => held.merge(more),
        None => *held = Some(more),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::pin::pin;

    #[tokio::test]
    async fn requests_that_together_need_too_much_memory_end_one_after_the_other() {
        let all = Allowance::new(1, 1, 256 * KIB, 1);
        let [mut first, mut second, mut third] = <[RequestMemory; 3]>::default();
        all.admit(128 * KIB, &mut first).await;
        all.admit(128 * KIB, &mut second).await;
        assert_eq!(all.free_requests(), 0);
        // One of them grows to its end, whatever its size.
        all.admit(200 * KIB, &mut first).await;
        all.admit(10_000 * KIB, &mut first).await;
        all.admit(SMALL, &mut third).await;
        {
            let mut second = pin!(all.admit(200 * KIB, &mut second));
            let mut third = pin!(all.admit(100 * KIB, &mut third));
            assert!(futures::poll!(&mut second).is_pending());
            assert!(futures::poll!(&mut third).is_pending());
            drop(first);
            futures::join!(second, third);
        }
        drop((second, third));
        assert_eq!(all.free_requests(), 256);
        assert_eq!(all.exemption.available_permits(), 1);
    }
}
