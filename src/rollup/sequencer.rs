//! The sequencer: builds a block every block time and publishes it to the swarm.
//!
//! A thin loop around pure parts. [`schedule`](starling_proto::schedule) decides when to build a
//! block, [`origin`](crate::rollup::origin) chooses its L1 origin, and
//! [`attributes`](starling_proto::attributes) its attributes.
//! [`signed_before`](starling_proto::signed_before) decides whether a block that may already be
//! signed is used instead. [`own_key_watch`] detects another sequencer that signs with our key.
//! [`rewind`] decides how far to rewind the head after an L1 reorg. The sequencer drives the
//! execution core through [`Engine`] alone, and records blocks in the [`SigningLog`].
//!
//! The last steps of a block are in this order, so that a crash is harmless: seal, log with fsync,
//! sign, publish, move the head. For one height and parent there is only one signed block while its
//! L1 origin is canonical. L1 requests have timeouts, and a whole start has [`START_TIMEOUT`], so a
//! slow endpoint cannot block the loop. `stop` is handled between steps.

mod block_metrics;
mod control;
mod error;
mod origins;
mod own_key_watch;
mod resign;
mod rewind;

pub use control::{SequencerControlError, SequencerHandle, SequencerStatus};
pub use error::SequencerError;

use crate::{
    chain::ChainError,
    clock::since_epoch,
    rollup::{
        engine::{BlockAt, Engine},
        head_search::OriginStatus,
        l1::FollowedL1,
        origin::past_drift,
        signer::Signer,
        signing_log::SigningLog,
    },
};
use alloy_primitives::B256;
use alloy_rpc_types_engine::PayloadId;
use block_metrics::SequencerMetrics;
use control::Command;
use error::Consequence;
use origins::Origins;
use own_key_watch::SequencingPeriod;
use starling_p2p::Network;
use starling_proto::{
    attributes::{attributes, is_upgrade_block},
    config::RollupConfig,
    fork::BlobSchedule,
    l1info::L2BlockRef,
    payload::Payload,
    schedule::{Schedule, ScheduleAction, ScheduleConfig, SequencerHead, StepFailure},
};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::{
    sync::{mpsc, watch},
    time::timeout,
};
use tokio_util::sync::CancellationToken;

/// Timeout from the decision to start a block to the start of its build (op-node: attributes
/// timeout).
const START_TIMEOUT: Duration = Duration::from_secs(20);
/// Age in seconds from which on peers ignore a block (specs: rollup-node-p2p, block validation).
const GOSSIP_AGE: u64 = 60;

/// Options of sequencing, from the flags `--sequencer.*`.
#[derive(Clone, Debug)]
pub struct SequencerConfig {
    /// Number of L1 blocks by which an origin stays below the L1 head.
    pub l1_confs: u64,
    /// Largest number of L2 blocks from the safe head up to the head; 0 means no limit.
    pub max_safe_lag: u64,
    /// Time before a block's timestamp at which the block is sealed.
    pub sealing: Duration,
    /// Whether to wait for [`SequencerHandle::start`] before the first block.
    pub stopped: bool,
    /// Whether to advance the L1 origin as early as possible and use no pool transactions, as
    /// derivation does after a long halt.
    pub recover: bool,
}

impl Default for SequencerConfig {
    fn default() -> Self {
        Self {
            l1_confs: 4,
            max_safe_lag: 0,
            sealing: Duration::from_millis(50),
            stopped: false,
            recover: false,
        }
    }
}

/// Consecutive failed origin checks, a second apart, before the head is rewound. Endpoints behind a
/// load balancer may disagree for a moment.
const CONFIRMATIONS: u32 = 3;

/// The block in progress: a new build, or an earlier block to be signed again.
enum OpenBlock {
    /// The build of a new block.
    Build(PayloadId),
    /// A block that was sent to the signer before.
    Resign(Arc<Payload>),
}

/// The parts of the node that the sequencer uses.
pub struct SequencerParts {
    pub rollup: Arc<RollupConfig>,
    /// L1's schedule of blob parameters.
    pub blobs: BlobSchedule,
    pub engine: Engine,
    pub signing_log: SigningLog,
    pub l1: FollowedL1,
    pub signer: Signer,
    /// `None` with `--p2p.disable`: blocks are then built and not published.
    pub network: Option<Network>,
}

