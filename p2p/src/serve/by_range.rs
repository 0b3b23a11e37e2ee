//! The server of range sync: statuses, headers and blocks, over the protocol of
//! `starling_proto::wire`.
//!
//! Overload: peers that request more than the disk can read, peers that do not read their
//! responses, and large numbers of both. The quota bounds the streams and the large chunks in
//! memory. Each chunk waits for a permit to read and pack it, and then for its peer's budget of
//! bytes. A large chunk acquires its peer's own permit before one of the total, so a peer that does
//! not read cannot exhaust the permits of others. While one chunk is written, the next is made.
//! Reading and writing have deadlines, shorter ones while a permit for a large chunk is held, and a
//! peer that does not read is penalized. A chunk contains blocks of one branch: a reorg during its
//! read ends the response.

use super::{
    SwarmView, accept_streams,
    bucket::TokenRate,
    quota::{HeldPermits, Quota, QuotaCapacity, QuotaLimits, Requester},
};
use crate::{
    host::streams::Incoming,
    types::{Blocks, ChainHeads},
};
use futures::{AsyncReadExt, AsyncWrite, AsyncWriteExt};
use libp2p::Stream;
use starling_proto::{
    payload::BlockId,
    wire::{
        self, ChunkBuilder, LENGTH, MAX_BODIES, MAX_CHUNK, MAX_HEADERS, MAX_REQUEST, RangeRefusal,
        RequestBody, ResponseBody,
    },
};
use std::{
    io,
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::{
    sync::{Semaphore, mpsc, watch},
    time::timeout,
};

const READ_TIMEOUT: Duration = Duration::from_secs(10);
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);
/// Write deadline for each part of a large chunk; a part is as large as a small chunk. The deadline
/// is short, because other requests wait for the large chunk's permit.
const LARGE_STALL: Duration = Duration::from_secs(2);
/// Largest numbers of open streams. A peer that runs this node has at most four.
const STREAMS: QuotaCapacity = QuotaCapacity {
    peer: 6,
    address: Some(24),
    total: 64,
};
/// Largest numbers of large chunks in memory.
const LARGE: QuotaCapacity = QuotaCapacity {
    peer: 2,
    address: None,
    total: 6,
};
/// Number of chunks that are read and packed at the same time.
const READING: usize = 4;
/// Approximate size of a chunk in bytes before it is packed: small enough that a lost chunk costs
/// little, and large enough to compress well.
const CHUNK: usize = 256 << 10;
/// Size in bytes, before packing, above which a chunk is large. A large chunk needs a permit before
/// it is made, and keeps the permit until it is written.
const SMALL_CHUNK: usize = 2 * CHUNK;
const COUNTER: &str = "starling_p2p_range_serve_total";

/// The rules by which requests are answered. Pure, apart from the reads of the chain.
pub struct RangeRules {
    pub chain_id: u64,
    pub genesis: BlockId,
    pub blocks: Arc<dyn Blocks>,
}

/// The server of range sync.
pub struct RangeServer {
    rules: Arc<RangeRules>,
    heads: watch::Receiver<ChainHeads>,
    /// Quota of streams, of large chunks, and of one peer's bytes per second. A token of a peer's
    /// bucket is one KiB.
    quota: Arc<Quota>,
    reading: Arc<Semaphore>,
}

/// The kind of a request.
enum RangeRequestKind {
    Status,
    Range(Unsent),
    Invalid,
}

/// The part of a response that has not been made yet.
#[derive(Clone, Copy)]
enum Unsent {
    Headers {
        from: BlockId,
        count: u64,
    },
    Bodies {
        next: u64,
        last: BlockId,
        bytes: usize,
    },
}

/// A framed chunk and the part of the response after it; `None` if nothing is left to send.
type PackedChunk = Option<(Vec<u8>, Unsent)>;

/// The next block would make a large chunk, which needs a permit.
struct NeedsLargePermit;

