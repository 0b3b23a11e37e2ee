//! The libp2p host: the only owner of the swarm, its connections and their state.
//!
//! [`transport`] makes connections over TCP (noise, yamux) and QUIC. [`guard`] bounds what a
//! connection may send, and [`behaviour`] composes the protocols of a connection. [`streams`] opens
//! and accepts streams of our own, and [`connections`] handles the events of connections. [`dial`]
//! classifies failed dials, and [`identity`] reads the node's key.
//!
//! Events of the swarm are passed to [`Host::on_swarm_event`]. [`Host::poll`] returns the resulting
//! [`HostEvent`]s for the other modules.
//!
//! Overload: connections, bounded by the gate (`peers/gate.rs`); streams, bounded by [`guard`] and
//! [`streams`]; and callers that wait for a connection, bounded in [`connections`].

pub mod behaviour;
mod connections;
pub mod dial;
pub mod guard;
pub mod identity;
pub mod streams;
pub mod transport;

use crate::{
    gossip::{
        router::{Router, RouterEvent},
        timing::SharedTimings,
        topics::{Mesh, Topics},
    },
    metrics as meters,
    peers::{Offence, PeerLink, gate::SharedGateRules, score::Scoring},
    types::PeerInfo,
};
use behaviour::{Behaviour, BehaviourEvent};
use connections::{PendingConnect, SurplusLink};
use futures::StreamExt;
use libp2p::{
    Multiaddr, PeerId, Swarm, identify,
    identity::Keypair,
    multiaddr::Protocol,
    swarm::{DialError, SwarmEvent},
};
use lru::LruCache;
use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    net::{IpAddr, SocketAddr},
    num::NonZeroUsize,
    time::{Duration, Instant},
};
use tokio::sync::watch;
use transport::StartError;

/// Number of disconnected peers whose identities are remembered for reports, and of peer ids that
/// two nodes share.
const RECENT: NonZeroUsize = NonZeroUsize::new(256).unwrap();

/// The settings of the host; see [`crate::Config`].
pub struct HostConfig {
    pub identity: Keypair,
    pub listen_ip: IpAddr,
    pub listen_tcp: u16,
    pub listen_quic: Option<u16>,
    /// The UDP port of discovery, which QUIC cannot share.
    pub discovery_udp: Option<u16>,
    pub name_server: Option<SocketAddr>,
    pub user_agent: String,
    pub mesh: Mesh,
    pub scoring: Scoring,
    /// The time between two blocks.
    pub slot: Duration,
    /// The upper limit of peers, above which peers are trimmed.
    pub max_peers: usize,
}

impl HostConfig {
    fn listen_addr(&self) -> Multiaddr {
        Multiaddr::from(self.listen_ip).with(Protocol::Tcp(self.listen_tcp))
    }

    fn quic_addr(&self, port: u16) -> Multiaddr {
        Multiaddr::from(self.listen_ip)
            .with(Protocol::Udp(port))
            .with(Protocol::QuicV1)
    }
}

/// A connected peer.
pub struct Connected {
    /// The peer's connections, the oldest first; at least one.
    pub links: Vec<PeerLink>,
    pub since: Instant,
    /// The peer's response to identify.
    pub identity: Option<identify::Info>,
    pub latency: Duration,
    /// The reason and evidence for disconnecting the peer, while its connections are being closed.
    pub leaving: Option<(&'static str, String)>,
}

impl Connected {
    /// The IP address of the oldest connection.
    pub fn ip(&self) -> Option<IpAddr> {
        self.links.first().and_then(PeerLink::ip)
    }

    /// Whether we dialled the oldest connection.
    pub fn outbound(&self) -> bool {
        self.links.first().is_some_and(|link| link.outbound)
    }
}

/// gossipsub's score of a connected peer, the application's part included.
pub struct RouterScore {
    pub peer: PeerId,
    pub score: f64,
    /// Number of connected peers at the same address, this peer included.
    pub sharing: usize,
}

/// An event of the host for the other modules.
#[derive(Debug)]
pub enum HostEvent {
    Router(RouterEvent),
    Offence {
        peer: PeerId,
        offence: Offence,
        evidence: String,
    },
    Connected {
        peer: PeerId,
        ip: Option<IpAddr>,
        outbound: bool,
        /// Whether this is the peer's only connection.
        first: bool,
    },
    /// The peer has responded to identify.
    Identified(PeerId),
    /// One of several connections has closed; `ip` is the address of the oldest remaining one.
    LinkClosed {
        peer: PeerId,
        ip: Option<IpAddr>,
    },
    /// The last connection has closed.
    Disconnected {
        peer: PeerId,
        reason: &'static str,
        evidence: String,
    },
    DialFailed {
        peer: PeerId,
        error: DialError,
    },
}

/// The host module.
pub struct Host {
    swarm: Swarm<Behaviour>,
    connected: BTreeMap<PeerId, Connected>,
    /// Identities of peers that disconnected recently.
    recent: LruCache<PeerId, identify::Info>,
    surplus: Vec<SurplusLink>,
    pending: Vec<PendingConnect>,
    events: VecDeque<HostEvent>,
    user_agent: String,
    /// Whether a peer with our own id has been logged.
    own_peer_id_met: bool,
    /// Peer ids that two nodes have connected with, and that have been logged.
    shared_keys: LruCache<PeerId, ()>,
    peers_out: watch::Sender<Vec<PeerInfo>>,
    listen_out: watch::Sender<Vec<Multiaddr>>,
}

impl Host {
    /// A host that listens and has not dialled any peer. Peers that share an address in
    /// `shared_addresses` get no penalty for it.
    pub fn new(
        config: HostConfig,
        topics: &Topics,
        rules: &SharedGateRules,
        timings: &SharedTimings,
        shared_addresses: impl IntoIterator<Item = IpAddr>,
    ) -> Result<Self, StartError> {
        let swarm = transport::listening_swarm(&config, topics, rules, timings, shared_addresses)?;
        Ok(Self {
            swarm,
            connected: BTreeMap::new(),
            recent: LruCache::new(RECENT),
            surplus: Vec::new(),
            pending: Vec::new(),
            events: VecDeque::new(),
            user_agent: config.user_agent,
            own_peer_id_met: false,
            shared_keys: LruCache::new(RECENT),
            peers_out: watch::Sender::new(Vec::new()),
            listen_out: watch::Sender::new(Vec::new()),
        })
    }