/// The state of the sequencer's loop. Made by [`Sequencer::new`], consumed by [`Sequencer::run`].
pub struct Sequencer {
    config: SequencerConfig,
    rollup: Arc<RollupConfig>,
    blobs: BlobSchedule,
    engine: Engine,
    signing_log: SigningLog,
    origins: Origins,
    signer: Signer,
    network: Option<Network>,
    schedule: Schedule,
    open: Option<OpenBlock>,
    commands: mpsc::Receiver<Command>,
    status: watch::Sender<SequencerStatus>,
    /// Blocks from peers with our own key's signature.
    own_key_blocks: Option<mpsc::Receiver<Arc<Payload>>>,
    /// The current sequencing period, from one start to the next stop.
    period: SequencingPeriod,
    /// The last block that was sent to the signer and is still unsigned, so that the log reports
    /// its reuse only once.
    unsigned_reported: Option<B256>,
    /// The last logged failure, so that the same failure is not logged again every second.
    last_error: Option<String>,
    /// A parent block, and the number of checks in a row in which L1 contradicted the origins of
    /// all its children that may have been signed.
    reorganised: Option<(B256, u32)>,
    /// Number of checks in a row in which L1 contradicted the head's origin.
    origin_failures: u32,
    /// Whether the log already reports that the head is too far above the safe head.
    held_reported: bool,
    metrics: SequencerMetrics,
}

impl Sequencer {
    pub fn new(config: SequencerConfig, parts: SequencerParts) -> (Self, SequencerHandle) {
        let block_time = Duration::from_secs(parts.rollup.block_time);
        let schedule = ScheduleConfig {
            block_time,
            sealing: config.sealing,
            max_safe_lag: config.max_safe_lag,
        };
        let schedule = Schedule::new(schedule, !config.stopped);
        let (handle, commands, status) = control::channel();
        let origins = Origins::new(parts.l1.client, parts.l1.heads, config.l1_confs);
        let sequencer = Self {
            config,
            rollup: parts.rollup,
            blobs: parts.blobs,
            engine: parts.engine,
            signing_log: parts.signing_log,
            origins,
            signer: parts.signer,
            network: parts.network,
            schedule,
            open: None,
            commands,
            status,
            own_key_blocks: None,
            period: SequencingPeriod::default(),
            unsigned_reported: None,
            last_error: None,
            reorganised: None,
            origin_failures: 0,
            held_reported: false,
            metrics: SequencerMetrics::new(block_time),
        };
        (sequencer, handle)
    }

    /// Builds blocks until the token is cancelled. An error explains why no further block may be
    /// built.
    pub async fn run(mut self, token: CancellationToken) -> Result<(), SequencerError> {
        let ended = self.sequence(token).await;
        if let Err(error) = &ended {
            self.report(false, Some(error.to_string()));
        }
        ended
    }

    async fn sequence(&mut self, token: CancellationToken) -> Result<(), SequencerError> {
        let mut heads = self.engine.heads();
        if let Some(network) = &self.network {
            self.own_key_blocks = Some(network.blocks_signed_by(self.signer.address()).await);
        }
        self.report(self.schedule.active(), None);
        if self.schedule.active() {
            self.period = SequencingPeriod::new(since_epoch().as_secs());
            match self.publish_newest().await {
                Err(error) if error.is_chain_failure() => return Err(error),
                Err(error) => {
                    tracing::warn!(%error, "the newest block is not published again");
                }
                Ok(()) => {}
            }
        }
        loop {
            self.handle_queued()?;
            heads.mark_unchanged();
            let head = self.head();
            self.report_held(&head);
            let result = match self.schedule.next(since_epoch(), &head) {
                ScheduleAction::Wait(until) => {
                    tokio::select! {
                        () = token.cancelled() => return Ok(()),
                        () = sleep_until(until) => {}
                        changed = heads.changed() => changed.map_err(|_| ChainError::Stopped)?,
                        Some(command) = self.commands.recv() => self.handle_command(command),
                        Some(block) = next_block(&mut self.own_key_blocks) => self.on_own_key_block(&block)?,
                    }
                    continue;
                }
                ScheduleAction::Start => tokio::select! {
                    () = token.cancelled() => return Ok(()),
                    started = timeout(START_TIMEOUT, self.start()) => started.unwrap_or(Err(SequencerError::Slow)),
                },
                // Cancelling the token does not interrupt this step: a logged block must also be
                // published and become the head.
                ScheduleAction::Seal => self.seal().await,
                ScheduleAction::Drop => {
                    tracing::warn!(head = %head.id, "the head moved while a block was being built; the block is dropped");
                    self.metrics.on_dropped_block();
                    self.close();
                    Ok(())
                }
            };
            match result {
                Ok(()) => self.origin_failures = 0,
                Err(_) if token.is_cancelled() => return Ok(()),
                Err(error) => tokio::select! {
                    () = token.cancelled() => return Ok(()),
                    failed = self.fail(error) => failed?,
                },
            }
        }
    }

