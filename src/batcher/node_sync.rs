//! The L1 block that the rollup node must have derived before loading begins: otherwise blocks that
//! are on L1 already would be posted again.

use crate::{
    rollup::l1::{L1Client, L1Error},
    txmgr::shell::TxManagerHandle,
};
use alloy_primitives::{Address, U64};
use serde_json::json;

/// The reason why the block is not known.
#[derive(Debug, thiserror::Error)]
pub enum SyncTargetError {
    #[error("failed to retrieve l1 tip: {0}")]
    Tip(L1Error),
    #[error("failed checking recent batcher txs: {0}")]
    RecentTxs(L1Error),
    #[error("the transaction manager has ended; the log says why")]
    Stopped,
}

/// Number of the L1 block that the rollup node must have derived: L1's newest, or, with a `depth`
/// (`--check-recent-txs-depth`), the newest of the last `depth` blocks that has a transaction of the
/// account (`tip - depth` without one). Waits until transactions that a predecessor
/// left in the pool are mined.
pub async fn sync_target(
    l1: L1Client,
    txs: TxManagerHandle,
    depth: u64,
) -> Result<u64, SyncTargetError> {
    let mut status = txs.status();
    let settled = status.wait_for(|status| status.settled).await;
    settled.map_err(|_| SyncTargetError::Stopped)?;
    let tip = l1.head_number().await.map_err(SyncTargetError::Tip)?;
    if depth == 0 {
        return Ok(tip);
    }
    let recent = last_transaction(&l1, txs.address(), tip, depth).await;
    recent.map_err(SyncTargetError::RecentTxs)
}

/// The newest block at most `depth` below `tip` that has a transaction of the account; without one,
/// the lowest of these blocks.
async fn last_transaction(
    l1: &L1Client,
    account: Address,
    tip: u64,
    depth: u64,
) -> Result<u64, L1Error> {
    let newest = nonce(l1, account, tip).await?;
    // The nonce is lower at `below`, or unknown; it is the newest one at `at`.
    let mut below = tip.saturating_sub(depth);
    if nonce(l1, account, below).await? == newest {
        return Ok(below);
    }
    let mut at = tip;
    while at - below > 1 {
        let middle = below + (at - below) / 2;
        if nonce(l1, account, middle).await? == newest {
            at = middle;
        } else {
            below = middle;
        }
    }
    Ok(at)
}

async fn nonce(l1: &L1Client, account: Address, block: u64) -> Result<u64, L1Error> {
    let params = json!([account, U64::from(block)]);
    let nonce: U64 = l1.plain_call("eth_getTransactionCount", params).await?;
    Ok(nonce.to())
}
