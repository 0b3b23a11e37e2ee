//! Range sync, what answers.
//!
//! What can overload it: peers that ask for more than the disk gives, peers that do not read, and many of both. Streams are bounded per
//! peer, per address and altogether, and large chunks per peer and altogether, strangers apart from protected peers; each chunk waits
//! for its peer's budget of bytes and for a place to read and pack it, first come first served, so that no peer takes the places of the
//! others; one chunk is made ahead while one is written; reading and writing have deadlines, shorter ones for who holds a place for a
//! large chunk, and who does not read is charged. What is sent was linked, and still canonical after it was read, so a reorg in between
//! never makes us a liar.

use crate::{
    gate::{ip_of, site},
    handle::{Blocks, Heads, PeerInfo},
    limits::{Bucket, Rate},
    peers::Offence,
    serve::Seen,
    streams::Incoming,
};
use futures::{AsyncReadExt, AsyncWrite, AsyncWriteExt};
use libp2p::{PeerId, Stream};
use lru::LruCache;
use parking_lot::Mutex;
use starling_proto::{
    payload::BlockId,
    wire::{
        self, Answer, Ask, ChunkBuilder, LENGTH, MAX_BODIES, MAX_CHUNK, MAX_HEADERS, MAX_REQUEST,
        Refusal,
    },
};
use std::{
    io,
    net::{IpAddr, Ipv4Addr},
    num::NonZeroUsize,
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::{
    sync::{AcquireError, OwnedSemaphorePermit, Semaphore, mpsc, watch},
    task::JoinSet,
    time::timeout,
};

const READ_TIMEOUT: Duration = Duration::from_secs(10);
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);
/// For each part of a large chunk, as large as a small one: others wait for its place.
const LARGE_STALL: Duration = Duration::from_secs(2);
/// Streams open at once, of one peer, of strangers at one address, and of all strangers or all protected peers together. A peer of ours
/// has at most four.
const STREAMS_PER_PEER: usize = 6;
const STREAMS_PER_ADDRESS: usize = 24;
const STREAMS: usize = 64;
/// Chunks read and packed at the same time.
const READING: usize = 4;
/// Large chunks in memory, of one peer, and of all strangers or all protected peers together.
const LARGE_PER_PEER: usize = 2;
const LARGE: usize = 6;
/// Bytes of a chunk before it is packed, about: little to lose, and enough to pack well.
const CHUNK: usize = 256 << 10;
/// A chunk above it, before it is packed, is made once it has one of the places for large ones, and holds that until it is written.
const SMALL_CHUNK: usize = 2 * CHUNK;
/// Peers, and addresses, whose places are remembered.
const PEERS: NonZeroUsize = NonZeroUsize::new(1000).unwrap();

pub struct Server {
    chain_id: u64,
    genesis: BlockId,
    blocks: Arc<dyn Blocks>,
    heads: watch::Receiver<Heads>,
    seen: Seen,
    /// KiB a second.
    rate: u32,
    /// For strangers and for protected peers.
    streams: [Arc<Semaphore>; 2],
    large: [Arc<Semaphore>; 2],
    reading: Arc<Semaphore>,
    addresses: Mutex<LruCache<IpAddr, Arc<Semaphore>>>,
    peers: Mutex<LruCache<PeerId, Arc<Peer>>>,
}

struct Peer {
    streams: Arc<Semaphore>,
    large: Arc<Semaphore>,
    /// Tokens are KiB.
    bucket: Mutex<Bucket>,
}

