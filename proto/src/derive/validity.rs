//! Batch validity: whether a batch is the next part of the chain (specs: derivation, batch queue;
//! delta, span batches; holocene, span batch validity).

use super::{DropReason, epochs::EpochBlocks};
use crate::{
    attributes::L1Block,
    batch::{BatchTransactions, SingularBatch},
    config::RollupConfig,
    deposit::DEPOSIT_TX_TYPE,
    fork::Fork,
    l1info::L2BlockRef,
    payload::{BlockId, Payload},
    span::{SpanBatch, SpanBlock},
};
use alloy_eips::eip2718::EIP7702_TX_TYPE_ID;
use op_alloy_consensus::POST_EXEC_TX_TYPE_ID;

/// The verdict on a batch (op-node: BatchValidity).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BatchValidity {
    Accept,
    Drop(DropReason),
    /// More L1 blocks have to be known.
    Undecided,
    /// The batch may be valid when earlier ones have been applied. Not in Holocene.
    Future,
    /// All its blocks are safe already. Only in Holocene.
    Past,
}

use BatchValidity::{Accept, Drop, Future, Past, Undecided};

/// Everything a batch is judged by.
#[derive(Clone, Copy, Debug)]
pub(super) struct BatchCheck<'a> {
    pub rollup: &'a RollupConfig,
    pub epochs: &'a EpochBlocks,
    /// The pending-safe head.
    pub pending_safe: &'a L2BlockRef,
    /// Number of the inclusion block: the L1 block that completed the channel.
    pub inclusion: u64,
    /// Whether that L1 block is in Holocene.
    pub is_holocene: bool,
}

/// The parent of a span batch's first block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SpanParent {
    pub id: BlockId,
    /// Number of its L1 origin.
    pub origin: u64,
}

/// Ends the judgement with this outcome if the rule decides it, in either direction.
macro_rules! return_if {
    ($decided:expr, $outcome:expr) => {
        if $decided {
            return $outcome;
        }
    };
}

