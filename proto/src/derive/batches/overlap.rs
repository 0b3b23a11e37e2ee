//! Comparison, block by block, of a span batch with the safe blocks that it repeats.

use super::CheckedSpan;
use crate::{
    derive::{
        DropReason,
        stage::{Pull, StageContext, safe_block_ref},
        validity::{BatchCheck, BatchValidity, SpanParent, repeats},
    },
    l1info::L2BlockRef,
    payload::Payload,
    span::SpanBlocks,
};

/// Progress of the comparison, so that no work is repeated after a pause for a block.
#[derive(Clone, Debug, Default)]
pub(super) struct OverlapCheck {
    /// Value of [`SafeBlocks::generation`](crate::derive::stage::SafeBlocks) for which `parent` and
    /// `rest` are valid.
    generation: u64,
    parent: Option<SpanParent>,
    /// The blocks of the span that are not compared yet.
    rest: Option<SpanBlocks>,
}

/// The rules that a span batch is checked against as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SpanRules {
    /// Prefix, every new block, and overlap: before Holocene.
    Full,
    /// Prefix and overlap: from Holocene on, where the new blocks are checked one by one
    /// afterwards.
    Prefix,
}

impl CheckedSpan {
    /// Checks the span. Pauses if a block of the safe chain must be read first.
    pub fn check(
        &mut self,
        cx: &StageContext,
        check: &BatchCheck<'_>,
        rules: SpanRules,
    ) -> Pull<BatchValidity> {
        let number = match check.span_parent_number(&self.span) {
            Ok(number) => number,
            Err(validity) => return Ok(validity),
        };
        let parent = self.parent(cx, check.pending_safe, number)?;
        // The rules were satisfied when the comparison began, so do not check them again. The
        // comparison pauses for each block of the overlap, and the rules may have to visit millions
        // of blocks.
        if self.overlap.rest.is_none() {
            let mut validity = check.span_prefix(&self.span, &parent);
            if validity == BatchValidity::Accept && rules == SpanRules::Full {
                validity = check.span_blocks(&self.span, &parent);
            }
            if validity != BatchValidity::Accept {
                return Ok(validity);
            }
        }
        self.compare(cx, check.pending_safe, &parent)
    }

    /// The parent of the span's first block, on the chain of the pending-safe head.
    fn parent(
        &mut self,
        cx: &StageContext,
        pending_safe: &L2BlockRef,
        number: u64,
    ) -> Pull<SpanParent> {
        if number == pending_safe.id.number {
            return Ok(SpanParent {
                id: pending_safe.id,
                origin: pending_safe.origin.number,
            });
        }
        if self.overlap.generation != cx.safe_blocks.generation {
            self.overlap = OverlapCheck {
                generation: cx.safe_blocks.generation,
                ..OverlapCheck::default()
            };
        }
        if let Some(parent) = self.overlap.parent
            && parent.id.number == number
        {
            return Ok(parent);
        }
        let payload = cx.safe_blocks.get(number)?;
        let parent = SpanParent {
            id: payload.id(),
            origin: origin_number(cx, &payload)?,
        };
        self.overlap.parent = Some(parent);
        Ok(parent)
    }

    /// Compares the span's blocks up to the pending-safe head with the safe chain. Continues at the
    /// first block not compared yet. Pauses if a block of the safe chain must be read first.
    fn compare(
        &mut self,
        cx: &StageContext,
        pending_safe: &L2BlockRef,
        parent: &SpanParent,
    ) -> Pull<BatchValidity> {
        let blocks = &self.span.blocks;
        let rest = self.overlap.rest.get_or_insert_with(|| blocks.clone());
        while rest.len() > 0 {
            let equal = (blocks.len() - rest.len()) as u64;
            let number = parent.id.number + 1 + equal;
            if number > pending_safe.id.number {
                break;
            }
            let payload = cx.safe_blocks.get(number)?;
            let origin = origin_number(cx, &payload)?;
            if !rest
                .next()
                .is_some_and(|block| repeats(&block, &payload, origin))
            {
                return Ok(BatchValidity::Drop(DropReason::SpanOverlap));
            }
        }
        Ok(BatchValidity::Accept)
    }
}

fn origin_number(cx: &StageContext, payload: &Payload) -> Pull<u64> {
    Ok(safe_block_ref(&cx.rollup, payload)?.origin.number)
}
