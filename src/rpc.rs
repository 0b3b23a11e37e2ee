//! The JSON-RPC server: what wallets and tools ask the execution client, over HTTP and WebSocket.
//!
//! [`server`] takes connections and applies the HTTP rules, [`ws`] runs WebSocket sessions, [`frame`] is JSON-RPC itself, [`api`]
//! the table of methods; [`admin`], [`eth`], [`miner`], [`net`], [`opp2p`], [`txpool`] and [`web3`] hold the methods, plain functions of a [`RpcContext`] and
//! parameters.
//! Every request reads one view of the chain; none can reach, or wait for, the executor. Framing, texts and shapes are geth's.
//! [`engine`] alone drives the chain, on an endpoint of its own whose clients [`jwt`] lets in.

pub mod admin;
pub mod api;
mod connections;
pub mod engine;
pub mod error;
pub mod eth;
pub mod frame;
mod heavy;
mod io;
mod json;
pub mod jwt;
pub mod miner;
pub mod net;
pub mod opp2p;
pub mod params;
pub mod schedule;
pub mod server;
mod shares;
pub mod txpool;
pub mod web3;
pub mod ws;

use crate::{
    chain::{
        Chain, Heads,
        abandoned::Abandoned,
        heads::{Cursor, Step, StepError},
        pool::Pool,
        rules::ChainSpec,
        view::{ReadError, View},
    },
    rollup::sequencer::SequencerHandle,
};
use alloy_primitives::B256;
use api::{Api, Bounds, Namespace};
use connections::Connections;
use engine::EngineContext;
use jwt::JwtSecret;
use server::{Http, Limits, Listener, Site, Ws};
use starling_p2p::Network;
use std::{io::ErrorKind, net::SocketAddr, sync::Arc};
use tokio::{net::TcpListener, sync::watch};
use tokio_util::sync::CancellationToken;

pub use eth::{decoded::DecodedBlocks, filters::Filters, send::TxRoute};

/// Every namespace that `--http.api` and `--ws.api` can name.
static NAMESPACES: [Namespace; 7] = [
    admin::NAMESPACE,
    eth::NAMESPACE,
    miner::NAMESPACE,
    net::NAMESPACE,
    opp2p::NAMESPACE,
    txpool::NAMESPACE,
    web3::NAMESPACE,
];

/// What the authenticated endpoint serves (geth: `DefaultAuthModules`).
static AUTH_NAMESPACES: [Namespace; 2] = [engine::NAMESPACE, eth::NAMESPACE];
/// Bytes of one request on the authenticated endpoint: a block, in hex.
const AUTH_BODY: usize = 128 << 20;
/// Calls in one batch there, and bytes of their results (op-geth's).
const AUTH_BATCH: usize = 2000;
/// Connections of the Engine API port: some rollup nodes and tools, and clients that have not shown the secret.
pub const AUTH_CONNECTIONS: usize = 1024;
const AUTH_BATCH_RESPONSE: usize = 250_000_000;

/// What RPC may do with a chain: read its newest view, wait for the next, add to its pool.
#[derive(Clone)]
pub struct Reader {
    pub spec: Arc<ChainSpec>,
    pub pool: Arc<Pool>,
    /// Wakes when a head moves.
    pub heads: watch::Receiver<Heads>,
    pub view: Arc<dyn Fn() -> Arc<View> + Send + Sync>,
    /// Finds an abandoned block by hash.
    pub abandoned: Lookup,
}

/// Lookup of abandoned blocks by hash.
pub type Lookup = Arc<dyn Fn(B256) -> Result<Option<Abandoned>, ReadError> + Send + Sync>;

impl From<&Chain> for Reader {
    fn from(chain: &Chain) -> Self {
        let (spec, pool, heads) = (chain.spec().clone(), chain.pool().clone(), chain.heads());
        let (viewed, searched) = (chain.clone(), chain.clone());
        let abandoned: Lookup = Arc::new(move |hash: B256| searched.abandoned(hash));
        Self {
            spec,
            pool,
            heads,
            view: Arc::new(move || viewed.view()),
            abandoned,
        }
    }
}

/// How far a node has to go that is not at the head of the network (`eth_syncing`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Where it began.
    pub starting: u64,
    /// The newest block it has heard of.
    pub highest: u64,
}

/// What the methods answer from.
pub struct RpcContext {
    pub chain: Reader,
    pub route: TxRoute,
    /// `None` where there is no swarm.
    pub network: Option<Network>,
    /// `None` where no blocks are made.
    pub sequencer: Option<SequencerHandle>,
    /// `None` inside when at the head.
    pub syncing: Option<watch::Receiver<Option<Progress>>>,
    /// `web3_clientVersion`.
    pub client_version: String,
    /// Leaves `l1FeeScalar` out of receipts from Ecotone on, as op-geth does (`--rpc.geth-exact-receipts`).
    pub geth_exact_receipts: bool,
    pub filters: Filters,
    pub blocks: DecodedBlocks,
    pub bounds: Bounds,
    /// `None` where no rollup node drives the chain from outside.
    pub engine: Option<EngineContext>,
}