impl RangeServer {
    /// `rate`: largest number of bytes per second that one peer is served.
    pub fn new(
        chain_id: u64,
        genesis: BlockId,
        blocks: Arc<dyn Blocks>,
        heads: watch::Receiver<ChainHeads>,
        swarm: SwarmView,
        rate: u32,
    ) -> Self {
        let rate = (rate >> 10).max(1);
        let limits = QuotaLimits {
            streams: STREAMS,
            responses: LARGE,
            rate: TokenRate { rate, burst: rate },
        };
        let rules = RangeRules {
            chain_id,
            genesis,
            blocks,
        };
        Self {
            rules: Arc::new(rules),
            heads,
            quota: Arc::new(Quota::new(limits, swarm)),
            reading: Arc::new(Semaphore::new(READING)),
        }
    }

    /// Serves streams until the swarm has ended.
    pub async fn run(self: Arc<Self>, incoming: mpsc::Receiver<Incoming>) {
        let quota = self.quota.clone();
        let serve = move |requester, stream| self.clone().serve(requester, stream);
        accept_streams(quota, COUNTER, incoming, serve).await;
    }

    async fn serve(self: Arc<Self>, requester: Requester, mut stream: Stream) -> io::Result<()> {
        let request = timeout(READ_TIMEOUT, read_request(&mut stream)).await??;
        let unsent = match self.rules.read_request(&request) {
            RangeRequestKind::Range(unsent) => unsent,
            RangeRequestKind::Status => {
                let (rules, heads) = (self.rules.clone(), *self.heads.borrow());
                let status = tokio::task::spawn_blocking(move || rules.status(heads))
                    .await
                    .map_err(io::Error::other)?;
                return write_last(&mut stream, &frame(ResponseBody::Status(status))).await;
            }
            RangeRequestKind::Invalid => return refuse(&mut stream, RangeRefusal::Invalid).await,
        };
        let mut made = self.make(&requester, unsent).await?;
        if made.0.is_none() {
            return refuse(&mut stream, RangeRefusal::NotFound).await;
        }
        while let (Some((bytes, left)), permits) = made {
            let next = self.make(&requester, left);
            // Release the permits as soon as the large chunk is written, even if the next chunk is
            // still being made.
            let written = write_chunk(&mut stream, &bytes, permits);
            let (written, next) = tokio::join!(written, next);
            written?;
            made = next?;
        }
        metrics::counter!(COUNTER, "result" => "ok").increment(1);
        timeout(WRITE_TIMEOUT, stream.close()).await?
    }

    /// Makes the next chunk, and acquires permits if it is large. Returns the chunk when the peer's
    /// budget of bytes allows it.
    async fn make(
        self: &Arc<Self>,
        requester: &Requester,
        unsent: Unsent,
    ) -> io::Result<(PackedChunk, Option<HeldPermits>)> {
        if unsent.is_empty() {
            return Ok((None, None));
        }
        let mut permits = None;
        let packed = loop {
            match self.read(unsent, permits.is_some()).await? {
                Ok(packed) => break packed,
                // No chunk is in memory during this wait. The peer's own permit is acquired first,
                // so a peer that does not read holds no permit of the total while it waits.
                Err(NeedsLargePermit) => {
                    let held = requester.response_permits().await;
                    permits = Some(held.map_err(io::Error::other)?);
                }
            }
        };
        let size = packed.as_ref().map_or(0, |(bytes, _)| bytes.len());
        let wait = requester
            .tokens()
            .lock()
            .take_many((size >> 10) as u32, Instant::now());
        // Skip a wait of zero: even that would take a timer step of a millisecond, in which a chunk
        // can be made.
        if !wait.is_zero() {
            tokio::time::sleep(wait).await;
        }
        Ok((packed, permits))
    }

    async fn read(
        self: &Arc<Self>,
        unsent: Unsent,
        large: bool,
    ) -> io::Result<Result<PackedChunk, NeedsLargePermit>> {
        let reading = self
            .reading
            .clone()
            .acquire_owned()
            .await
            .map_err(io::Error::other)?;
        let rules = self.rules.clone();
        let packed = tokio::task::spawn_blocking(move || {
            let _reading = reading;
            rules.pack(unsent, large)
        });
        packed.await.map_err(io::Error::other)
    }
}

