//! `eth_syncing` and the subscription `syncing`: geth's fields while a gap is filled from peers.
//!
//! The node fills [`RpcContext::syncing`]; the current block is read from the newest view. Fields of
//! geth's state download are zero, because this node executes every block instead. JSON-RPC is
//! served when the payload log has been replayed, so a replay at start is never reported as `false`.

use crate::rpc::{
    api::EventStream,
    context::{RpcContext, SyncStatus},
    error::{Reply, RpcError, reply},
    params::Args,
};
use alloy_primitives::U64;
use futures::{StreamExt, stream};
use serde::Serialize;
use std::{future::ready, sync::Arc};
use tokio_stream::wrappers::WatchStream;

/// Progress of a synchronisation, in geth's order of keys.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ProgressJson {
    starting_block: U64,
    current_block: U64,
    highest_block: U64,
    synced_accounts: U64,
    synced_account_bytes: U64,
    synced_bytecodes: U64,
    synced_bytecode_bytes: U64,
    synced_storage: U64,
    synced_storage_bytes: U64,
    healed_trienodes: U64,
    healed_trienode_bytes: U64,
    healed_bytecodes: U64,
    healed_bytecode_bytes: U64,
    healing_trienodes: U64,
    healing_bytecode: U64,
    tx_index_finished_blocks: U64,
    tx_index_remaining_blocks: U64,
    state_index_remaining: U64,
}

impl ProgressJson {
    /// `None` when the head has reached the highest block.
    fn new(status: Option<SyncStatus>, context: &RpcContext) -> Option<Self> {
        let current = context.view().head().number;
        let SyncStatus { starting, highest } = status.filter(|status| status.highest > current)?;
        Some(Self {
            starting_block: U64::from(starting),
            current_block: U64::from(current),
            highest_block: U64::from(highest),
            synced_accounts: U64::ZERO,
            synced_account_bytes: U64::ZERO,
            synced_bytecodes: U64::ZERO,
            synced_bytecode_bytes: U64::ZERO,
            synced_storage: U64::ZERO,
            synced_storage_bytes: U64::ZERO,
            healed_trienodes: U64::ZERO,
            healed_trienode_bytes: U64::ZERO,
            healed_bytecodes: U64::ZERO,
            healed_bytecode_bytes: U64::ZERO,
            healing_trienodes: U64::ZERO,
            healing_bytecode: U64::ZERO,
            tx_index_finished_blocks: U64::ZERO,
            tx_index_remaining_blocks: U64::ZERO,
            state_index_remaining: U64::ZERO,
        })
    }
}

/// One event of the subscription while blocks are missing (geth: `SyncingResult`).
#[derive(Serialize)]
struct SyncingEvent {
    syncing: bool,
    status: ProgressJson,
}

/// `eth_syncing()`: `false` at the head, else the progress.
pub fn syncing(context: &RpcContext, args: Args) -> Reply {
    args.at_most(0)?;
    let status = context.syncing.as_ref().and_then(|status| *status.borrow());
    ProgressJson::new(status, context).map_or_else(|| reply(false), reply)
}

/// `eth_subscribe("syncing")`: an object when blocks are missing, also at the subscription, and
/// whenever the highest block changes; `false` when the head has reached it.
pub fn subscribe(context: &Arc<RpcContext>, args: Args) -> Result<EventStream, RpcError> {
    args.at_most(1)?;
    let Some(status) = context.syncing.clone() else {
        return Ok(stream::pending().boxed());
    };
    let context = context.clone();
    let mut reported = false;
    let events = WatchStream::new(status).filter_map(move |status| {
        let progress = ProgressJson::new(status, &context);
        let event = match progress {
            Some(status) => Some(reply(SyncingEvent {
                syncing: true,
                status,
            })),
            // An end is only reported after a start.
            None => reported.then(|| reply(false)),
        };
        reported = matches!(&event, Some(Ok(event)) if event.get() != "false");
        ready(event.and_then(Result::ok))
    });
    // The end of the status must not end the subscription, and with it the connection.
    Ok(events.chain(stream::pending()).boxed())
}
