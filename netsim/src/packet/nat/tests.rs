//! Tests of both kinds of NAT, their bounds and their idle times.

use super::*;
use crate::packet::{
    icmp::IcmpReason,
    ipv4::{TCP, UDP, transport_checksum},
};
use rand::SeedableRng;

const INSIDE: Ipv4Addr = Ipv4Addr::new(192, 168, 0, 2);
const OUTSIDE: Ipv4Addr = Ipv4Addr::new(10, 22, 0, 1);
const ONE: Ipv4Addr = Ipv4Addr::new(10, 22, 0, 2);
const OTHER: Ipv4Addr = Ipv4Addr::new(10, 22, 0, 3);

fn table(kind: NatKind) -> NatTable {
    NatTable::new(kind, INSIDE, OUTSIDE, StdRng::seed_from_u64(1))
}

/// A packet with ports, and no checksum of its payload where the protocol allows that.
fn packet(protocol: u8, from: (Ipv4Addr, u16), to: (Ipv4Addr, u16)) -> Ipv4Packet {
    let mut payload = [from.1.to_be_bytes(), to.1.to_be_bytes()].concat();
    payload.resize(20, 0);
    payload[12] = 0x50;
    Ipv4Packet::build(protocol, from.0, to.0, &payload)
}

fn sent(table: &mut NatTable, to: (Ipv4Addr, u16), now: Instant) -> Ipv4Packet {
    let mut packet = packet(UDP, (INSIDE, 30_303), to);
    assert!(table.outbound(&mut packet, now));
    assert_eq!(packet.source(), OUTSIDE);
    packet
}

fn port(packet: &Ipv4Packet) -> u16 {
    packet.port(PortEnd::Source).unwrap()
}

/// Whether a datagram from `from` to the outside port reaches the host.
fn reaches(table: &mut NatTable, from: (Ipv4Addr, u16), port: u16, now: Instant) -> bool {
    let mut packet = packet(UDP, from, (OUTSIDE, port));
    let passes = table.inbound(&mut packet, now);
    if passes {
        assert_eq!(packet.destination(), INSIDE);
        assert_eq!(packet.port(PortEnd::Destination), Some(30_303));
    }
    passes
}

#[test]
fn a_full_cone_lets_everybody_in_at_one_port() {
    let (mut table, now) = (table(NatKind::FullCone), Instant::now());
    assert!(!reaches(&mut table, (ONE, 9), 30_303, now));
    let first = port(&sent(&mut table, (ONE, 9), now));
    let second = port(&sent(&mut table, (OTHER, 9), now));
    assert_eq!((first, second), (30_303, 30_303));
    assert!(reaches(&mut table, (OTHER, 77), first, now));
}

#[test]
fn a_symmetric_nat_lets_only_the_remote_end_in() {
    let (mut table, now) = (table(NatKind::Symmetric), Instant::now());
    let first = port(&sent(&mut table, (ONE, 9), now));
    let second = port(&sent(&mut table, (OTHER, 9), now));
    assert_ne!(first, second);
    assert!(reaches(&mut table, (ONE, 9), first, now));
    assert!(!reaches(&mut table, (ONE, 10), first, now));
    assert!(!reaches(&mut table, (OTHER, 9), first, now));
    assert!(reaches(&mut table, (OTHER, 9), second, now));
}

#[test]
fn an_idle_mapping_is_forgotten_and_traffic_keeps_it() {
    let (mut table, start) = (table(NatKind::FullCone), Instant::now());
    let outside = port(&sent(&mut table, (ONE, 9), start));
    let later = start + DATAGRAM_IDLE - Duration::from_secs(1);
    assert!(reaches(&mut table, (ONE, 9), outside, later));
    let kept = later + DATAGRAM_IDLE - Duration::from_secs(1);
    assert!(reaches(&mut table, (ONE, 9), outside, kept));
    let over = kept + DATAGRAM_IDLE;
    assert!(!reaches(&mut table, (ONE, 9), outside, over));
    assert_eq!(port(&sent(&mut table, (ONE, 9), over)), 30_303);
    assert_eq!((table.mappings.len(), table.ports.len()), (1, 1));
}

