//! The gate refuses connections: blocked and banned peers, addresses and subnets, addresses outside
//! `--p2p.netrestrict`, and too many connections of untrusted peers. It refuses before the
//! handshake where the address is reason enough (the rules are those of op-node's connection
//! gater):
//!
//! | when | checked |
//! |---|---|
//! | a peer is dialled | the peer |
//! | an address is dialled, names resolved | the address |
//! | a connection comes in | the address, and the number of its open handshakes |
//! | its handshake is done | the peer, and the number of connections of untrusted peers |
//!
//! Overload: untrusted peers that open connections. Handshakes and connections are bounded
//! altogether and per address, so that one address cannot use up the capacity of others. Static and
//! protected peers are not counted, nor are TCP handshakes from addresses of static peers. Over
//! QUIC the gate decides after the listener has responded to a first datagram, which costs a
//! signature in the swarm's task. Thousands of such datagrams a second slow the swarm down,
//! whatever their sender address. This is the price of `--p2p.listen.quic`.

use crate::{
    address::{ip_of, site},
    metrics as meters,
};
use ipnet::IpNet;
use libp2p::{
    Multiaddr, PeerId, TransportError,
    core::{
        Endpoint, Transport,
        multiaddr::Protocol,
        transport::{DialOpts, ListenerId, PortUse, TransportEvent},
    },
    swarm::{
        ConnectionClosed, ConnectionDenied, ConnectionId, FromSwarm, ListenFailure,
        NetworkBehaviour, THandler, THandlerInEvent, THandlerOutEvent, ToSwarm, dummy,
    },
};
use parking_lot::{Mutex, MutexGuard};
use std::{
    collections::{BTreeSet, HashMap},
    convert::Infallible,
    io,
    net::IpAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

/// Largest number of open handshakes of untrusted peers, altogether and from one address. TCP and
/// QUIC are counted separately: the sender address of a first datagram may be forged, so handshakes
/// over QUIC must not use up the capacity of TCP.
const HANDSHAKES: usize = 128;
const HANDSHAKES_PER_ADDRESS: usize = 16;
/// Largest number of open QUIC handshakes from one address of a static peer. Such an address may be
/// forged, too. A static peer whose capacity a forger has used up is still reached by our dials.
const TRUSTED_PER_ADDRESS: usize = 64;
/// Largest numbers of connections that untrusted peers opened, altogether and from one address. The
/// total may be higher: twice the upper limit of peers, if that is more.
const INCOMING: usize = 256;
const INCOMING_PER_ADDRESS: usize = 64;
/// Largest number of connections of one untrusted peer: above it, inbound ones are refused. One is
/// usual; a second exists for a moment when both sides dial.
const PER_PEER: usize = 4;

/// Whether the address is a QUIC address (over UDP).
fn is_quic(address: &Multiaddr) -> bool {
    address.iter().any(|part| matches!(part, Protocol::Udp(_)))
}

/// The reason why a connection is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GateRefusal {
    #[error("the peer is blocked by an operator")]
    BlockedPeer,
    #[error("the peer is banned")]
    BannedPeer,
    #[error("the address is blocked by an operator")]
    BlockedAddress,
    #[error("the subnet is blocked by an operator")]
    BlockedSubnet,
    #[error("the address is banned")]
    BannedAddress,
    #[error("the address is outside of --p2p.netrestrict")]
    Restricted,
    #[error("the address is no IP address")]
    NoAddress,
    #[error("too many handshakes at once")]
    Handshakes,
    #[error("too many connections")]
    Connections,
}

impl GateRefusal {
    pub fn label(self) -> &'static str {
        match self {
            GateRefusal::BlockedPeer => "blocked_peer",
            GateRefusal::BannedPeer => "banned_peer",
            GateRefusal::BlockedAddress => "blocked_address",
            GateRefusal::BlockedSubnet => "blocked_subnet",
            GateRefusal::BannedAddress => "banned_address",
            GateRefusal::Restricted => "netrestrict",
            GateRefusal::NoAddress => "no_address",
            GateRefusal::Handshakes => "handshakes",
            GateRefusal::Connections => "connections",
        }
    }
}

/// Rules that refuse listed peers and addresses. [`crate::peers`] adds and removes bans; an
/// operator blocks and unblocks.
#[derive(Debug, Default)]
pub struct GateRules {
    /// The only networks with which connections are allowed; empty allows every network.
    pub restrict: Vec<IpNet>,
    pub blocked_peers: BTreeSet<PeerId>,
    pub blocked_addresses: BTreeSet<IpAddr>,
    pub blocked_subnets: BTreeSet<IpNet>,
    pub banned_peers: BTreeSet<PeerId>,
    /// The [`site`]s of banned addresses.
    pub banned_addresses: BTreeSet<IpAddr>,
    /// Static peers, and peers that an operator protects.
    pub trusted_peers: BTreeSet<PeerId>,
    /// The [`site`]s of static peers.
    pub trusted_addresses: BTreeSet<IpAddr>,
}

