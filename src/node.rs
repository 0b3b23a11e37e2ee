//! The node: the one file that knows everybody. It opens the chain, joins the swarm, serves
//! JSON-RPC, sequences, and is the only place that spawns long-lived tasks.

use crate::{
    chain::{Chain, Options, Threads, pool::PoolConfig, pool_maintenance, rules::Rules},
    cli::config::{
        ExecutionConfig, FollowingConfig, HistoryConfig, NodeConfig, P2pConfig, P2pKey, RpcLimits,
        RpcOptions, SequencingConfig, SignerConfig,
    },
    follow, interval,
    networks::{self, RollupSource},
    open_files,
    rollup::{
        engine::Engine,
        l1::{self, FollowedL1, L1Client, L1Heads},
        l1_config::{self, L1ConfigError},
        sequencer::{Sequencer, SequencerError, SequencerHandle, SequencerParts},
        signer::{Remote, Signer},
        signing_log::SigningLog,
        unsafe_signer::UnsafeSigner,
    },
    rpc::{
        self, AuthEndpoint, HttpEndpoint, RpcContext, RpcServer, SyncStatus, TxRoute, WsEndpoint,
        engine::{EngineContext, backend::EngineBackend, superchain::Halt},
        jwt::JwtSecret,
    },
    tasks::Tasks,
    telemetry::{MetricsConfig, MetricsServer},
    version::VERSION,
};
use alloy_primitives::Address;
use anyhow::{Context, anyhow, bail, ensure};
use starling_p2p::{Event, Network, Service};
use starling_proto::{
    config::RollupConfig,
    fork::BlobSchedule,
    network::overrides::{ForkOverrides, NetworkForks, ScheduleChange},
    payload::BlockId,
};
use std::{net::SocketAddr, path::Path, sync::Arc, time::Duration};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

/// How often the log says that sequencing has ended.
const SEQUENCER_ENDED_REMINDER: Duration = Duration::from_secs(60);
/// Interval of reading L1's safe and finalized heads (op-node: `--l1.epoch-poll-interval`).
const EPOCH_POLL: Duration = Duration::from_secs(384);

/// `starling execution`: the execution core alone. With `--dev.period` it makes its own blocks; with
/// a swarm it follows.
pub async fn run_execution(
    config: ExecutionConfig,
    token: CancellationToken,
) -> anyhow::Result<()> {
    let tasks = Tasks::new(token);
    serve_metrics(&tasks, config.metrics.as_ref()).await?;
    let change = schedule_change(config.network.as_ref(), &config.overrides)?;
    let (chain, threads) = open(config.chain.clone(), config.pool.clone(), change).await?;
    keep_history(&chain, config.history)?;
    if config.dev_period.is_some() && matches!(chain.spec().rules, Rules::Optimism { .. }) {
        bail!(
            "--dev.period makes blocks of an Ethereum chain, and {} holds an OP Stack chain",
            config.chain.datadir.display()
        );
    }
    let swarm = config
        .following
        .as_ref()
        .map(|following| join_alone(&chain, &config.chain.datadir, following, &config.overrides))
        .transpose()?;
    let network = swarm.as_ref().map(|((_, network, _), _)| network.clone());
    let syncing = watch::Sender::new(None);
    let engine = engine_of(&tasks, &chain, network.clone(), &config).await?;
    let driven = engine.as_ref().map(|(context, _)| context.engine.clone());
    if engine.is_some() && swarm.is_none() {
        tasks.spawn(
            "progress",
            follow::progress::run(Engine::Local(chain.clone()), None, tasks.token()),
        );
    }
    let parts = RpcParts {
        network,
        sequencer: None,
        syncing: syncing.subscribe(),
        engine,
    };
    serve_rpc(&tasks, &chain, parts, &config.rpc).await?;
    if let Some((swarm, genesis)) = swarm {
        follow_swarm(&tasks, &chain, driven, swarm, genesis, syncing);
    }
    tasks.spawn("pool", pool_maintenance::run(chain.clone(), tasks.token()));
    if let Some(seconds) = config.dev_period {
        tasks.spawn(
            "block production",
            interval::run(chain.clone(), Duration::from_secs(seconds), tasks.token()),
        );
    }
    finish(tasks, chain, threads).await
}

