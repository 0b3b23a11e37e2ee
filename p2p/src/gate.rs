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
//! one address cannot take the places of others; static peers and the addresses they live at are not counted.

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
        ConnectionClosed, ConnectionDenied, ConnectionId, FromSwarm, ListenFailure, NetworkBehaviour, THandler, THandlerInEvent,
        THandlerOutEvent, ToSwarm, dummy,
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
    /// Static peers.
    pub friends: BTreeSet<PeerId>,
    /// The [`site`]s they live at.
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
            ip if self.blocked_subnets.iter().any(|net| net.contains(&ip)) => Err(Refusal::BlockedSubnet),
            ip if self.banned_addresses.contains(&site(ip)) => Err(Refusal::BannedAddress),
            ip if !self.restrict.is_empty() && !self.restrict.iter().any(|net| net.contains(&ip)) => Err(Refusal::Restricted),
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
    metrics::counter!("starling_p2p_refused_connections_total", "reason" => refusal.label()).increment(1);
    refusal
}

/// The gate as a behaviour: inbound connections, and the peers of outbound ones.
pub struct Gate {
    rules: SharedRules,
    /// Connections that strangers may open.
    most: usize,
    /// Handshakes of strangers, over TCP and over QUIC.
    handshakes: [HashMap<ConnectionId, IpAddr>; 2],
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

