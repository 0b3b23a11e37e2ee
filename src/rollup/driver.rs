//! The driver: derives the safe chain from L1, holds the unsafe chain against it and moves the heads.
//!
//! A thin loop around pure parts. The [`Pipeline`] names the next input (`driver/l1_blocks.rs`) or
//! attributes, which are consolidated with the unsafe block or built (`driver/blocks.rs`). [`Finality`]
//! proposes the final block. A reset searches the heads to begin from (`driver/start.rs`). The driver
//! uses the core through [`Engine`] alone. Blocks of the swarm and of the sequencer reach the core
//! without it; a derived block overrides them, never the reverse. A failed read of L1 is retried and
//! never changes the derived chain. One block is in flight at a time.

mod backoff;
mod blobs_ahead;
mod blocks;
mod derived_l1;
mod l1_blocks;
mod reader;
mod reset;
mod start;

pub use reader::{L1ReadError, L1Reader};

use crate::{
    chain::ChainError,
    rollup::{
        engine::{BlockAt, Engine},
        finality::Finality,
        l1::L1Heads,
        metrics::DerivationMetrics,
        safe_db::{SafeBlock, SafeDb, SafeDbError},
        status::RollupStatus,
    },
};
use backoff::Backoff;
use derived_l1::DerivedL1;
use starling_proto::{
    config::RollupConfig,
    derive::{
        CriticalError, DerivedAttributes, L1Link, Pipeline, PipelineStep, PushError, ResetReason,
    },
    fork::BlobSchedule,
    l1info::{L1InfoError, L2BlockRef},
    payload::{BlockId, Payload},
};
use start::StartSearchError;
use std::sync::Arc;
use tokio::{
    runtime::{Handle, RuntimeFlavor},
    sync::watch,
};
use tokio_util::sync::CancellationToken;

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
    /// The L1 blocks that the pipeline has read.
    derived_l1: DerivedL1,
    /// Attributes without a result yet.
    attributes: Option<Arc<DerivedAttributes>>,
    /// The newest local-safe block.
    safe: Option<L2BlockRef>,
    /// The newest local-safe block, not yet promoted in the core. Promotion happens once per L1 block.
    awaiting_promotion: Option<SafeBlock>,
    finalized: Option<L2BlockRef>,
    /// The unsafe head that a block inside a span batch replaced, reinstated if a later block of the
    /// span is invalid. It need not survive a restart, which derives the span again.
    displaced_head: Option<L2BlockRef>,
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
            derived_l1: DerivedL1::default(),
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
            PipelineStep::AwaitingVerdict => {
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

    /// Sets the unsafe head to reinstate if the rest of a span is invalid.
    fn set_displaced_head(&mut self, head: Option<L2BlockRef>) {
        self.displaced_head = head;
        self.metrics.set_backup_unsafe(head);
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
