//! The JSON-RPC server for wallets, tools and rollup nodes, over HTTP, WebSocket and a local
//! socket.
//!
//! Transports: [`server`] accepts connections and applies the HTTP rules, [`ws`] runs WebSocket
//! sessions, [`ipc`] serves the local socket, and [`running`] starts and stops listeners. Protocol:
//! [`frame`] is JSON-RPC itself, [`api`] the table of methods, [`subscription`] the events of
//! subscriptions. [`limits`], [`memory`] and [`bounds`] limit connections, bytes and work;
//! [`operator`] names the methods that no web page may call.
//!
//! The methods are plain functions of a [`RpcContext`] and parameters. They are in [`admin`],
//! [`debug`], [`eth`], [`health`], [`miner`], [`net`], [`opp2p`], [`optimism`], [`ots`],
//! [`starling`], [`testing`], [`trace`], [`txpool`] and [`web3`]; [`context`] holds the parts of
//! the node that they use. Most requests read one view of the chain. No method waits for the
//! executor, except those of the Engine API and those that change the chain on an operator's
//! behalf, such as `debug_setHead`. Framing, texts and shapes are geth's.
//!
//! With [`engine`], a rollup node drives the chain (through [`engine_backend`]). The namespace has
//! an endpoint of its own, where [`jwt`](crate::jwt) authenticates clients.

pub mod access;
pub mod admin;
pub mod api;
mod before_bedrock;
pub mod block_tag;
pub mod bounds;
mod chunked;
mod connections;
pub mod context;
pub mod cost_gate;
pub mod debug;
pub mod decoded;
mod endpoint;
pub mod engine;
pub mod engine_backend;
pub mod error;
pub mod eth;
pub mod filters;
pub mod forward;
pub mod frame;
pub mod health;
mod heavy;
pub mod historical;
mod http_metrics;
mod ids;
mod io;
pub mod ipc;
mod json;
pub mod limits;
pub mod log_filter;
pub mod memory;
pub mod miner;
pub mod net;
pub mod node_files;
pub mod operator;
pub mod opp2p;
pub mod optimism;
pub mod ots;
pub mod params;
pub mod paused_replays;
mod responder;
pub mod route;
mod running;
pub mod schedule;
pub mod server;
pub mod server_control;
mod shares;
pub mod starling;
mod subscription;
pub mod superroot;
pub mod testing;
pub mod trace;
pub mod trace_session;
pub mod txpool;
pub mod web3;
pub mod ws;

use access::Access;
use api::{Api, Namespace};
use connections::Connections;
use endpoint::offered_namespaces;
use futures::{FutureExt, future::BoxFuture};
use ipc::{IpcError, IpcListener};
use limits::ServerLimits;
use running::{Binder, Running, ServedListener, UnboundServer};
use server::{Http, Listener, Site, Ws};
use server_control::{ServerCommands, ServerKind, ServerStartError, server_control};
use std::{io::ErrorKind, net::SocketAddr, path::Path, sync::Arc, time::Duration};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

pub use context::{
    AbandonedLookup, CommitBlock, LateRollupContext, Reader, RollupContext, RpcContext, SyncStatus,
};
pub use decoded::DecodedBlocks;
pub use endpoint::{AuthEndpoint, HttpEndpoint, IpcEndpoint, RollupEndpoint, WsEndpoint};
pub use filters::Filters;
pub use route::TxRoute;

/// Every namespace that `--http.api` and `--ws.api` can name.
static NAMESPACES: [Namespace; 15] = [
    admin::NAMESPACE,
    debug::NAMESPACE,
    eth::NAMESPACE,
    health::NAMESPACE,
    miner::NAMESPACE,
    net::NAMESPACE,
    opp2p::NAMESPACE,
    optimism::NAMESPACE,
    ots::NAMESPACE,
    starling::NAMESPACE,
    superroot::NAMESPACE,
    testing::NAMESPACE,
    trace::NAMESPACE,
    txpool::NAMESPACE,
    web3::NAMESPACE,
];

/// Names of the namespaces that the public endpoints may serve.
pub fn namespaces() -> impl Iterator<Item = &'static str> {
    NAMESPACES.iter().map(|namespace| namespace.name)
}

