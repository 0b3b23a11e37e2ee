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

/// A canonical block with its reference.
#[derive(Clone, Debug)]
pub struct CanonicalBlock {
    payload: Arc<Payload>,
    pub reference: L2BlockRef,
}

/// The reason why there is no output root. Texts about the block itself are op-node's.
#[derive(Debug, thiserror::Error)]
pub enum OutputError {
    /// The block is above the head, or its body is pruned.
    #[error("failed to determine L2BlockRef of height {0}, could not get payload: not found")]
    NotFound(u64),
    #[error("failed to determine L2BlockRef of height {number}, could not get payload: {error}")]
    Unread { number: u64, error: CoreError },
    #[error("the core has no head")]
    NoHead,
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
    of_block(rollup, &block_at(rollup, number).await?).await
}

/// The canonical block of this height.
pub async fn block_at(rollup: &RollupHandle, number: u64) -> Result<CanonicalBlock, OutputError> {
    let block = rollup.engine.block(BlockAt::Number(number)).await;
    let block = block.map_err(|error| OutputError::Unread { number, error })?;
    let payload = block.ok_or(OutputError::NotFound(number))?;
    let reference = block_ref(rollup, &payload)?;
    Ok(CanonicalBlock { payload, reference })
}

/// The output root of a block.
pub async fn of_block(
    rollup: &RollupHandle,
    block: &CanonicalBlock,
) -> Result<RollupOutput, OutputError> {
    let header = &block.payload.header;
    let is_isthmus = rollup
        .config
        .forks
        .is_active(Fork::Isthmus, header.timestamp);
    let in_header = is_isthmus && !rollup.withdrawal_root_from_state;
    let withdrawal_root = match header.withdrawals_root.filter(|_| in_header) {
        Some(root) => root,
        None => message_passer_root(&rollup.engine, &block.payload).await?,
    };
    Ok(RollupOutput::new(
        block.reference,
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
    let head = head.ok_or(OutputError::NoHead)?;
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
