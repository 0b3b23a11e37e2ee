//! The client of range sync: one stream carries one request.
//!
//! A peer can respond slowly, without end, or with garbage. Every frame has a deadline and a size
//! limit, a response has at most as many items as were requested, and decoding runs on a blocking
//! thread. The results are verified: headers link from the requested hash, blocks have the
//! requested hashes and the transactions of their headers.

use super::{Arrival, FetchError, HashLinks, PeerStatus, RangeRequest};
use crate::{
    host::streams::{Control, OpenError},
    types::Blocks,
};
use alloy_primitives::B256;
use futures::{AsyncReadExt, AsyncWriteExt};
use libp2p::{PeerId, Stream, StreamProtocol};
use starling_proto::{
    payload::{BlockId, Payload},
    wire::{self, Chunk, LENGTH, MAX_RESPONSE, RangeRefusal, ResponseBody},
};
use std::{io, sync::Arc, time::Duration};
use tokio::{
    sync::{Semaphore, mpsc},
    time::timeout,
};

const OPEN_TIMEOUT: Duration = Duration::from_secs(5);
/// Time limit for a whole frame of a response.
const FRAME_TIMEOUT: Duration = Duration::from_secs(10);
/// Largest size, in bytes, of a frame that needs no permit.
const SMALL: usize = 1 << 20;
/// Number of larger frames read at the same time.
const LARGE: usize = 4;
/// Number of chunks decoded at the same time.
const DECODING: usize = 4;

/// A part of the response to a range request.
pub enum RangeResponse {
    Links(HashLinks),
    Blocks(Vec<Arrival>),
    /// The end of the response.
    End(Result<(), FetchError>),
}

/// Requests ranges from peers that run this node. Clones share the permits.
#[derive(Clone)]
pub struct RangeClient {
    control: Control,
    protocol: StreamProtocol,
    chain_id: u64,
    genesis: B256,
    blocks: Arc<dyn Blocks>,
    large: Arc<Semaphore>,
    decoding: Arc<Semaphore>,
}

/// The channel for the parts of a response, with the id of the request.
pub struct ResponseSender {
    pub id: u64,
    pub responses: mpsc::Sender<(u64, RangeResponse)>,
}

impl ResponseSender {
    /// Sends a part of the response; `false` when the receiver has been dropped.
    async fn send(&self, response: RangeResponse) -> bool {
        self.responses.send((self.id, response)).await.is_ok()
    }
}

/// The id of the range sync protocol on this chain.
pub fn protocol(chain_id: u64) -> Option<StreamProtocol> {
    StreamProtocol::try_from_owned(wire::protocol_id(chain_id)).ok()
}

impl RangeClient {
    /// `None` if no valid protocol id can be made from the chain id.
    pub fn new(
        control: Control,
        chain_id: u64,
        genesis: B256,
        blocks: Arc<dyn Blocks>,
    ) -> Option<Self> {
        let protocol = protocol(chain_id)?;
        let [large, decoding] = [LARGE, DECODING].map(|permits| Arc::new(Semaphore::new(permits)));
        Some(Self {
            control,
            protocol,
            chain_id,
            genesis,
            blocks,
            large,
            decoding,
        })
    }

    /// The protocol that a peer must speak to get requests.
    pub fn protocol(&self) -> &StreamProtocol {
        &self.protocol
    }

    /// Requests the status of `peer`: the blocks that it claims to have.
    pub async fn status(self, peer: PeerId) -> Result<PeerStatus, FetchError> {
        let mut stream = self
            .open(peer, wire::RequestBody::Status(wire::StatusRequest {}))
            .await?;
        match self.frame(&mut stream).await? {
            Some(ResponseBody::Status(status)) => read_status(&status, self.chain_id, self.genesis),
            Some(answer) => Err(unexpected(&answer)),
            // A busy peer, or one that stops, ends the stream without a status.
            None => Err(FetchError::Unreachable),
        }
    }

    /// Sends a request, and then the parts of the response as they arrive. The last part is always
    /// [`RangeResponse::End`].
    pub async fn fetch(self, peer: PeerId, request: RangeRequest, responses: ResponseSender) {
        let outcome = match request {
            RangeRequest::Headers { from, count } => {
                self.headers(peer, from, count, &responses).await
            }
            RangeRequest::Bodies {
                first,
                hashes,
                max_bytes,
            } => {
                self.bodies(peer, first, hashes, max_bytes, &responses)
                    .await
            }
        };
        responses.send(RangeResponse::End(outcome)).await;
    }