impl GateRules {
    pub fn peer(&self, peer: &PeerId) -> Result<(), GateRefusal> {
        match peer {
            peer if self.blocked_peers.contains(peer) => Err(GateRefusal::BlockedPeer),
            peer if self.banned_peers.contains(peer) => Err(GateRefusal::BannedPeer),
            _ => Ok(()),
        }
    }

    pub fn address(&self, address: IpAddr) -> Result<(), GateRefusal> {
        let address = address.to_canonical();
        match address {
            ip if self.blocked_addresses.contains(&ip) => Err(GateRefusal::BlockedAddress),
            ip if self.blocked_subnets.iter().any(|net| net.contains(&ip)) => {
                Err(GateRefusal::BlockedSubnet)
            }
            ip if self.banned_addresses.contains(&site(ip)) => Err(GateRefusal::BannedAddress),
            ip if !self.restrict.is_empty()
                && !self.restrict.iter().any(|net| net.contains(&ip)) =>
            {
                Err(GateRefusal::Restricted)
            }
            _ => Ok(()),
        }
    }

    /// Whether the peer may be dialled at one of the addresses; if not, the refusal of the peer or
    /// of the last address.
    pub fn any_of(&self, peer: &PeerId, addresses: &[Multiaddr]) -> Result<(), GateRefusal> {
        self.peer(peer)?;
        let mut outcome = Ok(());
        for address in addresses {
            match self.multiaddr(address) {
                Ok(_) => return Ok(()),
                Err(refusal) => outcome = Err(refusal),
            }
        }
        outcome
    }

    /// Checks the IP address that the multiaddr begins with by [`GateRules::address`], and returns
    /// it.
    pub fn multiaddr(&self, address: &Multiaddr) -> Result<IpAddr, GateRefusal> {
        let ip = ip_of(address).ok_or(GateRefusal::NoAddress)?;
        self.address(ip).map(|()| ip)
    }
}

/// The rules, shared by the transport, the swarm's behaviour, the swarm's task and discovery. The
/// lock is held only for a look-up or a change.
#[derive(Clone, Debug, Default)]
pub struct SharedGateRules(Arc<Mutex<GateRules>>);

impl SharedGateRules {
    pub fn new(rules: GateRules) -> Self {
        Self(Arc::new(Mutex::new(rules)))
    }

    pub fn lock(&self) -> MutexGuard<'_, GateRules> {
        self.0.lock()
    }
}

fn count(refusal: GateRefusal) -> GateRefusal {
    metrics::counter!("starling_p2p_refused_connections_total", "reason" => refusal.label())
        .increment(1);
    refusal
}

/// A kind of handshake. Each kind is counted separately.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HandshakeKind {
    Tcp,
    Quic,
    /// QUIC, from the address of a static peer, which may be forged.
    TrustedQuic,
}

/// The open handshakes of each kind, with the sites that they come from.
#[derive(Default)]
struct Handshakes {
    tcp: HashMap<ConnectionId, IpAddr>,
    quic: HashMap<ConnectionId, IpAddr>,
    trusted_quic: HashMap<ConnectionId, IpAddr>,
}

impl Handshakes {
    fn of(&mut self, kind: HandshakeKind) -> &mut HashMap<ConnectionId, IpAddr> {
        match kind {
            HandshakeKind::Tcp => &mut self.tcp,
            HandshakeKind::Quic => &mut self.quic,
            HandshakeKind::TrustedQuic => &mut self.trusted_quic,
        }
    }

    fn remove(&mut self, connection: ConnectionId) {
        for handshakes in [&mut self.tcp, &mut self.quic, &mut self.trusted_quic] {
            handshakes.remove(&connection);
        }
    }
}

/// The gate as a libp2p behaviour: it checks inbound connections, and the peers of outbound ones.
pub struct Gate {
    rules: SharedGateRules,
    /// Largest number of connections that untrusted peers may open.
    max_incoming: usize,
    handshakes: Handshakes,
    /// Connections that untrusted peers opened, with the sites that they come from.
    incoming: HashMap<ConnectionId, IpAddr>,
    /// All connections of each peer.
    peers: HashMap<PeerId, Vec<ConnectionId>>,
}

