//! A block whose execution is interrupted between two transactions, and continues later on any
//! thread.

use super::BlockExecution;
use crate::chain::{
    evm::{Deadline, ParentState, PausedVm, Vm},
    receipt::Receipt,
    rules::ChainSpec,
};
use alloy_consensus::Header;

/// The executed part of a block, without the state of its parent.
pub type PausedExecution = BlockExecution<PausedVm>;

impl BlockExecution {
    /// Keeps the execution so far, but not the state before the block.
    pub fn pause(self) -> PausedExecution {
        self.with(Vm::pause, |before| before.header_only())
    }
}

impl PausedExecution {
    /// Approximate bytes of the state read and changed and of the receipts.
    pub fn weight(&self) -> usize {
        let receipts: usize = self.receipts.iter().map(Receipt::weight).sum();
        self.vm.weight() + receipts
    }

    /// Continues the block with this header on `parent`, the state before the block.
    pub fn resume(
        self,
        spec: &ChainSpec,
        header: &Header,
        parent: &ParentState,
        deadline: Deadline,
    ) -> BlockExecution {
        self.with(
            |vm| vm.resume(spec, header, parent.clone(), deadline),
            |_| parent.clone(),
        )
    }
}

impl<V> BlockExecution<V> {
    /// Replaces the EVM and the state before the block, and keeps the rest of the execution.
    fn with<W>(
        self,
        vm: impl FnOnce(V) -> W,
        parent: impl FnOnce(ParentState) -> ParentState,
    ) -> BlockExecution<W> {
        BlockExecution {
            active: self.active,
            gas_limit: self.gas_limit,
            vm: vm(self.vm),
            receipts: self.receipts,
            gas_used: self.gas_used,
            da_footprint: self.da_footprint,
            blob_gas_used: self.blob_gas_used,
            max_blob_gas: self.max_blob_gas,
            activates_jovian: self.activates_jovian,
            footprint: self.footprint,
            early_chain_ids: self.early_chain_ids,
            post_states: self.post_states.map(parent),
            ethereum: self.ethereum,
        }
    }
}
