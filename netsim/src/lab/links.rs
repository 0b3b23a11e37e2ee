//! The links of a lab on either backend: relays on loopback, or a router between namespaces.

use crate::{
    FaultyLink, LinkAddress, LinkConditionError, LinkConditions, LinkCounts, LinkEnd,
    packet::{PacketNetwork, PacketNetworkError},
};
use std::{fmt, io, net::SocketAddr};

/// The carrier of traffic on the links of a lab.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum LabBackend {
    /// Relays of connections and datagrams on loopback. It needs no rights
    #[default]
    Stream,
    /// A router of IP packets between network namespaces. It needs root or user namespaces
    Packet,
}

impl LabBackend {
    /// The names as files write them.
    pub const WORDS: [&'static str; 2] = ["stream", "packet"];

    pub fn named(word: &str) -> Option<Self> {
        match word {
            "stream" => Some(Self::Stream),
            "packet" => Some(Self::Packet),
            _ => None,
        }
    }
}

impl fmt::Display for LabBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Stream => "stream",
            Self::Packet => "packet",
        })
    }
}

/// All links of a network, in the order of the topology.
pub enum LabLinks {
    Stream(Vec<FaultyLink>),
    Packet(PacketNetwork),
}

impl LabLinks {
    pub fn len(&self) -> usize {
        match self {
            Self::Stream(links) => links.len(),
            Self::Packet(network) => network.len(),
        }
    }

    /// Returns an error if a part of the links no longer works.
    pub fn check(&self) -> Result<(), PacketNetworkError> {
        match self {
            Self::Stream(_) => Ok(()),
            Self::Packet(network) => network.check(),
        }
    }

    /// Changes the conditions of one link.
    pub fn update(
        &self,
        link: usize,
        change: impl FnOnce(&mut LinkConditions),
    ) -> Result<(), LinkConditionError> {
        match self {
            Self::Stream(links) => links[link].update(change),
            Self::Packet(network) => network.update(link, change),
        }
    }

    /// Opens an address that leads to `target` over a link. Only the stream backend has such
    /// addresses.
    pub async fn tcp(
        &self,
        link: usize,
        to: LinkEnd,
        target: SocketAddr,
    ) -> io::Result<SocketAddr> {
        self.stream(link)?.tcp(to, target).await
    }

    /// Opens an address like [`Self::tcp`], at a chosen address of this machine.
    pub async fn tcp_at(
        &self,
        link: usize,
        to: LinkEnd,
        target: SocketAddr,
        address: SocketAddr,
    ) -> io::Result<LinkAddress> {
        self.stream(link)?.tcp_at(to, target, address).await
    }

    fn stream(&self, link: usize) -> io::Result<&FaultyLink> {
        match self {
            Self::Stream(links) => Ok(&links[link]),
            Self::Packet(_) => Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "links of the packet backend have no addresses",
            )),
        }
    }

    /// The counts of a link: first from near to far, then from far to near.
    pub fn counts(&self, link: usize) -> [LinkCounts; 2] {
        match self {
            Self::Stream(links) => links[link].counts(),
            Self::Packet(network) => network.link_counts(link),
        }
    }
}
