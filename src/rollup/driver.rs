//! The driver: derives the safe chain from L1, holds the unsafe chain against it and moves the heads.
//!
//! A thin loop around pure parts. The [`Pipeline`] names the next input or attributes, [`consolidates`]
//! compares them with the unsafe block, [`Finality`] proposes the final block, [`StartSearch`] finds the
//! heads to begin from. The driver uses the core through [`Engine`] alone. Blocks of the swarm and of
//! the sequencer reach the core without it; a derived block overrides them, never the reverse. A failed
//! read of L1 is retried and never changes the derived chain. One block is in flight at a time.

mod backoff;
mod reader;

pub use reader::{L1ReadError, L1Reader};

use crate::{
    chain::ChainError,
    rollup::{
        engine::{BlockAt, Engine},
        finality::{Finality, FinalityCandidate, SafeBlock},
        l1::{L1Block, L1Heads},
        metrics::DerivationMetrics,
        safe_db::{SafeDb, SafeDbError},
        start::{StartHeads, StartSearch, StartSearchError},
        status::RollupStatus,
    },
};
use backoff::Backoff;
use starling_proto::{
    config::RollupConfig,
    consolidate::consolidates,
    derive::{
        CriticalError, DerivedAttributes, L1Link, Need, Pipeline, PipelineStep, PushError,
        ResetReason,
    },
    fork::BlobSchedule,
    l1info::{L1InfoError, L2BlockRef},
    payload::{BlockId, Payload},
};
use std::sync::Arc;
use tokio::{
    runtime::{Handle, RuntimeFlavor},
    sync::watch,
};
use tokio_util::sync::CancellationToken;

/// Blocks that the unsafe head is lowered by at once: the core keeps undo records in memory for as many.
const LOWERED_AT_ONCE: u64 = 16_000;

/// Options of derivation.
#[derive(Clone, Copy, Debug)]
pub struct DriverConfig {
    /// L1 blocks to stay behind L1's head (`--verifier.l1-confs`).
    pub l1_confs: u64,
    /// `--finality.lookback`, L1 blocks.
    pub finality_lookback: usize,
    /// `--finality.delay`, L1 blocks.
    pub finality_delay: u64,
    /// `--l2.skip-sync-start-check`.
    pub skip_start_check: bool,
}

/// The parts of the node that the driver works with.
pub struct DriverParts {
    pub rollup: Arc<RollupConfig>,
    /// L1's schedule of blob parameters.
    pub schedule: BlobSchedule,
    pub engine: Engine,
    pub l1: L1Reader,
    pub l1_heads: watch::Receiver<L1Heads>,
    pub records: SafeDb,
}

