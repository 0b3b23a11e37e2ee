//! The client of `payload_by_number`: one stream requests one block.
//!
//! A peer can respond slowly, with too much, or with garbage. Each step has a deadline, large
//! responses share [`LARGE`] permits, and decoding runs on a blocking thread. A block is checked
//! for its number and its own hash; the gap decides whether it is the block that is missing.

use super::{Arrival, ClientEvent, FetchError};
use crate::{
    host::streams::{Control, OpenError},
    metrics::{self as meters, Side},
    types::Blocks,
};
use futures::{AsyncReadExt, AsyncWriteExt};
use libp2p::{PeerId, Stream, StreamProtocol};
use starling_proto::reqresp::{self, MAX_RESPONSE_LEN, NumberRefusal, ResponseError};
use std::{
    collections::HashMap,
    io,
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::{
    sync::Semaphore,
    task::{Id, JoinSet},
    time::timeout,
};

const OPEN_TIMEOUT: Duration = Duration::from_secs(5);
/// Time limit of a whole request and response on an open stream.
const EXCHANGE_TIMEOUT: Duration = Duration::from_secs(10);
/// Largest size, in bytes, of a response that needs no permit.
const SMALL: u64 = 512 << 10;
/// Number of larger responses read at the same time: with 64 requests in flight, at most 32 MiB of
/// small and 40 MiB of large buffers.
const LARGE: usize = 4;

/// The ids of the protocol on this chain: first the spelling that the network uses, then the
/// spelling of the specs, which ends in a slash.
pub fn protocols(chain_id: u64) -> Vec<StreamProtocol> {
    reqresp::protocol_ids(chain_id)
        .into_iter()
        .filter_map(|id| StreamProtocol::try_from_owned(id).ok())
        .collect()
}

/// Requests single blocks from peers. Clones share the permits.
#[derive(Clone)]
pub struct NumberClient {
    control: Control,
    protocols: Vec<StreamProtocol>,
    blocks: Arc<dyn Blocks>,
    large: Arc<Semaphore>,
}

impl NumberClient {
    pub fn new(control: Control, chain_id: u64, blocks: Arc<dyn Blocks>) -> Self {
        Self {
            control,
            protocols: protocols(chain_id),
            blocks,
            large: Arc::new(Semaphore::new(LARGE)),
        }
    }

    /// Fetches the block of this number from `peer`.
    pub async fn fetch(self, peer: PeerId, number: u64) -> Result<Arrival, FetchError> {
        let stream = self.open(peer).await?;
        let response = timeout(EXCHANGE_TIMEOUT, exchange(stream, number, &self.large)).await;
        let bytes = match response {
            Ok(Ok(bytes)) => bytes,
            Ok(Err(error)) => {
                tracing::debug!(%peer, number, %error, "request failed");
                return Err(FetchError::Unreachable);
            }
            Err(_) => return Err(FetchError::TimedOut),
        };
        let blocks = self.blocks;
        let decoded =
            tokio::task::spawn_blocking(move || decode(&bytes, peer, number, &*blocks)).await;
        decoded.unwrap_or_else(|_| Err(FetchError::Malformed("decoding panicked".into())))
    }

    async fn open(&self, peer: PeerId) -> Result<Stream, FetchError> {
        for protocol in self.protocols.clone() {
            match timeout(OPEN_TIMEOUT, self.control.open_stream(peer, protocol)).await {
                Ok(Ok(stream)) => return Ok(stream),
                Ok(Err(OpenError::Unsupported)) => continue,
                Ok(Err(_)) => return Err(FetchError::Unreachable),
                Err(_) => return Err(FetchError::TimedOut),
            }
        }
        Err(FetchError::Unsupported)
    }
}

/// One request by number in flight.
struct NumberRequest {
    id: u64,
    since: Instant,
    peer: PeerId,
    number: u64,
}

/// All requests by number in flight.
pub struct NumberTasks {
    client: NumberClient,
    tasks: JoinSet<Result<Arrival, FetchError>>,
    in_flight: HashMap<Id, NumberRequest>,
}

impl NumberTasks {
    pub fn new(client: NumberClient) -> Self {
        Self {
            client,
            tasks: JoinSet::new(),
            in_flight: HashMap::new(),
        }
    }

    pub fn fetch(&mut self, id: u64, peer: PeerId, number: u64) {
        let task = self.tasks.spawn(self.client.clone().fetch(peer, number));
        let request = NumberRequest {
            id,
            since: Instant::now(),
            peer,
            number,
        };
        self.in_flight.insert(task.id(), request);
    }

    /// The result of the next request that ends; pends while no request is in flight.
    pub async fn next(&mut self) -> ClientEvent {
        loop {
            let (task, outcome) = match self.tasks.join_next_with_id().await {
                Some(Ok((task, outcome))) => (task, outcome),
                Some(Err(error)) => (error.id(), Err(FetchError::Unreachable)),
                None => std::future::pending().await,
            };
            if let Some(request) = self.in_flight.remove(&task) {
                return request.end(outcome);
            }
        }
    }
}

impl NumberRequest {
    /// Counts the result of the request, and returns it as an event.
    fn end(self, outcome: Result<Arrival, FetchError>) -> ClientEvent {
        let result = outcome.as_ref().map_or_else(FetchError::label, |_| "ok");
        metrics::counter!("starling_p2p_fetch_total", "result" => result).increment(1);
        // Map errors to the result codes of `payload_by_number`.
        let code = match &outcome {
            Ok(_) => 0,
            Err(FetchError::NotFound) => 1,
            Err(_) => 3,
        };
        meters::request(Side::Client, self.number, code, self.since.elapsed());
        ClientEvent::Fetched {
            id: self.id,
            peer: self.peer,
            number: self.number,
            outcome,
        }
    }
}

async fn exchange(mut stream: Stream, number: u64, large: &Semaphore) -> io::Result<Vec<u8>> {
    stream.write_all(&reqresp::encode_request(number)).await?;
    stream.close().await?;
    let mut bytes = Vec::new();
    (&mut stream).take(SMALL).read_to_end(&mut bytes).await?;
    if bytes.len() as u64 == SMALL {
        let _permit = large.acquire().await.map_err(io::Error::other)?;
        stream
            .take(MAX_RESPONSE_LEN as u64 + 1 - SMALL)
            .read_to_end(&mut bytes)
            .await?;
    }
    Ok(bytes)
}

/// Decodes a response and checks the number of its block.
pub fn decode(
    bytes: &[u8],
    peer: PeerId,
    number: u64,
    blocks: &dyn Blocks,
) -> Result<Arrival, FetchError> {
    let malformed = |error: &dyn std::fmt::Display| {
        tracing::debug!(%peer, number, %error, "response is not a payload");
        FetchError::Malformed(error.to_string())
    };
    let wire = reqresp::decode_response(bytes).map_err(|error| match error {
        ResponseError::Refused(NumberRefusal::NotFound | NumberRefusal::InvalidRequest) => {
            FetchError::NotFound
        }
        ResponseError::Refused(NumberRefusal::Other(_)) => FetchError::TimedOut,
        // A busy peer drops the stream, which is no offence.
        ResponseError::Truncated(0) => FetchError::Unreachable,
        error => malformed(&error),
    })?;
    let payload = wire.into_payload().map_err(|error| malformed(&error))?;
    if payload.number() != number {
        return Err(malformed(&format_args!(
            "block {} was not asked for",
            payload.number()
        )));
    }
    Ok(Arrival::of(payload, Some(peer), blocks))
}
