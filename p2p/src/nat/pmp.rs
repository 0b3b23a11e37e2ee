//! NAT-PMP (RFC 6886): requests of twelve bytes and responses of at most sixteen, over UDP.

use super::{Lease, NatError, PortProtocol};
use std::{
    net::{Ipv4Addr, SocketAddr},
    time::Duration,
};
use tokio::{net::UdpSocket, time::timeout};

/// UDP port on which routers listen.
pub const PORT: u16 = 5351;

const VERSION: u8 = 0;
const EXTERNAL_ADDRESS: u8 = 0;
const MAP_UDP: u8 = 1;
const MAP_TCP: u8 = 2;
/// Offset of the operation code in a response from that of its request.
const RESPONSE: u8 = 128;
/// Timeout of the first request; every further request waits twice as long (RFC 6886, 3.1).
const FIRST_WAIT: Duration = Duration::from_millis(250);
const REQUESTS: u32 = 5;

/// A response of a router.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PmpResponse {
    ExternalAddress(Ipv4Addr),
    Mapped {
        operation: u8,
        internal: u16,
        external: u16,
        seconds: u32,
    },
    Refused(u16),
}

fn map_request(protocol: PortProtocol, internal: u16, external: u16, seconds: u32) -> [u8; 12] {
    let operation = if protocol == PortProtocol::Tcp {
        MAP_TCP
    } else {
        MAP_UDP
    };
    let mut bytes = [VERSION, operation, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    bytes[4..6].copy_from_slice(&internal.to_be_bytes());
    bytes[6..8].copy_from_slice(&external.to_be_bytes());
    bytes[8..12].copy_from_slice(&seconds.to_be_bytes());
    bytes
}

/// Decodes the response to a request of this operation; `None` if the bytes are no such response.
fn read(bytes: &[u8], operation: u8) -> Option<PmpResponse> {
    let short = |at: usize| Some(u16::from_be_bytes(bytes.get(at..at + 2)?.try_into().ok()?));
    if bytes.first() != Some(&VERSION) || bytes.get(1) != Some(&(RESPONSE + operation)) {
        return None;
    }
    match short(2)? {
        0 => {}
        code => return Some(PmpResponse::Refused(code)),
    }
    let last = <[u8; 4]>::try_from(bytes.get(8..12)?).ok()?;
    if operation == EXTERNAL_ADDRESS {
        return Some(PmpResponse::ExternalAddress(last.into()));
    }
    let seconds = u32::from_be_bytes(bytes.get(12..16)?.try_into().ok()?);
    Some(PmpResponse::Mapped {
        operation,
        internal: short(8)?,
        external: short(10)?,
        seconds,
    })
}

/// The name of a response's kind; `None` if the bytes are no response to this operation.
pub fn reply_kind(bytes: &[u8], operation: u8) -> Option<&'static str> {
    Some(match read(bytes, operation)? {
        PmpResponse::ExternalAddress(_) => "external address",
        PmpResponse::Mapped { .. } => "mapped",
        PmpResponse::Refused(_) => "refused",
    })
}

fn refusal(code: u16) -> NatError {
    let text = match code {
        1 => "it speaks another version of NAT-PMP",
        2 => "it is not allowed",
        3 => "it has no address itself",
        4 => "it has no ports left",
        5 => "it does not know the operation",
        _ => return NatError::Refused(format!("NAT-PMP result {code}")),
    };
    NatError::Refused(text.into())
}

pub struct PmpClient {
    socket: UdpSocket,
}

impl PmpClient {
    /// Connects to the router at this address; fails if it does not respond.
    pub async fn connect(address: SocketAddr) -> Result<Self, NatError> {
        let any: SocketAddr = if address.is_ipv4() {
            ([0, 0, 0, 0], 0).into()
        } else {
            ([0u16; 8], 0).into()
        };
        let socket = UdpSocket::bind(any).await?;
        // A connected socket does not receive datagrams from other addresses.
        socket.connect(address).await?;
        let client = Self { socket };
        client.external_ip().await?;
        Ok(client)
    }

