use super::*;

fn address(text: &str) -> Multiaddr {
    text.parse().unwrap()
}

#[test]
fn rules_are_those_of_the_table() {
    let mut rules = GateRules::default();
    let peer = PeerId::random();
    let ip = |text: &str| text.parse::<IpAddr>().unwrap();
    assert_eq!(
        (rules.peer(&peer), rules.address(ip("10.1.2.3"))),
        (Ok(()), Ok(()))
    );
    rules.banned_peers.insert(peer);
    assert_eq!(rules.peer(&peer), Err(GateRefusal::BannedPeer));
    rules.blocked_peers.insert(peer);
    assert_eq!(
        rules.peer(&peer),
        Err(GateRefusal::BlockedPeer),
        "the operator's block comes first"
    );
    rules.blocked_subnets.insert("10.1.0.0/16".parse().unwrap());
    assert_eq!(
        rules.address(ip("10.1.2.3")),
        Err(GateRefusal::BlockedSubnet)
    );
    assert_eq!(
        rules.address(ip("::ffff:10.1.2.3")),
        Err(GateRefusal::BlockedSubnet),
        "mapped addresses are the same"
    );
    rules.banned_addresses.insert(site(ip("2001:db8::1")));
    assert_eq!(
        rules.address(ip("2001:db8::ffff:1")),
        Err(GateRefusal::BannedAddress),
        "the owner has the whole network"
    );
    assert_eq!(rules.address(ip("2001:db8:0:1::1")), Ok(()));
    rules.restrict = vec![
        "192.168.0.0/24".parse().unwrap(),
        "fd00::/8".parse().unwrap(),
    ];
    assert_eq!(rules.address(ip("192.168.0.9")), Ok(()));
    assert_eq!(rules.address(ip("fd12::9")), Ok(()));
    assert_eq!(
        rules.address(ip("192.168.1.9")),
        Err(GateRefusal::Restricted)
    );
    for ends in ["tcp/1", "udp/1/quic-v1"] {
        let of = |ip: &str| rules.multiaddr(&address(&format!("{ip}/{ends}")));
        assert_eq!(of("/dns4/example.org"), Err(GateRefusal::NoAddress));
        assert_eq!(of("/ip4/192.168.0.9"), Ok(ip("192.168.0.9")));
        assert_eq!(of("/ip4/10.1.2.3"), Err(GateRefusal::BlockedSubnet));
        assert_eq!(of("/ip6/::ffff:10.1.2.3"), Err(GateRefusal::BlockedSubnet));
        assert_eq!(of("/ip6/2001:db8::9"), Err(GateRefusal::BannedAddress));
        assert_eq!(
            of("/ip4/192.168.0.9/tcp/1/ip4/10.1.2.3"),
            Err(GateRefusal::NoAddress),
            "which one would be dialled?"
        );
    }
}

/// A gate with a trusted peer and a trusted address, for inbound connections.
struct Entrance {
    gate: Gate,
    trusted: PeerId,
    next_id: usize,
}

const TRUSTED: &str = "10.0.0.1";

impl Entrance {
    fn new() -> Self {
        let rules = SharedGateRules::default();
        let trusted = PeerId::random();
        rules
            .lock()
            .trusted_addresses
            .insert(TRUSTED.parse().unwrap());
        rules.lock().trusted_peers.insert(trusted);
        Self {
            gate: Gate::new(rules, 30),
            trusted,
            next_id: 0,
        }
    }

    fn id(&mut self) -> ConnectionId {
        self.next_id += 1;
        ConnectionId::new_unchecked(self.next_id)
    }

    /// Begins a handshake; returns its id if the gate admits it.
    fn begin(&mut self, from: &str) -> Option<ConnectionId> {
        let (id, local) = (self.id(), address("/ip4/10.0.0.9/tcp/1"));
        let admitted = self
            .gate
            .handle_pending_inbound_connection(id, &local, &address(from));
        admitted.is_ok().then_some(id)
    }

    /// Begins `count` handshakes; returns the ids of those that the gate admits.
    fn begin_many(&mut self, count: usize, from: &str) -> Vec<ConnectionId> {
        (0..count).filter_map(|_| self.begin(from)).collect()
    }

