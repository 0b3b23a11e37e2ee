//! The batch stage of Holocene. A batch is either the next one or dropped. A span batch is applied
//! block by block: if one of its blocks is invalid, the blocks before it remain.

use super::{CheckedSpan, EpochWindow, NextBatch, overlap::SpanRules};
use crate::{
    batch::{Batch, SingularBatch},
    derive::{
        BatchSource, CriticalError, DropReason,
        stage::{Pause, Pull, StageContext},
        validity::{BatchCheck, BatchValidity},
    },
    l1info::L2BlockRef,
};

#[derive(Debug)]
pub(in crate::derive) struct BatchStage {
    window: EpochWindow,
    /// A span batch whose check is paused.
    span: Option<Box<CheckedSpan>>,
}

impl BatchStage {
    pub(super) fn new(window: EpochWindow) -> Self {
        Self { window, span: None }
    }

    pub(super) fn window(&self) -> &EpochWindow {
        &self.window
    }

    pub(super) fn flush(&mut self, cx: &mut StageContext, source: &mut BatchSource) {
        if self.window.span.take().is_some() {
            cx.drops.add(DropReason::SpanRest);
        }
        self.span = None;
        source.flush(cx);
    }

    pub(super) fn next(
        &mut self,
        cx: &mut StageContext,
        source: &mut BatchSource,
        pending_safe: &L2BlockRef,
    ) -> Pull<NextBatch> {
        self.window.update(source, pending_safe);
        // A channel that completes at or before the L1 origin of the pending-safe head has only
        // past batches.
        let origin = self.window.pipeline_origin.number;
        if origin <= pending_safe.origin.number || origin < self.window.first_l1 {
            return Err(self.skip_batch(cx, source, pending_safe));
        }
        if self.window.epochs.len() < 2 {
            return Err(CriticalError::FewOrigins {
                origin: self.window.pipeline_origin.id(),
                safe: pending_safe.id,
            }
            .into());
        }
        self.window.check_epoch(pending_safe)?;
        match self.candidate(cx, source, pending_safe) {
            Ok(batch) => self.judge(cx, source, pending_safe, batch),
            Err(Pause::End) => {
                let empty = self.window.forced_empty(&cx.rollup, pending_safe, true);
                empty.map(NextBatch::concluding).ok_or(Pause::End)
            }
            Err(pause) => Err(pause),
        }
    }

    /// Reads a batch and drops it without applying it.
    fn skip_batch(
        &mut self,
        cx: &mut StageContext,
        source: &mut BatchSource,
        safe: &L2BlockRef,
    ) -> Pause {
        match source.next_batch(cx) {
            Ok(_) => {
                cx.drops.add(DropReason::BatchBehind);
                Pause::More
            }
            Err(Pause::End) => self.end_skipped(cx, safe).err().unwrap_or(Pause::End),
            Err(pause) => pause,
        }
    }

    /// Repeats the effect that the end of the last skipped L1 block had when it was derived from.
    /// If an epoch had expired by then, that epoch is over, and the next L1 block begins with the
    /// next epoch.
    fn end_skipped(&mut self, cx: &StageContext, safe: &L2BlockRef) -> Pull<()> {
        let origin = self.window.pipeline_origin.number;
        if origin > safe.origin.number && origin.checked_add(1) == Some(self.window.first_l1) {
            self.window.check_epoch(safe)?;
            // Ignore the result: every block that this L1 block forced is already in the safe
            // chain.
            self.window.forced_empty(&cx.rollup, safe, true);
        }
        Ok(())
    }

    /// The candidate for the next block: from the current span, or from the next batch.
    fn candidate(
        &mut self,
        cx: &mut StageContext,
        source: &mut BatchSource,
        pending_safe: &L2BlockRef,
    ) -> Pull<SingularBatch> {
        if let Some(next) = self.window.next_of_span(cx, pending_safe) {
            return Ok(next.batch);
        }
        let span = match self.span.take() {
            Some(span) => span,
            None => match source.next_batch(cx)? {
                Batch::Singular(batch) => return Ok(batch),
                Batch::Span(span) => Box::new(span.into()),
            },
        };
        self.span_candidate(cx, source, pending_safe, span)
    }

    /// Checks a span batch's prefix and returns its first new block.
    fn span_candidate(
        &mut self,
        cx: &mut StageContext,
        source: &mut BatchSource,
        pending_safe: &L2BlockRef,
        mut span: Box<CheckedSpan>,
    ) -> Pull<SingularBatch> {
        let check = BatchCheck {
            rollup: &cx.rollup,
            epochs: &self.window.epochs,
            pending_safe,
            inclusion: self.window.pipeline_origin.number,
            is_holocene: true,
        };
        let dropped = match span.check(cx, &check, SpanRules::Prefix) {
            Err(pause) => {
                self.span = Some(span);
                return Err(pause);
            }
            Ok(BatchValidity::Accept) if self.window.start_span(span.span, pending_safe) => {
                let first = self.window.pop_span(pending_safe);
                return first.map(|next| next.batch).ok_or(Pause::More);
            }
            Ok(BatchValidity::Accept) => DropReason::BatchOrigin,
            Ok(BatchValidity::Drop(reason)) => reason,
            Ok(BatchValidity::Past) => {
                cx.drops.add(DropReason::PastBatch);
                return Err(Pause::More);
            }
            // op-node reads the next batch instead of waiting for the L1 block.
            Ok(BatchValidity::Undecided | BatchValidity::Future) => {
                cx.drops.add(DropReason::BatchUndecided);
                return Err(Pause::More);
            }
        };
        cx.drops.add(dropped);
        self.flush(cx, source);
        Err(Pause::More)
    }

    fn judge(
        &mut self,
        cx: &mut StageContext,
        source: &mut BatchSource,
        pending_safe: &L2BlockRef,
        batch: SingularBatch,
    ) -> Pull<NextBatch> {
        let check = BatchCheck {
            rollup: &cx.rollup,
            epochs: &self.window.epochs,
            pending_safe,
            inclusion: self.window.pipeline_origin.number,
            is_holocene: true,
        };
        match check.singular(&batch) {
            BatchValidity::Accept => return Ok(NextBatch::concluding(batch)),
            BatchValidity::Drop(reason) => {
                cx.drops.add(reason);
                self.flush(cx, source);
            }
            BatchValidity::Past => cx.drops.add(DropReason::PastBatch),
            BatchValidity::Undecided | BatchValidity::Future => {
                cx.drops.add(DropReason::BatchUndecided);
            }
        }
        Err(Pause::More)
    }
}
