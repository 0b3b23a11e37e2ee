//! The JSON-RPC server for wallets, tools and rollup nodes, over HTTP and WebSocket.
//!
//! [`server`] takes connections and applies the HTTP rules, [`ws`] runs WebSocket sessions,
//! [`frame`] is JSON-RPC itself, [`api`] the table of methods; [`limits`], [`memory`] and
//! [`bounds`] bound connections, bytes and work; [`context`] holds the parts of the node that
//! methods answer from; [`admin`], [`debug`], [`eth`], [`health`], [`miner`], [`net`], [`opp2p`], [`optimism`],
//! [`txpool`] and [`web3`] hold the methods, plain functions of a [`RpcContext`] and parameters. Every
//! request reads one
//! view of the chain; none can reach, or wait for, the executor. Framing, texts and shapes are
//! geth's. [`engine`] alone drives the chain ([`engine_backend`]), on an endpoint of its own whose
//! clients [`jwt`](crate::jwt) lets in.

pub mod admin;
pub mod api;
pub mod block_tag;
pub mod bounds;
mod chunked;
mod connections;
pub mod context;
pub mod debug;
pub mod decoded;
pub mod engine;
pub mod engine_backend;
pub mod error;
pub mod eth;
pub mod filters;
pub mod frame;
pub mod health;
mod heavy;
mod ids;
mod io;
mod json;
pub mod limits;
pub mod log_filter;
pub mod memory;
pub mod miner;
pub mod net;
pub mod opp2p;
pub mod optimism;
pub mod params;
pub mod route;
pub mod schedule;
pub mod server;
mod shares;
pub mod txpool;
pub mod web3;
pub mod ws;

use crate::jwt::JwtSecret;
use api::{Api, Namespace};
use connections::Connections;
use limits::ServerLimits;
use server::{Http, Listener, Site, Ws};
use std::{io::ErrorKind, net::SocketAddr, sync::Arc, time::Duration};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

pub use context::{AbandonedLookup, Reader, RollupContext, RpcContext, SyncStatus};
pub use decoded::DecodedBlocks;
pub use filters::Filters;
pub use route::TxRoute;

/// Every namespace that `--http.api` and `--ws.api` can name.
static NAMESPACES: [Namespace; 10] = [
    admin::NAMESPACE,
    debug::NAMESPACE,
    eth::NAMESPACE,
    health::NAMESPACE,
    miner::NAMESPACE,
    net::NAMESPACE,
    opp2p::NAMESPACE,
    optimism::NAMESPACE,
    txpool::NAMESPACE,
    web3::NAMESPACE,
];

/// Namespaces of the authenticated endpoint (geth: `DefaultAuthModules`).
static AUTH_NAMESPACES: [Namespace; 2] = [engine::NAMESPACE, eth::NAMESPACE];
/// Bytes of one request on the authenticated endpoint: enough for a block in hex.
const AUTH_BODY: usize = 128 << 20;
/// Calls in one batch there (op-geth's).
const AUTH_BATCH: usize = 2000;
/// Bytes of the results of one batch there (op-geth's).
const AUTH_BATCH_RESPONSE: usize = 250_000_000;
/// Connections of the Engine API port: some rollup nodes and tools, and clients that have not shown
/// the secret.
pub const AUTH_CONNECTIONS: usize = 1024;

/// Connections of a batcher's or proposer's RPC: operators and probes.
const SERVICE_CONNECTIONS: usize = 256;
/// Longest call there: `admin_stopBatcher` answers when everything is confirmed on L1.
const SERVICE_CALL: Duration = Duration::from_secs(3600);

/// `--http.*`.
#[derive(Clone, Debug)]
pub struct HttpEndpoint {
    pub addr: SocketAddr,
    /// Names of namespaces.
    pub api: Vec<String>,
    /// Names accepted in the `Host` header; addresses always are, `*` accepts all.
    pub vhosts: Vec<String>,
    /// Origins that browsers may call from; `*` allows all.
    pub cors: Vec<String>,
}

/// `--rpc.*`: the rollup node's own RPC.
#[derive(Clone, Debug)]
pub struct RollupEndpoint {
    pub http: HttpEndpoint,
    /// Whether a port that is taken is an error. Otherwise this endpoint is left out.
    pub required: bool,
}

/// `--ws.*`.
#[derive(Clone, Debug)]
pub struct WsEndpoint {
    pub addr: SocketAddr,
    /// Names of namespaces.
    pub api: Vec<String>,
    /// Origins that browsers may connect from; `*` allows all, none means this machine only.
    pub origins: Vec<String>,
}

/// `--authrpc.*`: HTTP and WebSocket on one socket, for clients that know the secret.
#[derive(Clone, Debug)]
pub struct AuthEndpoint {
    pub addr: SocketAddr,
    /// As in [`HttpEndpoint`].
    pub vhosts: Vec<String>,
    pub secret: JwtSecret,
}

