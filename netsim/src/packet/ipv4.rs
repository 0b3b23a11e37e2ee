//! IPv4 packets of a host: checked once when they enter the router, so that later code finds every
//! field in place. Packets come from whatever program runs on the host, so each check has an error
//! instead of a panic.

use std::net::Ipv4Addr;

/// Length of an IPv4 header without options, in bytes.
pub(super) const HEADER: usize = 20;

/// Protocol numbers.
pub(super) const ICMP: u8 = 1;
pub(super) const TCP: u8 = 6;
pub(super) const UDP: u8 = 17;

/// Offsets of fields in the header.
const TOTAL_LENGTH: usize = 2;
const FRAGMENT: usize = 6;
const TTL: usize = 8;
const PROTOCOL: usize = 9;
const CHECKSUM: usize = 10;
const SOURCE: usize = 12;
const DESTINATION: usize = 16;

/// Bits of the fragment field.
const DONT_FRAGMENT: u16 = 0x4000;
const MORE_FRAGMENTS: u16 = 0x2000;
const OFFSET: u16 = 0x1fff;

/// Reasons why the bytes of a host are no packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadPacket {
    #[error("{0} bytes are less than an IPv4 header")]
    Short(usize),
    #[error("IP version {0}")]
    Version(u8),
    #[error("a header of {0} bytes")]
    HeaderLength(usize),
    #[error("a total length of {total} bytes with {given} given")]
    TotalLength { total: usize, given: usize },
    #[error("a wrong checksum of the header")]
    Checksum,
}

/// One end of a TCP or UDP exchange, or the identifier of an ICMP echo in place of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PortEnd {
    Source,
    Destination,
}

/// A packet whose header is consistent and whose length is the header's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ipv4Packet {
    bytes: Vec<u8>,
    header: usize,
}

impl Ipv4Packet {
    /// Checks a packet. Bytes behind its total length are dropped.
    pub fn parse(mut bytes: Vec<u8>) -> Result<Self, BadPacket> {
        let given = bytes.len();
        if given < HEADER {
            return Err(BadPacket::Short(given));
        }
        let version = bytes[0] >> 4;
        if version != 4 {
            return Err(BadPacket::Version(version));
        }
        let header = usize::from(bytes[0] & 0xf) * 4;
        if header < HEADER || header > given {
            return Err(BadPacket::HeaderLength(header));
        }
        let total = usize::from(word(&bytes, TOTAL_LENGTH));
        if total < header || total > given {
            return Err(BadPacket::TotalLength { total, given });
        }
        if checksum(&bytes[..header]) != 0 {
            return Err(BadPacket::Checksum);
        }
        bytes.truncate(total);
        Ok(Self { bytes, header })
    }

    /// A packet of the router's own, with `payload` behind a plain header.
    pub(super) fn build(protocol: u8, from: Ipv4Addr, to: Ipv4Addr, payload: &[u8]) -> Self {
        let mut bytes = vec![0; HEADER];
        bytes[0] = 0x45;
        bytes[TTL] = 64;
        bytes[PROTOCOL] = protocol;
        bytes[SOURCE..SOURCE + 4].copy_from_slice(&from.octets());
        bytes[DESTINATION..DESTINATION + 4].copy_from_slice(&to.octets());
        bytes.extend(payload);
        let mut packet = Self {
            bytes,
            header: HEADER,
        };
        packet.set_length();
        packet
    }

