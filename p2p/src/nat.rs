//! Implements `--p2p.nat`: maps our ports on the router, by NAT-PMP or, if the router does not
//! support NAT-PMP, by UPnP. Ports are mapped at start, renewed at half their lifetime, and closed
//! at the end. Discovery gets the mapped address and ports for our record.
//!
//! Only the router of this machine is contacted, with one request at a time and a timeout for each.

mod pmp;
mod upnp;

#[doc(hidden)]
pub use pmp::reply_kind as pmp_reply;

use libp2p::{Multiaddr, multiaddr::Protocol as Part};
use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    time::Duration,
};
use tokio::{
    sync::watch,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;

/// Lifetime of a mapping that we request, as RFC 6886 recommends.
const LIFETIME: Duration = Duration::from_secs(7200);
/// Wait after the first failure, and the longest wait, up to which it doubles. The longest wait is
/// also the longest time between renewals.
const RETRY: Duration = Duration::from_secs(30);
const MAX_RETRY: Duration = Duration::from_secs(1800);
/// Time limit for closing the ports at the end.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(3);

/// Addresses of routers. A router whose address is `None` is searched for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NatConfig {
    /// Address of the NAT-PMP responder: by default port 5351 of the default gateway.
    pub pmp: Option<SocketAddr>,
    /// Address to which searches for UPnP gateways are sent: by default the multicast address of
    /// the local link (239.255.255.250:1900).
    pub upnp: Option<SocketAddr>,
}

/// The public address and ports that a router has mapped to us; a field is `None` without a
/// mapping.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MappedPorts {
    /// The router's public address.
    pub ip: Option<IpAddr>,
    /// The external TCP port.
    pub tcp: Option<u16>,
    /// The external UDP port.
    pub udp: Option<u16>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PortProtocol {
    Tcp,
    Udp,
}

impl fmt::Display for PortProtocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if *self == PortProtocol::Tcp {
            "TCP"
        } else {
            "UDP"
        })
    }
}

/// A mapped port of the router. A `lifetime` of zero means permanent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Lease {
    port: u16,
    lifetime: Duration,
}

/// One of our ports that a router has mapped.
struct Opened {
    protocol: PortProtocol,
    port: u16,
    lease: Lease,
    /// Whether the last renewal succeeded. After a failed renewal the port may still be open, so it
    /// is closed at the end, too.
    open: bool,
}

/// The reason why a router does not map ports.
#[derive(Debug, thiserror::Error)]
enum NatError {
    #[error("no default gateway is known")]
    NoGateway,
    #[error("the router does not answer")]
    NoResponse,
    #[error("the router refuses: {0}")]
    Refused(String),
    #[error(transparent)]
    Io(#[from] std::io::Error),
}

/// The client of the router that responded.
enum GatewayClient {
    Pmp(pmp::PmpClient),
    Upnp(upnp::UpnpClient),
}

impl GatewayClient {
    async fn find(config: NatConfig) -> Result<Self, NatError> {
        let pmp = match config
            .pmp
            .or_else(|| default_gateway().map(|ip| SocketAddr::new(ip.into(), pmp::PORT)))
        {
            Some(address) => pmp::PmpClient::connect(address).await,
            None => Err(NatError::NoGateway),
        };
        match pmp {
            Ok(client) => Ok(GatewayClient::Pmp(client)),
            Err(error) => {
                tracing::debug!(%error, "no NAT-PMP, trying UPnP");
                upnp::UpnpClient::find(config.upnp)
                    .await
                    .map(GatewayClient::Upnp)
            }
        }
    }

    async fn external_ip(&self) -> Result<IpAddr, NatError> {
        match self {
            GatewayClient::Pmp(client) => client.external_ip().await.map(IpAddr::V4),
            GatewayClient::Upnp(client) => client.external_ip().await,
        }
    }

    /// Maps a port, or renews its mapping. The external port is `wanted` if possible.
    async fn open(
        &self,
        protocol: PortProtocol,
        port: u16,
        wanted: u16,
    ) -> Result<Lease, NatError> {
        match self {
            GatewayClient::Pmp(client) => client.open(protocol, port, wanted, LIFETIME).await,
            GatewayClient::Upnp(client) => client.open(protocol, port, wanted, LIFETIME).await,
        }
    }

