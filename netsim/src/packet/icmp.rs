//! Packets that the router makes: ICMP errors (RFC 792, RFC 1191), TCP resets (RFC 9293), and
//! fragments of packets above the MTU of a link (RFC 791).

use super::ipv4::{ICMP, Ipv4Packet, TCP, checksum, transport_checksum};
use std::net::Ipv4Addr;

/// The reason of an ICMP error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum IcmpReason {
    HostUnreachable,
    /// The packet is too large for a link, and must not be fragmented.
    TooLarge {
        mtu: u16,
    },
    TimeExceeded,
}

impl IcmpReason {
    /// The first eight bytes of the message, with a checksum of zero.
    fn head(self) -> [u8; 8] {
        let mut head = [0; 8];
        match self {
            Self::HostUnreachable => head[..2].copy_from_slice(&[3, 1]),
            Self::TooLarge { mtu } => {
                head[..2].copy_from_slice(&[3, 4]);
                head[6..].copy_from_slice(&mtu.to_be_bytes());
            }
            Self::TimeExceeded => head[0] = 11,
        }
        head
    }
}

/// Whether an ICMP message is an error, which has a part of the packet that caused it.
pub(super) fn is_error(packet: &Ipv4Packet) -> bool {
    let kind = packet.payload().first();
    packet.protocol() == ICMP && kind.is_some_and(|kind| matches!(kind, 3 | 4 | 5 | 11 | 12))
}

/// The error about a packet; `None` where RFC 1122 forbids one: about another error, and about a
/// fragment other than the first.
pub(super) fn error(
    router: Ipv4Addr,
    about: &Ipv4Packet,
    reason: IcmpReason,
) -> Option<Ipv4Packet> {
    if is_error(about) || about.fragment_offset() > 0 {
        return None;
    }
    let mut message = reason.head().to_vec();
    message.extend(about.header());
    // The first eight bytes of the payload have the ports.
    message.extend(about.payload().iter().take(8));
    let sum = checksum(&message);
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    Some(Ipv4Packet::build(ICMP, router, about.source(), &message))
}

const SYN: u8 = 0x02;
const FIN: u8 = 0x01;
const RST: u8 = 0x04;
const ACK: u8 = 0x10;
/// Length of a TCP header without options, in bytes.
const TCP_HEADER: usize = 20;

/// The flags of a TCP segment; `None` for other packets and later fragments.
fn flags(packet: &Ipv4Packet) -> Option<u8> {
    let is_segment = packet.protocol() == TCP && packet.fragment_offset() == 0;
    let is_whole = packet.payload().len() >= TCP_HEADER;
    (is_segment && is_whole).then(|| packet.payload()[13])
}

/// Whether the segment ends its connection: it has the flag FIN or RST.
pub(super) fn ends_connection(packet: &Ipv4Packet) -> bool {
    flags(packet).is_some_and(|flags| flags & (FIN | RST) != 0)
}

/// The reset with which the destination refuses a segment; `None` for other packets, and for a
/// reset, which is never answered.
pub(super) fn reset_reply(packet: &Ipv4Packet) -> Option<Ipv4Packet> {
    let flags = flags(packet).filter(|flags| flags & RST == 0)?;
    let payload = packet.payload();
    let number = |at: usize| {
        u32::from_be_bytes([
            payload[at],
            payload[at + 1],
            payload[at + 2],
            payload[at + 3],
        ])
    };
    let header = usize::from(payload[12] >> 4) * 4;
    let data = payload.len().saturating_sub(header.max(TCP_HEADER)) as u32;
    let marks = u32::from(flags & SYN != 0) + u32::from(flags & FIN != 0);
    let next = number(4).wrapping_add(data).wrapping_add(marks);
    let has_ack = flags & ACK != 0;
    let sequence = if has_ack { number(8) } else { 0 };
    let mut reset = [0; TCP_HEADER];
    reset[..2].copy_from_slice(&payload[2..4]);
    reset[2..4].copy_from_slice(&payload[..2]);
    reset[4..8].copy_from_slice(&sequence.to_be_bytes());
    reset[8..12].copy_from_slice(&next.to_be_bytes());
    Some(with_flags(
        reset,
        packet.destination(),
        packet.source(),
        RST | ACK,
    ))
}

/// The reset that takes the place of a segment on its way, so that its destination closes the
/// connection too; `None` for packets other than TCP segments.
pub(super) fn reset_in_place(packet: &Ipv4Packet) -> Option<Ipv4Packet> {
    let flags = flags(packet)?;
    let mut reset = [0; TCP_HEADER];
    reset[..12].copy_from_slice(&packet.payload()[..12]);
    Some(with_flags(
        reset,
        packet.source(),
        packet.destination(),
        RST | (flags & ACK),
    ))
}

