//! The driver: derives the safe chain from L1, compares the unsafe chain with it and moves the
//! heads.
//!
//! A thin loop around pure parts. The [`Pipeline`] requests its next input (`driver/l1_blocks.rs`)
//! or returns attributes, which are consolidated with the unsafe block or built into a block
//! (`driver/blocks.rs`). [`Finality`] proposes the final block. A reset searches for the heads to
//! begin from (`driver/start.rs`). The driver uses the core through [`Engine`] alone. Blocks of the
//! swarm and of the sequencer reach the core without the driver; a derived block overrides them,
//! never the reverse. A failed read of L1 is retried and never changes the derived chain. One L2
//! block is built or consolidated at a time.
//!
//! RPC uses the driver through [`DriverHandle`]. A hostile batcher can cost time, bounded per
//! pipeline step, and log lines, one warning per L1 block (`driver/drop_report.rs`).

mod backoff;
mod blobs_ahead;
mod blocks;
mod derived_l1;
mod drop_report;
mod l1_blocks;
mod reader;
mod record_search;
mod reset;
mod start;

pub use reader::{L1ReadError, L1Reader};

use crate::{
    chain::{ChainError, execute::ExpectedTransactions},
    rollup::{
        engine::{BlockAt, CoreError, Engine},
        finality::Finality,
        l1::L1Heads,
        metrics::DerivationMetrics,
        safe_db::{SafeDb, SafeDbError, SafeRecord},
        status::RollupStatus,
    },
    telemetry::LoggedCauses,
};
use backoff::Backoff;
use derived_l1::DerivedL1;
use drop_report::DropReport;
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
use std::{sync::Arc, time::Instant};
use tokio::{runtime::Handle, sync::watch};
use tokio_util::sync::CancellationToken;

/// Warning about a failed step; also the name under which the end of the failure is logged.
const STEP_FAILED: &str = "a step of derivation failed; it is tried again";

/// Options of derivation.
#[derive(Clone, Copy, Debug)]
pub struct DriverConfig {
    /// Number of L1 blocks that derivation stays behind L1's head (`--verifier.l1-confs`).
    pub l1_confs: u64,
    /// `--finality.lookback`, in L1 blocks.
    pub finality_lookback: usize,
    /// `--finality.delay`, in L1 blocks.
    pub finality_delay: u64,
}

/// The parts of the node that the driver uses.
pub struct DriverParts {
    pub rollup: Arc<RollupConfig>,
    /// L1's schedule of blob parameters.
    pub schedule: BlobSchedule,
    pub engine: Engine,
    pub l1: L1Reader,
    pub l1_heads: watch::Receiver<L1Heads>,
    pub safe_db: SafeDb,
}