/// What a request has left to send.
#[derive(Clone, Copy)]
enum Rest {
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

/// A framed chunk, and what is left after it; `None` where there is nothing more to send.
type Packed = Option<(Vec<u8>, Rest)>;

/// The next block makes a large chunk.
struct NeedsPlace;

/// Held until a large chunk is written.
type Large = [OwnedSemaphorePermit; 2];

/// Whose places a request takes.
struct Asker {
    peer: Arc<Peer>,
    protected: bool,
    /// Where a stranger lives.
    site: Option<IpAddr>,
}

impl Server {
    /// `rate`: bytes a second of one peer.
    pub fn new(
        chain_id: u64,
        genesis: BlockId,
        blocks: Arc<dyn Blocks>,
        heads: watch::Receiver<Heads>,
        seen: Seen,
        rate: u32,
    ) -> Self {
        let places = |count| Arc::new(Semaphore::new(count));
        Self {
            chain_id,
            genesis,
            blocks,
            heads,
            seen,
            rate: (rate >> 10).max(1),
            streams: [places(STREAMS), places(STREAMS)],
            large: [places(LARGE), places(LARGE)],
            reading: places(READING),
            addresses: Mutex::new(LruCache::new(PEERS)),
            peers: Mutex::new(LruCache::new(PEERS)),
        }
    }

    /// Accepts streams until the swarm is gone. The loop only hands off; dropping it drops every serving task.
    pub async fn run(self: Arc<Self>, mut incoming: mpsc::Receiver<Incoming>) {
        let mut tasks = JoinSet::new();
        while let Some(Incoming {
            peer: id, stream, ..
        }) = incoming.recv().await
        {
            while tasks.try_join_next().is_some() {}
            let asker = self.asker(id);
            let Ok(place) = asker.peer.streams.clone().try_acquire_owned() else {
                metrics::counter!("starling_p2p_range_serve_total", "result" => "overload")
                    .increment(1);
                self.report(id, Offence::ExcessStreams);
                continue;
            };
            // That others took all places is not this peer's fault.
            let near = asker
                .site
                .map(|site| self.address(site).try_acquire_owned())
                .transpose();
            let all = self.streams[usize::from(asker.protected)]
                .clone()
                .try_acquire_owned();
            let (Ok(near), Ok(all)) = (near, all) else {
                metrics::counter!("starling_p2p_range_serve_total", "result" => "overload")
                    .increment(1);
                continue;
            };
            let server = self.clone();
            tasks.spawn(async move {
                let _places = (place, near, all);
                if let Err(error) = server.serve(&asker, stream).await {
                    if error.kind() == io::ErrorKind::TimedOut {
                        server.report(id, Offence::StalledStream);
                    }
                    tracing::debug!(peer = %id, %error, "range request not served");
                }
            });
        }
    }

    fn report(&self, peer: PeerId, offence: Offence) {
        // Lost when the swarm is busy: it will not be the last.
        let _ = self.seen.offences.try_send((peer, offence));
    }

