//! Set-up of a host's interfaces by rtnetlink: four fixed messages, each acknowledged by the
//! kernel. The socket belongs to the namespace of the thread that opens it.

use super::{device::INTERFACE, error::PacketRefusal};
use std::{
    io::{self, Read, Write},
    net::Ipv4Addr,
};

/// Address family and protocol of rtnetlink (linux/netlink.h).
const AF_NETLINK: i32 = 16;
const NETLINK_ROUTE: i32 = 0;

/// Message types (linux/rtnetlink.h).
const NLMSG_ERROR: u16 = 2;
const RTM_NEWLINK: u16 = 16;
const RTM_GETLINK: u16 = 18;
const RTM_NEWADDR: u16 = 20;
const RTM_NEWROUTE: u16 = 24;

/// Flags of a request: to be acknowledged, and to create an object.
const NLM_F_REQUEST: u16 = 1;
const NLM_F_ACK: u16 = 4;
const NLM_F_CREATE: u16 = 0x400;

/// Attributes of links, addresses and routes.
const IFLA_IFNAME: u16 = 3;
const IFLA_MTU: u16 = 4;
const IFLA_TXQLEN: u16 = 13;
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
const RTA_OIF: u16 = 4;

const AF_INET: u8 = 2;
const IFF_UP: u32 = 1;
const RT_TABLE_MAIN: u8 = 254;
const RTPROT_BOOT: u8 = 3;
const RT_SCOPE_LINK: u8 = 253;
const RTN_UNICAST: u8 = 1;

/// Length of a message header, and of the body of a link message, in bytes.
const HEADER: usize = 16;
const LINK_BODY: usize = 16;

/// Index of the interface `lo`, which is the first one of every namespace.
const LOOPBACK: u32 = 1;

/// Packets that the kernel queues before the device. A sending kernel does not wait for the router,
/// so a shorter queue drops packets of a burst while the router's thread waits for a processor.
const QUEUE: u32 = 10_000;

/// The address and the packet size of a host's interface.
#[derive(Clone, Copy, Debug)]
pub(super) struct InterfaceSetup {
    pub address: Ipv4Addr,
    pub mtu: u16,
}

impl InterfaceSetup {
    /// Sets up `lo` and the TUN device in the namespace of the calling thread. All addresses are
    /// reached over the device.
    pub fn apply(self) -> Result<(), PacketRefusal> {
        let mut socket = NetlinkSocket::open().map_err(setup("a netlink socket"))?;
        let index = socket.index().map_err(setup("the search for link0"))?;
        let steps = [
            ("setting up lo", up(LOOPBACK, &[])),
            (
                "setting up link0",
                up(
                    index,
                    &[(IFLA_MTU, u32::from(self.mtu)), (IFLA_TXQLEN, QUEUE)],
                ),
            ),
            ("the address of link0", address(index, self.address)),
            ("the route over link0", route(index)),
        ];
        for (step, message) in steps {
            socket.request(message).map_err(setup(step))?;
        }
        Ok(())
    }
}

fn setup(step: &'static str) -> impl Fn(io::Error) -> PacketRefusal {
    move |error| PacketRefusal::Setup { step, error }
}

/// A request without its length, which [`NetlinkMessage::bytes`] sets.
struct NetlinkMessage(Vec<u8>);

impl NetlinkMessage {
    fn new(kind: u16, flags: u16, body: &[u8]) -> Self {
        let mut bytes = vec![0; 4];
        bytes.extend(kind.to_ne_bytes());
        bytes.extend((NLM_F_REQUEST | NLM_F_ACK | flags).to_ne_bytes());
        bytes.extend([0; 8]);
        bytes.extend(body);
        Self(bytes)
    }

    fn attribute(mut self, kind: u16, value: &[u8]) -> Self {
        let len = u16::try_from(4 + value.len()).unwrap_or(u16::MAX);
        self.0.extend(len.to_ne_bytes());
        self.0.extend(kind.to_ne_bytes());
        self.0.extend(value);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
        self
    }

    fn bytes(mut self) -> Vec<u8> {
        let len = u32::try_from(self.0.len()).unwrap_or(u32::MAX);
        self.0[..4].copy_from_slice(&len.to_ne_bytes());
        self.0
    }
}

fn link(kind: u16, index: u32, flags: u32) -> NetlinkMessage {
    let mut body = vec![0; 4];
    for field in [index, flags, flags] {
        body.extend(field.to_ne_bytes());
    }
    NetlinkMessage::new(kind, 0, &body)
}

