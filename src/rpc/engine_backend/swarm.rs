//! The Engine API and the swarm: if a rollup node names a head whose block or ancestors are
//! missing, the swarm fetches them from peers. The head is set when all of its ancestors have been
//! executed. A rollup node in `execution-layer` sync mode waits for this; in `consensus-layer` mode
//! it fills gaps this way.

use super::{EngineBackend, REJECTED_BEFORE, branch::MAX_BRANCH, memory::EngineMemory};
use crate::chain::{ChainError, Inserted, head_owner::HeadOwner};
use alloy_primitives::B256;
use alloy_rpc_types_engine::ForkchoiceState;
use starling_proto::payload::Payload;
use starling_proto::provenance::Provenance;
use std::sync::Arc;

impl EngineBackend {
    /// Remembers a fork choice whose head is missing, and has the swarm fetch the missing
    /// ancestors.
    pub(super) async fn fetch_missing_head(
        &self,
        memory: &mut EngineMemory,
        state: ForkchoiceState,
    ) -> Result<(), ChainError> {
        let head = state.head_block_hash;
        let lowest = self.lowest_known(memory, head).await?;
        memory.pending_forkchoice = Some(state);
        let awaited = lowest.as_ref().map_or(head, |payload| payload.hash);
        self.chain
            .update_head_owner(|owner| owner.on_missing(awaited));
        if let (Some(network), Some(payload)) = (&self.network, lowest) {
            tracing::debug!(%head, number = payload.number(), hash = %payload.hash, "fetching the ancestors of this block from peers");
            network.fetch_below(payload).await;
        }
        Ok(())
    }

    /// Walks from `tip` down to the lowest payload that we have, whose parent is missing. `None` if
    /// the walk reaches the chain, or if `tip` itself is missing.
    async fn lowest_known(
        &self,
        memory: &mut EngineMemory,
        tip: B256,
    ) -> Result<Option<Arc<Payload>>, ChainError> {
        let (mut lowest, mut at) = (None, tip);
        for _ in 0..MAX_BRANCH {
            if self.chain.knows(at) {
                return Ok(None);
            }
            let Some(payload) = self.find(memory, at).await? else {
                break;
            };
            at = payload.parent_hash();
            lowest = Some(payload);
        }
        Ok(lowest)
    }

    /// Called when the chain has executed a block of the swarm or found it invalid. Payloads that
    /// waited for the block are executed, and a missing head may now become the head.
    pub async fn on_swarm_block(
        &self,
        hash: B256,
        provenance: Provenance,
        inserted: &Inserted,
    ) -> Result<(), ChainError> {
        let mut memory = self.memory.lock().await;
        memory.on_inserted(hash, inserted);
        match (inserted, provenance) {
            (Inserted::Valid, _) => {
                self.execute_waiting(&mut memory, hash).await?;
                self.apply_pending_forkchoice(&mut memory).await
            }
            (Inserted::Invalid { latest_valid, .. }, Provenance::Ancestor { of }) => {
                self.reject_pending_branch(&mut memory, of.hash, *latest_valid)
                    .await
            }
            _ => Ok(()),
        }
    }

    /// Applies the last fork choice whose head was missing, if that head has been executed and the
    /// rollup node still owns the head.
    async fn apply_pending_forkchoice(&self, memory: &mut EngineMemory) -> Result<(), ChainError> {
        let ready = |state: &mut ForkchoiceState| self.chain.knows(state.head_block_hash);
        if !self.is_driven() {
            memory.pending_forkchoice = None;
        }
        let Some(state) = memory.pending_forkchoice.take_if(ready) else {
            return Ok(());
        };
        match self.apply_forkchoice(memory, &state).await? {
            Ok(resolved) => {
                self.chain.update_head_owner(HeadOwner::on_settled);
                if let Some(problem) = resolved.problem {
                    tracing::warn!(
                        problem,
                        "a fork choice names a safe or finalized block that is not on the branch of its head"
                    );
                }
                tracing::info!(head = %state.head_block_hash, "the head that the rollup node named is fetched and set");
            }
            Err(status) => {
                tracing::warn!(head = %state.head_block_hash, ?status, "the head that the rollup node named cannot be set")
            }
        }
        Ok(())
    }

    /// Rejects every block from `lowest`, which has an invalid ancestor, up to the missing head.
    async fn reject_pending_branch(
        &self,
        memory: &mut EngineMemory,
        lowest: B256,
        latest_valid: Option<B256>,
    ) -> Result<(), ChainError> {
        let mut at = memory
            .pending_forkchoice
            .map_or(lowest, |state| state.head_block_hash);
        let mut branch = vec![];
        while at != lowest && branch.len() < MAX_BRANCH {
            branch.push(at);
            let Some(payload) = self.find(memory, at).await? else {
                return Ok(());
            };
            at = payload.parent_hash();
        }
        memory.pending_forkchoice = None;
        self.chain.update_head_owner(HeadOwner::on_settled);
        for hash in branch.into_iter().chain([lowest]) {
            memory.reject(hash, latest_valid, REJECTED_BEFORE);
        }
        Ok(())
    }
}
