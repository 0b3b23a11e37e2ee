//! `payload_by_number`, the answering side. Serving tasks are the only callers of [`Blocks::block`].
//!
//! What can overload it: peers that ask faster than the disk, and peers that do not read their answers. Streams are bounded
//! altogether, per address and per peer (the excess is reset at once), answers in memory likewise, each peer has a token bucket, and
//! all have one (a request waits for its tokens, and is refused only where it would wait for too long), and reading and writing have
//! deadlines. What strangers hold they hold among themselves: static and protected peers have places and tokens of their own. Excess
//! and stalls are offences.

use crate::{
    check::unix_now,
    config::Genesis,
    gate::{ip_of, site},
    handle::{Blocks, PeerInfo},
    limits::{Bucket, LONGEST_WAIT, PER_PEER, TOGETHER},
    metrics::{self as meters, Side},
    peers::Offence,
    streams::Incoming,
};
use futures::{AsyncReadExt, AsyncWriteExt};
use libp2p::{PeerId, Stream};
use lru::LruCache;
use parking_lot::Mutex;
use starling_proto::{
    fork::ForkSchedule,
    reqresp::{self, REQUEST_LEN, Refusal},
};
use std::{
    io,
    net::{IpAddr, Ipv4Addr},
    num::NonZeroUsize,
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::{
    sync::{Semaphore, mpsc, watch},
    task::JoinSet,
    time::timeout,
};

const READ_TIMEOUT: Duration = Duration::from_secs(10);
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);
/// Streams open at once, for one peer, one address, and all strangers together or all protected peers together; a peer of our own
/// kind asks for 16 at once.
const STREAMS: Share = Share {
    peer: 32,
    address: 64,
    all: 256,
};
/// Answers in memory at once: read from the chain, written to the peer.
const ANSWERS: Share = Share {
    peer: 8,
    address: 8,
    all: 24,
};
/// Peers, and addresses, whose places are remembered.
const PEERS: NonZeroUsize = NonZeroUsize::new(1000).unwrap();

/// How many places.
struct Share {
    peer: usize,
    address: usize,
    all: usize,
}

/// What serving needs to know of the swarm, and tells it.
pub struct Seen {
    pub peers: watch::Receiver<Vec<PeerInfo>>,
    pub offences: mpsc::Sender<(PeerId, Offence)>,
}

pub struct Server {
    genesis: Genesis,
    forks: ForkSchedule,
    blocks: Arc<dyn Blocks>,
    seen: Seen,
    /// For strangers and for protected peers.
    all: [Places; 2],
    tokens: [Mutex<Bucket>; 2],
    addresses: Mutex<LruCache<IpAddr, Places>>,
    peers: Mutex<LruCache<PeerId, Arc<Peer>>>,
}

#[derive(Clone)]
struct Places {
    streams: Arc<Semaphore>,
    answers: Arc<Semaphore>,
}

impl Places {
    fn new(streams: usize, answers: usize) -> Self {
        Self {
            streams: Arc::new(Semaphore::new(streams)),
            answers: Arc::new(Semaphore::new(answers)),
        }
    }
}

struct Peer {
    places: Places,
    bucket: Mutex<Bucket>,
}

/// The places one request needs, the narrowest first: who holds all of its own share blocks nobody else's.
struct Route {
    peer: Arc<Peer>,
    protected: bool,
    places: Vec<Places>,
}

impl Server {
    pub fn new(genesis: Genesis, forks: ForkSchedule, blocks: Arc<dyn Blocks>, seen: Seen) -> Self {
        let all = || Places::new(STREAMS.all, ANSWERS.all);
        let tokens = || Mutex::new(Bucket::new(TOGETHER, Instant::now()));
        Self {
            genesis,
            forks,
            blocks,
            seen,
            all: [all(), all()],
            tokens: [tokens(), tokens()],
            addresses: Mutex::new(LruCache::new(PEERS)),
            peers: Mutex::new(LruCache::new(PEERS)),
        }
    }

    /// Accepts streams until the swarm is gone. The loop only hands off; dropping it drops every serving task.
    pub async fn run(self: Arc<Self>, mut incoming: mpsc::Receiver<Incoming>) {
        let mut tasks = JoinSet::new();
        while let Some(Incoming { peer, stream, .. }) = incoming.recv().await {
            while tasks.try_join_next().is_some() {}
            let route = self.route(peer);
            let mut permits = Vec::new();
            for places in &route.places {
                permits.extend(places.streams.clone().try_acquire_owned());
            }
            if permits.len() < route.places.len() {
                metrics::counter!("starling_p2p_serve_total", "result" => "overload").increment(1);
                // That others took all places is not this peer's fault.
                if route.peer.places.streams.available_permits() == 0 {
                    self.report(peer, Offence::ExcessStreams);
                }
                continue;
            }
            let server = self.clone();
            tasks.spawn(async move {
                let _permits = permits;
                if let Err(error) = server.serve(&route, stream).await {
                    if error.kind() == io::ErrorKind::TimedOut {
                        server.report(peer, Offence::StalledStream);
                    }
                    tracing::debug!(%peer, %error, "request not served");
                }
            });
        }
    }

