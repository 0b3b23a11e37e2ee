//! The node's JSON-RPC: the Engine API and the public endpoints, from configuration to a running
//! server.

use super::rpc_files::{commit_block, node_files};
use crate::{
    chain::{
        Chain,
        pool::{conditional::MAX_COST, journal::TxJournal},
    },
    cli::config::{
        ExecutionConfig, HttpConfig, PendingConfig, RollupRpcConfig, RpcLimits, RpcOptions,
    },
    jwt::JwtSecret,
    open_files,
    pending::{
        Pending,
        built::BuiltPending,
        flashblocks::{self, NewestFlashblock},
    },
    rollup::{handle::RollupHandle, http::endpoint_of, sequencer::SequencerHandle},
    rpc::{
        self, AuthEndpoint, HttpEndpoint, IpcEndpoint, RollupEndpoint, RpcContext, RpcServer,
        SyncStatus, TxRoute, WsEndpoint,
        access::Access,
        bounds::LogLimits,
        cost_gate::CostGate,
        engine::{EngineContext, backend::EngineBackend, superchain::Halt},
        eth::send,
        historical::Historical,
    },
    script_host,
    secret::Secret,
    tasks::Tasks,
    version::VERSION,
};
use anyhow::{Context, anyhow};
use starling_p2p::Network;
use std::{net::SocketAddr, path::PathBuf, sync::Arc};
use tokio::sync::watch;

/// The methods of the Engine API, and the endpoint that serves them.
pub(super) struct EngineApi {
    pub context: EngineContext,
    pub endpoint: AuthEndpoint,
}

/// The Engine API of a chain that a separate rollup node drives. A chain with interval block
/// production has no Engine API.
pub(super) async fn engine_api(
    tasks: &Tasks,
    chain: &Chain,
    network: Option<Network>,
    config: &ExecutionConfig,
) -> anyhow::Result<Option<EngineApi>> {
    if config.dev_period.is_some() {
        return Ok(None);
    }
    let secret =
        JwtSecret::load_or_create(&config.engine.jwt_secret).context("--authrpc.jwtsecret")?;
    tracing::info!(path = %config.engine.jwt_secret.display(), "the JWT secret of the Engine API");
    let addr = resolve("--authrpc.addr", &config.engine.addr, config.engine.port).await?;
    let halt = config.engine.halt.map(|at| Halt {
        at,
        token: tasks.token(),
    });
    let context = EngineContext {
        engine: Arc::new(EngineBackend::new(chain.clone(), network)),
        halt,
    };
    let endpoint = AuthEndpoint {
        addr,
        vhosts: config.engine.vhosts.clone(),
        secret,
    };
    Ok(Some(EngineApi { context, endpoint }))
}

/// The parts of the node, besides the chain, that JSON-RPC methods use.
pub(super) struct RpcParts {
    pub datadir: PathBuf,
    pub network: Option<Network>,
    pub sequencer: Option<SequencerHandle>,
    pub rollup: Option<RollupHandle>,
    pub syncing: watch::Receiver<Option<SyncStatus>>,
    pub engine: Option<EngineApi>,
    /// The folder for files that tracing methods write and read.
    pub traces: PathBuf,
}

/// Name of the folder in the data directory for files that tracing methods write and read.
pub(super) const TRACES: &str = "traces";

/// Binds the endpoints and spawns the server.
pub(super) async fn serve(
    tasks: &Tasks,
    chain: &Chain,
    parts: RpcParts,
    config: &RpcOptions,
) -> anyhow::Result<()> {
    let route = match &config.sequencer_http {
        Some(url) => TxRoute::sequencer(url.expose(), config.tx_pool_admission)
            .map_err(|reason| anyhow!("--rollup.sequencerhttp: {reason}"))?,
        None => TxRoute::Pool,
    };
    let mut context = RpcContext::new(chain.into(), route);
    (context.network, context.sequencer) = (parts.network, parts.sequencer);
    context.rollup = parts.rollup;
    context.syncing = Some(parts.syncing);
    context.traces = Some(parts.traces);
    context.scripts = config.js_tracers.then(script_host::processes);
    context.files = Some(node_files(chain, &parts.datadir, tasks.token()));
    context.commit = Some(commit_block(chain));
    context.historical = historical(chain, config)?;
    context.pending = pending(tasks, chain, config)?;
    context.geth_exact_receipts = config.geth_exact_receipts;
    set_bounds(&mut context, config);
    keep_journal(tasks, chain, &mut context, config)?;
    let mut endpoints = endpoints(config).await?;
    if let Some(path) = &config.access {
        let access =
            Access::read(path).with_context(|| format!("--rpc.limits {}", path.display()))?;
        endpoints.access = Some(Arc::new(access));
    }
    if let Some(EngineApi {
        context: engine,
        endpoint,
    }) = parts.engine
    {
        context.engine = Some(engine);
        endpoints.auth = Some(endpoint);
    }
    let (server, bound) = RpcServer::bind(endpoints, context).await?;
    let [http, ws, rpc, authrpc] = [bound.http, bound.ws, bound.rollup, bound.auth]
        .map(|bound| bound.map(tracing::field::display));
    let ipc = server.ipc_path().map(|path| path.display().to_string());
    tracing::info!(
        version = VERSION,
        http,
        ws,
        rpc,
        authrpc,
        ipc,
        "JSON-RPC is served"
    );
    tasks.spawn("JSON-RPC", {
        let token = tasks.token();
        async move {
            server.run(token).await;
            Ok(())
        }
    });
    Ok(())
}

