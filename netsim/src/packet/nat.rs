//! Network address translation in front of one host, as a pure machine: packets go in with `now`
//! and come out with other addresses, or are dropped.
//!
//! Programs on the host and remote senders choose ports, so [`MAPPINGS`] bounds the table. A new mapping
//! replaces the one that was idle longest. Fragments are dropped, since only the first one has
//! ports. Every mapping is of one host, so two hosts never share a NAT.

use super::{
    icmp::{self, ends_connection},
    ipv4::{HEADER, ICMP, Ipv4Packet, PortEnd, TCP, checksum},
};
use rand::{Rng, rngs::StdRng};
use std::{
    collections::HashMap,
    net::Ipv4Addr,
    time::{Duration, Instant},
};

/// Largest number of mappings.
const MAPPINGS: usize = 4_096;

/// Idle times after which a mapping is forgotten: of an established connection (RFC 5382), of one
/// that has ended, of datagrams (RFC 4787) and of ICMP echos (RFC 5508).
const CONNECTION_IDLE: Duration = Duration::from_secs(7_440);
const ENDED_IDLE: Duration = Duration::from_secs(240);
const DATAGRAM_IDLE: Duration = Duration::from_secs(120);
const ECHO_IDLE: Duration = Duration::from_secs(60);

/// Lowest outside port.
const LOWEST_PORT: u16 = 1_024;

/// Which remote addresses reach a mapping (RFC 3489).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NatKind {
    /// A port of the host has one outside port, at which everybody reaches it.
    FullCone,
    /// Each pair of a port and a remote address has an outside port of its own, at which only that
    /// remote address reaches it.
    Symmetric,
}

/// A remote address with its port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct NatRemote {
    address: Ipv4Addr,
    port: u16,
}

/// The host's side of a mapping. `remote` is `None` behind a full cone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct NatInside {
    protocol: u8,
    port: u16,
    remote: Option<NatRemote>,
}

/// The outside port of a mapping. Each protocol has ports of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct NatOutside {
    protocol: u8,
    port: u16,
}

struct NatMapping {
    inside: NatInside,
    used: Instant,
    has_ended: bool,
}

impl NatMapping {
    fn is_over(&self, now: Instant) -> bool {
        let idle = match self.inside.protocol {
            TCP if self.has_ended => ENDED_IDLE,
            TCP => CONNECTION_IDLE,
            ICMP => ECHO_IDLE,
            _ => DATAGRAM_IDLE,
        };
        now.saturating_duration_since(self.used) >= idle
    }
}

/// The NAT of one host, with its address on each side.
pub(super) struct NatTable {
    kind: NatKind,
    inside: Ipv4Addr,
    outside: Ipv4Addr,
    ports: HashMap<NatInside, u16>,
    mappings: HashMap<NatOutside, NatMapping>,
    dice: StdRng,
}

impl NatTable {
    pub fn new(kind: NatKind, inside: Ipv4Addr, outside: Ipv4Addr, dice: StdRng) -> Self {
        Self {
            kind,
            inside,
            outside,
            ports: HashMap::new(),
            mappings: HashMap::new(),
            dice,
        }
    }

    /// Translates a packet of the host. Returns whether it may go on.
    pub fn outbound(&mut self, packet: &mut Ipv4Packet, now: Instant) -> bool {
        if packet.is_fragment() {
            return false;
        }
        let (Some(port), Some(remote_port)) = (
            packet.port(PortEnd::Source),
            packet.port(PortEnd::Destination),
        ) else {
            return false;
        };
        let remote = NatRemote {
            address: packet.destination(),
            port: remote_port,
        };
        let inside = NatInside {
            protocol: packet.protocol(),
            port,
            remote: self.remote(packet.protocol(), remote),
        };
        let outside = self.outside_port(inside, ends_connection(packet), now);
        packet.set_end(PortEnd::Source, self.outside, outside);
        true
    }

    /// The remote end as a mapping has it. An echo has its identifier at both ends.
    fn remote(&self, protocol: u8, mut remote: NatRemote) -> Option<NatRemote> {
        if protocol == ICMP {
            remote.port = 0;
        }
        (self.kind == NatKind::Symmetric).then_some(remote)
    }

