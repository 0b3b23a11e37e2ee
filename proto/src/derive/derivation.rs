//! The running pipeline: the stages, the pending-safe head, and the attributes in flight.

use super::{
    BatchSource, CriticalError, DerivedAttributes, DropReason, L1Input, L1Link, Need, PipelineStep,
    PushError, ResetReason, ResetWalk,
    batches::{BatchMux, NextBatch},
    stage::{Pause, Pull, StageContext},
};
use crate::{
    attributes::{AttributesError, attributes},
    batch::BatchTransactions,
    config::RollupConfig,
    deposit::DEPOSIT_TX_TYPE,
    fork::{BlobSchedule, Fork},
    l1info::L2BlockRef,
    payload::Payload,
    system_config::SystemConfig,
};
use alloy_primitives::Bytes;
use std::sync::Arc;

/// Least gas that a transaction uses: refunds give back at most a fifth of 21,000 (EIP-3529).
const MIN_TRANSACTION_GAS: u64 = 16_800;
/// Least gas that a byte of a transaction uses, rounded down: 4 for a zero byte (EIP-2028), less a
/// fifth. Signature and fixed fields have no such cost, but they are far below the 5,600 bytes that
/// [`MIN_TRANSACTION_GAS`] pays for at this rate.
const MIN_BYTE_GAS: u64 = 3;

#[derive(Debug)]
pub(super) struct Derivation {
    pub source: BatchSource,
    batches: BatchMux,
    pending: SafeHead,
    /// The last head that concluded a batch. Before Holocene the pending-safe head moves back to
    /// this block if a block in the middle of a span batch is invalid.
    concluded: SafeHead,
    in_flight: InFlightAttributes,
    /// The need that the last step returned.
    pub needed: Option<Need>,
}

/// A block of the safe chain, in full and as a reference.
#[derive(Clone, Debug)]
struct SafeHead {
    payload: Arc<Payload>,
    block: L2BlockRef,
}

/// The attributes that still need a verdict of the caller, if any.
#[derive(Debug)]
enum InFlightAttributes {
    None,
    /// The deposits of a block that was invalid. The next step returns these attributes.
    Ready(Box<DerivedAttributes>),
    /// A copy of the attributes that an earlier step returned, with only the deposits among the
    /// transactions. In Holocene, if the block of the full attributes is invalid, the next step
    /// returns this copy.
    AwaitingVerdict(Box<DerivedAttributes>),
}

impl Derivation {
    pub fn new(
        cx: &mut StageContext,
        walk: &ResetWalk,
        base: L1Input,
        config: SystemConfig,
    ) -> Self {
        let head = SafeHead {
            payload: walk.safe.clone(),
            block: walk.safe_ref(),
        };
        let mut source = BatchSource::new(cx, base, config);
        Self {
            batches: BatchMux::new(&cx.rollup, &mut source, walk.first_l1),
            source,
            pending: head.clone(),
            concluded: head,
            in_flight: InFlightAttributes::None,
            needed: None,
        }
    }

    pub fn pending_safe(&self) -> L2BlockRef {
        self.pending.block
    }

    /// The transactions of the next block in the current span batch.
    pub fn next_transactions(&self) -> Option<BatchTransactions> {
        self.batches.next_transactions()
    }

    pub fn step(
        &mut self,
        cx: &mut StageContext,
        schedule: &BlobSchedule,
        pushed: &mut Option<L1Input>,
    ) -> PipelineStep {
        let ready = match std::mem::replace(&mut self.in_flight, InFlightAttributes::None) {
            InFlightAttributes::AwaitingVerdict(attributes) => {
                self.in_flight = InFlightAttributes::AwaitingVerdict(attributes);
                return PipelineStep::AwaitingVerdict;
            }
            InFlightAttributes::Ready(attributes) => Ok(attributes),
            InFlightAttributes::None => self.next(cx, schedule),
        };
        let step = match ready {
            Ok(mut attributes) => {
                self.in_flight = InFlightAttributes::AwaitingVerdict(Box::new(deposits_only_copy(
                    &mut attributes,
                )));
                PipelineStep::Attributes(attributes)
            }
            Err(Pause::More) => PipelineStep::More,
            Err(Pause::End) => self.advance(cx, pushed),
            Err(Pause::Step(step)) => *step,
        };
        self.needed = match &step {
            PipelineStep::Need(need) => Some(need.clone()),
            _ => None,
        };
        step
    }

