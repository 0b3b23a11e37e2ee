//! The batch stages: the batch queue before Holocene, which holds future batches back, and the
//! Holocene stage since, which drops them.

mod overlap;
mod queue;
mod holocene;

use super::{
    BatchSource, DropReason,
    origins::{EpochOrigin, EpochOrigins},
    stage::{Pull, StageContext},
};
use crate::{
    attributes::L1Block, batch::SingularBatch, config::RollupConfig, fork::Fork,
    l1info::L2BlockRef, span::SpanBatch, span::SpanBlock,
};
use overlap::OverlapCheck;
use queue::BatchQueue;
use std::collections::VecDeque;
use holocene::HoloceneStage;

/// The next block of the chain, and whether it concludes its batch.
pub(super) type NextBatch = (SingularBatch, bool);

/// The batch stage of the pipeline, by the L1 origin's fork.
#[derive(Debug)]
pub(super) enum BatchStage {
    Queue(BatchQueue),
    Holocene(HoloceneStage),
}

impl BatchStage {
    /// Starts at the L1 block that `source` starts at. Batches of L1 blocks before `first` are not
    /// applied.
    pub fn new(rollup: &RollupConfig, source: &mut BatchSource, first: u64) -> Self {
        let base = *source.origin();
        let mut origins = EpochOrigins::default();
        origins.push(EpochOrigin {
            block: base,
            logs: source.take_logs(),
        });
        let window = EpochWindow {
            origin: base,
            origins,
            span: VecDeque::new(),
            first,
        };
        if rollup.forks.is_active(Fork::Holocene, base.time) {
            Self::Holocene(HoloceneStage::new(window))
        } else {
            Self::Queue(BatchQueue::new(window))
        }
    }

    /// Ends the batch queue with the first L1 block of Holocene. Its L1 blocks are still needed.
    pub fn enter_holocene(&mut self) {
        if let Self::Queue(queue) = self {
            let window = std::mem::take(queue).into_window();
            *self = Self::Holocene(HoloceneStage::new(window));
        }
    }

    pub fn next(
        &mut self,
        cx: &mut StageContext,
        source: &mut BatchSource,
        safe: &L2BlockRef,
    ) -> Pull<NextBatch> {
        match self {
            Self::Queue(queue) => queue.next(cx, source, safe),
            Self::Holocene(stage) => stage.next(cx, source, safe),
        }
    }

    /// Drops the span and the channel that the last block came from (Holocene).
    pub fn flush(&mut self, cx: &mut StageContext, source: &mut BatchSource) {
        match self {
            Self::Queue(_) => {}
            Self::Holocene(stage) => stage.flush(cx, source),
        }
    }

    /// The L1 block of this number, if it is in the window.
    pub fn origin(&self, number: u64) -> Option<&EpochOrigin> {
        match self {
            Self::Queue(queue) => queue.window().origins.get(number),
            Self::Holocene(stage) => stage.window().origins.get(number),
        }
    }
}

/// State that both stages have: the L1 blocks batches may refer to, and the blocks of the span
/// batch that is being applied.
#[derive(Debug, Default)]
struct EpochWindow {
    /// The L1 block that this stage has come to.
    origin: L1Block,
    origins: EpochOrigins,
    span: VecDeque<SpanBlock>,
    /// Number of the first L1 block whose batches are applied.
    first: u64,
}

impl EpochWindow {
    /// Whether the pipeline has not come to the origin of the safe head yet.
    fn is_behind(source: &BatchSource, safe: &L2BlockRef) -> bool {
        source.origin().number < safe.origin.number
    }

    /// Follows the pipeline's origin and the safe head's.
    fn update(&mut self, source: &mut BatchSource, safe: &L2BlockRef) {
        if self.origin.hash != source.origin().hash {
            self.origin = *source.origin();
            let logs = source.take_logs();
            if Self::is_behind(source, safe) {
                self.origins.clear();
            } else {
                self.origins.push(EpochOrigin {
                    block: self.origin,
                    logs,
                });
            }
        }
        self.origins.prune(safe);
    }

    /// The first known L1 block, if it is the origin of the safe head or the next one.
    fn epoch(&self, safe: &L2BlockRef) -> Pull<L1Block> {
        let Some(epoch) = self.origins.first() else {
            return Err(super::CriticalError::FewOrigins {
                origin: self.origin.id(),
                safe: safe.id,
            }
            .into());
        };
        let follows = safe.origin.number.checked_add(1) == Some(epoch.number);
        if safe.origin != epoch.id() && !follows {
            return Err(super::ResetReason::Origin {
                safe: safe.id,
                origin: safe.origin,
                canonical: epoch.id(),
            }
            .into());
        }
        Ok(*epoch)
    }

    /// The next block of the current span, if it follows the safe head; otherwise the rest of the
    /// span is dropped, because a block of it turned out invalid.
    fn next_of_span(&mut self, cx: &mut StageContext, safe: &L2BlockRef) -> Option<NextBatch> {
        let first = self.span.front()?;
        if first.timestamp != safe.time.saturating_add(cx.rollup.block_time) {
            self.span.clear();
            cx.drops.add(DropReason::SpanRest);
            return None;
        }
        self.pop_span(safe)
    }

    fn pop_span(&mut self, safe: &L2BlockRef) -> Option<NextBatch> {
        let block = self.span.pop_front()?;
        let epoch_hash = self.origins.get(block.epoch_number)?.block.hash;
        let batch = SingularBatch {
            parent_hash: safe.id.hash,
            epoch_number: block.epoch_number,
            epoch_hash,
            timestamp: block.timestamp,
            transactions: block.transactions,
        };
        Some((batch, self.span.is_empty()))
    }

    /// Makes the blocks of a span after the safe head the ones to apply next. `false`, changing
    /// nothing, if one of them has an L1 origin before the safe head's or an unknown one.
    fn split(&mut self, span: SpanBatch, safe: &L2BlockRef) -> bool {
        let is_new = |block: &SpanBlock| block.timestamp > safe.time;
        let is_known = |block: &SpanBlock| {
            block.epoch_number >= safe.origin.number
                && self.origins.get(block.epoch_number).is_some()
        };
        let all_known = span
            .blocks
            .iter()
            .filter(|block| is_new(block))
            .all(is_known);
        if all_known {
            self.span = span.blocks.into_iter().filter(is_new).collect();
        }
        all_known
    }

    /// The empty block that the expired sequencing window forces, if there is one. `is_drained`
    /// tells that the pipeline has no more data up to its origin. Epochs that have all their blocks
    /// are left behind on the way.
    fn forced_empty(
        &mut self,
        rollup: &RollupConfig,
        safe: &L2BlockRef,
        is_drained: bool,
    ) -> Option<SingularBatch> {
        let timestamp = safe.time.saturating_add(rollup.block_time);
        loop {
            let epoch = *self.origins.first()?;
            let expiry = epoch.number.saturating_add(rollup.seq_window_size);
            let is_expired =
                expiry < self.origin.number || (expiry == self.origin.number && is_drained);
            if !is_expired {
                return None;
            }
            let next_epoch = self.origins.second()?;
            let is_first = safe.origin.number.checked_add(1) == Some(epoch.number);
            if timestamp < next_epoch.time || is_first {
                return Some(SingularBatch {
                    parent_hash: safe.id.hash,
                    epoch_number: epoch.number,
                    epoch_hash: epoch.hash,
                    timestamp,
                    transactions: Vec::new(),
                });
            }
            self.origins.pop_first();
        }
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
