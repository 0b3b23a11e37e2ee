//! `--p2p.nat`

use std::net::IpAddr;

/// What a router opened for us. `None`: nothing, yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mapped {
    /// The router's address towards the world.
    pub ip: Option<IpAddr>,
    pub tcp: Option<u16>,
    pub udp: Option<u16>,
}
