//! Serves the part of the Beacon API that rollup nodes need to read blobs from an L1 of our own:
//!
//! - `/eth/v1/node/version`
//! - `/eth/v1/beacon/genesis`
//! - `/eth/v1/config/spec`
//! - `/eth/v1/beacon/blobs/{slot}?versioned_hashes=`
//! - `/eth/v1/beacon/blob_sidecars/{slot}?indices=`, for clients that know only this older path
//!
//! No beacon chain is behind this API: a slot is a span of block time, and the blobs are those that
//! the chain stores for the blocks that it built. Connections and blob reads are bounded.

mod responses;
#[cfg(test)]
mod tests;

use crate::{
    chain::{Chain, ChainError},
    rollup::beacon::SlotClock,
};
use http::{HeaderValue, Method, header::CONTENT_TYPE};
use http_body_util::Full;
use hyper::{Request, Response, StatusCode, body::Bytes, body::Incoming, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use responses::Refusal;
use std::{convert::Infallible, io, net::SocketAddr, sync::Arc, time::Duration};
use tokio::{net::TcpListener, sync::Semaphore, task::JoinSet, time::timeout};
use tokio_util::sync::CancellationToken;

/// Connections served at once. Further connections wait in the listener's queue.
const MAX_CONNECTIONS: usize = 64;
/// Blob requests served at once. A response with 21 blobs takes 8 MB of memory.
const MAX_READS: usize = 4;
/// Timeout of a connection, over all its requests.
const TIME_LIMIT: Duration = Duration::from_secs(60);

/// A Beacon API server with a bound listener.
pub struct BeaconServer {
    listener: TcpListener,
    address: SocketAddr,
    state: Arc<BeaconState>,
}

/// State shared by all connections: the chain, its slots, and the limit of blob reads.
struct BeaconState {
    chain: Chain,
    clock: SlotClock,
    reads: Semaphore,
}

impl BeaconServer {
    /// Binds the server. Slot 0 begins at the time of the genesis block. A slot lasts
    /// `seconds_per_slot`, which must not be zero. With one-second slots no two blocks share a
    /// slot; a longer slot serves the blobs of all its blocks.
    pub async fn bind(
        address: SocketAddr,
        chain: Chain,
        seconds_per_slot: u64,
    ) -> io::Result<Self> {
        let listener = TcpListener::bind(address).await?;
        let clock = SlotClock {
            genesis_time: chain.spec().genesis_time,
            seconds_per_slot,
        };
        Ok(Self {
            address: listener.local_addr()?,
            listener,
            state: Arc::new(BeaconState {
                chain,
                clock,
                reads: Semaphore::new(MAX_READS),
            }),
        })
    }

    /// The address on which the server listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves requests until the token is cancelled.
    pub async fn run(self, token: CancellationToken) {
        let mut connections = JoinSet::new();
        loop {
            tokio::select! {
                () = token.cancelled() => return,
                Some(_) = connections.join_next() => {}
                accepted = self.listener.accept(), if connections.len() < MAX_CONNECTIONS => match accepted {
                    Ok((stream, _)) => {
                        let state = self.state.clone();
                        let service = service_fn(move |request| respond(state.clone(), request));
                        let connection = hyper::server::conn::http1::Builder::new()
                            .timer(TokioTimer::new())
                            .serve_connection(TokioIo::new(stream), service);
                        connections.spawn(async move {
                            // A client's disconnect or timeout is not worth a log line.
                            let _ = timeout(TIME_LIMIT, connection).await;
                        });
                    }
                    // `accept` also fails while no file descriptor is free: pause before the next
                    // attempt.
                    Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
                },
            }
        }
    }
}

async fn respond(
    state: Arc<BeaconState>,
    request: Request<Incoming>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let (status, body) = match find(state, &request).await {
        Ok(body) => (StatusCode::OK, body),
        Err(refusal) => (refusal.status(), refusal.body()),
    };
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    let json = HeaderValue::from_static("application/json");
    response.headers_mut().insert(CONTENT_TYPE, json);
    Ok(response)
}

async fn find(state: Arc<BeaconState>, request: &Request<Incoming>) -> Result<Vec<u8>, Refusal> {
    if request.method() != Method::GET {
        return Err(Refusal::Method);
    }
    let path = request.uri().path();
    if let Some(answer) = responses::of_chain(path, state.chain.spec(), &state.clock) {
        return Ok(answer);
    }
    let wanted = responses::BlobRequest::parse(path, request.uri().query().unwrap_or_default())?;
    let _permit = state.reads.acquire().await;
    let reader = state.clone();
    tokio::task::spawn_blocking(move || responses::blobs(&reader.chain, &reader.clock, &wanted))
        .await
        .map_err(|_| Refusal::Failed(ChainError::Stopped))?
}