    async fn close(&self, protocol: PortProtocol, port: u16, opened: u16) -> Result<(), NatError> {
        match self {
            GatewayClient::Pmp(client) => client
                .open(protocol, port, 0, Duration::ZERO)
                .await
                .map(drop),
            GatewayClient::Upnp(client) => client.close(protocol, opened).await,
        }
    }
}

/// The gateway of the default route.
fn default_gateway() -> Option<Ipv4Addr> {
    gateway_in(&std::fs::read_to_string("/proc/net/route").ok()?)
}

/// Finds the default gateway in the kernel's routing table. Numbers are hexadecimal, and addresses
/// have the byte order of the machine.
fn gateway_in(routes: &str) -> Option<Ipv4Addr> {
    const GATEWAY: u32 = 2;
    routes.lines().skip(1).find_map(|line| {
        let columns: Vec<&str> = line.split_whitespace().collect();
        let number = |column: usize| u32::from_str_radix(columns.get(column)?, 16).ok();
        let is_default = number(1)? == 0 && number(7)? == 0 && number(3)? & GATEWAY != 0;
        is_default.then_some(Ipv4Addr::from(number(2)?.to_ne_bytes()))
    })
}

/// Time until the next renewal: half the shortest lifetime, within bounds. Permanent leases are
/// renewed, too, since routers lose them.
fn renewal(leases: impl IntoIterator<Item = Duration>) -> Duration {
    let shortest = leases
        .into_iter()
        .filter(|lifetime| !lifetime.is_zero())
        .min();
    shortest.map_or(MAX_RETRY, |lifetime| {
        (lifetime / 2).clamp(Duration::from_secs(1), MAX_RETRY)
    })
}

fn retry(failures: u32) -> Duration {
    (RETRY * 2u32.saturating_pow(failures.min(16))).min(MAX_RETRY)
}

/// The task that keeps our ports mapped.
pub(crate) struct Nat {
    pub config: NatConfig,
    pub listen_addrs: watch::Receiver<Vec<Multiaddr>>,
    /// The UDP port of discovery once its socket is bound; `None` without discovery.
    pub udp: Option<watch::Receiver<u16>>,
    pub mapped: watch::Sender<MappedPorts>,
}

impl Nat {
    /// Runs until `token` is cancelled, and then closes the ports.
    pub async fn run(mut self, token: CancellationToken) {
        let mut ports = Vec::new();
        tokio::select! {
            () = token.cancelled() => return,
            found = self.ports() => ports.extend(found),
        }
        let (mut router, mut opened, mut failures) = (None, Vec::new(), 0);
        loop {
            let outcome = tokio::select! {
                () = token.cancelled() => break,
                outcome = self.keep_open(&mut router, &mut opened, &ports) => outcome,
            };
            let open = opened
                .iter()
                .filter(|opened| opened.open)
                .map(|opened| opened.lease.lifetime);
            let mut wait = renewal(open);
            match outcome {
                Ok(()) => failures = 0,
                Err(error) => {
                    if failures == 0 {
                        let open = opened.iter().filter(|opened| opened.open).count();
                        tracing::warn!(%error, open, wanted = ports.len(), "--p2p.nat: not every port is open on the router, trying again later");
                    }
                    wait = wait.min(retry(failures));
                    failures += 1;
                }
            }
            tokio::select! {
                () = token.cancelled() => break,
                () = sleep(wait) => {}
            }
        }
        if !opened.is_empty()
            && timeout(CLOSE_TIMEOUT, self.close(router, &opened))
                .await
                .is_err()
        {
            tracing::warn!("ports may be open on the router, which does not answer");
        }
    }

    async fn close(&self, router: Option<GatewayClient>, opened: &[Opened]) {
        let router = match router {
            Some(router) => Ok(router),
            None => GatewayClient::find(self.config).await,
        };
        for Opened {
            protocol,
            port,
            lease,
            ..
        } in opened
        {
            let closed = match &router {
                Ok(router) => router
                    .close(*protocol, *port, lease.port)
                    .await
                    .map_err(|error| error.to_string()),
                Err(error) => Err(error.to_string()),
            };
            match closed {
                Ok(()) => tracing::info!(%protocol, port = lease.port, "port closed on the router"),
                Err(error) => {
                    tracing::warn!(%protocol, port = lease.port, error, "port not closed on the router")
                }
            }
        }
    }

