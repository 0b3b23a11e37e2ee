//! Tests of the router without devices: faults, routes, replies and hostile packets.

use super::*;
use crate::{
    LinkBandwidth,
    packet::{
        ipv4::{ICMP, PortEnd, TCP, UDP, checksum, word},
        nat::NatKind,
    },
};
use proptest::prelude::*;

const ROUTER: Ipv4Addr = Ipv4Addr::new(10, 22, 255, 254);
const PRIVATE: Ipv4Addr = Ipv4Addr::new(192, 168, 0, 2);

fn address(host: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 22, 0, host as u8 + 1)
}

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// Three hosts with a link between every two, at one moment.
struct RouterWorld {
    router: PacketRouter,
    now: Instant,
}

impl RouterWorld {
    fn new(conditions: LinkConditions) -> Self {
        Self::with_nat(conditions, None)
    }

    /// A world whose first host is behind a NAT.
    fn with_nat(conditions: LinkConditions, nat: Option<NatKind>) -> Self {
        let (now, mut dice) = (Instant::now(), StdRng::seed_from_u64(3));
        let host = |index: usize| {
            let kind = nat.filter(|_| index == 0);
            let table = |kind| {
                let dice = StdRng::seed_from_u64(4);
                NatTable::new(kind, PRIVATE, address(0), dice)
            };
            RouterHost {
                inside: kind.map_or(address(index), |_| PRIVATE),
                outside: address(index),
                nat: kind.map(table),
            }
        };
        let hosts = (0..3).map(host).collect();
        let mut router = PacketRouter::new(ROUTER, hosts, StdRng::from_rng(&mut dice));
        for (near, far) in [(0, 1), (0, 2), (1, 2)] {
            router.connect(near, far, &conditions, now);
        }
        Self { router, now }
    }

    fn set(&mut self, conditions: LinkConditions) {
        self.router.set(0, 1, &conditions, self.now);
    }

    fn send(&mut self, from: usize, packet: &Ipv4Packet) {
        self.router.receive(from, packet.bytes().to_vec(), self.now);
    }

    /// The packets that have arrived by now.
    fn arrived(&mut self) -> Vec<(usize, Ipv4Packet)> {
        let outputs = std::iter::from_fn(|| self.router.poll(self.now));
        let parsed = outputs.map(|it| (it.to, Ipv4Packet::parse(it.bytes).expect("sound")));
        parsed.collect()
    }
}

fn symmetric(change: impl FnOnce(&mut DirectionConditions)) -> LinkConditions {
    let mut direction = DirectionConditions::CLEAR;
    change(&mut direction);
    LinkConditions::symmetric(direction)
}

fn datagram(from: Ipv4Addr, to: usize, len: usize) -> Ipv4Packet {
    let mut payload = vec![0; 8 + len];
    payload[..4].copy_from_slice(&[0x10, 0, 0x20, 0]);
    Ipv4Packet::build(UDP, from, address(to), &payload)
}

fn segment(from: usize, to: usize) -> Ipv4Packet {
    let mut payload = vec![0x10, 0, 0x20, 0];
    payload.resize(20, 0);
    payload[12] = 0x50;
    payload[13] = 0x10;
    Ipv4Packet::build(TCP, address(from), address(to), &payload)
}

#[test]
fn a_packet_arrives_after_the_delay_with_one_hop_less() {
    let mut world = RouterWorld::new(symmetric(|it| it.delay = ms(30)));
    let packet = datagram(address(0), 1, 100);
    world.send(0, &packet);
    assert_eq!(world.router.due(), Some(world.now + ms(30)));
    world.now += ms(29);
    assert_eq!(world.arrived(), []);
    world.now += ms(1);
    let [(1, arrived)] = &world.arrived()[..] else {
        panic!("one packet for host 1");
    };
    let mut expected = packet;
    expected.hop();
    assert_eq!(*arrived, expected);
    assert_eq!(world.router.due(), None);
}

#[test]
fn directions_differ_and_a_detour_holds_one_way() {
    let mut world = RouterWorld::new(LinkConditions {
        up: symmetric(|it| it.delay = ms(10)).up,
        down: symmetric(|it| it.delay = ms(70)).up,
        ..LinkConditions::CLEAR
    });
    world.router.detour(0, 1, Some(2));
    world.send(0, &datagram(address(0), 1, 1));
    world.send(1, &datagram(address(1), 0, 1));
    world.now += ms(10);
    assert_eq!(world.arrived(), [], "on the second link of the detour");
    world.now += ms(60);
    // Host 1 is the near end of its link to host 2, whose other direction takes 70 ms.
    assert!(world.arrived().iter().all(|(to, _)| *to == 0));
    world.now += ms(9);
    assert_eq!(world.arrived(), []);
    world.now += ms(1);
    let [(1, arrived)] = &world.arrived()[..] else {
        panic!("one packet for host 1");
    };
    assert_eq!(arrived.header()[8], 62, "two hops");
    assert_eq!(world.router.link_counts(0, 1).packets, 0);
    world.router.detour(0, 1, None);
    world.send(0, &datagram(address(0), 1, 1));
    assert_eq!(world.router.link_counts(0, 1).packets, 1);
}