/// Access to the history before the first block of this chain; `None` if the first block is block
/// 0.
fn historical(chain: &Chain, config: &RpcOptions) -> anyhow::Result<Option<Historical>> {
    let first = chain.view().number_of(chain.spec().genesis_hash)?;
    let url = config.historical.as_ref().map(Secret::expose);
    let Some(first) = first.filter(|first| *first > 0) else {
        if url.is_some() {
            tracing::warn!(
                "--rollup.historicalrpc has no effect: the chain here begins at block 0"
            );
        }
        return Ok(None);
    };
    let historical = Historical::new(first, url, config.historical_timeout);
    historical
        .map(Some)
        .map_err(|reason| anyhow!("--rollup.historicalrpc: {reason}"))
}

/// The source of the `pending` block. Spawns the task that reads flashblocks.
fn pending(tasks: &Tasks, chain: &Chain, config: &RpcOptions) -> anyhow::Result<Pending> {
    let url = match &config.pending {
        PendingConfig::Latest => return Ok(Pending::Latest),
        PendingConfig::Built => return Ok(Pending::Built(BuiltPending::default())),
        PendingConfig::Flashblocks(url) => url,
    };
    if !chain.spec().is_optimism() {
        return Err(anyhow!(
            "--flashblocks-url: an Ethereum chain has no flashblocks"
        ));
    }
    let url = url
        .expose()
        .parse()
        .with_context(|| format!("--flashblocks-url: {} is no URL", endpoint_of(url.expose())))?;
    let newest = Arc::new(NewestFlashblock::default());
    let (spec, viewed, token) = (chain.spec().clone(), chain.clone(), tasks.token());
    let reading = flashblocks::run(
        url,
        spec,
        Arc::new(move || viewed.view()),
        newest.clone(),
        token,
    );
    tasks.spawn("flashblocks", async move {
        reading.await;
        Ok(())
    });
    Ok(Pending::Flashblocks(newest))
}

/// Copies the limits of the configuration into the context.
fn set_bounds(context: &mut RpcContext, config: &RpcOptions) {
    let limits = &config.limits;
    (context.bounds.gas_cap, context.bounds.timeout) = (limits.gas_cap, limits.evm_timeout);
    context.bounds.logs = LogLimits {
        query: limits.log_query,
        blocks: limits.log_blocks,
        logs: limits.logs,
        ..LogLimits::default()
    };
    context.bounds.trace_blocks = limits.trace_blocks;
    context.bounds.sync_timeouts = limits.sync_timeouts;
    context.bounds.gas_oracle = config.gas_oracle;
    context.conditional_gate = config
        .conditional_rate
        .map(|rate| CostGate::new(rate, MAX_COST as u64));
}

/// Reads the journal of local transactions, and spawns the task that rewrites the journal.
fn keep_journal(
    tasks: &Tasks,
    chain: &Chain,
    context: &mut RpcContext,
    config: &RpcOptions,
) -> anyhow::Result<()> {
    let Some(journal) = config.journal.clone() else {
        return Ok(());
    };
    let (journal, transactions) = TxJournal::open(journal)?;
    let journal = Arc::new(journal);
    context.journal = Some(journal.clone());
    let found = transactions.len();
    if found > 0 {
        let restored = send::restore_journal(context, transactions);
        tracing::info!(found, restored, "transactions of the journal");
    }
    let (pool, token) = (chain.pool().clone(), tasks.token());
    tasks.spawn("transaction journal", async move {
        loop {
            tokio::select! {
                () = token.cancelled() => return Ok(()),
                () = tokio::time::sleep(journal.interval()) => {}
            }
            let (journal, pool) = (journal.clone(), pool.clone());
            let work = tokio::task::spawn_blocking(move || journal.rewrite(&pool));
            if let Ok(Err(error)) = work.await {
                tracing::warn!(%error, "the journal of transactions could not be rewritten");
            }
        }
    });
    Ok(())
}