/// Namespaces of the authenticated endpoint (geth: `DefaultAuthModules`).
static AUTH_NAMESPACES: [Namespace; 2] = [engine::NAMESPACE, eth::NAMESPACE];
/// Maximum bytes of one request on the authenticated endpoint: enough for a block in hex.
const AUTH_BODY: usize = 128 << 20;
/// Maximum calls in one batch on the authenticated endpoint (op-geth's limit).
const AUTH_BATCH: usize = 2000;
/// Maximum bytes of the results of one batch on the authenticated endpoint (op-geth's limit).
const AUTH_BATCH_RESPONSE: usize = 250_000_000;
/// Maximum connections of the Engine API port. Its clients are a few rollup nodes and tools;
/// connections that have not authenticated yet count too.
pub const AUTH_CONNECTIONS: usize = 1024;

/// Maximum connections of a batcher's or proposer's RPC, whose clients are operators and probes.
const SERVICE_CONNECTIONS: usize = 256;
/// Timeout of a call to a batcher's or proposer's RPC. `admin_stopBatcher` responds only when
/// everything that was sent is confirmed on L1.
const SERVICE_CALL: Duration = Duration::from_secs(3600);

/// The endpoints and their limits. HTTP and WebSocket share one listening socket if they have the
/// same address.
#[derive(Clone, Debug, Default)]
pub struct RpcConfig {
    pub http: Option<HttpEndpoint>,
    pub ws: Option<WsEndpoint>,
    pub auth: Option<AuthEndpoint>,
    pub rollup: Option<RollupEndpoint>,
    pub ipc: Option<IpcEndpoint>,
    pub limits: ServerLimits,
    /// Keys and budgets of the HTTP and WebSocket endpoints; with `None`, calls are not limited.
    pub access: Option<Arc<Access>>,
    /// Namespaces that `--http.api` and `--ws.api` name, also while no such server is configured.
    pub named: Vec<String>,
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
    #[error(transparent)]
    Ipc(#[from] IpcError),
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

/// A server whose sockets are bound, but which does not serve yet.
pub struct RpcServer {
    listeners: Vec<ServedListener>,
    ipc: Option<IpcListener>,
    /// Control of an operator who starts and stops listeners; `None` for a server whose listeners
    /// never change.
    control: Option<ServerControl>,
}

/// The queue of an operator's commands, and the binder of the servers that these commands start.
struct ServerControl {
    commands: ServerCommands,
    bind: Binder,
}

impl RpcServer {
    /// Binds the sockets. No connection is accepted before [`RpcServer::run`].
    ///
    /// The endpoints of `--http.*` and `--ws.*` serve the namespaces `admin`, `debug`, `miner` and
    /// `opp2p` only if an operator names them. Their methods can change the block signer, change
    /// the blocks that the node builds, or cut the node off from its peers. A loopback address is
    /// no protection, because a public proxy may forward to it.
    pub async fn bind(
        config: RpcConfig,
        mut context: RpcContext,
    ) -> Result<(Self, BoundAddrs), BindError> {
        let (handle, commands) = server_control();
        context.servers = Some(handle);
        context.access = config.access;
        let context = Arc::new(context);
        let api = |names: &[String], flag| Arc::new(Api::new(names, &NAMESPACES, &context, flag));
        let startable = StartableServers {
            http: config.http.clone().unwrap_or_default(),
            ws: config.ws.clone().unwrap_or_default(),
            offered: offered_namespaces(config.named),
        };
        let http = config
            .http
            .map(|end| (end.addr, http_site(end, &context, "--http.api")));
        let ws = config.ws.map(|end| (end.addr, ws_site(end, &context)));
        let rollup = config.rollup.map(|end| {
            (
                end.required,
                (
                    end.http.addr,
                    rollup_site(end.http, &context.rollup_node().into()),
                ),
            )
        });
        let auth_limits = auth_limits(&config.limits);
        let all = || {
            NAMESPACES
                .each_ref()
                .map(|namespace| namespace.name.to_owned())
        };
        let ipc = config.ipc.map(|end| (end, api(&all(), "--ipcpath")));
        let ipc = ipc.map(|(end, api)| bind_ipc(&end, api, &config.limits));
        let limits = config.limits;
        let connections = Connections::new(limits.connections);
        let bind = binder(&context, startable, limits.clone(), connections.clone());
        let (mut server, mut bound) =
            Self::bind_sites(http, ws, limits.clone(), &connections, &context.access).await?;
        server.control = Some(ServerControl { commands, bind });
        if let Some((required, (addr, http))) = rollup {
            let site = Site::new(Some(http), None, limits, connections).recorded();
            if let Some(listener) = bind_rollup(addr, site, required).await? {
                bound.rollup = Some(listener.socket.local_addr().unwrap_or(addr));
                server.listeners.push(ServedListener::fixed(listener));
            }
        }
        if let Some(auth) = config.auth {
            let addr = auth.addr;
            let listener = bind_auth(auth, auth_limits, &context).await?;
            bound.auth = Some(listener.socket.local_addr().unwrap_or(addr));
            server.listeners.push(ServedListener::fixed(listener));
        }
        server.ipc = ipc.transpose()?.flatten();
        Ok((server, bound))
    }

    /// Binds the RPC (`--rpc.*`) of a rollup node whose chain is in another process. It may be served
    /// before `context` is filled.
    pub async fn bind_rollup_node(
        endpoint: HttpEndpoint,
        limits: ServerLimits,
        context: &LateRollupContext,
    ) -> Result<(Self, SocketAddr), BindError> {
        let addr = endpoint.addr;
        let http = rollup_site(endpoint, context);
        let connections = Connections::new(limits.connections);
        let site = Site::new(Some(http), None, limits, connections).recorded();
        let listener = listen(addr, "rpc", site).await?;
        let bound = listener.socket.local_addr().unwrap_or(addr);
        let server = Self {
            listeners: vec![ServedListener::fixed(listener)],
            ipc: None,
            control: None,
        };
        Ok((server, bound))
    }

    /// Path of the local socket, if one is served.
    pub fn ipc_path(&self) -> Option<&Path> {
        self.ipc.as_ref().map(IpcListener::path)
    }

    /// Binds the HTTP endpoint of a service that is no node, such as a batcher. `flag` is the
    /// prefix of the names of its options. A call may take up to [`SERVICE_CALL`].
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
            prefix: String::new(),
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
        let server = Self {
            listeners: vec![ServedListener::fixed(listener)],
            ipc: None,
            control: None,
        };
        Ok((server, bound))
    }

    async fn bind_sites(
        http: Option<(SocketAddr, Http)>,
        ws: Option<(SocketAddr, Ws)>,
        limits: ServerLimits,
        connections: &Arc<Connections>,
        access: &Option<Arc<Access>>,
    ) -> Result<(Self, BoundAddrs), BindError> {
        let site = |http, ws| {
            let site = Site::new(http, ws, limits.clone(), connections.clone());
            site.with_access(access.clone())
        };
        let mut listeners = Vec::new();
        let mut bound = BoundAddrs::default();
        match (http, ws) {
            (Some((addr, http)), Some((same, ws))) if addr == same && addr.port() != 0 => {
                let site = site(Some(http), Some(ws));
                listeners.push(ServedListener {
                    kinds: vec![ServerKind::Http, ServerKind::Ws],
                    listener: listen(addr, "http", site).await?,
                });
                bound = BoundAddrs {
                    http: Some(addr),
                    ws: Some(addr),
                    ..bound
                };
            }
            (http, ws) => {
                if let Some((addr, http)) = http {
                    let listener = listen(addr, "http", site(Some(http), None)).await?;
                    bound.http = Some(listener.socket.local_addr().unwrap_or(addr));
                    listeners.push(ServedListener {
                        kinds: vec![ServerKind::Http],
                        listener,
                    });
                }
                if let Some((addr, ws)) = ws {
                    let listener = listen(addr, "ws", site(None, Some(ws))).await?;
                    bound.ws = Some(listener.socket.local_addr().unwrap_or(addr));
                    listeners.push(ServedListener {
                        kinds: vec![ServerKind::Ws],
                        listener,
                    });
                }
            }
        }
        let server = Self {
            listeners,
            ipc: None,
            control: None,
        };
        Ok((server, bound))
    }

    /// Serves until `token` is cancelled, then lets requests in flight end and closes WebSockets. A
    /// server without any endpoint only waits for `token`, because its node still relays blocks.
    pub async fn run(self, token: CancellationToken) {
        let (commands, bind) = match self.control {
            Some(ServerControl { commands, bind }) => (commands, bind),
            None => (server_control().1, no_binder()),
        };
        let mut running = Running::new(token, bind);
        for listener in self.listeners {
            running.serve(listener);
        }
        if let Some(ipc) = self.ipc {
            running.run(|token| ipc.run(token).boxed());
        }
        running.until_cancelled(commands).await;
    }
}

/// The HTTP side of one of the node's endpoints. `flag` names the option that lists its namespaces.
fn http_site(endpoint: HttpEndpoint, context: &Arc<RpcContext>, flag: &str) -> Http {
    let api = Api::new(&endpoint.api, &NAMESPACES, context, flag);
    endpoint.site(Arc::new(api))
}

/// The rollup node's RPC: of the namespaces that it names, the methods of a rollup node. Whoever
/// reaches this port thus cannot control the execution core, even if `admin` is enabled.
fn rollup_site(endpoint: HttpEndpoint, context: &LateRollupContext) -> Http {
    let api = Api::of_rollup_node(&endpoint.api, &NAMESPACES, context);
    endpoint.site(Arc::new(api))
}

/// The WebSocket side of one of the node's endpoints.
fn ws_site(endpoint: WsEndpoint, context: &Arc<RpcContext>) -> Ws {
    let api = Api::new(&endpoint.api, &NAMESPACES, context, "--ws.api");
    endpoint.site(Arc::new(api))
}

/// The servers that operators start: the configured settings, or geth's defaults if a server is not
/// configured, and the namespaces that a request may name.
struct StartableServers {
    http: HttpEndpoint,
    ws: WsEndpoint,
    offered: Vec<String>,
}

/// Binds the servers that operators start, with the values in the operator's request.
fn binder(
    context: &Arc<RpcContext>,
    servers: StartableServers,
    limits: ServerLimits,
    connections: Arc<Connections>,
) -> Binder {
    let context = context.clone();
    let make = move |kind, request| {
        let (limits, connections) = (limits.clone(), connections.clone());
        Ok(match kind {
            ServerKind::Http => {
                let end = servers.http.clone().changed(request, &servers.offered)?;
                let addr = end.addr;
                let site = Some(http_site(end, &context, "admin_startHTTP"));
                UnboundServer {
                    addr,
                    flag: "http",
                    site: Site::new(site, None, limits, connections)
                        .with_access(context.access.clone()),
                }
            }
            ServerKind::Ws => {
                let end = servers.ws.clone().changed(request, &servers.offered)?;
                let addr = end.addr;
                let site = Some(ws_site(end, &context));
                UnboundServer {
                    addr,
                    flag: "ws",
                    site: Site::new(None, site, limits, connections)
                        .with_access(context.access.clone()),
                }
            }
        })
    };
    Binder {
        make: Box::new(make),
        bind: bind_server,
    }
}

fn bind_server(server: UnboundServer) -> BoxFuture<'static, Result<Listener, ServerStartError>> {
    async move {
        let UnboundServer { addr, flag, site } = server;
        let bound = listen(addr, flag, site).await;
        bound.map_err(|error| ServerStartError::Bind(error.to_string()))
    }
    .boxed()
}

