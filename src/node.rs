//! The node: the module that connects all others, and the only one that spawns long-lived tasks.
//!
//! This file opens the chain and stops the node. `node/rollup.rs` derives and sequences, and
//! `node/rollup_node.rs` does the same over an execution client in another process. `node/swarm.rs`
//! joins the swarm. `node/rpc.rs` serves JSON-RPC, and `node/rpc_files.rs` serves its methods about
//! files. `node/batcher.rs` and `node/proposer.rs` run the batcher and the proposer, in processes
//! of their own or in the node's. `node/service.rs` decides how these two start and stop, and
//! `node/service_rpc.rs` is their RPC.

mod batcher;
mod proposer;
mod rollup;
mod rollup_node;
mod rpc;
mod rpc_files;
mod service;
mod service_rpc;
mod swarm;

use crate::{
    batcher::handle::RunSwitch,
    beacon_api::BeaconServer,
    chain::{Chain, Options, Threads, kzg, pool::PoolConfig, pool_maintenance, rules::Rules},
    cli::config::{
        BatcherConfig, BeaconEndpointConfig, ExecutionConfig, HistoryConfig, NodeConfig,
        ProposerConfig, RpcOptions,
    },
    follow, interval,
    networks::{self, RollupSource},
    rollup::{engine::Engine, handle::RollupHandle, l1::L1Client},
    tasks::{StopSignals, Tasks},
    telemetry::{MetricsConfig, MetricsServer},
};
use anyhow::{Context, bail, ensure};
use rollup::{Rollup, RollupCore};
use rpc::RpcParts;
use service::{PostingService, RestartPauses, keep_running, run_in_order};
use starling_proto::{
    config::RollupConfig,
    network::overrides::{ForkOverrides, NetworkForks, ScheduleChange},
};
use std::{path::Path, sync::Arc, time::Duration};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

pub use batcher::run_batcher;
pub use proposer::run_proposer;
pub use rollup_node::run_rollup;
pub use swarm::swarm_config;

/// Length of a slot of a development chain, in seconds. Block timestamps are whole seconds and
/// increase, so no two blocks share a slot, whatever the time between blocks.
const SECONDS_PER_SLOT: u64 = 1;

