//! The driver's reads of L1: the pipeline's inputs, the wait for the next block, and finality.

use super::{
    DriverStepError, L1ReadError, NextAction, RollupDriver, access_records, reset_requested,
};
use crate::rollup::{
    engine::BlockAt,
    finality::FinalityCandidate,
    l1::{L1Block, L1Heads},
};
use starling_proto::{
    derive::{DropReason, L1Link, Need},
    payload::BlockId,
};

/// The verdict on a [`FinalityCandidate`] after comparing it with L1.
enum FinalityVerdict {
    Final,
    /// The block that L1 reported as finalized is not on L1's canonical chain.
    FalseSignal,
    /// L1 has another block at the height of the one that the candidate was derived from.
    Reorged,
}

impl RollupDriver {
    /// Fetches the input that the pipeline needs.
    pub(super) async fn fetch(&mut self, need: Need) -> Result<NextAction, DriverStepError> {
        match need {
            Need::L1Block { number, link } => {
                self.end_l1_block().await?;
                return self.next_l1(number, link).await;
            }
            Need::Blobs { block, blobs } => {
                let data = match self.l1.blobs(&block, &blobs).await {
                    Ok(data) => data,
                    Err(error) => return Err(self.blobs_error(&block, error).await),
                };
                self.pipeline.push_blobs(block.hash, &data)?;
            }
            Need::L2Block { number, hash } => {
                if let Some(pending) = self.pipeline.pending_safe().filter(|_| hash.is_none()) {
                    // Protect the pending-safe block first. Otherwise the head may be on another
                    // branch, and the block of this number need not belong to the safe chain.
                    self.engine.protect(Some(pending.id.hash)).await?;
                }
                let at = hash.map_or(BlockAt::Number(number), BlockAt::Hash);
                let block = self.engine.block(at).await?.ok_or_else(|| {
                    DriverStepError::Reset(format!(
                        "block {number} of the safe chain is not in the chain"
                    ))
                })?;
                self.pipeline.push_l2(block)?;
            }
        }
        Ok(NextAction::Again)
    }

    /// The error to return when blobs cannot be read: a reset if L1 has replaced the block of the
    /// blobs. Beacon nodes serve only the blobs of a slot's canonical block, so no later attempt
    /// would succeed.
    async fn blobs_error(&self, block: &L1Block, error: L1ReadError) -> DriverStepError {
        let is_replaced = match self.l1.canonical_hash(block.number).await {
            Ok(canonical) => canonical != block.hash,
            // L1's head is now below this block.
            Err(L1ReadError::NotServed { .. }) => true,
            Err(_) => false,
        };
        if is_replaced {
            let block = block.id();
            let reason =
                format!("L1 reorg: block {block} is not canonical, so its blobs are not served");
            return DriverStepError::Reset(reason);
        }
        error.into()
    }

    /// Reads L1 block `number` and pushes it into the pipeline, if it has enough confirmations.
    /// Then finalizes the blocks that L1's finalized block allows. Called after
    /// [`Self::end_l1_block`] for the previous L1 block.
    pub(super) async fn next_l1(
        &mut self,
        number: u64,
        link: L1Link,
    ) -> Result<NextAction, DriverStepError> {
        let input = match link {
            L1Link::Hash(hash) => self.l1.input_by_hash(hash).await?.ok_or_else(|| {
                DriverStepError::Reset(format!("L1 no longer has block {number} ({hash})"))
            })?,
            L1Link::ChildOf(_) if self.has_confirmations(number) => {
                let head = self
                    .l1_heads
                    .borrow()
                    .head
                    .map_or(number, |head| head.number);
                // Read no further: a block without enough confirmations may be orphaned later.
                let deep = head.saturating_sub(self.config.l1_confs);
                self.l1.input(number, deep, self.pipeline.batcher()).await?
            }
            L1Link::ChildOf(_) => {
                self.pipeline.no_l1_yet();
                return Ok(NextAction::Again);
            }
        };
        let block = input.block.id();
        self.check_newest_record(block).await?;
        self.pipeline.push_l1(input)?;
        self.derived_l1.push(block);
        self.finalize(block).await?;
        Ok(NextAction::Again)
    }

    /// Resets derivation if L1 has replaced the block of the newest safe-head record since the
    /// search for the start. The pipeline would otherwise skip the batches of the new block as
    /// already applied. The record is deleted first, so that the next search does not begin at it.
    async fn check_newest_record(&self, block: BlockId) -> Result<(), DriverStepError> {
        let recorded = self.safe_db.last().map(|record| record.derived_from);
        let replaced = |at: &BlockId| at.number == block.number && at.hash != block.hash;
        let Some(at) = recorded.filter(replaced) else {
            return Ok(());
        };
        self.remove_newest_record().await?;
        let reason =
            format!("L1 reorg: safe blocks were derived from {at}, and L1 has {block} there");
        Err(DriverStepError::Reset(reason))
    }

    /// Resets derivation to one record lower if the first batches after the newest record are all
    /// for later blocks than the next one. The blocks between must be in the record's L1 block,
    /// whose other batches would be skipped for good. Earlier builds wrote such records.
    async fn check_first_batches(&mut self) -> Result<(), DriverStepError> {
        let Some(safe) = self.record_in_doubt else {
            return Ok(());
        };
        if !self.drops.contains(DropReason::FutureBatch) {
            return Ok(());
        }
        self.has_doubted = true;
        self.remove_newest_record().await?;
        let reason = format!(
            "the first batches after the recorded safe block {safe} are for later blocks, so the \
             record is wrong or a batch is missing: derivation begins one record lower"
        );
        Err(DriverStepError::Reset(reason))
    }

