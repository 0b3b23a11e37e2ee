//! Interval block production in Ethereum mode, for an L1 of our own such as the devnet's.
//!
//! At every interval, a block with transactions from the pool is built on the head, written to
//! the payload log, and made the new head. `safe` and `finalized` follow at a fixed distance, so
//! that readers of these tags see them advance.

use crate::{chain::Chain, clock::unix_now};
use alloy_primitives::{Address, B256, keccak256};
use alloy_rpc_types_engine::PayloadAttributes;
use op_alloy_rpc_types_engine::OpPayloadAttributes;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// Number of blocks from the safe block to the head. Much smaller than a real L1's 32, so that a
/// local network shows all tags within a minute.
const SAFE_DISTANCE: u64 = 4;
/// Number of blocks from the finalized block to the head.
const FINALIZED_DISTANCE: u64 = 8;

/// Builds a block every `interval` until `token` is cancelled.
pub async fn run(chain: Chain, interval: Duration, token: CancellationToken) -> anyhow::Result<()> {
    let mut ticks = tokio::time::interval(interval);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
    loop {
        tokio::select! {
            () = token.cancelled() => return Ok(()),
            _ = ticks.tick() => {}
        }
        let view = chain.view();
        let parent = view.head();
        let timestamp = unix_now().max(view.header().timestamp + 1);
        let cancun = chain.spec().at(timestamp).cancun;
        let attributes = OpPayloadAttributes {
            payload_attributes: PayloadAttributes {
                timestamp,
                // Derived from the parent hash: there is no beacon chain to provide randomness.
                prev_randao: keccak256(parent.hash),
                suggested_fee_recipient: Address::ZERO,
                withdrawals: Some(vec![]),
                parent_beacon_block_root: cancun.then_some(B256::ZERO),
                ..Default::default()
            },
            ..Default::default()
        };
        let id = chain.start(parent.hash, attributes).await?;
        let block = chain.seal(id).await?;
        // Nothing is signed here, so another block may follow on the same parent after
        // `debug_setHead`.
        chain.keep(block.payload.clone()).await?;
        let ancestor = |distance: u64| -> anyhow::Result<Option<B256>> {
            let number = block.payload.number().saturating_sub(distance);
            Ok(chain.view().hash_of(number)?)
        };
        let hash = block.payload.hash;
        chain
            .forkchoice(
                hash,
                ancestor(SAFE_DISTANCE)?,
                ancestor(FINALIZED_DISTANCE)?,
            )
            .await?;
        tracing::info!(number = block.payload.number(), %hash, transactions = block.payload.transactions.len(), "block");
    }
}
