//! L2 in this process: the chain's views and the driver's heads.

use super::{L1Ref, L2SourceError, SourceHeads};
use crate::{
    chain::Chain,
    rollup::{
        handle::RollupHandle,
        l1::L1Block,
        output::{self, RollupOutput},
    },
};
use starling_proto::{
    config::RollupConfig,
    payload::{BlockId, Payload},
};
use std::sync::Arc;

/// Handles to the chain and to the driver of this process.
#[derive(Clone)]
pub struct LocalSource {
    pub chain: Chain,
    pub rollup: RollupHandle,
}

fn l1_ref(block: L1Block) -> L1Ref {
    L1Ref {
        id: block.id(),
        parent_hash: block.parent_hash,
        time: block.time,
    }
}

impl LocalSource {
    pub(super) fn rollup_config(&self) -> Arc<RollupConfig> {
        self.rollup.config.clone()
    }

    pub(super) async fn heads(&self) -> Result<SourceHeads, L2SourceError> {
        let status = self.rollup.driver.status();
        let unsafe_l2 = output::unsafe_l2(&self.rollup, &status).await?;
        Ok(SourceHeads {
            current_l1: status.current_l1.map(l1_ref),
            head_l1: status.head_l1.map(l1_ref),
            safe_l1: status.safe_l1.map(l1_ref),
            finalized_l1: status.finalized_l1.map(l1_ref),
            unsafe_l2: Some(unsafe_l2),
            safe_l2: status.safe_l2,
            local_safe_l2: status.local_safe_l2,
            finalized_l2: status.finalized_l2,
        })
    }

    pub(super) async fn output_at(&self, number: u64) -> Result<RollupOutput, L2SourceError> {
        Ok(output::at_block(&self.rollup, number).await?)
    }

    pub(super) fn block(&self, number: u64) -> Result<Option<Arc<Payload>>, L2SourceError> {
        Ok(self.chain.view().payload(number)?)
    }

    pub(super) fn block_id(&self, number: u64) -> Result<Option<BlockId>, L2SourceError> {
        let hash = self.chain.view().hash_of(number)?;
        Ok(hash.map(|hash| BlockId { hash, number }))
    }
}