fn with_flags(
    mut segment: [u8; TCP_HEADER],
    from: Ipv4Addr,
    to: Ipv4Addr,
    flags: u8,
) -> Ipv4Packet {
    segment[12] = (TCP_HEADER as u8 / 4) << 4;
    segment[13] = flags;
    let sum = transport_checksum(TCP, from, to, &segment);
    segment[16..18].copy_from_slice(&sum.to_be_bytes());
    Ipv4Packet::build(TCP, from, to, &segment)
}

/// Cuts a packet into fragments of at most `mtu` bytes.
pub(super) fn fragments(packet: &Ipv4Packet, mtu: usize) -> Vec<Ipv4Packet> {
    let room = mtu.saturating_sub(packet.header().len()) / 8 * 8;
    let parts = packet.payload().chunks(room.max(8));
    let count = parts.len();
    let first = packet.fragment_offset();
    let cut = |(number, part): (usize, &[u8])| {
        let is_last = number + 1 == count && !packet.has_more_fragments();
        packet.fragment(part, first + number * room.max(8), is_last)
    };
    parts.enumerate().map(cut).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::ipv4::{UDP, word};

    const FROM: Ipv4Addr = Ipv4Addr::new(10, 22, 0, 1);
    const TO: Ipv4Addr = Ipv4Addr::new(10, 22, 0, 2);
    const ROUTER: Ipv4Addr = Ipv4Addr::new(10, 22, 255, 254);

    fn segment(flags: u8, data: &[u8]) -> Ipv4Packet {
        let mut bytes = vec![0, 80, 1, 2, 0, 0, 0, 100, 0, 0, 0, 200, 0x50, flags];
        bytes.resize(TCP_HEADER, 0);
        bytes.extend(data);
        Ipv4Packet::build(TCP, FROM, TO, &bytes)
    }

    #[test]
    fn an_error_has_the_packet_that_caused_it() {
        let about = segment(ACK, b"some data");
        let error = error(ROUTER, &about, IcmpReason::TooLarge { mtu: 1_280 }).unwrap();
        assert_eq!((error.source(), error.destination()), (ROUTER, FROM));
        let message = error.payload();
        assert_eq!(checksum(message), 0);
        assert_eq!((message[0], message[1], word(message, 6)), (3, 4, 1_280));
        assert_eq!(&message[8..28], about.header());
        assert_eq!(&message[28..], &about.payload()[..8]);
        assert_eq!(super::error(ROUTER, &error, IcmpReason::TimeExceeded), None);
        let later = about.fragment(&[0; 8], 8, true);
        let none = super::error(ROUTER, &later, IcmpReason::HostUnreachable);
        assert_eq!(none, None);
    }

    #[test]
    fn a_reset_acknowledges_the_segment_and_is_not_answered() {
        let reset = reset_reply(&segment(ACK, b"12345")).unwrap();
        assert_eq!((reset.source(), reset.destination()), (TO, FROM));
        let bytes = reset.payload();
        assert_eq!((word(bytes, 0), word(bytes, 2)), (0x0102, 80));
        assert_eq!(bytes[4..8], 200_u32.to_be_bytes());
        assert_eq!(bytes[8..12], 105_u32.to_be_bytes());
        assert_eq!(transport_checksum(TCP, TO, FROM, bytes), 0);
        assert_eq!(reset_reply(&reset), None);
        let dial = reset_reply(&segment(SYN, b"")).unwrap();
        assert_eq!(dial.payload()[4..12], [0, 0, 0, 0, 0, 0, 0, 101]);
        let place = reset_in_place(&segment(ACK, b"12345")).unwrap();
        assert_eq!(place.payload()[4..8], 100_u32.to_be_bytes());
        assert!(ends_connection(&place) && !ends_connection(&segment(ACK, b"")));
        let datagram = Ipv4Packet::build(UDP, FROM, TO, &[0; 40]);
        assert_eq!(reset_reply(&datagram), None);
        assert_eq!(reset_in_place(&datagram), None);
    }

    #[test]
    fn fragments_make_the_whole_again() {
        let data: Vec<u8> = (0..=255).cycle().take(1_000).collect();
        let whole = Ipv4Packet::build(UDP, FROM, TO, &data);
        let mut again = vec![0; data.len()];
        let mut parts = Vec::new();
        // The second link cuts the fragments of the first one again.
        for part in fragments(&whole, 576) {
            assert!(part.len() <= 576);
            parts.extend(fragments(&part, 100));
        }
        assert_eq!(parts.len(), 13);
        for (number, part) in parts.iter().enumerate() {
            assert!(part.len() <= 100 && checksum(part.header()) == 0);
            assert_eq!(part.has_more_fragments(), number + 1 < parts.len());
            let at = part.fragment_offset();
            again[at..at + part.payload().len()].copy_from_slice(part.payload());
        }
        assert_eq!(again, data);
    }
}
