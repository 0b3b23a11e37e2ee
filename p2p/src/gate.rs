//! Who may connect: blocked and banned peers, addresses and subnets, `--p2p.netrestrict`, and how many connections strangers may
//! have. Asked before any handshake where the address says enough (specs of the rules: op-node's connection gater):
//!
//! | when | asked about |
//! |---|---|
//! | a peer is dialled | the peer |
//! | an address is dialled, names resolved | the address |
//! | a connection comes in | the address, and how many handshakes it has open |
//! | its handshake is done | the peer, and how many connections strangers have |
//!
//! What can overload it: strangers who open connections. Handshakes and connections are bounded altogether and per address, so that
//! one address cannot take the places of others; static and protected peers are not counted, nor over TCP the addresses where
//! static ones live. Over QUIC the gate is asked after the listener has answered a first datagram, which takes a signature in the
//! swarm's task: thousands of those a second slow the swarm down, whoever they claim to be from. That is the price of
//! `--p2p.listen.quic`.

use crate::metrics as meters;
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
    net::{IpAddr, Ipv6Addr},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

/// Handshakes of strangers at once, altogether and from one address. Over TCP, and as many over QUIC: where a first datagram came from
/// is not proven, so those of QUIC may be anybody's, and must not take the places of others.
const HANDSHAKES: usize = 128;
const HANDSHAKES_PER_ADDRESS: usize = 16;
/// For the same reason those of QUIC from addresses of static peers are counted, too, with as many places of their own. A static peer
/// whose places others take in its name is reached by our dials.
const FRIENDS_PER_ADDRESS: usize = 64;
/// Connections that strangers opened, altogether (or twice as many as are kept, if that is more) and from one address.
const INCOMING: usize = 256;
const INCOMING_PER_ADDRESS: usize = 64;
/// One is meant; a second may exist for a moment when both sides dial.
const PER_PEER: usize = 4;

/// The place an address stands for: one IPv4 address, or the network of 64 bits that one owner of IPv6 has at least.
pub fn site(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(address) => IpAddr::V4(address),
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() >> 64 << 64)),
    }
}

/// The address of a multiaddr that begins with one and has no other: transports differ in which of several they dial.
pub fn ip_of(address: &Multiaddr) -> Option<IpAddr> {
    let ip = |part: Protocol<'_>| match part {
        Protocol::Ip4(address) => Some(IpAddr::from(address)),
        Protocol::Ip6(address) => Some(IpAddr::from(address).to_canonical()),
        _ => None,
    };
    let mut parts = address.iter();
    let first = ip(parts.next()?)?;
    parts.all(|part| ip(part).is_none()).then_some(first)
}

/// Whether it is one of QUIC.
fn is_datagrams(address: &Multiaddr) -> bool {
    address.iter().any(|part| matches!(part, Protocol::Udp(_)))
}

/// Why a connection is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
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

impl Refusal {
    pub fn label(self) -> &'static str {
        match self {
            Refusal::BlockedPeer => "blocked_peer",
            Refusal::BannedPeer => "banned_peer",
            Refusal::BlockedAddress => "blocked_address",
            Refusal::BlockedSubnet => "blocked_subnet",
            Refusal::BannedAddress => "banned_address",
            Refusal::Restricted => "netrestrict",
            Refusal::NoAddress => "no_address",
            Refusal::Handshakes => "handshakes",
            Refusal::Connections => "connections",
        }
    }
}

/// What is refused by name. Bans come and go with [`crate::peers`], blocks with an operator.
#[derive(Debug, Default)]
pub struct Rules {
    /// Empty allows every network.
    pub restrict: Vec<IpNet>,
    pub blocked_peers: BTreeSet<PeerId>,
    pub blocked_addresses: BTreeSet<IpAddr>,
    pub blocked_subnets: BTreeSet<IpNet>,
    pub banned_peers: BTreeSet<PeerId>,
    /// [`site`]s.
    pub banned_addresses: BTreeSet<IpAddr>,
    /// Static peers, and those that an operator protects.
    pub friends: BTreeSet<PeerId>,
    /// The [`site`]s where static peers live.
    pub friendly_addresses: BTreeSet<IpAddr>,
}

impl Rules {
    pub fn peer(&self, peer: &PeerId) -> Result<(), Refusal> {
        match peer {
            peer if self.blocked_peers.contains(peer) => Err(Refusal::BlockedPeer),
            peer if self.banned_peers.contains(peer) => Err(Refusal::BannedPeer),
            _ => Ok(()),
        }
    }

    pub fn address(&self, address: IpAddr) -> Result<(), Refusal> {
        let address = address.to_canonical();
        match address {
            ip if self.blocked_addresses.contains(&ip) => Err(Refusal::BlockedAddress),
            ip if self.blocked_subnets.iter().any(|net| net.contains(&ip)) => {
                Err(Refusal::BlockedSubnet)
            }
            ip if self.banned_addresses.contains(&site(ip)) => Err(Refusal::BannedAddress),
            ip if !self.restrict.is_empty()
                && !self.restrict.iter().any(|net| net.contains(&ip)) =>
            {
                Err(Refusal::Restricted)
            }
            _ => Ok(()),
        }
    }

    /// [`Rules::address`] of the address it begins with.
    pub fn multiaddr(&self, address: &Multiaddr) -> Result<IpAddr, Refusal> {
        let ip = ip_of(address).ok_or(Refusal::NoAddress)?;
        self.address(ip).map(|()| ip)
    }
}

/// The rules, shared by the transport, the swarm's behaviour and the swarm's task. Locked for a look-up at a time.
#[derive(Clone, Debug, Default)]
pub struct SharedRules(Arc<Mutex<Rules>>);