impl BatchCheck<'_> {
    fn next_time(&self) -> u64 {
        self.pending_safe
            .time
            .saturating_add(self.rollup.block_time)
    }

    /// Whether the sequencing window of this L1 origin ended before the batch was included.
    fn window_expired(&self, epoch: u64) -> bool {
        epoch.saturating_add(self.rollup.seq_window_size) < self.inclusion
    }

    /// The outcome for a batch whose first new block is after the next one.
    fn future(&self) -> BatchValidity {
        if self.is_holocene {
            Drop(DropReason::FutureBatch)
        } else {
            Future
        }
    }

    /// The outcome for a batch that ends before the next block.
    fn past(&self) -> BatchValidity {
        if self.is_holocene {
            Past
        } else {
            Drop(DropReason::PastBatch)
        }
    }

    pub fn singular(&self, batch: &SingularBatch) -> BatchValidity {
        let Some(epoch) = self.epochs.first() else {
            return Undecided;
        };
        let (time, next) = (batch.timestamp, self.next_time());
        return_if!(time > next, self.future());
        return_if!(time < next, self.past());
        return_if!(
            batch.parent_hash != self.pending_safe.id.hash,
            Drop(DropReason::BatchParent)
        );
        return_if!(
            self.window_expired(batch.epoch_number),
            Drop(DropReason::BatchWindow)
        );
        let advances = batch.epoch_number == epoch.number.saturating_add(1);
        return_if!(
            batch.epoch_number != epoch.number && !advances,
            Drop(DropReason::BatchOrigin)
        );
        let Some(origin) = self.epochs.get(batch.epoch_number) else {
            return Undecided;
        };
        let origin = &origin.block;
        return_if!(
            batch.epoch_hash != origin.hash,
            Drop(DropReason::BatchOrigin)
        );
        return_if!(time < origin.time, Drop(DropReason::BatchTime));
        return_if!(
            self.is_activation(time) && !batch.transactions.is_empty(),
            Drop(DropReason::ActivationBlock)
        );
        match self.drift(time, batch.transactions.is_empty(), origin, advances) {
            Accept => self.transactions(time, &batch.transactions),
            other => other,
        }
    }

    /// Whether the block at this time (Unix seconds) activates Jovian or Karst. Such a block holds no
    /// batch transactions (op-node: checkSingularBatch); earlier forks left that to the sequencer.
    fn is_activation(&self, time: u64) -> bool {
        let (forks, block_time) = (&self.rollup.forks, self.rollup.block_time);
        forks.activates_at(Fork::Jovian, time, block_time)
            || forks.activates_at(Fork::Karst, time, block_time)
    }

    /// A block too far ahead of its L1 origin must be empty, and must take the next origin as soon
    /// as time allows.
    fn drift(&self, time: u64, is_empty: bool, origin: &L1Block, advances: bool) -> BatchValidity {
        let limit = origin
            .time
            .saturating_add(self.rollup.sequencer_drift(origin.time));
        return_if!(time <= limit, Accept);
        return_if!(!is_empty, Drop(DropReason::SequencerDrift));
        return_if!(advances, Accept);
        match self.epochs.get(origin.number.saturating_add(1)) {
            None => Undecided,
            Some(next) if time >= next.block.time => Drop(DropReason::SequencerDrift),
            Some(_) => Accept,
        }
    }

    /// Drops a batch with an empty transaction or one of a type that a batch must not hold: deposits,
    /// set-code (EIP-7702) before Isthmus, and post-exec before Lagoon, which is not derived (specs:
    /// lagoon, derivation). op-node v1.17 leaves post-exec to the engine, which refuses the block;
    /// later versions drop the batch.
    fn transactions(&self, time: u64, transactions: &BatchTransactions) -> BatchValidity {
        let isthmus = self.rollup.forks.is_active(Fork::Isthmus, time);
        let is_legal = |first_byte| match first_byte {
            None | Some(DEPOSIT_TX_TYPE | POST_EXEC_TX_TYPE_ID) => false,
            Some(EIP7702_TX_TYPE_ID) => isthmus,
            Some(_) => true,
        };
        return_if!(
            !transactions.first_bytes().all(is_legal),
            Drop(DropReason::BatchTransaction)
        );
        Accept
    }

    /// Number of the block that the span's parent must be, or the verdict if fork and timestamps
    /// already decide.
    pub fn span_parent_number(&self, span: &SpanBatch) -> Result<u64, BatchValidity> {
        let (first, last) = (&span.first, &span.last);
        let epoch = self.epochs.first().ok_or(Undecided)?;
        let origin = if first.epoch_number == epoch.number.saturating_add(1) {
            self.epochs.second().ok_or(Undecided)?
        } else {
            epoch
        };
        if !self.rollup.l1_active(Fork::Delta, origin) {
            return Err(Drop(DropReason::SpanBeforeDelta));
        }
        let next = self.next_time();
        if first.timestamp > next {
            return Err(self.future());
        }
        if last.timestamp < next {
            return Err(self.past());
        }
        if first.timestamp == next {
            return Ok(self.pending_safe.id.number);
        }
        let misaligned = Drop(DropReason::BatchTime);
        let ahead = self.pending_safe.time.checked_sub(first.timestamp);
        let ahead = ahead.ok_or(misaligned)?;
        if !ahead.is_multiple_of(self.rollup.block_time) {
            return Err(misaligned);
        }
        let overlap = ahead / self.rollup.block_time + 1;
        let parent = self.pending_safe.id.number.checked_sub(overlap);
        parent
            .filter(|parent| *parent >= self.rollup.genesis.l2.number)
            .ok_or(self.before_genesis())
    }

    /// The outcome for a span that begins with the genesis block. op-node cannot read a parent of
    /// that, which in Holocene costs only the span. Before Holocene it would wait for ever.
    fn before_genesis(&self) -> BatchValidity {
        if self.is_holocene {
            Undecided
        } else {
            Drop(DropReason::BatchParent)
        }
    }

    /// The rules that compare the span with its parent and its last L1 origin.
    pub fn span_prefix(&self, span: &SpanBatch, parent: &SpanParent) -> BatchValidity {
        let (first, last) = (&span.first, &span.last);
        return_if!(
            span.parent_check[..] != parent.id.hash[..20],
            Drop(DropReason::BatchParent)
        );
        return_if!(
            self.window_expired(first.epoch_number),
            Drop(DropReason::BatchWindow)
        );
        return_if!(
            first.epoch_number > parent.origin.saturating_add(1),
            Drop(DropReason::BatchOrigin)
        );
        let Some(end) = self.epochs.get(last.epoch_number) else {
            return Undecided;
        };
        return_if!(
            span.l1_origin_check[..] != end.block.hash[..20],
            Drop(DropReason::BatchOrigin)
        );
        return_if!(
            first.epoch_number < parent.origin,
            Drop(DropReason::BatchOrigin)
        );
        Accept
    }

    /// The rules for each block after the pending-safe head, before Holocene. Since then they are applied
    /// one by one, as singular batches.
    pub fn span_blocks(&self, span: &SpanBatch, parent: &SpanParent) -> BatchValidity {
        let mut previous = parent.origin;
        for block in span.blocks.clone() {
            let advances = block.epoch_number > previous;
            previous = block.epoch_number;
            if block.timestamp <= self.pending_safe.time {
                continue;
            }
            match self.span_block(&block, advances) {
                Accept => {}
                other => return other,
            }
        }
        Accept
    }

    fn span_block(&self, block: &SpanBlock, advances: bool) -> BatchValidity {
        // The window holds no L1 block before the origin of the pending-safe head.
        let Some(origin) = self.epochs.get(block.epoch_number) else {
            return Drop(DropReason::BatchOrigin);
        };
        let origin = &origin.block;
        return_if!(block.timestamp < origin.time, Drop(DropReason::BatchTime));
        match self.drift(
            block.timestamp,
            block.transactions.is_empty(),
            origin,
            advances,
        ) {
            Accept => self.transactions(block.timestamp, &block.transactions),
            other => other,
        }
    }
}

/// Whether a block of a span batch repeats this safe block: the same transactions apart from
/// deposits, and an L1 origin of the same number.
pub(super) fn repeats(block: &SpanBlock, safe: &Payload, origin: u64) -> bool {
    // Deposits come first in a block.
    let deposits = safe
        .transactions
        .iter()
        .filter(|transaction| transaction.first() == Some(&DEPOSIT_TX_TYPE))
        .count();
    origin == block.epoch_number && block.transactions == safe.transactions[deposits..]
}

#[cfg(test)]
mod tests;