#[test]
fn a_connection_that_has_ended_is_forgotten_earlier() {
    let (mut table, start) = (table(NatKind::Symmetric), Instant::now());
    let mut dial = packet(TCP, (INSIDE, 50_000), (ONE, 80));
    assert!(table.outbound(&mut dial, start));
    let outside = port(&dial);
    let later = start + ENDED_IDLE;
    let reply = packet(TCP, (ONE, 80), (OUTSIDE, outside));
    assert!(table.inbound(&mut reply.clone(), later));
    let mut reset = icmp::reset_in_place(&reply).unwrap();
    assert!(table.inbound(&mut reset, later));
    assert!(!table.inbound(&mut reply.clone(), later + ENDED_IDLE));
}

#[test]
fn the_table_is_bounded_and_the_longest_idle_mapping_goes_first() {
    let (mut table, start) = (table(NatKind::Symmetric), Instant::now());
    let mut first = 0;
    for number in 0..MAPPINGS as u64 + 10 {
        let now = start + Duration::from_millis(number);
        let outside = port(&sent(&mut table, (ONE, number as u16), now));
        if number == 0 {
            first = outside;
        }
    }
    assert_eq!(table.mappings.len(), MAPPINGS);
    assert_eq!(table.ports.len(), MAPPINGS);
    let now = start + Duration::from_secs(6);
    assert!(!reaches(&mut table, (ONE, 0), first, now));
}

#[test]
fn checksums_stay_right_on_both_ways() {
    let (mut table, now) = (table(NatKind::Symmetric), Instant::now());
    let mut dial = packet(TCP, (INSIDE, 50_000), (ONE, 80));
    let sum = transport_checksum(TCP, INSIDE, ONE, dial.payload());
    dial.payload_mut()[16..18].copy_from_slice(&sum.to_be_bytes());
    assert!(table.outbound(&mut dial, now));
    let sum = transport_checksum(TCP, OUTSIDE, ONE, dial.payload());
    assert_eq!(sum, 0);
    let mut reset = icmp::reset_reply(&dial).unwrap();
    assert!(table.inbound(&mut reset, now));
    let sum = transport_checksum(TCP, ONE, INSIDE, reset.payload());
    assert_eq!(sum, 0);
}

#[test]
fn an_error_about_a_packet_reaches_its_host() {
    let (mut table, now) = (table(NatKind::Symmetric), Instant::now());
    let datagram = sent(&mut table, (ONE, 9), now);
    let mut error = icmp::error(ONE, &datagram, IcmpReason::HostUnreachable).unwrap();
    assert!(table.inbound(&mut error, now));
    assert_eq!(error.destination(), INSIDE);
    assert_eq!(checksum(error.payload()), 0);
    let about = &error.payload()[8..];
    assert_eq!(checksum(&about[..HEADER]), 0);
    assert_eq!(about[12..16], INSIDE.octets());
    assert_eq!(about[20..22], 30_303_u16.to_be_bytes());
    let unmapped = packet(UDP, (OUTSIDE, 5), (ONE, 9));
    let mut error = icmp::error(ONE, &unmapped, IcmpReason::HostUnreachable).unwrap();
    assert!(!table.inbound(&mut error, now), "about no mapping");
}

#[test]
fn cut_off_errors_and_fragments_are_dropped() {
    let (mut table, now) = (table(NatKind::Symmetric), Instant::now());
    let datagram = sent(&mut table, (ONE, 9), now);
    let error = icmp::error(ONE, &datagram, IcmpReason::TimeExceeded).unwrap();
    for len in 0..error.payload().len() {
        let part = &error.payload()[..len];
        let mut short = Ipv4Packet::build(ICMP, ONE, OUTSIDE, part);
        assert!(!table.inbound(&mut short, now), "{len} bytes");
    }
    let whole = packet(UDP, (INSIDE, 30_303), (ONE, 9));
    let mut fragment = whole.fragment(whole.payload(), 0, false);
    assert!(!table.outbound(&mut fragment, now));
    let mut other = Ipv4Packet::build(47, INSIDE, ONE, &[0; 40]);
    assert!(!table.outbound(&mut other, now), "a protocol without ports");
}