impl SharedRules {
    pub fn new(rules: Rules) -> Self {
        Self(Arc::new(Mutex::new(rules)))
    }

    pub fn lock(&self) -> MutexGuard<'_, Rules> {
        self.0.lock()
    }
}

fn count(refusal: Refusal) -> Refusal {
    metrics::counter!("starling_p2p_refused_connections_total", "reason" => refusal.label())
        .increment(1);
    refusal
}

/// The gate as a behaviour: inbound connections, and the peers of outbound ones.
pub struct Gate {
    rules: SharedRules,
    /// Connections that strangers may open.
    most: usize,
    /// Handshakes of strangers over TCP and over QUIC, and of static peers over QUIC, as it seems.
    handshakes: [HashMap<ConnectionId, IpAddr>; 3],
    /// Connections that strangers opened.
    incoming: HashMap<ConnectionId, IpAddr>,
    /// All connections.
    peers: HashMap<PeerId, Vec<ConnectionId>>,
}

impl Gate {
    /// `hi` peers are kept.
    pub fn new(rules: SharedRules, hi: usize) -> Self {
        Self {
            rules,
            most: hi.saturating_mul(2).max(INCOMING),
            handshakes: Default::default(),
            incoming: HashMap::new(),
            peers: HashMap::new(),
        }
    }

    /// Where it is counted, and as what.
    fn may_shake_hands(&self, address: &Multiaddr) -> Result<Option<(usize, IpAddr)>, Refusal> {
        let rules = self.rules.lock();
        let place = site(rules.multiaddr(address)?);
        let (table, per_address) = match (
            is_datagrams(address),
            rules.friendly_addresses.contains(&place),
        ) {
            (false, true) => return Ok(None),
            (false, false) => (0, HANDSHAKES_PER_ADDRESS),
            (true, false) => (1, HANDSHAKES_PER_ADDRESS),
            (true, true) => (2, FRIENDS_PER_ADDRESS),
        };
        has_room(
            &self.handshakes[table],
            place,
            HANDSHAKES,
            per_address,
            Refusal::Handshakes,
        )?;
        Ok(Some((table, place)))
    }

    fn shook_hands(&mut self, connection: ConnectionId) {
        for handshakes in &mut self.handshakes {
            handshakes.remove(&connection);
        }
    }

    fn may_come_in(&self, peer: &PeerId, address: &Multiaddr) -> Result<Option<IpAddr>, Refusal> {
        let rules = self.rules.lock();
        rules.peer(peer)?;
        if rules.friends.contains(peer) {
            return Ok(None);
        }
        // The rules may have changed during the handshake.
        let place = site(rules.multiaddr(address)?);
        if self
            .peers
            .get(peer)
            .is_some_and(|connections| connections.len() >= PER_PEER)
        {
            return Err(Refusal::Connections);
        }
        has_room(
            &self.incoming,
            place,
            self.most,
            INCOMING_PER_ADDRESS,
            Refusal::Connections,
        )?;
        Ok(Some(place))
    }

    fn forget(&mut self, peer: PeerId, connection: ConnectionId) {
        self.incoming.remove(&connection);
        if let Some(connections) = self.peers.get_mut(&peer) {
            connections.retain(|other| *other != connection);
            if connections.is_empty() {
                self.peers.remove(&peer);
            }
        }
    }
}

fn has_room(
    taken: &HashMap<ConnectionId, IpAddr>,
    place: IpAddr,
    most: usize,
    per_address: usize,
    refusal: Refusal,
) -> Result<(), Refusal> {
    let there = taken.values().filter(|other| **other == place).count();
    if taken.len() < most && there < per_address {
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
        let counted = self.may_shake_hands(remote);
        meters::accept(counted.is_ok());
        match counted {
            Ok(counted) => {
                if let Some((table, place)) = counted {
                    self.handshakes[table].insert(id, place);
                }
                Ok(())
            }
            Err(refusal) => Err(ConnectionDenied::new(count(refusal))),
        }
    }

    fn handle_established_inbound_connection(
        &mut self,
        id: ConnectionId,
        peer: PeerId,
        _: &Multiaddr,
        remote: &Multiaddr,
    ) -> Result<THandler<Self>, ConnectionDenied> {
        self.shook_hands(id);
        let stranger = self
            .may_come_in(&peer, remote)
            .map_err(|refusal| ConnectionDenied::new(count(refusal)))?;
        self.incoming.extend(stranger.map(|place| (id, place)));
        self.peers.entry(peer).or_default().push(id);
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
        self.peers.entry(peer).or_default().push(id);
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
            // Also of connections that another behaviour refused after we had let them in.
            FromSwarm::ListenFailure(ListenFailure {
                connection_id,
                peer_id,
                ..
            }) => {
                self.shook_hands(connection_id);
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

/// A transport that dials only addresses that the rules allow. It stands below name resolution: a name is as good as its address.
pub struct Gated<T> {
    inner: T,
    rules: SharedRules,
}

impl<T> Gated<T> {
    pub fn new(inner: T, rules: SharedRules) -> Self {
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
        // Others of its address may have been banned, which says nothing of a friend; that of a named one is not known before.
        let friend = matches!(address.iter().last(), Some(Protocol::P2p(peer)) if rules.friends.contains(&peer));
        drop(rules);
        let allowed = allowed.map(drop).or_else(|refusal| match refusal {
            Refusal::BannedAddress if friend => Ok(()),
            refusal => Err(refusal),
        });
        if allowed != Err(Refusal::NoAddress) {
            meters::dial(allowed.is_ok());
        }
        match allowed {
            Ok(()) => self.inner.dial(address, options),
            Err(Refusal::NoAddress) => Err(TransportError::MultiaddrNotSupported(address)),
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
