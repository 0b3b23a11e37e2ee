//! `payload_by_number`, the answering side. Serving tasks are the only callers of [`Blocks::block`].
//!
//! What can overload it: peers that ask faster than the disk, and peers that do not read their answers. Streams are bounded
//! altogether and per peer (the excess is reset at once), answers in memory likewise, each peer has a token bucket (a request waits
//! for its token, it is not refused), and reading and writing have deadlines.

use crate::{
    check::unix_now,
    config::Genesis,
    handle::Blocks,
    limits::{Bucket, PER_PEER_BURST, PER_PEER_RATE},
};
use futures::{AsyncReadExt, AsyncWriteExt, StreamExt, stream::SelectAll};
use libp2p::{PeerId, Stream};
use libp2p_stream::IncomingStreams;
use lru::LruCache;
use parking_lot::Mutex;
use starling_proto::{
    fork::ForkSchedule,
    reqresp::{self, REQUEST_LEN, Refusal},
};
use std::{
    io,
    num::NonZeroUsize,
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::{sync::Semaphore, task::JoinSet, time::timeout};

const READ_TIMEOUT: Duration = Duration::from_secs(10);
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);
/// Streams open at once, altogether and for one peer; a peer of our own kind asks for 16 at once.
const STREAMS: usize = 256;
const STREAMS_PER_PEER: usize = 32;
/// Answers in memory at once, altogether and for one peer: read from the chain, written to the peer.
const ANSWERS: usize = 24;
const ANSWERS_PER_PEER: usize = 8;
/// Peers whose bucket is remembered.
const PEERS: NonZeroUsize = NonZeroUsize::new(1000).unwrap();

pub struct Server {
    genesis: Genesis,
    forks: ForkSchedule,
    blocks: Arc<dyn Blocks>,
    streams: Arc<Semaphore>,
    answers: Semaphore,
    peers: Mutex<LruCache<PeerId, Arc<Peer>>>,
}

struct Peer {
    streams: Arc<Semaphore>,
    answers: Semaphore,
    bucket: Mutex<Bucket>,
}

impl Server {
    pub fn new(genesis: Genesis, forks: ForkSchedule, blocks: Arc<dyn Blocks>) -> Self {
        Self {
            genesis,
            forks,
            blocks,
            streams: Arc::new(Semaphore::new(STREAMS)),
            answers: Semaphore::new(ANSWERS),
            peers: Mutex::new(LruCache::new(PEERS)),
        }
    }

    /// Accepts streams until the swarm is gone. The loop only hands off; dropping it drops every serving task.
    pub async fn run(self: Arc<Self>, mut incoming: SelectAll<IncomingStreams>) {
        let mut tasks = JoinSet::new();
        while let Some((peer, stream)) = incoming.next().await {
            while tasks.try_join_next().is_some() {}
            let state = self.peer(peer);
            let permits = (self.streams.clone().try_acquire_owned(), state.streams.clone().try_acquire_owned());
            let (Ok(all), Ok(theirs)) = permits else {
                metrics::counter!("starling_p2p_serve_total", "result" => "overload").increment(1);
                continue;
            };
            let server = self.clone();
            tasks.spawn(async move {
                let _permits = (all, theirs);
                if let Err(error) = server.serve(&state, stream).await {
                    tracing::debug!(%peer, %error, "request not served");
                }
            });
        }
    }

    fn peer(&self, peer: PeerId) -> Arc<Peer> {
        let fresh = || {
            Arc::new(Peer {
                streams: Arc::new(Semaphore::new(STREAMS_PER_PEER)),
                answers: Semaphore::new(ANSWERS_PER_PEER),
                bucket: Mutex::new(Bucket::new(PER_PEER_RATE, PER_PEER_BURST, Instant::now())),
            })
        };
        self.peers.lock().get_or_insert(peer, fresh).clone()
    }

    async fn serve(&self, peer: &Peer, mut stream: Stream) -> io::Result<()> {
        let mut request = [0; REQUEST_LEN];
        timeout(READ_TIMEOUT, stream.read_exact(&mut request)).await??;
        let wait = peer.bucket.lock().take(Instant::now());
        tokio::time::sleep(wait).await;
        // The peer's own permit first, so that one slow peer holds no more than its share.
        let _theirs = peer.answers.acquire().await.map_err(io::Error::other)?;
        let _all = self.answers.acquire().await.map_err(io::Error::other)?;
        let number = u64::from_le_bytes(request);
        let (result, bytes) = match self.answer(number).await {
            Ok(bytes) => ("ok", bytes),
            Err(refusal) => (label(refusal), vec![refusal.code()]),
        };
        metrics::counter!("starling_p2p_serve_total", "result" => result).increment(1);
        timeout(WRITE_TIMEOUT, async {
            stream.write_all(&bytes).await?;
            stream.close().await
        })
        .await?
    }

    async fn answer(&self, number: u64) -> Result<Vec<u8>, Refusal> {
        if number < self.genesis.id.number || number > self.genesis.number_at(unix_now()) {
            return Err(Refusal::InvalidRequest);
        }
        let (blocks, forks) = (self.blocks.clone(), self.forks.clone());
        let read = tokio::task::spawn_blocking(move || {
            let payload = blocks.block(number).ok_or(Refusal::NotFound)?;
            reqresp::encode_response(&payload, &forks).map_err(|_| Refusal::Other(3))
        });
        read.await.unwrap_or(Err(Refusal::Other(3)))
    }
}

fn label(refusal: Refusal) -> &'static str {
    match refusal {
        Refusal::NotFound => "not_found",
        Refusal::InvalidRequest => "invalid",
        Refusal::Other(_) => "error",
    }
}
