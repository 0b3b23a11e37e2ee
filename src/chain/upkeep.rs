//! The pool's upkeep: one task that walks every new block of the canonical chain, so that the pool forgets what was mined and takes
//! back what a reorg abandoned. It reads views only; a burst of heads is one piece of work.

use crate::chain::{
    Chain,
    heads::{Cursor, Step},
    pool::{HeadChange, PoolTx},
    rules::{ChainSpec, Rules},
    view::{ReadError, View},
};
use alloy_primitives::{Address, U256};
use starling_proto::{fork::Fork, l1info::L1BlockInfo};
use std::sync::Arc;
use tokio_util::sync::CancellationToken;

/// Runs until the token is cancelled.
pub async fn run(chain: Chain, token: CancellationToken) -> anyhow::Result<()> {
    let mut heads = chain.heads();
    let mut cursor = Cursor::new(chain.view().head());
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

fn follow(chain: &Chain, cursor: &mut Cursor) -> Result<(), ReadError> {
    let view = chain.view();
    loop {
        let steps = cursor.advance(&view)?;
        if steps.is_empty() {
            return Ok(());
        }
        let mut change = HeadChange {
            base_fee: view.header().base_fee_per_gas.unwrap_or_default(),
            block_gas_limit: view.header().gas_limit,
            now: crate::telemetry::unix_now(),
            l1: l1_info(chain.spec(), &view)?,
            ..Default::default()
        };
        for step in steps {
            match step {
                Step::Removed(id) => {
                    // Abandoned blocks stay in the payload log for a while.
                    if let Ok(Some(payload)) = chain.logged(id.hash) {
                        change.abandoned.extend(payload.transactions.into_iter().filter_map(|raw| PoolTx::decode(raw).ok()));
                    }
                }
                Step::Added(id) => {
                    if let Some(payload) = view.payload(id.number)? {
                        change.mined.extend(payload.transactions.iter().map(alloy_primitives::keccak256));
                    }
                }
            }
        }
        chain.pool().on_head(change, |sender| account(&view, sender));
    }
}

/// What the head's first transaction tells of L1; nothing on Ethereum.
fn l1_info(spec: &ChainSpec, view: &View) -> Result<Option<(L1BlockInfo, Fork)>, ReadError> {
    let Rules::Optimism { forks, .. } = &spec.rules else { return Ok(None) };
    let Some(payload) = view.payload(view.head().number)? else { return Ok(None) };
    Ok(L1BlockInfo::of(&payload).ok().map(|info| (info, forks.at(payload.timestamp()))))
}

fn account(view: &Arc<View>, sender: Address) -> Option<(u64, U256)> {
    match view.state().account(sender) {
        Ok(account) => Some(account.map_or((0, U256::ZERO), |account| (account.nonce, account.balance))),
        Err(error) => {
            tracing::error!(%sender, %error, "an account could not be read for the pool");
            None
        }
    }
}

#[cfg(test)]
mod tests;
