//! A link of either backend between two ends, as the bench measures it.

use crate::net::*;
use starling_netsim::{FaultyLink, LinkConditions, LinkEnd};
use std::net::SocketAddr;
use tokio::{
    net::{TcpStream, UdpSocket},
    sync::mpsc::Receiver,
};

/// The backends in the order of the output.
pub const BACKENDS: [&str; 2] = ["stream", "packet"];

pub enum BenchPath {
    Stream(FaultyLink),
    Packet(PacketLab),
}

impl BenchPath {
    /// A link of one of [`BACKENDS`]; `None` where this machine refuses the packet backend.
    pub fn new(backend: &str, conditions: LinkConditions) -> Option<Self> {
        if backend == "packet" {
            return PacketLab::pair(conditions).map(Self::Packet);
        }
        let link = FaultyLink::new(SEED, conditions).expect("sound conditions");
        Some(Self::Stream(link))
    }

    /// A sink at one end, and the address at which the other end reaches it.
    pub async fn sink(&self, at: LinkEnd) -> (SocketAddr, Receiver<Received>) {
        match self {
            Self::Stream(link) => {
                let (target, received) = sink().await;
                (link.tcp(at, target).await.expect("an address"), received)
            }
            Self::Packet(lab) => lab.sink(at as usize),
        }
    }

    /// A connection to a sink at the end `to`, from the other end.
    pub async fn dial(&self, to: LinkEnd, address: SocketAddr) -> TcpStream {
        match self {
            Self::Stream(_) => dial(address).await,
            Self::Packet(lab) => lab.dial(1 - to as usize, address).await,
        }
    }

    /// A datagram socket at the near end that is connected to an echo at the far end.
    pub async fn udp_to_echo(&self) -> UdpSocket {
        match self {
            Self::Stream(link) => {
                let target = udp_echo().await;
                let relay = link.udp(LinkEnd::Far, target).await.expect("an address");
                let socket = udp_socket().await;
                socket.connect(relay).await.expect("a socket");
                socket
            }
            Self::Packet(lab) => lab.udp_to_echo(0, 1).await,
        }
    }
}
