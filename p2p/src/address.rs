//! Addresses: the IP address in a multiaddr, the site that it belongs to, how far it can be
//! reached, and the peer id at its end. Pure functions that every module may use.

use libp2p::{Multiaddr, PeerId, multiaddr::Protocol};
use std::net::{IpAddr, Ipv6Addr};

/// The site of an address: an IPv4 address itself, or the /64 network of an IPv6 address, usually
/// the smallest network that one owner has.
pub fn site(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(address) => IpAddr::V4(address),
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() >> 64 << 64)),
    }
}

/// The IP address that a multiaddr begins with. `None` if it begins with something else, or
/// contains further IP addresses: transports differ in which of several they dial.
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

/// Splits a static peer's address into the address to dial and the peer id at its end; `None` if
/// there is no peer id at the end.
pub fn static_peer(address: &Multiaddr) -> Option<(Multiaddr, PeerId)> {
    let mut address = address.clone();
    match address.pop()? {
        Protocol::P2p(peer) => Some((address, peer)),
        _ => None,
    }
}

/// The scope from which an address can be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scope {
    /// Nowhere: no machine has such an address.
    None,
    /// From this machine only (loopback).
    Machine,
    /// From private networks and links.
    Site,
    /// From everywhere: a public address.
    World,
}

impl Scope {
    /// The scope of an address.
    pub fn of(ip: IpAddr) -> Self {
        match ip.to_canonical() {
            IpAddr::V4(ip)
                if ip.is_unspecified()
                    || ip.is_broadcast()
                    || ip.is_multicast()
                    || ip.octets()[0] == 0 =>
            {
                Scope::None
            }
            IpAddr::V6(ip) if ip.is_unspecified() || ip.is_multicast() => Scope::None,
            ip if ip.is_loopback() => Scope::Machine,
            // Shared address space lies behind a provider's NAT (RFC 6598).
            IpAddr::V4(ip)
                if ip.is_private()
                    || ip.is_link_local()
                    || (ip.octets()[0] == 100 && ip.octets()[1] & 0xc0 == 64) =>
            {
                Scope::Site
            }
            IpAddr::V6(ip) if ip.is_unique_local() || ip.is_unicast_link_local() => Scope::Site,
            _ => Scope::World,
        }
    }
}