    /// The next event of the swarm; pends while there is none.
    pub async fn next_swarm_event(&mut self) -> SwarmEvent<BehaviourEvent> {
        self.swarm.select_next_some().await
    }

    /// The next event for the other modules. Call after every swarm event and command, until
    /// `None`.
    pub fn poll(&mut self) -> Option<HostEvent> {
        self.events.pop_front()
    }

    pub fn local_peer_id(&self) -> PeerId {
        *self.swarm.local_peer_id()
    }

    pub fn user_agent(&self) -> &str {
        &self.user_agent
    }

    /// gossipsub with our unpacking, for changes.
    pub fn router(&mut self) -> &mut Router {
        &mut self.swarm.behaviour_mut().gossip
    }

    /// gossipsub with our unpacking, for reading.
    pub fn router_ref(&self) -> &Router {
        &self.swarm.behaviour().gossip
    }

    /// The behaviour that opens and accepts streams of our own protocols.
    pub fn streams(&mut self) -> &mut streams::StreamsBehaviour {
        &mut self.swarm.behaviour_mut().streams
    }

    /// The connected peers, including those that are being disconnected.
    pub fn connected(&self) -> &BTreeMap<PeerId, Connected> {
        &self.connected
    }

    /// The connected peers that are not being disconnected.
    pub fn staying(&self) -> impl Iterator<Item = (&PeerId, &Connected)> {
        self.connected
            .iter()
            .filter(|(_, peer)| peer.leaving.is_none())
    }

    /// The identities of peers that disconnected recently.
    pub fn recent(&self) -> &LruCache<PeerId, identify::Info> {
        &self.recent
    }

    /// Forgets the identity of a peer that disconnected.
    pub fn forget(&mut self, peer: &PeerId) {
        self.recent.pop(peer);
    }

    /// A watch channel of the connected peers as last published.
    pub fn peers(&self) -> watch::Receiver<Vec<PeerInfo>> {
        self.peers_out.subscribe()
    }

    /// A watch channel of the addresses that we listen on, each with our peer id.
    pub fn listen_addrs(&self) -> watch::Receiver<Vec<Multiaddr>> {
        self.listen_out.subscribe()
    }

    /// Publishes the connected peers to the handle, the servers and discovery.
    pub fn publish_peers(&self, is_protected: impl Fn(&PeerId) -> bool) {
        let info = |(id, peer): (&PeerId, &Connected)| PeerInfo {
            id: *id,
            address: peer
                .links
                .first()
                .map(|link| link.address.clone())
                .unwrap_or_else(Multiaddr::empty),
            agent: peer
                .identity
                .as_ref()
                .map(|info| info.agent_version.clone())
                .unwrap_or_default(),
            outbound: peer.outbound(),
            protected: is_protected(id),
            connections: peer.links.len(),
        };
        self.peers_out
            .send_replace(self.connected.iter().map(info).collect());
        meters::peers(self.connected.len());
    }

    /// gossipsub's scores of the connected peers.
    pub fn router_scores(&self) -> Vec<RouterScore> {
        let mut sharing: HashMap<IpAddr, usize> = HashMap::new();
        for ip in self.connected.values().filter_map(Connected::ip) {
            *sharing.entry(ip).or_default() += 1;
        }
        let score = |(id, peer): (&PeerId, &Connected)| {
            Some(RouterScore {
                peer: *id,
                score: self.router_ref().peer_score(id)?,
                sharing: peer
                    .ip()
                    .and_then(|ip| sharing.get(&ip).copied())
                    .unwrap_or(1),
            })
        };
        self.connected.iter().filter_map(score).collect()
    }
}