/// Runs `starling execution`: the execution core alone. With `--dev.period` the core makes its own
/// blocks; with a swarm it follows the swarm.
pub async fn run_execution(
    config: ExecutionConfig,
    token: CancellationToken,
) -> anyhow::Result<()> {
    let tasks = Tasks::new(token);
    serve_metrics(&tasks, config.metrics.as_ref()).await?;
    let change = schedule_change(config.network.as_ref(), &config.overrides)?;
    let source = config.network.as_ref();
    let (chain, threads) = open(&config.chain, config.pool.clone(), source, change).await?;
    keep_history(&chain, config.history)?;
    check_development(&chain, &config)?;
    let swarm = config
        .following
        .as_ref()
        .map(|following| {
            swarm::join_alone(&chain, &config.chain.datadir, following, &config.overrides)
        })
        .transpose()?;
    let network = swarm.as_ref().map(|swarm| swarm.network.clone());
    let syncing = watch::Sender::new(None);
    let engine = rpc::engine_api(&tasks, &chain, network.clone(), &config).await?;
    let driven = engine.as_ref().map(|api| api.context.engine.clone());
    if engine.is_some() && swarm.is_none() {
        tasks.spawn(
            "progress",
            follow::progress::run(Engine::Local(chain.clone()), None, tasks.token()),
        );
    }
    let parts = RpcParts {
        datadir: config.chain.datadir.clone(),
        network,
        sequencer: None,
        rollup: None,
        syncing: syncing.subscribe(),
        engine,
        traces: config.chain.datadir.join(rpc::TRACES),
    };
    rpc::serve(&tasks, &chain, parts, &config.rpc).await?;
    if let Some(swarm) = swarm {
        let engine = Engine::Local(chain.clone());
        swarm::spawn(&tasks, &engine, driven, swarm, syncing);
    }
    if let Some(endpoint) = &config.dev_beacon {
        serve_blobs(&tasks, &chain, endpoint).await?;
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

/// Runs `starling node`: everything in one process.
pub async fn run_node(config: NodeConfig, signals: StopSignals) -> anyhow::Result<()> {
    let token = node_token(&config, &signals);
    let tasks = Tasks::new(token.clone());
    serve_metrics(&tasks, config.metrics.as_ref()).await?;
    let rollup_config = Arc::new(rollup_config(&config.rollup, &config.overrides)?);
    let sequences = config.sequencer.is_some();
    let mut rollup = Rollup::new(&config.l1, sequences, rollup_config.clone())?;
    let change = schedule_change(Some(&config.rollup), &config.overrides)?;
    let source = Some(&config.rollup);
    let (chain, threads) = open(&config.chain, config.pool.clone(), source, change).await?;
    keep_history(&chain, config.history)?;
    check_same_chain(
        &chain,
        &rollup_config,
        &config.chain.datadir,
        &config.rollup,
    )?;
    networks::rules::put_in_force(&chain, &rollup_config, rollup.schedule.as_ref()).await?;
    let core = RollupCore::local(&chain, &config.chain.datadir);
    rollup
        .prepare_driver(&core, &config.l1, &config.derivation)
        .await?;
    let swarm = match &config.p2p {
        Some(p2p) => Some(swarm::join_with(&chain, &rollup_config, p2p)?),
        None => None,
    };
    let network = swarm.as_ref().map(|swarm| swarm.network.clone());
    if let Some(sequencing) = &config.sequencer {
        rollup
            .prepare_sequencer(&core, network.clone(), sequencing)
            .await?;
    }
    let services = ServiceParts::of(config.batcher, config.proposer, &chain, &rollup).await?;
    let syncing = watch::Sender::new(None);
    let parts = RpcParts {
        datadir: config.chain.datadir.clone(),
        network: network.clone(),
        sequencer: rollup.control.take(),
        rollup: rollup.api.take(),
        syncing: syncing.subscribe(),
        engine: None,
        traces: config.chain.datadir.join(rpc::TRACES),
    };
    rpc::serve(&tasks, &chain, parts, &config.rpc).await?;
    warn_of_kept_transactions(&config.rpc, sequences);
    if let Some(swarm) = swarm {
        swarm::spawn(&tasks, &core.engine, None, swarm, syncing);
    }
    tasks.spawn("pool", pool_maintenance::run(chain.clone(), tasks.token()));
    let started = tokio::select! {
        started = rollup.run(&tasks, &core, network, &config.l1) => started,
        () = signals.closing.cancelled() => Ok(()),
    };
    if started.is_err() || signals.closing.is_cancelled() {
        token.cancel();
    }
    let services = run_services(services, signals, token);
    let ((), finished) = tokio::join!(services, finish(tasks, chain, threads));
    started.and(finished)
}

/// Warns if transactions that are submitted to this replica are not forwarded to a sequencer.
fn warn_of_kept_transactions(config: &RpcOptions, sequences: bool) {
    if config.sequencer_http.is_none() && !sequences {
        tracing::warn!(
            "transactions submitted here stay in this node's pool and never reach the sequencer; set --rollup.sequencerhttp"
        );
    }
}

/// The token that stops everything in the node except batcher and proposer, which stop first.
fn node_token(config: &NodeConfig, signals: &StopSignals) -> CancellationToken {
    match (&config.batcher, &config.proposer) {
        (None, None) => signals.closing.clone(),
        _ => CancellationToken::new(),
    }
}

/// The error if batcher or proposer is enabled in a node that derives nothing.
const NO_SAFE_HEAD: &str = "--batcher.enabled and --proposer.enabled need the safe head, which this node does not derive: the error above says why";

/// The batcher and the proposer to run in the node's process, with their parts.
struct ServiceParts {
    batcher: Option<BatcherConfig>,
    proposer: Option<ProposerConfig>,
    chain: Chain,
    rollup: RollupHandle,
    l1: L1Client,
}

impl ServiceParts {
    /// Returns `None` if neither is enabled. Fails if the node derives no safe head, if options do
    /// not fit, or if a local key cannot be read. A signer in another process is opened later.
    async fn of(
        batcher: Option<BatcherConfig>,
        proposer: Option<ProposerConfig>,
        chain: &Chain,
        rollup: &Rollup,
    ) -> anyhow::Result<Option<Self>> {
        if batcher.is_none() && proposer.is_none() {
            return Ok(None);
        }
        let handle = rollup.api.clone().context(NO_SAFE_HEAD)?;
        if let Some(config) = &batcher {
            batcher::check_in_node(config, &handle.config)?;
        }
        let of_batcher = batcher.as_ref().map(|config| &config.signer);
        let of_proposer = proposer.as_ref().map(|config| &config.signer);
        for signer in of_batcher.into_iter().chain(of_proposer) {
            service::check_local_key(signer).await?;
        }
        Ok(Some(Self {
            batcher,
            proposer,
            chain: chain.clone(),
            rollup: handle,
            l1: rollup.l1_client(),
        }))
    }
}

/// Starts batcher and proposer independently of each other, and runs them until a signal. Then
/// stops the batcher, the proposer, and, by cancelling `node`, everything else.
async fn run_services(parts: Option<ServiceParts>, signals: StopSignals, node: CancellationToken) {
    let Some(parts) = parts else {
        return;
    };
    let (parts, token) = (&parts, signals.closing.clone());
    let (rollup, l1) = (|| parts.rollup.clone(), || parts.l1.clone());
    let batcher = async |signals: StopSignals| {
        let Some(config) = &parts.batcher else {
            return;
        };
        let run_switch = RunSwitch::new(!config.options.stopped);
        let start = |starts: u64| {
            let mut config = config.clone();
            // Transactions of the previous run may still be on their way to L1: wait for them, so
            // that their blocks are not posted again.
            config.options.wait_node_sync |= starts > 0;
            let run_switch = run_switch.clone();
            batcher::start_in_node(config, run_switch, &parts.chain, rollup(), l1(), &token)
        };
        keep_running("batcher", RestartPauses::default(), start, signals).await;
    };
    let proposer = async |signals: StopSignals| {
        let Some(config) = &parts.proposer else {
            return;
        };
        let start =
            |_| proposer::start_in_node(config.clone(), &parts.chain, rollup(), l1(), &token);
        keep_running("proposer", RestartPauses::default(), start, signals).await;
    };
    run_in_order(signals, batcher, proposer, node).await;
}

/// Runs a service that is alone in its process until a signal or a failure, and then stops the
/// tasks that serve it. `service` is `None` if a signal came before the service started.
async fn finish_without_chain(
    tasks: Tasks,
    service: Option<PostingService>,
    signals: StopSignals,
) -> anyhow::Result<()> {
    let token = tasks.token();
    let run = async {
        let ended = match service {
            Some(service) => service.run(&signals.closing, &signals.ending).await,
            None => Ok(()),
        };
        token.cancel();
        ended
    };
    let served = async {
        let served = tasks.run_until(std::future::pending()).await;
        signals.closing.cancel();
        served
    };
    let (ended, served) = tokio::join!(run, served);
    ended.and(served)
}

/// Refuses options for development chains if the chain is an OP Stack chain.
fn check_development(chain: &Chain, config: &ExecutionConfig) -> anyhow::Result<()> {
    let datadir = config.chain.datadir.display();
    let optimism = chain.spec().is_optimism();
    ensure!(
        !optimism || config.dev_period.is_none(),
        "--dev.period makes blocks of an Ethereum chain, and {datadir} holds an OP Stack chain"
    );
    ensure!(
        !optimism || config.dev_beacon.is_none(),
        "--dev.beacon.port serves the blobs of an Ethereum chain, and {datadir} holds an OP Stack chain"
    );
    Ok(())
}

/// Serves the blobs of a development chain.
async fn serve_blobs(
    tasks: &Tasks,
    chain: &Chain,
    endpoint: &BeaconEndpointConfig,
) -> anyhow::Result<()> {
    let address = rpc::resolve("--dev.beacon.addr", &endpoint.addr, endpoint.port).await?;
    let server = BeaconServer::bind(address, chain.clone(), SECONDS_PER_SLOT)
        .await
        .with_context(|| format!("--dev.beacon.port: {address}"))?;
    tracing::info!(address = %server.address(), "the Beacon API is served");
    tokio::task::spawn_blocking(kzg::load);
    let token = tasks.token();
    tasks.spawn("Beacon API", async move {
        server.run(token).await;
        Ok(())
    });
    Ok(())
}

fn keep_history(chain: &Chain, history: HistoryConfig) -> anyhow::Result<()> {
    chain.keep_states(history.states);
    chain.keep_names(history.names);
    chain.keep_logs(history.logs);
    chain.keep_addresses(history.addresses);
    Ok(chain.keep_proofs(history.proofs)?)
}

/// Opens the chain. If there is none yet and a known network is given, the error says where its
/// genesis file is.
async fn open(
    options: &Options,
    pool: PoolConfig,
    source: Option<&RollupSource>,
    change: ScheduleChange,
) -> anyhow::Result<(Chain, Threads)> {
    let (options, datadir) = (options.clone(), options.datadir.display());
    let opened =
        tokio::task::spawn_blocking(move || Chain::open_by(&options, pool, &change)).await?;
    let cause = || format!("the chain in {datadir} cannot be opened");
    match opened {
        Err(error) if error.is_uninitialised() => {
            match source.and_then(RollupSource::where_genesis_is) {
                Some(place) => bail!("{}: {error}; {place}", cause()),
                None => Err(error).with_context(cause),
            }
        }
        opened => opened.with_context(cause),
    }
}

/// Runs until something fails or the token is cancelled. Then stops everything and waits until the
/// chain is stored.
async fn finish(tasks: Tasks, chain: Chain, threads: Threads) -> anyhow::Result<()> {
    let result = tasks.run_until(chain.ended()).await;
    let head = chain.view().head();
    drop(chain);
    // After a failure of the chain, tasks fail as a consequence: report the chain's own error as
    // the cause.
    let stopped = tokio::task::spawn_blocking(move || threads.stop()).await?;
    stopped.context(
        "the chain has failed (`starling db verify` says whether its database is damaged)",
    )?;
    tracing::info!(number = head.number, hash = %head.hash, "the chain is stored and closed");
    result
}

/// Reads the rollup configuration, applies the overrides, and checks the result.
fn rollup_config(source: &RollupSource, overrides: &ForkOverrides) -> anyhow::Result<RollupConfig> {
    let rollup = overrides.apply(&source.read()?);
    source.log_unknown_members();
    rollup.validate().context("--override.*")?;
    Ok(rollup)
}

/// Changes to the core's fork times: those of a known network, whose table may be newer than the
/// genesis config, and the overrides. A rollup.json changes only one fork time of the core, that of
/// Lagoon, from which on the core accepts no block.
fn schedule_change(
    source: Option<&RollupSource>,
    overrides: &ForkOverrides,
) -> anyhow::Result<ScheduleChange> {
    let mut change = ScheduleChange {
        network: None,
        overrides: overrides.clone(),
    };
    match source {
        Some(network @ RollupSource::Network(_)) => {
            change.network = Some(NetworkForks::from(&network.read()?));
        }
        Some(file @ RollupSource::File(_)) => {
            let lagoon = file.read()?.forks.lagoon();
            change.overrides.lagoon = overrides.lagoon.or(lagoon);
        }
        None => {}
    }
    Ok(change)
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
        Rules::Ethereum { .. } => bail!(
            "{data} holds an Ethereum chain, which has no swarm; run it with `starling execution` alone"
        ),
    }
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
