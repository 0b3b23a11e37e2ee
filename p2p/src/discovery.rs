//! Discovery finds nodes of our chain and their addresses (discv5; specs: rollup-node-p2p, peer
//! discovery).
//!
//! One task beside the swarm's. It owns the UDP socket, the table of records, the bootnodes and our
//! own record; it walks the network at random and hands every [`Contact`] to the swarm through a
//! bounded channel. A contact that does not fit is dropped, and the next walk finds it again. The
//! swarm decides which contacts to dial, and when (`peers/candidates.rs`).
//!
//! Overload: records of other nodes. Each is checked once for signature, chain and address, and the
//! number kept is bounded. The table itself holds nodes of every network, since all of them answer
//! queries about ours. Nothing here bans: the library's list of banned nodes belongs to the whole
//! process.

mod boot;
pub mod bootnode;
pub mod defaults;
mod record;
mod task;

pub use crate::{address::Scope, peers::candidates::Contact};
use crate::{
    host::transport::StartError,
    nat::MappedPorts,
    peers::gate::SharedGateRules,
    peers::store::{Peerstore, StoreRecord},
    types::PeerInfo,
};
use ::enr::CombinedKey;
use bootnode::Bootnode;
use libp2p::{Multiaddr, PeerId, identity::Keypair};
use serde::Serialize;
use socket2::{Domain, Protocol, Socket, Type};
use std::{
    collections::BTreeMap,
    io,
    net::{SocketAddr, UdpSocket},
    path::PathBuf,
};
use tokio::sync::{mpsc, oneshot, watch};

/// Contacts that wait for the swarm.
const FOUND: usize = 64;
/// Report requests that wait for the task.
const REPORT_REQUESTS: usize = 16;

/// `--p2p.listen.udp`, `--p2p.advertise.*`, `--p2p.bootnodes`, `--p2p.discovery.path`.
#[derive(Clone, Debug, Default)]
pub struct DiscoveryConfig {
    /// UDP port; 0 takes the port of TCP.
    pub listen_udp: u16,
    /// An address or a host name, which is looked up from time to time. Without one, our address is
    /// the one that peers see.
    pub advertise_ip: Option<String>,
    /// TCP port; 0 takes the one listened on.
    pub advertise_tcp: u16,
    /// UDP port; 0 takes the one listened on.
    pub advertise_udp: u16,
    /// Nodes at which discovery starts.
    pub bootnodes: Vec<Bootnode>,
    /// Path of the store of found records; `None` keeps them in memory.
    pub store: Option<PathBuf>,
}

/// The facts about this node that discovery needs.
#[derive(Clone, Debug)]
pub(crate) struct LocalNode {
    pub identity: Keypair,
    pub chain_id: u64,
    /// The UDP socket to bind; port 0 takes the port of TCP once that is known.
    pub listen: SocketAddr,
    /// Below this number of peers, walks follow each other faster.
    pub min_peers: usize,
}

/// The ports of our record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Advertise {
    pub tcp: u16,
    pub udp: u16,
}

/// The state of discovery at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DiscoveryReport {
    /// Our own record.
    pub enr: String,
    /// The UDP port.
    pub udp: u16,
    /// Records in the table, of every network.
    pub table: Vec<String>,
    /// Responsive nodes in the table.
    pub alive: usize,
    /// Records of our chain.
    pub known: usize,
    /// Number of unused records, by reason.
    pub refused: BTreeMap<&'static str, u64>,
}

/// A request for a report, with the channel for the response.
pub(crate) type ReportRequest = oneshot::Sender<DiscoveryReport>;

/// Discovery before it runs.
pub(crate) struct Discovery {
    config: DiscoveryConfig,
    key: CombinedKey,
    local: PeerId,
    chain_id: u64,
    /// Number of peers below which walks follow each other faster.
    min_peers: usize,
    address: SocketAddr,
    /// The UDP socket; bound as soon as its port is known.
    socket: Option<UdpSocket>,
    store: Peerstore,
    stored: Vec<StoreRecord>,
    rules: SharedGateRules,
    listen_addrs: watch::Receiver<Vec<Multiaddr>>,
    peers: watch::Receiver<Vec<PeerInfo>>,
    mapped: watch::Receiver<MappedPorts>,
    udp: watch::Sender<u16>,
    found: mpsc::Sender<Contact>,
    report_requests: mpsc::Receiver<ReportRequest>,
}

/// The ends of the channels to discovery.
pub(crate) struct DiscoveryChannels {
    pub found: mpsc::Receiver<Contact>,
    pub report_requests: mpsc::Sender<ReportRequest>,
    /// The UDP port once it is bound; 0 before.
    pub udp: watch::Receiver<u16>,
}

impl Discovery {
    /// Opens the store, and the socket if its port does not depend on that of TCP. Must be called
    /// inside a tokio runtime.
    pub fn new(
        node: &LocalNode,
        config: &DiscoveryConfig,
        rules: SharedGateRules,
        listen_addrs: watch::Receiver<Vec<Multiaddr>>,
        peers: watch::Receiver<Vec<PeerInfo>>,
        mapped: watch::Receiver<MappedPorts>,
    ) -> Result<(Self, DiscoveryChannels), StartError> {
        let address = node.listen;
        let bound = |source| StartError::Udp { address, source };
        let socket = if address.port() == 0 {
            None
        } else {
            Some(bind(address).map_err(bound)?)
        };
        let (store, stored) = Peerstore::open(config.store.as_deref(), "--p2p.discovery.path")?;
        let (found, found_out) = mpsc::channel(FOUND);
        let (requests_in, report_requests) = mpsc::channel(REPORT_REQUESTS);
        let (udp, udp_out) = watch::channel(0);
        let discovery = Self {
            config: config.clone(),
            key: record::key(&node.identity).ok_or(StartError::Identity)?,
            local: node.identity.public().to_peer_id(),
            chain_id: node.chain_id,
            min_peers: node.min_peers,
            address,
            socket,
            store,
            stored,
            rules,
            listen_addrs,
            peers,
            mapped,
            udp,
            found,
            report_requests,
        };
        Ok((
            discovery,
            DiscoveryChannels {
                found: found_out,
                report_requests: requests_in,
                udp: udp_out,
            },
        ))
    }
}

/// Binds a socket of one address family: IPv4 senders must not appear as IPv6 addresses.
fn bind(address: SocketAddr) -> io::Result<UdpSocket> {
    let socket = Socket::new(
        Domain::for_address(address),
        Type::DGRAM,
        Some(Protocol::UDP),
    )?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    Ok(socket.into())
}