    /// Moves on to the next L1 block if the caller has pushed it, and requests it otherwise.
    fn advance(&mut self, cx: &mut StageContext, pushed: &mut Option<L1Input>) -> PipelineStep {
        let origin = *self.source.origin();
        let Some(next) = pushed.take() else {
            return PipelineStep::Need(Need::L1Block {
                number: origin.number.saturating_add(1),
                link: L1Link::ChildOf(origin.hash),
            });
        };
        if next.block.parent_hash != origin.hash {
            return PipelineStep::Reset(ResetReason::L1Reorg {
                got: next.block.id(),
                expected: origin.hash,
            });
        }
        let time = next.block.time;
        self.source.advance(cx, next);
        if cx.rollup.forks.activates(Fork::Holocene, origin.time, time) {
            self.batches.enter_holocene();
        }
        PipelineStep::More
    }

    fn next(
        &mut self,
        cx: &mut StageContext,
        schedule: &BlobSchedule,
    ) -> Pull<Box<DerivedAttributes>> {
        let pending_safe = self.pending.block;
        let next_time = pending_safe.time.saturating_add(cx.rollup.block_time);
        let forks = &cx.rollup.forks;
        forks
            .check_before_lagoon(next_time)
            .map_err(CriticalError::from)?;
        let next = self.batches.next(cx, &mut self.source, &pending_safe)?;
        self.attributes_or_drop(cx, schedule, next)
    }

    /// Builds the attributes of the block that a batch describes. A batch can have more
    /// transactions than any block. Such a block is dropped here, before each transaction is copied
    /// out of the batch. Before Holocene this also rewinds the pending-safe head.
    fn attributes_or_drop(
        &mut self,
        cx: &mut StageContext,
        schedule: &BlobSchedule,
        NextBatch { batch, concluding }: NextBatch,
    ) -> Pull<Box<DerivedAttributes>> {
        let parent = self.pending.block;
        let failed = |cause: String| CriticalError::Attributes {
            parent: parent.id,
            cause,
        };
        let Some(origin) = self.batches.epoch_block(batch.epoch_number) else {
            let cause = format!("L1 origin {} is not known", batch.epoch_number);
            return Err(failed(cause).into());
        };
        let is_new_epoch = batch.epoch_number != parent.origin.number;
        let receipts = is_new_epoch.then(|| origin.logs.to_receipts());
        let derived = attributes(
            &cx.rollup,
            schedule,
            &self.pending.payload,
            &origin.block,
            receipts.as_deref(),
        );
        let derived = derived.map_err(|error| match error {
            AttributesError::Deposit(error) => Pause::from(CriticalError::Deposit(error)),
            AttributesError::Origin { .. } | AttributesError::Time { .. } => {
                ResetReason::Attributes(error.to_string()).into()
            }
            error => failed(error.to_string()).into(),
        })?;
        let mut attributes = derived.attributes;
        attributes.no_tx_pool = Some(true);
        let is_possible = may_fit(&batch.transactions, attributes.gas_limit);
        if is_possible {
            let transactions = attributes.transactions.get_or_insert_default();
            transactions.extend(batch.transactions.iter());
        }
        let attributes = Box::new(DerivedAttributes {
            parent,
            attributes,
            concluding,
            derived_from: *self.source.origin(),
            deposits_only: batch.transactions.is_empty(),
            ignored: derived.ignored,
        });
        if is_possible {
            return Ok(attributes);
        }
        self.drop_invalid(cx, attributes).ok_or(Pause::More)
    }