/// A request that starts an interface, with further settings.
fn up(index: u32, settings: &[(u16, u32)]) -> NetlinkMessage {
    let message = link(RTM_NEWLINK, index, IFF_UP);
    settings.iter().fold(message, |message, (kind, value)| {
        message.attribute(*kind, &value.to_ne_bytes())
    })
}

/// A request that gives an interface an address without a network.
fn address(index: u32, address: Ipv4Addr) -> NetlinkMessage {
    let [a, b, c, d] = index.to_ne_bytes();
    let body = [AF_INET, 32, 0, 0, a, b, c, d];
    NetlinkMessage::new(RTM_NEWADDR, NLM_F_CREATE, &body)
        .attribute(IFA_LOCAL, &address.octets())
        .attribute(IFA_ADDRESS, &address.octets())
}

/// A request that routes all addresses over an interface.
fn route(index: u32) -> NetlinkMessage {
    let mut body = vec![AF_INET, 0, 0, 0, RT_TABLE_MAIN, RTPROT_BOOT];
    body.extend([RT_SCOPE_LINK, RTN_UNICAST, 0, 0, 0, 0]);
    NetlinkMessage::new(RTM_NEWROUTE, NLM_F_CREATE, &body).attribute(RTA_OIF, &index.to_ne_bytes())
}

struct NetlinkSocket(socket2::Socket);

impl NetlinkSocket {
    fn open() -> io::Result<Self> {
        let (domain, protocol) = (AF_NETLINK.into(), NETLINK_ROUTE.into());
        let socket = socket2::Socket::new(domain, socket2::Type::RAW, Some(protocol))?;
        Ok(Self(socket))
    }

    /// Sends a request; returns the first message of the reply.
    fn call(&mut self, message: NetlinkMessage) -> io::Result<Vec<u8>> {
        self.0.write_all(&message.bytes())?;
        let mut reply = vec![0; 8 << 10];
        let len = self.0.read(&mut reply)?;
        reply.truncate(len);
        Ok(reply)
    }

    fn request(&mut self, message: NetlinkMessage) -> io::Result<()> {
        let reply = self.call(message)?;
        acknowledged(&reply)
    }

    /// The index of the TUN device.
    fn index(&mut self) -> io::Result<u32> {
        let name = [INTERFACE.as_bytes(), &[0]].concat();
        let reply = self.call(link(RTM_GETLINK, 0, 0).attribute(IFLA_IFNAME, &name))?;
        if field(&reply, 4, u16::from_ne_bytes)? != RTM_NEWLINK {
            acknowledged(&reply)?;
        }
        if reply.len() < HEADER + LINK_BODY {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        // The acknowledgement follows the link in a message of its own.
        let acknowledgement = self.0.read(&mut [0; 1_024])?;
        debug_assert!(acknowledgement >= HEADER);
        field(&reply, HEADER + 4, u32::from_ne_bytes)
    }
}

/// The error in an acknowledgement; zero stands for success.
fn acknowledged(reply: &[u8]) -> io::Result<()> {
    if field(reply, 4, u16::from_ne_bytes)? != NLMSG_ERROR {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let code = field(reply, HEADER, i32::from_ne_bytes)?;
    if code == 0 {
        return Ok(());
    }
    Err(io::Error::from_raw_os_error(code.saturating_neg()))
}

fn field<const N: usize, T>(reply: &[u8], at: usize, read: fn([u8; N]) -> T) -> io::Result<T> {
    let bytes = reply.get(at..).and_then(|rest| rest.first_chunk());
    let bytes = bytes.ok_or(io::ErrorKind::UnexpectedEof)?;
    Ok(read(*bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_have_their_length_and_padded_attributes() {
        let bytes = address(7, Ipv4Addr::new(10, 22, 0, 1)).bytes();
        assert_eq!(bytes.len(), 16 + 8 + 8 + 8);
        assert_eq!(bytes[..4], 40_u32.to_ne_bytes());
        assert_eq!(bytes[28..32], [10, 22, 0, 1]);
        let name = link(RTM_GETLINK, 0, 0).attribute(IFLA_IFNAME, b"link0\0");
        assert_eq!(name.bytes().len(), 16 + 16 + 12);
    }

    #[test]
    fn an_error_of_the_kernel_is_reported_and_a_short_reply_does_not_panic() {
        let mut reply = vec![0; 36];
        reply[4..6].copy_from_slice(&NLMSG_ERROR.to_ne_bytes());
        assert!(acknowledged(&reply).is_ok());
        reply[16..20].copy_from_slice(&(-17_i32).to_ne_bytes());
        let error = acknowledged(&reply).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
        for len in 0..20 {
            assert!(acknowledged(&reply[..len]).is_err());
        }
    }
}
