//! The driver: derives the safe chain from L1, holds the unsafe chain against it and moves the heads.
//!
//! A thin loop around pure parts. The [`Pipeline`] names the next input (`driver/l1_blocks.rs`) or
//! attributes, which are consolidated with the unsafe block or built (`driver/blocks.rs`). [`Finality`]
//! proposes the final block. A reset searches the heads to begin from (`driver/start.rs`). The driver
//! uses the core through [`Engine`] alone. Blocks of the swarm and of the sequencer reach the core
//! without it; a derived block overrides them, never the reverse. A failed read of L1 is retried and
//! never changes the derived chain. One L2 block is built or consolidated at a time.
//!
//! RPC talks to it through [`DriverHandle`]. A hostile batcher can cost time, bounded per pipeline
//! step, and log lines, one warning per L1 block (`driver/drop_report.rs`).

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

/// Warning about a failed step, by which its end is named too.
const STEP_FAILED: &str = "a step of derivation failed; it is tried again";

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
    pub safe_db: SafeDb,
}

/// Error that ends derivation. The node goes on: its unsafe chain is served and followed.
#[derive(Debug, thiserror::Error)]
pub enum DriverError {
    #[error(transparent)]
    Core(#[from] CoreError),
    #[error(transparent)]
    Critical(#[from] CriticalError),
}

impl DriverError {
    /// Whether the chain itself has failed, and with it the node.
    pub fn is_chain_failure(&self) -> bool {
        matches!(self, Self::Core(_))
    }
}

/// Error of a step. Fatal errors of the core and `Critical` end derivation, `Reset` resets the
/// pipeline, all others are retried after a pause.
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
    /// Heads or L1 have changed under the pipeline.
    #[error("{0}")]
    Reset(String),
}

/// A block of the chain whose L1 origin cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("block {block}: {error}")]
pub struct BlockRefError {
    block: BlockId,
    error: L1InfoError,
}

/// The block's number, hash, L1 origin and sequence number. Fails if its first transaction has no
/// valid L1 info.
fn block_ref(block: &Payload, rollup: &RollupConfig) -> Result<L2BlockRef, BlockRefError> {
    L2BlockRef::of(block, &rollup.genesis).map_err(|error| BlockRefError {
        block: block.id(),
        error,
    })
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
    /// Changed by every request to reset.
    resets: watch::Sender<()>,
    status: watch::Receiver<RollupStatus>,
}

/// The driver has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("derivation has ended; the log says why")]
pub struct DriverEnded;

impl DriverHandle {
    /// Resets derivation to the safe head (`admin_resetDerivationPipeline`). Returns at once:
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
    safe_db: SafeDb,
    pipeline: Pipeline,
    finality: Finality,
    /// The L1 blocks that the pipeline has read.
    derived_l1: DerivedL1,
    /// Attributes without a result yet.
    attributes: Option<Arc<DerivedAttributes>>,
    /// The newest block that is derived with the rest of its batch (op-node: local safe). During a
    /// reset, the core's safe head.
    local_safe: Option<L2BlockRef>,
    /// The newest local-safe block that is recorded, at which a restart goes on: the safe head.
    safe: Option<L2BlockRef>,
    /// The newest local-safe block, until it is the core's safe head ([`RollupDriver::promote`]).
    awaiting_promotion: Option<SafeRecord>,
    finalized: Option<L2BlockRef>,
    /// The transactions that the block after the present one is expected to have.
    expected: Option<ExpectedTransactions>,
    /// Unsafe head that a block inside a span batch replaced (op-node: BackupUnsafeL2Head). It is
    /// reinstated if a later block of the span is invalid; it need not survive a restart, which derives
    /// the span again.
    backup_unsafe: Option<L2BlockRef>,
    /// The next step is a reset: at start, and where the heads, L1 or an operator demand it.
    reset_pending: bool,
    drops: DropReport,
    backoff: Backoff,
    /// Causes of failed steps that were logged.
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

    /// Derives until the token is cancelled. An error says why derivation cannot go on.
    ///
    /// The loop has a thread of its own: a step may compute for long, and waking a thread for each block
    /// takes less time than waking a task.
    pub async fn run(mut self, token: CancellationToken) -> Result<(), DriverError> {
        let (runtime, engine) = (Handle::current(), self.engine.clone());
        let derive = move || runtime.block_on(self.derive(token));
        let ended = match tokio::task::spawn_blocking(derive).await {
            Ok(ended) => ended,
            Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
            // The runtime ends.
            Err(_) => Ok(()),
        };
        if ended.is_err() {
            // A protection that stays would keep every later fork choice on the derived branch.
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

    /// Notes that a step succeeded: the next pause is short again.
    fn on_step_done(&mut self) {
        self.backoff.reset();
        if self.causes.note_success(STEP_FAILED, Instant::now()) {
            tracing::info!(warning = STEP_FAILED, "the cause of a warning is over");
        }
    }

    /// Logs a failed step, once for each cause. Returns the pause before the next one, or the error that
    /// ends derivation.
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

    /// Takes an operator's request: derivation is reset before the next step.
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
            // Not at once: endpoints behind one address may follow different branches of L1.
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

    /// Sets the unsafe head to reinstate if the rest of a span is invalid.
    fn set_backup_unsafe(&mut self, head: Option<L2BlockRef>) {
        self.backup_unsafe = head;
        self.metrics.set_backup_unsafe(head);
    }

    /// Publishes the heads. During a reset the pipeline's are those of before.
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

/// Waits for a request to reset, which stays for [`RollupDriver::take_reset_request`].
async fn reset_requested(resets: &watch::Receiver<()>) {
    let mut resets = resets.clone();
    if resets.changed().await.is_err() {
        std::future::pending().await
    }
}

/// Reads or writes the records of safe heads on disk, beside the runtime.
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
