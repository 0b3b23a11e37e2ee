//! Chooses the ports of the nodes: from `--base-port`, those of the last run, or free ones. Each
//! port is bound to check that it is free. All ports are released together, so that none is chosen
//! twice.
//!
//! A node binds its ports seconds after they were released. So that no other devnet chooses them
//! meanwhile, free ports come from spans, and a devnet claims a span by its first port, which
//! stays bound as long as the devnet runs.

use super::{DirectoryError, NodeEntry};
use std::{io, net::TcpListener, ops::Range};

/// Number of ports reserved per node with `--base-port`.
const PORTS_PER_NODE: u32 = 10;

/// Range of the spans: above the ports of well-known services, below those of outgoing
/// connections (Linux: 32768 and up).
const QUIET_PORTS: Range<u16> = 12_000..32_000;
/// Number of ports in a span: enough for eight nodes, so that most networks need one span.
const SPAN: u16 = 50;
/// Number of random spans to try before the system chooses a port.
const RANDOM_TRIES: usize = 50;

/// Ports of one node; zero means that no port is known yet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodePorts {
    pub http: u16,
    pub ws: u16,
    /// RPC of a rollup node, a batcher or a proposer; unused on the L1.
    pub rpc: u16,
    /// Swarm of a node; unused on the L1, which has no swarm.
    pub p2p: u16,
    pub metrics: u16,
    /// Beacon API of the L1; unused on other nodes.
    pub beacon: u16,
}

impl NodePorts {
    /// Ports of a node in the last run; zero if unknown.
    pub fn of(entry: &NodeEntry) -> Self {
        let of_url = |url: &str| {
            url.split("://")
                .nth(1)
                .and_then(|rest| rest.split('/').next()?.rsplit(':').next()?.parse().ok())
                .unwrap_or(0)
        };
        let p2p = entry.p2p.as_deref().and_then(|address| {
            address
                .split("/tcp/")
                .nth(1)?
                .split('/')
                .next()?
                .parse()
                .ok()
        });
        Self {
            http: of_url(&entry.http),
            ws: of_url(&entry.ws),
            rpc: entry.rpc.as_deref().map_or(0, of_url),
            p2p: p2p.unwrap_or(0),
            metrics: of_url(&entry.metrics),
            beacon: entry.beacon.as_deref().map_or(0, of_url),
        }
    }

    pub fn http_url(&self) -> String {
        format!("http://127.0.0.1:{}", self.http)
    }

    pub fn rpc_url(&self) -> String {
        format!("http://127.0.0.1:{}", self.rpc)
    }

    pub fn metrics_url(&self) -> String {
        format!("http://127.0.0.1:{}/metrics", self.metrics)
    }

    /// URL of the L1's Beacon API.
    pub fn beacon_url(&self) -> String {
        format!("http://127.0.0.1:{}", self.beacon)
    }
}

/// The first ports of the claimed spans, bound until this is dropped.
#[derive(Debug, Default)]
pub struct PortClaims(Vec<TcpListener>);

/// Chooses ports, and keeps them bound until all are chosen.
pub struct Ports {
    /// First port of the next node; `None` without `--base-port`.
    next: Option<u32>,
    held: Vec<TcpListener>,
    /// Ports of the claimed span that were not tried yet.
    span: Range<u16>,
    claims: PortClaims,
}

impl Ports {
    pub fn new(base: Option<u16>) -> Self {
        Self {
            next: base.map(u32::from),
            held: Vec::new(),
            span: 0..0,
            claims: PortClaims::default(),
        }
    }

    /// Releases the chosen ports. The claimed spans stay claimed.
    pub fn release(self) -> PortClaims {
        self.claims
    }

    /// Chooses the ports of the next node. Without `--base-port`, prefers the ports of the last
    /// run.
    pub fn of_node(&mut self, earlier: Option<NodePorts>) -> Result<NodePorts, DirectoryError> {
        if let Some(first) = self.next {
            self.next = Some(first + PORTS_PER_NODE);
            return Ok(NodePorts {
                http: self.given(first)?,
                ws: self.given(first + 1)?,
                p2p: self.given(first + 2)?,
                metrics: self.given(first + 3)?,
                rpc: self.given(first + 4)?,
                beacon: self.given(first + 5)?,
            });
        }
        let earlier = earlier.unwrap_or_default();
        Ok(NodePorts {
            http: self.free(earlier.http)?,
            ws: self.free(earlier.ws)?,
            rpc: self.free(earlier.rpc)?,
            p2p: self.free(earlier.p2p)?,
            metrics: self.free(earlier.metrics)?,
            beacon: self.free(earlier.beacon)?,
        })
    }

    fn given(&mut self, port: u32) -> Result<u16, DirectoryError> {
        let in_use = |error| DirectoryError::Port { port, error };
        let port =
            u16::try_from(port).map_err(|_| in_use(io::Error::other("there is no such port")))?;
        self.hold(port).map_err(in_use)
    }

    /// Binds `wanted` if it is free, otherwise a free port of a claimed span. The port is chosen by
    /// the system only as a last resort: the system's range is that of outgoing connections, so a
    /// connection could occupy the port while its node restarts.
    fn free(&mut self, wanted: u16) -> Result<u16, DirectoryError> {
        if wanted != 0
            && let Ok(port) = self.hold(wanted)
        {
            return Ok(port);
        }
        for _ in 0..RANDOM_TRIES {
            while let Some(port) = self.span.next() {
                if let Ok(port) = self.hold(port) {
                    return Ok(port);
                }
            }
            self.claim_span();
        }
        self.hold(0).map_err(DirectoryError::NoPort)
    }

    /// Claims a random span, unless another devnet has claimed it.
    fn claim_span(&mut self) {
        let spans = (QUIET_PORTS.end - QUIET_PORTS.start) / SPAN;
        let first = QUIET_PORTS.start + SPAN * rand::random_range(0..spans);
        if let Ok(claim) = TcpListener::bind(("127.0.0.1", first)) {
            self.claims.0.push(claim);
            self.span = first + 1..first + SPAN;
        }
    }

    fn hold(&mut self, port: u16) -> io::Result<u16> {
        let listener = TcpListener::bind(("127.0.0.1", port))?;
        let port = listener.local_addr()?.port();
        self.held.push(listener);
        Ok(port)
    }
}
