//! `eth_sendRawTransactionSync` (EIP-7966): sends a transaction and waits for its receipt.
//!
//! A waiting call looks up its transaction once for each new head, and every 100 ms if the node has
//! flashblocks. The bound on reads covers these lookups.

use super::{receipt::newest_receipt, send::submit};
use crate::rpc::{
    bounds::blocking,
    context::RpcContext,
    error::{Reply, RpcError, reply},
    params::{Args, Count},
};
use alloy_primitives::{B256, Bytes};
use futures::{FutureExt, future::BoxFuture};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{sleep, timeout};

/// Time between two checks whether the newest flashblock has the receipt.
const FLASHBLOCKS: Duration = Duration::from_millis(100);

/// Error code: the transaction was accepted, but has no receipt before the timeout. `data` is the
/// transaction's hash.
const NOT_IN_TIME: i32 = 4;

pub fn send_raw_transaction_sync(
    context: Arc<RpcContext>,
    args: Args,
) -> BoxFuture<'static, Reply> {
    async move {
        let mut args = args.at_most(2)?;
        let raw: Bytes = args.required()?;
        let millis = args.optional::<Count>()?.map(|Count(millis)| millis);
        let limit = context.bounds.sync_timeouts.of(millis);
        let hash = submit(&context, raw).await?.hash;
        match timeout(limit, receipt_in_time(&context, hash)).await {
            Ok(receipt) => receipt,
            Err(_) => Err(RpcError {
                code: NOT_IN_TIME,
                message: format!(
                    "The transaction was added to the transaction pool but wasn't processed in {limit:?}"
                ),
                data: serde_json::value::to_raw_value(&hash).ok(),
            }),
        }
    }
    .boxed()
}

/// Waits for the receipt of the transaction.
async fn receipt_in_time(context: &Arc<RpcContext>, hash: B256) -> Reply {
    let mut heads = context.chain.heads.clone();
    loop {
        // Before the read: a head that moves during the read then wakes the next one.
        heads.mark_unchanged();
        let (own, reads) = (context.clone(), context.bounds.reads.clone());
        let read = move || newest_receipt(&own, hash);
        if let Some(receipt) = blocking("eth_sendRawTransactionSync", reads, read).await? {
            return reply(receipt);
        }
        let flashblocks = context.pending.has_flashblocks();
        tokio::select! {
            changed = heads.changed() => if changed.is_err() {
                return Err(RpcError::server("the node is stopping"));
            },
            () = sleep(FLASHBLOCKS), if flashblocks => {}
        }
    }
}
