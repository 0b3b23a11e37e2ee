//! The node's rollup half: L1's heads, the driver that derives the safe chain, the block signer and
//! the sequencer, from configuration to running tasks.

use crate::{
    chain::{Chain, kzg},
    cli::config::{DerivationOptions, L1Options, SequencingConfig, SignerConfig},
    rollup::{
        beacon::BeaconClient,
        blob_schedule::{BlobScheduleError, blob_schedule},
        driver::{DriverError, DriverHandle, DriverParts, L1Reader, RollupDriver},
        engine::Engine,
        handle::RollupHandle,
        l1::{self, FollowedL1, L1Blocks, L1CheckError, L1Client, L1Config, L1Heads, Watched},
        metrics::{follow_unsafe_head, report_start},
        rpc_calls::RpcClientMetrics,
        safe_db::SafeDb,
        sequencer::{Sequencer, SequencerError, SequencerHandle, SequencerParts},
        signer::{Remote, Signer},
        signing_log::SigningLog,
        unsafe_signer::{SignerMemory, UnsafeSigner},
    },
    tasks::Tasks,
    telemetry::LoggedCauses,
};
use alloy_primitives::Address;
use anyhow::{Context, ensure};
use starling_p2p::Network;
use starling_proto::{
    config::RollupConfig,
    fork::{BlobSchedule, Fork},
};
use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// Interval of the log line that reminds of sequencing or derivation having ended.
const ENDED_REMINDER: Duration = Duration::from_secs(60);
/// Pause between two attempts to check L1 at start.
const L1_PAUSE: Duration = Duration::from_secs(2);
/// Name of the file of safe heads, in the data directory or in `--safedb.path`.
const SAFE_HEADS: &str = "safe-heads";

/// The core as the rollup half uses it, and the locations of the rollup half's own records.
#[derive(Clone)]
pub(super) struct RollupCore {
    pub engine: Engine,
    /// The log of blocks that a sequencer signed. A core in this process always has one.
    pub signing_log: Option<SigningLog>,
    pub signer_memory: SignerMemory,
    /// Folder of the file of safe heads, unless `--safedb.path` names another one.
    pub datadir: PathBuf,
}

impl RollupCore {
    /// The core in this process. The rollup half keeps its records with the core's data.
    pub fn local(chain: &Chain, datadir: &Path) -> Self {
        Self {
            engine: Engine::Local(chain.clone()),
            signing_log: Some(SigningLog::Chain(chain.clone())),
            signer_memory: SignerMemory::Chain(chain.clone()),
            datadir: datadir.to_owned(),
        }
    }
}

/// The rollup half before its tasks are started.
pub(super) struct Rollup {
    pub config: Arc<RollupConfig>,
    l1: FollowedL1,
    heads: watch::Sender<L1Heads>,
    /// L1's schedule of blob parameters; `None` for an L1 that is neither built in nor configured.
    pub schedule: Option<BlobSchedule>,
    driver: Option<RollupDriver>,
    /// The driver's handle, to log its last safe head when it ends.
    derivation: Option<DriverHandle>,
    prepared: Option<Prepared>,
    /// The driver's handle for the rollup node's JSON-RPC. `None` until the driver is made, and
    /// again once the handle has been taken.
    pub api: Option<RollupHandle>,
    pub control: Option<SequencerHandle>,
}

/// A prepared sequencer, which may begin as soon as L1 names its key as the block signer.
struct Prepared {
    sequencer: Sequencer,
    signs_as: Address,
}

impl Rollup {
    /// Checks the L1 options. Called before the chain is opened or the execution client is
    /// contacted, so that a wrong option fails early.
    pub fn new(
        options: &L1Options,
        sequences: bool,
        config: Arc<RollupConfig>,
    ) -> anyhow::Result<Self> {
        let file = options.chain_config.as_deref();
        let schedule = blob_schedule(config.l1_chain_id, file)?;
        if sequences || options.given {
            ensure!(
                schedule.is_some(),
                BlobScheduleError::NotGiven(config.l1_chain_id)
            );
        }
        if schedule.is_some() && config.alt_da.is_none() {
            check_beacon(options, &config)?;
        }
        let (heads, watched) = watch::channel(L1Heads::default());
        let l1 = FollowedL1 {
            client: l1_client(options, config.l1_chain_id)?,
            heads: watched,
        };
        Ok(Self {
            config,
            l1,
            heads,
            schedule,
            driver: None,
            derivation: None,
            prepared: None,
            api: None,
            control: None,
        })
    }