impl RangeRules {
    /// The frames of the whole response to a request, for a world without streams and permits.
    pub fn respond(&self, request: &[u8], heads: ChainHeads) -> Vec<Vec<u8>> {
        let refusal = |refusal: RangeRefusal| vec![frame(ResponseBody::Refusal(refusal as u32))];
        let mut unsent = match self.read_request(request) {
            RangeRequestKind::Status => {
                return vec![frame(ResponseBody::Status(self.status(heads)))];
            }
            RangeRequestKind::Invalid => return refusal(RangeRefusal::Invalid),
            RangeRequestKind::Range(unsent) => unsent,
        };
        let mut frames = Vec::new();
        while !unsent.is_empty()
            && let Ok(Some((bytes, left))) = self.pack(unsent, true)
        {
            frames.push(bytes);
            unsent = left;
        }
        if frames.is_empty() {
            refusal(RangeRefusal::NotFound)
        } else {
            frames
        }
    }

    fn read_request(&self, request: &[u8]) -> RangeRequestKind {
        let unsent = match wire::decode_request(request) {
            Ok(RequestBody::Status(_)) => return RangeRequestKind::Status,
            Ok(RequestBody::Headers(request)) => headers(&request, self.genesis.number),
            Ok(RequestBody::Bodies(request)) => bodies(&request),
            Err(_) => None,
        };
        unsent.map_or(RangeRequestKind::Invalid, RangeRequestKind::Range)
    }

    fn status(&self, heads: ChainHeads) -> wire::Status {
        let safe =
            Some(heads.safe).filter(|safe| *safe != self.genesis && *safe != BlockId::default());
        let finalized = self
            .blocks
            .finalized()
            .filter(|finalized| *finalized != self.genesis);
        let head = if heads.head == BlockId::default() {
            self.genesis
        } else {
            heads.head
        };
        wire::Status {
            chain_id: self.chain_id,
            genesis_hash: self.genesis.hash.to_vec(),
            head: Some(head.into()),
            // The genesis block is not served, since every peer has it.
            oldest: self
                .blocks
                .oldest()
                .max(self.genesis.number.saturating_add(1)),
            safe: safe.map(Into::into),
            finalized: finalized.map(Into::into),
        }
    }

    /// Makes the next chunk. A large chunk is made only if `large` is set.
    fn pack(&self, unsent: Unsent, large: bool) -> Result<PackedChunk, NeedsLargePermit> {
        let mut chunk = ChunkBuilder::with_capacity(CHUNK + CHUNK / 4);
        let (unsent, kind): (Option<Unsent>, fn(wire::Chunk) -> ResponseBody) = match unsent {
            Unsent::Headers { from, count } => (
                Some(self.pack_headers(from, count, &mut chunk)),
                ResponseBody::Headers,
            ),
            Unsent::Bodies { next, last, bytes } => (
                self.pack_bodies(next, last, bytes, large, &mut chunk)?,
                ResponseBody::Bodies,
            ),
        };
        if chunk.is_empty() {
            return Ok(None);
        }
        Ok(unsent.and_then(|unsent| Some((frame(kind(chunk.finish().ok()?)), unsent))))
    }

    fn pack_headers(&self, from: BlockId, count: u64, chunk: &mut ChunkBuilder) -> Unsent {
        let (mut left, mut next) = (count, None);
        self.blocks.headers(from, &mut |header| {
            chunk.push(&[header]);
            left -= 1;
            next = wire::parent_hash(header);
            left > 0 && next.is_some() && chunk.len() < CHUNK
        });
        match next {
            Some(hash) => Unsent::Headers {
                from: BlockId {
                    number: from.number.saturating_sub(count - left),
                    hash,
                },
                count: left,
            },
            None => Unsent::Headers { from, count: 0 },
        }
    }

