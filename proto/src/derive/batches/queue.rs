//! The batch queue, for the forks before Holocene. Batches wait in order of inclusion, and the
//! first valid one is applied.

use super::{CheckedSpan, EpochWindow, NextBatch, is_pipeline_behind, overlap::SpanRules};
use crate::{
    batch::{Batch, SingularBatch},
    derive::{
        BatchSource, DropReason,
        stage::{Pause, Pull, StageContext},
        validity::{BatchCheck, BatchValidity},
    },
    l1info::L2BlockRef,
};
use std::collections::VecDeque;

#[derive(Debug, Default)]
pub(in crate::derive) struct BatchQueue {
    window: EpochWindow,
    batches: VecDeque<QueuedBatch>,
    /// Number of batches at the front that are future batches, as long as the next block's time is
    /// below `recheck_time`. Skipping them avoids a check of all future batches for each batch
    /// read.
    future_batches: usize,
    /// Earliest time (Unix seconds) of a first block among these future batches.
    recheck_time: u64,
    phase: QueuePhase,
}

/// A batch and the number of the L1 block that completed its channel.
#[derive(Debug)]
struct QueuedBatch {
    batch: QueuedKind,
    inclusion: u64,
}

#[derive(Debug)]
enum QueuedKind {
    Singular(SingularBatch),
    Span(Box<CheckedSpan>),
}

/// The work to continue with after a pause.
#[derive(Debug, Default)]
enum QueuePhase {
    #[default]
    Pull,
    /// Check a batch before it is queued.
    Check(Box<QueuedBatch>),
    /// Look for a batch to apply. `is_drained` is whether the earlier stages have no more data up
    /// to the origin.
    Derive { is_drained: bool },
}

impl QueuedBatch {
    fn new(batch: Batch, inclusion: u64) -> Self {
        let batch = match batch {
            Batch::Singular(batch) => QueuedKind::Singular(batch),
            Batch::Span(span) => QueuedKind::Span(Box::new(span.into())),
        };
        Self { batch, inclusion }
    }

    /// Timestamp of the batch's first block, in Unix seconds.
    fn timestamp(&self) -> u64 {
        match &self.batch {
            QueuedKind::Singular(batch) => batch.timestamp,
            QueuedKind::Span(span) => span.span.first.timestamp,
        }
    }

    fn check(
        &mut self,
        cx: &StageContext,
        window: &EpochWindow,
        pending_safe: &L2BlockRef,
    ) -> Pull<BatchValidity> {
        let check = BatchCheck {
            rollup: &cx.rollup,
            epochs: &window.epochs,
            pending_safe,
            inclusion: self.inclusion,
            is_holocene: false,
        };
        match &mut self.batch {
            QueuedKind::Singular(batch) => Ok(check.singular(batch)),
            QueuedKind::Span(span) => span.check(cx, &check, SpanRules::Full),
        }
    }
}

impl BatchQueue {
    pub(super) fn new(window: EpochWindow) -> Self {
        Self {
            window,
            ..Self::default()
        }
    }

    pub(super) fn window(&self) -> &EpochWindow {
        &self.window
    }

    /// Keeps only the L1 blocks: queued batches and the rest of a span are dropped with this stage.
    pub(super) fn into_window(self) -> EpochWindow {
        EpochWindow {
            span: None,
            ..self.window
        }
    }

