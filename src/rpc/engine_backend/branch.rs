//! Branches of the Engine API: executes the blocks between the chain and a tip. They are executed
//! beside our chain or, for a fork choice, while the chain switches to the branch.
//!
//! Blocks come from the waiting payloads and from the payload log. A request executes at most
//! [`MAX_BRANCH`] blocks, and has one of them in memory at a time.

use super::{
    EngineBackend, REJECTED_BEFORE, accepted, heads::ResolvedHeads, invalid, memory::EngineMemory,
    syncing, valid,
};
use crate::chain::{ChainError, Inserted};
use alloy_primitives::B256;
use alloy_rpc_types_engine::{ForkchoiceState, PayloadStatus};
use starling_proto::payload::Payload;
use starling_proto::provenance::Provenance;
use std::sync::Arc;

/// Maximum blocks that one request executes. Their hashes are in memory meanwhile.
pub(super) const MAX_BRANCH: usize = 65_536;

/// The mode in which the blocks of a branch are executed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum BranchMode {
    /// No head moves. A block that exceeds the chain's limits is kept in the payload log, and so are
    /// its waiting descendants.
    BesideChain,
    /// The chain may switch to the branch, because a fork choice names its head.
    SwitchTo,
}

/// The path of blocks between the chain and a tip.
enum BranchPath {
    /// Hashes of the blocks on the path, from the tip down.
    Complete(Vec<B256>),
    /// A block of the path is missing, or the path is longer than [`MAX_BRANCH`].
    Missing,
    /// A block of the path is invalid; contains the status of the tip.
    Invalid(PayloadStatus),
}

impl EngineBackend {
    /// Makes the named block the head, if it is known or can be executed. Otherwise the inner error
    /// is the status of the block, and no head has moved.
    pub(super) async fn apply_forkchoice(
        &self,
        memory: &mut EngineMemory,
        state: &ForkchoiceState,
    ) -> Result<Result<ResolvedHeads, PayloadStatus>, ChainError> {
        let applied = self.execute_and_set_heads(memory, state).await;
        if matches!(applied, Ok(Ok(_))) {
            return applied;
        }
        // The chain may have switched to the named head's branch before the failure: switch back.
        let abandoned = self.chain.abandon_forkchoice().await;
        let applied = applied?;
        abandoned?;
        Ok(applied)
    }

    async fn execute_and_set_heads(
        &self,
        memory: &mut EngineMemory,
        state: &ForkchoiceState,
    ) -> Result<Result<ResolvedHeads, PayloadStatus>, ChainError> {
        let head = state.head_block_hash;
        // Two attempts: the fork point of a known branch may have become too deep. Such a branch is
        // dropped in the first attempt, and executed again in the second.
        for _ in 0..2 {
            if !self.chain.knows(head) {
                let status = self.execute_branch(memory, head, BranchMode::SwitchTo);
                match status.await? {
                    None => break,
                    Some(status) if status.is_invalid() => return Ok(Err(status)),
                    Some(_) => {}
                }
            }
            if let Some(resolved) = self.set_heads(state).await? {
                return Ok(Ok(resolved));
            }
        }
        Ok(Err(syncing()))
    }

    /// Executes the blocks between the chain and `tip`. They are taken from the waiting payloads
    /// and from the payload log, which also has blocks that the chain has dropped. Returns `None`
    /// if some blocks are missing.
    pub(super) async fn execute_branch(
        &self,
        memory: &mut EngineMemory,
        tip: B256,
        mode: BranchMode,
    ) -> Result<Option<PayloadStatus>, ChainError> {
        let mut path = match self.path_to(memory, tip).await? {
            BranchPath::Complete(path) => path,
            BranchPath::Missing => return Ok(None),
            BranchPath::Invalid(status) => return Ok(Some(status)),
        };
        while let Some(hash) = path.pop() {
            let Some(payload) = self.find(memory, hash).await? else {
                return Ok(None);
            };
            let inserted = match mode {
                BranchMode::BesideChain => self.insert(memory, payload).await?,
                BranchMode::SwitchTo => self.switch_to(memory, payload).await?,
            };
            match inserted {
                Inserted::Valid => memory.remove_waiting(&hash),
                Inserted::Invalid {
                    latest_valid,
                    reason,
                } => return Ok(Some(reject_all(memory, &path, latest_valid, &reason))),
                Inserted::NotExecutable if mode == BranchMode::BesideChain => {
                    for hash in path.into_iter().chain([hash]) {
                        if let Some(payload) = memory.waiting(&hash) {
                            self.keep(memory, payload).await?;
                        }
                    }
                    return Ok(Some(accepted()));
                }
                Inserted::Syncing | Inserted::NotExecutable => return Ok(None),
            }
        }
        Ok(Some(valid(tip)))
    }

    /// Finds the blocks from `tip` down to the chain.
    async fn path_to(
        &self,
        memory: &mut EngineMemory,
        tip: B256,
    ) -> Result<BranchPath, ChainError> {
        let mut path = Vec::new();
        let mut at = tip;
        while !self.chain.knows(at) {
            if let Some(rejected) = memory.rejected(at) {
                let (latest_valid, reason) = (rejected.latest_valid, rejected.reason.clone());
                let status = reject_all(memory, &path, latest_valid, &reason);
                return Ok(BranchPath::Invalid(status));
            }
            let Some(payload) = self.find(memory, at).await? else {
                return Ok(BranchPath::Missing);
            };
            if path.len() == MAX_BRANCH {
                return Ok(BranchPath::Missing);
            }
            path.push(at);
            at = payload.parent_hash();
        }
        Ok(BranchPath::Complete(path))
    }

    /// Like [`EngineBackend::insert`], but the chain may switch to the payload's branch. The result
    /// is [`Inserted::NotExecutable`] if the fork point is out of reach.
    async fn switch_to(
        &self,
        memory: &mut EngineMemory,
        payload: Arc<Payload>,
    ) -> Result<Inserted, ChainError> {
        let hash = payload.hash;
        let inserted = match self.chain.switch_to(payload, Provenance::Engine).await {
            Err(ChainError::UnknownBlock(_)) => Inserted::NotExecutable,
            inserted => inserted?,
        };
        memory.on_inserted(hash, &inserted);
        Ok(inserted)
    }
}

/// Rejects the descendants of a rejected block. Returns the status of the last descendant, or the
/// status of the rejected block itself if there are no descendants.
fn reject_all(
    memory: &mut EngineMemory,
    descendants: &[B256],
    latest_valid: Option<B256>,
    reason: &str,
) -> PayloadStatus {
    for hash in descendants {
        memory.reject(*hash, latest_valid, REJECTED_BEFORE);
    }
    if descendants.is_empty() {
        invalid(latest_valid, reason)
    } else {
        invalid(latest_valid, REJECTED_BEFORE)
    }
}
