//! The heads of a fork choice: makes a known block the head, and resolves the safe and the
//! finalized block of the same fork choice, as op-geth does.

use super::{EngineBackend, blocking};
use crate::chain::{
    Chain, ChainError, Heads,
    view::{ReadError, View},
};
use alloy_primitives::B256;
use alloy_rpc_types_engine::ForkchoiceState;
use starling_proto::payload::BlockId;
use std::sync::Arc;

/// The branch of a named head: the blocks of `view` up to number `head`.
struct HeadBranch {
    view: Arc<View>,
    head: u64,
}

impl HeadBranch {
    fn number_of(&self, hash: B256) -> Result<Option<u64>, ReadError> {
        Ok(self
            .view
            .number_of(hash)?
            .filter(|number| *number <= self.head))
    }

    fn hash_of(&self, number: u64) -> Result<Option<B256>, ReadError> {
        if number > self.head {
            Ok(None)
        } else {
            self.view.hash_of(number)
        }
    }
}

/// The safe and the finalized block for a new head.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct ResolvedHeads {
    safe: Option<BlockId>,
    finalized: Option<BlockId>,
    /// The error about a named block that is wrong. Such a name has no effect, but the head moves
    /// all the same, as in op-geth.
    pub problem: Option<String>,
}

impl EngineBackend {
    /// Makes a known block the head. The safe and the finalized head follow as far as they can.
    /// Returns `None` if the block's fork point is out of reach.
    pub(super) async fn set_heads(
        &self,
        state: &ForkchoiceState,
    ) -> Result<Option<ResolvedHeads>, ChainError> {
        let head = state.head_block_hash;
        let present = self.chain.view();
        // If the named head is an ancestor of the present head, the present view already contains
        // its branch, and no unwind data is needed.
        let ancestor = {
            let present = present.clone();
            blocking(move || present.number_of(head).map_err(ChainError::from)).await?
        };
        let branch = match ancestor {
            Some(number) => HeadBranch {
                view: present,
                head: number,
            },
            None => match self.chain.view_of(head).await {
                Err(ChainError::UnknownBlock(_)) => return Ok(None),
                view => view.map(|view| HeadBranch {
                    head: view.head().number,
                    view,
                })?,
            },
        };
        let (chain, kept, state) = (self.chain.clone(), *self.chain.heads().borrow(), *state);
        let resolved =
            blocking(move || resolve(&chain, &branch, &kept, &state).map_err(ChainError::from))
                .await?;
        let (safe, finalized) = (
            resolved.safe.map(|id| id.hash),
            resolved.finalized.map(|id| id.hash),
        );
        match self.chain.forkchoice(head, safe, finalized).await {
            Err(ChainError::UnknownBlock(_)) => Ok(None),
            moved => moved.map(|()| Some(resolved)),
        }
    }
}

/// Resolves the safe and the finalized block on a branch. If the fork choice does not name one of
/// these two, its present value is lowered to the newest block that the branch shares with our
/// chain.
fn resolve(
    chain: &Chain,
    branch: &HeadBranch,
    kept: &Heads,
    state: &ForkchoiceState,
) -> Result<ResolvedHeads, ReadError> {
    let present = chain.view();
    let lower = |id| newest_shared(&present, branch, id);
    let mut resolved = ResolvedHeads {
        safe: kept.safe.map(lower).transpose()?,
        finalized: kept.finalized.map(lower).transpose()?,
        problem: None,
    };
    let named = |name: &str, hash: B256| named_block(chain, branch, name, hash);
    resolved.problem = resolved.set_named(state, named)?.err();
    Ok(resolved)
}

impl ResolvedHeads {
    /// Sets the named blocks, the finalized block first, as in op-geth. The finalized block must
    /// not be above the safe block: if only one is named, the other is moved to it where necessary.
    /// The inner error is about the first wrong name.
    fn set_named(
        &mut self,
        state: &ForkchoiceState,
        named: impl Fn(&str, B256) -> Result<Result<BlockId, String>, ReadError>,
    ) -> Result<Result<(), String>, ReadError> {
        let (safe, finalized) = (state.safe_block_hash, state.finalized_block_hash);
        if !finalized.is_zero() {
            let id = match named("final", finalized)? {
                Ok(id) => id,
                Err(problem) => return Ok(Err(problem)),
            };
            if !safe.is_zero()
                && let Ok(safe) = named("safe", safe)?
                && safe.number < id.number
            {
                return Ok(Err("final block is above the safe block".into()));
            }
            self.finalized = Some(id);
            self.safe = self
                .safe
                .map(|safe| if safe.number < id.number { id } else { safe });
        }
        if !safe.is_zero() {
            let id = match named("safe", safe)? {
                Ok(id) => id,
                Err(problem) => return Ok(Err(problem)),
            };
            self.safe = Some(id);
            self.finalized = self
                .finalized
                .map(|old| if old.number > id.number { id } else { old });
        }
        Ok(Ok(()))
    }
}

/// Finds a named block on the branch. The inner error has op-geth's text for a block that is not on
/// the branch.
fn named_block(
    chain: &Chain,
    branch: &HeadBranch,
    name: &str,
    hash: B256,
) -> Result<Result<BlockId, String>, ReadError> {
    Ok(match branch.number_of(hash)? {
        Some(number) => Ok(BlockId { number, hash }),
        None if chain.knows(hash) => Err(format!("{name} block not in canonical chain")),
        None => Err(format!("{name} block not available in database")),
    })
}

/// The newest block at or below `id` that both branches contain. `id` is a block of the present
/// branch.
fn newest_shared(present: &View, branch: &HeadBranch, id: BlockId) -> Result<BlockId, ReadError> {
    if branch.number_of(id.hash)? == Some(id.number) {
        return Ok(id);
    }
    let mut number = id.number.min(branch.head);
    loop {
        if let Some(hash) = branch.hash_of(number)?
            && (number == 0 || present.hash_of(number)? == Some(hash))
        {
            return Ok(BlockId { number, hash });
        }
        number = number.checked_sub(1).ok_or(ReadError::Unlinked(0))?;
    }
}