    #[cfg(test)]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    pub(super) fn header(&self) -> &[u8] {
        &self.bytes[..self.header]
    }

    pub(super) fn payload(&self) -> &[u8] {
        &self.bytes[self.header..]
    }

    pub(super) fn payload_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.header..]
    }

    pub fn source(&self) -> Ipv4Addr {
        self.address(SOURCE)
    }

    pub fn destination(&self) -> Ipv4Addr {
        self.address(DESTINATION)
    }

    fn address(&self, at: usize) -> Ipv4Addr {
        let bytes = &self.bytes[at..at + 4];
        Ipv4Addr::new(bytes[0], bytes[1], bytes[2], bytes[3])
    }

    pub(super) fn protocol(&self) -> u8 {
        self.bytes[PROTOCOL]
    }

    pub(super) fn must_not_be_fragmented(&self) -> bool {
        word(&self.bytes, FRAGMENT) & DONT_FRAGMENT != 0
    }

    pub(super) fn has_more_fragments(&self) -> bool {
        word(&self.bytes, FRAGMENT) & MORE_FRAGMENTS != 0
    }

    /// Offset of a fragment's payload in the whole payload, in bytes.
    pub(super) fn fragment_offset(&self) -> usize {
        usize::from(word(&self.bytes, FRAGMENT) & OFFSET) * 8
    }

    pub(super) fn is_fragment(&self) -> bool {
        self.has_more_fragments() || self.fragment_offset() > 0
    }

    /// Takes one from the time to live. Returns whether the packet may go on.
    pub(super) fn hop(&mut self) -> bool {
        if self.bytes[TTL] <= 1 {
            return false;
        }
        self.set_header_word(TTL, |old| old - 0x100);
        true
    }

    /// A fragment of this packet with `part` of its payload. `offset` is that of the part in the
    /// whole payload, in bytes, and a multiple of eight.
    pub(super) fn fragment(&self, part: &[u8], offset: usize, is_last: bool) -> Self {
        let mut bytes = self.header().to_vec();
        bytes.extend(part);
        let mut fragment = Self {
            bytes,
            header: self.header,
        };
        let more = if is_last { 0 } else { MORE_FRAGMENTS };
        let field = u16::try_from(offset / 8).unwrap_or(OFFSET).min(OFFSET) | more;
        fragment.bytes[FRAGMENT..FRAGMENT + 2].copy_from_slice(&field.to_be_bytes());
        fragment.set_length();
        fragment
    }

    /// The port of a TCP or UDP packet, or the identifier of an ICMP echo; `None` for others and
    /// for later fragments.
    pub(super) fn port(&self, end: PortEnd) -> Option<u16> {
        let at = self.port_offset(end)?;
        Some(word(self.payload(), at))
    }

    fn port_offset(&self, end: PortEnd) -> Option<usize> {
        let payload = self.payload();
        if self.fragment_offset() > 0 || payload.len() < 8 {
            return None;
        }
        match (self.protocol(), end) {
            (TCP | UDP, PortEnd::Source) => Some(0),
            (TCP | UDP, PortEnd::Destination) => Some(2),
            // Echo request and reply have an identifier in place of ports.
            (ICMP, _) => matches!(payload[0], 0 | 8).then_some(4),
            _ => None,
        }
    }

    /// Changes an address and its port, and the checksums that cover them.
    pub(super) fn set_end(&mut self, end: PortEnd, address: Ipv4Addr, port: u16) {
        let at = match end {
            PortEnd::Source => SOURCE,
            PortEnd::Destination => DESTINATION,
        };
        let words = address.octets();
        for (part, offset) in [(&words[..2], at), (&words[2..], at + 2)] {
            let new = u16::from_be_bytes([part[0], part[1]]);
            let old = word(&self.bytes, offset);
            self.set_header_word(offset, |_| new);
            // ICMP's checksum does not cover the addresses.
            if self.protocol() != ICMP {
                self.adjust_transport(old, new);
            }
        }
        if let Some(offset) = self.port_offset(end) {
            let old = word(self.payload(), offset);
            self.payload_mut()[offset..offset + 2].copy_from_slice(&port.to_be_bytes());
            self.adjust_transport(old, port);
        }
    }

    /// Changes an address of the header only. The caller sees to the checksum of the payload.
    pub(super) fn set_destination(&mut self, address: Ipv4Addr) {
        let [a, b, c, d] = address.octets();
        self.set_header_word(DESTINATION, |_| u16::from_be_bytes([a, b]));
        self.set_header_word(DESTINATION + 2, |_| u16::from_be_bytes([c, d]));
    }

    /// Adapts the checksum of TCP, UDP or ICMP to a word that has changed.
    fn adjust_transport(&mut self, old: u16, new: u16) {
        let at = match self.protocol() {
            TCP => 16,
            UDP => 6,
            ICMP => 2,
            _ => return,
        };
        let is_udp = self.protocol() == UDP;
        if self.fragment_offset() > 0 || self.payload().len() < at + 2 {
            return;
        }
        let sum = word(self.payload(), at);
        // A sum of zero means that a UDP datagram has none.
        if is_udp && sum == 0 {
            return;
        }
        let mut sum = adjusted(sum, old, new);
        if is_udp && sum == 0 {
            sum = 0xffff;
        }
        self.payload_mut()[at..at + 2].copy_from_slice(&sum.to_be_bytes());
    }

    fn set_header_word(&mut self, at: usize, change: impl FnOnce(u16) -> u16) {
        let at = at & !1;
        let old = word(&self.bytes, at);
        let new = change(old);
        let sum = adjusted(word(&self.bytes, CHECKSUM), old, new);
        self.bytes[at..at + 2].copy_from_slice(&new.to_be_bytes());
        self.bytes[CHECKSUM..CHECKSUM + 2].copy_from_slice(&sum.to_be_bytes());
    }

    /// Sets the total length and the checksum of the header.
    fn set_length(&mut self) {
        let total = u16::try_from(self.bytes.len()).unwrap_or(u16::MAX);
        self.bytes[TOTAL_LENGTH..TOTAL_LENGTH + 2].copy_from_slice(&total.to_be_bytes());
        self.bytes[CHECKSUM..CHECKSUM + 2].fill(0);
        let sum = checksum(self.header());
        self.bytes[CHECKSUM..CHECKSUM + 2].copy_from_slice(&sum.to_be_bytes());
    }

    /// Flips one bit. The packet may no longer be consistent, so it only goes to a host.
    pub(super) fn flip(mut self, bit: usize) -> Vec<u8> {
        let bit = bit % (self.bytes.len() * 8);
        self.bytes[bit / 8] ^= 1 << (bit % 8);
        self.bytes
    }

    pub(super) fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }
}

/// The word at an offset, which must be inside.
pub(super) fn word(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

/// The internet checksum (RFC 1071). It is zero over bytes that contain their own checksum.
pub(super) fn checksum(bytes: &[u8]) -> u16 {
    !folded(sum(bytes))
}

/// The checksum of a TCP segment or a UDP datagram, with the addresses that it covers.
pub(super) fn transport_checksum(
    protocol: u8,
    from: Ipv4Addr,
    to: Ipv4Addr,
    payload: &[u8],
) -> u16 {
    let addresses = sum(&from.octets()) + sum(&to.octets());
    let len = u32::try_from(payload.len()).unwrap_or(0);
    !folded(addresses + u32::from(protocol) + len + sum(payload))
}

fn sum(bytes: &[u8]) -> u32 {
    let words = bytes.chunks_exact(2);
    let odd = words.remainder().first();
    let last = odd.map_or(0, |byte| u32::from(*byte) << 8);
    let whole: u32 = words
        .map(|word| u32::from(u16::from_be_bytes([word[0], word[1]])))
        .sum();
    whole + last
}

fn folded(mut sum: u32) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// A checksum after one word under it has changed (RFC 1624, equation 3).
fn adjusted(checksum: u16, old: u16, new: u16) -> u16 {
    !folded(u32::from(!checksum) + u32::from(!old) + u32::from(new))
}

#[cfg(test)]
mod tests;
