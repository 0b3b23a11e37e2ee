//! Discovery: who else is on our chain, and where (discv5; specs: rollup-node-p2p, peer discovery).
//!
//! One task beside the swarm's. It owns the UDP socket, the table of records, the bootnodes and our own record; it walks the network
//! at random and hands every [`Contact`] to the swarm through a bounded channel, which drops what the swarm has no room for: the next
//! walk finds it again. Whom to dial, and when, the swarm decides (`peers/candidates.rs`).
//!
//! What can overload it: strangers' records. Each is checked once for signature, chain and address; what is kept is bounded. The
//! table itself holds nodes of every network, since all of them answer questions about ours. Nothing here bans: the library's list
//! of banned nodes belongs to the whole process.

mod boot;
pub mod bootnode;
pub mod defaults;
mod record;
mod task;

use crate::{
    config::Config,
    gate::SharedRules,
    handle::PeerInfo,
    nat::Mapped,
    peerstore::{Peerstore, Record},
    transport::StartError,
};
use ::enr::CombinedKey;
use bootnode::Bootnode;
use libp2p::{Multiaddr, PeerId};
pub use record::{Contact, Scope};
use serde::Serialize;
use socket2::{Domain, Protocol, Socket, Type};
use std::{
    collections::BTreeMap,
    io,
    net::{SocketAddr, UdpSocket},
    path::PathBuf,
};
use tokio::sync::{mpsc, oneshot, watch};

/// Contacts that the swarm has not looked at yet.
const FOUND: usize = 64;
/// Questions of operators.
const QUESTIONS: usize = 16;

/// `--p2p.listen.udp`, `--p2p.advertise.*`, `--p2p.bootnodes`, `--p2p.discovery.path`.
#[derive(Clone, Debug, Default)]
pub struct DiscoveryConfig {
    /// 0: the one of TCP.
    pub listen_udp: u16,
    /// An address or a host name, which is looked up now and then. Without one our address is what peers see of us.
    pub advertise_ip: Option<String>,
    /// 0: the one listened on.
    pub advertise_tcp: u16,
    /// 0: the one listened on.
    pub advertise_udp: u16,
    pub bootnodes: Vec<Bootnode>,
    /// Where found records are kept; `None` keeps them in memory.
    pub store: Option<PathBuf>,
}

/// The ports of our record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Advertise {
    pub tcp: u16,
    pub udp: u16,
}

/// Discovery at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DiscoveryReport {
    /// Our own record.
    pub enr: String,
    /// The port of UDP.
    pub udp: u16,
    /// Records in the table, of every network.
    pub table: Vec<String>,
    /// Nodes of the table that answer.
    pub alive: usize,
    /// Records of our chain.
    pub known: usize,
    /// Records that were not used, by the reason.
    pub refused: BTreeMap<&'static str, u64>,
}

pub(crate) type Question = oneshot::Sender<DiscoveryReport>;

/// Discovery before it runs.
pub(crate) struct Discovery {
    config: DiscoveryConfig,
    key: CombinedKey,
    local: PeerId,
    chain_id: u64,
    /// Peers below which it hurries.
    lo: usize,
    address: SocketAddr,
    /// Bound as soon as its port is known.
    socket: Option<UdpSocket>,
    store: Peerstore,
    stored: Vec<Record>,
    rules: SharedRules,
    listen_addrs: watch::Receiver<Vec<Multiaddr>>,
    peers: watch::Receiver<Vec<PeerInfo>>,
    mapped: watch::Receiver<Mapped>,
    udp: watch::Sender<u16>,
    found: mpsc::Sender<Contact>,
    questions: mpsc::Receiver<Question>,
}

/// The other ends.
pub(crate) struct Ends {
    pub found: mpsc::Receiver<Contact>,
    pub questions: mpsc::Sender<Question>,
    /// The port of UDP once it is bound; 0 before.
    pub udp: watch::Receiver<u16>,
}

impl Discovery {
    /// Opens the store, and the socket if its port is known before that of TCP is. Must be called inside a tokio runtime.
    pub fn new(
        swarm: &Config,
        config: &DiscoveryConfig,
        rules: SharedRules,
        listen_addrs: watch::Receiver<Vec<Multiaddr>>,
        peers: watch::Receiver<Vec<PeerInfo>>,
        mapped: watch::Receiver<Mapped>,
    ) -> Result<(Self, Ends), StartError> {
        let port = swarm.discovery_port().unwrap_or_default();
        let address = SocketAddr::new(swarm.listen_ip, port);
        let bound = |source| StartError::Udp { address, source };
        let socket = if port == 0 {
            None
        } else {
            Some(bind(address).map_err(bound)?)
        };
        let (store, stored) = Peerstore::open(config.store.as_deref(), "--p2p.discovery.path")?;
        let (found, found_out) = mpsc::channel(FOUND);
        let (questions_in, questions) = mpsc::channel(QUESTIONS);
        let (udp, udp_out) = watch::channel(0);
        let discovery = Self {
            config: config.clone(),
            key: record::key(&swarm.identity).ok_or(StartError::Identity)?,
            local: swarm.identity.public().to_peer_id(),
            chain_id: swarm.chain_id,
            lo: swarm.tides.lo,
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
            questions,
        };
        Ok((
            discovery,
            Ends {
                found: found_out,
                questions: questions_in,
                udp: udp_out,
            },
        ))
    }
}

/// A socket of one family: what comes over IPv4 must not look like IPv6.
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

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use libp2p::identity::Keypair;
    use std::{cell::RefCell, collections::HashMap};

    thread_local! {
        static KEYS: RefCell<HashMap<PeerId, Keypair>> = RefCell::default();
    }

    /// A contact of chain 10 with a key of its own.
    pub fn contact(ip: [u8; 4], seq: u64) -> Contact {
        let identity = Keypair::generate_secp256k1();
        KEYS.with_borrow_mut(|keys| keys.insert(identity.public().to_peer_id(), identity.clone()));
        signed(&identity, ip, seq)
    }

    /// The same node at another address.
    pub fn moved(contact: &Contact, ip: [u8; 4], seq: u64) -> Contact {
        KEYS.with_borrow(|keys| signed(&keys[&contact.peer()], ip, seq))
    }

    fn signed(identity: &Keypair, ip: [u8; 4], seq: u64) -> Contact {
        let ports = Advertise {
            tcp: 9222,
            udp: 9222,
        };
        let record = record::ours(
            &record::key(identity).unwrap(),
            10,
            seq,
            Some(ip.into()),
            ports,
        )
        .unwrap();
        Contact::of(&record, 10, Scope::Machine).unwrap()
    }
}
