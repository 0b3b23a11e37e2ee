//! `payload_by_number`, the asking side: one stream for one block.
//!
//! A peer can answer slowly, with too much, or with nonsense. Each step has a deadline, large answers share [`LARGE`] permits, and
//! decoding runs on a blocking thread. What comes back is checked for its number and its own hash; that it is the block we want is
//! for `sync.rs` to say.

use crate::{
    handle::Blocks,
    streams::{Control, OpenError},
    sync::{Arrival, Failure},
};
use futures::{AsyncReadExt, AsyncWriteExt};
use libp2p::{PeerId, Stream, StreamProtocol};
use starling_proto::reqresp::{self, MAX_RESPONSE_LEN, Refusal, ResponseError};
use std::{io, sync::Arc, time::Duration};
use tokio::{sync::Semaphore, time::timeout};

const OPEN_TIMEOUT: Duration = Duration::from_secs(5);
/// For a whole exchange on an open stream.
const EXCHANGE_TIMEOUT: Duration = Duration::from_secs(10);
/// An answer up to this size needs no permit.
const SMALL: u64 = 512 << 10;
/// Larger answers read at the same time: with 64 requests in the air at most 32 MiB of small and 40 MiB of large buffers.
const LARGE: usize = 4;

/// The protocol ids of the chain: the spelling of the network first, that of the specs (with a slash at its end) second.
pub fn protocols(chain_id: u64) -> Vec<StreamProtocol> {
    reqresp::protocol_ids(chain_id)
        .into_iter()
        .filter_map(|id| StreamProtocol::try_from_owned(id).ok())
        .collect()
}

/// Asks peers for blocks. Clones share the permits.
#[derive(Clone)]
pub struct Client {
    control: Control,
    protocols: Vec<StreamProtocol>,
    blocks: Arc<dyn Blocks>,
    large: Arc<Semaphore>,
}

impl Client {
    pub fn new(control: Control, chain_id: u64, blocks: Arc<dyn Blocks>) -> Self {
        Self {
            control,
            protocols: protocols(chain_id),
            blocks,
            large: Arc::new(Semaphore::new(LARGE)),
        }
    }

    /// The block of this number as `peer` has it.
    pub async fn fetch(self, peer: PeerId, number: u64) -> Result<Arrival, Failure> {
        let stream = self.open(peer).await?;
        let response = timeout(EXCHANGE_TIMEOUT, exchange(stream, number, &self.large)).await;
        let bytes = match response {
            Ok(Ok(bytes)) => bytes,
            Ok(Err(error)) => {
                tracing::debug!(%peer, number, %error, "request failed");
                return Err(Failure::Unreachable);
            }
            Err(_) => return Err(Failure::NoAnswer),
        };
        let blocks = self.blocks;
        let decoded =
            tokio::task::spawn_blocking(move || decode(&bytes, peer, number, &*blocks)).await;
        decoded.unwrap_or(Err(Failure::Malformed))
    }

    async fn open(&self, peer: PeerId) -> Result<Stream, Failure> {
        for protocol in self.protocols.clone() {
            match timeout(OPEN_TIMEOUT, self.control.open_stream(peer, protocol)).await {
                Ok(Ok(stream)) => return Ok(stream),
                Ok(Err(OpenError::Unsupported)) => continue,
                Ok(Err(_)) => return Err(Failure::Unreachable),
                Err(_) => return Err(Failure::NoAnswer),
            }
        }
        Err(Failure::Unsupported)
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

fn decode(
    bytes: &[u8],
    peer: PeerId,
    number: u64,
    blocks: &dyn Blocks,
) -> Result<Arrival, Failure> {
    let malformed = |error: &dyn std::fmt::Display| {
        tracing::debug!(%peer, number, %error, "response is no payload");
        Failure::Malformed
    };
    let wire = reqresp::decode_response(bytes).map_err(|error| match error {
        ResponseError::Refused(Refusal::NotFound | Refusal::InvalidRequest) => Failure::NotFound,
        ResponseError::Refused(Refusal::Other(_)) => Failure::NoAnswer,
        // It dropped the stream, as a busy peer does: not a fault.
        ResponseError::Truncated(0) => Failure::Unreachable,
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
