//! Ports for programs that cannot listen on port 0 and report which port they got.
//!
//! A port found by binding port 0 and closing the socket may be used by another test's connection
//! before the program listens. The ports here are above those that the kernel assigns on its own,
//! and above those that `starling devnet` chooses for its nodes (12000 to 32000). Other programs
//! rarely use them, and each process hands out each port once.

use std::{
    net::{Ipv4Addr, TcpListener, UdpSocket},
    sync::atomic::{AtomicU16, Ordering},
};

/// The first port handed out. Linux assigns ports from 32768 to 60999
/// (`net.ipv4.ip_local_port_range`).
const FIRST: u16 = 61_000;

/// Number of ports, from [`FIRST`] on, that are handed out.
const COUNT: u16 = 4_500;

static HANDED_OUT: AtomicU16 = AtomicU16::new(0);

/// A port of this machine on which no process listens, for TCP and UDP. No other call in this
/// process returns the same port, until all [`COUNT`] ports have been tried.
///
/// # Panics
///
/// If all ports are taken.
pub fn free_port() -> u16 {
    // Two test programs that run at once begin their search at different ports.
    let start = std::process::id().wrapping_mul(997) % u32::from(COUNT);
    for _ in 0..COUNT {
        let nth = u32::from(HANDED_OUT.fetch_add(1, Ordering::Relaxed));
        let offset = u16::try_from((start + nth) % u32::from(COUNT)).expect("below COUNT");
        let port = FIRST + offset;
        if is_free(port) {
            return port;
        }
    }
    panic!("no port is free from {FIRST} on");
}

fn is_free(port: u16) -> bool {
    let address = (Ipv4Addr::UNSPECIFIED, port);
    TcpListener::bind(address).is_ok() && UdpSocket::bind(address).is_ok()
}