#[test]
fn shares_of_faults_are_met() {
    let conditions = symmetric(|it| {
        it.delay = ms(20);
        it.loss = 0.1;
        it.duplicate = 0.05;
        it.corrupt = 0.2;
    });
    let mut world = RouterWorld::new(conditions);
    let sent = 20_000;
    let mut whole = 0;
    let mut expected = datagram(address(0), 1, 64);
    expected.hop();
    for _ in 0..sent {
        world.send(0, &datagram(address(0), 1, 64));
        world.now += ms(1);
        let arrived = world.arrived();
        whole += arrived.iter().filter(|(_, it)| *it == expected).count();
    }
    let near = |count: u64, share: f64| (count as f64 / sent as f64 - share).abs() < 0.01;
    let counts = world.router.link_counts(0, 1);
    assert!(near(counts.lost, 0.1), "{counts:?}");
    assert!(near(counts.duplicated, 0.9 * 0.05), "{counts:?}");
    let corrupted = world.router.counts().corrupted;
    assert!(near(corrupted, 0.2 * 0.945), "{corrupted}");
    assert!(near(whole as u64, 0.8 * 0.945), "{whole}");
}

#[test]
fn a_full_queue_drops() {
    let queue = 10_000;
    let bandwidth = Some(LinkBandwidth::new(100_000, queue));
    let mut world = RouterWorld::new(symmetric(|it| it.bandwidth = bandwidth));
    for _ in 0..100 {
        world.send(0, &datagram(address(0), 1, 972));
    }
    let counts = world.router.link_counts(0, 1);
    // One burst of a frame departs at once.
    assert!((88..=90).contains(&counts.dropped), "{counts:?}");
    world.now += ms(110);
    assert!((10..=12).contains(&world.arrived().len()));
}

#[test]
fn a_packet_above_the_mtu_is_reported_or_cut_into_fragments() {
    let mut world = RouterWorld::new(symmetric(|it| it.mtu = Some(1_280)));
    let packet = datagram(address(0), 1, 1_400);
    world.send(0, &packet);
    let arrived = world.arrived();
    assert_eq!(arrived.len(), 2);
    assert!(arrived.iter().all(|(to, it)| *to == 1 && it.len() <= 1_280));
    let mut bytes = packet.into_bytes();
    bytes[6] = 0x40;
    bytes[10..12].fill(0);
    let sum = checksum(&bytes[..20]).to_be_bytes();
    bytes[10..12].copy_from_slice(&sum);
    world.send(0, &Ipv4Packet::parse(bytes).unwrap());
    let [(0, error)] = &world.arrived()[..] else {
        panic!("one error for the sender");
    };
    assert_eq!((error.source(), error.protocol()), (ROUTER, ICMP));
    assert_eq!(word(error.payload(), 6), 1_280);
    assert_eq!(world.router.counts().too_large, 1);
}

#[test]
fn a_link_that_refuses_traffic_resets_connections_and_drops_datagrams() {
    let mut world = RouterWorld::new(symmetric(|it| it.delay = ms(5)));
    world.send(0, &datagram(address(0), 1, 1));
    let refusing = LinkConditions {
        refuse: true,
        ..symmetric(|it| it.delay = ms(5))
    };
    world.set(refusing);
    world.send(0, &datagram(address(0), 1, 1));
    world.send(0, &segment(0, 1));
    world.now += ms(10);
    let arrived = world.arrived();
    let [(0, reset)] = &arrived[..] else {
        panic!("{arrived:?}");
    };
    assert_eq!(reset.payload()[13] & 4, 4);
    assert_eq!(world.router.counts().refused_by_link, 2);
    let counts = world.router.link_counts(0, 1);
    assert_eq!(counts.lost, 3, "one of them was on the way");
    assert_eq!(counts.resets, 1);
}

#[test]
fn a_reset_reaches_both_ends() {
    let mut world = RouterWorld::new(symmetric(|it| it.reset = 1.0));
    world.send(0, &segment(0, 1));
    let arrived = world.arrived();
    let ends: BTreeSet<usize> = arrived.iter().map(|(to, _)| *to).collect();
    assert_eq!(ends, BTreeSet::from([0, 1]));
    assert!(arrived.iter().all(|(_, it)| it.payload()[13] & 4 == 4));
    world.send(0, &datagram(address(0), 1, 1));
    assert_eq!(world.arrived().len(), 1, "only connections are reset");
}