    fn may_shake_hands(&self, address: &Multiaddr) -> Result<Option<IpAddr>, Refusal> {
        let rules = self.rules.lock();
        let place = site(rules.multiaddr(address)?);
        if rules.friendly_addresses.contains(&place) {
            return Ok(None);
        }
        let taken = &self.handshakes[usize::from(is_datagrams(address))];
        has_room(taken, place, HANDSHAKES, HANDSHAKES_PER_ADDRESS, Refusal::Handshakes)?;
        Ok(Some(place))
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
        if self.peers.get(peer).is_some_and(|connections| connections.len() >= PER_PEER) {
            return Err(Refusal::Connections);
        }
        has_room(&self.incoming, place, self.most, INCOMING_PER_ADDRESS, Refusal::Connections)?;
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
    if taken.len() < most && there < per_address { Ok(()) } else { Err(refusal) }
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
        let stranger = self.may_shake_hands(remote);
        meters::accept(stranger.is_ok());
        match stranger {
            Ok(stranger) => {
                self.handshakes[usize::from(is_datagrams(remote))].extend(stranger.map(|place| (id, place)));
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
        let stranger = self.may_come_in(&peer, remote).map_err(|refusal| ConnectionDenied::new(count(refusal)))?;
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
        allowed.map(|()| Vec::new()).map_err(|refusal| ConnectionDenied::new(count(refusal)))
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
            FromSwarm::ConnectionClosed(ConnectionClosed { connection_id, peer_id, .. }) => {
                self.forget(peer_id, connection_id);
            }
            // Also of connections that another behaviour refused after we had let them in.
            FromSwarm::ListenFailure(ListenFailure { connection_id, peer_id, .. }) => {
                self.shook_hands(connection_id);
                if let Some(peer) = peer_id {
                    self.forget(peer, connection_id);
                }
            }
            _ => {}
        }
    }

    fn on_connection_handler_event(&mut self, _: PeerId, _: ConnectionId, event: THandlerOutEvent<Self>) {
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

    fn listen_on(&mut self, id: ListenerId, address: Multiaddr) -> Result<(), TransportError<io::Error>> {
        self.inner.listen_on(id, address)
    }

    fn remove_listener(&mut self, id: ListenerId) -> bool {
        self.inner.remove_listener(id)
    }

    fn dial(&mut self, address: Multiaddr, options: DialOpts) -> Result<T::Dial, TransportError<io::Error>> {
        let rules = self.rules.lock();
        let allowed = rules.multiaddr(&address);
        // Others of its address may have been banned, which says nothing of a static peer; that of a named one is not known before.
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
            Err(refusal) => Err(TransportError::Other(io::Error::new(io::ErrorKind::PermissionDenied, count(refusal)))),
        }
    }

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<TransportEvent<Self::ListenerUpgrade, io::Error>> {
        Pin::new(&mut self.inner).poll(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> Multiaddr {
        text.parse().unwrap()
    }

    #[test]
    fn rules_are_those_of_the_table() {
        let mut rules = Rules::default();
        let peer = PeerId::random();
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        assert_eq!((rules.peer(&peer), rules.address(ip("10.1.2.3"))), (Ok(()), Ok(())));
        rules.banned_peers.insert(peer);
        assert_eq!(rules.peer(&peer), Err(Refusal::BannedPeer));
        rules.blocked_peers.insert(peer);
        assert_eq!(rules.peer(&peer), Err(Refusal::BlockedPeer), "the operator's word comes first");
        rules.blocked_subnets.insert("10.1.0.0/16".parse().unwrap());
        assert_eq!(rules.address(ip("10.1.2.3")), Err(Refusal::BlockedSubnet));
        assert_eq!(rules.address(ip("::ffff:10.1.2.3")), Err(Refusal::BlockedSubnet), "mapped addresses are the same");
        rules.banned_addresses.insert(site(ip("2001:db8::1")));
        assert_eq!(rules.address(ip("2001:db8::ffff:1")), Err(Refusal::BannedAddress), "the owner has the whole network");
        assert_eq!(rules.address(ip("2001:db8:0:1::1")), Ok(()));
        rules.restrict = vec!["192.168.0.0/24".parse().unwrap(), "fd00::/8".parse().unwrap()];
        assert_eq!(rules.address(ip("192.168.0.9")), Ok(()));
        assert_eq!(rules.address(ip("fd12::9")), Ok(()));
        assert_eq!(rules.address(ip("192.168.1.9")), Err(Refusal::Restricted));
        for ends in ["tcp/1", "udp/1/quic-v1"] {
            let of = |ip: &str| rules.multiaddr(&address(&format!("{ip}/{ends}")));
            assert_eq!(of("/dns4/example.org"), Err(Refusal::NoAddress));
            assert_eq!(of("/ip4/192.168.0.9"), Ok(ip("192.168.0.9")));
            assert_eq!(of("/ip4/10.1.2.3"), Err(Refusal::BlockedSubnet));
            assert_eq!(of("/ip6/::ffff:10.1.2.3"), Err(Refusal::BlockedSubnet));
            assert_eq!(of("/ip6/2001:db8::9"), Err(Refusal::BannedAddress));
            assert_eq!(of("/ip4/192.168.0.9/tcp/1/ip4/10.1.2.3"), Err(Refusal::NoAddress), "which one would be dialled?");
        }
    }

    #[test]
    fn one_address_cannot_take_everybodys_places() {
        let rules = SharedRules::default();
        rules.lock().friendly_addresses.insert("10.0.0.1".parse().unwrap());
        let friend = PeerId::random();
        rules.lock().friends.insert(friend);
        let mut gate = Gate::new(rules, 30);
        let local = address("/ip4/10.0.0.9/tcp/1");
        let mut next = 0;
        let mut knock = |gate: &mut Gate, from: &str| {
            next += 1;
            let id = ConnectionId::new_unchecked(next);
            gate.handle_pending_inbound_connection(id, &local, &address(from)).is_ok().then_some(id)
        };
        let held: Vec<ConnectionId> = (0..50).filter_map(|_| knock(&mut gate, "/ip4/10.0.0.2/tcp/5")).collect();
        assert_eq!(held.len(), HANDSHAKES_PER_ADDRESS);
        assert!(knock(&mut gate, "/ip4/10.0.0.3/tcp/5").is_some(), "others still may");
        for i in 0..200 {
            let _ = knock(&mut gate, &format!("/ip4/10.0.1.{i}/tcp/5"));
        }
        assert_eq!(gate.handshakes[0].len(), HANDSHAKES);
        assert!(knock(&mut gate, "/ip4/10.0.0.4/tcp/5").is_none());
        let datagrams = (0..50).filter(|_| knock(&mut gate, "/ip4/10.0.0.5/udp/5/quic-v1").is_some()).count();
        assert_eq!((datagrams, gate.handshakes[1].len()), (HANDSHAKES_PER_ADDRESS, HANDSHAKES_PER_ADDRESS), "those have others");
        assert!((0..50).all(|_| knock(&mut gate, "/ip4/10.0.0.1/tcp/5").is_some()), "a static peer's address always may");

        // A handshake that ends gives its place back, and a connection takes another.
        let from = address("/ip4/10.0.0.2/tcp/5");
        for id in held {
            assert!(gate.handle_established_inbound_connection(id, PeerId::random(), &local, &from).is_ok());
        }
        assert_eq!(
            (gate.handshakes[0].len(), gate.incoming.len()),
            (HANDSHAKES - HANDSHAKES_PER_ADDRESS, HANDSHAKES_PER_ADDRESS)
        );
        let mut enter = |gate: &mut Gate, peer| {
            next += 1;
            gate.handle_established_inbound_connection(ConnectionId::new_unchecked(next), peer, &local, &from).is_ok()
        };
        assert_eq!(
            (0..100).filter(|_| enter(&mut gate, PeerId::random())).count(),
            INCOMING_PER_ADDRESS - HANDSHAKES_PER_ADDRESS
        );
        assert!((0..10).all(|_| enter(&mut gate, friend)), "static peers are not counted");
        let one = PeerId::random();
        let from = address("/ip4/10.0.0.7/tcp/5");
        let enter = |gate: &mut Gate, id| {
            gate.handle_established_inbound_connection(ConnectionId::new_unchecked(id), one, &local, &from).is_ok()
        };
        assert_eq!((9_000..9_010).filter(|id| enter(&mut gate, *id)).count(), PER_PEER);
    }

    #[test]
    fn as_many_may_come_in_as_are_to_be_kept() {
        let local = address("/ip4/10.0.0.9/tcp/1");
        for (hi, most) in [(30, INCOMING), (400, 800), (usize::MAX, 2_000)] {
            let mut gate = Gate::new(SharedRules::default(), hi);
            let enter = |i: usize| {
                let from = address(&format!("/ip4/10.1.{}.{}/tcp/5", i / 200, i % 200));
                gate.handle_established_inbound_connection(ConnectionId::new_unchecked(i), PeerId::random(), &local, &from)
                    .is_ok()
            };
            assert_eq!((0..2_000).map(enter).filter(|entered| *entered).count(), most, "of {hi}");
        }
    }
}
