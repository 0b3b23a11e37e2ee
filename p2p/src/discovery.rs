//! Discovery finds nodes of our chain and their addresses (discv5; specs: rollup-node-p2p, peer
//! discovery).
//!
//! Discovery is one task beside the swarm's. It owns the UDP socket, the table of records, the
//! bootnodes and our own record. It walks the network at random and sends every [`Contact`] to the
//! swarm over a bounded channel. While the channel is full, contacts are dropped, and later walks
//! find them again. The swarm decides which contacts to dial, and when (`peers/candidates.rs`).
//!
//! Overload: records of other nodes. Each record is checked for signature, chain and address, and
//! the number of stored records is bounded. The table itself has nodes of every network, since any
//! of them may know nodes of ours. Discovery bans no node: the library's list of banned nodes is
//! global to the process.

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

/// Capacity of the channel of contacts to the swarm.
const FOUND: usize = 64;
/// Capacity of the channel of report requests to the discovery task.
const REPORT_REQUESTS: usize = 16;

/// The settings `--p2p.listen.udp`, `--p2p.advertise.*`, `--p2p.bootnodes` and
/// `--p2p.discovery.path`.
#[derive(Clone, Debug, Default)]
pub struct DiscoveryConfig {
    /// UDP port to listen on; 0 means the same number as the TCP port.
    pub listen_udp: u16,
    /// The address or host name that our record advertises; a host name is looked up regularly.
    /// `None` advertises the address that peers see.
    pub advertise_ip: Option<String>,
    /// TCP port that our record advertises; 0 means the port we listen on.
    pub advertise_tcp: u16,
    /// UDP port that our record advertises; 0 means the port we listen on.
    pub advertise_udp: u16,
    /// Nodes at which discovery starts.
    pub bootnodes: Vec<Bootnode>,
    /// Path of the store of the records found; `None` keeps them in memory.
    pub store: Option<PathBuf>,
}

/// The facts about this node that discovery uses.
#[derive(Clone, Debug)]
pub(crate) struct LocalNode {
    pub identity: Keypair,
    pub chain_id: u64,
    /// The address of the UDP socket to bind. Port 0 means the number of the TCP port once that is
    /// known.
    pub listen: SocketAddr,
    /// While fewer peers than this are connected, walks follow each other faster.
    pub min_peers: usize,
}

/// The ports that our record advertises.
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
    /// The UDP port that discovery listens on.
    pub udp: u16,
    /// Records in the table, of nodes of every network.
    pub table: Vec<String>,
    /// Number of responsive nodes in the table.
    pub alive: usize,
    /// Number of known records of our chain.
    pub known: usize,
    /// Number of records that are not used, by reason.
    pub refused: BTreeMap<&'static str, u64>,
}

/// A request for a report, with the channel for the response.
pub(crate) type ReportRequest = oneshot::Sender<DiscoveryReport>;

/// The settings, store and channels with which the discovery task starts and runs.
pub(crate) struct Discovery {
    config: DiscoveryConfig,
    key: CombinedKey,
    local: PeerId,
    chain_id: u64,
    /// Number of connected peers below which walks follow each other faster.
    min_peers: usize,
    address: SocketAddr,
    /// The UDP socket; `None` until its port is known.
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

/// The swarm's ends of the channels to discovery.
pub(crate) struct DiscoveryChannels {
    pub found: mpsc::Receiver<Contact>,
    pub report_requests: mpsc::Sender<ReportRequest>,
    /// The UDP port once it is bound; 0 before.
    pub udp: watch::Receiver<u16>,
}

impl Discovery {
    /// Opens the store, and also the socket if its port does not depend on the TCP port. Must be
    /// called inside a tokio runtime.
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

/// Binds a socket of one address family, so that IPv4 senders do not appear as IPv6 addresses.
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