#[test]
fn hosts_without_a_link_are_unreachable_and_foreign_sources_are_dropped() {
    let mut world = RouterWorld::new(LinkConditions::CLEAR);
    let nowhere = Ipv4Packet::build(UDP, address(0), Ipv4Addr::new(8, 8, 8, 8), &[0; 8]);
    world.send(0, &nowhere);
    let [(0, error)] = &world.arrived()[..] else {
        panic!("an error for the sender");
    };
    assert_eq!(error.payload()[..2], [3, 1]);
    world.send(0, &datagram(address(2), 1, 1));
    assert_eq!(world.arrived(), []);
    world.send(0, &datagram(address(0), 0, 1));
    assert_eq!(world.router.counts().unroutable, 2);
    assert_eq!(world.router.counts().foreign, 1);
    let mut last = datagram(address(0), 1, 1);
    while last.hop() {}
    world.arrived();
    world.send(0, &last);
    let [(0, error)] = &world.arrived()[..] else {
        panic!("an error for the sender");
    };
    assert_eq!(error.payload()[0], 11, "time exceeded");
}

#[test]
fn a_host_behind_a_nat_dials_out_and_is_not_dialled() {
    let nat = Some(NatKind::Symmetric);
    let mut world = RouterWorld::with_nat(symmetric(|it| it.mtu = Some(600)), nat);
    world.send(1, &datagram(address(1), 0, 1));
    assert_eq!(world.arrived(), []);
    world.send(0, &datagram(PRIVATE, 1, 1));
    let [(1, arrived)] = &world.arrived()[..] else {
        panic!("one packet for host 1");
    };
    assert_eq!(arrived.source(), address(0));
    let port = arrived.port(PortEnd::Source).unwrap();
    let mut reply = datagram(address(1), 0, 1);
    reply.set_end(PortEnd::Source, address(1), 0x2000);
    reply.set_end(PortEnd::Destination, address(0), port);
    world.send(1, &reply);
    let [(0, arrived)] = &world.arrived()[..] else {
        panic!("one packet for host 0");
    };
    assert_eq!(arrived.destination(), PRIVATE);
    assert_eq!(arrived.port(PortEnd::Destination), Some(0x1000));
    assert_eq!(world.router.counts().refused_by_nat, 1);
}

#[test]
fn the_same_seed_and_packets_give_the_same_history() {
    let conditions = symmetric(|it| {
        it.delay = ms(10);
        it.jitter = ms(10);
        it.loss = 0.3;
        it.reorder = 0.3;
        it.corrupt = 0.1;
    });
    let mut worlds = [conditions, conditions].map(RouterWorld::new);
    worlds[1].now = worlds[0].now;
    let mut histories = worlds.map(|mut world| {
        let mut history = Vec::new();
        for step in 0..2_000 {
            world.send(0, &datagram(address(0), 1, step % 50));
            world.now += Duration::from_micros(700);
            let outputs = std::iter::from_fn(|| world.router.poll(world.now));
            history.extend(outputs.map(|it| (step, it)));
        }
        history
    });
    let one = std::mem::take(&mut histories[0]);
    assert!(one.len() > 1_000 && one == histories[1]);
}

proptest! {
    /// Bytes of a hostile program: nothing panics, and no packet for a host is inconsistent.
    #[test]
    fn no_bytes_of_a_host_panic(
        packets in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..90), 1..20),
        protocol: u8,
        fragment: u16,
        is_natted: bool,
    ) {
        let nat = is_natted.then_some(NatKind::FullCone);
        let conditions = symmetric(|it| {
            it.mtu = Some(68);
            it.corrupt = 0.2;
            it.reset = 0.2;
            it.duplicate = 0.5;
        });
        let mut world = RouterWorld::with_nat(conditions, nat);
        let source = if is_natted { PRIVATE } else { address(0) };
        for bytes in packets {
            world.router.receive(0, bytes.clone(), world.now);
            for protocol in [protocol, TCP, ICMP] {
                let packet = Ipv4Packet::build(protocol, source, address(1), &bytes);
                let mut bytes = packet.into_bytes();
                bytes[6..8].copy_from_slice(&fragment.to_be_bytes());
                bytes[10..12].fill(0);
                let sum = checksum(&bytes[..20]).to_be_bytes();
                bytes[10..12].copy_from_slice(&sum);
                world.router.receive(0, bytes, world.now);
            }
            world.now += ms(1);
            world.arrived();
        }
        world.now += ms(1_000);
        world.arrived();
        prop_assert_eq!(world.router.due(), None);
    }
}
