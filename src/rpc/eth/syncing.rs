//! `eth_syncing` and the subscription `syncing`: geth's responses while a gap is filled from peers.
//!
//! The node fills [`RpcContext::syncing`]; the current block is read from the newest view. The
//! fields of geth's state download and of its indexers are zero, because this node executes every
//! block instead. JSON-RPC is served only after the payload log has been replayed, so `eth_syncing`
//! never returns `false` during a replay. The subscription differs from geth's in one point: geth
//! reports only the first synchronisation of the process.

use crate::rpc::{
    context::{RpcContext, SyncStatus},
    error::{Reply, RpcError, reply},
    params::Args,
    subscription::EventStream,
};
use alloy_primitives::U64;
use futures::{Stream, StreamExt, stream};
use serde::Serialize;
use std::{future::ready, sync::Arc, time::Duration};
use tokio::{
    sync::watch,
    time::{Instant, MissedTickBehavior, interval_at},
};

/// Time between two checks of a subscription (geth: `checkInterval`).
const CHECK_INTERVAL: Duration = Duration::from_secs(60);

/// Response of `eth_syncing` while blocks are missing. geth makes it from a map, so its keys are in
/// alphabetical order. Numbers are hexadecimal quantities.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ProgressJson {
    current_block: U64,
    healed_bytecode_bytes: U64,
    healed_bytecodes: U64,
    healed_trienode_bytes: U64,
    healed_trienodes: U64,
    healing_bytecode: U64,
    healing_trienodes: U64,
    highest_block: U64,
    starting_block: U64,
    state_index_remaining: U64,
    synced_account_bytes: U64,
    synced_accounts: U64,
    synced_bytecode_bytes: U64,
    synced_bytecodes: U64,
    synced_storage: U64,
    synced_storage_bytes: U64,
    tx_index_finished_blocks: U64,
    tx_index_remaining_blocks: U64,
}

impl ProgressJson {
    fn new(progress: SyncProgress) -> Self {
        Self {
            current_block: U64::from(progress.current),
            healed_bytecode_bytes: U64::ZERO,
            healed_bytecodes: U64::ZERO,
            healed_trienode_bytes: U64::ZERO,
            healed_trienodes: U64::ZERO,
            healing_bytecode: U64::ZERO,
            healing_trienodes: U64::ZERO,
            highest_block: U64::from(progress.status.highest),
            starting_block: U64::from(progress.status.starting),
            state_index_remaining: U64::ZERO,
            synced_account_bytes: U64::ZERO,
            synced_accounts: U64::ZERO,
            synced_bytecode_bytes: U64::ZERO,
            synced_bytecodes: U64::ZERO,
            synced_storage: U64::ZERO,
            synced_storage_bytes: U64::ZERO,
            tx_index_finished_blocks: U64::ZERO,
            tx_index_remaining_blocks: U64::ZERO,
        }
    }
}

/// The member `status` of an event. geth sends its Go struct unchanged: names begin with a capital
/// letter and are in the struct's order, and numbers are decimal.
#[derive(Default, Serialize)]
#[serde(rename_all = "PascalCase")]
struct EventStatusJson {
    starting_block: u64,
    current_block: u64,
    highest_block: u64,
    pulled_states: u64,
    known_states: u64,
    synced_accounts: u64,
    synced_account_bytes: u64,
    synced_bytecodes: u64,
    synced_bytecode_bytes: u64,
    synced_storage: u64,
    synced_storage_bytes: u64,
    healed_trienodes: u64,
    healed_trienode_bytes: u64,
    healed_bytecodes: u64,
    healed_bytecode_bytes: u64,
    healing_trienodes: u64,
    healing_bytecode: u64,
    tx_index_finished_blocks: u64,
    tx_index_remaining_blocks: u64,
    state_index_remaining: u64,
}

/// An event of the subscription while blocks are missing (geth: `SyncingResult`).
#[derive(Serialize)]
struct SyncingEvent {
    syncing: bool,
    status: EventStatusJson,
}

/// A synchronisation in progress and the head's number.
#[derive(Clone, Copy, Debug)]
struct SyncProgress {
    status: SyncStatus,
    current: u64,
}

impl SyncProgress {
    /// The progress; `None` if the head has reached the highest block.
    fn new(status: Option<SyncStatus>, current: u64) -> Option<Self> {
        status
            .filter(|status| status.highest > current)
            .map(|status| Self { status, current })
    }

    fn event(self) -> Reply {
        reply(SyncingEvent {
            syncing: true,
            status: EventStatusJson {
                starting_block: self.status.starting,
                current_block: self.current,
                highest_block: self.status.highest,
                ..EventStatusJson::default()
            },
        })
    }
}

/// `eth_syncing()`: `false` at the head, otherwise the progress.
pub fn syncing(context: &RpcContext, args: Args) -> Reply {
    args.at_most(0)?;
    let status = context.syncing.as_ref().and_then(|status| *status.borrow());
    let progress = SyncProgress::new(status, context.view().head().number);
    progress.map_or_else(
        || reply(false),
        |progress| reply(ProgressJson::new(progress)),
    )
}

/// `eth_subscribe("syncing")`: an object every minute while blocks are missing, then `false` once,
/// at the first check after the head has reached the highest block. A subscription that is made
/// after that gets `false` at once. Before the first synchronisation there is no event.
pub fn subscribe(context: &Arc<RpcContext>, args: Args) -> Result<EventStream, RpcError> {
    args.at_most(1)?;
    let Some(status) = context.syncing.clone() else {
        return Ok(stream::pending().boxed());
    };
    let context = context.clone();
    let current = move || context.view().head().number;
    let events = events(status, current, checks());
    Ok(events.map(|event| Ok(event.into())).boxed())
}

/// A stream with an item every [`CHECK_INTERVAL`]. The first item comes after one interval.
fn checks() -> impl Stream<Item = ()> + Send {
    let mut interval = interval_at(Instant::now() + CHECK_INTERVAL, CHECK_INTERVAL);
    interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
    stream::unfold(interval, async |mut interval| {
        interval.tick().await;
        Some(((), interval))
    })
}

/// The events of one subscription. `status` must be a clone of [`RpcContext::syncing`] on which no
/// value was marked as seen. It then reports a change if and only if a synchronisation has begun
/// since the node's start.
fn events(
    status: watch::Receiver<Option<SyncStatus>>,
    current: impl Fn() -> u64 + Send,
    checks: impl Stream<Item = ()> + Send,
) -> impl Stream<Item = Box<serde_json::value::RawValue>> + Send {
    let mut end_reported = false;
    let look = move |is_first: bool| {
        let progress = SyncProgress::new(*status.borrow(), current());
        let event = match progress {
            Some(_) if is_first => None,
            Some(progress) => Some(progress.event()),
            None if !end_reported && status.has_changed().unwrap_or(false) => Some(reply(false)),
            None => None,
        };
        // Each synchronisation that a check has seen gets its own end event.
        end_reported = progress.is_none() && (end_reported || event.is_some());
        ready(event.and_then(Result::ok))
    };
    stream::once(ready(true))
        .chain(checks.map(|()| false))
        .filter_map(look)
}

#[cfg(test)]
mod tests;