    async fn headers(
        &self,
        peer: PeerId,
        from: BlockId,
        count: u32,
        responses: &ResponseSender,
    ) -> Result<(), FetchError> {
        let request = wire::HeadersRequest {
            number: from.number,
            hash: from.hash.to_vec(),
            count,
        };
        let mut stream = self.open(peer, wire::RequestBody::Headers(request)).await?;
        let (mut at, mut missing) = (from, count as usize);
        while missing > 0 {
            let Some(answer) = self.frame(&mut stream).await? else {
                break;
            };
            let ResponseBody::Headers(chunk) = answer else {
                return Err(unexpected(&answer));
            };
            let blocks = self.blocks.clone();
            let verify = move |chunk: Chunk| {
                let parents = verify_headers(&chunk, at, missing)?;
                Ok(HashLinks {
                    known: first_known(&parents, &*blocks),
                    parents,
                })
            };
            let links = self.decode(chunk, verify).await?;
            missing -= links.parents.len();
            at.number -= links.parents.len() as u64;
            at.hash = links.parents.last().copied().unwrap_or(at.hash);
            // Send each chunk at once: the rest of the request may be reassigned to another peer.
            if !responses.send(RangeResponse::Links(links)).await {
                break;
            }
        }
        // A busy peer ends the stream before the first item.
        if missing == count as usize {
            Err(FetchError::Unreachable)
        } else {
            Ok(())
        }
    }

    async fn bodies(
        &self,
        peer: PeerId,
        first: u64,
        hashes: Arc<[B256]>,
        max_bytes: u32,
        responses: &ResponseSender,
    ) -> Result<(), FetchError> {
        let Some(last_hash) = hashes.last().map(|hash| hash.to_vec()) else {
            return Ok(());
        };
        let request = wire::BodiesRequest {
            first,
            last: first + hashes.len() as u64 - 1,
            last_hash,
            max_bytes,
        };
        let mut stream = self.open(peer, wire::RequestBody::Bodies(request)).await?;
        let mut done = 0;
        while done < hashes.len() {
            let Some(answer) = self.frame(&mut stream).await? else {
                break;
            };
            let ResponseBody::Bodies(chunk) = answer else {
                return Err(unexpected(&answer));
            };
            let hashes = hashes.clone();
            let decoded = self
                .decode(chunk, move |chunk| {
                    verify_blocks(&chunk, first + done as u64, &hashes[done..])
                })
                .await?;
            done += decoded.len();
            let arrival = |payload| Arrival {
                payload: Arc::new(payload),
                from: Some(peer),
                known: false,
                parent_known: false,
            };
            let blocks = decoded.into_iter().map(arrival).collect();
            if !responses.send(RangeResponse::Blocks(blocks)).await {
                break;
            }
        }
        // A busy peer ends the stream before the first item.
        if done == 0 {
            Err(FetchError::Unreachable)
        } else {
            Ok(())
        }
    }

    async fn decode<T: Send + 'static>(
        &self,
        chunk: Chunk,
        verify: impl FnOnce(Chunk) -> Result<T, FetchError> + Send + 'static,
    ) -> Result<T, FetchError> {
        let permit = self
            .decoding
            .clone()
            .acquire_owned()
            .await
            .map_err(|_| FetchError::Unreachable)?;
        let verified = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            verify(chunk)
        });
        verified
            .await
            .unwrap_or_else(|_| Err(FetchError::Malformed("decoding panicked".into())))
    }

    async fn open(&self, peer: PeerId, request: wire::RequestBody) -> Result<Stream, FetchError> {
        let open = timeout(
            OPEN_TIMEOUT,
            self.control.open_stream(peer, self.protocol.clone()),
        );
        let mut stream = match open.await {
            Ok(Ok(stream)) => stream,
            Ok(Err(OpenError::Unsupported)) => return Err(FetchError::NotFound),
            Ok(Err(_)) => return Err(FetchError::Unreachable),
            Err(_) => return Err(FetchError::TimedOut),
        };
        let request = wire::frame(&wire::Request {
            body: Some(request),
        });
        let sent = timeout(OPEN_TIMEOUT, async {
            stream.write_all(&request).await?;
            stream.close().await
        });
        match sent.await {
            Ok(Ok(())) => Ok(stream),
            Ok(Err(_)) => Err(FetchError::Unreachable),
            Err(_) => Err(FetchError::TimedOut),
        }
    }

    /// Reads the next frame; `None` at the end of the response.
    async fn frame(&self, stream: &mut Stream) -> Result<Option<ResponseBody>, FetchError> {
        let bytes = match timeout(FRAME_TIMEOUT, read_frame(stream, &self.large)).await {
            Ok(Ok(Some(bytes))) => bytes,
            Ok(Ok(None)) => return Ok(None),
            Ok(Err(error)) if error.kind() == io::ErrorKind::InvalidData => {
                return Err(malformed(error));
            }
            Ok(Err(_)) => return Err(FetchError::Unreachable),
            Err(_) => return Err(FetchError::TimedOut),
        };
        decode_frame(bytes).map(Some)
    }
}

/// Decodes a frame of a response; a refusal is an error.
pub fn decode_frame(bytes: Vec<u8>) -> Result<ResponseBody, FetchError> {
    match wire::decode_response(bytes).map_err(malformed)? {
        ResponseBody::Refusal(code) if code == RangeRefusal::NotFound as u32 => {
            Err(FetchError::NotFound)
        }
        ResponseBody::Refusal(_) => Err(FetchError::Unreachable),
        answer => Ok(answer),
    }
}

