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
    /// The verdict depends on an L1 block that is not derived yet.
    Undecided,
    /// The batch may become valid after earlier batches are applied; not used in Holocene.
    Future,
    /// All blocks of the batch are already safe; only used in Holocene.
    Past,
}

use BatchValidity::{Accept, Drop, Future, Past, Undecided};

/// The state that a batch is checked against.
#[derive(Clone, Copy, Debug)]
pub(super) struct BatchCheck<'a> {
    pub rollup: &'a RollupConfig,
    pub epochs: &'a EpochBlocks,
    /// The pending-safe head, on which a batch must build.
    pub pending_safe: &'a L2BlockRef,
    /// Number of the inclusion block: the L1 block that completed the channel.
    pub inclusion: u64,
    /// Whether the inclusion block is in Holocene.
    pub is_holocene: bool,
}

/// The parent of a span batch's first block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SpanParent {
    pub id: BlockId,
    /// Number of the parent's L1 origin.
    pub origin: u64,
}

/// Returns this outcome from the function if the condition holds.
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

    /// Whether the sequencing window of L1 block `epoch` ended before the batch was included.
    fn window_expired(&self, epoch: u64) -> bool {
        epoch.saturating_add(self.rollup.seq_window_size) < self.inclusion
    }

    /// The outcome for a batch whose first new block comes after the next block.
    fn future(&self) -> BatchValidity {
        if self.is_holocene {
            Drop(DropReason::FutureBatch)
        } else {
            Future
        }
    }

    /// The outcome for a batch whose last block is before the next block.
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

    /// Whether the block at this time (Unix seconds) activates Jovian or Karst. A batch must not
    /// have transactions for such a block (op-node: checkSingularBatch). For earlier forks this was
    /// only a rule of the sequencer.
    fn is_activation(&self, time: u64) -> bool {
        let (forks, block_time) = (&self.rollup.forks, self.rollup.block_time);
        forks.activates_at(Fork::Jovian, time, block_time)
            || forks.activates_at(Fork::Karst, time, block_time)
    }

    /// A block too far ahead of its L1 origin must be empty. It must also move to the next L1
    /// origin as soon as its timestamp allows.
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

    /// Drops a batch with an empty transaction or with a type that a batch must not have: deposits,
    /// set-code (EIP-7702) before Isthmus, and post-exec before Lagoon. Lagoon itself is not
    /// derived (specs: lagoon, derivation). op-node v1.17 passes post-exec on to the engine, which
    /// refuses the block. Later versions of op-node drop the batch.
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

    /// Number that the span's parent block must have, or the verdict if fork and timestamps already
    /// decide.
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

    /// The outcome for a span that begins at or before the genesis block. op-node cannot read the
    /// parent of genesis. In Holocene only the span is lost by this. Before Holocene op-node would
    /// wait forever, so here the span is dropped.
    fn before_genesis(&self) -> BatchValidity {
        if self.is_holocene {
            Undecided
        } else {
            Drop(DropReason::BatchParent)
        }
    }

    /// Checks the rules that compare the span with its parent and with its last L1 origin.
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

    /// Checks each block of the span that is later than the pending-safe head. Used only before
    /// Holocene: from Holocene on, these blocks are checked one by one, as singular batches.
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
        // The block's origin is too old: the window begins at the origin of the pending-safe head.
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

/// Whether a block of a span batch repeats this safe block: its transactions equal those of the
/// safe block without deposits, and the L1 origins have the same number.
pub(super) fn repeats(block: &SpanBlock, safe: &Payload, origin: u64) -> bool {
    // Deposits come first in a block, so the count is the position of the first other one.
    let deposits = safe
        .transactions
        .iter()
        .filter(|transaction| transaction.first() == Some(&DEPOSIT_TX_TYPE))
        .count();
    origin == block.epoch_number && block.transactions == safe.transactions[deposits..]
}

#[cfg(test)]
mod tests;
