//! The driver's reset: it finds the heads to begin from, moves the core to them, and restarts the
//! pipeline at the safe head.

use super::{
    DriverStepError, RollupDriver, access_records, block_ref,
    start::{StartHeads, StartSearch, StartSearchError},
};
use crate::{
    chain::Heads,
    rollup::{engine::BlockAt, safe_db::SafeRecord},
};
use starling_proto::{l1info::L2BlockRef, payload::BlockId};

impl RollupDriver {
    /// Finds the heads to begin from, moves the core to them and restarts the pipeline at the safe
    /// head. While L1 is unreachable the search fails; until it succeeds, the core's heads are
    /// published.
    pub(super) async fn reset(&mut self) -> Result<(), DriverStepError> {
        self.metrics.resets.record(1);
        self.report_drops();
        (self.awaiting_promotion, self.attributes, self.expected) = (None, None, None);
        self.record_in_doubt = None;
        self.set_backup_unsafe(None);
        self.take_core_heads().await?;
        self.status.send_modify(|status| status.current_l1 = None);
        self.publish_status();
        let search = StartSearch {
            rollup: &self.rollup,
            engine: &self.engine,
            l1: self.l1.client(),
            safe_db: &self.safe_db,
            derived_l1: &self.derived_l1,
        };
        let heads = search.run().await?;
        // Publish before the head is lowered, since lowering it may displace the old safe block.
        (self.local_safe, self.finalized) = (Some(heads.safe), Some(heads.finalized));
        self.safe = self.local_safe;
        self.publish_status();
        // Protect only up to the safe head: the blocks above it are derived again and may differ.
        let safe = Some(heads.safe.id.hash);
        self.engine.protect(safe).await?;
        self.move_heads(&heads).await?;
        let StartHeads {
            head,
            safe,
            finalized,
            first_l1,
            ..
        } = heads;
        let block = self.engine.block(BlockAt::Hash(safe.id.hash)).await?;
        let block = block.ok_or(StartSearchError::Missing(safe.id.number))?;
        self.restore_finality(finalized.id).await?;
        self.l1.on_reset();
        self.derived_l1.clear();
        self.pipeline.reset(block, first_l1);
        let skips_batches = first_l1 > 0 && safe.id != self.rollup.genesis.l2;
        self.record_in_doubt = (skips_batches && !self.has_doubted).then_some(safe.id);
        self.reset_pending = false;
        tracing::info!(head = %head.id, safe = %safe.id, finalized = %finalized.id, "derivation begins");
        Ok(())
    }

    /// Resets finality and restores the safe blocks of the newest records. Derivation continues
    /// after these blocks and does not derive them again. The next safe block may follow hours
    /// later.
    pub(super) async fn restore_finality(
        &mut self,
        finalized: BlockId,
    ) -> Result<(), DriverStepError> {
        let (records, most) = (self.safe_db.clone(), self.config.finality_lookback);
        let newest = access_records(move || records.newest(most)).await;
        let newest = newest.unwrap_or_else(|error| {
            let error = crate::telemetry::sentence(&error.into());
            tracing::warn!(error, "finality begins without the recorded safe blocks");
            Vec::new()
        });
        self.finality.reset();
        self.finality.restore(finalized.number, newest);
        Ok(())
    }

    /// Sets the driver's heads from the core's safe and finalized heads and from the newest record.
    /// The higher safe block of core and record counts, because a core that was killed may have
    /// stored a lower safe head. Does nothing before the first search: the stored heads may be
    /// lower than those published before the restart.
    async fn take_core_heads(&mut self) -> Result<(), DriverStepError> {
        if self.local_safe.is_none() {
            return Ok(());
        }
        let Heads {
            safe, finalized, ..
        } = *self.engine.heads().borrow();
        let recorded = self.safe_db.last().map(|record| record.l2);
        let recorded = self.canonical_reference(recorded).await?;
        let safe = self.canonical_reference(safe).await?;
        self.local_safe = recorded
            .into_iter()
            .chain(safe)
            .max_by_key(|safe| safe.id.number);
        self.safe = self.local_safe;
        let finalized = self.canonical_reference(finalized).await?;
        self.finalized = finalized.or(self.finalized);
        Ok(())
    }

    /// The reference of a block; `None` if the block is not on the canonical chain.
    async fn canonical_reference(
        &self,
        block: Option<BlockId>,
    ) -> Result<Option<L2BlockRef>, DriverStepError> {
        let Some(id) = block else { return Ok(None) };
        let found = self.engine.block(BlockAt::Number(id.number)).await?;
        let found = found.filter(|found| found.id() == id);
        let found = found.map(|found| block_ref(&found, &self.rollup));
        Ok(found.transpose()?)
    }

    /// Moves the core's heads and the safe-head records to the start of derivation. The head may
    /// have moved during the search, so it is lowered only if `heads.lowest_orphaned` is still in
    /// the chain.
    pub(super) async fn move_heads(&self, heads: &StartHeads) -> Result<(), DriverStepError> {
        let StartHeads {
            head,
            safe,
            lowest_orphaned,
            ..
        } = *heads;
        let now = *self.engine.heads().borrow();
        let orphaned = self.canonical_reference(lowest_orphaned).await?;
        if orphaned.is_some_and(|orphaned| orphaned.parent_hash == head.id.hash) {
            tracing::warn!(head = %now.head, to = %head.id, "L1 reorg: the head is lowered to the last block whose L1 origin is canonical");
            let safe = Some(safe.id.hash);
            self.engine.forkchoice(head.id.hash, safe, None).await?;
        } else if now.safe != Some(safe.id) {
            self.engine.promote(Some(safe.id.hash), None).await?;
        }
        let records = self.safe_db.clone();
        let genesis = self.rollup.genesis.l2;
        access_records(move || {
            records.reset(safe.id)?;
            let never_derived = records.last().is_none_or(|last| last.l2 == genesis);
            if safe.id != genesis && never_derived {
                // A record of genesis would make the next reset begin at genesis.
                return records.truncate(0);
            }
            if never_derived {
                // Genesis is safe by definition.
                let (l2, derived_from) = (safe.id, safe.origin);
                records.record(SafeRecord { l2, derived_from })?;
            }
            Ok(())
        })
        .await?;
        Ok(())
    }
}