/// Why derivation ends. The node goes on: its unsafe chain is served and followed.
#[derive(Debug, thiserror::Error)]
pub enum DriverError {
    #[error(transparent)]
    Chain(#[from] ChainError),
    #[error(transparent)]
    Critical(#[from] CriticalError),
}

impl DriverError {
    /// Whether the chain itself has failed, and with it the node.
    pub fn is_chain_failure(&self) -> bool {
        matches!(self, Self::Chain(_))
    }
}

/// Why a step failed.
#[derive(Debug, thiserror::Error)]
enum DriverStepError {
    /// A later attempt may succeed.
    #[error(transparent)]
    L1(#[from] L1ReadError),
    #[error(transparent)]
    Start(#[from] StartSearchError),
    #[error(transparent)]
    Chain(#[from] ChainError),
    #[error("safe heads cannot be recorded: {0}")]
    Records(#[from] SafeDbError),
    #[error(transparent)]
    Critical(#[from] CriticalError),
    #[error(transparent)]
    Push(#[from] PushError),
    #[error("block {block}: {error}")]
    Block { block: BlockId, error: L1InfoError },
    #[error("the head moved while the start of derivation was searched")]
    Moved,
    /// Heads or L1 have changed under the pipeline.
    #[error("{0}")]
    Reset(String),
}

/// The loop's next action.
enum NextAction {
    Again,
    /// Everything is derived; L1 has no block of this number yet.
    WaitForL1(u64),
}

/// A handle to the running driver.
#[derive(Clone, Debug)]
pub struct DriverHandle {
    /// Changed by every request to start over.
    resets: watch::Sender<()>,
    status: watch::Receiver<RollupStatus>,
}

/// The driver has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("derivation has ended; the log says why")]
pub struct DriverEnded;

impl DriverHandle {
    /// Starts derivation over from the safe head (`admin_resetDerivationPipeline`). Returns at once:
    /// the driver does it before its next step, however long L1 holds up the present one.
    pub fn reset(&self) -> Result<(), DriverEnded> {
        self.resets.send(()).map_err(|_| DriverEnded)
    }

    pub fn status(&self) -> RollupStatus {
        *self.status.borrow()
    }
}

/// The state of the driver's loop. Made by [`RollupDriver::new`], consumed by [`RollupDriver::run`].
pub struct RollupDriver {
    config: DriverConfig,
    rollup: Arc<RollupConfig>,
    engine: Engine,
    l1: L1Reader,
    l1_heads: watch::Receiver<L1Heads>,
    records: SafeDb,
    pipeline: Pipeline,
    finality: Finality,
    /// Attributes without a result yet.
    attributes: Option<Arc<DerivedAttributes>>,
    /// The newest local-safe block.
    safe: Option<L2BlockRef>,
    /// The newest local-safe block, not yet promoted in the core. Promotion happens once per L1 block.
    awaiting_promotion: Option<SafeBlock>,
    finalized: Option<L2BlockRef>,
    /// The unsafe head that a block inside a span batch replaced, reinstated if a later block of the
    /// span is invalid. It need not survive a restart, which derives the span again.
    displaced_head: Option<BlockId>,
    /// Heads, L1 or an operator demand a reset.
    start_over: bool,
    backoff: Backoff,
    resets: watch::Receiver<()>,
    status: watch::Sender<RollupStatus>,
    metrics: DerivationMetrics,
}

impl RollupDriver {
    pub fn new(config: DriverConfig, parts: DriverParts) -> (Self, DriverHandle) {
        let (sender, resets) = watch::channel(());
        let (status, watched) = watch::channel(RollupStatus::default());
        let driver = Self {
            config,
            pipeline: Pipeline::new(parts.rollup.clone(), parts.schedule),
            rollup: parts.rollup,
            engine: parts.engine,
            l1: parts.l1,
            l1_heads: parts.l1_heads,
            records: parts.records,
            finality: Finality::new(config.finality_lookback, config.finality_delay),
            attributes: None,
            safe: None,
            awaiting_promotion: None,
            finalized: None,
            displaced_head: None,
            start_over: false,
            backoff: Backoff::default(),
            resets,
            status,
            metrics: DerivationMetrics::new(),
        };
        let handle = DriverHandle {
            resets: sender,
            status: watched,
        };
        (driver, handle)
    }

    /// Derives until the token is cancelled. An error says why derivation cannot go on.
    pub async fn run(mut self, token: CancellationToken) -> Result<(), DriverError> {
        let ended = self.derive(token).await;
        if ended.is_err() {
            // The chain goes on without derivation, also where L1 reverts what was derived.
            let _ = self.engine.protect(None).await;
        }
        ended
    }

    async fn derive(&mut self, token: CancellationToken) -> Result<(), DriverError> {
        loop {
            self.publish_status();
            let next = tokio::select! {
                biased;
                () = token.cancelled() => return Ok(()),
                next = self.step() => next,
            };
            let waited = match next {
                Ok(NextAction::Again) => {
                    self.backoff.reset();
                    self.metrics.set_idle(false);
                    self.notice_reset();
                    // A step may compute without awaiting.
                    tokio::task::yield_now().await;
                    continue;
                }
                Ok(NextAction::WaitForL1(next)) => {
                    self.backoff.reset();
                    self.metrics.set_idle(true);
                    token.run_until_cancelled(self.wait_for_l1(next)).await
                }
                Err(error) => {
                    let pause = self.on_step_error(error)?;
                    let pause = tokio::time::timeout(pause, requested(&self.resets));
                    token.run_until_cancelled(pause).await.map(drop)
                }
            };
            if waited.is_none() {
                return Ok(());
            }
            self.notice_reset();
        }
    }

    /// Logs a failed step. Returns the pause before the next one, or the error that ends derivation.
    fn on_step_error(
        &mut self,
        error: DriverStepError,
    ) -> Result<std::time::Duration, DriverError> {
        let pause = self.backoff.next();
        match error {
            DriverStepError::Chain(error) if error.is_fatal() => return Err(error.into()),
            DriverStepError::Start(StartSearchError::Chain(error)) if error.is_fatal() => {
                return Err(error.into());
            }
            DriverStepError::Critical(error) => return Err(error.into()),
            DriverStepError::Reset(reason) => {
                tracing::warn!(reason, "derivation starts over");
                self.start_over = true;
            }
            DriverStepError::Chain(ChainError::NotOnBranch { block, head }) => {
                tracing::warn!(%block, %head, "the derived block is no longer on the chain; derivation starts over");
                self.start_over = true;
            }
            error => {
                self.metrics.errors.record(1);
                tracing::warn!(%error, ?pause, "a step of derivation failed; it is tried again");
            }
        }
        Ok(pause)
    }

    /// Starts over before the next step if an operator has asked for it.
    fn notice_reset(&mut self) {
        if self.resets.has_changed().unwrap_or(false) {
            self.resets.mark_unchanged();
            tracing::warn!("an operator starts derivation over");
            self.start_over = true;
        }
    }

    /// Runs one pipeline step and carries out its result.
    async fn step(&mut self) -> Result<NextAction, DriverStepError> {
        if self.start_over {
            self.reset().await?;
            return Ok(NextAction::Again);
        }
        if self.attributes.is_some() {
            self.apply_attributes().await?;
            return Ok(NextAction::Again);
        }
        let step = beside_the_runtime(|| self.pipeline.step());
        self.count_progress();
        match step {
            PipelineStep::More => {}
            PipelineStep::Need(need) => return self.fetch(need).await,
            PipelineStep::Attributes(derived) => self.attributes = Some(derived.into()),
            PipelineStep::Unanswered => {
                return Err(DriverStepError::Reset(
                    "attributes were left without a result".into(),
                ));
            }
            PipelineStep::Idle { origin, next } => {
                self.end_l1_block().await?;
                let Some(origin) = origin else {
                    return Ok(NextAction::WaitForL1(next));
                };
                self.finality.on_idle();
                self.finalize(origin).await?;
                if !self.has_confirmations(next) {
                    return Ok(NextAction::WaitForL1(next));
                }
                return self.next_l1(next, L1Link::ChildOf(origin.hash)).await;
            }
            PipelineStep::Reset(ResetReason::Start) => self.reset().await?,
            // Not at once: endpoints behind one address may follow different branches of L1.
            PipelineStep::Reset(reason) => return Err(DriverStepError::Reset(reason.to_string())),
            PipelineStep::Critical(error) => return Err(error.into()),
        }
        Ok(NextAction::Again)
    }

    /// Fetches what the pipeline needs.
    async fn fetch(&mut self, need: Need) -> Result<NextAction, DriverStepError> {
        match need {
            Need::L1Block { number, link } => return self.next_l1(number, link).await,
            Need::Blobs { block, blobs } => {
                let data = self.l1.blobs(&block, &blobs).await?;
                self.pipeline.push_blobs(block.hash, &data)?;
            }
            Need::L2Block { number, hash } => {
                if let Some(pending) = self.pipeline.pending_safe().filter(|_| hash.is_none()) {
                    // A block by its number is one of the safe chain only while all of it is in the
                    // chain.
                    self.engine.protect(Some(pending.id.hash)).await?.await?;
                }
                let at = hash.map_or(BlockAt::Number(number), BlockAt::Hash);
                let block = self.engine.block(at).await?.ok_or_else(|| {
                    DriverStepError::Reset(format!(
                        "block {number} of the safe chain is not in the chain"
                    ))
                })?;
                self.pipeline.push_l2(block)?;
            }
        }
        Ok(NextAction::Again)
    }

    /// Moves on to an L1 block, if L1 has it and it is deep enough below L1's head.
    async fn next_l1(&mut self, number: u64, link: L1Link) -> Result<NextAction, DriverStepError> {
        self.end_l1_block().await?;
        let input = match link {
            L1Link::Hash(hash) => self.l1.input_by_hash(hash).await?.ok_or_else(|| {
                DriverStepError::Reset(format!("L1 no longer has block {number} ({hash})"))
            })?,
            L1Link::ChildOf(_) if self.has_confirmations(number) => {
                let head = self
                    .l1_heads
                    .borrow()
                    .head
                    .map_or(number, |head| head.number);
                // A block that is fetched before it has its confirmations may be gone when it has.
                let deep = head.saturating_sub(self.config.l1_confs);
                self.l1.input(number, deep).await?
            }
            L1Link::ChildOf(_) => {
                self.pipeline.no_l1_yet();
                return Ok(NextAction::Again);
            }
        };
        let block = input.block.id();
        self.pipeline.push_l1(input)?;
        self.finalize(block).await?;
        Ok(NextAction::Again)
    }

    /// Everything in the pipeline's L1 origin is derived.
    async fn end_l1_block(&mut self) -> Result<(), DriverStepError> {
        self.promote().await?;
        if let Some(origin) = self.pipeline.origin().copied() {
            self.status
                .send_modify(|status| status.current_l1 = Some(origin));
        }
        Ok(())
    }

    /// Whether an L1 block is deep enough below L1's head to be derived from.
    fn has_confirmations(&self, number: u64) -> bool {
        let head = self.l1_heads.borrow().head;
        head.is_some_and(|head| number.saturating_add(self.config.l1_confs) <= head.number)
    }

    /// Waits until L1 may have the block of this number, or has replaced the origin, or has a new
    /// finalized block.
    async fn wait_for_l1(&mut self, next: u64) {
        let origin = self.pipeline.origin().copied().unwrap_or_default();
        loop {
            let heads = *self.l1_heads.borrow_and_update();
            self.publish_status();
            if self.has_confirmations(next) {
                return;
            }
            let replaced =
                |head: &L1Block| head.number == origin.number && head.hash != origin.hash;
            if heads.head.as_ref().is_some_and(replaced) {
                tracing::warn!(%next, origin = %origin.id(), "L1 reorg: the block that was derived last is gone");
                self.start_over = true;
                return;
            }
            if heads
                .finalized
                .is_some_and(|block| self.finality.is_news(block.id()))
            {
                return;
            }
            tokio::select! {
                changed = self.l1_heads.changed() => if changed.is_err() { return std::future::pending().await },
                () = requested(&self.resets) => return,
            }
        }
    }

    /// Consolidates the unsafe block with the derived attributes, or builds a block with them. They are
    /// kept until that has succeeded or the block is invalid.
    async fn apply_attributes(&mut self) -> Result<(), DriverStepError> {
        let Some(derived) = self.attributes.clone() else {
            return Ok(());
        };
        for error in &derived.ignored {
            tracing::warn!(l1_block = %derived.derived_from.hash, %error, "a configuration log on L1 has no effect");
        }
        let (parent, head) = (derived.parent.id, self.engine.heads().borrow().head);
        if head.number < parent.number {
            let reason = format!("the head {head} is below the pending safe block {parent}");
            return Err(DriverStepError::Reset(reason));
        }
        if head.number > parent.number {
            let number = parent.number.saturating_add(1);
            let block = self.engine.block(BlockAt::Number(number)).await?;
            let block = block.ok_or_else(|| {
                DriverStepError::Reset(format!("the unsafe block {number} is not in the chain"))
            })?;
            match consolidates(&self.rollup, parent.hash, &derived.attributes, &block) {
                Ok(()) => return self.accept(block, &derived).await,
                Err(mismatch) => {
                    tracing::warn!(unsafe_block = %block.id(), pending_safe = %parent, %mismatch, "L2 reorg: existing unsafe block does not match derived attributes from L1");
                }
            }
            if !derived.concluding {
                self.displaced_head.get_or_insert(head);
            }
        }
        let attributes = derived.attributes.clone();
        match self.engine.build_at_once(parent.hash, attributes).await {
            Ok(block) => {
                self.make_canonical(&block).await?;
                self.accept(block, &derived).await
            }
            Err(ChainError::Build(reason)) => self.reject(&derived, &reason).await,
            // The unsafe head is so far above that the core keeps no state of the parent.
            Err(ChainError::UnknownBlock(unknown)) if unknown == parent.hash => {
                self.lower_head(parent).await
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Makes a derived block the head, unless it is canonical already: the swarm may have brought it, and
    /// blocks on it, in the meantime.
    async fn make_canonical(&self, block: &Payload) -> Result<(), DriverStepError> {
        let canonical = self.engine.block(BlockAt::Number(block.number())).await?;
        if canonical.is_some_and(|canonical| canonical.hash == block.hash) {
            return Ok(());
        }
        Ok(self.engine.forkchoice(block.hash, None, None).await?)
    }

    /// Lowers the unsafe head towards `to`, by a bounded number of blocks.
    async fn lower_head(&self, to: BlockId) -> Result<(), DriverStepError> {
        let head = self.engine.heads().borrow().head;
        let number = to.number.max(head.number.saturating_sub(LOWERED_AT_ONCE));
        let block = self.engine.block(BlockAt::Number(number)).await?;
        let block = block.ok_or(StartSearchError::Missing(number))?;
        tracing::warn!(%head, to = %block.id(), "the unsafe head is lowered to override its chain");
        Ok(self.engine.forkchoice(block.hash, None, None).await?)
    }

    /// The block with the derived attributes is in the chain. From here on no block of the swarm or
    /// of the sequencer takes it off the chain.
    async fn accept(
        &mut self,
        block: Arc<Payload>,
        derived: &DerivedAttributes,
    ) -> Result<(), DriverStepError> {
        let safe = self.reference(&block)?;
        // A block that has left the chain since is found by the next step.
        drop(self.engine.protect(Some(block.hash)).await?);
        let (number, origin) = (safe.id.number, safe.origin.number);
        self.pipeline.accepted(block)?;
        self.attributes = None;
        if derived.concluding {
            let derived_from = derived.derived_from.id();
            tracing::debug!(number, hash = %safe.id.hash, origin, derived_from = derived_from.number, "a block is safe");
            self.safe = Some(safe);
            self.awaiting_promotion = Some(SafeBlock {
                l2: safe.id,
                derived_from,
            });
            self.displaced_head = None;
        }
        Ok(())
    }

    /// The core finds the block with the derived attributes invalid.
    async fn reject(
        &mut self,
        derived: &DerivedAttributes,
        reason: &str,
    ) -> Result<(), DriverStepError> {
        tracing::warn!(parent = %derived.parent.id, derived_from = %derived.derived_from.id(), reason, deposits_only = derived.deposits_only, "a derived block is invalid");
        self.pipeline.invalid()?;
        self.attributes = None;
        let back = self.pipeline.pending_safe().map(|pending| pending.id);
        // Blocks of the same span batch above it are no longer derived.
        self.engine
            .protect(back.map(|back| back.hash))
            .await?
            .await?;
        match self.displaced_head.take() {
            Some(head) if back != Some(derived.parent.id) => {
                tracing::warn!(%head, "the unsafe head is reinstated");
                Ok(self.engine.forkchoice(head.hash, None, None).await?)
            }
            _ => Ok(()),
        }
    }

    /// Makes the newest local-safe block the core's safe head, and records it.
    async fn promote(&mut self) -> Result<(), DriverStepError> {
        let Some(block) = self.awaiting_promotion else {
            return Ok(());
        };
        // Recorded first: a restart goes on at the newest record, which must not be below the core's
        // safe head.
        let records = self.records.clone();
        write_to_disk(move || records.record(block)).await?;
        self.engine.promote(Some(block.l2.hash), None).await?;
        self.awaiting_promotion = None;
        self.finality.on_safe(block);
        tracing::info!(number = block.l2.number, hash = %block.l2.hash, derived_from = block.derived_from.number, "safe head");
        Ok(())
    }

    /// Finalizes what L1's finalized block allows. `derived` is the pipeline's current L1 origin.
    async fn finalize(&mut self, derived: BlockId) -> Result<(), DriverStepError> {
        if let Some(finalized) = self.l1_heads.borrow().finalized {
            self.finality.on_finalized_l1(finalized.id());
        }
        let Some(FinalityCandidate {
            block,
            finalized_l1,
        }) = self.finality.candidate(derived)
        else {
            return Ok(());
        };
        for l1 in [finalized_l1, block.derived_from] {
            if self.l1.canonical_hash(l1.number).await? != l1.hash {
                self.finality.attempted(derived, None);
                let reason = format!(
                    "L1 block {l1} is not canonical, and a block derived from it was to be finalized"
                );
                return Err(DriverStepError::Reset(reason));
            }
        }
        self.engine.promote(None, Some(block.l2.hash)).await?;
        self.finality.attempted(derived, Some(block.l2));
        self.finalized = self.reference_at(block.l2.number).await?;
        tracing::info!(number = block.l2.number, hash = %block.l2.hash, finalized_l1 = finalized_l1.number, "finalized head");
        Ok(())
    }

    /// Finds the heads, moves the core to them and starts the pipeline from the safe one.
    async fn reset(&mut self) -> Result<(), DriverStepError> {
        self.metrics.resets.record(1);
        (self.awaiting_promotion, self.displaced_head, self.safe) = (None, None, None);
        self.attributes = None;
        self.status.send_modify(|status| {
            (status.current_l1, status.pending_safe_l2, status.safe_l2) = (None, None, None);
        });
        let search = StartSearch {
            rollup: &self.rollup,
            engine: &self.engine,
            l1: self.l1.client(),
            records: &self.records,
            skip_check: self.config.skip_start_check,
        };
        let heads = search.run().await?;
        // Blocks above it are derived again, and may turn out to be others.
        let safe = Some(heads.safe.id.hash);
        self.engine.protect(safe).await?.await?;
        self.move_heads(&heads).await?;
        let StartHeads {
            head,
            safe,
            finalized,
            first_l1,
            ..
        } = heads;
        let block = self.engine.block(BlockAt::Hash(safe.id.hash)).await?;
        let block = block.ok_or(StartSearchError::Missing(safe.id.number))?;
        self.finality.reset();
        self.l1.on_reset();
        self.pipeline.reset_from(block, first_l1);
        (self.safe, self.finalized) = (Some(safe), Some(finalized));
        self.start_over = false;
        tracing::info!(head = %head.id, safe = %safe.id, finalized = %finalized.id, "derivation begins");
        Ok(())
    }

    /// Moves the core's heads, and the record of safe heads, to where derivation begins.
    async fn move_heads(&self, heads: &StartHeads) -> Result<(), DriverStepError> {
        let StartHeads {
            head,
            safe,
            searched,
            ..
        } = *heads;
        let now = *self.engine.heads().borrow();
        if head.id != searched {
            if now.head != searched {
                return Err(DriverStepError::Moved);
            }
            tracing::warn!(head = %searched, to = %head.id, "L1 reorg: the head goes back to the last block whose L1 origin is canonical");
            let safe = Some(safe.id.hash);
            self.engine.forkchoice(head.id.hash, safe, None).await?;
        } else if now.safe != Some(safe.id) {
            self.engine.promote(Some(safe.id.hash), None).await?;
        }
        let records = self.records.clone();
        let genesis = self.rollup.genesis.l2;
        write_to_disk(move || {
            records.reset(safe.id, safe.origin)?;
            // Genesis is safe by definition.
            if safe.id == genesis && records.is_empty() {
                let (l2, derived_from) = (safe.id, safe.origin);
                records.record(SafeBlock { l2, derived_from })?;
            }
            Ok(())
        })
        .await?;
        Ok(())
    }

    fn reference(&self, block: &Payload) -> Result<L2BlockRef, DriverStepError> {
        L2BlockRef::of(block, &self.rollup.genesis).map_err(|error| DriverStepError::Block {
            block: block.id(),
            error,
        })
    }

    async fn reference_at(&self, number: u64) -> Result<Option<L2BlockRef>, DriverStepError> {
        let block = self.engine.block(BlockAt::Number(number)).await?;
        block.map(|block| self.reference(&block)).transpose()
    }

    /// Publishes the heads.
    fn publish_status(&mut self) {
        let L1Heads {
            head,
            safe,
            finalized,
        } = *self.l1_heads.borrow();
        let changed = self.status.send_if_modified(|status| {
            let new = RollupStatus {
                head_l1: head,
                safe_l1: safe,
                finalized_l1: finalized,
                pending_safe_l2: self.pipeline.pending_safe(),
                safe_l2: self.safe,
                finalized_l2: self.finalized,
                ..*status
            };
            std::mem::replace(status, new) != new
        });
        if changed {
            let status = *self.status.borrow();
            self.metrics.on_status(&status);
        }
    }

    fn count_progress(&mut self) {
        let (reads, drops) = (self.pipeline.drain_reads(), self.pipeline.drain_drops());
        self.metrics.on_progress(&reads, &drops);
        for (reason, count) in drops.iter() {
            metrics::counter!("starling_derivation_dropped_total", "reason" => reason.label())
                .increment(count);
            tracing::warn!(
                reason = reason.label(),
                count,
                "derivation drops batcher data"
            );
        }
    }
}

/// Waits for a request to start over, which stays for [`RollupDriver::notice_reset`].
async fn requested(resets: &watch::Receiver<()>) {
    let mut resets = resets.clone();
    if resets.changed().await.is_err() {
        std::future::pending().await
    }
}

/// Runs work that may take long without holding up other tasks of this thread of the runtime.
fn beside_the_runtime<T>(work: impl FnOnce() -> T) -> T {
    if Handle::current().runtime_flavor() == RuntimeFlavor::MultiThread {
        tokio::task::block_in_place(work)
    } else {
        work()
    }
}

/// Runs a write to disk beside the runtime.
async fn write_to_disk(
    write: impl FnOnce() -> Result<(), SafeDbError> + Send + 'static,
) -> Result<(), DriverStepError> {
    match tokio::task::spawn_blocking(write).await {
        Ok(written) => Ok(written?),
        Err(_) => Err(ChainError::Stopped.into()),
    }
}

#[cfg(test)]
mod tests;
