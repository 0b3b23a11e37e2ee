//! UPnP gateways, with an end to every question: the library waits for a gateway as long as it likes.

use super::{Lease, NatError, Protocol};
use igd_next::{
    AddPortError, PortMappingProtocol, SearchOptions,
    aio::{
        Gateway,
        tokio::{Tokio, search_gateway},
    },
};
use std::{
    fmt::Display,
    net::{IpAddr, SocketAddr, UdpSocket},
    time::Duration,
};
use tokio::time::timeout;

/// For the search, and for one question.
const SEARCH: Duration = Duration::from_secs(10);
const QUESTION: Duration = Duration::from_secs(5);
/// How our ports are called in the router's list.
const DESCRIPTION: &str = "starling";

pub struct Client {
    gateway: Gateway<Tokio>,
    /// Our address towards the gateway.
    local: IpAddr,
}

impl Client {
    pub async fn find(search: Option<SocketAddr>) -> Result<Self, NatError> {
        let mut options = SearchOptions {
            timeout: Some(SEARCH),
            ..Default::default()
        };
        if let Some(address) = search {
            options.broadcast_address = address;
        }
        let gateway = answered(SEARCH, search_gateway(options)).await?;
        let socket = UdpSocket::bind(("0.0.0.0", 0))?;
        socket.connect(gateway.addr)?;
        Ok(Self {
            local: socket.local_addr()?.ip(),
            gateway,
        })
    }

    pub async fn external_ip(&self) -> Result<IpAddr, NatError> {
        answered(QUESTION, self.gateway.get_external_ip()).await
    }

    pub async fn open(
        &self,
        protocol: Protocol,
        port: u16,
        wanted: u16,
        lifetime: Duration,
    ) -> Result<Lease, NatError> {
        let (kind, local) = (kind(protocol), SocketAddr::new(self.local, port));
        let seconds = u32::try_from(lifetime.as_secs()).unwrap_or(u32::MAX);
        let add = |seconds| {
            self.gateway
                .add_port(kind, wanted, local, seconds, DESCRIPTION)
        };
        match timeout(QUESTION, add(seconds))
            .await
            .map_err(|_| NatError::NoAnswer)?
        {
            Ok(()) => Ok(Lease {
                port: wanted,
                lifetime,
            }),
            Err(AddPortError::OnlyPermanentLeasesSupported) => {
                answered(QUESTION, add(0)).await?;
                Ok(Lease {
                    port: wanted,
                    lifetime: Duration::ZERO,
                })
            }
            // Another machine has it.
            Err(AddPortError::PortInUse) => {
                let any = self.gateway.add_any_port(kind, local, seconds, DESCRIPTION);
                Ok(Lease {
                    port: answered(QUESTION, any).await?,
                    lifetime,
                })
            }
            Err(error) => Err(NatError::Refused(error.to_string())),
        }
    }

    pub async fn close(&self, protocol: Protocol, opened: u16) -> Result<(), NatError> {
        answered(QUESTION, self.gateway.remove_port(kind(protocol), opened)).await
    }
}

fn kind(protocol: Protocol) -> PortMappingProtocol {
    match protocol {
        Protocol::Tcp => PortMappingProtocol::TCP,
        Protocol::Udp => PortMappingProtocol::UDP,
    }
}

async fn answered<T, E: Display>(
    limit: Duration,
    question: impl Future<Output = Result<T, E>>,
) -> Result<T, NatError> {
    let answer = timeout(limit, question)
        .await
        .map_err(|_| NatError::NoAnswer)?;
    answer.map_err(|error| NatError::Refused(error.to_string()))
}
