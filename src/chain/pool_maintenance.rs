//! Pool maintenance: one task that walks every new block of the canonical chain, so that the pool
//! drops mined transactions and reinstates those of abandoned blocks. The task reads views only. If
//! several heads are new, it processes them in one walk.

use crate::chain::{
    Chain,
    execute::recover,
    heads::{Cursor, Step, StepError},
    pool::{HeadChange, PoolTx},
    rows::ReadError,
    rules::{ChainSpec, Rules},
    view::View,
};
use alloy_primitives::{Address, Bytes, U256};
use starling_proto::{fork::Fork, l1info::L1BlockInfo, payload::Payload};
use std::{collections::HashMap, sync::Arc};
use tokio_util::sync::CancellationToken;

/// Maximum number of blocks reported to the pool at once, which bounds the memory of a long walk.
const MAX_STEPS: usize = 1000;

/// Follows the head until the token is cancelled. Starts at the head at the time of this call, so
/// that no head between this call and the first poll is missed.
pub fn run(
    chain: Chain,
    token: CancellationToken,
) -> impl Future<Output = anyhow::Result<()>> + Send {
    let mut heads = chain.heads();
    let mut cursor = Cursor::new(chain.view().head());
    async move {
        loop {
            tokio::select! {
                () = token.cancelled() => return Ok(()),
                changed = heads.changed() => if changed.is_err() { return Ok(()) },
            }
            heads.mark_unchanged();
            let chain = chain.clone();
            cursor = tokio::task::spawn_blocking(move || {
                if let Err(error) = follow(&chain, &mut cursor) {
                    tracing::error!(%error, "the pool could not follow the head");
                }
                cursor
            })
            .await?;
        }
    }
}

/// Walks to the head, at most [`MAX_STEPS`] blocks at a time.
fn follow(chain: &Chain, cursor: &mut Cursor) -> Result<(), ReadError> {
    let view = chain.view();
    let mut before = None;
    while *cursor != Cursor::new(view.head()) && before != Some(*cursor) {
        before = Some(*cursor);
        let mut change = HeadChange {
            base_fee: view.header().base_fee_per_gas.unwrap_or_default(),
            block_gas_limit: view.header().gas_limit,
            now: crate::clock::unix_now(),
            l1: l1_info(chain.spec(), &view)?,
            ..Default::default()
        };
        match walk(chain, &view, cursor, &mut change) {
            Ok(()) => {}
            Err(StepError::Read(error)) => return Err(error),
            // op-geth's pool also drops the transactions of a reorg deeper than 64 blocks.
            // Transactions in the pool are checked against the new head in any case.
            Err(error @ StepError::Lost(_)) => {
                tracing::warn!(%error, "the transactions of some abandoned blocks do not return to the pool");
                *cursor = Cursor::new(view.head());
            }
        }
        chain
            .pool()
            .on_head(change, |sender| account(&view, sender));
    }
    Ok(())
}

/// Moves the cursor by at most [`MAX_STEPS`] steps and collects the effects of these blocks on the
/// pool.
fn walk(
    chain: &Chain,
    view: &View,
    cursor: &mut Cursor,
    change: &mut HeadChange,
) -> Result<(), StepError> {
    for _ in 0..MAX_STEPS {
        match cursor.step(view, |hash| chain.abandoned(hash))? {
            Some(Step::Removed(block)) => {
                change.abandoned.extend(transactions(chain, &block.payload));
            }
            Some(Step::Added(id)) => {
                if let Some(payload) = view.payload(id.number)? {
                    change
                        .mined
                        .extend(payload.transactions.iter().map(alloy_primitives::keccak256));
                }
            }
            None => break,
        }
    }
    Ok(())
}

/// The transactions of an abandoned block that may return to the pool, blob transactions with their
/// blobs.
fn transactions(chain: &Chain, block: &Payload) -> Vec<PoolTx> {
    let stored = chain.blobs(block).unwrap_or_else(|error| {
        tracing::warn!(%error, "the blob transactions of an abandoned block do not return to the pool");
        None
    });
    let sidecars: HashMap<_, _> = stored
        .into_iter()
        .flatten()
        .map(|stored| (stored.transaction, stored.sidecar))
        .collect();
    let decode = |(index, raw): (usize, &Bytes)| {
        let tx = recover(index, raw).ok()?;
        let sidecar = sidecars.get(&tx.tx_hash()).cloned();
        Some(PoolTx::with_sidecar(tx, sidecar))
    };
    block
        .transactions
        .iter()
        .enumerate()
        .filter_map(decode)
        .collect()
}

/// The L1 attributes of the head; `None` on Ethereum.
fn l1_info(spec: &ChainSpec, view: &View) -> Result<Option<(L1BlockInfo, Fork)>, ReadError> {
    let Rules::Optimism { forks, .. } = &spec.rules else {
        return Ok(None);
    };
    let Some(payload) = view.payload(view.head().number)? else {
        return Ok(None);
    };
    Ok(L1BlockInfo::of(&payload)
        .ok()
        .map(|info| (info, forks.at(payload.timestamp()))))
}

fn account(view: &Arc<View>, sender: Address) -> Option<(u64, U256)> {
    match view.state().account(sender) {
        Ok(account) => {
            Some(account.map_or((0, U256::ZERO), |account| (account.nonce, account.balance)))
        }
        Err(error) => {
            tracing::error!(%sender, %error, "an account could not be read for the pool");
            None
        }
    }
}

#[cfg(test)]
mod tests;