    pub async fn external_ip(&self) -> Result<Ipv4Addr, NatError> {
        match self
            .request(&[VERSION, EXTERNAL_ADDRESS], |answer| {
                matches!(answer, PmpResponse::ExternalAddress(_))
            })
            .await?
        {
            PmpResponse::ExternalAddress(ip) => Ok(ip),
            _ => Err(NatError::NoResponse),
        }
    }

    /// Maps a port. A lifetime of zero closes the port.
    pub async fn open(
        &self,
        protocol: PortProtocol,
        port: u16,
        wanted: u16,
        lifetime: Duration,
    ) -> Result<Lease, NatError> {
        let seconds = u32::try_from(lifetime.as_secs()).unwrap_or(u32::MAX);
        let request = map_request(protocol, port, wanted, seconds);
        let ours = |answer: &PmpResponse| matches!(answer, PmpResponse::Mapped { internal, .. } if *internal == port);
        match self.request(&request, ours).await? {
            PmpResponse::Mapped {
                external, seconds, ..
            } => Ok(Lease {
                port: external,
                lifetime: Duration::from_secs(seconds.into()),
            }),
            _ => Err(NatError::NoResponse),
        }
    }

    async fn request(
        &self,
        request: &[u8],
        wanted: impl Fn(&PmpResponse) -> bool,
    ) -> Result<PmpResponse, NatError> {
        let operation = request.get(1).copied().unwrap_or_default();
        for attempt in 0..REQUESTS {
            self.socket.send(request).await?;
            let answer = async {
                let mut bytes = [0; 64];
                loop {
                    let length = self.socket.recv(&mut bytes).await?;
                    match bytes.get(..length).and_then(|bytes| read(bytes, operation)) {
                        Some(PmpResponse::Refused(code)) => return Err(refusal(code)),
                        Some(answer) if wanted(&answer) => return Ok(answer),
                        // Ignore garbage and late responses to earlier requests.
                        _ => {}
                    }
                }
            };
            if let Ok(answer) = timeout(FIRST_WAIT * 2u32.pow(attempt), answer).await {
                return answer;
            }
        }
        Err(NatError::NoResponse)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_and_answers_of_the_rfc() {
        assert_eq!(
            map_request(PortProtocol::Tcp, 0x1234, 0x5678, 7200),
            [0, 2, 0, 0, 0x12, 0x34, 0x56, 0x78, 0, 0, 0x1c, 0x20]
        );
        assert_eq!(map_request(PortProtocol::Udp, 1, 0, 0)[1], 1);
        let address = [0, 128, 0, 0, 0, 0, 0, 9, 203, 0, 113, 5];
        assert_eq!(
            read(&address, 0),
            Some(PmpResponse::ExternalAddress([203, 0, 113, 5].into()))
        );
        let mapped = [
            0, 130, 0, 0, 0, 0, 0, 9, 0x12, 0x34, 0x56, 0x78, 0, 0, 0x1c, 0x20,
        ];
        let wanted = PmpResponse::Mapped {
            operation: 2,
            internal: 0x1234,
            external: 0x5678,
            seconds: 7200,
        };
        assert_eq!(read(&mapped, MAP_TCP), Some(wanted));
        assert_eq!(
            read(&mapped, MAP_UDP),
            None,
            "the answer to another request"
        );
        assert_eq!(
            read(&[0, 130, 0, 4, 0, 0, 0, 0], MAP_TCP),
            Some(PmpResponse::Refused(4))
        );
        for end in 0..mapped.len() {
            assert_eq!(read(&mapped[..end], MAP_TCP), None, "{end}");
        }
        assert_eq!(
            read(&[1, 128, 0, 0, 0, 0, 0, 9, 1, 1, 1, 1], 0),
            None,
            "another version"
        );
    }

    proptest::proptest! {
        #[test]
        fn anything_may_come(bytes: Vec<u8>, operation in 0u8..3) {
            let _ = read(&bytes, operation);
        }
    }
}
