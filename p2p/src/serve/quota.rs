//! The quota of one server: the number of streams and responses that one peer, one address and all
//! peers together may have, and the rate at which one peer is served.
//!
//! Trusted peers (static peers, and those that an operator protects) and untrusted peers have
//! separate totals, so untrusted peers cannot exhaust the capacity of trusted ones. The limit per
//! address applies to untrusted peers only. A peer's own permits are acquired first, then the
//! shared ones: a peer that has exhausted its own quota holds no shared permit while it waits.

use super::bucket::{TokenBucket, TokenRate};
use crate::{
    address::{ip_of, site},
    peers::Offence,
    types::PeerInfo,
};
use libp2p::PeerId;
use lru::LruCache;
use parking_lot::Mutex;
use std::{
    net::{IpAddr, Ipv4Addr},
    num::NonZeroUsize,
    sync::Arc,
    time::Instant,
};
use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore, mpsc, watch};

/// Number of peers, and of addresses, whose quotas are remembered.
const REMEMBERED: NonZeroUsize = NonZeroUsize::new(1000).unwrap();

/// The connected peers, for the servers, and the channel on which servers report offences.
#[derive(Clone)]
pub struct SwarmView {
    pub peers: watch::Receiver<Vec<PeerInfo>>,
    pub offences: mpsc::Sender<(PeerId, Offence)>,
}

/// One value for trusted peers, and one for untrusted peers.
pub(super) struct ByTrust<T> {
    pub trusted: T,
    pub untrusted: T,
}

impl<T> ByTrust<T> {
    pub fn new(make: impl Fn() -> T) -> Self {
        Self {
            trusted: make(),
            untrusted: make(),
        }
    }

    pub fn get(&self, trusted: bool) -> &T {
        if trusted {
            &self.trusted
        } else {
            &self.untrusted
        }
    }
}

/// Numbers of permits: for one peer, for the untrusted peers at one address, and for all trusted or
/// all untrusted peers together.
#[derive(Clone, Copy)]
pub(super) struct QuotaCapacity {
    pub peer: usize,
    /// Permits per address; `None` means no limit per address.
    pub address: Option<usize>,
    pub total: usize,
}

/// Bounds on the streams, the responses and the rate of one server.
#[derive(Clone, Copy)]
pub(super) struct QuotaLimits {
    /// Largest numbers of open streams.
    pub streams: QuotaCapacity,
    /// Largest numbers of responses in memory, from the read of the chain to the end of the write.
    pub responses: QuotaCapacity,
    /// The rate at which one peer is served.
    pub rate: TokenRate,
}

/// The semaphores at one level: of a peer, of an address, or of all peers.
#[derive(Clone)]
struct QuotaPermits {
    streams: Arc<Semaphore>,
    responses: Arc<Semaphore>,
}

impl QuotaPermits {
    fn new(streams: usize, responses: usize) -> Self {
        Self {
            streams: Arc::new(Semaphore::new(streams)),
            responses: Arc::new(Semaphore::new(responses)),
        }
    }
}

struct PeerQuota {
    permits: QuotaPermits,
    tokens: Mutex<TokenBucket>,
}

/// The quota that a stream exceeds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum QuotaExceeded {
    /// The quota of the peer itself.
    Peer,
    /// The quota of the peer's address, or the total.
    Shared,
}

/// The permits held for one stream or one response, one at each level.
pub(super) type HeldPermits = Vec<OwnedSemaphorePermit>;

/// The quota of one server.
pub(super) struct Quota {
    limits: QuotaLimits,
    swarm: SwarmView,
    total: ByTrust<QuotaPermits>,
    addresses: Mutex<LruCache<IpAddr, QuotaPermits>>,
    peers: Mutex<LruCache<PeerId, Arc<PeerQuota>>>,
}

impl Quota {
    pub fn new(limits: QuotaLimits, swarm: SwarmView) -> Self {
        let QuotaLimits {
            streams, responses, ..
        } = limits;
        Self {
            limits,
            swarm,
            total: ByTrust::new(|| QuotaPermits::new(streams.total, responses.total)),
            addresses: Mutex::new(LruCache::new(REMEMBERED)),
            peers: Mutex::new(LruCache::new(REMEMBERED)),
        }
    }

    /// Reports an offence to the swarm. If the queue is full the report is dropped: an offender
    /// offends again.
    pub fn report(&self, peer: PeerId, offence: Offence) {
        let _ = self.swarm.offences.try_send((peer, offence));
    }

