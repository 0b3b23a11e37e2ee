//! Memory of requests and responses: the budgets of an endpoint, in KiB. Bytes count from their
//! arrival until the response has been sent, so slow senders and slow readers cannot use up the
//! memory.

use super::{
    error::{self, Reply, RpcError},
    schedule::Client,
};
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
    /// Free memory for requests, in KiB. A request holds permits while it is handled.
    requests: Arc<Semaphore>,
    most_requests: usize,
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

/// Memory of a request, released when dropped.
pub type MemoryPermit = OwnedSemaphorePermit;

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

    /// The budget for the memory of requests, in KiB.
    pub fn requests(&self) -> Arc<Semaphore> {
        self.requests.clone()
    }

    /// A permit for one more subscription; `None` if all connections together have reached the
    /// limit.
    pub(super) fn subscribe(&self) -> Option<OwnedSemaphorePermit> {
        self.subscriptions.clone().try_acquire_owned().ok()
    }

    /// KiB that a request of `bytes` bytes needs in addition to those in `held`.
    pub fn missing(&self, bytes: usize, held: Option<&MemoryPermit>) -> u32 {
        let size = if bytes <= SMALL {
            0
        } else {
            bytes.div_ceil(KIB).min(self.most_requests)
        };
        u32::try_from(size.saturating_sub(held.map_or(0, MemoryPermit::num_permits)))
            .unwrap_or(u32::MAX)
    }

    /// Waits for memory for a request, of which `bytes` bytes have arrived so far. Bytes that are
    /// announced but have not arrived take no memory.
    pub async fn admit(&self, bytes: usize, held: &mut Option<MemoryPermit>) {
        let missing = self.missing(bytes, held.as_ref());
        if missing > 0
            && let Ok(more) = self.requests.clone().acquire_many_owned(missing).await
        {
            merge(held, more);
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
pub fn merge(held: &mut Option<MemoryPermit>, more: MemoryPermit) {
    match held {
        Some(held) => held.merge(more),
        None => *held = Some(more),
    }
}