    /// Waits until our ports are bound, and returns them.
    async fn ports(&mut self) -> Vec<(PortProtocol, u16)> {
        let tcp = |all: &[Multiaddr]| {
            all.iter()
                .flat_map(Multiaddr::iter)
                .find_map(|part| match part {
                    Part::Tcp(port) => Some(port),
                    _ => None,
                })
        };
        let mut ports = Vec::new();
        if let Ok(all) = self.listen_addrs.wait_for(|all| tcp(all).is_some()).await {
            ports.extend(tcp(&all).map(|port| (PortProtocol::Tcp, port)));
        }
        if let Some(udp) = &mut self.udp
            && let Ok(port) = udp.wait_for(|port| *port != 0).await
        {
            ports.push((PortProtocol::Udp, *port));
        }
        ports
    }

    /// Maps or renews every port and publishes the mapped ports. If one port fails, the others are
    /// still mapped; the returned error is that of the last failed port.
    async fn keep_open(
        &self,
        known: &mut Option<GatewayClient>,
        opened: &mut Vec<Opened>,
        ports: &[(PortProtocol, u16)],
    ) -> Result<(), NatError> {
        let router = match known {
            Some(router) => &*router,
            None => known.insert(GatewayClient::find(self.config).await?),
        };
        let mut outcome = Ok(());
        for (protocol, port) in ports.iter().copied() {
            let before = opened.iter_mut().find(|opened| opened.protocol == protocol);
            let wanted = before.as_ref().map_or(port, |before| before.lease.port);
            match (router.open(protocol, port, wanted).await, before) {
                (Ok(lease), Some(before)) => (before.lease, before.open) = (lease, true),
                (Ok(lease), None) => opened.push(Opened {
                    protocol,
                    port,
                    lease,
                    open: true,
                }),
                (Err(error), before) => {
                    before.into_iter().for_each(|before| before.open = false);
                    outcome = Err(error);
                }
            }
        }
        if opened.iter().any(|opened| opened.open) {
            self.publish(router.external_ip().await.ok(), opened);
        } else {
            self.mapped.send_replace(MappedPorts::default());
            // Search again: another router may respond next time.
            *known = None;
        }
        outcome
    }

    fn publish(&self, ip: Option<IpAddr>, opened: &[Opened]) {
        let port = |wanted| {
            opened
                .iter()
                .find(|opened| opened.open && opened.protocol == wanted)
                .map(|opened| opened.lease.port)
        };
        let mapped = MappedPorts {
            ip,
            tcp: port(PortProtocol::Tcp),
            udp: port(PortProtocol::Udp),
        };
        let is_new = self
            .mapped
            .send_if_modified(|before| std::mem::replace(before, mapped) != mapped);
        if is_new {
            tracing::info!(
                ?ip,
                tcp = mapped.tcp,
                udp = mapped.udp,
                "ports open on the router"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_route_leads_to_the_router() {
        let gateway = u32::from_ne_bytes([192, 168, 1, 1]);
        let table = format!(
            "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT\n\
             eth0\t0001A8C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n\
             eth0\t00000000\t{gateway:08X}\t0003\t0\t0\t100\t00000000\t0\t0\t0\n"
        );
        assert_eq!(gateway_in(&table), Some([192, 168, 1, 1].into()));
        for table in [
            "",
            "x",
            "a\nb",
            "a\neth0 00000000 zz 0003 0 0 0 00000000",
            "a\neth0 00000000 01010101 0001 0 0 0 00000000",
        ] {
            assert_eq!(gateway_in(table), None, "{table}");
        }
    }

    #[test]
    fn leases_are_renewed_halfway_and_failures_wait_ever_longer() {
        let seconds = Duration::from_secs;
        assert_eq!(renewal([seconds(7200), seconds(60)]), seconds(30));
        assert_eq!(renewal([seconds(1)]), seconds(1));
        assert_eq!(renewal([Duration::ZERO]), MAX_RETRY, "for good");
        assert_eq!(renewal([seconds(1 << 40)]), MAX_RETRY);
        assert_eq!(
            (retry(0), retry(1), retry(99)),
            (RETRY, RETRY * 2, MAX_RETRY)
        );
    }
}