/// `starling node`: everything in one process.
pub async fn run_node(config: NodeConfig, token: CancellationToken) -> anyhow::Result<()> {
    let tasks = Tasks::new(token);
    serve_metrics(&tasks, config.metrics.as_ref()).await?;
    let rollup = Arc::new(rollup_config(&config)?);
    let (blobs, sequencing) = sequencing(&config, &rollup)?;
    let change = schedule_change(Some(&config.rollup), &config.overrides)?;
    let (chain, threads) = open(config.chain.clone(), config.pool.clone(), change).await?;
    keep_history(&chain, config.history)?;
    check_same_chain(&chain, &rollup, &config.chain.datadir, &config.rollup)?;
    networks::rules::put_in_force(&chain, &rollup, blobs.as_ref()).await?;
    let l1 = L1Client::new(&config.l1.client).context("--l1")?;
    let swarm = config
        .p2p
        .as_ref()
        .map(|p2p| join_swarm(&chain, swarm_config(&rollup, p2p)?))
        .transpose()?;
    let network = swarm.as_ref().map(|(_, network, _)| network.clone());
    let prepared = match sequencing {
        Some((sequencer, blobs)) => {
            Some(prepare(&chain, &l1, &rollup, blobs, network.clone(), sequencer).await?)
        }
        None => None,
    };
    let (sequencer, control) = prepared.unzip();
    let syncing = watch::Sender::new(None);
    let parts = RpcParts {
        network: network.clone(),
        sequencer: control,
        syncing: syncing.subscribe(),
        engine: None,
    };
    serve_rpc(&tasks, &chain, parts, &config.rpc).await?;
    if config.rpc.sequencer_http.is_none() && sequencer.is_none() {
        tracing::warn!(
            "transactions submitted here stay in this node's pool and never reach the sequencer; set --rollup.sequencerhttp"
        );
    }
    if let Some(swarm) = swarm {
        follow_swarm(&tasks, &chain, None, swarm, rollup.genesis.l2, syncing);
    }
    tasks.spawn("pool", pool_maintenance::run(chain.clone(), tasks.token()));

    let source = UnsafeSigner {
        l1,
        rollup,
        chain: chain.clone(),
        confs: config.l1.confs,
        reload: config.l1.reload_interval,
        poll: config.l1.poll_interval,
    };
    let started = learn_signer(&tasks, source, network, sequencer).await;
    if started.is_err() {
        tasks.token().cancel();
    }
    let finished = finish(tasks, chain, threads).await;
    started.and(finished)
}

/// Reads the block signer from L1, reports it to the swarm now and at every change, and begins to
/// sequence if it is this node's key.
async fn learn_signer(
    tasks: &Tasks,
    source: UnsafeSigner,
    network: Option<Network>,
    prepared: Option<Prepared>,
) -> anyhow::Result<()> {
    let Some(named) = tasks
        .token()
        .run_until_cancelled_owned(source.at_start())
        .await
    else {
        return Ok(());
    };
    let named = named?;
    if let Some(network) = &network {
        network.set_signer(named).await;
    }
    let ours = prepared.as_ref().map(|prepared| prepared.signs_as);
    if let Some(prepared) = prepared {
        ensure!(
            prepared.signs_as == named,
            "the sequencer signs as {}, and L1 names {named} as the signer of blocks: peers would refuse every block; check --p2p.sequencer.key or --signer.address",
            prepared.signs_as
        );
        sequence(tasks, source.l1.clone(), source.poll, prepared);
    }
    if let Some(network) = network {
        let token = tasks.token();
        tasks.spawn("block signer", async move {
            Ok(source.follow(named, ours, network, token).await?)
        });
    }
    Ok(())
}

/// A sequencer's configuration, and L1's schedule of blob parameters, which it needs.
type Sequencing<'a> = (&'a SequencingConfig, BlobSchedule);