    /// The client of L1.
    pub fn l1_client(&self) -> L1Client {
        self.l1.client.clone()
    }

    /// Prepares the derivation driver over an open core.
    pub async fn prepare_driver(
        &mut self,
        core: &RollupCore,
        options: &L1Options,
        derivation: &DerivationOptions,
    ) -> anyhow::Result<()> {
        let Some(schedule) = self.schedule.clone() else {
            tracing::error!(
                l1_chain_id = self.config.l1_chain_id,
                "the blob schedule of this L1 is not known, so no block becomes safe or finalized here: give --l1, and L1's genesis or chain config with --rollup.l1-chain-config"
            );
            return Ok(());
        };
        if self.config.alt_da.is_some() {
            tracing::error!(
                "batches of this chain are on an alternative data availability layer, which is not read: no block becomes safe or finalized here"
            );
            return Ok(());
        }
        let beacon = self.beacon(options).await?;
        let folder = derivation.safe_db.as_ref();
        let folder = folder.unwrap_or(&core.datadir);
        let safe_db = SafeDb::open(&folder.join(SAFE_HEADS)).context("--safedb.path")?;
        let size = L1Blocks::cache_size(options.cache_size, self.config.seq_window_size);
        let client = self.l1.client.clone();
        let blocks = L1Blocks::new(client, Watched::from(&*self.config), size);
        let limits = &options.client;
        let parts = DriverParts {
            rollup: self.config.clone(),
            schedule,
            engine: core.engine.clone(),
            l1: L1Reader::new(
                blocks,
                limits.max_concurrency,
                limits.max_batch,
                beacon,
                self.config.clone(),
            ),
            l1_heads: self.l1.heads.clone(),
            safe_db: safe_db.clone(),
        };
        let (driver, handle) = RollupDriver::new(derivation.driver, parts);
        self.driver = Some(driver);
        self.derivation = Some(handle.clone());
        self.api = Some(RollupHandle {
            config: self.config.clone(),
            driver: handle,
            engine: core.engine.clone(),
            safe_db: derivation.safe_db.is_some().then_some(safe_db),
            withdrawal_root_from_state: derivation.withdrawal_root_from_state,
        });
        Ok(())
    }

    /// The client of the beacon API; `None` if none is configured. Fails if its health check fails.
    async fn beacon(&self, options: &L1Options) -> anyhow::Result<Option<BeaconClient>> {
        let Some(config) = &options.beacon else {
            return Ok(None);
        };
        let client = BeaconClient::new(config)?;
        // Load the data for blob proofs now, so that it is ready for the first blobs.
        tokio::task::spawn_blocking(kzg::load_for_blobs);
        client.check_health().await.context("--l1.beacon")?;
        Ok(Some(client))
    }

    /// Prepares the sequencer over an open core.
    pub async fn prepare_sequencer(
        &mut self,
        core: &RollupCore,
        network: Option<Network>,
        config: &SequencingConfig,
    ) -> anyhow::Result<()> {
        let signer = match &config.signer {
            SignerConfig::Key(key) => Signer::from_hex(key.expose())?,
            SignerConfig::Remote(remote) => Signer::Remote(Remote::connect(remote).await?),
        };
        let missing = BlobScheduleError::NotGiven(self.config.l1_chain_id);
        let signs_as = signer.address();
        let parts = SequencerParts {
            rollup: self.config.clone(),
            blobs: self.schedule.clone().ok_or(missing)?,
            engine: core.engine.clone(),
            signing_log: core
                .signing_log
                .clone()
                .context("a sequencer keeps a log")?,
            l1: FollowedL1 {
                client: self.l1.client.clone(),
                heads: self.l1.heads.clone(),
            },
            signer,
            network,
        };
        let (sequencer, control) = Sequencer::new(config.sequencer.clone(), parts);
        self.prepared = Some(Prepared {
            sequencer,
            signs_as,
        });
        self.control = Some(control);
        Ok(())
    }