    /// Ends a handshake; returns whether its connection is admitted.
    fn end(&mut self, id: ConnectionId, peer: PeerId, from: &str) -> bool {
        let local = address("/ip4/10.0.0.9/tcp/1");
        self.gate
            .handle_established_inbound_connection(id, peer, &local, &address(from))
            .is_ok()
    }

    /// Opens a connection; returns whether it is admitted.
    fn connect(&mut self, peer: PeerId, from: &str) -> bool {
        let id = self.id();
        self.end(id, peer, from)
    }
}

#[test]
fn one_address_cannot_use_up_the_handshakes_of_others() {
    let mut entrance = Entrance::new();
    let held = entrance.begin_many(50, "/ip4/10.0.0.2/tcp/5");
    assert_eq!(held.len(), HANDSHAKES_PER_ADDRESS);
    assert!(
        entrance.begin("/ip4/10.0.0.3/tcp/5").is_some(),
        "others still may"
    );
    for i in 0..200 {
        let _ = entrance.begin(&format!("/ip4/10.0.1.{i}/tcp/5"));
    }
    assert_eq!(entrance.gate.handshakes.tcp.len(), HANDSHAKES);
    assert!(entrance.begin("/ip4/10.0.0.4/tcp/5").is_none());
    let datagrams = entrance.begin_many(50, "/ip4/10.0.0.5/udp/5/quic-v1").len();
    assert_eq!(
        (datagrams, entrance.gate.handshakes.quic.len()),
        (HANDSHAKES_PER_ADDRESS, HANDSHAKES_PER_ADDRESS),
        "QUIC is counted by itself"
    );
    assert_eq!(
        entrance.begin_many(50, "/ip4/10.0.0.1/tcp/5").len(),
        50,
        "a static peer's address always may"
    );
    let of_trusted = entrance.begin_many(200, "/ip4/10.0.0.1/udp/5/quic-v1");
    assert_eq!(
        of_trusted.len(),
        TRUSTED_PER_ADDRESS,
        "a datagram may be forged"
    );
}

#[test]
fn a_handshake_that_ends_is_counted_as_a_connection() {
    let (mut entrance, from) = (Entrance::new(), "/ip4/10.0.0.2/tcp/5");
    let ended = entrance.begin_many(3, from);
    let open = entrance.begin_many(4, from);
    for id in ended {
        assert!(entrance.end(id, PeerId::random(), from));
    }
    let gate = &entrance.gate;
    assert_eq!(
        (gate.handshakes.tcp.len(), gate.incoming.len()),
        (open.len(), 3)
    );
}

#[test]
fn connections_are_bounded_per_address_and_per_peer_and_those_of_static_peers_are_not() {
    let (mut entrance, from) = (Entrance::new(), "/ip4/10.0.0.2/tcp/5");
    let strangers = (0..100).filter(|_| entrance.connect(PeerId::random(), from));
    assert_eq!(strangers.count(), INCOMING_PER_ADDRESS);
    let trusted = entrance.trusted;
    assert!(
        (0..10).all(|_| entrance.connect(trusted, from)),
        "static peers are not counted"
    );
    let one = PeerId::random();
    let of_one = (0..10).filter(|_| entrance.connect(one, "/ip4/10.0.0.7/tcp/5"));
    assert_eq!(of_one.count(), PER_PEER);
}

#[test]
fn incoming_connections_are_bounded_by_twice_the_limit_of_peers() {
    let local = address("/ip4/10.0.0.9/tcp/1");
    for (hi, most) in [(30, INCOMING), (400, 800), (usize::MAX, 2_000)] {
        let mut gate = Gate::new(SharedGateRules::default(), hi);
        let enter = |i: usize| {
            let from = address(&format!("/ip4/10.1.{}.{}/tcp/5", i / 200, i % 200));
            gate.handle_established_inbound_connection(
                ConnectionId::new_unchecked(i),
                PeerId::random(),
                &local,
                &from,
            )
            .is_ok()
        };
        assert_eq!(
            (0..2_000).map(enter).filter(|entered| *entered).count(),
            most,
            "of {hi}"
        );
    }
}
