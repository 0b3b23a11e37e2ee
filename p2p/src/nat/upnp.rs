//! UPnP gateways. Every request has a timeout here, since the library has none.

use super::{Lease, NatError, PortProtocol};
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

/// Time limits of the search for gateways and of one request.
const SEARCH: Duration = Duration::from_secs(10);
const REQUEST: Duration = Duration::from_secs(5);
/// Name of our mappings in the router's list.
const DESCRIPTION: &str = "starling";

pub struct UpnpClient {
    gateway: Gateway<Tokio>,
    /// Our own address on the gateway's network.
    local: IpAddr,
}

impl UpnpClient {
    pub async fn find(search: Option<SocketAddr>) -> Result<Self, NatError> {
        let mut options = SearchOptions {
            timeout: Some(SEARCH),
            ..Default::default()
        };
        if let Some(address) = search {
            options.broadcast_address = address;
        }
        let gateway = with_timeout(SEARCH, search_gateway(options)).await?;
        let socket = UdpSocket::bind(("0.0.0.0", 0))?;
        socket.connect(gateway.addr)?;
        Ok(Self {
            local: socket.local_addr()?.ip(),
            gateway,
        })
    }

    pub async fn external_ip(&self) -> Result<IpAddr, NatError> {
        with_timeout(REQUEST, self.gateway.get_external_ip()).await
    }

    pub async fn open(
        &self,
        protocol: PortProtocol,
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
        match timeout(REQUEST, add(seconds))
            .await
            .map_err(|_| NatError::NoResponse)?
        {
            Ok(()) => Ok(Lease {
                port: wanted,
                lifetime,
            }),
            Err(AddPortError::OnlyPermanentLeasesSupported) => {
                with_timeout(REQUEST, add(0)).await?;
                Ok(Lease {
                    port: wanted,
                    lifetime: Duration::ZERO,
                })
            }
            // Another machine uses this external port: let the router choose one.
            Err(AddPortError::PortInUse) => {
                let any = self.gateway.add_any_port(kind, local, seconds, DESCRIPTION);
                Ok(Lease {
                    port: with_timeout(REQUEST, any).await?,
                    lifetime,
                })
            }
            Err(error) => Err(NatError::Refused(error.to_string())),
        }
    }

    pub async fn close(&self, protocol: PortProtocol, opened: u16) -> Result<(), NatError> {
        with_timeout(REQUEST, self.gateway.remove_port(kind(protocol), opened)).await
    }
}

fn kind(protocol: PortProtocol) -> PortMappingProtocol {
    match protocol {
        PortProtocol::Tcp => PortMappingProtocol::TCP,
        PortProtocol::Udp => PortMappingProtocol::UDP,
    }
}

async fn with_timeout<T, E: Display>(
    limit: Duration,
    request: impl Future<Output = Result<T, E>>,
) -> Result<T, NatError> {
    let answer = timeout(limit, request)
        .await
        .map_err(|_| NatError::NoResponse)?;
    answer.map_err(|error| NatError::Refused(error.to_string()))
}