    pub fn accepted(
        &mut self,
        rollup: &RollupConfig,
        payload: Arc<Payload>,
    ) -> Result<(), PushError> {
        let InFlightAttributes::AwaitingVerdict(attributes) = &self.in_flight else {
            return Err(PushError::NotNeeded("a block"));
        };
        let parent = attributes.parent.id;
        let other = |got: String| PushError::Other {
            wanted: format!("the block on {parent}"),
            got,
        };
        if payload.parent_hash() != parent.hash
            || parent.number.checked_add(1) != Some(payload.number())
        {
            return Err(other(payload.id().to_string()));
        }
        let block = L2BlockRef::of(&payload, &rollup.genesis)
            .map_err(|error| other(format!("{} ({error})", payload.id())))?;
        self.pending = SafeHead { payload, block };
        if attributes.concluding {
            self.concluded = self.pending.clone();
        }
        self.in_flight = InFlightAttributes::None;
        Ok(())
    }

    /// Drops the block of the attributes in flight, because the engine found it invalid. Returns
    /// the error if derivation cannot go on without this block.
    pub fn invalid(
        &mut self,
        cx: &mut StageContext,
        reason: &str,
    ) -> Result<Option<CriticalError>, PushError> {
        let attributes = match std::mem::replace(&mut self.in_flight, InFlightAttributes::None) {
            InFlightAttributes::AwaitingVerdict(attributes) => attributes,
            other => {
                self.in_flight = other;
                return Err(PushError::NotNeeded("a verdict"));
            }
        };
        if attributes.deposits_only {
            return Ok(Some(CriticalError::DepositsOnly {
                parent: attributes.parent.id,
                cause: reason.to_owned(),
            }));
        }
        if let Some(deposits) = self.drop_invalid(cx, attributes) {
            self.in_flight = InFlightAttributes::Ready(deposits);
        }
        Ok(None)
    }

    /// Drops an invalid block. In Holocene this returns the attributes to build instead, so the
    /// transactions of `attributes` must already be deposits only. Before Holocene it rewinds the
    /// pending-safe head to the last block that concluded a batch and returns `None`.
    fn drop_invalid(
        &mut self,
        cx: &mut StageContext,
        mut attributes: Box<DerivedAttributes>,
    ) -> Option<Box<DerivedAttributes>> {
        cx.drops.add(DropReason::InvalidBlock);
        let derived_from = &attributes.derived_from;
        if cx.rollup.l1_active(Fork::Holocene, derived_from) {
            self.batches.flush(cx, &mut self.source);
            attributes.deposits_only = true;
            Some(attributes)
        } else {
            self.pending = self.concluded.clone();
            cx.safe_blocks.rewind();
            None
        }
    }
}

/// Whether these transactions may fit in a block with this gas limit.
fn may_fit(transactions: &BatchTransactions, gas_limit: Option<u64>) -> bool {
    let [count, size] = [transactions.len(), transactions.size()].map(|number| number as u64);
    let least = count
        .saturating_mul(MIN_TRANSACTION_GAS)
        .max(size.saturating_mul(MIN_BYTE_GAS));
    gas_limit.is_none_or(|limit| least <= limit)
}

/// Copies attributes with only the deposits among the transactions. `attributes` itself keeps all
/// transactions.
fn deposits_only_copy(attributes: &mut DerivedAttributes) -> DerivedAttributes {
    let all = attributes.attributes.transactions.take();
    let mut kept = attributes.clone();
    let is_deposit = |transaction: &&Bytes| transaction.first() == Some(&DEPOSIT_TX_TYPE);
    let deposits = all.iter().flatten().filter(is_deposit);
    kept.attributes.transactions = Some(deposits.cloned().collect());
    attributes.attributes.transactions = all;
    kept
}

#[cfg(test)]
mod tests;