    /// Follows L1 and derives from it, reads the block signer, and starts a prepared sequencer.
    /// Returns when the signer is known; fails if the sequencer has another key.
    pub async fn run(
        self,
        tasks: &Tasks,
        core: &RollupCore,
        network: Option<Network>,
        options: &L1Options,
    ) -> anyhow::Result<()> {
        report_start();
        let (token, client) = (tasks.token(), self.l1.client.clone());
        let (poll, epoch) = (options.poll_interval, options.epoch_interval);
        let heads = self.heads;
        tasks.spawn("L1 heads", async move {
            let endpoints = client.clone();
            let check = token.run_until_cancelled(endpoints.check_endpoints());
            let follow = l1::follow_heads(client, heads, poll, epoch, token.clone());
            tokio::join!(check, follow);
            Ok(())
        });
        let (engine, genesis) = (core.engine.clone(), self.config.genesis.clone());
        let unsafe_head = follow_unsafe_head(engine, genesis, tasks.token());
        tasks.spawn("metrics of the unsafe head", async move {
            unsafe_head.await;
            Ok(())
        });
        if let Some(driver) = self.driver {
            let (token, client) = (tasks.token(), self.l1.client.clone());
            let (config, handle) = (self.config.clone(), self.derivation);
            tasks.spawn("derivation", async move {
                let checked = token.run_until_cancelled(check_l1(&client, &config)).await;
                checked.transpose()?;
                let ended = driver.run(token.clone()).await;
                log_recorded(handle.as_ref());
                outlive_driver(ended, &token).await
            });
        }
        // The signer is not needed: without a swarm no signature is checked, and without a
        // sequencer none is made.
        if network.is_none() && self.prepared.is_none() {
            return Ok(());
        }
        let source = UnsafeSigner {
            l1: self.l1.client,
            rollup: self.config,
            memory: core.signer_memory.clone(),
            confs: options.confs,
            reload: options.reload_interval,
            poll: options.poll_interval,
        };
        learn_signer(tasks, source, network, self.prepared).await
    }
}

/// Logs the safe head that is on disk when derivation ends.
fn log_recorded(handle: Option<&DriverHandle>) {
    let safe = handle.and_then(|handle| handle.status().safe_l2);
    match safe {
        Some(safe) => tracing::info!(
            number = safe.id.number,
            hash = %safe.id.hash,
            "derivation has stopped; the safe head is recorded"
        ),
        None => tracing::info!("derivation has stopped; it had no safe head yet"),
    }
}

/// Checks that a beacon API is configured if the chain may have batches in blobs.
fn check_beacon(options: &L1Options, config: &RollupConfig) -> anyhow::Result<()> {
    if options.beacon.is_some() || !config.forks.is_scheduled(Fork::Ecotone) {
        return Ok(());
    }
    ensure!(
        options.beacon_ignored,
        "the Ecotone upgrade is scheduled but no L1 Beacon API endpoint is configured: give the beacon API of an L1 consensus client with --l1.beacon, or --l1.beacon.ignore to start without one, where the safe head stops at the first batch in blobs"
    );
    tracing::warn!(
        "no L1 Beacon API endpoint is configured (--l1.beacon.ignore): the safe head stops at the first batch in blobs"
    );
    Ok(())
}

fn l1_client(options: &L1Options, chain_id: u64) -> anyhow::Result<L1Client> {
    let config = L1Config {
        chain_id: Some(chain_id),
        metrics: Some(RpcClientMetrics::L1),
        ..options.client.clone()
    };
    let client = L1Client::new(&config).context("--l1")?;
    if !options.given {
        tracing::warn!(
            endpoint = client.endpoint(),
            "no --l1 is given: the default endpoint is used"
        );
    }
    Ok(client)
}

/// Checks that the endpoint serves the rollup's L1. Retries until the endpoint responds.
async fn check_l1(client: &L1Client, config: &RollupConfig) -> Result<(), L1CheckError> {
    const WAITING: &str = "L1 cannot be checked; derivation waits for it";
    let mut causes = LoggedCauses::default();
    loop {
        match l1::check_chain(client, config).await {
            Err(error) if !error.is_final() => {
                let error = error.to_string();
                if causes.note_failure(WAITING, &error, Instant::now()) {
                    tracing::warn!(error, "{WAITING}");
                }
                tokio::time::sleep(L1_PAUSE).await;
            }
            checked => return checked,
        }
    }
}