/// The public endpoints, with their addresses resolved.
async fn endpoints(config: &RpcOptions) -> anyhow::Result<rpc::RpcConfig> {
    let mut endpoints = rpc::RpcConfig::default();
    (endpoints.limits.batch, endpoints.limits.batch_response) =
        (config.limits.batch, config.limits.batch_response);
    (
        endpoints.limits.connections,
        endpoints.limits.ws_connections,
    ) = connections(&config.limits);
    endpoints.named = config.namespaces.clone();
    if let Some(http) = &config.http {
        endpoints.http = Some(http_endpoint("--http.addr", http).await?);
    }
    if let Some(ws) = &config.ws {
        endpoints.ws = Some(WsEndpoint {
            addr: resolve("--ws.addr", &ws.addr, ws.port).await?,
            api: ws.api.clone(),
            origins: ws.origins.clone(),
            prefix: ws.prefix.clone(),
        });
    }
    endpoints.ipc = config.ipc.as_ref().map(|ipc| IpcEndpoint {
        path: ipc.path.clone(),
        required: ipc.given,
    });
    if let Some(RollupRpcConfig { http, port_given }) = &config.rollup {
        endpoints.rollup = Some(RollupEndpoint {
            http: http_endpoint("--rpc.addr", http).await?,
            required: *port_given,
        });
    }
    Ok(endpoints)
}

/// An HTTP endpoint with its address resolved. `flag` is the name of the address option, for
/// errors.
pub(super) async fn http_endpoint(flag: &str, http: &HttpConfig) -> anyhow::Result<HttpEndpoint> {
    Ok(HttpEndpoint {
        addr: resolve(flag, &http.addr, http.port).await?,
        api: http.api.clone(),
        vhosts: http.vhosts.clone(),
        cors: http.cors_domains.clone(),
        prefix: http.prefix.clone(),
    })
}

/// Maximum connections and WebSockets of the public endpoints: the operator's limits, lowered to
/// what the limit of open files allows.
fn connections(limits: &RpcLimits) -> (usize, usize) {
    let files = open_files::limit();
    let most = open_files::connections(files);
    if limits.connections > most {
        tracing::warn!(
            allowed = limits.connections,
            connections = most,
            open_files = files,
            "fewer RPC connections than --rpc.max-connections: raise the hard limit of open files (LimitNOFILE=, ulimit -Hn)"
        );
    }
    bounded_connections(limits, most)
}

/// The limits of connections, at most `most`, and of WebSockets. WebSockets get at most half of the
/// connections, so they cannot lock out HTTP: only idle HTTP connections are closed for new ones.
fn bounded_connections(limits: &RpcLimits, most: usize) -> (usize, usize) {
    let connections = limits.connections.min(most);
    (connections, limits.websockets.min(connections / 2))
}

/// Resolves the address to listen on. `localhost` is 127.0.0.1, whichever address the resolver
/// returns first.
pub(super) async fn resolve(flag: &str, host: &str, port: u16) -> anyhow::Result<SocketAddr> {
    let host = if host == "localhost" {
        "127.0.0.1"
    } else {
        host
    };
    let mut found = tokio::net::lookup_host((host, port))
        .await
        .with_context(|| format!("{flag}: {host} is no address"))?;
    found
        .next()
        .ok_or_else(|| anyhow!("{flag}: {host} has no address"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn websockets_get_at_most_half_of_the_connections() {
        let bounded = |connections, websockets, most| {
            let limits = RpcLimits {
                gas_cap: 1,
                evm_timeout: Duration::MAX,
                batch: 1,
                batch_response: 1,
                connections,
                websockets,
                log_query: 1,
                log_blocks: 1,
                trace_blocks: 1,
                logs: 1,
                sync_timeouts: Default::default(),
            };
            bounded_connections(&limits, most)
        };
        assert_eq!(bounded(10_000, 2_000, usize::MAX), (10_000, 2_000));
        assert_eq!(bounded(10_000, 2_000, 512), (512, 256), "few open files");
        assert_eq!(
            bounded(1_000, 2_000, 20_000),
            (1_000, 500),
            "fewer connections than WebSockets"
        );
    }
}
