//! Links that carry the IP packets of real processes, so that the kernel's own TCP meets delay,
//! loss, reordering, duplicates, corruption, small MTUs, full queues, asymmetric routes and NAT.
//!
//! Each host is a network namespace with one TUN device. This process reads what the host sends,
//! and routes it in userspace: no `tc netem` and no name in the system is needed. The process needs
//! the right to create namespaces, which [`gain_namespace_rights`] asks for, and `/dev/net/tun`.
//!
//! ```text
//! process in a namespace ── kernel ── TUN ── PacketNetwork: PacketRouter, pump ── TUN ── …
//! ```
//!
//! Where a kernel refuses something, the error names it, and callers use a
//! [`FaultyLink`](crate::FaultyLink) instead.
//!
//! Each packet costs two system calls, and all devices share one lock of the router, so one core is
//! the limit of all links together. A host that sends more fills its kernel's queue, which drops.
//! Malformed packets, and packets with a source address other than their host's, are dropped and
//! counted ([`RouterCounts`]).

mod device;
mod error;
mod icmp;
mod ipv4;
mod namespace;
mod nat;
mod netlink;
mod network;
mod port_forward;
mod router;

pub use error::PacketRefusal;
pub use namespace::gain_namespace_rights;
pub use nat::NatKind;
pub use network::{
    ETHERNET_MTU, PacketHost, PacketHostPlan, PacketLinkPlan, PacketNetwork, PacketNetworkError,
};

/// Counts of packets since the start of a router, over all links.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RouterCounts {
    pub received: u64,
    pub delivered: u64,
    /// Bytes that are no IPv4 packet, such as those of IPv6.
    pub invalid: u64,
    /// Packets with another source address than their host's.
    pub foreign: u64,
    /// Packets to an address of no host, or of a host without a link.
    pub unroutable: u64,
    /// Packets whose time to live was over.
    pub expired: u64,
    /// Packets that were sent while their link refused traffic.
    pub refused_by_link: u64,
    /// Packets above the MTU of their link that must not be fragmented.
    pub too_large: u64,
    pub fragmented: u64,
    pub corrupted: u64,
    pub resets: u64,
    /// Packets for which a NAT has no mapping.
    pub refused_by_nat: u64,
    /// Packets that a host's kernel did not take.
    pub refused_by_device: u64,
}
