//! The batcher, from configuration to a running service: in a process of its own, or in the node's.

use super::{
    finish_without_chain, serve_metrics,
    service::{PostingService, TxParts, check_l1_chain, transactions, wait_for},
    service_rpc::{self, ServiceRpc},
};
use crate::{
    batcher::{
        handle::RunSwitch,
        task::{BatcherParts, BatcherTask, batcher},
        throttle::{ThrottleParts, ThrottleTarget, ThrottleTask, throttle},
    },
    chain::Chain,
    cli::config::{BatcherConfig, BatcherProcessConfig},
    clock,
    l2_source::{L2Source, LocalSource, RpcSource},
    rollup::{
        handle::RollupHandle,
        l1::{L1Client, L1Config},
    },
    tasks::{StopSignals, Tasks},
    txmgr::{
        blobs::CellProofTime,
        shell::{TxManagerError, TxManagerTask},
    },
    version::VERSION,
};
use anyhow::Context;
use metrics::gauge;
use starling_proto::config::RollupConfig;
use std::sync::Arc;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// Prefix of the names of the transaction manager's metrics.
const METRICS: &str = "op_batcher_default_";

/// Runs `starling batcher`.
pub async fn run_batcher(config: BatcherProcessConfig, signals: StopSignals) -> anyhow::Result<()> {
    let tasks = Tasks::new(CancellationToken::new());
    serve_metrics(&tasks, config.metrics.as_ref()).await?;
    let rpc = RpcSource::new(&config.l2)?;
    let source = L2Source::Rpc(Arc::new(rpc));
    let mut targets = Vec::new();
    for url in config
        .l2
        .eth
        .iter()
        .chain(&config.batcher.throttle_endpoints)
    {
        targets.push(ThrottleTarget::at(url, config.l2.timeout)?);
    }
    let l1 = config.batcher.l1.as_ref().context("--l1-eth-rpc")?;
    let l1 = l1_client(l1, None)?;
    let upstream = BatcherUpstream {
        source,
        l1,
        targets,
        flag: "rpc",
        run_switch: RunSwitch::new(!config.batcher.options.stopped),
    };
    let service = start(config.batcher, upstream, &signals.closing).await?;
    finish_without_chain(tasks, service, signals).await
}

/// The sources that a batcher reads from, and the endpoints that it writes to.
struct BatcherUpstream {
    source: L2Source,
    l1: L1Client,
    targets: Vec<ThrottleTarget>,
    /// Prefix of the options of the batcher's RPC.
    flag: &'static str,
    run_switch: RunSwitch,
}

/// Starts the batcher of a node. `l1` is the node's own L1 client.
pub(super) async fn start_in_node(
    config: BatcherConfig,
    run_switch: RunSwitch,
    chain: &Chain,
    rollup: RollupHandle,
    l1: L1Client,
    token: &CancellationToken,
) -> anyhow::Result<Option<PostingService>> {
    let chain_id = rollup.config.l1_chain_id;
    let l1 = match &config.l1 {
        Some(given) => l1_client(given, Some(chain_id))?,
        None => l1,
    };
    let mut targets = vec![ThrottleTarget::Core(chain.pool().clone())];
    for url in &config.throttle_endpoints {
        targets.push(ThrottleTarget::at(url, config.tx.network_timeout)?);
    }
    let source = L2Source::Local(LocalSource {
        chain: chain.clone(),
        rollup,
    });
    let upstream = BatcherUpstream {
        source,
        l1,
        targets,
        flag: "batcher.rpc",
        run_switch,
    };
    start(config, upstream, token).await
}

/// Checks the options of a node's batcher against its chain.
pub(super) fn check_in_node(config: &BatcherConfig, rollup: &RollupConfig) -> anyhow::Result<()> {
    config.options.check_chain(rollup, clock::unix_now())?;
    Ok(config.tx.check().map_err(TxManagerError::Options)?)
}

