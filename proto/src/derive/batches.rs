//! The batch stages. [`BatchQueue`], before Holocene, queues future batches. [`BatchStage`], from
//! Holocene on, drops them.

mod holocene;
mod overlap;
mod queue;

use super::{
    BatchSource, DropReason,
    epochs::{EpochBlock, EpochBlocks},
    stage::{Pull, StageContext},
};
use crate::{
    attributes::L1Block, batch::BatchTransactions, batch::SingularBatch, config::RollupConfig,
    fork::Fork, l1info::L2BlockRef, span::SpanBatch, span::SpanBlocks,
};
use holocene::BatchStage;
use overlap::OverlapCheck;
use queue::BatchQueue;

/// The batch of the chain's next block.
#[derive(Debug)]
pub(super) struct NextBatch {
    pub batch: SingularBatch,
    /// Whether the block becomes local-safe at once (op-node: Concluding). From Holocene on every
    /// block does; before Holocene only the last block of its batch does.
    pub concluding: bool,
}

impl NextBatch {
    /// The batch of a block that becomes local-safe at once.
    fn concluding(batch: SingularBatch) -> Self {
        Self {
            batch,
            concluding: true,
        }
    }
}

/// The active batch stage, chosen by the L1 origin's fork (op-node: BatchMux).
#[derive(Debug)]
pub(super) enum BatchMux {
    Queue(BatchQueue),
    Stage(BatchStage),
}

impl BatchMux {
    /// Starts at the L1 origin of `source`. Batches from L1 blocks before `first_l1` are not
    /// applied.
    pub fn new(rollup: &RollupConfig, source: &mut BatchSource, first_l1: u64) -> Self {
        let base = *source.origin();
        let mut epochs = EpochBlocks::default();
        epochs.push(EpochBlock {
            block: base,
            logs: source.take_logs(),
        });
        let window = EpochWindow {
            pipeline_origin: base,
            epochs,
            span: None,
            first_l1,
            is_exhausted: false,
        };
        if rollup.forks.is_active(Fork::Holocene, base.time) {
            Self::Stage(BatchStage::new(window))
        } else {
            Self::Queue(BatchQueue::new(window))
        }
    }

    /// Replaces the batch queue at the first L1 block in Holocene. The window's L1 blocks are kept.
    pub fn enter_holocene(&mut self) {
        if let Self::Queue(queue) = self {
            let window = std::mem::take(queue).into_window();
            *self = Self::Stage(BatchStage::new(window));
        }
    }

    pub fn next(
        &mut self,
        cx: &mut StageContext,
        source: &mut BatchSource,
        pending_safe: &L2BlockRef,
    ) -> Pull<NextBatch> {
        match self {
            Self::Queue(queue) => queue.next(cx, source, pending_safe),
            Self::Stage(stage) => stage.next(cx, source, pending_safe),
        }
    }

    /// Drops the span batch and the channel of the last block (Holocene).
    pub fn flush(&mut self, cx: &mut StageContext, source: &mut BatchSource) {
        match self {
            Self::Queue(_) => {}
            Self::Stage(stage) => stage.flush(cx, source),
        }
    }

    /// The L1 block with this number, if it is in the window.
    pub fn epoch_block(&self, number: u64) -> Option<&EpochBlock> {
        self.window().epochs.get(number)
    }

    /// The transactions of the next block in the current span batch.
    pub fn next_transactions(&self) -> Option<BatchTransactions> {
        let mut span = self.window().span.clone()?;
        Some(span.next()?.transactions)
    }

    fn window(&self) -> &EpochWindow {
        match self {
            Self::Queue(queue) => queue.window(),
            Self::Stage(stage) => stage.window(),
        }
    }
}

/// State of both stages: the L1 blocks that batches may refer to, and the span batch that is being
/// applied.
#[derive(Debug, Default)]
struct EpochWindow {
    /// The pipeline's L1 origin when this stage was last updated.
    pipeline_origin: L1Block,
    /// L1 blocks that batches may name as their epoch.
    epochs: EpochBlocks,
    /// The remaining blocks of the current span batch, at least one.
    span: Option<SpanBlocks>,
    /// Number of the first L1 block whose batches are applied.
    first_l1: u64,
    /// Whether this L1 block forces no further empty blocks: all its data were read, and an expired
    /// epoch has ended.
    is_exhausted: bool,
}

/// Whether the pipeline's L1 origin is still below the L1 origin of the pending-safe head.
fn is_pipeline_behind(source: &BatchSource, pending_safe: &L2BlockRef) -> bool {
    source.origin().number < pending_safe.origin.number
}

impl EpochWindow {
    /// Updates the window to the present origins of the pipeline and of the pending-safe head.
    fn update(&mut self, source: &mut BatchSource, pending_safe: &L2BlockRef) {
        if self.pipeline_origin.hash != source.origin().hash {
            (self.pipeline_origin, self.is_exhausted) = (*source.origin(), false);
            let logs = source.take_logs();
            if is_pipeline_behind(source, pending_safe) {
                self.epochs.clear();
            } else {
                self.epochs.push(EpochBlock {
                    block: self.pipeline_origin,
                    logs,
                });
            }
        }
        self.epochs.prune(pending_safe);
    }