    /// Handles the queued commands and blocks. A sequencer that catches up builds blocks without
    /// waiting, and can still be stopped because of this call.
    fn handle_queued(&mut self) -> Result<(), SequencerError> {
        while let Ok(command) = self.commands.try_recv() {
            self.handle_command(command);
        }
        while let Some(block) = self
            .own_key_blocks
            .as_mut()
            .and_then(|blocks| blocks.try_recv().ok())
        {
            self.on_own_key_block(&block)?;
        }
        Ok(())
    }

    /// Logs once that the head is too far above the safe head, and once that it no longer is.
    fn report_held(&mut self, head: &SequencerHead) {
        let is_held = self.schedule.is_held(head);
        if std::mem::replace(&mut self.held_reported, is_held) == is_held {
            return;
        }
        if is_held {
            tracing::warn!(head = %head.id, safe = head.safe, max_safe_lag = self.config.max_safe_lag, "no block is made until the safe head advances (--sequencer.max-safe-lag): check the batcher and derivation");
        } else if self.schedule.active() {
            tracing::info!(head = %head.id, safe = head.safe, "the safe head has advanced; blocks are made again");
        }
    }

    fn head(&self) -> SequencerHead {
        let heads = *self.engine.heads().borrow();
        let safe = heads
            .safe
            .map_or(self.rollup.genesis.l2.number, |safe| safe.number);
        SequencerHead {
            id: heads.head,
            time: heads.timestamp,
            safe,
        }
    }

    /// Starts a block on the head.
    async fn start(&mut self) -> Result<(), SequencerError> {
        let parent = self.newest().await?;
        let parent_ref = L2BlockRef::of(&parent, &self.rollup.genesis)?;
        let time = parent.timestamp().saturating_add(self.rollup.block_time);
        let recover = self.config.recover;
        self.origins.confirm(parent_ref.origin).await?;
        if let Some(hash) = self.block_to_resign(&parent, parent_ref.origin).await? {
            self.open = Some(OpenBlock::Resign(self.load_block_to_resign(hash).await?));
            self.schedule.started(parent.id(), time);
            return Ok(());
        }
        let origin = self
            .origins
            .choose(&self.rollup, time, parent_ref.origin, recover)
            .await?;
        let receipts = if origin.id() == parent_ref.origin {
            None
        } else {
            Some(self.origins.receipts(&origin).await?)
        };
        let receipts = receipts.as_ref().map(|receipts| receipts.as_slice());
        let mut derived = attributes(&self.rollup, &self.blobs, &parent, &origin, receipts)?;
        for error in derived.ignored {
            tracing::warn!(l1_block = %origin.hash, %error, "a configuration log on L1 has no effect");
        }
        let no_pool = recover
            || past_drift(&self.rollup, time, &origin)
            || is_upgrade_block(&self.rollup.forks, parent.timestamp(), time);
        derived.attributes.no_tx_pool = Some(no_pool);
        self.metrics.on_build();
        let id = self.engine.start(parent.hash, derived.attributes).await?;
        self.open = Some(OpenBlock::Build(id));
        self.schedule.started(parent.id(), time);
        Ok(())
    }

