//! The swarm's configuration, from which each module's settings are taken.
//!
//! Only `service` uses [`Config`] itself: `host`, `peers` and `discovery` have settings of their
//! own, which [`Config`] fills in.

use crate::{
    discovery::{DiscoveryConfig, LocalNode},
    gossip::topics::Mesh,
    host::HostConfig,
    nat::NatConfig,
    peers::{PeerLimits, PeersConfig, Policy},
    sync::SyncLimits,
    types::ChainGenesis,
};
use alloy_primitives::Address;
use ipnet::IpNet;
use libp2p::{Multiaddr, identity::Keypair};
use starling_proto::fork::ForkSchedule;
use std::{
    net::{IpAddr, SocketAddr},
    path::PathBuf,
    time::Duration,
};

/// The swarm's configuration.
#[derive(Clone, Debug)]
pub struct Config {
    /// The key of the peer id; see [`crate::identity`].
    pub identity: Keypair,
    /// The address to listen on, for all transports and discovery.
    pub listen_ip: IpAddr,
    /// The TCP port to listen on; 0 takes any free port. [`crate::Network::listen_addrs`] reports
    /// the port in use.
    pub listen_tcp: u16,
    /// The UDP port to listen on for QUIC; 0 takes any free port, `None` turns the listener off.
    /// QUIC addresses are dialled in either case. The first datagram of each handshake costs a
    /// signature in the swarm's task, even if its sender address is forged.
    pub listen_quic: Option<u16>,
    /// Static peers, redialled until they are connected. Each address ends in `/p2p/<peer id>`; a
    /// peer may have several. See [`crate::address::static_peer`].
    pub static_peers: Vec<Multiaddr>,
    /// The id of the L2 chain.
    pub chain_id: u64,
    /// The forks of the L2 chain.
    pub forks: ForkSchedule,
    /// The first block of the L2 chain, and its block time.
    pub genesis: ChainGenesis,
    /// The signer whose blocks are accepted. Without a signer every block is ignored.
    pub unsafe_block_signer: Option<Address>,
    /// Largest age of a block that gossip accepts, in whole seconds.
    pub gossip_threshold: Duration,
    /// Sizes of the gossip mesh.
    pub mesh: Mesh,
    /// Whether request-response sync is on: we serve blocks to peers and fill gaps from peers.
    pub sync_req_resp: bool,
    /// Whether gaps are filled from static peers only.
    pub only_request_static: bool,
    /// Name and version of this node that the identify protocol reports to peers.
    pub user_agent: String,
    /// Limits of the number of connected peers.
    pub peer_limits: PeerLimits,
    /// Scoring, and bans for misbehaviour.
    pub policy: Policy,
    /// The DNS server that resolves peers given by name; `None` uses this machine's settings.
    pub name_server: Option<SocketAddr>,
    /// The only IP networks in which peers are connected; empty allows every network.
    pub restrict: Vec<IpNet>,
    /// Discovery of peers; `None` turns it off, and opens no UDP socket for it.
    pub discovery: Option<DiscoveryConfig>,
    /// Mapping of our ports on the router; `None` turns it off.
    pub nat: Option<NatConfig>,
    /// Path of the store of scores, bans and blocklists; `None` keeps them in memory.
    pub peerstore: Option<PathBuf>,
    /// Limits of the sync that fills gaps.
    pub limits: SyncLimits,
    /// Long-run rate at which range sync serves one peer, in bytes of blocks per second.
    pub serve_rate: u32,
}

impl Config {
    /// A configuration for the given chain, with defaults for everything else: listen on every
    /// address, port 9222.
    pub fn new(
        identity: Keypair,
        chain_id: u64,
        forks: ForkSchedule,
        genesis: ChainGenesis,
    ) -> Self {
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
            peer_limits: PeerLimits::default(),
            policy: Policy::default(),
            name_server: None,
            restrict: Vec::new(),
            discovery: None,
            nat: None,
            peerstore: None,
            limits: SyncLimits::default(),
            serve_rate: 64 << 20,
        }
    }

    /// The time between two blocks. Scores decay once per slot.
    pub(crate) fn slot(&self) -> Duration {
        Duration::from_secs(self.genesis.block_time.max(1))
    }

    /// The UDP port of discovery. 0 means the same number as the TCP port, which may be 0 itself.
    fn discovery_port(&self) -> Option<u16> {
        self.discovery.as_ref().map(|discovery| {
            if discovery.listen_udp == 0 {
                self.listen_tcp
            } else {
                discovery.listen_udp
            }
        })
    }

    /// The settings of the libp2p host.
    pub(crate) fn host(&self) -> HostConfig {
        HostConfig {
            identity: self.identity.clone(),
            listen_ip: self.listen_ip,
            listen_tcp: self.listen_tcp,
            listen_quic: self.listen_quic,
            discovery_udp: self.discovery_port(),
            name_server: self.name_server,
            user_agent: self.user_agent.clone(),
            mesh: self.mesh,
            scoring: self.policy.scoring,
            slot: self.slot(),
            max_peers: self.peer_limits.hi,
        }
    }

    /// The settings of the peers module.
    pub(crate) fn peers(&self) -> PeersConfig {
        PeersConfig {
            local: self.identity.public().to_peer_id(),
            static_peers: self.static_peers.clone(),
            restrict: self.restrict.clone(),
            policy: self.policy,
            limits: self.peer_limits,
            slot: self.slot(),
            peerstore: self.peerstore.clone(),
            seed: rand::random(),
        }
    }

    /// The facts about this node that discovery needs.
    pub(crate) fn local_node(&self) -> LocalNode {
        LocalNode {
            identity: self.identity.clone(),
            chain_id: self.chain_id,
            listen: SocketAddr::new(self.listen_ip, self.discovery_port().unwrap_or_default()),
            min_peers: self.peer_limits.lo,
        }
    }
}
