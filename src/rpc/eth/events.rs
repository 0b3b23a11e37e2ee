//! `eth_subscribe`: new heads and logs, block by block, none left out; transactions as they enter the pool.
//!
//! The watch of heads only wakes; a cursor walks from the last block told to the head. A subscriber is asked before the next walk,
//! so one that reads slowly costs nothing but a distance; when that grows beyond [`MAX_LAG`] its subscription ends.

use super::{
    logs::{Filter, Follower},
    shape::{HeaderJson, TransactionJson},
};
use crate::{
    chain::{
        Heads,
        heads::{Cursor, Step},
        view::View,
    },
    rpc::{
        RpcContext,
        api::EventStream,
        error::{RpcError, reply},
        params::Args,
    },
};
use futures::{StreamExt, stream};
use serde_json::value::RawValue;
use std::sync::Arc;
use tokio::sync::watch;
use tokio_stream::wrappers::{BroadcastStream, WatchStream};

/// Blocks a subscriber may be behind.
const MAX_LAG: u64 = 1024;

/// Events beyond which the subscriber is asked before the next block is read.
const MAX_EVENTS: usize = 1000;

/// The events of one step, in order.
type Tell = Box<dyn FnMut(&Arc<View>, Step) -> Result<Vec<Box<RawValue>>, RpcError> + Send>;

/// The place of a subscription on the chain.
struct Walk {
    context: Arc<RpcContext>,
    heads: watch::Receiver<Heads>,
    cursor: Cursor,
    tell: Tell,
}

/// Begins at the present head: the first event is of the next block.
fn events(context: &Arc<RpcContext>, tell: Tell) -> EventStream {
    let heads = context.chain.heads.clone();
    let cursor = Cursor::new(context.view().head());
    let walk = Walk { context: context.clone(), heads, cursor, tell };
    let batches = stream::unfold(walk, |mut walk| async move {
        loop {
            // Before the walk, so that a head that moves during it wakes the next one.
            walk.heads.mark_unchanged();
            let events;
            (walk, events) = tokio::task::spawn_blocking(move || {
                let events = walk.step();
                (walk, events)
            })
            .await
            .ok()?;
            match events {
                Ok(events) if events.is_empty() => walk.heads.changed().await.ok()?,
                Ok(events) => return Some((stream::iter(events), walk)),
                Err(error) => {
                    tracing::debug!(%error, "a subscription ended");
                    return None;
                }
            }
        }
    });
    batches.flatten().boxed()
}

impl Walk {
    /// The events between the last step and the head, or the first of them; empty at the head.
    fn step(&mut self) -> Result<Vec<Box<RawValue>>, RpcError> {
        let view = self.context.view();
        if view.head().number > self.cursor.at().number + MAX_LAG {
            return Err(RpcError::server("the subscriber reads too slowly"));
        }
        let mut events = Vec::new();
        while events.len() < MAX_EVENTS {
            let Some(step) = self.cursor.advance_by(&view, 1)?.pop() else { break };
            events.extend((self.tell)(&view, step)?);
        }
        Ok(events)
    }
}

/// The header of each block that joins the canonical chain.
pub fn new_heads(context: &Arc<RpcContext>, args: Args) -> Result<EventStream, RpcError> {
    args.at_most(1)?;
    Ok(events(
        context,
        Box::new(|view, step| match step {
            Step::Added(id) => {
                let header = view.header_of(id.number)?.ok_or_else(|| RpcError::server("header not found"))?;
                Ok(vec![reply(HeaderJson::new(id.hash, &header))?])
            }
            Step::Removed(_) => Ok(vec![]),
        }),
    ))
}

/// The logs of each block that joins the canonical chain, and again with `removed` when it leaves.
pub fn logs(context: &Arc<RpcContext>, args: Args) -> Result<EventStream, RpcError> {
    let mut args = args.at_most(2)?;
    let mut follower = Follower::new(args.optional::<Filter>()?.unwrap_or_default());
    Ok(events(context, Box::new(move |view, step| follower.logs(view, step)?.iter().map(reply).collect())))
}

/// Transactions as they become executable: hashes, or in full.
pub fn new_pending_transactions(context: &Arc<RpcContext>, args: Args) -> Result<EventStream, RpcError> {
    let mut args = args.at_most(2)?;
    let full = args.optional()?.unwrap_or(false);
    let transactions = BroadcastStream::new(context.chain.pool.subscribe());
    let told = transactions.map(move |tx| {
        // A subscriber that missed some must not believe it saw all.
        let tx = tx.map_err(|_| RpcError::server("the subscriber reads too slowly"))?;
        if full { reply(TransactionJson::pooled(&tx)) } else { reply(tx.hash) }
    });
    Ok(told.take_while(|event| std::future::ready(event.is_ok())).filter_map(|event| std::future::ready(event.ok())).boxed())
}

/// How far there is to go, whenever that changes; `false` once at the head.
pub fn syncing(context: &Arc<RpcContext>, args: Args) -> Result<EventStream, RpcError> {
    args.at_most(1)?;
    let Some(progress) = context.syncing.clone() else { return Ok(stream::pending().boxed()) };
    let context = context.clone();
    let told = WatchStream::from_changes(progress).map(move |progress| {
        let status = super::progress_json(progress, &context);
        status.map_or_else(|| reply(false), |status| reply(serde_json::json!({ "syncing": true, "status": status })))
    });
    Ok(told.filter_map(|event| std::future::ready(event.ok())).boxed())
}
