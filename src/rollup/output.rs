//! Output roots of canonical blocks, computed from the core's state, for JSON-RPC and for a
//! proposer in the same process.
//!
//! From Isthmus on, the header contains all parts of an output root. For earlier blocks, or if the
//! operator requests it, the storage root of the message passer is read from the state: from the
//! local core, or through a proof of the execution client in another process. Each call reads one
//! block and at most one proof. JSON-RPC and the proposer bound the number of concurrent calls.

use super::{
    engine::{BlockAt, CoreError, Engine},
    handle::RollupHandle,
    status::RollupStatus,
};
use crate::chain::{
    ChainError, rows::ReadError, rules::MESSAGE_PASSER, trie::TrieError, view::View,
};
use alloy_primitives::B256;
use starling_proto::{
    fork::Fork,
    l1info::{L1InfoError, L2BlockRef},
    output::output_root,
    payload::Payload,
};
use std::sync::Arc;

/// An output root and its parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RollupOutput {
    pub root: B256,
    pub block: L2BlockRef,
    pub state_root: B256,
    /// Storage root of the message passer.
    pub withdrawal_root: B256,
}

impl RollupOutput {
    /// Computes the output root from its parts.
    pub fn new(block: L2BlockRef, state_root: B256, withdrawal_root: B256) -> Self {
        Self {
            root: output_root(state_root, withdrawal_root, block.id.hash),
            block,
            state_root,
            withdrawal_root,
        }
    }
}

/// The reason why there is no output root.
#[derive(Debug, thiserror::Error)]
pub enum OutputError {
    /// The block is above the head, or its body is pruned.
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
    #[error(transparent)]
    Core(#[from] CoreError),
}

/// The output root of a canonical block.
pub async fn at_block(rollup: &RollupHandle, number: u64) -> Result<RollupOutput, OutputError> {
    let block = rollup.engine.block(BlockAt::Number(number)).await?;
    let block = block.ok_or(OutputError::NotFound)?;
    let header = &block.header;
    let is_isthmus = rollup
        .config
        .forks
        .is_active(Fork::Isthmus, header.timestamp);
    let in_header = is_isthmus && !rollup.withdrawal_root_from_state;
    let withdrawal_root = match header.withdrawals_root.filter(|_| in_header) {
        Some(root) => root,
        None => message_passer_root(&rollup.engine, &block).await?,
    };
    let reference = block_ref(rollup, &block)?;
    Ok(RollupOutput::new(
        reference,
        header.state_root,
        withdrawal_root,
    ))
}

/// The core's unsafe head, to be reported beside the driver's heads. The caller has read the
/// driver's heads first: heads mostly rise, so the safe head is then not above the unsafe head.
pub async fn unsafe_l2(
    rollup: &RollupHandle,
    status: &RollupStatus,
) -> Result<L2BlockRef, OutputError> {
    let head = rollup.engine.block(BlockAt::Head).await?;
    let head = head.ok_or(OutputError::NotFound)?;
    match status.local_safe_l2 {
        // A reorg between the two reads has lowered the unsafe head.
        Some(safe) if safe.id.number > head.number() => Ok(safe),
        _ => block_ref(rollup, &head),
    }
}

/// The block's number, hash, L1 origin and sequence number.
fn block_ref(rollup: &RollupHandle, block: &Payload) -> Result<L2BlockRef, OutputError> {
    L2BlockRef::of(block, &rollup.config.genesis).map_err(|error| OutputError::Block {
        number: block.number(),
        error,
    })
}

/// The storage root of the message passer after a canonical block.
async fn message_passer_root(engine: &Engine, block: &Payload) -> Result<B256, OutputError> {
    match engine {
        Engine::Local(chain) => {
            let (view, number) = (chain.view(), block.number());
            let read = tokio::task::spawn_blocking(move || root_in_view(&view, number));
            let stopped = |_| CoreError::from(ChainError::Stopped);
            read.await.map_err(stopped)?
        }
        Engine::Remote(client) => Ok(client.message_passer_root(block).await?),
    }
}

/// The storage root of the message passer after a block, from a view of the local core.
fn root_in_view(view: &Arc<View>, number: u64) -> Result<B256, OutputError> {
    let state = view.provable_state(number, MESSAGE_PASSER)?;
    let state = state.ok_or_else(|| OutputError::Pruned {
        number,
        oldest: view.oldest_proof(MESSAGE_PASSER),
    })?;
    let account = state.prove(MESSAGE_PASSER, &[])?.account;
    let account = account.ok_or(OutputError::NoMessagePasser(number))?;
    Ok(account.storage_root)
}