    fn asker(&self, id: PeerId) -> Asker {
        let (address, protected) = {
            let peers = self.seen.peers.borrow();
            let info = peers.iter().find(|info: &&PeerInfo| info.id == id);
            (
                info.and_then(|info| ip_of(&info.address)),
                info.is_some_and(|info| info.protected),
            )
        };
        let fresh = || {
            let bucket = Mutex::new(Bucket::new(
                Rate {
                    rate: self.rate,
                    burst: self.rate,
                },
                Instant::now(),
            ));
            let places = |count| Arc::new(Semaphore::new(count));
            Arc::new(Peer {
                streams: places(STREAMS_PER_PEER),
                large: places(LARGE_PER_PEER),
                bucket,
            })
        };
        let peer = self.peers.lock().get_or_insert(id, fresh).clone();
        let site = site(address.unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED)));
        Asker {
            peer,
            protected,
            site: (!protected).then_some(site),
        }
    }

    fn address(&self, site: IpAddr) -> Arc<Semaphore> {
        self.addresses
            .lock()
            .get_or_insert(site, || Arc::new(Semaphore::new(STREAMS_PER_ADDRESS)))
            .clone()
    }

    async fn serve(self: &Arc<Self>, asker: &Asker, mut stream: Stream) -> io::Result<()> {
        let request = timeout(READ_TIMEOUT, read_request(&mut stream)).await??;
        let rest = match wire::decode_request(&request) {
            Ok(Ask::Status(_)) => {
                let server = self.clone();
                let status = tokio::task::spawn_blocking(move || server.status())
                    .await
                    .map_err(io::Error::other)?;
                return write_last(&mut stream, &answer(Answer::Status(status))).await;
            }
            Ok(Ask::Headers(ask)) => headers(&ask, self.genesis.number),
            Ok(Ask::Bodies(ask)) => bodies(&ask),
            Err(_) => None,
        };
        let Some(mut rest) = rest else {
            return refuse(&mut stream, Refusal::Invalid).await;
        };
        let mut made = self.make(asker, rest).await?;
        if made.0.is_none() {
            return refuse(&mut stream, Refusal::NotFound).await;
        }
        while let (Some((bytes, left)), place) = made {
            rest = left;
            let next = self.make(asker, rest);
            let written = async {
                // Not until the next one is made, too.
                write_chunk(&mut stream, &bytes, place).await
            };
            let (written, next) = tokio::join!(written, next);
            written?;
            made = next?;
        }
        metrics::counter!("starling_p2p_range_serve_total", "result" => "ok").increment(1);
        timeout(WRITE_TIMEOUT, stream.close()).await?
    }

    fn status(&self) -> wire::Status {
        let heads = *self.heads.borrow();
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
            // Genesis is not sent: whoever asks has it.
            oldest: self
                .blocks
                .oldest()
                .max(self.genesis.number.saturating_add(1)),
            safe: safe.map(Into::into),
            finalized: finalized.map(Into::into),
        }
    }

    /// The next chunk, and its place if it is large. Waits for the peer's budget.
    async fn make(
        self: &Arc<Self>,
        asker: &Asker,
        rest: Rest,
    ) -> io::Result<(Packed, Option<Large>)> {
        if rest.is_empty() {
            return Ok((None, None));
        }
        let mut place = None;
        let packed = loop {
            match self.read(rest, place.is_some()).await? {
                Ok(packed) => break packed,
                // Who waits holds nothing in memory meanwhile.
                Err(NeedsPlace) => place = Some(self.large(asker).await.map_err(io::Error::other)?),
            }
        };
        let size = packed.as_ref().map_or(0, |(bytes, _)| bytes.len());
        let wait = asker
            .peer
            .bucket
            .lock()
            .take_many((size >> 10) as u32, Instant::now());
        // The timer's step is a millisecond, as long as many a chunk takes.
        if !wait.is_zero() {
            tokio::time::sleep(wait).await;
        }
        Ok((packed, place))
    }

    async fn read(
        self: &Arc<Self>,
        rest: Rest,
        large: bool,
    ) -> io::Result<Result<Packed, NeedsPlace>> {
        let reading = self
            .reading
            .clone()
            .acquire_owned()
            .await
            .map_err(io::Error::other)?;
        let server = self.clone();
        let packed = tokio::task::spawn_blocking(move || {
            let _reading = reading;
            server.pack(rest, large)
        });
        packed.await.map_err(io::Error::other)
    }

    /// The narrower place first: who does not read holds none of the others' places while it waits for its own.
    async fn large(&self, asker: &Asker) -> Result<Large, AcquireError> {
        let own = asker.peer.large.clone().acquire_owned().await?;
        Ok([
            own,
            self.large[usize::from(asker.protected)]
                .clone()
                .acquire_owned()
                .await?,
        ])
    }

    /// Makes a large chunk only if `large`.
    fn pack(&self, rest: Rest, large: bool) -> Result<Packed, NeedsPlace> {
        let mut chunk = ChunkBuilder::with_capacity(CHUNK + CHUNK / 4);
        let (rest, kind): (Option<Rest>, fn(wire::Chunk) -> Answer) = match rest {
            Rest::Headers { from, count } => (
                Some(self.pack_headers(from, count, &mut chunk)),
                Answer::Headers,
            ),
            Rest::Bodies { next, last, bytes } => (
                self.pack_bodies(next, last, bytes, large, &mut chunk)?,
                Answer::Bodies,
            ),
        };
        if chunk.is_empty() {
            return Ok(None);
        }
        Ok(rest.and_then(|rest| Some((answer(kind(chunk.finish().ok()?)), rest))))
    }

    fn pack_headers(&self, from: BlockId, count: u64, chunk: &mut ChunkBuilder) -> Rest {
        let (mut left, mut next) = (count, None);
        self.blocks.headers(from, &mut |header| {
            chunk.push(&[header]);
            left -= 1;
            next = wire::parent_hash(header);
            left > 0 && next.is_some() && chunk.len() < CHUNK
        });
        match next {
            Some(hash) => Rest::Headers {
                from: BlockId {
                    number: from.number.saturating_sub(count - left),
                    hash,
                },
                count: left,
            },
            None => Rest::Headers { from, count: 0 },
        }
    }

    /// `None` if the block that was named is not, or no longer, on our chain.
    fn pack_bodies(
        &self,
        mut next: u64,
        last: BlockId,
        mut bytes: usize,
        large: bool,
        chunk: &mut ChunkBuilder,
    ) -> Result<Option<Rest>, NeedsPlace> {
        if next <= self.genesis.number {
            return Ok(None);
        }
        let (most, mut needs_place) = (if large { MAX_CHUNK } else { SMALL_CHUNK }, false);
        let canonical = self.blocks.bodies(next, last, &mut |header, transactions| {
            let size = LENGTH + header.len() + transactions.len();
            // A large one comes alone.
            if size > MAX_CHUNK || chunk.len() + size > most {
                needs_place = size <= MAX_CHUNK && chunk.is_empty();
                return false;
            }
            chunk.push(&[header, transactions]);
            bytes = bytes.saturating_sub(size);
            next += 1;
            chunk.len() < CHUNK && bytes > 0
        });
        if canonical && needs_place {
            return Err(NeedsPlace);
        }
        Ok(canonical.then_some(Rest::Bodies { next, last, bytes }))
    }
}

