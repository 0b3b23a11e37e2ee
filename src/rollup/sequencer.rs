//! The sequencer: makes a block every block time and gives it to the swarm.
//!
//! A thin loop around pure parts. [`schedule`] decides when to make a block, [`origin`](crate::rollup::origin) its L1 origin,
//! [`attributes`](starling_proto::attributes) its attributes, [`waiting`] whether a block that may already be signed is used instead,
//! [`rivals`] whether another sequencer signs with our key, [`retreat`] how far to rewind the head after an L1 reorg. The order at the
//! end of a block makes a crash harmless: seal, log with fsync, sign, publish, move the head. For one height and parent there is
//! only one signed block while its L1 origin is canonical. Time limits on L1 and the 20 seconds of [`START_TIMEOUT`] keep a slow
//! endpoint from holding the loop; `stop` is answered between steps.

mod control;
mod error;
mod origins;
mod retreat;
mod rivals;
pub mod schedule;
mod waiting;

pub use control::{ControlError, SequencerHandle, SequencerStatus};
pub use error::SequencerError;

use crate::{
    chain::{Chain, ChainError, Inserted, payload_log::Guard},
    rollup::{l1::FollowedL1, origin::past_drift, signer::Signer},
};
use alloy_primitives::B256;
use alloy_rpc_types_engine::PayloadId;
use control::Command;
use error::Consequence;
use origins::{Origins, Standing};
use rivals::Term;
use schedule::{Action, Failure, Head, Schedule, ScheduleConfig};
use starling_p2p::{Network, Provenance};
use starling_proto::{
    attributes::{attributes, is_upgrade_block},
    config::RollupConfig,
    fork::BlobSchedule,
    l1info::L2BlockRef,
    payload::{BlockId, Payload},
};
use std::{
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};
use tokio::{
    sync::{mpsc, watch},
    time::timeout,
};
use tokio_util::sync::CancellationToken;
use waiting::{NextL1, Turn};

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
        Self {
            l1_confs: 4,
            max_safe_lag: 0,
            sealing: Duration::from_millis(50),
            stopped: false,
            recover: false,
        }
    }
}

/// Consecutive failed origin checks, a second apart, before the head is rewound: endpoints behind a load balancer may disagree.
const CONFIRMATIONS: u32 = 3;