impl Gate {
    /// A gate for a node with `hi` as upper limit of peers.
    pub fn new(rules: SharedGateRules, hi: usize) -> Self {
        Self {
            rules,
            max_incoming: hi.saturating_mul(2).max(INCOMING),
            handshakes: Handshakes::default(),
            incoming: HashMap::new(),
            peers: HashMap::new(),
        }
    }

    /// The kind and the site under which a new handshake is counted; `None` for a handshake that is
    /// not counted.
    fn admit_handshake(
        &mut self,
        address: &Multiaddr,
    ) -> Result<Option<(HandshakeKind, IpAddr)>, GateRefusal> {
        let rules = self.rules.lock();
        let site = site(rules.multiaddr(address)?);
        let trusted = rules.trusted_addresses.contains(&site);
        let (kind, per_address) = if is_quic(address) && trusted {
            (HandshakeKind::TrustedQuic, TRUSTED_PER_ADDRESS)
        } else if is_quic(address) {
            (HandshakeKind::Quic, HANDSHAKES_PER_ADDRESS)
        } else if trusted {
            return Ok(None);
        } else {
            (HandshakeKind::Tcp, HANDSHAKES_PER_ADDRESS)
        };
        check_capacity(
            self.handshakes.of(kind),
            site,
            HANDSHAKES,
            per_address,
            GateRefusal::Handshakes,
        )?;
        Ok(Some((kind, site)))
    }

    fn admit_connection(
        &self,
        peer: &PeerId,
        address: &Multiaddr,
    ) -> Result<Option<IpAddr>, GateRefusal> {
        let rules = self.rules.lock();
        rules.peer(peer)?;
        if rules.trusted_peers.contains(peer) {
            return Ok(None);
        }
        // Check the address again: the rules may have changed during the handshake.
        let site = site(rules.multiaddr(address)?);
        if self
            .peers
            .get(peer)
            .is_some_and(|connections| connections.len() >= PER_PEER)
        {
            return Err(GateRefusal::Connections);
        }
        check_capacity(
            &self.incoming,
            site,
            self.max_incoming,
            INCOMING_PER_ADDRESS,
            GateRefusal::Connections,
        )?;
        Ok(Some(site))
    }

    /// Admits an inbound connection before its handshake, or refuses it.
    pub fn on_inbound(&mut self, id: ConnectionId, remote: &Multiaddr) -> Result<(), GateRefusal> {
        if let Some((kind, site)) = self.admit_handshake(remote)? {
            self.handshakes.of(kind).insert(id, site);
        }
        Ok(())
    }

    /// Admits an inbound connection after its handshake, or refuses it.
    pub fn on_established_inbound(
        &mut self,
        id: ConnectionId,
        peer: PeerId,
        remote: &Multiaddr,
    ) -> Result<(), GateRefusal> {
        self.handshakes.remove(id);
        let counted = self.admit_connection(&peer, remote)?;
        self.incoming.extend(counted.map(|site| (id, site)));
        self.peers.entry(peer).or_default().push(id);
        Ok(())
    }

    /// Counts an established outbound connection.
    pub fn on_established_outbound(&mut self, id: ConnectionId, peer: PeerId) {
        self.peers.entry(peer).or_default().push(id);
    }

    /// Forgets a connection that has closed.
    pub fn forget(&mut self, peer: PeerId, connection: ConnectionId) {
        self.incoming.remove(&connection);
        if let Some(connections) = self.peers.get_mut(&peer) {
            connections.retain(|other| *other != connection);
            if connections.is_empty() {
                self.peers.remove(&peer);
            }
        }
    }
}

/// Refuses with `refusal` if `counted` has `max` entries, or `per_address` from the same site.
fn check_capacity(
    counted: &HashMap<ConnectionId, IpAddr>,
    site: IpAddr,
    max: usize,
    per_address: usize,
    refusal: GateRefusal,
) -> Result<(), GateRefusal> {
    let same_site = counted.values().filter(|other| **other == site).count();
    if counted.len() < max && same_site < per_address {
        Ok(())
    } else {
        Err(refusal)
    }
}

impl NetworkBehaviour for Gate {
    type ConnectionHandler = dummy::ConnectionHandler;
    type ToSwarm = Infallible;

    fn handle_pending_inbound_connection(
        &mut self,
        id: ConnectionId,
        _: &Multiaddr,
        remote: &Multiaddr,
    ) -> Result<(), ConnectionDenied> {
        let admitted = self.on_inbound(id, remote);
        meters::accept(admitted.is_ok());
        admitted.map_err(|refusal| ConnectionDenied::new(count(refusal)))
    }

