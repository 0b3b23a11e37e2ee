//! NAT-PMP (RFC 6886): twelve bytes of question, at most sixteen of answer, over UDP.

use super::{Lease, NatError, Protocol};
use std::{
    net::{Ipv4Addr, SocketAddr},
    time::Duration,
};
use tokio::{net::UdpSocket, time::timeout};

/// Where routers listen.
pub const PORT: u16 = 5351;

const VERSION: u8 = 0;
const EXTERNAL_ADDRESS: u8 = 0;
const MAP_UDP: u8 = 1;
const MAP_TCP: u8 = 2;
/// Added to the operation in an answer.
const ANSWER: u8 = 128;
/// How long an answer is waited for; each further question waits twice as long (RFC 6886, 3.1).
const FIRST_WAIT: Duration = Duration::from_millis(250);
const QUESTIONS: u32 = 5;

/// What a router answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    ExternalAddress(Ipv4Addr),
    Mapped {
        operation: u8,
        internal: u16,
        external: u16,
        seconds: u32,
    },
    Refused(u16),
}

fn map_request(protocol: Protocol, internal: u16, external: u16, seconds: u32) -> [u8; 12] {
    let operation = if protocol == Protocol::Tcp {
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

/// The answer to a question of this operation; `None` for anything else.
fn read(bytes: &[u8], operation: u8) -> Option<Answer> {
    let short = |at: usize| Some(u16::from_be_bytes(bytes.get(at..at + 2)?.try_into().ok()?));
    if bytes.first() != Some(&VERSION) || bytes.get(1) != Some(&(ANSWER + operation)) {
        return None;
    }
    match short(2)? {
        0 => {}
        code => return Some(Answer::Refused(code)),
    }
    let last = <[u8; 4]>::try_from(bytes.get(8..12)?).ok()?;
    if operation == EXTERNAL_ADDRESS {
        return Some(Answer::ExternalAddress(last.into()));
    }
    let seconds = u32::from_be_bytes(bytes.get(12..16)?.try_into().ok()?);
    Some(Answer::Mapped {
        operation,
        internal: short(8)?,
        external: short(10)?,
        seconds,
    })
}

/// Of what kind an answer is; `None` if it is none to a question of this operation.
pub fn answer_kind(bytes: &[u8], operation: u8) -> Option<&'static str> {
    Some(match read(bytes, operation)? {
        Answer::ExternalAddress(_) => "external address",
        Answer::Mapped { .. } => "mapped",
        Answer::Refused(_) => "refused",
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

pub struct Client {
    socket: UdpSocket,
}

impl Client {
    /// A router that answers at this address.
    pub async fn connect(address: SocketAddr) -> Result<Self, NatError> {
        let any: SocketAddr = if address.is_ipv4() {
            ([0, 0, 0, 0], 0).into()
        } else {
            ([0u16; 8], 0).into()
        };
        let socket = UdpSocket::bind(any).await?;
        // Answers of others never arrive.
        socket.connect(address).await?;
        let client = Self { socket };
        client.external_ip().await?;
        Ok(client)
    }

    pub async fn external_ip(&self) -> Result<Ipv4Addr, NatError> {
        match self
            .ask(&[VERSION, EXTERNAL_ADDRESS], |answer| {
                matches!(answer, Answer::ExternalAddress(_))
            })
            .await?
        {
            Answer::ExternalAddress(ip) => Ok(ip),
            _ => Err(NatError::NoAnswer),
        }
    }

    /// A lifetime of zero closes it.
    pub async fn open(
        &self,
        protocol: Protocol,
        port: u16,
        wanted: u16,
        lifetime: Duration,
    ) -> Result<Lease, NatError> {
        let seconds = u32::try_from(lifetime.as_secs()).unwrap_or(u32::MAX);
        let question = map_request(protocol, port, wanted, seconds);
        let ours = |answer: &Answer| matches!(answer, Answer::Mapped { internal, .. } if *internal == port);
        match self.ask(&question, ours).await? {
            Answer::Mapped {
                external, seconds, ..
            } => Ok(Lease {
                port: external,
                lifetime: Duration::from_secs(seconds.into()),
            }),
            _ => Err(NatError::NoAnswer),
        }
    }

    async fn ask(
        &self,
        question: &[u8],
        wanted: impl Fn(&Answer) -> bool,
    ) -> Result<Answer, NatError> {
        let operation = question.get(1).copied().unwrap_or_default();
        for attempt in 0..QUESTIONS {
            self.socket.send(question).await?;
            let answer = async {
                let mut bytes = [0; 64];
                loop {
                    let length = self.socket.recv(&mut bytes).await?;
                    match bytes.get(..length).and_then(|bytes| read(bytes, operation)) {
                        Some(Answer::Refused(code)) => return Err(refusal(code)),
                        Some(answer) if wanted(&answer) => return Ok(answer),
                        // A late answer to another question, or nonsense.
                        _ => {}
                    }
                }
            };
            if let Ok(answer) = timeout(FIRST_WAIT * 2u32.pow(attempt), answer).await {
                return answer;
            }
        }
        Err(NatError::NoAnswer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_and_answers_of_the_rfc() {
        assert_eq!(
            map_request(Protocol::Tcp, 0x1234, 0x5678, 7200),
            [0, 2, 0, 0, 0x12, 0x34, 0x56, 0x78, 0, 0, 0x1c, 0x20]
        );
        assert_eq!(map_request(Protocol::Udp, 1, 0, 0)[1], 1);
        let address = [0, 128, 0, 0, 0, 0, 0, 9, 203, 0, 113, 5];
        assert_eq!(
            read(&address, 0),
            Some(Answer::ExternalAddress([203, 0, 113, 5].into()))
        );
        let mapped = [
            0, 130, 0, 0, 0, 0, 0, 9, 0x12, 0x34, 0x56, 0x78, 0, 0, 0x1c, 0x20,
        ];
        let wanted = Answer::Mapped {
            operation: 2,
            internal: 0x1234,
            external: 0x5678,
            seconds: 7200,
        };
        assert_eq!(read(&mapped, MAP_TCP), Some(wanted));
        assert_eq!(
            read(&mapped, MAP_UDP),
            None,
            "the answer to another question"
        );
        assert_eq!(
            read(&[0, 130, 0, 4, 0, 0, 0, 0], MAP_TCP),
            Some(Answer::Refused(4))
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
