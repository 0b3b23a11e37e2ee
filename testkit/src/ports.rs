//! Ports for programs that cannot listen on port 0 and say what they got.
//!
//! A port found by binding port 0 and closing the socket may be taken by the next connection of any
//! other test before the program listens. Ports above those that the kernel gives away on its own,
//! and above those that `starling devnet` chooses for its nodes (12000 to 32000), are taken by nobody
//! else, and each is handed out once.

use std::{
    net::{Ipv4Addr, TcpListener, UdpSocket},
    sync::atomic::{AtomicU16, Ordering},
};

/// Linux gives away ports from 32768 to 60999 (`net.ipv4.ip_local_port_range`).
const FIRST: u16 = 61_000;

/// Ports from [`FIRST`] on that are handed out.
const COUNT: u16 = 4_500;

static HANDED_OUT: AtomicU16 = AtomicU16::new(0);

/// A port of this machine that nothing listens on, for TCP and UDP. No other call of this process
/// gets it.
///
/// # Panics
///
/// If all ports are taken.
pub fn free_port() -> u16 {
    // Two test programs at once begin in different places.
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