/// The endpoints and their limits. The same address for HTTP and WebSocket is one listening socket.
#[derive(Clone, Debug, Default)]
pub struct RpcConfig {
    pub http: Option<HttpEndpoint>,
    pub ws: Option<WsEndpoint>,
    pub auth: Option<AuthEndpoint>,
    pub rollup: Option<RollupEndpoint>,
    pub limits: ServerLimits,
}

/// The addresses on which the server listens. Port 0 is replaced by the port that the system chose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BoundAddrs {
    pub http: Option<SocketAddr>,
    pub ws: Option<SocketAddr>,
    pub auth: Option<SocketAddr>,
    pub rollup: Option<SocketAddr>,
}

#[derive(Debug, thiserror::Error)]
pub enum BindError {
    #[error(
        "{addr} is in use by another program: stop it, or choose another port with --{flag}.port"
    )]
    InUse {
        addr: SocketAddr,
        flag: &'static str,
    },
    #[error("cannot listen on {addr}: {source}; choose another address with --{flag}.addr")]
    Io {
        addr: SocketAddr,
        flag: &'static str,
        source: std::io::Error,
    },
}

/// A server that is bound and not yet serving.
pub struct RpcServer {
    listeners: Vec<Listener>,
}

impl RpcServer {
    /// Binds the sockets. Nothing is accepted before [`RpcServer::run`].
    ///
    /// `admin`, `debug`, `miner` and `opp2p` are served only if they are named. They can change the signer,
    /// change what the node builds, or cut it off from its peers, and even a loopback address may
    /// have a public proxy in front.
    pub async fn bind(
        config: RpcConfig,
        context: RpcContext,
    ) -> Result<(Self, BoundAddrs), BindError> {
        let context = Arc::new(context);
        let api = |names: &[String], flag| Arc::new(Api::new(names, &NAMESPACES, &context, flag));
        let http_side = |end: HttpEndpoint, flag| {
            let http = Http {
                api: api(&end.api, flag),
                vhosts: end.vhosts,
                cors: end.cors,
            };
            (end.addr, http)
        };
        let http = config.http.map(|end| http_side(end, "--http.api"));
        let ws = config.ws.map(|end| {
            (
                end.addr,
                Ws {
                    api: api(&end.api, "--ws.api"),
                    origins: end.origins,
                },
            )
        });
        let rollup = config
            .rollup
            .map(|end| (end.required, http_side(end.http, "--rpc")));
        let auth_limits = ServerLimits {
            body: AUTH_BODY,
            ws_message: AUTH_BODY,
            batch: AUTH_BATCH,
            batch_response: AUTH_BATCH_RESPONSE,
            answer_memory: config.limits.answer_memory.max(AUTH_BATCH_RESPONSE),
            connections: AUTH_CONNECTIONS.min(config.limits.connections),
            ws_connections: (AUTH_CONNECTIONS / 2).min(config.limits.ws_connections),
            ..config.limits.clone()
        };
        let limits = config.limits;
        let connections = Connections::new(limits.connections);
        let (mut server, mut bound) =
            Self::bind_sites(http, ws, limits.clone(), &connections).await?;
        if let Some((required, (addr, http))) = rollup {
            let site = Site::new(Some(http), None, limits, connections);
            if let Some(listener) = bind_rollup(addr, site, required).await? {
                bound.rollup = Some(listener.socket.local_addr().unwrap_or(addr));
                server.listeners.push(listener);
            }
        }
        if let Some(auth) = config.auth {
            let addr = auth.addr;
            let listener = bind_auth(auth, auth_limits, &context).await?;
            bound.auth = Some(listener.socket.local_addr().unwrap_or(addr));
            server.listeners.push(listener);
        }
        Ok((server, bound))
    }

    /// Binds the RPC of a rollup node without a chain (`--rpc.*`).
    pub async fn bind_rollup_node(
        endpoint: HttpEndpoint,
        limits: ServerLimits,
        context: RollupContext,
    ) -> Result<(Self, SocketAddr), BindError> {
        let api = Api::of_rollup_node(&endpoint.api, &NAMESPACES, &Arc::new(context));
        let http = Http {
            api: Arc::new(api),
            vhosts: endpoint.vhosts,
            cors: endpoint.cors,
        };
        let connections = Connections::new(limits.connections);
        let site = Site::new(Some(http), None, limits, connections);
        let listener = listen(endpoint.addr, "rpc", site).await?;
        let bound = listener.socket.local_addr().unwrap_or(endpoint.addr);
        let listeners = vec![listener];
        Ok((Self { listeners }, bound))
    }