    pub(super) fn next(
        &mut self,
        cx: &mut StageContext,
        source: &mut BatchSource,
        pending_safe: &L2BlockRef,
    ) -> Pull<NextBatch> {
        if let Some(next) = self.window.next_of_span(cx, pending_safe) {
            return Ok(next);
        }
        if matches!(self.phase, QueuePhase::Pull) {
            self.pull(cx, source, pending_safe)?;
        }
        if let QueuePhase::Check(batch) = &mut self.phase {
            let validity = batch.check(cx, &self.window, pending_safe)?;
            let checked =
                std::mem::replace(&mut self.phase, QueuePhase::Derive { is_drained: false });
            match (validity, checked) {
                (BatchValidity::Drop(reason), _) => cx.drops.add(reason),
                (_, QueuePhase::Check(batch)) => self.batches.push_back(*batch),
                _ => {}
            }
        }
        let is_drained = matches!(self.phase, QueuePhase::Derive { is_drained: true });
        if self.window.pipeline_origin.number < self.window.first_l1 {
            self.phase = QueuePhase::Pull;
            return Err(if is_drained { Pause::End } else { Pause::More });
        }
        let next = self.derive(cx, pending_safe, is_drained)?;
        self.phase = QueuePhase::Pull;
        match next {
            Some(next) => Ok(next),
            None if is_drained => Err(Pause::End),
            None => Err(Pause::More),
        }
    }

    /// Reads one batch from the earlier stages. The batch is dropped if the pipeline is still below
    /// the L1 origin of the pending-safe head.
    fn pull(
        &mut self,
        cx: &mut StageContext,
        source: &mut BatchSource,
        pending_safe: &L2BlockRef,
    ) -> Pull<()> {
        self.window.update(source, pending_safe);
        let is_behind = is_pipeline_behind(source, pending_safe);
        self.phase = match source.next_batch(cx) {
            Ok(_) if is_behind => {
                cx.drops.add(DropReason::BatchBehind);
                return Err(Pause::More);
            }
            Ok(batch) => QueuePhase::Check(Box::new(QueuedBatch::new(
                batch,
                self.window.pipeline_origin.number,
            ))),
            Err(Pause::End) if !is_behind => QueuePhase::Derive { is_drained: true },
            Err(pause) => return Err(pause),
        };
        Ok(())
    }

    /// Returns the first valid batch in order of inclusion, or a forced empty one. Invalid batches
    /// before it are dropped. An undecided batch ends the search.
    fn derive(
        &mut self,
        cx: &mut StageContext,
        pending_safe: &L2BlockRef,
        is_drained: bool,
    ) -> Pull<Option<NextBatch>> {
        self.window.check_epoch(pending_safe)?;
        let next_time = pending_safe.time.saturating_add(cx.rollup.block_time);
        // Without a second L1 block, even a span batch in the future can be undecided.
        if next_time >= self.recheck_time || self.window.epochs.second().is_none() {
            (self.future_batches, self.recheck_time) = (0, u64::MAX);
        }
        let mut rest = self.batches.split_off(self.future_batches);
        let mut found = Ok(BatchValidity::Future);
        while let Some(batch) = rest.front_mut() {
            found = batch.check(cx, &self.window, pending_safe);
            match found {
                Ok(BatchValidity::Future) => {
                    self.recheck_time = self.recheck_time.min(batch.timestamp());
                    self.batches.extend(rest.pop_front());
                }
                Ok(BatchValidity::Drop(reason)) => {
                    cx.drops.add(reason);
                    rest.pop_front();
                }
                _ => break,
            }
        }
        self.future_batches = self.batches.len();
        let first = match found {
            Ok(BatchValidity::Accept) => rest.pop_front(),
            _ => None,
        };
        self.batches.append(&mut rest);
        match (first, found?) {
            (Some(batch), _) => self.apply(batch, pending_safe),
            (None, BatchValidity::Undecided) => Ok(None),
            (None, _) => {
                let empty = self
                    .window
                    .forced_empty(&cx.rollup, pending_safe, is_drained);
                Ok(empty.map(NextBatch::concluding))
            }
        }
    }

    /// Applies an accepted batch: returns its first new block.
    fn apply(&mut self, batch: QueuedBatch, pending_safe: &L2BlockRef) -> Pull<Option<NextBatch>> {
        match batch.batch {
            QueuedKind::Singular(batch) => Ok(Some(NextBatch::concluding(batch))),
            QueuedKind::Span(span) => {
                // Always succeeds: the full check has found every L1 origin of the span.
                self.window.start_span(span.span, pending_safe);
                Ok(self.window.pop_span(pending_safe))
            }
        }
    }
}

#[cfg(test)]
mod tests;
