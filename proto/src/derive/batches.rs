//! The batch stages: [`BatchQueue`] before Holocene, which holds future batches back, and
//! [`BatchStage`] from Holocene on, which drops them.

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

/// The next block of the chain.
#[derive(Debug)]
pub(super) struct NextBatch {
    pub batch: SingularBatch,
    /// Whether the block becomes local-safe at once (op-node: Concluding): in Holocene every block,
    /// before it the last one of its batch.
    pub concluding: bool,
}

impl NextBatch {
    /// A block that becomes local-safe at once.
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
    /// Starts at the L1 block that `source` starts at. Batches of L1 blocks before `first_l1` are not
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

    /// Ends the batch queue with the first L1 block of Holocene. The window's L1 blocks are kept.
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

    /// Drops the span and the channel that the last block came from (Holocene).
    pub fn flush(&mut self, cx: &mut StageContext, source: &mut BatchSource) {
        match self {
            Self::Queue(_) => {}
            Self::Stage(stage) => stage.flush(cx, source),
        }
    }

    /// The L1 block of this number, if it is in the window.
    pub fn epoch_block(&self, number: u64) -> Option<&EpochBlock> {
        self.window().epochs.get(number)
    }

    /// The transactions of the next block of the current span.
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

/// State that both stages have: the L1 blocks batches may refer to, and the span batch that is being
/// applied.
#[derive(Debug, Default)]
struct EpochWindow {
    /// The pipeline's L1 origin, as far as this stage has come.
    pipeline_origin: L1Block,
    /// L1 blocks that batches may name as their epoch.
    epochs: EpochBlocks,
    /// The remaining blocks of the span batch, at least one.
    span: Option<SpanBlocks>,
    /// Number of the first L1 block whose batches are applied.
    first_l1: u64,
    /// No more blocks are forced at this L1 block: an epoch ended at it when no data was left.
    is_exhausted: bool,
}

/// Whether the pipeline has not come to the L1 origin of the pending-safe head yet.
fn is_pipeline_behind(source: &BatchSource, pending_safe: &L2BlockRef) -> bool {
    source.origin().number < pending_safe.origin.number
}

impl EpochWindow {
    /// Follows the origins of the pipeline and of the pending-safe head.
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

    /// Fails if the lowest known epoch is neither the L1 origin of the pending-safe head nor its child.
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

    /// The next block of the current span, if it follows the pending-safe head; otherwise the rest of
    /// the span is dropped, because a block of it turned out invalid.
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

    /// Begins to apply the blocks of a span after the pending-safe head. `false`, changing nothing, if
    /// one of them has an L1 origin that is not in the window, which holds none before the pending-safe
    /// head's ([`Self::check_epoch`]).
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
        // L1 origins of a span ascend by one, and those of the window have no gap.
        let is_known = |number| self.epochs.get(number).is_some();
        let all_known = is_known(next.epoch_number) && is_known(span.last.epoch_number);
        if all_known {
            self.span = Some(blocks);
        }
        all_known
    }

    /// The empty block that the expired sequencing window forces, if there is one. `is_drained`
    /// tells that the pipeline has no more data up to its origin.
    ///
    /// Otherwise an expired epoch that has all its L2 blocks is removed from the window. With no data
    /// left, the blocks of the next epoch are derived from the next L1 block, even if that epoch has
    /// expired, too (op-node: deriveNextEmptyBatch).
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

/// A span batch whose validity may take several reads of the safe chain.
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
