//! The sequencer: makes a block every block time and gives it to the swarm.
//!
//! A thin loop around pure parts: [`schedule`] says when, [`origin`](crate::rollup::origin) on which L1 block,
//! [`attributes`](starling_proto::attributes) with what. The order at the end of a block is what makes a crash harmless: seal, log
//! with fsync, sign, publish, move the head. For one height, parent and L1 origin there is only ever one signed block: if the log
//! holds one already, that one is used. A block that nobody signs stays in the log until it is. Whoever signs blocks with our key
//! beside us stops us: two chains under one signature are worse than none. Time limits on L1 and the 20 seconds of [`START_TIMEOUT`] keep a slow endpoint from holding
//! the loop; `stop` is answered between steps.

mod control;
mod origins;
pub mod schedule;

pub use control::{ControlError, SequencerHandle, SequencerStatus};

use crate::{
    chain::{Chain, ChainError, Inserted, view::ReadError},
    rollup::{
        l1::{FollowedL1, L1Block, L1Error},
        origin::{OriginError, past_drift},
        signer::{Signer, SignerError},
    },
};
use alloy_primitives::B256;
use alloy_rpc_types_engine::PayloadId;
use control::Command;
use origins::Origins;
use schedule::{Action, Failure, Head, Schedule, ScheduleConfig};
use starling_p2p::{Network, Provenance};
use starling_proto::{
    attributes::{AttributesError, attributes, is_upgrade_block},
    config::RollupConfig,
    fork::BlobSchedule,
    l1info::{L1InfoError, L2BlockRef},
    payload::{BlockId, Payload},
};
use std::{
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

/// For everything between the decision to begin a block and its build (op-node: attributes timeout).
const START_TIMEOUT: Duration = Duration::from_secs(20);
/// Peers ignore blocks older than this (specs: rollup-node-p2p, block validation).
const GOSSIP_AGE: u64 = 60;

/// How to sequence. Durations and distances as in the flags `--sequencer.*`.
#[derive(Clone, Debug)]
pub struct SequencerConfig {
    /// L1 blocks that an origin stays below the L1 head.
    pub l1_confs: u64,
    /// L2 blocks the head may be above the safe head; 0 is no limit.
    pub max_safe_lag: u64,
    /// How long before its time a block is sealed.
    pub sealing: Duration,
    /// Wait for [`SequencerHandle::start`].
    pub stopped: bool,
    /// Take every next L1 origin as soon as possible and no pool transactions: what derivation does after a long halt.
    pub recover: bool,
}

impl Default for SequencerConfig {
    fn default() -> Self {
        Self { l1_confs: 4, max_safe_lag: 0, sealing: Duration::from_millis(50), stopped: false, recover: false }
    }
}

/// An origin has left the L1 chain when L1 says so this often, a second apart: endpoints behind a balancer contradict each other.
const CONFIRMATIONS: u32 = 3;

/// Why a step failed. [`Sequencer::run`] returns only those after which sequencing must not go on.
#[derive(Debug, thiserror::Error)]
pub enum SequencerError {
    #[error(transparent)]
    Chain(#[from] ChainError),
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error(transparent)]
    L1(#[from] L1Error),
    #[error(transparent)]
    Origin(#[from] OriginError),
    #[error("the head's L1 origin {origin} has left the L1 chain, which has {canonical} there: the unsafe blocks on it are void")]
    OriginGone { origin: BlockId, canonical: B256 },
    #[error(transparent)]
    Attributes(#[from] AttributesError),
    #[error("the head {0} has no body in the chain")]
    NoHead(BlockId),
    #[error("the head: {0}")]
    HeadInfo(#[from] L1InfoError),
    #[error("L1 and the chain did not get the block under way in {} seconds", START_TIMEOUT.as_secs())]
    Slow,
    #[error("block {0} was signed for this height before, but the payload log does not hold it")]
    SignedBlockLost(B256),
    #[error("block {hash} was signed for this height before, but the chain does not take it: {reason}")]
    SignedBlockRefused { hash: B256, reason: String },
    #[error("block {number} is not signed: {cause}")]
    Unsigned { number: u64, cause: SignerError },
}

/// What a failed step means for the loop.
enum Consequence {
    Retry(Failure),
    /// To be believed only when it is said again.
    Confirm,
    End,
}

impl SequencerError {
    fn consequence(&self) -> Consequence {
        match self {
            Self::Origin(OriginError::Reorganised { .. }) | Self::OriginGone { .. } => Consequence::Confirm,
            Self::Chain(ChainError::Stopped | ChainError::Store(_))
            | Self::Read(_)
            | Self::HeadInfo(_)
            | Self::SignedBlockLost(_)
            | Self::SignedBlockRefused { .. } => Consequence::End,
            Self::Attributes(_) => Consequence::Retry(Failure::Attributes),
            _ => Consequence::Retry(Failure::Temporary),
        }
    }

    /// Whether the chain itself has failed, not only sequencing.
    pub fn is_of_chain(&self) -> bool {
        matches!(self, Self::Chain(ChainError::Stopped | ChainError::Store(_)) | Self::Read(_))
    }
}

/// The block that is being built.
struct Job {
    id: PayloadId,
    origin: L1Block,
}

/// Everything the sequencer holds. Made by [`Sequencer::new`], consumed by [`Sequencer::run`].
pub struct Sequencer {
    config: SequencerConfig,
    rollup: Arc<RollupConfig>,
    blobs: BlobSchedule,
    chain: Chain,
    origins: Origins,
    signer: Signer,
    network: Option<Network>,
    schedule: Schedule,
    job: Option<Job>,
    commands: mpsc::Receiver<Command>,
    status: watch::Sender<SequencerStatus>,
    /// Blocks that others have sent and our key has signed.
    witnessed: Option<mpsc::Receiver<Arc<Payload>>>,
    /// The head when sequencing began: what was made before was made by whoever sequenced then.
    since: u64,
    /// The block that stands in the log and could not be signed.
    unsigned: Option<B256>,
    /// The last failure, so that one that lasts is not reported every second.
    complaint: Option<String>,
    /// How often in a row L1 has said that the origin is gone.
    gone: u32,
}

impl Sequencer {
    /// Without a network (`--p2p.disable`) blocks are made and not published.
    pub fn new(
        config: SequencerConfig,
        rollup: Arc<RollupConfig>,
        blobs: BlobSchedule,
        chain: Chain,
        l1: FollowedL1,
        signer: Signer,
        network: Option<Network>,
    ) -> (Self, SequencerHandle) {
        let block_time = Duration::from_secs(rollup.block_time);
        let schedule = ScheduleConfig { block_time, sealing: config.sealing, max_safe_lag: config.max_safe_lag };
        let schedule = Schedule::new(schedule, !config.stopped);
        let (handle, commands, status) = control::channel(!config.stopped);
        let origins = Origins::new(l1.client, l1.heads, config.l1_confs);
        let sequencer = Self {
            config,
            rollup,
            blobs,
            chain,
            origins,
            signer,
            network,
            schedule,
            job: None,
            commands,
            status,
            witnessed: None,
            since: 0,
            unsigned: None,
            complaint: None,
            gone: 0,
        };
        (sequencer, handle)
    }

    /// Makes blocks until the token is cancelled. An error says why no further block may be made.
    pub async fn run(mut self, token: CancellationToken) -> Result<(), SequencerError> {
        let ended = self.sequence(token).await;
        if let Err(error) = &ended {
            self.report(false, Some(error.to_string()));
        }
        ended
    }

    async fn sequence(&mut self, token: CancellationToken) -> Result<(), SequencerError> {
        let mut heads = self.chain.heads();
        if let Some(network) = &self.network {
            self.witnessed = Some(network.blocks_signed_by(self.signer.address()).await);
        }
        self.report(self.schedule.active(), None);
        if self.schedule.active() {
            self.since = self.chain.view().head().number;
            self.publish_newest().await?;
        }
        loop {
            // Also while block follows block without a pause.
            while let Ok(command) = self.commands.try_recv() {
                self.obey(command);
            }
            while let Some(block) = self.witnessed.as_mut().and_then(|witnessed| witnessed.try_recv().ok()) {
                self.on_witnessed(&block)?;
            }
            heads.mark_unchanged();
            let head = self.head();
            let result = match self.schedule.next(now(), &head) {
                Action::Wait(until) => {
                    tokio::select! {
                        () = token.cancelled() => return Ok(()),
                        () = sleep_until(until) => {}
                        changed = heads.changed() => changed.map_err(|_| ChainError::Stopped)?,
                        Some(command) = self.commands.recv() => self.obey(command),
                        Some(block) = witnessed(&mut self.witnessed) => self.on_witnessed(&block)?,
                    }
                    continue;
                }
                Action::Start => tokio::select! {
                    () = token.cancelled() => return Ok(()),
                    started = tokio::time::timeout(START_TIMEOUT, self.start()) => started.unwrap_or(Err(SequencerError::Slow)),
                },
                // Never cut short: between the log and the head there is no good place to stop.
                Action::Seal => self.seal().await,
                Action::Drop => {
                    tracing::warn!(head = %head.id, "the head moved while a block was being built; the block is dropped");
                    self.close();
                    Ok(())
                }
            };
            match result {
                Ok(()) => self.gone = 0,
                Err(_) if token.is_cancelled() => return Ok(()),
                Err(error) => self.fail(error)?,
            }
        }
    }

    fn head(&self) -> Head {
        let view = self.chain.view();
        let safe = view.safe().map_or(self.rollup.genesis.l2.number, |safe| safe.number);
        Head { id: view.head(), time: view.header().timestamp, safe }
    }

    /// Begins a block on the head.
    async fn start(&mut self) -> Result<(), SequencerError> {
        let parent = self.newest()?;
        let parent_ref = L2BlockRef::of(&parent, &self.rollup.genesis)?;
        let time = parent.timestamp().saturating_add(self.rollup.block_time);
        let recover = self.config.recover;
        let origin = self.origins.choose(&self.rollup, time, parent_ref.origin, recover).await?;
        let receipts = match origin.id() == parent_ref.origin {
            true => None,
            false => Some(self.origins.receipts(&origin).await?),
        };
        let receipts = receipts.as_ref().map(|receipts| receipts.as_slice());
        let mut derived = attributes(&self.rollup, &self.blobs, &parent, &origin, receipts)?;
        for error in derived.ignored {
            tracing::warn!(l1_block = %origin.hash, %error, "a configuration log on L1 has no effect");
        }
        let no_pool =
            recover || past_drift(&self.rollup, time, &origin) || is_upgrade_block(&self.rollup.forks, parent.timestamp(), time);
        derived.attributes.no_tx_pool = Some(no_pool);
        let id = self.chain.start(parent.hash, derived.attributes).await?;
        self.job = Some(Job { id, origin });
        self.schedule.started(parent.id(), time);
        Ok(())
    }

    /// Ends the open block: seal, log, sign, publish, move the head.
    async fn seal(&mut self) -> Result<(), SequencerError> {
        let Some(job) = self.job.take() else {
            self.schedule.closed();
            return Ok(());
        };
        let block = self.chain.seal(job.id).await?;
        let payload = match self.chain.log_before_sign(block.payload.clone(), job.origin.hash).await {
            Ok(()) => block.payload.clone(),
            Err(ChainError::AlreadySigned { have }) => self.signed_before(have).await?,
            Err(error) => return Err(error.into()),
        };
        if let Err(error) = self.publish(payload.clone()).await {
            self.unsigned = Some(payload.hash);
            return Err(error);
        }
        self.chain.forkchoice(payload.hash, None, None).await?;
        self.schedule.closed();
        (self.complaint, self.unsigned) = (None, None);
        tracing::info!(
            number = payload.number(),
            hash = %payload.hash,
            transactions = payload.transactions.len(),
            l1_origin = job.origin.number,
            ahead = payload.timestamp() as i64 - now().as_secs() as i64,
            "made a block"
        );
        Ok(())
    }

    /// The block that this sequencer signed for the same place before it was killed.
    async fn signed_before(&self, hash: B256) -> Result<Arc<Payload>, SequencerError> {
        if self.unsigned != Some(hash) {
            tracing::warn!(%hash, "this height has been signed before; that block is used again");
        }
        let payload = Arc::new(self.chain.logged(hash)?.ok_or(SequencerError::SignedBlockLost(hash))?);
        match self.chain.insert(payload.clone(), Provenance::Imported).await? {
            Inserted::Valid => Ok(payload),
            Inserted::Invalid { reason, .. } => Err(SequencerError::SignedBlockRefused { hash, reason }),
            Inserted::Syncing => Err(SequencerError::SignedBlockRefused { hash, reason: "its parent is not known".into() }),
            Inserted::NoRoom => Err(SequencerError::SignedBlockRefused { hash, reason: "there is no room for it".into() }),
        }
    }

    /// A block that was logged just before the last stop may never have left this machine. The guard row comes before this signature
    /// like before any other: the head may have come from elsewhere.
    async fn publish_newest(&self) -> Result<(), SequencerError> {
        let newest = self.newest()?;
        let age = now().as_secs().saturating_sub(newest.timestamp());
        if newest.number() > self.rollup.genesis.l2.number && age < GOSSIP_AGE {
            let origin = L2BlockRef::of(&newest, &self.rollup.genesis)?.origin;
            match self.chain.log_before_sign(newest.clone(), origin.hash).await {
                Ok(()) => match self.publish(newest.clone()).await {
                    Ok(()) => {
                        tracing::info!(number = newest.number(), hash = %newest.hash, "the newest block is published again")
                    }
                    Err(error) => tracing::warn!(%error, "the newest block is not published again"),
                },
                Err(error @ ChainError::AlreadySigned { .. }) => {
                    tracing::warn!(%error, "the newest block is not published again")
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    async fn publish(&self, payload: Arc<Payload>) -> Result<(), SequencerError> {
        let Some(network) = &self.network else { return Ok(()) };
        let signature = self.signer.sign(self.rollup.l2_chain_id, &payload).await;
        let signature = signature.map_err(|cause| SequencerError::Unsigned { number: payload.number(), cause })?;
        network.publish(payload, signature).await;
        Ok(())
    }

    /// A peer has sent a block that our key has signed. When we have not, somebody else has the key.
    fn on_witnessed(&mut self, block: &Payload) -> Result<(), SequencerError> {
        if !self.schedule.active() || block.number() <= self.since {
            return Ok(());
        }
        // A block that names no origin has never been ours.
        if let Ok(L2BlockRef { origin, .. }) = L2BlockRef::of(block, &self.rollup.genesis)
            && self.chain.signed(block.number(), block.parent_hash(), origin.hash)? == Some(block.hash)
        {
            return Ok(());
        }
        let reason = format!(
            "block {} ({}) carries the signature of this sequencer's key {} and was not made here: another sequencer runs with the same key",
            block.number(),
            block.hash,
            self.signer.address()
        );
        metrics::counter!("starling_sequencer_foreign_blocks_total").increment(1);
        tracing::error!(
            reason,
            "sequencing is stopped; stop one of the two, and start the other (admin_startSequencer, or a restart)"
        );
        self.activate(false, Some(reason));
        Ok(())
    }

    fn newest(&self) -> Result<Arc<Payload>, SequencerError> {
        let view = self.chain.view();
        let head = view.head();
        view.payload(head.number)?.ok_or(SequencerError::NoHead(head))
    }

    fn close(&mut self) {
        self.job = None;
        self.schedule.closed();
    }

    fn fail(&mut self, error: SequencerError) -> Result<(), SequencerError> {
        let failure = match error.consequence() {
            Consequence::Retry(failure) => failure,
            Consequence::Confirm => {
                self.gone += 1;
                if self.gone >= CONFIRMATIONS {
                    return Err(error);
                }
                Failure::Temporary
            }
            Consequence::End => return Err(error),
        };
        self.job = None;
        self.schedule.failed(now(), failure);
        let complaint = error.to_string();
        if self.complaint.as_ref() != Some(&complaint) {
            tracing::warn!(error = complaint, "no block was made; trying again");
            self.complaint = Some(complaint);
        }
        Ok(())
    }

    fn obey(&mut self, command: Command) {
        let head = self.chain.view().head();
        match command {
            Command::Start { hash, reply } => {
                let result = control::may_start(self.schedule.active(), head.hash, hash);
                if result.is_ok() {
                    tracing::info!(%head, "the sequencer is started");
                    self.since = head.number;
                    self.activate(true, None);
                }
                let _ = reply.send(result);
            }
            Command::Stop { reply } => {
                let result = if self.schedule.active() { Ok(head.hash) } else { Err(ControlError::NotRunning) };
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
        self.job = None;
        self.schedule.set_active(active);
        self.report(active, reason);
    }

    fn report(&self, active: bool, reason: Option<String>) {
        metrics::gauge!("starling_sequencer_active").set(if active { 1.0 } else { 0.0 });
        self.status.send_replace(SequencerStatus { active, reason });
    }
}

/// Since the Unix epoch.
fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// The next block of the channel; pends where there is none.
async fn witnessed(blocks: &mut Option<mpsc::Receiver<Arc<Payload>>>) -> Option<Arc<Payload>> {
    match blocks {
        Some(blocks) => blocks.recv().await,
        None => std::future::pending().await,
    }
}

async fn sleep_until(moment: Option<Duration>) {
    match moment {
        Some(moment) => tokio::time::sleep(moment.saturating_sub(now())).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests;
