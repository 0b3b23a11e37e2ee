//! Finds the L1 block up to which the rollup node must have derived before the batcher loads
//! blocks. Otherwise blocks that are already on L1 could be posted again.

use crate::{
    rollup::l1::{L1Client, L1Error},
    txmgr::shell::TxManagerHandle,
};
use alloy_primitives::{Address, U64};
use serde_json::json;

/// The reason why [`sync_target`] failed.
#[derive(Debug, thiserror::Error)]
pub enum SyncTargetError {
    #[error("failed to retrieve l1 tip: {0}")]
    Tip(L1Error),
    #[error("failed checking recent batcher txs: {0}")]
    RecentTxs(L1Error),
    #[error("the transaction manager has ended; the log says why")]
    Stopped,
}

/// Number of the L1 block up to which the rollup node must have derived. With `depth` 0 this is
/// L1's newest block. Otherwise it is the newest of the last `depth` blocks
/// (`--check-recent-txs-depth`) with a transaction of the account, or `tip - depth` if none has
/// one. First waits, for one resubmission timeout at most, until the transactions that an earlier
/// process left in the pool are mined.
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

/// The newest L1 block, at most `depth` below `tip`, that has a transaction of `account`. Returns
/// `tip - depth` if no such block has one.
async fn last_transaction(
    l1: &L1Client,
    account: Address,
    tip: u64,
    depth: u64,
) -> Result<u64, L1Error> {
    let newest = nonce(l1, account, tip).await?;
    // Binary search for the first block with the newest nonce: `at` has that nonce, `below` a lower
    // one.
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
