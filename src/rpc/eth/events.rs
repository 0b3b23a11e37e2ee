//! `eth_subscribe`: new heads and logs, block by block, none left out; transactions as they enter
//! the pool.
//!
//! The watch of heads only wakes; a cursor walks from the last block reported to the head. The next
//! walk begins when the subscriber has taken the events before, so a slow reader costs no memory;
//! when it is more than [`MAX_LAG`] blocks behind, its subscription ends. If a reorg abandons
//! blocks that are no longer kept, the subscription and its connection end, and the client must
//! subscribe again. op-geth keeps such blocks for ever.

use super::shape::{HeaderJson, TransactionJson};
use crate::{
    chain::{
        Heads,
        heads::{Cursor, Step},
        view::View,
    },
    rpc::{
        api::EventStream,
        bounds::blocking,
        context::RpcContext,
        error::{RpcError, reply},
        log_filter::{Filter, Follower},
        memory::KIB,
        params::Args,
    },
};
use futures::{Stream, StreamExt, stream};
use serde_json::value::RawValue;
use starling_proto::payload::BlockId;
use std::{sync::Arc, time::Duration};
use tokio::{
    sync::{OwnedSemaphorePermit, watch},
    time::Instant,
};
use tokio_stream::wrappers::BroadcastStream;

/// Blocks a subscriber may be behind.
const MAX_LAG: u64 = 1024;

/// Events in a batch, which the subscriber takes before the next block is read.
const MAX_EVENTS: usize = 1000;

/// Bytes of events in a batch.
const MAX_BYTES: usize = 256 << 10;

/// Timeout of a subscriber that takes a batch.
const PATIENCE: Duration = Duration::from_secs(60);

/// Events that wait for their subscriber, with their memory permit.
struct Events {
    list: Vec<Box<RawValue>>,
    _permit: OwnedSemaphorePermit,
    until: Instant,
}

impl Events {
    /// The events in order; an error in place of those that the subscriber takes too late.
    fn stream(self) -> impl Stream<Item = Result<Box<RawValue>, RpcError>> {
        let Self {
            list,
            _permit,
            until,
        } = self;
        stream::iter(list).map(move |event| {
            let _held = &_permit;
            if Instant::now() < until {
                Ok(event)
            } else {
                Err(RpcError::server("the subscriber reads too slowly"))
            }
        })
    }
}

/// The events of one step, in order.
type Tell = Box<dyn FnMut(&Arc<View>, Step) -> Result<Vec<Box<RawValue>>, RpcError> + Send>;

/// The place of a subscription on the chain.
struct Walk {
    context: Arc<RpcContext>,
    heads: watch::Receiver<Heads>,
    cursor: Cursor,
    tell: Tell,
    /// Error that ends the subscription once its subscriber has all events before it.
    failed: Option<RpcError>,
}

/// Events after this head: the first one is that of the next block.
fn events(context: &Arc<RpcContext>, head: BlockId, tell: Tell) -> EventStream {
    let heads = context.chain.heads.clone();
    let cursor = Cursor::new(head);
    let walk = Walk {
        context: context.clone(),
        heads,
        cursor,
        tell,
        failed: None,
    };
    let batches = stream::unfold(walk, |mut walk| async move {
        loop {
            // Before the walk, so that a head that moves during it wakes the next one.
            walk.heads.mark_unchanged();
            let reads = walk.context.bounds.reads.clone();
            let step = blocking("eth_subscribe", reads, move || {
                let events = walk.step()?;
                Ok((walk, events))
            });
            let events;
            match step.await {
                Ok(step) => (walk, events) = step,
                Err(error) => {
                    tracing::debug!(%error, "a subscription ended");
                    return None;
                }
            }
            match events {
                Some(events) => return Some((events.stream(), walk)),
                None => walk.heads.changed().await.ok()?,
            }
        }
    });
    let told = batches
        .flatten()
        .take_while(|event| std::future::ready(event.is_ok()));
    told.filter_map(|event| std::future::ready(event.ok()))
        .boxed()
}

