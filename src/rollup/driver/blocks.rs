//! Handles derived attributes: the unsafe block is consolidated with them, or a block is built from
//! them. The newest local-safe block is promoted once per L1 block.

use super::{DriverStepError, RollupDriver, access_records, block_ref, start::StartSearchError};
use crate::{
    chain::{ChainError, execute::ExpectedTransactions, executor::MAX_UNWIND},
    rollup::{
        engine::{BlockAt, CoreError},
        safe_db::SafeRecord,
    },
};
use starling_proto::{
    consolidate::consolidates,
    derive::{DerivedAttributes, DropReason},
    payload::{BlockId, Payload},
};
use std::sync::Arc;

/// Largest number of blocks by which one fork choice lowers the unsafe head: half of
/// [`MAX_UNWIND`], because the stored head may be above the unsafe head.
const LOWERED_AT_ONCE: u64 = MAX_UNWIND / 2;

/// Largest size in bytes and number of transactions of a block whose senders are recovered ahead:
/// those of a full block. A batch can list more transactions than fit into a block.
const MAX_EXPECTED_BYTES: usize = 2 << 20;
const MAX_EXPECTED: usize = 5_000;

impl RollupDriver {
    /// Consolidates the unsafe block with the derived attributes, or builds a block from them. The
    /// attributes are kept until a block is accepted or found invalid.
    pub(super) async fn apply_attributes(&mut self) -> Result<(), DriverStepError> {
        let Some(derived) = self.attributes.clone() else {
            return Ok(());
        };
        for error in &derived.ignored {
            tracing::warn!(l1_block = %derived.derived_from.hash, %error, "a configuration log on L1 has no effect");
        }
        let (parent, head) = (derived.parent.id, self.engine.heads().borrow().head);
        if head.number < parent.number {
            let reason = format!("the head {head} is below the pending safe block {parent}");
            return Err(DriverStepError::Reset(reason));
        }
        if head.number > parent.number {
            let number = parent.number.saturating_add(1);
            let block = self.engine.block(BlockAt::Number(number)).await?;
            let block = block.ok_or_else(|| {
                DriverStepError::Reset(format!("the unsafe block {number} is not in the chain"))
            })?;
            match consolidates(&self.rollup, parent.hash, &derived.attributes, &block) {
                Ok(()) => {
                    // If the block has been displaced meanwhile, the next step detects it.
                    self.engine.queue_protect(Some(block.hash)).await?;
                    return self.accept(block, &derived);
                }
                Err(mismatch) => {
                    tracing::warn!(unsafe_block = %block.id(), pending_safe = %parent, %mismatch, "L2 reorg: existing unsafe block does not match derived attributes from L1");
                }
            }
            if !derived.concluding && self.backup_unsafe.is_none() {
                let head = self.engine.block(BlockAt::Hash(head.hash)).await?;
                let head = head
                    .map(|head| block_ref(&head, &self.rollup))
                    .transpose()?;
                self.set_backup_unsafe(head);
            }
        }
        let attributes = derived.attributes.clone();
        let expected = self.expected.take();
        // These senders are recovered while the current block executes.
        self.expected = self.expect_transactions();
        match self.engine.derive(parent.hash, attributes, expected).await {
            Ok(block) => self.accept(block, &derived),
            Err(CoreError::Chain(ChainError::Build(reason))) => {
                self.reject(&derived, &reason).await
            }
            // The unsafe head is so far above the parent that the core keeps no state of the
            // parent.
            Err(CoreError::Chain(ChainError::UnknownBlock(unknown))) if unknown == parent.hash => {
                self.lower_head(parent).await
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Starts to recover the senders of the next block's transactions.
    fn expect_transactions(&self) -> Option<ExpectedTransactions> {
        let next = self.pipeline.next_transactions()?;
        let fits = next.size() <= MAX_EXPECTED_BYTES && next.len() <= MAX_EXPECTED;
        if !fits {
            return None;
        }
        self.engine.expect(next.iter().collect())
    }

    /// Lowers the unsafe head towards `to`, by at most [`LOWERED_AT_ONCE`] blocks.
    async fn lower_head(&self, to: BlockId) -> Result<(), DriverStepError> {
        let head = self.engine.heads().borrow().head;
        if head.number <= to.number {
            return Err(DriverStepError::Reset(format!(
                "the pending safe block {to} is not in the chain, whose head is {head}"
            )));
        }
        let number = to.number.max(head.number.saturating_sub(LOWERED_AT_ONCE));
        let block = self.engine.block(BlockAt::Number(number)).await?;
        let block = block.ok_or(StartSearchError::Missing(number))?;
        tracing::warn!(%head, to = %block.id(), "the unsafe head is lowered to override its chain");
        Ok(self.engine.forkchoice(block.hash, None, None).await?)
    }

    /// Accepts a protected block that has the derived attributes: reports it to the pipeline. If
    /// the block concludes its batch, it also becomes the local-safe block and awaits promotion.
    fn accept(
        &mut self,
        block: Arc<Payload>,
        derived: &DerivedAttributes,
    ) -> Result<(), DriverStepError> {
        let safe = block_ref(&block, &self.rollup)?;
        let (number, origin) = (safe.id.number, safe.origin.number);
        self.pipeline.accepted(block)?;
        (self.attributes, self.record_in_doubt) = (None, None);
        if derived.concluding {
            let derived_from = derived.derived_from.id();
            tracing::debug!(number, hash = %safe.id.hash, origin, derived_from = derived_from.number, "a block is safe");
            self.local_safe = Some(safe);
            self.awaiting_promotion = Some(SafeRecord {
                l2: safe.id,
                derived_from,
            });
            self.set_backup_unsafe(None);
        }
        Ok(())
    }

    /// Handles derived attributes whose block the core finds invalid. Only the first invalid block
    /// of an L1 block is logged as a warning, since a hostile batcher can cause many invalid
    /// blocks. [`RollupDriver::report_drops`] logs their number.
    async fn reject(
        &mut self,
        derived: &DerivedAttributes,
        reason: &str,
    ) -> Result<(), DriverStepError> {
        let (parent, derived_from) = (derived.parent.id, derived.derived_from.id());
        let is_first = !self.drops.contains(DropReason::InvalidBlock);
        if is_first {
            tracing::warn!(%parent, %derived_from, reason, deposits_only = derived.deposits_only, "a derived block is invalid");
        } else {
            tracing::debug!(%parent, %derived_from, reason, "another derived block is invalid");
        }
        self.pipeline.invalid(reason)?;
        self.attributes = None;
        let back = self.pipeline.pending_safe().map(|pending| pending.id);
        // The blocks of the span batch above the pending-safe block no longer count as derived.
        // Move the protection back to the pending-safe block.
        self.engine.protect(back.map(|back| back.hash)).await?;
        let backup = self.backup_unsafe.map(|head| head.id);
        self.set_backup_unsafe(None);
        match backup {
            Some(head) if back != Some(parent) => {
                if is_first {
                    tracing::warn!(%head, "the unsafe head is reinstated");
                }
                Ok(self.engine.forkchoice(head.hash, None, None).await?)
            }
            _ => Ok(()),
        }
    }

    /// Records the newest local-safe block and makes it the core's safe head: once per L1 block.
    pub(super) async fn promote(&mut self) -> Result<(), DriverStepError> {
        let Some(block) = self.awaiting_promotion else {
            return Ok(());
        };
        // Record first: a restart continues from the newest record, which must not be below the
        // core's safe head.
        let records = self.safe_db.clone();
        access_records(move || records.record(block)).await?;
        self.engine.promote(Some(block.l2.hash), None).await?;
        self.awaiting_promotion = None;
        self.safe = self.local_safe;
        self.finality.on_safe(block);
        tracing::info!(number = block.l2.number, hash = %block.l2.hash, derived_from = block.derived_from.number, "safe head");
        Ok(())
    }
}