    /// Fails if the first L1 block of the window is neither the L1 origin of the pending-safe head
    /// nor that origin's child.
    fn check_epoch(&self, pending_safe: &L2BlockRef) -> Pull<()> {
        let Some(epoch) = self.epochs.first() else {
            return Err(super::CriticalError::FewOrigins {
                origin: self.pipeline_origin.id(),
                safe: pending_safe.id,
            }
            .into());
        };
        let follows = pending_safe.origin.number.checked_add(1) == Some(epoch.number);
        if pending_safe.origin != epoch.id() && !follows {
            return Err(super::ResetReason::Origin {
                safe: pending_safe.id,
                origin: pending_safe.origin,
                canonical: epoch.id(),
            }
            .into());
        }
        Ok(())
    }

    /// The next block of the current span, if it follows the pending-safe head. Otherwise an
    /// earlier block of the span was invalid, and the rest of the span is dropped.
    fn next_of_span(
        &mut self,
        cx: &mut StageContext,
        pending_safe: &L2BlockRef,
    ) -> Option<NextBatch> {
        let next = self.span.as_ref()?.peek()?;
        if next.timestamp != pending_safe.time.saturating_add(cx.rollup.block_time) {
            self.span = None;
            cx.drops.add(DropReason::SpanRest);
            return None;
        }
        self.pop_span(pending_safe)
    }

    fn pop_span(&mut self, pending_safe: &L2BlockRef) -> Option<NextBatch> {
        let span = self.span.as_mut()?;
        let block = span.next()?;
        let concluding = span.len() == 0;
        if concluding {
            self.span = None;
        }
        let epoch_hash = self.epochs.get(block.epoch_number)?.block.hash;
        let batch = SingularBatch {
            parent_hash: pending_safe.id.hash,
            epoch_number: block.epoch_number,
            epoch_hash,
            timestamp: block.timestamp,
            transactions: block.transactions,
        };
        Some(NextBatch { batch, concluding })
    }

    /// Begins to apply the blocks of a span after the pending-safe head. Returns `false` and
    /// changes nothing if the L1 origin of one of these blocks is not in the window. The window has
    /// no L1 block before the pending-safe head's origin ([`Self::check_epoch`]).
    fn start_span(&mut self, span: SpanBatch, pending_safe: &L2BlockRef) -> bool {
        let mut blocks = span.blocks;
        while blocks
            .peek()
            .is_some_and(|next| next.timestamp <= pending_safe.time)
        {
            blocks.next();
        }
        let Some(next) = blocks.peek() else {
            return false;
        };
        // Checking the ends is enough: L1 origins of a span ascend by at most one per block, and
        // the window has no gap.
        let is_known = |number| self.epochs.get(number).is_some();
        let all_known = is_known(next.epoch_number) && is_known(span.last.epoch_number);
        if all_known {
            self.span = Some(blocks);
        }
        all_known
    }

    /// The empty block that an expired sequencing window forces, if any. `is_drained` is whether
    /// the pipeline has no more data up to its origin.
    ///
    /// If no block is forced, but an expired epoch has all its L2 blocks, that epoch is removed
    /// from the window. If no data are left, this L1 block then forces no further block. The blocks
    /// of the next epoch are derived at the next L1 block, even if that epoch has expired, too
    /// (op-node: deriveNextEmptyBatch).
    fn forced_empty(
        &mut self,
        rollup: &RollupConfig,
        pending_safe: &L2BlockRef,
        is_drained: bool,
    ) -> Option<SingularBatch> {
        let epoch = *self.epochs.first()?;
        let expiry = epoch.number.saturating_add(rollup.seq_window_size);
        let is_expired = expiry < self.pipeline_origin.number
            || (expiry == self.pipeline_origin.number && is_drained);
        if self.is_exhausted || !is_expired {
            return None;
        }
        let next_epoch = self.epochs.second()?;
        let timestamp = pending_safe.time.saturating_add(rollup.block_time);
        let is_first = pending_safe.origin.number.checked_add(1) == Some(epoch.number);
        if timestamp < next_epoch.time || is_first {
            return Some(SingularBatch {
                parent_hash: pending_safe.id.hash,
                epoch_number: epoch.number,
                epoch_hash: epoch.hash,
                timestamp,
                transactions: BatchTransactions::default(),
            });
        }
        self.epochs.pop_first();
        self.is_exhausted = is_drained;
        None
    }
}

/// A span batch and the progress of its check, which may need several reads of the safe chain.
#[derive(Debug)]
struct CheckedSpan {
    span: SpanBatch,
    overlap: OverlapCheck,
}

impl From<SpanBatch> for CheckedSpan {
    fn from(span: SpanBatch) -> Self {
        Self {
            span,
            overlap: OverlapCheck::default(),
        }
    }
}