/// Reads the status of a peer, which must be of this chain.
pub fn read_status(
    status: &wire::Status,
    chain_id: u64,
    genesis: B256,
) -> Result<PeerStatus, FetchError> {
    let read = || -> Result<_, wire::MessageError> {
        let id = |block: Option<wire::Block>| block.map(|block| block.id()).transpose();
        let head = id(status.head.clone())?.ok_or(wire::MessageError::NoHead)?;
        let said = PeerStatus {
            head,
            oldest: status.oldest,
            safe: id(status.safe.clone())?,
            finalized: id(status.finalized.clone())?,
        };
        Ok((said, wire::hash(&status.genesis_hash)?))
    };
    let (said, named) = read().map_err(malformed)?;
    // A peer of another chain commits no offence, but has no blocks for us.
    if (status.chain_id, named) != (chain_id, genesis) {
        Err(FetchError::NotFound)
    } else {
        Ok(said)
    }
}

async fn read_frame(stream: &mut Stream, large: &Semaphore) -> io::Result<Option<Vec<u8>>> {
    let mut length = [0; LENGTH];
    match stream.read(&mut length).await? {
        0 => return Ok(None),
        read => stream.read_exact(&mut length[read..]).await?,
    }
    let length = u32::from_le_bytes(length) as usize;
    if length > MAX_RESPONSE {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!("a frame of {length} bytes"),
        ));
    }
    let _permit = if length > SMALL {
        Some(large.acquire().await.map_err(io::Error::other)?)
    } else {
        None
    };
    // Allocate memory as it is filled, so that a false length costs nothing.
    let mut bytes = Vec::with_capacity(length.min(64 << 10));
    stream.take(length as u64).read_to_end(&mut bytes).await?;
    if bytes.len() < length {
        Err(io::ErrorKind::UnexpectedEof.into())
    } else {
        Ok(Some(bytes))
    }
}

fn malformed(error: impl ToString) -> FetchError {
    FetchError::Malformed(error.to_string())
}

pub fn unexpected(body: &ResponseBody) -> FetchError {
    let what = match body {
        ResponseBody::Status(_) => "a status",
        ResponseBody::Headers(_) => "headers",
        ResponseBody::Bodies(_) => "blocks",
        ResponseBody::Refusal(_) => "a refusal",
    };
    FetchError::Malformed(format!("{what} was not asked for"))
}

/// Verifies a chunk of headers from the block `at` downward. Returns the parent hashes that they
/// name.
pub fn verify_headers(
    chunk: &Chunk,
    mut at: BlockId,
    most: usize,
) -> Result<Vec<B256>, FetchError> {
    let items = chunk.items().map_err(malformed)?;
    if items.is_empty() || items.len() > most {
        return Err(FetchError::Malformed(format!(
            "{} headers, at most {most} were asked for",
            items.len()
        )));
    }
    let mut parents = Vec::with_capacity(items.len());
    for item in &items {
        let (hash, header) = wire::decode_header(item).map_err(malformed)?;
        if hash != at.hash {
            return Err(FetchError::False(format!(
                "asked for header {at}, it sent {} ({hash})",
                header.number
            )));
        }
        // A header with the trusted hash has the right number; no block is below genesis.
        let number = at
            .number
            .checked_sub(1)
            .filter(|_| header.number == at.number);
        let number =
            number.ok_or_else(|| FetchError::Malformed(format!("a header below block {at}")))?;
        at = BlockId {
            number,
            hash: header.parent_hash,
        };
        parents.push(header.parent_hash);
    }
    Ok(parents)
}

/// Decodes the blocks of a chunk, and verifies that they have these hashes.
pub fn verify_blocks(
    chunk: &Chunk,
    first: u64,
    hashes: &[B256],
) -> Result<Vec<Payload>, FetchError> {
    let items = chunk.items().map_err(malformed)?;
    if items.is_empty() || items.len() > hashes.len() {
        return Err(FetchError::Malformed(format!(
            "{} blocks, at most {} were asked for",
            items.len(),
            hashes.len()
        )));
    }
    let verify = |(index, item): (usize, &alloy_primitives::Bytes)| {
        let asked = BlockId {
            number: first + index as u64,
            hash: hashes[index],
        };
        let payload = wire::decode_block(item).map_err(|error| match error {
            wire::MessageError::TransactionsRoot { .. } => {
                FetchError::False(format!("asked for block {asked}: {error}"))
            }
            error => malformed(error),
        })?;
        if payload.hash == asked.hash {
            Ok(payload)
        } else {
            Err(FetchError::False(format!(
                "asked for block {asked}, it sent {}",
                payload.id()
            )))
        }
    };
    items.iter().enumerate().map(verify).collect()
}

/// Index of the highest of these ancestors that the chain has. A chain that has a block also has
/// all blocks below it.
pub fn first_known(parents: &[B256], blocks: &dyn Blocks) -> Option<usize> {
    if !parents.last().is_some_and(|lowest| blocks.knows(*lowest)) {
        return None;
    }
    Some(parents.partition_point(|parent| !blocks.knows(*parent)))
}