/// L1's schedule of blob parameters, if it is known, and the sequencer's configuration. Checked
/// before anything is opened.
fn sequencing<'a>(
    config: &'a NodeConfig,
    rollup: &RollupConfig,
) -> anyhow::Result<(Option<BlobSchedule>, Option<Sequencing<'a>>)> {
    let blobs = l1_config::blob_schedule(rollup.l1_chain_id, config.l1.chain_config.as_deref())?;
    let Some(sequencer) = &config.sequencer else {
        return Ok((blobs, None));
    };
    let needed = blobs
        .clone()
        .ok_or(L1ConfigError::NotGiven(rollup.l1_chain_id))?;
    Ok((blobs, Some((sequencer, needed))))
}

/// The rollup configuration with its overrides, checked.
fn rollup_config(config: &NodeConfig) -> anyhow::Result<RollupConfig> {
    let rollup = config.overrides.apply(&config.rollup.read()?);
    rollup.validate().context("--override.*")?;
    Ok(rollup)
}

/// Changes of the core's fork times: those of a known network, whose table may be newer than the
/// genesis config, and the overrides. A rollup.json changes nothing in the core.
fn schedule_change(
    source: Option<&RollupSource>,
    overrides: &ForkOverrides,
) -> anyhow::Result<ScheduleChange> {
    let network = match source {
        Some(network @ RollupSource::Network(_)) => Some(NetworkForks::from(&network.read()?)),
        Some(RollupSource::File(_)) | None => None,
    };
    Ok(ScheduleChange {
        network,
        overrides: overrides.clone(),
    })
}

fn keep_history(chain: &Chain, history: HistoryConfig) -> anyhow::Result<()> {
    chain.keep_states(history.states);
    Ok(chain.keep_proofs(history.proofs)?)
}

async fn open(
    options: Options,
    pool: PoolConfig,
    change: ScheduleChange,
) -> anyhow::Result<(Chain, Threads)> {
    let datadir = options.datadir.clone();
    let opened =
        tokio::task::spawn_blocking(move || Chain::open_by(&options, pool, &change)).await?;
    opened.with_context(|| format!("the chain in {} cannot be opened", datadir.display()))
}

/// Runs until something fails or the token is cancelled, then stops everything and waits until the
/// chain is stored.
async fn finish(tasks: Tasks, chain: Chain, threads: Threads) -> anyhow::Result<()> {
    let result = tasks.run_until(chain.ended()).await;
    drop(chain);
    // When the chain has failed, tasks fail because it is gone: its own error is the cause.
    let stopped = tokio::task::spawn_blocking(move || threads.stop()).await?;
    stopped.context(
        "the chain has failed (`starling db verify` says whether its database is damaged)",
    )?;
    result
}

/// A sequencer that may begin as soon as L1 says that blocks are signed with its key.
struct Prepared {
    sequencer: Sequencer,
    signs_as: Address,
    heads: watch::Sender<L1Heads>,
}

async fn prepare(
    chain: &Chain,
    l1: &L1Client,
    rollup: &Arc<RollupConfig>,
    blobs: BlobSchedule,
    network: Option<Network>,
    config: &SequencingConfig,
) -> anyhow::Result<(Prepared, SequencerHandle)> {
    let signer = match &config.signer {
        SignerConfig::Key(key) => Signer::from_hex(key.expose())?,
        SignerConfig::Remote(remote) => Signer::Remote(Remote::connect(remote).await?),
    };
    let (heads, watched) = watch::channel(L1Heads::default());
    let signs_as = signer.address();
    let l1 = FollowedL1 {
        client: l1.clone(),
        heads: watched,
    };
    let parts = SequencerParts {
        rollup: rollup.clone(),
        blobs,
        engine: Engine::Local(chain.clone()),
        signing_log: SigningLog::new(chain.clone()),
        l1,
        signer,
        network,
    };
    let (sequencer, control) = Sequencer::new(config.sequencer.clone(), parts);
    Ok((
        Prepared {
            sequencer,
            signs_as,
            heads,
        },
        control,
    ))
}

