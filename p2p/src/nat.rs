//! `--p2p.nat`: asks the router to open our ports, by NAT-PMP and, where that is not spoken, by UPnP. Opened at start, renewed halfway
//! through their time, closed at the end. What the router opened goes to discovery, for our record.
//!
//! It talks to the router of this machine alone, one question at a time, each with an end.

mod pmp;
mod upnp;

#[doc(hidden)]
pub use pmp::answer_kind as pmp_answer;

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

/// What is asked for; RFC 6886 recommends it, too.
const LIFETIME: Duration = Duration::from_secs(7200);
/// Waits after failures: doubled up to the longest. Also the shortest and longest time between two renewals.
const RETRY: Duration = Duration::from_secs(30);
const MAX_RETRY: Duration = Duration::from_secs(1800);
/// For closing the ports at the end.
const FAREWELL: Duration = Duration::from_secs(3);

/// Where routers are; what is not named is looked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NatConfig {
    /// Of the PMP responder: by default port 5351 of the default gateway.
    pub pmp: Option<SocketAddr>,
    /// Where UPnP gateways are searched: by default everywhere on the link (239.255.255.250:1900).
    pub upnp: Option<SocketAddr>,
}

/// What a router opened for us. `None`: nothing, yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mapped {
    /// The router's address towards the world.
    pub ip: Option<IpAddr>,
    pub tcp: Option<u16>,
    pub udp: Option<u16>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Protocol {
    Tcp,
    Udp,
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if *self == Protocol::Tcp { "TCP" } else { "UDP" })
    }
}

/// An open port of the router. `lifetime` zero: for good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Lease {
    port: u16,
    lifetime: Duration,
}

/// A port of ours that a router opened at some time.
struct Opened {
    protocol: Protocol,
    port: u16,
    lease: Lease,
    /// The router has not failed to renew it. If it has, the port may be open all the same, and is closed at the end.
    open: bool,
}

/// Why a router does not open ports.
#[derive(Debug, thiserror::Error)]
enum NatError {
    #[error("no default gateway is known")]
    NoGateway,
    #[error("the router does not answer")]
    NoAnswer,
    #[error("the router refuses: {0}")]
    Refused(String),
    #[error(transparent)]
    Io(#[from] std::io::Error),
}

/// The one that answered.
enum Router {
    Pmp(pmp::Client),
    Upnp(upnp::Client),
}

impl Router {
    async fn find(config: NatConfig) -> Result<Self, NatError> {
        let pmp = match config
            .pmp
            .or_else(|| default_gateway().map(|ip| SocketAddr::new(ip.into(), pmp::PORT)))
        {
            Some(address) => pmp::Client::connect(address).await,
            None => Err(NatError::NoGateway),
        };
        match pmp {
            Ok(client) => Ok(Router::Pmp(client)),
            Err(error) => {
                tracing::debug!(%error, "no NAT-PMP, trying UPnP");
                upnp::Client::find(config.upnp).await.map(Router::Upnp)
            }
        }
    }

    async fn external_ip(&self) -> Result<IpAddr, NatError> {
        match self {
            Router::Pmp(client) => client.external_ip().await.map(IpAddr::V4),
            Router::Upnp(client) => client.external_ip().await,
        }
    }

    /// Opens a port, if possible the one with the number `wanted`, or keeps it open.
    async fn open(&self, protocol: Protocol, port: u16, wanted: u16) -> Result<Lease, NatError> {
        match self {
            Router::Pmp(client) => client.open(protocol, port, wanted, LIFETIME).await,
            Router::Upnp(client) => client.open(protocol, port, wanted, LIFETIME).await,
        }
    }

    async fn close(&self, protocol: Protocol, port: u16, opened: u16) -> Result<(), NatError> {
        match self {
            Router::Pmp(client) => client
                .open(protocol, port, 0, Duration::ZERO)
                .await
                .map(drop),
            Router::Upnp(client) => client.close(protocol, opened).await,
        }
    }
}

/// The gateway of the default route.
fn default_gateway() -> Option<Ipv4Addr> {
    gateway_in(&std::fs::read_to_string("/proc/net/route").ok()?)
}

/// In the kernel's table: numbers are hexadecimal, addresses in the machine's order of bytes.
fn gateway_in(routes: &str) -> Option<Ipv4Addr> {
    const GATEWAY: u32 = 2;
    routes.lines().skip(1).find_map(|line| {
        let columns: Vec<&str> = line.split_whitespace().collect();
        let number = |column: usize| u32::from_str_radix(columns.get(column)?, 16).ok();
        let is_default = number(1)? == 0 && number(7)? == 0 && number(3)? & GATEWAY != 0;
        is_default.then_some(Ipv4Addr::from(number(2)?.to_ne_bytes()))
    })
}

/// When to renew: halfway, within bounds. A lease for good is looked at now and then: routers forget.
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

/// Keeps our ports open.
pub(crate) struct Nat {
    pub config: NatConfig,
    pub listen_addrs: watch::Receiver<Vec<Multiaddr>>,
    /// The port of discovery once it is bound; `None` without discovery.
    pub udp: Option<watch::Receiver<u16>>,
    pub mapped: watch::Sender<Mapped>,
}

impl Nat {
    /// Runs until the token is cancelled, and closes the ports then.
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
            && timeout(FAREWELL, self.close(router, &opened))
                .await
                .is_err()
        {
            tracing::warn!("ports may be open on the router, which does not answer");
        }
    }

    async fn close(&self, router: Option<Router>, opened: &[Opened]) {
        let router = match router {
            Some(router) => Ok(router),
            None => Router::find(self.config).await,
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

    /// Ours, once they are bound.
    async fn ports(&mut self) -> Vec<(Protocol, u16)> {
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
            ports.extend(tcp(&all).map(|port| (Protocol::Tcp, port)));
        }
        if let Some(udp) = &mut self.udp
            && let Ok(port) = udp.wait_for(|port| *port != 0).await
        {
            ports.push((Protocol::Udp, *port));
        }
        ports
    }

    /// Opens every port, or keeps it open, and tells which are. One that the router refuses is not in the way of the others; the error
    /// is that of the last.
    async fn keep_open(
        &self,
        known: &mut Option<Router>,
        opened: &mut Vec<Opened>,
        ports: &[(Protocol, u16)],
    ) -> Result<(), NatError> {
        let router = match known {
            Some(router) => &*router,
            None => known.insert(Router::find(self.config).await?),
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
        match opened.iter().any(|opened| opened.open) {
            true => self.tell(router.external_ip().await.ok(), opened),
            false => {
                self.mapped.send_replace(Mapped::default());
                // Another may answer next time.
                *known = None;
            }
        }
        outcome
    }

    fn tell(&self, ip: Option<IpAddr>, opened: &[Opened]) {
        let port = |wanted| {
            opened
                .iter()
                .find(|opened| opened.open && opened.protocol == wanted)
                .map(|opened| opened.lease.port)
        };
        let mapped = Mapped {
            ip,
            tcp: port(Protocol::Tcp),
            udp: port(Protocol::Udp),
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