impl Rest {
    fn is_empty(&self) -> bool {
        match self {
            Rest::Headers { count, .. } => *count == 0,
            Rest::Bodies {
                next, last, bytes, ..
            } => *next > last.number || *bytes == 0,
        }
    }
}

fn headers(ask: &wire::HeadersRequest, genesis: u64) -> Option<Rest> {
    let from = BlockId {
        number: ask.number,
        hash: wire::hash(&ask.hash).ok()?,
    };
    let count = u64::from(ask.count).min(ask.number.saturating_sub(genesis));
    (1..=MAX_HEADERS)
        .contains(&ask.count)
        .then_some(Rest::Headers { from, count })
}

fn bodies(ask: &wire::BodiesRequest) -> Option<Rest> {
    let last = BlockId {
        number: ask.last,
        hash: wire::hash(&ask.last_hash).ok()?,
    };
    let count = ask.last.checked_sub(ask.first)?.checked_add(1)?;
    let bytes = (ask.max_bytes as usize).clamp(1, MAX_CHUNK);
    (count <= MAX_BODIES).then_some(Rest::Bodies {
        next: ask.first,
        last,
        bytes,
    })
}

fn answer(answer: Answer) -> Vec<u8> {
    wire::frame(&wire::Response {
        answer: Some(answer),
    })
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

async fn refuse(stream: &mut Stream, refusal: Refusal) -> io::Result<()> {
    let result = if refusal == Refusal::NotFound {
        "not_found"
    } else {
        "invalid"
    };
    metrics::counter!("starling_p2p_range_serve_total", "result" => result).increment(1);
    write_last(stream, &answer(Answer::Refusal(refusal as u32))).await
}

async fn write_last(stream: &mut Stream, bytes: &[u8]) -> io::Result<()> {
    write(stream, bytes, WRITE_TIMEOUT).await?;
    timeout(WRITE_TIMEOUT, stream.close()).await?
}

/// Gives the place of a large chunk back.
async fn write_chunk(
    stream: &mut (impl AsyncWrite + Unpin),
    bytes: &[u8],
    place: Option<Large>,
) -> io::Result<()> {
    write(
        stream,
        bytes,
        if place.is_some() {
            LARGE_STALL
        } else {
            WRITE_TIMEOUT
        },
    )
    .await
}

/// A peer that does not read a part of it within `limit`, or not all of it in time, is one that does not read.
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