fn sequence(
    tasks: &Tasks,
    l1: L1Client,
    poll: Duration,
    Prepared {
        sequencer, heads, ..
    }: Prepared,
) {
    let token = tasks.token();
    tasks.spawn("L1 heads", async move {
        l1::follow_heads(l1, heads, poll, EPOCH_POLL, token).await;
        Ok(())
    });
    let token = tasks.token();
    tasks.spawn("sequencer", async move {
        let ended = sequencer.run(token.clone()).await;
        outlive_sequencer(ended, &token).await
    });
}

/// When sequencing ends because no further block may be made, the node goes on: its blocks are
/// still asked for, over JSON-RPC and by peers, and an operator needs both to see what happened.
/// Only a failure of the chain itself ends the node.
async fn outlive_sequencer(
    ended: Result<(), SequencerError>,
    token: &CancellationToken,
) -> anyhow::Result<()> {
    let error = match ended {
        Err(error) if !error.is_chain_failure() => error,
        ended => return Ok(ended?),
    };
    metrics::gauge!("starling_sequencer_ended").set(1.0);
    let repeat = async {
        loop {
            tracing::error!(
                %error,
                "sequencing has ended, and no further block is made here; the node goes on serving and following; restart it when the cause is gone"
            );
            tokio::time::sleep(SEQUENCER_ENDED_REMINDER).await;
        }
    };
    token.run_until_cancelled(repeat).await;
    Ok(())
}

/// Checks that a rollup configuration and the data directory belong to one chain.
fn check_same_chain(
    chain: &Chain,
    rollup: &RollupConfig,
    data: &Path,
    source: &RollupSource,
) -> anyhow::Result<()> {
    let spec = chain.spec();
    let data = data.display();
    ensure!(
        spec.chain_id == rollup.l2_chain_id,
        "{data} holds chain {}, {source} describes chain {}: give the rollup.json or network that belongs to this data directory",
        spec.chain_id,
        rollup.l2_chain_id
    );
    ensure!(
        spec.genesis_hash == rollup.genesis.l2.hash,
        "{data} begins with block {}, {source} with {}: give the rollup.json or network that belongs to this data directory",
        spec.genesis_hash,
        rollup.genesis.l2.hash
    );
    match &spec.rules {
        Rules::Optimism { .. } => Ok(()),
        Rules::Ethereum(_) => bail!(
            "{data} holds an Ethereum chain, which has no swarm; run it with `starling execution` alone"
        ),
    }
}

/// A swarm that does not run yet, its handle, and its events.
type Swarm = (Service, Network, mpsc::Receiver<Event>);

fn join_swarm(chain: &Chain, config: starling_p2p::Config) -> anyhow::Result<Swarm> {
    Ok(Service::new(config, Arc::new(chain.clone()))?)
}

/// The swarm of an execution core, whose block signer is configured; with the chain's first block.
fn join_alone(
    chain: &Chain,
    datadir: &Path,
    config: &FollowingConfig,
    overrides: &ForkOverrides,
) -> anyhow::Result<(Swarm, BlockId)> {
    let rollup = overrides.apply(&config.rollup.read()?);
    rollup.validate().context("--override.*")?;
    check_same_chain(chain, &rollup, datadir, &config.rollup)?;
    let swarm = starling_p2p::Config {
        unsafe_block_signer: config.signer,
        ..swarm_config(&rollup, &config.p2p)?
    };
    Ok((join_swarm(chain, swarm)?, rollup.genesis.l2))
}

/// Runs the swarm, and lets the core follow it. `engine_api` is given if a rollup node may drive
/// the core.
fn follow_swarm(
    tasks: &Tasks,
    chain: &Chain,
    engine_api: Option<Arc<EngineBackend>>,
    (service, network, events): Swarm,
    genesis: BlockId,
    syncing: watch::Sender<Option<SyncStatus>>,
) {
    let token = || tasks.token();
    let engine = Engine::Local(chain.clone());
    tasks.spawn("swarm", {
        let token = token();
        async move {
            service.run(token).await;
            Ok(())
        }
    });
    let (of, net) = (engine.clone(), network.clone());
    tasks.spawn(
        "follower",
        follow::run(of, engine_api, net, events, token()),
    );
    let (of, net) = (engine.clone(), network.clone());
    tasks.spawn("progress", follow::progress::run(of, Some(net), token()));
    let (of, net) = (engine.clone(), network.clone());
    tasks.spawn(
        "sync status",
        follow::sync_status::run(of, net, syncing, token()),
    );
    tasks.spawn(
        "heads to the swarm",
        follow::report_heads(engine, network, genesis, token()),
    );
}

