//! Output roots of canonical blocks, from the core's state: for JSON-RPC, and for a proposer in the
//! same process.

use super::{handle::RollupHandle, status::RollupStatus};
use crate::chain::{rows::ReadError, rules::MESSAGE_PASSER, trie::TrieError, view::View};
use alloy_primitives::B256;
use starling_proto::{
    fork::Fork,
    l1info::{L1InfoError, L2BlockRef},
    output::output_root,
};
use std::sync::Arc;

/// An output root, and its parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RollupOutput {
    pub root: B256,
    pub block: L2BlockRef,
    pub state_root: B256,
    /// Storage root of the message passer.
    pub withdrawal_root: B256,
}

impl RollupOutput {
    /// The output whose parts these are.
    pub fn new(block: L2BlockRef, state_root: B256, withdrawal_root: B256) -> Self {
        Self {
            root: output_root(state_root, withdrawal_root, block.id.hash),
            block,
            state_root,
            withdrawal_root,
        }
    }
}

/// Why there is no output root.
#[derive(Debug, thiserror::Error)]
pub enum OutputError {
    /// The block is above the head.
    #[error("not found")]
    NotFound,
    #[error(
        "the withdrawals' storage root at block #{number} is pruned, the oldest is at block #{oldest}"
    )]
    Pruned { number: u64, oldest: u64 },
    #[error("no message passer contract at block #{0}")]
    NoMessagePasser(u64),
    #[error("block {number}: {error}")]
    Block { number: u64, error: L1InfoError },
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error(transparent)]
    Trie(#[from] TrieError),
}

/// The output root of a canonical block.
pub fn at_block(
    rollup: &RollupHandle,
    view: &Arc<View>,
    number: u64,
) -> Result<RollupOutput, OutputError> {
    let header = view.header_of(number)?.ok_or(OutputError::NotFound)?;
    let is_isthmus = rollup
        .config
        .forks
        .is_active(Fork::Isthmus, header.timestamp);
    let in_header = is_isthmus && !rollup.withdrawal_root_from_state;
    let withdrawal_root = match header.withdrawals_root.filter(|_| in_header) {
        Some(root) => root,
        None => message_passer_root(view, number)?,
    };
    let block = block_ref(rollup, view, number)?;
    Ok(RollupOutput::new(block, header.state_root, withdrawal_root))
}

/// The unsafe head of a view beside the driver's heads, which were read before the view was taken.
pub fn unsafe_l2(
    rollup: &RollupHandle,
    status: &RollupStatus,
    view: &View,
) -> Result<L2BlockRef, OutputError> {
    let head = view.head().number;
    match status.safe_l2 {
        // A reorg between the two lowered the head.
        Some(safe) if safe.id.number > head => Ok(safe),
        _ => block_ref(rollup, view, head),
    }
}

/// The reference of a canonical block.
pub fn block_ref(
    rollup: &RollupHandle,
    view: &View,
    number: u64,
) -> Result<L2BlockRef, OutputError> {
    let payload = view.payload(number)?.ok_or(OutputError::NotFound)?;
    L2BlockRef::of(&payload, &rollup.config.genesis)
        .map_err(|error| OutputError::Block { number, error })
}

/// The storage root of the message passer after a block.
fn message_passer_root(view: &Arc<View>, number: u64) -> Result<B256, OutputError> {
    let state = view.provable_state(number, MESSAGE_PASSER)?;
    let state = state.ok_or_else(|| OutputError::Pruned {
        number,
        oldest: view.oldest_proof(MESSAGE_PASSER),
    })?;
    let account = state.prove(MESSAGE_PASSER, &[])?.account;
    let account = account.ok_or(OutputError::NoMessagePasser(number))?;
    Ok(account.storage_root)
}