    async fn remove_newest_record(&self) -> Result<(), DriverStepError> {
        let records = self.safe_db.clone();
        access_records(move || records.remove_newest()).await
    }

    /// Completes the pipeline's L1 origin: promotes and records the safe head, logs dropped data,
    /// publishes the heads, then `current_l1`.
    pub(super) async fn end_l1_block(&mut self) -> Result<(), DriverStepError> {
        self.promote().await?;
        self.check_first_batches().await?;
        self.report_drops();
        // Publish the heads before `current_l1`: a batcher reposts the blocks that are not safe
        // when `current_l1` has passed their data.
        self.publish_status();
        if let Some(origin) = self.pipeline.origin().copied() {
            self.status
                .send_modify(|status| status.current_l1 = Some(origin));
        }
        Ok(())
    }

    /// Whether an L1 block has enough confirmations to be derived from.
    pub(super) fn has_confirmations(&self, number: u64) -> bool {
        let head = self.l1_heads.borrow().head;
        head.is_some_and(|head| number.saturating_add(self.config.l1_confs) <= head.number)
    }

    /// Waits until L1 may have block `next` with enough confirmations, has replaced a block that
    /// derivation has read, or has a new finalized block. Also returns on a request to reset.
    pub(super) async fn wait_for_l1(&mut self, next: u64) {
        loop {
            let heads = *self.l1_heads.borrow_and_update();
            self.publish_status();
            if self.has_confirmations(next) {
                return;
            }
            let replaced = |head: &L1Block| self.derived_l1.is_contradicted_by(head);
            if let Some(head) = heads.head.filter(replaced) {
                tracing::warn!(%next, head = %head.id(), "L1 reorg: a block that was derived from is not canonical");
                self.reset_pending = true;
                return;
            }
            let finalized = self.finalized_l1();
            if finalized.is_some_and(|block| self.finality.is_news(block)) {
                return;
            }
            tokio::select! {
                changed = self.l1_heads.changed() => if changed.is_err() { return std::future::pending().await },
                () = reset_requested(&self.resets) => return,
            }
        }
    }

    /// L1's finalized block, unless the endpoint reports one above L1's head.
    fn finalized_l1(&self) -> Option<BlockId> {
        let L1Heads {
            head, finalized, ..
        } = *self.l1_heads.borrow();
        let head = head?.number;
        let finalized = finalized.filter(|finalized| finalized.number <= head)?;
        Some(finalized.id())
    }

    /// Finalizes the blocks that L1's finalized block allows. `derived` is the pipeline's current
    /// L1 origin. A failed read of L1 is only logged, since derivation does not depend on finality.
    pub(super) async fn finalize(&mut self, derived: BlockId) -> Result<(), DriverStepError> {
        if let Some(finalized) = self.finalized_l1() {
            self.finality.on_finalized_l1(finalized);
        }
        let Some(candidate) = self.finality.candidate(derived) else {
            return Ok(());
        };
        let FinalityCandidate {
            block,
            finalized_l1,
        } = candidate;
        match self.check_finality(&candidate).await {
            Ok(FinalityVerdict::Final) => {
                self.engine.promote(None, Some(block.l2.hash)).await?;
                self.finality.attempted(derived, Some(block.l2));
                self.finalized = self.block_ref_at(block.l2.number).await?;
                tracing::info!(number = block.l2.number, hash = %block.l2.hash, finalized_l1 = finalized_l1.number, "finalized head");
                Ok(())
            }
            Ok(FinalityVerdict::FalseSignal) => {
                tracing::warn!(finalized_l1 = %finalized_l1, "L1 does not have the block that it reported as finalized: the report is ignored");
                self.finality.refuse_finalized_l1();
                Ok(())
            }
            Ok(FinalityVerdict::Reorged) => {
                self.finality.attempted(derived, None);
                let l1 = block.derived_from;
                if !self.finality.on_reorged(block) {
                    tracing::debug!(%l1, safe = %block.l2, "the L1 block of a recorded safe head is not canonical");
                    return Ok(());
                }
                Err(DriverStepError::Reset(format!(
                    "L1 block {l1} is not canonical, and a block derived from it was to be finalized"
                )))
            }
            Err(error) => {
                self.finality.attempted(derived, None);
                self.metrics.errors.record(1);
                tracing::warn!(%error, finalized_l1 = %finalized_l1, "the finalized head could not be checked; it is tried again");
                Ok(())
            }
        }
    }

    /// Compares the candidate's L1 block and L1's finalized block with L1.
    async fn check_finality(
        &self,
        candidate: &FinalityCandidate,
    ) -> Result<FinalityVerdict, L1ReadError> {
        let FinalityCandidate {
            block,
            finalized_l1,
        } = candidate;
        match self.l1.canonical_hash(finalized_l1.number).await {
            Ok(hash) if hash == finalized_l1.hash => {}
            Ok(_) | Err(L1ReadError::NotServed { .. }) => return Ok(FinalityVerdict::FalseSignal),
            Err(error) => return Err(error),
        }
        let canonical = self.l1.canonical_hash(block.derived_from.number).await?;
        if canonical != block.derived_from.hash {
            return Ok(FinalityVerdict::Reorged);
        }
        Ok(FinalityVerdict::Final)
    }
}