    fn report(&self, peer: PeerId, offence: Offence) {
        // Lost when the swarm is busy: it will not be the last.
        let _ = self.seen.offences.try_send((peer, offence));
    }

    fn route(&self, id: PeerId) -> Route {
        let (address, protected) = {
            let peers = self.seen.peers.borrow();
            let info = peers.iter().find(|info| info.id == id);
            (
                info.and_then(|info| ip_of(&info.address)),
                info.is_some_and(|info| info.protected),
            )
        };
        let fresh = || {
            let bucket = Mutex::new(Bucket::new(PER_PEER, Instant::now()));
            Arc::new(Peer {
                places: Places::new(STREAMS.peer, ANSWERS.peer),
                bucket,
            })
        };
        let peer = self.peers.lock().get_or_insert(id, fresh).clone();
        let mut places = vec![peer.places.clone()];
        if !protected {
            let address = site(address.unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED)));
            let fresh = || Places::new(STREAMS.address, ANSWERS.address);
            places.push(self.addresses.lock().get_or_insert(address, fresh).clone());
        }
        places.push(self.all[usize::from(protected)].clone());
        Route {
            peer,
            protected,
            places,
        }
    }

    /// Waits for the peer's turn, false if that is too far away. Its own tokens first: what it asks for in excess takes none of the others'.
    async fn wait(&self, route: &Route) -> bool {
        let mut left = LONGEST_WAIT;
        for bucket in [
            &route.peer.bucket,
            &self.tokens[usize::from(route.protected)],
        ] {
            // Who waits holds no lock.
            let wait = bucket.lock().take_within(left, Instant::now());
            let Some(wait) = wait else { return false };
            if !wait.is_zero() {
                tokio::time::sleep(wait).await;
            }
            left -= wait;
        }
        true
    }

    async fn serve(&self, route: &Route, mut stream: Stream) -> io::Result<()> {
        let mut request = [0; REQUEST_LEN];
        timeout(READ_TIMEOUT, stream.read_exact(&mut request)).await??;
        let begun = Instant::now();
        let in_time = self.wait(route).await;
        let mut permits = Vec::new();
        for places in &route.places {
            permits.push(places.answers.acquire().await.map_err(io::Error::other)?);
        }
        let number = u64::from_le_bytes(request);
        let answer = if in_time {
            self.answer(number).await
        } else {
            Err(Refusal::Other(3))
        };
        let (result, code, bytes) = match answer {
            Ok(bytes) => ("ok", 0, bytes),
            Err(refusal) => (label(refusal), refusal.code(), vec![refusal.code()]),
        };
        meters::request(Side::Server, number, code, begun.elapsed());
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

#[cfg(test)]
mod tests {
    use super::*;
    use alloy_primitives::B256;
    use futures::FutureExt;
    use starling_proto::payload::{BlockId, Payload};

    struct Nothing;

    impl Blocks for Nothing {
        fn knows(&self, _: B256) -> bool {
            false
        }

        fn block(&self, _: u64) -> Option<Payload> {
            None
        }
    }

    #[tokio::test]
    async fn what_strangers_ask_for_takes_no_turn_of_a_protected_peer() {
        let friend = PeerInfo {
            id: PeerId::random(),
            address: "/ip4/10.0.0.1/tcp/1".parse().unwrap(),
            agent: String::new(),
            outbound: true,
            protected: true,
            connections: 1,
        };
        let peers = watch::channel(vec![friend.clone()]).1;
        let seen = Seen {
            peers,
            offences: mpsc::channel(1).0,
        };
        let server = Server::new(
            Genesis {
                id: BlockId::default(),
                time: 0,
                block_time: 2,
            },
            ForkSchedule::default(),
            Arc::new(Nothing),
            seen,
        );
        let served_at_once = |id: PeerId, requests: usize| {
            let route = server.route(id);
            (0..requests)
                .filter(|_| server.wait(&route).now_or_never() == Some(true))
                .count()
        };
        // More than these only where the machine has stopped for a second.
        let alone = served_at_once(PeerId::random(), 30);
        assert!((15..20).contains(&alone), "{alone} of one stranger");
        let strangers: usize = (0..10).map(|_| served_at_once(PeerId::random(), 15)).sum();
        assert!((25..45).contains(&strangers), "{strangers} of ten more");
        assert!(served_at_once(friend.id, 15) == 15, "a protected peer");
    }
}