/// Configuration of this chain's swarm. Creates the network key if its file is missing.
pub fn swarm_config(
    rollup: &RollupConfig,
    config: &P2pConfig,
) -> anyhow::Result<starling_p2p::Config> {
    let identity = match &config.key {
        P2pKey::File(path) => starling_p2p::identity::load_or_create(path)?,
        P2pKey::Given(secret) => starling_p2p::identity::from_hex(secret.expose())
            .ok_or_else(|| anyhow!("--p2p.priv.raw is no secp256k1 key"))?,
    };
    let genesis = starling_p2p::ChainGenesis {
        id: rollup.genesis.l2,
        time: rollup.genesis.l2_time,
        block_time: rollup.block_time,
    };
    let mut swarm =
        starling_p2p::Config::new(identity, rollup.l2_chain_id, rollup.forks.clone(), genesis);
    swarm.listen_ip = config.listen_ip;
    (swarm.listen_tcp, swarm.listen_quic) = (config.listen_tcp, config.listen_quic);
    swarm.static_peers = config
        .static_peers
        .iter()
        .map(|peer| {
            peer.parse()
                .with_context(|| format!("--p2p.static: {peer} is no multiaddr"))
        })
        .collect::<anyhow::Result<_>>()?;
    swarm.gossip_threshold = config.gossip_threshold;
    swarm.sync_req_resp = config.req_resp;
    swarm.mesh = config.mesh;
    swarm.only_request_static = config.only_request_static;
    (swarm.peer_limits, swarm.policy) = (config.tides, config.policy);
    swarm.restrict = config.restrict.clone();
    swarm.peerstore = config.peerstore.clone();
    swarm.discovery = config.discovery.clone();
    if let Some(discovery) = &mut swarm.discovery {
        discovery.bootnodes = config
            .bootnodes
            .clone()
            .unwrap_or_else(|| starling_p2p::discovery::defaults::bootnodes(rollup.l1_chain_id));
    }
    swarm.nat = config.nat.then(starling_p2p::NatConfig::default);
    Ok(swarm)
}