    fn handle_established_inbound_connection(
        &mut self,
        id: ConnectionId,
        peer: PeerId,
        _: &Multiaddr,
        remote: &Multiaddr,
    ) -> Result<THandler<Self>, ConnectionDenied> {
        self.on_established_inbound(id, peer, remote)
            .map_err(|refusal| ConnectionDenied::new(count(refusal)))?;
        Ok(dummy::ConnectionHandler)
    }

    fn handle_pending_outbound_connection(
        &mut self,
        _: ConnectionId,
        peer: Option<PeerId>,
        _: &[Multiaddr],
        _: Endpoint,
    ) -> Result<Vec<Multiaddr>, ConnectionDenied> {
        let allowed = peer.map_or(Ok(()), |peer| self.rules.lock().peer(&peer));
        if allowed.is_err() {
            meters::dial(false);
        }
        allowed
            .map(|()| Vec::new())
            .map_err(|refusal| ConnectionDenied::new(count(refusal)))
    }

    fn handle_established_outbound_connection(
        &mut self,
        id: ConnectionId,
        peer: PeerId,
        _: &Multiaddr,
        _: Endpoint,
        _: PortUse,
    ) -> Result<THandler<Self>, ConnectionDenied> {
        self.on_established_outbound(id, peer);
        Ok(dummy::ConnectionHandler)
    }

    fn on_swarm_event(&mut self, event: FromSwarm) {
        match event {
            FromSwarm::ConnectionClosed(ConnectionClosed {
                connection_id,
                peer_id,
                ..
            }) => {
                self.forget(peer_id, connection_id);
            }
            // Another behaviour may have refused a connection that the gate had admitted: forget it
            // here.
            FromSwarm::ListenFailure(ListenFailure {
                connection_id,
                peer_id,
                ..
            }) => {
                self.handshakes.remove(connection_id);
                if let Some(peer) = peer_id {
                    self.forget(peer, connection_id);
                }
            }
            _ => {}
        }
    }

    fn on_connection_handler_event(
        &mut self,
        _: PeerId,
        _: ConnectionId,
        event: THandlerOutEvent<Self>,
    ) {
        match event {}
    }

    fn poll(&mut self, _: &mut Context<'_>) -> Poll<ToSwarm<Self::ToSwarm, THandlerInEvent<Self>>> {
        Poll::Pending
    }
}

/// A transport that dials only addresses that the rules allow. It wraps the transports below name
/// resolution, so a DNS name is checked by the addresses that it resolves to.
pub struct Gated<T> {
    inner: T,
    rules: SharedGateRules,
}

impl<T> Gated<T> {
    pub fn new(inner: T, rules: SharedGateRules) -> Self {
        Self { inner, rules }
    }
}

impl<T: Transport<Error = io::Error> + Unpin> Transport for Gated<T> {
    type Output = T::Output;
    type Error = io::Error;
    type ListenerUpgrade = T::ListenerUpgrade;
    type Dial = T::Dial;

    fn listen_on(
        &mut self,
        id: ListenerId,
        address: Multiaddr,
    ) -> Result<(), TransportError<io::Error>> {
        self.inner.listen_on(id, address)
    }

    fn remove_listener(&mut self, id: ListenerId) -> bool {
        self.inner.remove_listener(id)
    }

    fn dial(
        &mut self,
        address: Multiaddr,
        options: DialOpts,
    ) -> Result<T::Dial, TransportError<io::Error>> {
        let rules = self.rules.lock();
        let allowed = rules.multiaddr(&address);
        // A ban of the address may be due to other peers there, so it does not apply to a trusted
        // peer. For a peer given by name, the address is known only here.
        let trusted = matches!(address.iter().last(), Some(Protocol::P2p(peer)) if rules.trusted_peers.contains(&peer));
        drop(rules);
        let allowed = allowed.map(drop).or_else(|refusal| match refusal {
            GateRefusal::BannedAddress if trusted => Ok(()),
            refusal => Err(refusal),
        });
        if allowed != Err(GateRefusal::NoAddress) {
            meters::dial(allowed.is_ok());
        }
        match allowed {
            Ok(()) => self.inner.dial(address, options),
            Err(GateRefusal::NoAddress) => Err(TransportError::MultiaddrNotSupported(address)),
            Err(refusal) => Err(TransportError::Other(io::Error::new(
                io::ErrorKind::PermissionDenied,
                count(refusal),
            ))),
        }
    }

    fn poll(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<TransportEvent<Self::ListenerUpgrade, io::Error>> {
        Pin::new(&mut self.inner).poll(cx)
    }
}

#[cfg(test)]
mod tests;
