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

#[test]
fn one_address_cannot_use_up_the_capacity_of_others() {
    let rules = SharedGateRules::default();
    rules
        .lock()
        .trusted_addresses
        .insert("10.0.0.1".parse().unwrap());
    let trusted = PeerId::random();
    rules.lock().trusted_peers.insert(trusted);
    let mut gate = Gate::new(rules, 30);
    let local = address("/ip4/10.0.0.9/tcp/1");
    let mut next = 0;
    let mut knock = |gate: &mut Gate, from: &str| {
        next += 1;
        let id = ConnectionId::new_unchecked(next);
        gate.handle_pending_inbound_connection(id, &local, &address(from))
            .is_ok()
            .then_some(id)
    };
    let held: Vec<ConnectionId> = (0..50)
        .filter_map(|_| knock(&mut gate, "/ip4/10.0.0.2/tcp/5"))
        .collect();
    assert_eq!(held.len(), HANDSHAKES_PER_ADDRESS);
    assert!(
        knock(&mut gate, "/ip4/10.0.0.3/tcp/5").is_some(),
        "others still may"
    );
    for i in 0..200 {
        let _ = knock(&mut gate, &format!("/ip4/10.0.1.{i}/tcp/5"));
    }
    assert_eq!(gate.handshakes.tcp.len(), HANDSHAKES);
    assert!(knock(&mut gate, "/ip4/10.0.0.4/tcp/5").is_none());
    let datagrams = (0..50)
        .filter(|_| knock(&mut gate, "/ip4/10.0.0.5/udp/5/quic-v1").is_some())
        .count();
    assert_eq!(
        (datagrams, gate.handshakes.quic.len()),
        (HANDSHAKES_PER_ADDRESS, HANDSHAKES_PER_ADDRESS),
        "QUIC is counted by itself"
    );
    assert!(
        (0..50).all(|_| knock(&mut gate, "/ip4/10.0.0.1/tcp/5").is_some()),
        "a static peer's address always may"
    );

    let of_trusted = (0..200)
        .filter(|_| knock(&mut gate, "/ip4/10.0.0.1/udp/5/quic-v1").is_some())
        .count();
    assert_eq!(of_trusted, TRUSTED_PER_ADDRESS, "a datagram may be forged");

    // A handshake that ends is no longer counted, and its connection is.
    let from = address("/ip4/10.0.0.2/tcp/5");
    for id in held {
        assert!(
            gate.handle_established_inbound_connection(id, PeerId::random(), &local, &from)
                .is_ok()
        );
    }
    assert_eq!(
        (gate.handshakes.tcp.len(), gate.incoming.len()),
        (HANDSHAKES - HANDSHAKES_PER_ADDRESS, HANDSHAKES_PER_ADDRESS)
    );
    let mut enter = |gate: &mut Gate, peer| {
        next += 1;
        gate.handle_established_inbound_connection(
            ConnectionId::new_unchecked(next),
            peer,
            &local,
            &from,
        )
        .is_ok()
    };
    assert_eq!(
        (0..100)
            .filter(|_| enter(&mut gate, PeerId::random()))
            .count(),
        INCOMING_PER_ADDRESS - HANDSHAKES_PER_ADDRESS
    );
    assert!(
        (0..10).all(|_| enter(&mut gate, trusted)),
        "static peers are not counted"
    );
    let one = PeerId::random();
    let from = address("/ip4/10.0.0.7/tcp/5");
    let enter = |gate: &mut Gate, id| {
        gate.handle_established_inbound_connection(
            ConnectionId::new_unchecked(id),
            one,
            &local,
            &from,
        )
        .is_ok()
    };
    assert_eq!(
        (9_000..9_010).filter(|id| enter(&mut gate, *id)).count(),
        PER_PEER
    );
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