/// The block that is being made.
enum Job {
    /// A new block.
    Build(PayloadId),
    /// A block that was sent to the signer before.
    Again(Arc<Payload>),
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
    /// The current period of sequencing.
    term: Term,
    /// The logged block without a signature, once it has been reported.
    waiting: Option<B256>,
    /// The last failure, so that one that lasts is not reported every second.
    complaint: Option<String>,
    /// A parent, and how often in a row L1 has contradicted the origins of all blocks on it that may be signed.
    reorganised: Option<(B256, u32)>,
    /// Consecutive checks in which L1 has contradicted the head's origin.
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
        let schedule = ScheduleConfig {
            block_time,
            sealing: config.sealing,
            max_safe_lag: config.max_safe_lag,
        };
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
            term: Term::default(),
            waiting: None,
            complaint: None,
            reorganised: None,
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
            self.term = Term::new(now().as_secs());
            self.publish_newest().await?;
        }
        loop {
            // Also while block follows block without a pause.
            while let Ok(command) = self.commands.try_recv() {
                self.obey(command);
            }
            while let Some(block) = self
                .witnessed
                .as_mut()
                .and_then(|witnessed| witnessed.try_recv().ok())
            {
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
                    started = timeout(START_TIMEOUT, self.start()) => started.unwrap_or(Err(SequencerError::Slow)),
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
                Err(error) => tokio::select! {
                    () = token.cancelled() => return Ok(()),
                    failed = self.fail(error) => failed?,
                },
            }
        }
    }

    fn head(&self) -> Head {
        let view = self.chain.view();
        let safe = view
            .safe()
            .map_or(self.rollup.genesis.l2.number, |safe| safe.number);
        Head {
            id: view.head(),
            time: view.header().timestamp,
            safe,
        }
    }

    /// Begins a block on the head.
    async fn start(&mut self) -> Result<(), SequencerError> {
        let parent = self.newest()?;
        let parent_ref = L2BlockRef::of(&parent, &self.rollup.genesis)?;
        let time = parent.timestamp().saturating_add(self.rollup.block_time);
        let recover = self.config.recover;
        self.origins.confirm(parent_ref.origin).await?;
        if let Some(hash) = self.sent_before(&parent, parent_ref.origin).await? {
            self.job = Some(Job::Again(self.fetch_sent(hash)?));
            self.schedule.started(parent.id(), time);
            return Ok(());
        }
        let origin = self
            .origins
            .choose(&self.rollup, time, parent_ref.origin, recover)
            .await?;
        let receipts = match origin.id() == parent_ref.origin {
            true => None,
            false => Some(self.origins.receipts(&origin).await?),
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
        let id = self.chain.start(parent.hash, derived.attributes).await?;
        self.job = Some(Job::Build(id));
        self.schedule.started(parent.id(), time);
        Ok(())
    }

    /// The child of `parent` that must be used because it was sent to the signer before, or came from peers and was abandoned: blocks from
    /// peers carry our key's signature. `epoch` is the parent's L1 origin, which is canonical.
    async fn sent_before(
        &mut self,
        parent: &Payload,
        epoch: BlockId,
    ) -> Result<Option<B256>, SequencerError> {
        let number = parent.number() + 1;
        let sent = self.chain.signed(number, parent.hash)?;
        let mut guards = Vec::new();
        for payload in self.chain.logged_children(number, parent.hash)? {
            if let Ok(L2BlockRef { origin, .. }) = L2BlockRef::of(&payload, &self.rollup.genesis)
                && sent.iter().all(|guard| guard.hash != payload.hash)
            {
                guards.push(Guard {
                    l1_origin: origin.hash,
                    hash: payload.hash,
                    turn: 0,
                });
            }
        }
        guards.extend(sent);
        let mut next = NextL1::NotAsked;
        loop {
            match waiting::turn(&guards, epoch.hash, next) {
                Turn::Build => {
                    return match guards.last() {
                        Some(last) => self.confirm_reorg(parent.hash, last.hash).map(|()| None),
                        None => Ok(None),
                    };
                }
                Turn::Again(hash) => {
                    self.reorganised = None;
                    return Ok(Some(hash));
                }
                Turn::AskNext => {
                    next = self
                        .origins
                        .after(epoch)
                        .await?
                        .map_or(NextL1::Missing, NextL1::Known)
                }
                Turn::Unknown(hash) => {
                    return Err(SequencerError::OriginAhead(BlockId {
                        number: epoch.number + 1,
                        hash,
                    }));
                }
            }
        }
    }

    /// Fails until L1 has contradicted the origins of all blocks on `parent` that may be signed [`CONFIRMATIONS`] times in a row: one
    /// stale answer must not lead to a second signed block.
    fn confirm_reorg(&mut self, parent: B256, last: B256) -> Result<(), SequencerError> {
        let times = 1 + self
            .reorganised
            .take_if(|(on, _)| *on == parent)
            .map_or(0, |(_, times)| times);
        if times < CONFIRMATIONS {
            self.reorganised = Some((parent, times));
            return Err(SequencerError::SignedBlockReorganised(last));
        }
        Ok(())
    }

    fn fetch_sent(&mut self, hash: B256) -> Result<Arc<Payload>, SequencerError> {
        let found = match self.chain.payload(hash) {
            Err(ChainError::Stopped) => return Err(ChainError::Stopped.into()),
            Err(error) => {
                tracing::warn!(%hash, %error, "a block in the payload log cannot be read");
                None
            }
            Ok(found) => found,
        };
        let payload = found.ok_or(SequencerError::SignedBlockLost(hash))?;
        if self.waiting.replace(hash) != Some(hash) {
            tracing::warn!(number = payload.number(), %hash, "a block of this height may have been signed before; it is used again");
        }
        Ok(payload)
    }

    /// Ends the open block: seal, log, sign, publish, move the head.
    async fn seal(&mut self) -> Result<(), SequencerError> {
        let payload = match self.job.take() {
            Some(Job::Build(id)) => self.chain.seal(id).await?.payload.clone(),
            Some(Job::Again(payload)) => {
                self.insert_sent(&payload).await?;
                payload
            }
            None => {
                self.schedule.closed();
                return Ok(());
            }
        };
        let origin = L2BlockRef::of(&payload, &self.rollup.genesis)?.origin;
        self.chain
            .log_before_sign(payload.clone(), origin.hash)
            .await?;
        self.waiting = Some(payload.hash);
        self.publish(payload.clone()).await?;
        self.term.made(payload.hash);
        self.chain.forkchoice(payload.hash, None, None).await?;
        self.schedule.closed();
        (self.complaint, self.waiting) = (None, None);
        tracing::info!(
            number = payload.number(),
            hash = %payload.hash,
            transactions = payload.transactions.len(),
            l1_origin = origin.number,
            ahead = payload.timestamp() as i64 - now().as_secs() as i64,
            "made a block"
        );
        Ok(())
    }

    /// Executes a block that was sent to the signer before, unless the chain has it.
    async fn insert_sent(&self, payload: &Arc<Payload>) -> Result<(), SequencerError> {
        let hash = payload.hash;
        match self
            .chain
            .insert(payload.clone(), Provenance::Imported)
            .await?
        {
            Inserted::Valid => Ok(()),
            Inserted::Invalid { reason, .. } => {
                Err(SequencerError::SignedBlockInvalid { hash, reason })
            }
            Inserted::Syncing => Err(SequencerError::SignedBlockWaits {
                hash,
                reason: "its parent is not known",
            }),
            Inserted::NoRoom => Err(SequencerError::SignedBlockWaits {
                hash,
                reason: "there is no room for it",
            }),
        }
    }

    /// Publishes the head again at start, since it may have been logged but not published before the last stop. The head may also have come
    /// from a peer, so it needs a guard row before it is signed here. It is not published if another block of its height was sent to the
    /// signer last, or if its L1 origin is gone.
    async fn publish_newest(&mut self) -> Result<(), SequencerError> {
        let newest = self.newest()?;
        let age = now().as_secs().saturating_sub(newest.timestamp());
        if newest.number() <= self.rollup.genesis.l2.number || age >= GOSSIP_AGE {
            return Ok(());
        }
        let (number, hash) = (newest.number(), newest.hash);
        let Ok(L2BlockRef { origin, .. }) = L2BlockRef::of(&newest, &self.rollup.genesis) else {
            return Ok(());
        };
        if let Some(other) = self
            .chain
            .signed(number, newest.parent_hash())?
            .last()
            .filter(|last| last.hash != hash)
        {
            tracing::warn!(number, %hash, signed = %other.hash, "another block of the head's height was signed here: the head is not published again");
            return Ok(());
        }
        if let Ok(Ok(Standing::Gone { canonical })) =
            timeout(origins::OPTIONAL, self.origins.standing(origin)).await
        {
            tracing::warn!(number, %hash, %origin, %canonical, "the head's L1 origin is no longer canonical: the head is not published again");
            return Ok(());
        }
        match self
            .chain
            .log_before_sign(newest.clone(), origin.hash)
            .await
        {
            // Another block of this parent and L1 origin has been logged since the check above.
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
        let signature = signature.map_err(|cause| SequencerError::Unsigned {
            number: payload.number(),
            cause,
        })?;
        network.publish(payload, signature).await;
        Ok(())
    }

    /// A peer has sent a block that our key has signed. If it was not made here, another sequencer has, or had, the key.
    fn on_witnessed(&mut self, block: &Payload) -> Result<(), SequencerError> {
        let (number, hash) = (block.number(), block.hash);
        let is_ours = || {
            Ok::<_, ChainError>(
                self.chain
                    .signed(number, block.parent_hash())?
                    .iter()
                    .any(|own| own.hash == hash),
            )
        };
        if !self.schedule.active() || is_ours()? {
            return Ok(());
        }
        metrics::counter!("starling_sequencer_foreign_blocks_total").increment(1);
        let Some(evidence) = self.term.judge(block) else {
            if self.term.first_late() {
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

    fn newest(&self) -> Result<Arc<Payload>, SequencerError> {
        let view = self.chain.view();
        let head = view.head();
        view.payload(head.number)?
            .ok_or(SequencerError::NoHead(head))
    }

    fn close(&mut self) {
        self.job = None;
        self.schedule.closed();
    }

    async fn fail(&mut self, mut error: SequencerError) -> Result<(), SequencerError> {
        self.close();
        if matches!(error.consequence(), Consequence::Confirm) {
            self.gone += 1;
            if self.gone >= CONFIRMATIONS {
                self.gone = 0;
                match self.go_back().await {
                    Ok(()) => {
                        self.schedule.failed(now(), Failure::Temporary);
                        return Ok(());
                    }
                    Err(other) => error = other,
                }
            }
        }
        let (failure, is_lasting) = match error.consequence() {
            Consequence::Retry(failure) => (failure, true),
            // While the check is repeated, a failure that was reported before is not reported again.
            Consequence::Confirm => (Failure::Temporary, self.complaint.is_none()),
            Consequence::End => return Err(error),
        };
        self.schedule.failed(now(), failure);
        let complaint = error.to_string();
        if is_lasting && self.complaint.as_ref() != Some(&complaint) {
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
                    self.term = Term::new(now().as_secs());
                    self.activate(true, None);
                }
                let _ = reply.send(result);
            }
            Command::Stop { reply } => {
                let result = if self.schedule.active() {
                    Ok(head.hash)
                } else {
                    Err(ControlError::NotRunning)
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
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
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
