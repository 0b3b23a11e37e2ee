//! The node: the room that wires all others, and the only one that spawns long-lived tasks.
//!
//! This file opens the chain, reads the block signer from L1 and starts the sequencer.
//! `node/swarm.rs` joins the swarm, `node/rpc.rs` serves JSON-RPC.

mod rpc;
mod swarm;

use crate::{
    chain::{Chain, Options, Threads, pool::PoolConfig, pool_maintenance, rules::Rules},
    cli::config::{
        ExecutionConfig, HistoryConfig, L1Options, NodeConfig, SequencingConfig, SignerConfig,
    },
    follow, interval,
    rollup::{
        engine::Engine,
        l1::{self, FollowedL1, L1Client, L1Heads},
        l1_config::{self, L1ConfigError},
        sequencer::{Sequencer, SequencerError, SequencerHandle, SequencerParts},
        signer::{Remote, Signer},
        signing_log::SigningLog,
        unsafe_signer::UnsafeSigner,
    },
    tasks::Tasks,
    telemetry::{MetricsConfig, MetricsServer},
};
use alloy_primitives::Address;
use anyhow::{Context, bail, ensure};
use rpc::RpcParts;
use starling_p2p::Network;
use starling_proto::{config::RollupConfig, fork::BlobSchedule};
use std::{path::Path, sync::Arc, time::Duration};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

pub use swarm::swarm_config;

/// How often the log says that sequencing has ended.
const SEQUENCER_ENDED_REMINDER: Duration = Duration::from_secs(60);
/// Interval of reading L1's safe and finalized heads (op-node: `--l1.epoch-poll-interval`).
const EPOCH_POLL: Duration = Duration::from_secs(384);

/// `starling execution`: the execution core alone. With `--dev.period` it makes its own blocks;
/// with a swarm it follows.
pub async fn run_execution(
    config: ExecutionConfig,
    token: CancellationToken,
) -> anyhow::Result<()> {
    let tasks = Tasks::new(token);
    serve_metrics(&tasks, config.metrics.as_ref()).await?;
    let (chain, threads) = open(config.chain.clone(), config.pool.clone()).await?;
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
        .map(|following| swarm::join_alone(&chain, &config.chain.datadir, following))
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
        network,
        sequencer: None,
        syncing: syncing.subscribe(),
        engine,
    };
    rpc::serve(&tasks, &chain, parts, &config.rpc).await?;
    if let Some(swarm) = swarm {
        swarm::spawn(&tasks, &chain, driven, swarm, syncing);
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
    let rollup = Arc::new(read_rollup_config(&config.rollup_config)?);
    let sequencing = sequencing(&config, &rollup)?;
    let (chain, threads) = open(config.chain.clone(), config.pool.clone()).await?;
    keep_history(&chain, config.history)?;
    check_same_chain(
        &chain,
        &rollup,
        &config.chain.datadir,
        &config.rollup_config,
    )?;
    let l1 = l1_client(&config.l1)?;
    let swarm = config
        .p2p
        .as_ref()
        .map(|p2p| swarm::join(&chain, &rollup, swarm_config(&rollup, p2p)?))
        .transpose()?;
    let network = swarm.as_ref().map(|swarm| swarm.network.clone());
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
    rpc::serve(&tasks, &chain, parts, &config.rpc).await?;
    if config.rpc.sequencer_http.is_none() && sequencer.is_none() {
        tracing::warn!(
            "transactions submitted here stay in this node's pool and never reach the sequencer; set --rollup.sequencerhttp"
        );
    }
    if let Some(swarm) = swarm {
        swarm::spawn(&tasks, &chain, None, swarm, syncing);
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

fn l1_client(options: &L1Options) -> anyhow::Result<L1Client> {
    let client = L1Client::new(&options.client).context("--l1")?;
    if !options.given {
        tracing::warn!(
            endpoint = client.endpoint(),
            "no --l1 is given: the block signer is read from the default endpoint"
        );
    }
    Ok(client)
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

/// The sequencer's configuration, and L1's schedule of blob parameters, which the sequencer needs.
/// Called before the chain is opened, so that a wrong option fails early.
fn sequencing<'a>(
    config: &'a NodeConfig,
    rollup: &RollupConfig,
) -> anyhow::Result<Option<(&'a SequencingConfig, BlobSchedule)>> {
    let blobs = l1_config::blob_schedule(rollup.l1_chain_id, config.l1.chain_config.as_deref())?;
    let Some(sequencer) = &config.sequencer else {
        return Ok(None);
    };
    let blobs = blobs.ok_or(L1ConfigError::NotGiven(rollup.l1_chain_id))?;
    Ok(Some((sequencer, blobs)))
}

fn keep_history(chain: &Chain, history: HistoryConfig) -> anyhow::Result<()> {
    chain.keep_states(history.states);
    Ok(chain.keep_proofs(history.proofs)?)
}

async fn open(options: Options, pool: PoolConfig) -> anyhow::Result<(Chain, Threads)> {
    let datadir = options.datadir.clone();
    let opened = tokio::task::spawn_blocking(move || Chain::open_with(&options, pool)).await?;
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

/// Keeps the node running when sequencing ends because no further block may be made: JSON-RPC
/// clients and peers still request its blocks, and an operator needs JSON-RPC to find the cause.
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

/// Reads the file of `--rollup.config`.
pub fn read_rollup_config(path: &Path) -> anyhow::Result<RollupConfig> {
    let text = std::fs::read_to_string(path)
        .with_context(|| format!("--rollup.config: {} cannot be read", path.display()))?;
    RollupConfig::from_json(&text).with_context(|| format!("--rollup.config: {}", path.display()))
}

/// Checks that rollup.json and the data directory belong to one chain.
fn check_same_chain(
    chain: &Chain,
    rollup: &RollupConfig,
    data: &Path,
    json: &Path,
) -> anyhow::Result<()> {
    let spec = chain.spec();
    let (data, json) = (data.display(), json.display());
    ensure!(
        spec.chain_id == rollup.l2_chain_id,
        "{data} holds chain {}, {json} describes chain {}: give the rollup.json that belongs to this data directory",
        spec.chain_id,
        rollup.l2_chain_id
    );
    ensure!(
        spec.genesis_hash == rollup.genesis.l2.hash,
        "{data} begins with block {}, {json} with {}: give the rollup.json that belongs to this data directory",
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
