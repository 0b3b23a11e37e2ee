//! The driver's reset: heads are searched, the core is moved to them, and the pipeline starts from the
//! safe one.

use super::{
    DriverStepError, RollupDriver,
    start::{StartHeads, StartSearch, StartSearchError},
    write_to_disk,
};
use crate::rollup::{engine::BlockAt, safe_db::SafeBlock};

impl RollupDriver {
    /// Finds the heads, moves the core to them and starts the pipeline from the safe one.
    pub(super) async fn reset(&mut self) -> Result<(), DriverStepError> {
        self.metrics.resets.record(1);
        (self.awaiting_promotion, self.attributes, self.safe) = (None, None, None);
        self.set_displaced_head(None);
        self.status.send_modify(|status| {
            (status.current_l1, status.pending_safe_l2, status.safe_l2) = (None, None, None);
        });
        let search = StartSearch {
            rollup: &self.rollup,
            engine: &self.engine,
            l1: self.l1.client(),
            records: &self.records,
            derived_l1: &self.derived_l1,
            skip_check: self.config.skip_start_check,
        };
        let heads = search.run().await?;
        // Blocks above it are derived again, and may turn out to be others.
        let safe = Some(heads.safe.id.hash);
        self.engine.protect(safe).await?.await?;
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
        self.finality.reset();
        self.l1.on_reset();
        self.derived_l1.clear();
        self.pipeline.reset_from(block, first_l1);
        (self.safe, self.finalized) = (Some(safe), Some(finalized));
        self.start_over = false;
        tracing::info!(head = %head.id, safe = %safe.id, finalized = %finalized.id, "derivation begins");
        Ok(())
    }

    /// Moves the core's heads, and the record of safe heads, to where derivation begins.
    pub(super) async fn move_heads(&self, heads: &StartHeads) -> Result<(), DriverStepError> {
        let StartHeads {
            head,
            safe,
            searched,
            ..
        } = *heads;
        let now = *self.engine.heads().borrow();
        if head.id != searched {
            if now.head != searched {
                return Err(DriverStepError::Moved);
            }
            tracing::warn!(head = %searched, to = %head.id, "L1 reorg: the head goes back to the last block whose L1 origin is canonical");
            let safe = Some(safe.id.hash);
            self.engine.forkchoice(head.id.hash, safe, None).await?;
        } else if now.safe != Some(safe.id) {
            self.engine.promote(Some(safe.id.hash), None).await?;
        }
        let records = self.records.clone();
        let genesis = self.rollup.genesis.l2;
        write_to_disk(move || {
            records.reset(safe.id, safe.origin)?;
            // Genesis is safe by definition.
            if safe.id == genesis && records.is_empty() {
                let (l2, derived_from) = (safe.id, safe.origin);
                records.record(SafeBlock { l2, derived_from })?;
            }
            Ok(())
        })
        .await?;
        Ok(())
    }
}
