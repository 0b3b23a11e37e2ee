//! Tests of headers, ports and checksums, also of hostile bytes.

use super::*;
use proptest::prelude::*;

const FROM: Ipv4Addr = Ipv4Addr::new(10, 22, 0, 1);
const TO: Ipv4Addr = Ipv4Addr::new(10, 22, 0, 2);

/// A UDP datagram with its checksum.
fn udp(data: &[u8]) -> Ipv4Packet {
    let mut payload = vec![0x10, 0, 0x20, 0, 0, 0, 0, 0];
    payload.extend(data);
    let len = (payload.len() as u16).to_be_bytes();
    payload[4..6].copy_from_slice(&len);
    let sum = transport_checksum(UDP, FROM, TO, &payload);
    payload[6..8].copy_from_slice(&sum.to_be_bytes());
    Ipv4Packet::build(UDP, FROM, TO, &payload)
}

fn sound(packet: &Ipv4Packet) {
    assert_eq!(checksum(packet.header()), 0);
    let (from, to) = (packet.source(), packet.destination());
    assert_eq!(
        transport_checksum(packet.protocol(), from, to, packet.payload()),
        0
    );
    assert_eq!(
        Ipv4Packet::parse(packet.bytes().to_vec()).as_ref(),
        Ok(packet)
    );
}

#[test]
fn the_checksum_of_the_rfc_is_met() {
    // The example of RFC 1071, section 3.
    let bytes = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
    assert_eq!(checksum(&bytes), !0xddf2);
    assert_eq!(checksum(&[0x12]), !0x1200);
}

#[test]
fn bad_headers_are_refused_by_name() {
    let good = udp(b"data").into_bytes();
    let refused = |change: fn(&mut Vec<u8>)| {
        let mut bytes = good.clone();
        change(&mut bytes);
        Ipv4Packet::parse(bytes).unwrap_err()
    };
    assert_eq!(refused(|it| it.truncate(19)), BadPacket::Short(19));
    assert_eq!(refused(|it| it[0] = 0x65), BadPacket::Version(6));
    assert_eq!(refused(|it| it[0] = 0x44), BadPacket::HeaderLength(16));
    assert_eq!(refused(|it| it[0] = 0x4f), BadPacket::HeaderLength(60));
    let total = refused(|it| it.truncate(31));
    assert_eq!(
        total,
        BadPacket::TotalLength {
            total: 32,
            given: 31
        }
    );
    let total = refused(|it| it[3] = 19);
    assert_eq!(
        total,
        BadPacket::TotalLength {
            total: 19,
            given: 32
        }
    );
    assert_eq!(refused(|it| it[8] = 63), BadPacket::Checksum);
    let padded = [&good[..], &[0; 9]].concat();
    assert_eq!(Ipv4Packet::parse(padded).unwrap().bytes(), good);
}

#[test]
fn a_changed_end_keeps_both_checksums() {
    let mut packet = udp(b"some data of an odd length.");
    packet.set_end(PortEnd::Source, Ipv4Addr::new(203, 0, 113, 9), 61_234);
    packet.set_end(PortEnd::Destination, Ipv4Addr::new(192, 168, 0, 2), 1);
    sound(&packet);
    assert_eq!(packet.port(PortEnd::Source), Some(61_234));
    assert_eq!(packet.port(PortEnd::Destination), Some(1));
    assert!(packet.hop());
    sound(&packet);
}

#[test]
fn a_datagram_without_a_checksum_gets_none() {
    let mut packet = udp(b"x");
    packet.payload_mut()[6..8].fill(0);
    packet.set_end(PortEnd::Source, TO, 7);
    assert_eq!(packet.payload()[6..8], [0, 0]);
}

#[test]
fn the_time_to_live_ends_at_one() {
    let mut packet = udp(b"");
    let hops = std::iter::from_fn(|| packet.hop().then_some(())).count();
    assert_eq!(hops, 63);
    assert_eq!(checksum(packet.header()), 0);
}

proptest! {
    #[test]
    fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..120), bit: usize) {
        if let Ok(packet) = Ipv4Packet::parse(bytes) {
            every_function(packet, bit);
        }
    }

    /// Random bytes behind a valid header reach the code that looks into the payload.
    #[test]
    fn no_payload_panics(
        protocol in prop_oneof![Just(ICMP), Just(TCP), Just(UDP), any::<u8>()],
        fragment: u16,
        payload in proptest::collection::vec(any::<u8>(), 0..80),
        bit: usize,
    ) {
        let mut packet = Ipv4Packet::build(protocol, FROM, TO, &payload);
        packet.set_header_word(FRAGMENT, |_| fragment);
        prop_assert_eq!(checksum(packet.header()), 0);
        every_function(packet, bit);
    }

    #[test]
    fn an_adjusted_checksum_is_that_of_the_new_bytes(
        data in proptest::collection::vec(any::<u8>(), 0..60),
        address: u32,
        port: u16,
    ) {
        let mut packet = udp(&data);
        packet.set_end(PortEnd::Source, address.into(), port);
        sound(&packet);
    }
}

fn every_function(mut packet: Ipv4Packet, bit: usize) {
    for end in [PortEnd::Source, PortEnd::Destination] {
        let port = packet.port(end);
        packet.set_end(end, TO, 9);
        assert_eq!(packet.port(end), port.map(|_| 9));
    }
    packet.set_destination(FROM);
    packet.hop();
    assert_eq!(checksum(packet.header()), 0);
    let part = packet.payload().to_vec();
    let fragment = packet.fragment(&part, packet.fragment_offset(), true);
    assert_eq!(checksum(fragment.header()), 0);
    let _ = packet.flip(bit);
}