    /// Completes the open block: seal, log, sign, publish, move the head.
    async fn seal(&mut self) -> Result<(), SequencerError> {
        let payload = match self.open.take() {
            Some(OpenBlock::Build(id)) => {
                let sealing = Instant::now();
                let payload = self.engine.seal(id).await?;
                let transactions = payload.transactions.len();
                self.metrics.on_sealed(sealing, transactions);
                payload
            }
            Some(OpenBlock::Resign(payload)) => {
                self.insert_block_to_resign(&payload).await?;
                payload
            }
            None => {
                self.schedule.closed();
                return Ok(());
            }
        };
        let origin = L2BlockRef::of(&payload, &self.rollup.genesis)?.origin;
        self.signing_log
            .record(payload.clone(), origin.hash)
            .await?;
        self.unsigned_reported = Some(payload.hash);
        self.publish(payload.clone()).await?;
        self.period.on_published(payload.hash);
        self.engine.forkchoice(payload.hash, None, None).await?;
        self.schedule.closed();
        (self.last_error, self.unsigned_reported) = (None, None);
        tracing::info!(
            number = payload.number(),
            hash = %payload.hash,
            transactions = payload.transactions.len(),
            l1_origin = origin.number,
            ahead = payload.timestamp() as i64 - since_epoch().as_secs() as i64,
            "made a block"
        );
        Ok(())
    }

    /// Publishes the head again at start, since it may have been logged but not published before
    /// the last stop. The head may have come from a peer, so it is recorded in the signing log
    /// before it is signed. It is not published if another block of its height and parent was sent
    /// to the signer last, or if its L1 origin is orphaned.
    async fn publish_newest(&mut self) -> Result<(), SequencerError> {
        let newest = self.newest().await?;
        let age = since_epoch().as_secs().saturating_sub(newest.timestamp());
        if newest.number() <= self.rollup.genesis.l2.number || age >= GOSSIP_AGE {
            return Ok(());
        }
        let (number, hash) = (newest.number(), newest.hash);
        let Ok(L2BlockRef { origin, .. }) = L2BlockRef::of(&newest, &self.rollup.genesis) else {
            return Ok(());
        };
        if let Some(other) = self
            .signing_log
            .signed(number, newest.parent_hash())?
            .last()
            .filter(|last| last.hash != hash)
        {
            tracing::warn!(number, %hash, signed = %other.hash, "another block of the head's height was signed here: the head is not published again");
            return Ok(());
        }
        if let Ok(Ok(OriginStatus::Orphaned { canonical })) =
            timeout(origins::OPTIONAL, self.origins.status(origin)).await
        {
            tracing::warn!(number, %hash, %origin, %canonical, "the head's L1 origin is no longer canonical: the head is not published again");
            return Ok(());
        }
        match self.signing_log.record(newest.clone(), origin.hash).await {
            // Since the check above, another block with this parent and L1 origin has been logged.
            Err(error @ ChainError::AlreadySigned { .. }) => {
                tracing::warn!(number, %error, "the head is not published again");
                return Ok(());
            }
            logged => logged?,
        }
        match self.publish(newest).await {
            Ok(()) => tracing::info!(number, %hash, "the newest block is published again"),
            Err(error) => tracing::warn!(%error, "the newest block is not published again"),
        }
        Ok(())
    }

    async fn publish(&self, payload: Arc<Payload>) -> Result<(), SequencerError> {
        let Some(network) = &self.network else {
            return Ok(());
        };
        let signature = self.signer.sign(self.rollup.l2_chain_id, &payload).await;
        let signature = signature.map_err(|cause| {
            self.metrics.on_publishing_error();
            SequencerError::Unsigned {
                number: payload.number(),
                cause,
            }
        })?;
        network.publish(payload, signature).await;
        Ok(())
    }

    /// Handles a block from a peer with our key's signature. If the block was not built here,
    /// another sequencer has, or had, the key.
    fn on_own_key_block(&mut self, block: &Payload) -> Result<(), SequencerError> {
        let (number, hash) = (block.number(), block.hash);
        let is_ours = || {
            Ok::<_, ChainError>(
                self.signing_log
                    .signed(number, block.parent_hash())?
                    .iter()
                    .any(|own| own.hash == hash),
            )
        };
        if !self.schedule.active() || is_ours()? {
            return Ok(());
        }
        metrics::counter!("starling_sequencer_foreign_blocks_total").increment(1);
        let Some(evidence) = self.period.evidence_against(block) else {
            if self.period.is_first_late_block() {
                tracing::info!(number, %hash, "a late block of the previous sequencer has arrived; more of them are not logged");
            }
            return Ok(());
        };
        let reason = format!(
            "block {number} ({hash}) carries the signature of this sequencer's key {} and was not made here, and {evidence}: another sequencer runs with the same key",
            self.signer.address()
        );
        tracing::error!(
            reason,
            "sequencing is stopped; stop one of the two sequencers, and start the other (admin_startSequencer, or a restart)"
        );
        self.activate(false, Some(reason));
        Ok(())
    }