/// The Engine API of a chain that a rollup node drives from outside. A chain with interval block
/// production has none.
async fn engine_of(
    tasks: &Tasks,
    chain: &Chain,
    network: Option<Network>,
    config: &ExecutionConfig,
) -> anyhow::Result<Option<(EngineContext, AuthEndpoint)>> {
    if config.dev_period.is_some() {
        return Ok(None);
    }
    if !chain.spec().is_optimism() {
        tracing::warn!("the Engine API drives OP Stack chains only: this chain is served as it is");
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
    Ok(Some((
        context,
        AuthEndpoint {
            addr,
            vhosts: config.engine.vhosts.clone(),
            secret,
        },
    )))
}

/// The parts of the node beside the chain that JSON-RPC answers from.
struct RpcParts {
    network: Option<Network>,
    sequencer: Option<SequencerHandle>,
    syncing: watch::Receiver<Option<SyncStatus>>,
    engine: Option<(EngineContext, AuthEndpoint)>,
}

async fn serve_rpc(
    tasks: &Tasks,
    chain: &Chain,
    parts: RpcParts,
    config: &RpcOptions,
) -> anyhow::Result<()> {
    let route = match &config.sequencer_http {
        Some(url) => TxRoute::sequencer(url, config.tx_pool_admission)
            .map_err(|reason| anyhow!("--rollup.sequencerhttp: {reason}"))?,
        None => TxRoute::Pool,
    };
    let mut context = RpcContext::new(chain.into(), route);
    (context.network, context.sequencer) = (parts.network, parts.sequencer);
    context.syncing = Some(parts.syncing);
    context.geth_exact_receipts = config.geth_exact_receipts;
    (context.bounds.gas_cap, context.bounds.timeout) =
        (config.limits.gas_cap, config.limits.evm_timeout);
    let mut endpoints = endpoints(config).await?;
    if let Some((engine, endpoint)) = parts.engine {
        context.engine = Some(engine);
        endpoints.auth = Some(endpoint);
    }
    let (server, bound) = RpcServer::bind(endpoints, context).await?;
    let [http, ws, rpc, authrpc] = [bound.http, bound.ws, bound.rollup, bound.auth]
        .map(|bound| bound.map(tracing::field::display));
    tracing::info!(
        version = VERSION,
        http,
        ws,
        rpc,
        authrpc,
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

/// The public endpoints, with their addresses resolved.
async fn endpoints(config: &RpcOptions) -> anyhow::Result<rpc::RpcConfig> {
    let mut endpoints = rpc::RpcConfig::default();
    (endpoints.limits.batch, endpoints.limits.batch_response) =
        (config.limits.batch, config.limits.batch_response);
    (
        endpoints.limits.connections,
        endpoints.limits.ws_connections,
    ) = connections(&config.limits);
    if let Some(http) = &config.http {
        endpoints.http = Some(HttpEndpoint {
            addr: resolve("--http.addr", &http.addr, http.port).await?,
            api: http.api.clone(),
            vhosts: http.vhosts.clone(),
            cors: http.cors_domains.clone(),
        });
    }
    if let Some(ws) = &config.ws {
        endpoints.ws = Some(WsEndpoint {
            addr: resolve("--ws.addr", &ws.addr, ws.port).await?,
            api: ws.api.clone(),
            origins: ws.origins.clone(),
        });
    }
    if let Some(rollup) = &config.rollup {
        endpoints.rollup = Some(HttpEndpoint {
            addr: resolve("--rpc.addr", &rollup.addr, rollup.port).await?,
            api: rollup.api.clone(),
            vhosts: rollup.vhosts.clone(),
            cors: rollup.cors_domains.clone(),
        });
    }
    Ok(endpoints)
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

/// Connections, at most `most`, and WebSockets. WebSockets get at most half of the connections, so
/// that they cannot lock out HTTP: only idle HTTP connections are closed for new ones.
fn bounded_connections(limits: &RpcLimits, most: usize) -> (usize, usize) {
    let connections = limits.connections.min(most);
    (connections, limits.websockets.min(connections / 2))
}

/// The address to listen on. `localhost` is 127.0.0.1, whatever the resolver puts first.
async fn resolve(flag: &str, host: &str, port: u16) -> anyhow::Result<SocketAddr> {
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

async fn serve_metrics(tasks: &Tasks, config: Option<&MetricsConfig>) -> anyhow::Result<()> {
    let Some(config) = config else { return Ok(()) };
    let server = MetricsServer::bind(config).await?;
    tracing::info!(address = %server.address(), "metrics are served");
    let token = tasks.token();
    tasks.spawn("metrics", async move {
        server.run(token).await;
        Ok(())
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chain::ChainError;
    use alloy_primitives::B256;

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

    #[tokio::test]
    async fn the_node_outlives_sequencing_and_not_its_chain() {
        let tasks = Tasks::new(CancellationToken::new());
        let token = tasks.token();
        let gone = SequencerError::SignedBlockInvalid {
            hash: B256::ZERO,
            reason: "another fork".into(),
        };
        tasks.spawn("sequencer", {
            let token = token.clone();
            async move { outlive_sequencer(Err(gone), &token).await }
        });
        let running = tasks.run_until(std::future::pending());
        tokio::pin!(running);
        for _ in 0..10 {
            assert!(
                futures::poll!(&mut running).is_pending(),
                "the node goes on"
            );
            tokio::task::yield_now().await;
        }
        token.cancel();
        running.await.unwrap();

        let tasks = Tasks::new(CancellationToken::new());
        let token = tasks.token();
        tasks.spawn("sequencer", async move {
            outlive_sequencer(Err(ChainError::Stopped.into()), &token).await
        });
        assert!(tasks.run_until(std::future::pending()).await.is_err());
    }
}