/// An error that ends derivation. Unless the local chain has failed, the node continues to follow
/// and serve its unsafe chain.
#[derive(Debug, thiserror::Error)]
pub enum DriverError {
    #[error(transparent)]
    Core(#[from] CoreError),
    #[error(transparent)]
    Critical(#[from] CriticalError),
}

impl DriverError {
    /// Whether the local chain has failed, which also ends the node.
    pub fn is_chain_failure(&self) -> bool {
        matches!(self, Self::Core(_))
    }
}

/// An error of a step. Fatal errors of the core and `Critical` end derivation. `Reset` and the
/// core's `NotOnBranch` reset the pipeline after a pause, and all other steps are retried after it.
#[derive(Debug, thiserror::Error)]
enum DriverStepError {
    #[error(transparent)]
    L1(#[from] L1ReadError),
    #[error(transparent)]
    Start(#[from] StartSearchError),
    #[error(transparent)]
    Core(#[from] CoreError),
    #[error("safe heads cannot be recorded: {0}")]
    Records(#[from] SafeDbError),
    #[error(transparent)]
    Critical(#[from] CriticalError),
    #[error(transparent)]
    Push(#[from] PushError),
    #[error(transparent)]
    Block(#[from] BlockRefError),
    /// The heads or L1 have changed, so that the pipeline's state is no longer valid.
    #[error("{0}")]
    Reset(String),
}

/// A block of the chain without a readable L1 origin.
#[derive(Debug, thiserror::Error)]
#[error("block {block}: {error}")]
pub struct BlockRefError {
    block: BlockId,
    error: L1InfoError,
}

/// The block's number, hash, L1 origin and sequence number. Fails if the block's first transaction
/// has no valid L1 info.
fn block_ref(block: &Payload, rollup: &RollupConfig) -> Result<L2BlockRef, BlockRefError> {
    L2BlockRef::of(block, &rollup.genesis).map_err(|error| BlockRefError {
        block: block.id(),
        error,
    })
}

/// The next action of the driver's loop.
enum NextAction {
    Again,
    /// All available L1 blocks are derived: wait until L1 may have the block of this number.
    WaitForL1(u64),
}

/// A handle to the running driver.
#[derive(Clone, Debug)]
pub struct DriverHandle {
    /// Marked as changed by every request to reset.
    resets: watch::Sender<()>,
    status: watch::Receiver<RollupStatus>,
}

/// Error of a call to a driver that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("derivation has ended; the log says why")]
pub struct DriverEnded;

impl DriverHandle {
    /// Resets derivation to the safe head (`admin_resetDerivationPipeline`). Returns at once. The
    /// driver resets after its current step; a wait for the next L1 block or for a retry ends
    /// early.
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
    safe_db: SafeDb,
    pipeline: Pipeline,
    finality: Finality,
    /// The L1 blocks that the pipeline has read.
    derived_l1: DerivedL1,
    /// Attributes that are not yet accepted or rejected.
    attributes: Option<Arc<DerivedAttributes>>,
    /// The newest derived block whose batch is complete (op-node: local safe). During a reset, the
    /// higher one of the core's safe head and the newest recorded safe block.
    local_safe: Option<L2BlockRef>,
    /// The safe head: the newest local-safe block that `safe_db` records. A restart continues from
    /// the newest record. After a reset, the safe block from which derivation begins.
    safe: Option<L2BlockRef>,
    /// The newest local-safe block, until [`RollupDriver::promote`] makes it the core's safe head.
    awaiting_promotion: Option<SafeRecord>,
    finalized: Option<L2BlockRef>,
    /// The expected transactions of the block after the current one, with senders being recovered.
    expected: Option<ExpectedTransactions>,
    /// The unsafe head that a block inside a span batch replaced (op-node: BackupUnsafeL2Head). If
    /// a later block of the span is invalid, this head is reinstated. It is not stored: a restart
    /// derives the span again.
    backup_unsafe: Option<L2BlockRef>,
    /// The safe block of the newest record, while derivation has begun after that record's L1 block
    /// and has derived no block yet. Until then nothing shows that the record's L1 block was applied
    /// whole.
    record_in_doubt: Option<BlockId>,
    /// Whether a record was removed because of that doubt. It happens once: the batches of a right
    /// record may be early too, and each removal lowers the safe head.
    has_doubted: bool,
    /// The next step is a reset. Set at start, and when the heads, L1 or an operator require a
    /// reset.
    reset_pending: bool,
    drops: DropReport,
    backoff: Backoff,
    /// Causes of failed steps that have been logged already.
    causes: LoggedCauses,
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
            safe_db: parts.safe_db,
            finality: Finality::new(config.finality_lookback, config.finality_delay),
            derived_l1: DerivedL1::default(),
            attributes: None,
            local_safe: None,
            safe: None,
            awaiting_promotion: None,
            finalized: None,
            expected: None,
            backup_unsafe: None,
            record_in_doubt: None,
            has_doubted: false,
            reset_pending: true,
            drops: DropReport::default(),
            backoff: Backoff::default(),
            causes: LoggedCauses::default(),
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

    /// Derives until the token is cancelled, or until an error ends derivation.
    ///
    /// The loop has a thread of its own, because a step may compute for long and because waking a
    /// thread for each block takes less time than waking a task.
    pub async fn run(mut self, token: CancellationToken) -> Result<(), DriverError> {
        let (runtime, engine) = (Handle::current(), self.engine.clone());
        let derive = move || runtime.block_on(self.derive(token));
        let ended = match tokio::task::spawn_blocking(derive).await {
            Ok(ended) => ended,
            Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
            // The task was cancelled: the runtime shuts down.
            Err(_) => Ok(()),
        };
        if ended.is_err() {
            // A remaining protection would restrict every later fork choice to the derived branch.
            let _ = engine.queue_protect(None).await;
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
                    self.on_step_done();
                    self.metrics.set_idle(false);
                    self.take_reset_request();
                    // A step may compute without awaiting.
                    tokio::task::yield_now().await;
                    continue;
                }
                Ok(NextAction::WaitForL1(next)) => {
                    self.on_step_done();
                    self.metrics.set_idle(true);
                    token.run_until_cancelled(self.wait_for_l1(next)).await
                }
                Err(error) => {
                    let pause = self.on_step_error(error)?;
                    let pause = tokio::time::timeout(pause, reset_requested(&self.resets));
                    token.run_until_cancelled(pause).await.map(drop)
                }
            };
            if waited.is_none() {
                return Ok(());
            }
            self.take_reset_request();
        }
    }

    /// Records a successful step: the next pause is short again.
    fn on_step_done(&mut self) {
        self.backoff.reset();
        if self.causes.note_success(STEP_FAILED, Instant::now()) {
            tracing::info!(warning = STEP_FAILED, "the cause of a warning is over");
        }
    }

    /// Logs a failed step, once for each cause. Returns the pause before the next step, or the
    /// error that ends derivation.
    fn on_step_error(
        &mut self,
        error: DriverStepError,
    ) -> Result<std::time::Duration, DriverError> {
        let pause = self.backoff.next();
        match error {
            DriverStepError::Core(error) if error.is_fatal() => return Err(error.into()),
            DriverStepError::Start(StartSearchError::Core(error)) if error.is_fatal() => {
                return Err(error.into());
            }
            DriverStepError::Critical(error) => return Err(error.into()),
            DriverStepError::Reset(reason) => {
                tracing::warn!(reason, "derivation is reset");
                self.reset_pending = true;
            }
            DriverStepError::Core(CoreError::Chain(ChainError::NotOnBranch { block, head })) => {
                tracing::warn!(%block, %head, "the derived block is no longer on the chain; derivation is reset");
                self.reset_pending = true;
            }
            error => {
                self.metrics.errors.record(1);
                let is_new =
                    self.causes
                        .note_failure(STEP_FAILED, &error.to_string(), Instant::now());
                if is_new {
                    tracing::warn!(%error, ?pause, "{STEP_FAILED}");
                } else {
                    tracing::debug!(%error, ?pause, "{STEP_FAILED}");
                }
            }
        }
        Ok(pause)
    }

    /// Handles an operator's request: derivation is reset before the next step.
    fn take_reset_request(&mut self) {
        if self.resets.has_changed().unwrap_or(false) {
            self.resets.mark_unchanged();
            tracing::warn!("an operator resets derivation");
            self.reset_pending = true;
        }
    }

    /// Runs one pipeline step and carries out its result.
    async fn step(&mut self) -> Result<NextAction, DriverStepError> {
        if self.reset_pending {
            self.reset().await?;
            return Ok(NextAction::Again);
        }
        if self.attributes.is_some() {
            self.apply_attributes().await?;
            return Ok(NextAction::Again);
        }
        let step = self.pipeline.step();
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
            PipelineStep::Reset(ResetReason::Start) => self.reset_pending = true,
            // Reset after a pause, since servers behind one address may follow different branches
            // of L1.
            PipelineStep::Reset(reason) => return Err(DriverStepError::Reset(reason.to_string())),
            PipelineStep::Critical(error) => return Err(error.into()),
        }
        Ok(NextAction::Again)
    }

    async fn block_ref_at(&self, number: u64) -> Result<Option<L2BlockRef>, DriverStepError> {
        let block = self.engine.block(BlockAt::Number(number)).await?;
        let block = block.map(|block| block_ref(&block, &self.rollup));
        Ok(block.transpose()?)
    }

    /// Sets the unsafe head that is reinstated if the rest of a span is invalid.
    fn set_backup_unsafe(&mut self, head: Option<L2BlockRef>) {
        self.backup_unsafe = head;
        self.metrics.set_backup_unsafe(head);
    }

    /// Publishes the heads. During a reset the pipeline's pending-safe head is out of date and not
    /// used.
    fn publish_status(&mut self) {
        let pending_safe_l2 = if self.reset_pending {
            self.local_safe
        } else {
            self.pipeline.pending_safe()
        };
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
                pending_safe_l2,
                local_safe_l2: self.local_safe,
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
            tracing::debug!(reason = reason.label(), count, "batcher data is dropped");
            self.drops.add(reason, count);
        }
    }

    /// Logs the batcher data that was dropped in the pipeline's L1 origin.
    fn report_drops(&mut self) {
        let is_of_safe_blocks = self.drops.is_of_safe_blocks();
        let Some(drops) = self.drops.take() else {
            return;
        };
        let l1_origin = self.pipeline.origin().map(|origin| origin.id());
        let l1_origin = l1_origin.map(tracing::field::display);
        if is_of_safe_blocks {
            tracing::info!(l1_origin, drops, "batches of blocks that are safe already");
        } else {
            tracing::warn!(l1_origin, drops, "derivation drops batcher data");
        }
    }
}

/// Waits for a request to reset without marking it as seen, so that
/// [`RollupDriver::take_reset_request`] still finds it.
async fn reset_requested(resets: &watch::Receiver<()>) {
    let mut resets = resets.clone();
    if resets.changed().await.is_err() {
        std::future::pending().await
    }
}

/// Reads or writes the records of safe heads on disk, on a blocking thread.
async fn access_records<T: Send + 'static>(
    access: impl FnOnce() -> Result<T, SafeDbError> + Send + 'static,
) -> Result<T, DriverStepError> {
    match tokio::task::spawn_blocking(access).await {
        Ok(accessed) => Ok(accessed?),
        Err(_) => Err(CoreError::from(ChainError::Stopped).into()),
    }
}

#[cfg(test)]
mod tests;