    /// Translates a packet to the host. Returns whether it may go on.
    pub fn inbound(&mut self, packet: &mut Ipv4Packet, now: Instant) -> bool {
        if icmp::is_error(packet) {
            return self.inbound_error(packet);
        }
        let (Some(port), Some(remote_port)) = (
            packet.port(PortEnd::Destination),
            packet.port(PortEnd::Source),
        ) else {
            return false;
        };
        if packet.is_fragment() {
            return false;
        }
        let protocol = packet.protocol();
        let remote = NatRemote {
            address: packet.source(),
            port: remote_port,
        };
        let remote = self.remote(protocol, remote);
        let mapping = self.mappings.get_mut(&NatOutside { protocol, port });
        let known = mapping.filter(|it| it.inside.remote == remote && !it.is_over(now));
        let Some(mapping) = known else {
            return false;
        };
        mapping.used = now;
        mapping.has_ended |= ends_connection(packet);
        let inside = mapping.inside.port;
        packet.set_end(PortEnd::Destination, self.inside, inside);
        true
    }

    /// Translates an ICMP error about a packet of the host: the address of the error, and the
    /// source of the packet inside it.
    fn inbound_error(&self, packet: &mut Ipv4Packet) -> bool {
        let about = &packet.payload()[8.min(packet.payload().len())..];
        // The part ends early, so only these fields of it are read.
        let header = about.first().map_or(0, |byte| usize::from(byte & 0xf) * 4);
        if header < HEADER || about.len() < header + 8 {
            return false;
        }
        let (protocol, source) = (about[9], &about[12..16]);
        let offset = if protocol == ICMP { 4 } else { 0 };
        let at = header + offset;
        let port = u16::from_be_bytes([about[at], about[at + 1]]);
        let mapping = self.mappings.get(&NatOutside { protocol, port });
        let Some(mapping) = mapping.filter(|_| source == self.outside.octets()) else {
            return false;
        };
        let (inside, port) = (self.inside.octets(), mapping.inside.port.to_be_bytes());
        packet.set_destination(self.inside);
        let message = packet.payload_mut();
        message[8 + 12..8 + 16].copy_from_slice(&inside);
        message[8 + at..8 + at + 2].copy_from_slice(&port);
        message[8 + 10..8 + 12].fill(0);
        let sum = checksum(&message[8..8 + header]).to_be_bytes();
        message[8 + 10..8 + 12].copy_from_slice(&sum);
        message[2..4].fill(0);
        let sum = checksum(message).to_be_bytes();
        message[2..4].copy_from_slice(&sum);
        true
    }

    fn outside_port(&mut self, inside: NatInside, has_ended: bool, now: Instant) -> u16 {
        let protocol = inside.protocol;
        if let Some(port) = self.ports.get(&inside).copied()
            && let Some(mapping) = self.mappings.get_mut(&NatOutside { protocol, port })
            && !mapping.is_over(now)
        {
            mapping.used = now;
            mapping.has_ended |= has_ended;
            return port;
        }
        if let Some(port) = self.ports.remove(&inside) {
            self.mappings.remove(&NatOutside { protocol, port });
        }
        self.forget_over(now);
        let port = self.free_port(protocol, inside.port);
        let mapping = NatMapping {
            inside,
            used: now,
            has_ended,
        };
        self.mappings.insert(NatOutside { protocol, port }, mapping);
        self.ports.insert(inside, port);
        port
    }

    /// Forgets mappings that are over once the table is full, and if there are none, the one that
    /// was idle longest.
    fn forget_over(&mut self, now: Instant) {
        if self.mappings.len() < MAPPINGS {
            return;
        }
        self.mappings.retain(|_, mapping| !mapping.is_over(now));
        if self.mappings.len() >= MAPPINGS {
            let oldest = self.mappings.iter().min_by_key(|(_, it)| it.used);
            if let Some(oldest) = oldest.map(|(outside, _)| *outside) {
                self.mappings.remove(&oldest);
            }
        }
        let mappings = &self.mappings;
        self.ports.retain(|inside, port| {
            let outside = NatOutside {
                protocol: inside.protocol,
                port: *port,
            };
            let mapping = mappings.get(&outside);
            mapping.is_some_and(|mapping| mapping.inside == *inside)
        });
    }

    /// A free outside port: behind a full cone the host's own port if possible, else a random one.
    /// There is one, since the table is smaller than the range of ports.
    fn free_port(&mut self, protocol: u8, wanted: u16) -> u16 {
        let is_kept = self.kind == NatKind::FullCone && wanted >= LOWEST_PORT;
        let mut port = if is_kept {
            wanted
        } else {
            self.dice.random_range(LOWEST_PORT..=u16::MAX)
        };
        while self.mappings.contains_key(&NatOutside { protocol, port }) {
            port = self.dice.random_range(LOWEST_PORT..=u16::MAX);
        }
        port
    }
}

#[cfg(test)]
mod tests;