/// Reads the block signer from L1 and reports it to the swarm, now and at every change. Starts the
/// prepared sequencer, if any; fails if its key is not the block signer's.
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
        let token = tasks.token();
        tasks.spawn("sequencer", async move {
            let ended = prepared.sequencer.run(token.clone()).await;
            outlive_sequencer(ended, &token).await
        });
    }
    if let Some(network) = network {
        let token = tasks.token();
        tasks.spawn("block signer", async move {
            Ok(source.follow(named, ours, network, token).await?)
        });
    }
    Ok(())
}

/// Keeps the node running when sequencing ends because no further block may be made. JSON-RPC
/// clients and peers still request the node's blocks, and an operator needs JSON-RPC to find the
/// cause. Only a failure of the chain itself ends the node.
async fn outlive_sequencer(
    ended: Result<(), SequencerError>,
    token: &CancellationToken,
) -> anyhow::Result<()> {
    let error = match ended {
        Err(error) if !error.is_chain_failure() => error,
        ended => return Ok(ended?),
    };
    metrics::gauge!("starling_sequencer_ended").set(1.0);
    remind(token, || {
        tracing::error!(
            %error,
            "sequencing has ended, and no further block is made here; the node goes on serving and following; restart it when the cause is gone"
        );
    })
    .await;
    Ok(())
}

/// Keeps the node running when derivation ends. The node continues to follow the swarm, and no
/// further block becomes safe. Only a failure of the chain itself ends the node.
async fn outlive_driver(
    ended: Result<(), DriverError>,
    token: &CancellationToken,
) -> anyhow::Result<()> {
    let error = match ended {
        Err(error) if !error.is_chain_failure() => error,
        ended => return Ok(ended?),
    };
    metrics::gauge!("starling_derivation_ended").set(1.0);
    remind(token, || {
        tracing::error!(
            %error,
            "derivation has ended, and no further block becomes safe here; the node goes on serving and following; correct the cause and restart"
        );
    })
    .await;
    Ok(())
}

/// Calls `log` now and every [`ENDED_REMINDER`] until the token is cancelled.
async fn remind(token: &CancellationToken, log: impl Fn()) {
    let repeat = async {
        loop {
            log();
            tokio::time::sleep(ENDED_REMINDER).await;
        }
    };
    token.run_until_cancelled(repeat).await;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chain::ChainError;
    use alloy_primitives::B256;
    use starling_proto::fork::ForkSchedule;

    #[test]
    fn a_chain_with_ecotone_needs_a_beacon_endpoint_unless_it_is_ignored() {
        let start = |options: &str| {
            let line = format!("starling node --datadir=x --network=op-sepolia {options}");
            let argv = line.split_whitespace().map(str::to_owned);
            let parsed = crate::cli::parse(argv, &|_| None).expect("a command line");
            let crate::cli::Invocation::Node(config) = parsed.invocation else {
                panic!("no node: {:?}", parsed.invocation)
            };
            let rollup = config.rollup.read().expect("a network");
            let before_ecotone = RollupConfig {
                forks: ForkSchedule::from_genesis(Fork::Delta),
                ..rollup.clone()
            };
            let without_batches = RollupConfig {
                l1_chain_id: 900,
                ..rollup.clone()
            };
            let start = |rollup| Rollup::new(&config.l1, false, Arc::new(rollup)).map(drop);
            assert!(start(before_ecotone).is_ok() && start(without_batches).is_ok());
            start(rollup)
        };
        let refused = start("").expect_err("no endpoint").to_string();
        let op_node =
            "the Ecotone upgrade is scheduled but no L1 Beacon API endpoint is configured";
        assert!(refused.starts_with(op_node), "{refused}");
        assert!(refused.contains("--l1.beacon, ") && refused.contains("--l1.beacon.ignore"));
        for given in [
            "--l1.beacon=http://b",
            "--l1.beacon-fallbacks=http://b",
            "--l1.beacon.ignore",
        ] {
            start(given).expect(given);
        }
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