impl Walk {
    /// The events between the last step and the head, or the first of them; none at the head.
    fn step(&mut self) -> Result<Option<Events>, RpcError> {
        if let Some(error) = self.failed.take() {
            return Err(error);
        }
        let view = self.context.view();
        if view.head().number > self.cursor.at().number + MAX_LAG {
            return Err(RpcError::server("the subscriber reads too slowly"));
        }
        let (mut list, mut bytes) = (Vec::new(), 0);
        while list.len() < MAX_EVENTS && bytes < MAX_BYTES {
            let more = match self.next(&view) {
                Ok(None) => break,
                Ok(Some(events)) => events,
                Err(error) if !list.is_empty() => {
                    self.failed = Some(error);
                    break;
                }
                Err(error) => return Err(error),
            };
            bytes += more.iter().map(|event| event.get().len()).sum::<usize>();
            list.extend(more);
        }
        if list.is_empty() {
            return Ok(None);
        }
        let room = u32::try_from(bytes.div_ceil(KIB)).ok();
        let room = room.and_then(|room| {
            self.context
                .bounds
                .events
                .clone()
                .try_acquire_many_owned(room)
                .ok()
        });
        let room =
            room.ok_or_else(|| RpcError::server("too many events wait for their readers"))?;
        Ok(Some(Events {
            list,
            _permit: room,
            until: Instant::now() + PATIENCE,
        }))
    }

    /// The events of the next step; `None` at the head.
    fn next(&mut self, view: &Arc<View>) -> Result<Option<Vec<Box<RawValue>>>, RpcError> {
        let Some(step) = self.context.step(&mut self.cursor, view)? else {
            return Ok(None);
        };
        (self.tell)(view, step).map(Some)
    }
}

/// The header of each block that joins the canonical chain.
pub fn new_heads(context: &Arc<RpcContext>, args: Args) -> Result<EventStream, RpcError> {
    args.at_most(1)?;
    Ok(events(
        context,
        context.view().head(),
        Box::new(|view, step| match step {
            Step::Added(id) => {
                let header = view
                    .header_of(id.number)?
                    .ok_or_else(|| RpcError::server("header not found"))?;
                Ok(vec![reply(HeaderJson::new(id.hash, &header))?])
            }
            Step::Removed(_) => Ok(vec![]),
        }),
    ))
}

/// The logs of each block that joins the canonical chain, and again with `removed` when it leaves.
pub fn logs(context: &Arc<RpcContext>, args: Args) -> Result<EventStream, RpcError> {
    let mut args = args.at_most(2)?;
    let head = context.view().head();
    let mut follower = Follower::new(
        args.optional::<Filter>()?.unwrap_or_default(),
        &context.bounds,
        head,
    )?;
    Ok(events(
        context,
        head,
        Box::new(move |view, step| follower.logs(view, step)?.iter().map(reply).collect()),
    ))
}

/// Transactions as they become executable: hashes, or in full.
pub fn new_pending_transactions(
    context: &Arc<RpcContext>,
    args: Args,
) -> Result<EventStream, RpcError> {
    let mut args = args.at_most(2)?;
    let full = args.optional()?.unwrap_or(false);
    let transactions = BroadcastStream::new(context.chain.pool.subscribe());
    let pool = context.chain.pool.clone();
    let told = transactions.filter_map(move |hash| {
        // A subscriber that missed transactions must learn it: the subscription ends.
        let told = match hash {
            Err(_) => Some(Err(RpcError::server("the subscriber reads too slowly"))),
            Ok(hash) if !full => Some(reply(hash)),
            // A transaction that has left the pool since is not pending.
            Ok(hash) => pool
                .get(&hash)
                .map(|tx| reply(TransactionJson::pooled(&tx))),
        };
        std::future::ready(told)
    });
    Ok(told
        .take_while(|event| std::future::ready(event.is_ok()))
        .filter_map(|event| std::future::ready(event.ok()))
        .boxed())
}