/// The binder of a server that takes no commands.
fn no_binder() -> Binder {
    Binder {
        make: Box::new(|_, _| Err(ServerStartError::Stopping)),
        bind: bind_server,
    }
}

/// The limits of the Engine API, derived from those of the public endpoints.
fn auth_limits(limits: &ServerLimits) -> ServerLimits {
    ServerLimits {
        body: AUTH_BODY,
        ws_message: AUTH_BODY,
        batch: AUTH_BATCH,
        batch_response: AUTH_BATCH_RESPONSE,
        response_memory: limits.response_memory.max(AUTH_BATCH_RESPONSE),
        connections: AUTH_CONNECTIONS.min(limits.connections),
        ws_connections: (AUTH_CONNECTIONS / 2).min(limits.ws_connections),
        ..limits.clone()
    }
}

/// Binds the local socket. Returns `None` if binding fails and the socket is not `required`.
fn bind_ipc(
    endpoint: &IpcEndpoint,
    api: Arc<Api>,
    limits: &ServerLimits,
) -> Result<Option<IpcListener>, BindError> {
    match IpcListener::bind(&endpoint.path, api, limits.clone()) {
        Ok(listener) => Ok(Some(listener)),
        Err(error) if endpoint.required => Err(error.into()),
        Err(error) => {
            tracing::warn!(%error, "the local socket is not served");
            Ok(None)
        }
    }
}

/// Binds the listener of the rollup node's RPC. Returns `None` if its port is in use and the RPC is
/// not `required`.
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

/// The Engine API's listener. It has its own limit on connections, so public clients cannot use up
/// the rollup node's connections.
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
        prefix: String::new(),
    };
    let ws = Ws {
        api,
        origins: vec![],
        prefix: String::new(),
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
    site.warn_of_exposure(socket.local_addr().unwrap_or(addr), flag);
    Ok(Listener {
        socket,
        site: Arc::new(site),
    })
}

#[cfg(test)]
mod tests;