    /// The quotas that apply to the requests of the peer `id`.
    pub fn requester(&self, id: PeerId) -> Requester {
        let (address, trusted) = {
            let peers = self.swarm.peers.borrow();
            let info = peers.iter().find(|info: &&PeerInfo| info.id == id);
            (
                info.and_then(|info| ip_of(&info.address)),
                info.is_some_and(|info| info.protected),
            )
        };
        let QuotaLimits {
            streams,
            responses,
            rate,
        } = self.limits;
        let new_peer = || {
            Arc::new(PeerQuota {
                permits: QuotaPermits::new(streams.peer, responses.peer),
                tokens: Mutex::new(TokenBucket::new(rate, Instant::now())),
            })
        };
        let peer = self.peers.lock().get_or_insert(id, new_peer).clone();
        let mut shared = Vec::with_capacity(2);
        if !trusted {
            let address = site(address.unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED)));
            let unlimited = Semaphore::MAX_PERMITS;
            let new_address = || {
                QuotaPermits::new(
                    streams.address.unwrap_or(unlimited),
                    responses.address.unwrap_or(unlimited),
                )
            };
            let mut addresses = self.addresses.lock();
            shared.push(addresses.get_or_insert(address, new_address).clone());
        }
        shared.push(self.total.get(trusted).clone());
        Requester {
            peer,
            trusted,
            shared,
        }
    }

    /// Number of responses that untrusted peers may still have in memory.
    #[cfg(test)]
    pub fn untrusted_responses(&self) -> usize {
        self.total.untrusted.responses.available_permits()
    }
}

/// A peer that sends requests, with the quotas that apply to them.
pub(super) struct Requester {
    peer: Arc<PeerQuota>,
    pub trusted: bool,
    /// The permits of the peer's address, if the peer is untrusted; then the total's.
    shared: Vec<QuotaPermits>,
}

impl Requester {
    /// Acquires the permits for one stream, or returns the quota that it exceeds.
    pub fn stream_permits(&self) -> Result<HeldPermits, QuotaExceeded> {
        let acquire = |permits: &QuotaPermits| permits.streams.clone().try_acquire_owned();
        let mut held = vec![acquire(&self.peer.permits).map_err(|_| QuotaExceeded::Peer)?];
        for permits in &self.shared {
            held.push(acquire(permits).map_err(|_| QuotaExceeded::Shared)?);
        }
        Ok(held)
    }

    /// Waits for the permits for one response.
    pub async fn response_permits(&self) -> Result<HeldPermits, AcquireError> {
        let mut held = Vec::with_capacity(self.shared.len() + 1);
        for permits in std::iter::once(&self.peer.permits).chain(&self.shared) {
            held.push(permits.responses.clone().acquire_owned().await?);
        }
        Ok(held)
    }

    /// The token bucket of the peer.
    pub fn tokens(&self) -> &Mutex<TokenBucket> {
        &self.peer.tokens
    }

    /// Number of responses that this peer may still have in memory.
    #[cfg(test)]
    pub fn own_responses(&self) -> usize {
        self.peer.permits.responses.available_permits()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quota(peers: Vec<PeerInfo>) -> Quota {
        let capacity = QuotaCapacity {
            peer: 2,
            address: None,
            total: 3,
        };
        let limits = QuotaLimits {
            streams: capacity,
            responses: capacity,
            rate: TokenRate { rate: 1, burst: 1 },
        };
        let swarm = SwarmView {
            peers: watch::channel(peers).1,
            offences: mpsc::channel(1).0,
        };
        Quota::new(limits, swarm)
    }

    #[test]
    fn only_a_peer_that_exhausts_its_own_quota_exceeds_it() {
        let quota = quota(Vec::new());
        let [one, other] = [(); 2].map(|()| quota.requester(PeerId::random()));
        let first = one.stream_permits().unwrap();
        let _second = one.stream_permits().unwrap();
        assert_eq!(one.stream_permits().err(), Some(QuotaExceeded::Peer));
        let _third = other.stream_permits().unwrap();
        assert_eq!(
            other.stream_permits().err(),
            Some(QuotaExceeded::Shared),
            "the others hold the total, and it has a permit of its own left"
        );
        drop(first);
        assert!(other.stream_permits().is_ok());
    }

    #[test]
    fn untrusted_peers_cannot_exhaust_the_quota_of_trusted_peers() {
        let trusted = PeerInfo {
            id: PeerId::random(),
            address: "/ip4/10.0.0.1/tcp/1".parse().unwrap(),
            agent: String::new(),
            outbound: true,
            protected: true,
            connections: 1,
        };
        let quota = quota(vec![trusted.clone()]);
        let held: Vec<_> = (0..4)
            .map(|_| quota.requester(PeerId::random()).stream_permits())
            .collect();
        assert_eq!(held.iter().filter(|permits| permits.is_ok()).count(), 3);
        let trusted = quota.requester(trusted.id);
        assert!(trusted.trusted && trusted.stream_permits().is_ok());
    }
}