    async fn newest(&self) -> Result<Arc<Payload>, SequencerError> {
        let missing = || SequencerError::NoHead(self.engine.heads().borrow().head);
        self.engine.block(BlockAt::Head).await?.ok_or_else(missing)
    }

    fn close(&mut self) {
        self.open = None;
        self.schedule.closed();
    }

    async fn fail(&mut self, mut error: SequencerError) -> Result<(), SequencerError> {
        self.close();
        self.metrics.on_error(&error);
        if matches!(error.consequence(), Consequence::Confirm) {
            self.origin_failures += 1;
            if self.origin_failures >= CONFIRMATIONS {
                self.origin_failures = 0;
                match self.rewind_after_reorg().await {
                    // The next block is started at once.
                    Ok(true) => return Ok(()),
                    Ok(false) => {
                        self.schedule.failed(since_epoch(), StepFailure::Temporary);
                        return Ok(());
                    }
                    Err(other) => error = other,
                }
            }
        }
        let (failure, is_lasting) = match error.consequence() {
            Consequence::Retry(failure) => (failure, true),
            // While an origin check is repeated, log the failure only if no failure has been logged
            // since the last block.
            Consequence::Confirm => (StepFailure::Temporary, self.last_error.is_none()),
            Consequence::End => return Err(error),
        };
        self.schedule.failed(since_epoch(), failure);
        let error = error.to_string();
        if is_lasting && self.last_error.as_ref() != Some(&error) {
            tracing::warn!(error, "no block was made; trying again");
            self.last_error = Some(error);
        }
        Ok(())
    }

    /// Executes a command if its caller still waits. A caller that has disconnected may have
    /// started another sequencer, so executing its start command would make a second signer. Check
    /// and execution are one step of this task, with no block built in between. A caller that
    /// disconnects after the check does not know the outcome, as if the response had been lost. It
    /// has to stop this sequencer before it starts another.
    fn handle_command(&mut self, command: Command) {
        if command.is_abandoned() {
            tracing::warn!(
                command = command.name(),
                "a command to the sequencer is skipped, because its caller has gone"
            );
            return;
        }
        let head = self.engine.heads().borrow().head;
        match command {
            Command::Start { hash, reply } => {
                let result = control::may_start(self.schedule.active(), head, hash);
                if result.is_ok() {
                    tracing::info!(%head, "the sequencer is started");
                    self.period = SequencingPeriod::new(since_epoch().as_secs());
                    self.activate(true, None);
                }
                let _ = reply.send(result);
            }
            Command::Stop { reply } => {
                let result = if self.schedule.active() {
                    Ok(head.hash)
                } else {
                    Err(SequencerControlError::NotRunning)
                };
                if result.is_ok() {
                    tracing::info!(%head, "the sequencer is stopped");
                    self.activate(false, None);
                }
                let _ = reply.send(result);
            }
            Command::Recover(recover) => self.config.recover = recover,
        }
    }

    fn activate(&mut self, active: bool, reason: Option<String>) {
        self.open = None;
        self.schedule.set_active(active);
        self.report(active, reason);
    }

    fn report(&self, active: bool, reason: Option<String>) {
        metrics::gauge!("starling_sequencer_active").set(if active { 1.0 } else { 0.0 });
        self.metrics.set_active(active);
        self.status.send_replace(SequencerStatus { active, reason });
    }
}

/// The next block from the channel. Never completes if there is no channel.
async fn next_block(blocks: &mut Option<mpsc::Receiver<Arc<Payload>>>) -> Option<Arc<Payload>> {
    match blocks {
        Some(blocks) => blocks.recv().await,
        None => std::future::pending().await,
    }
}

async fn sleep_until(moment: Option<Duration>) {
    match moment {
        Some(moment) => tokio::time::sleep(moment.saturating_sub(since_epoch())).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
pub(crate) mod tests;
