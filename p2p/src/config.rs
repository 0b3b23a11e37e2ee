//! What the swarm is told at start.

use crate::{
    discovery::DiscoveryConfig,
    nat::NatConfig,
    peers::{Policy, Tides},
    sync::Limits,
};
use alloy_primitives::Address;
use ipnet::IpNet;
use libp2p::{Multiaddr, PeerId, identity::Keypair, multiaddr::Protocol};
use starling_proto::{fork::ForkSchedule, payload::BlockId};
use std::{
    net::{IpAddr, SocketAddr},
    path::PathBuf,
    time::Duration,
};

/// The shape of the gossip mesh, in peers per topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mesh {
    pub d: usize,
    pub lo: usize,
    pub hi: usize,
    pub lazy: usize,
}

impl Default for Mesh {
    fn default() -> Self {
        Self {
            d: 8,
            lo: 6,
            hi: 12,
            lazy: 6,
        }
    }
}

/// Where the L2 chain begins and how fast it grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Genesis {
    pub id: BlockId,
    /// Unix seconds.
    pub time: u64,
    /// Seconds between blocks, at least 1.
    pub block_time: u64,
}

impl Genesis {
    /// The timestamp of block `number`; `None` below genesis or past the range of time.
    pub fn time_of(&self, number: u64) -> Option<u64> {
        number
            .checked_sub(self.id.number)?
            .checked_mul(self.block_time)?
            .checked_add(self.time)
    }

    /// The number a block of the timestamp `now` would have.
    pub fn number_at(&self, now: u64) -> u64 {
        self.id.number + now.saturating_sub(self.time) / self.block_time.max(1)
    }
}

/// The swarm's configuration.
#[derive(Clone, Debug)]
pub struct Config {
    /// See [`crate::identity`].
    pub identity: Keypair,
    pub listen_ip: IpAddr,
    /// 0 takes any free port; [`crate::Network::listen_addrs`] says which.
    pub listen_tcp: u16,
    /// A UDP port to listen on for QUIC; 0 takes any free one, `None`: do not listen for it. Peers at addresses of QUIC are dialled
    /// either way. Each first datagram, whoever it claims to be from, costs a signature in the swarm's task.
    pub listen_quic: Option<u16>,
    /// Each ends in `/p2p/<peer id>`; several addresses of one peer are fine. See [`static_peer`].
    pub static_peers: Vec<Multiaddr>,
    pub chain_id: u64,
    pub forks: ForkSchedule,
    pub genesis: Genesis,
    /// Whose blocks are accepted. Without one every block is ignored.
    pub unsafe_block_signer: Option<Address>,
    /// Oldest block that gossip accepts, whole seconds.
    pub gossip_threshold: Duration,
    pub mesh: Mesh,
    /// Whether blocks are served to peers, and gaps filled from them, by request and response.
    pub sync_req_resp: bool,
    /// Whether gaps are filled from static peers alone.
    pub only_request_static: bool,
    pub user_agent: String,
    /// How many peers.
    pub tides: Tides,
    /// What follows from misbehaviour.
    pub policy: Policy,
    /// Where the names of peers are looked up; `None`: where this machine looks names up.
    pub name_server: Option<SocketAddr>,
    /// Networks to connect within; empty for all.
    pub restrict: Vec<IpNet>,
    /// Look for peers; `None`: do not, and open no UDP socket.
    pub discovery: Option<DiscoveryConfig>,
    /// Ask the router to open our ports; `None`: do not.
    pub nat: Option<NatConfig>,
    /// Where scores, bans and blocks are kept; `None` keeps them in memory.
    pub peerstore: Option<PathBuf>,
    pub limits: Limits,
    /// Bytes of blocks a second that one peer of our kind is served in the long run.
    pub serve_rate: u32,
}

impl Config {
    /// A configuration for a chain, with the defaults of everything else: listen on every address, port 9222.
    pub fn new(identity: Keypair, chain_id: u64, forks: ForkSchedule, genesis: Genesis) -> Self {
        Self {
            identity,
            listen_ip: IpAddr::from([0, 0, 0, 0]),
            listen_tcp: 9222,
            listen_quic: None,
            static_peers: Vec::new(),
            chain_id,
            forks,
            genesis,
            unsafe_block_signer: None,
            gossip_threshold: Duration::from_secs(60),
            mesh: Mesh::default(),
            sync_req_resp: true,
            only_request_static: false,
            user_agent: concat!("starling/", env!("CARGO_PKG_VERSION")).to_owned(),
            tides: Tides::default(),
            policy: Policy::default(),
            name_server: None,
            restrict: Vec::new(),
            discovery: None,
            nat: None,
            peerstore: None,
            limits: Limits::default(),
            serve_rate: 64 << 20,
        }
    }

    /// The time between two blocks, in which scores decay.
    pub(crate) fn slot(&self) -> Duration {
        Duration::from_secs(self.genesis.block_time.max(1))
    }

    pub(crate) fn listen_addr(&self) -> Multiaddr {
        Multiaddr::from(self.listen_ip).with(Protocol::Tcp(self.listen_tcp))
    }

    pub(crate) fn quic_addr(&self, port: u16) -> Multiaddr {
        Multiaddr::from(self.listen_ip)
            .with(Protocol::Udp(port))
            .with(Protocol::QuicV1)
    }

    /// The UDP port that discovery is told to use; 0 for that of TCP, whichever this will be.
    pub(crate) fn discovery_port(&self) -> Option<u16> {
        self.discovery.as_ref().map(|discovery| {
            if discovery.listen_udp == 0 {
                self.listen_tcp
            } else {
                discovery.listen_udp
            }
        })
    }
}

/// Splits a static peer's address into the address to dial and the peer id it ends in; `None` without that id.
pub fn static_peer(address: &Multiaddr) -> Option<(Multiaddr, PeerId)> {
    let mut address = address.clone();
    match address.pop()? {
        Protocol::P2p(peer) => Some((address, peer)),
        _ => None,
    }
}