    /// Packs the blocks from `next` on; `None` if `last` is not on our canonical chain, or if
    /// genesis is requested.
    fn pack_bodies(
        &self,
        mut next: u64,
        last: BlockId,
        mut bytes: usize,
        large: bool,
        chunk: &mut ChunkBuilder,
    ) -> Result<Option<Unsent>, NeedsLargePermit> {
        if next <= self.genesis.number {
            return Ok(None);
        }
        let (most, mut needs_permit) = (if large { MAX_CHUNK } else { SMALL_CHUNK }, false);
        let canonical = self.blocks.bodies(next, last, &mut |header, transactions| {
            let size = LENGTH + header.len() + transactions.len();
            // A block larger than a small chunk becomes a chunk of its own.
            if size > MAX_CHUNK || chunk.len() + size > most {
                needs_permit = size <= MAX_CHUNK && chunk.is_empty();
                return false;
            }
            chunk.push(&[header, transactions]);
            bytes = bytes.saturating_sub(size);
            next += 1;
            chunk.len() < CHUNK && bytes > 0
        });
        if canonical && needs_permit {
            return Err(NeedsLargePermit);
        }
        Ok(canonical.then_some(Unsent::Bodies { next, last, bytes }))
    }
}

impl Unsent {
    fn is_empty(&self) -> bool {
        match self {
            Unsent::Headers { count, .. } => *count == 0,
            Unsent::Bodies {
                next, last, bytes, ..
            } => *next > last.number || *bytes == 0,
        }
    }
}

fn headers(request: &wire::HeadersRequest, genesis: u64) -> Option<Unsent> {
    let from = BlockId {
        number: request.number,
        hash: wire::hash(&request.hash).ok()?,
    };
    let count = u64::from(request.count).min(request.number.saturating_sub(genesis));
    (1..=MAX_HEADERS)
        .contains(&request.count)
        .then_some(Unsent::Headers { from, count })
}

fn bodies(request: &wire::BodiesRequest) -> Option<Unsent> {
    let last = BlockId {
        number: request.last,
        hash: wire::hash(&request.last_hash).ok()?,
    };
    let count = request.last.checked_sub(request.first)?.checked_add(1)?;
    let bytes = (request.max_bytes as usize).clamp(1, MAX_CHUNK);
    (count <= MAX_BODIES).then_some(Unsent::Bodies {
        next: request.first,
        last,
        bytes,
    })
}

fn frame(body: ResponseBody) -> Vec<u8> {
    wire::frame(&wire::Response { body: Some(body) })
}

async fn read_request(stream: &mut Stream) -> io::Result<Vec<u8>> {
    let mut length = [0; LENGTH];
    stream.read_exact(&mut length).await?;
    let length = u32::from_le_bytes(length) as usize;
    if length > MAX_REQUEST {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!("a request of {length} bytes"),
        ));
    }
    let mut request = vec![0; length];
    stream.read_exact(&mut request).await?;
    Ok(request)
}

async fn refuse(stream: &mut Stream, refusal: RangeRefusal) -> io::Result<()> {
    let result = if refusal == RangeRefusal::NotFound {
        "not_found"
    } else {
        "invalid"
    };
    metrics::counter!(COUNTER, "result" => result).increment(1);
    write_last(stream, &frame(ResponseBody::Refusal(refusal as u32))).await
}

async fn write_last(stream: &mut Stream, bytes: &[u8]) -> io::Result<()> {
    write(stream, bytes, WRITE_TIMEOUT).await?;
    timeout(WRITE_TIMEOUT, stream.close()).await?
}

/// Writes a chunk. Its permits are released when the write ends or fails.
async fn write_chunk(
    stream: &mut (impl AsyncWrite + Unpin),
    bytes: &[u8],
    permits: Option<HeldPermits>,
) -> io::Result<()> {
    let limit = if permits.is_some() {
        LARGE_STALL
    } else {
        WRITE_TIMEOUT
    };
    write(stream, bytes, limit).await
}

/// Writes a chunk in parts. Times out if the peer does not read a part within `limit`, or the whole
/// in time.
async fn write(
    stream: &mut (impl AsyncWrite + Unpin),
    bytes: &[u8],
    limit: Duration,
) -> io::Result<()> {
    timeout(WRITE_TIMEOUT, async {
        for part in bytes.chunks(SMALL_CHUNK) {
            timeout(limit, stream.write_all(part)).await??;
        }
        Ok(())
    })
    .await?
}

#[cfg(test)]
mod tests;