pub(super) fn l1_client(config: &L1Config, chain_id: Option<u64>) -> anyhow::Result<L1Client> {
    let config = L1Config {
        chain_id,
        ..config.clone()
    };
    L1Client::new(&config).context("--l1-eth-rpc")
}

/// Waits for L2 and for L1, and starts the batcher. `None` if the token is cancelled before that.
async fn start(
    config: BatcherConfig,
    upstream: BatcherUpstream,
    token: &CancellationToken,
) -> anyhow::Result<Option<PostingService>> {
    let BatcherUpstream {
        source,
        l1,
        targets,
        flag,
        run_switch,
    } = upstream;
    let what = format!("the rollup node at {}", source.name());
    let Some(rollup) = wait_for(&what, token, || source.rollup_config()).await else {
        return Ok(None);
    };
    check_options(&config, &rollup)?;
    let tx_parts = TxParts {
        options: config.tx.clone(),
        l1: l1.clone(),
        signer: config.signer,
        metrics: METRICS,
    };
    let Some((txs, tx_task)) = transactions(tx_parts, token).await? else {
        return Ok(None);
    };
    check_l1_chain(&l1, rollup.l1_chain_id, token).await?;
    if config.options.data_availability.has_blobs() {
        let time = CellProofTime::new(config.tx.cell_proof_time, rollup.l1_chain_id);
        // Load the data for blob proofs now, so that it is ready for the first channel.
        tokio::task::spawn_blocking(move || time.form(clock::unix_now()).load());
    }
    let (load, loads) = watch::channel(Default::default());
    let (throttling, is_throttling) = watch::channel(false);
    let (throttle, throttle_task) = throttle(ThrottleParts {
        options: config.options.throttle.clone(),
        targets,
        load: loads,
        throttling,
    });
    let (batcher, task) = batcher(BatcherParts {
        options: config.options,
        run_switch,
        rollup,
        source,
        l1,
        txs: txs.clone(),
        load,
        throttling: is_throttling,
    })?;
    let service = PostingService::new("batcher");
    // Bind the RPC before anything is posted: a service whose RPC cannot be bound must not run.
    if let Some(rpc) = &config.rpc {
        let methods = ServiceRpc::Batcher { batcher, throttle };
        service_rpc::serve(service.tasks(), methods, txs, rpc, flag).await?;
    }
    spawn(&service, task, tx_task, throttle_task);
    Ok(Some(service))
}

/// Spawns the batcher's tasks.
fn spawn(
    service: &PostingService,
    task: BatcherTask,
    txs: TxManagerTask,
    throttling: ThrottleTask,
) {
    gauge!("op_batcher_default_info", "version" => VERSION).set(1.0);
    gauge!("op_batcher_default_up").set(1.0);
    let tokens = service.tokens();
    let closing = tokens.closing.clone();
    service.spawn(
        async move { Ok(task.run(tokens.closing, tokens.ending).await?) },
        txs,
    );
    service.tasks().spawn(
        "throttling",
        async move { Ok(throttling.run(closing).await?) },
    );
}

/// Checks the options against the chain, and logs unusual settings.
fn check_options(config: &BatcherConfig, rollup: &RollupConfig) -> anyhow::Result<()> {
    let now = clock::unix_now();
    config.options.check_chain(rollup, now)?;
    for notice in config.options.notices(rollup, now) {
        tracing::warn!("{notice}");
    }
    let settings = if config.options.data_availability.has_blobs() {
        config.options.blob_settings()
    } else {
        config.options.calldata_settings()
    };
    tracing::info!(
        da_type = %config.options.data_availability,
        max_frame_size = settings.max_frame_size,
        target_num_frames = config.options.target_num_frames,
        compressor = %config.options.compressor,
        compression_algo = %config.options.compression,
        batch_type = config.options.batch_type,
        max_channel_duration = config.options.max_channel_duration,
        "Initialized channel-config"
    );
    Ok(())
}

#[cfg(test)]
mod tests;