impl RpcContext {
    /// A context without a swarm that is always at the head; set the fields that differ.
    pub fn new(chain: Reader, route: TxRoute) -> Self {
        let client_version = format!(
            "starling/v{}/{}-{}",
            crate::cli::VERSION,
            std::env::consts::OS,
            std::env::consts::ARCH
        );
        Self {
            chain,
            route,
            network: None,
            sequencer: None,
            syncing: None,
            client_version,
            geth_exact_receipts: false,
            filters: Filters::default(),
            blocks: DecodedBlocks::default(),
            bounds: Bounds::default(),
            engine: None,
        }
    }

    /// The newest view. Take it once per request.
    pub fn view(&self) -> Arc<View> {
        (self.chain.view)()
    }

    /// The next step of a cursor.
    fn step(&self, cursor: &mut Cursor, view: &View) -> Result<Option<Step>, StepError> {
        cursor.step(view, |hash| (self.chain.abandoned)(hash))
    }
}

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

/// `--ws.*`.
#[derive(Clone, Debug)]
pub struct WsEndpoint {
    pub addr: SocketAddr,
    /// Names of namespaces.
    pub api: Vec<String>,
    /// Origins that browsers may connect from; `*` allows all, none means this machine only.
    pub origins: Vec<String>,
}

/// `--authrpc.*`: HTTP and WebSocket on one socket, for whoever knows the secret.
#[derive(Clone, Debug)]
pub struct AuthEndpoint {
    pub addr: SocketAddr,
    /// As in [`HttpEndpoint`].
    pub vhosts: Vec<String>,
    pub secret: JwtSecret,
}

/// What is served where. The same address for both is one listening socket.
#[derive(Clone, Debug, Default)]
pub struct RpcConfig {
    pub http: Option<HttpEndpoint>,
    pub ws: Option<WsEndpoint>,
    pub auth: Option<AuthEndpoint>,
    /// `--rpc.*`: the rollup node's own RPC.
    pub rollup: Option<HttpEndpoint>,
    pub limits: Limits,
}

/// Where the server listens, with the ports that the system chose where 0 was asked for.
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
    /// `admin`, `miner` and `opp2p` are served only if they are named. They can change the signer, change what the node builds, or cut it
    /// off from its peers, and even a loopback address may have a public proxy in front.
    pub async fn bind(
        config: RpcConfig,
        context: RpcContext,
    ) -> Result<(Self, BoundAddrs), BindError> {
        let context = Arc::new(context);
        let api = |names: &[String], flag| Arc::new(Api::new(names, &NAMESPACES, &context, flag));
        let http = config.http.map(|end| {
            let api = api(&end.api, "--http.api");
            (
                end.addr,
                Http {
                    api,
                    vhosts: end.vhosts,
                    cors: end.cors,
                },
            )
        });
        let ws = config.ws.map(|end| {
            (
                end.addr,
                Ws {
                    api: api(&end.api, "--ws.api"),
                    origins: end.origins,
                },
            )
        });
        let rollup = config.rollup.map(|end| {
            let api = api(&end.api, "--rpc");
            (
                end.addr,
                Http {
                    api,
                    vhosts: end.vhosts,
                    cors: end.cors,
                },
            )
        });
        let auth_limits = Limits {
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
        if let Some((addr, http)) = rollup {
            let listener = listen(
                addr,
                "rpc",
                Site::new(Some(http), None, limits, connections),
            )
            .await?;
            bound.rollup = Some(listener.socket.local_addr().unwrap_or(addr));
            server.listeners.push(listener);
        }
        if let Some(AuthEndpoint {
            addr,
            vhosts,
            secret,
        }) = config.auth
        {
            let names = AUTH_NAMESPACES
                .each_ref()
                .map(|namespace| namespace.name.to_owned());
            let api = Arc::new(Api::new(&names, &AUTH_NAMESPACES, &context, "--authrpc"));
            let http = Http {
                api: api.clone(),
                vhosts,
                cors: vec![],
            };
            let ws = Ws {
                api,
                origins: vec![],
            };
            // A limit of its own: public clients cannot take the rollup node's connections.
            let connections = Connections::new(auth_limits.connections);
            let site = Site::new(Some(http), Some(ws), auth_limits, connections);
            let listener = listen(addr, "authrpc", site.with_secret(secret)).await?;
            bound.auth = Some(listener.socket.local_addr().unwrap_or(addr));
            server.listeners.push(listener);
        }
        Ok((server, bound))
    }

    async fn bind_sites(
        http: Option<(SocketAddr, Http)>,
        ws: Option<(SocketAddr, Ws)>,
        limits: Limits,
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

    /// Serves until `token` is cancelled, also if nothing is to be served; then requests in flight end, WebSockets are closed.
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