    /// Binds the HTTP endpoint of a service that is no node. `flag` begins the names of its options.
    /// A call may take as long as [`SERVICE_CALL`].
    pub async fn bind_service(
        addr: SocketAddr,
        api: Api,
        flag: &'static str,
    ) -> Result<(Self, SocketAddr), BindError> {
        let any = || vec!["*".to_owned()];
        let http = Http {
            api: Arc::new(api),
            vhosts: any(),
            cors: any(),
        };
        let limits = ServerLimits {
            connections: SERVICE_CONNECTIONS,
            write: SERVICE_CALL,
            ..ServerLimits::default()
        };
        let connections = Connections::new(limits.connections);
        let site = Site::new(Some(http), None, limits, connections);
        let listener = listen(addr, flag, site).await?;
        let bound = listener.socket.local_addr().unwrap_or(addr);
        let listeners = vec![listener];
        Ok((Self { listeners }, bound))
    }

    async fn bind_sites(
        http: Option<(SocketAddr, Http)>,
        ws: Option<(SocketAddr, Ws)>,
        limits: ServerLimits,
        connections: &Arc<Connections>,
    ) -> Result<(Self, BoundAddrs), BindError> {
        let mut listeners = Vec::new();
        let mut bound = BoundAddrs::default();
        match (http, ws) {
            (Some((addr, http)), Some((same, ws))) if addr == same && addr.port() != 0 => {
                listeners.push(
                    listen(
                        addr,
                        "http",
                        Site::new(Some(http), Some(ws), limits, connections.clone()),
                    )
                    .await?,
                );
                bound = BoundAddrs {
                    http: Some(addr),
                    ws: Some(addr),
                    ..bound
                };
            }
            (http, ws) => {
                if let Some((addr, http)) = http {
                    let listener = listen(
                        addr,
                        "http",
                        Site::new(Some(http), None, limits.clone(), connections.clone()),
                    )
                    .await?;
                    bound.http = Some(listener.socket.local_addr().unwrap_or(addr));
                    listeners.push(listener);
                }
                if let Some((addr, ws)) = ws {
                    let listener = listen(
                        addr,
                        "ws",
                        Site::new(None, Some(ws), limits, connections.clone()),
                    )
                    .await?;
                    bound.ws = Some(listener.socket.local_addr().unwrap_or(addr));
                    listeners.push(listener);
                }
            }
        }
        Ok((Self { listeners }, bound))
    }

    /// Serves until `token` is cancelled, then lets requests in flight end and closes WebSockets.
    /// Without any endpoint it waits for the token: such a node still relays blocks.
    pub async fn run(self, token: CancellationToken) {
        if self.listeners.is_empty() {
            return token.cancelled().await;
        }
        futures::future::join_all(
            self.listeners
                .into_iter()
                .map(|listener| listener.run(token.clone())),
        )
        .await;
    }
}

/// The listener of the rollup node's RPC; `None` if its port is in use and not `required`.
async fn bind_rollup(
    addr: SocketAddr,
    site: Site,
    required: bool,
) -> Result<Option<Listener>, BindError> {
    match listen(addr, "rpc", site).await {
        Err(BindError::InUse { .. }) if !required => {
            tracing::warn!(%addr, "the default port of the rollup node's RPC is in use by another program, so this RPC is not served: choose another port with --rpc.port");
            Ok(None)
        }
        bound => bound.map(Some),
    }
}

/// The Engine API's listener. It has connections of its own, so public clients cannot take the
/// rollup node's.
async fn bind_auth(
    endpoint: AuthEndpoint,
    limits: ServerLimits,
    context: &Arc<RpcContext>,
) -> Result<Listener, BindError> {
    let names = AUTH_NAMESPACES
        .each_ref()
        .map(|namespace| namespace.name.to_owned());
    let api = Arc::new(Api::new(&names, &AUTH_NAMESPACES, context, "--authrpc"));
    let http = Http {
        api: api.clone(),
        vhosts: endpoint.vhosts,
        cors: vec![],
    };
    let ws = Ws {
        api,
        origins: vec![],
    };
    let connections = Connections::new(limits.connections);
    let site = Site::new(Some(http), Some(ws), limits, connections);
    listen(endpoint.addr, "authrpc", site.with_secret(endpoint.secret)).await
}

async fn listen(addr: SocketAddr, flag: &'static str, site: Site) -> Result<Listener, BindError> {
    let socket = TcpListener::bind(addr)
        .await
        .map_err(|source| match source.kind() {
            ErrorKind::AddrInUse => BindError::InUse { addr, flag },
            _ => BindError::Io { addr, flag, source },
        })?;
    Ok(Listener {
        socket,
        site: Arc::new(site),
    })
}

#[cfg(test)]
mod tests;
