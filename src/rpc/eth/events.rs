//! `eth_subscribe`: new heads and logs, block by block, none left out; transactions as they enter
//! the pool.
//!
//! The watch of heads only wakes; a cursor walks from the last block reported to the head. The next
//! walk begins when the subscriber has taken the events before, so a slow reader costs no memory;
//! when more than [`MAX_LAG`] blocks come while it catches up, its subscription ends. If a reorg abandons
//! blocks that are no longer kept, the subscription and its connection end, and the client must
//! subscribe again. op-geth keeps such blocks for ever.
//!
//! Many subscribers that return at once, all far behind, share the memory of events: the less of it
//! is free, the smaller is a batch.
//!
//! A client that names the block it has seen last gets what it has missed before live events, as long
//! as that block is at most [`MAX_LAG`] blocks behind and its branch is still kept.

use super::{
    receipt::block_receipts,
    shape::{HeaderJson, TransactionJson},
};
use crate::{
    chain::{
        Heads,
        heads::{Cursor, Step},
        view::View,
    },
    rpc::{
        bounds::blocking,
        context::RpcContext,
        error::{RpcError, reply},
        log_filter::{LogFilter, LogFollower},
        memory::KIB,
        params::{Arg, Args, Json, Quantity},
        subscription::{
            ChainPosition, EventStream, SubscriberLag, SubscriptionEnd, SubscriptionEvent,
        },
    },
};
use alloy_primitives::B256;
use futures::{Stream, StreamExt, stream};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use starling_proto::payload::BlockId;
use std::{collections::HashSet, sync::Arc, time::Duration};
use tokio::{
    sync::{OwnedSemaphorePermit, watch},
    time::Instant,
};
use tokio_stream::wrappers::{BroadcastStream, errors::BroadcastStreamRecvError};

/// Blocks behind the head at which a subscription may begin, and blocks that may come while a
/// subscriber catches up.
const MAX_LAG: u64 = 1024;

/// Events in a batch, which the subscriber takes before the next block is read.
const MAX_EVENTS: usize = 1000;

/// Bytes of events at which a batch ends: at least, and at most.
const MIN_BYTES: usize = 4 << 10;
const MAX_BYTES: usize = 256 << 10;

/// One batch takes a sixteenth of the memory of events that is free, within its least and most
/// bytes, so that it lasts for some hundred subscriptions whose clients do not read. The next one
/// then ends, until slow clients have been dropped.
const SHARE: usize = 16;

/// Timeout of a subscriber that takes a batch.
const PATIENCE: Duration = Duration::from_secs(60);

/// An event, and the number of its block: of the parent of a block that has left the chain.
struct BlockEvent {
    json: Box<RawValue>,
    number: u64,
}

/// Events that wait for their subscriber, with their memory permit.
struct Events {
    list: Vec<BlockEvent>,
    heads: watch::Receiver<Heads>,
    _permit: OwnedSemaphorePermit,
    until: Instant,
}

impl Events {
    /// The events in order; an error in place of those that the subscriber takes too late.
    fn stream(self) -> impl Stream<Item = Result<SubscriptionEvent, SubscriptionEnd>> {
        let Self {
            list,
            heads,
            _permit,
            until,
        } = self;
        stream::iter(list).map(move |BlockEvent { json, number }| {
            let _held = &_permit;
            let heads = heads.clone();
            let position = ChainPosition { number, heads };
            if Instant::now() < until {
                Ok(SubscriptionEvent::of_block(json, position))
            } else {
                let lag = SubscriberLag::of_block(&position);
                Err(SubscriptionEnd::Slow(lag))
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
    /// The number of the head that the walk began to catch up with; `None` at the head. The head may
    /// move by many blocks at once, which is no fault of the subscriber.
    catching_up: Option<u64>,
    tell: Tell,
    /// Error that ends the subscription once its subscriber has all events before it.
    failed: Option<SubscriptionEnd>,
}

/// Events after this head: the first one is that of the next block.
fn events(context: &Arc<RpcContext>, head: BlockId, tell: Tell) -> EventStream {
    let heads = context.chain.heads.clone();
    let cursor = Cursor::new(head);
    let walk = Walk {
        context: context.clone(),
        heads,
        cursor,
        catching_up: None,
        tell,
        failed: None,
    };
    let batches = stream::unfold(Some(walk), |walk| async move { next_batch(walk?).await });
    batches
        .flat_map(|batch| match batch {
            Ok(events) => events.stream().left_stream(),
            Err(end) => stream::iter([Err(end)]).right_stream(),
        })
        .boxed()
}

/// Waits for the next batch. An error ends the stream and comes without a walk.
async fn next_batch(mut walk: Walk) -> Option<(Result<Events, SubscriptionEnd>, Option<Walk>)> {
    loop {
        // Before the walk, so that a head that moves during it wakes the next one.
        walk.heads.mark_unchanged();
        let reads = walk.context.bounds.reads.clone();
        let step = blocking("eth_subscribe", reads, move || {
            let events = walk.step();
            Ok((walk, events))
        });
        let end = match step.await {
            Ok((next, Ok(None))) => {
                walk = next;
                walk.heads.changed().await.ok()?;
                continue;
            }
            Ok((next, Ok(Some(events)))) => return Some((Ok(events), Some(next))),
            Ok((_, Err(end))) => end,
            Err(error) => error.into(),
        };
        tracing::debug!(%end, "a subscription ended");
        return Some((Err(end), None));
    }
}

impl Walk {
    /// The events between the last step and the head, or the first of them; none at the head.
    fn step(&mut self) -> Result<Option<Events>, SubscriptionEnd> {
        if let Some(end) = self.failed.take() {
            return Err(end);
        }
        let view = self.context.view();
        let head = view.head().number;
        let first = *self.catching_up.get_or_insert(head);
        if head.saturating_sub(first) > MAX_LAG {
            let lag = head.saturating_sub(self.cursor.at().number);
            return Err(SubscriptionEnd::Slow(SubscriberLag::Blocks(lag)));
        }
        let memory = self.context.bounds.events.clone();
        let most = (memory.available_permits() * KIB / SHARE).clamp(MIN_BYTES, MAX_BYTES);
        let (mut list, mut bytes) = (Vec::new(), 0);
        while list.len() < MAX_EVENTS && bytes < most {
            let more = match self.next(&view) {
                Ok(None) => {
                    self.catching_up = None;
                    break;
                }
                Ok(Some(events)) => events,
                Err(error) if !list.is_empty() => {
                    self.failed = Some(error.into());
                    break;
                }
                Err(error) => return Err(error.into()),
            };
            bytes += more.iter().map(|event| event.get().len()).sum::<usize>();
            let number = self.cursor.at().number;
            list.extend(more.into_iter().map(|json| BlockEvent { json, number }));
        }
        if list.is_empty() {
            return Ok(None);
        }
        let permit = u32::try_from(bytes.div_ceil(KIB)).ok();
        let permit = permit.and_then(|kib| memory.try_acquire_many_owned(kib).ok());
        Ok(Some(Events {
            list,
            heads: self.heads.clone(),
            _permit: permit.ok_or(SubscriptionEnd::Overloaded)?,
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

/// The block that a subscriber has seen last, as the last parameter of a subscription.
#[derive(Deserialize)]
struct ResumeMembers<'a> {
    #[serde(borrow)]
    from: SeenMembers<'a>,
}

#[derive(Deserialize)]
struct SeenMembers<'a> {
    #[serde(borrow)]
    number: &'a RawValue,
    hash: B256,
}

/// The block after which events begin.
struct ResumeArg(BlockId);

impl Arg for ResumeArg {
    fn from_json(json: &str) -> Result<Self, String> {
        let members: ResumeMembers<'_> =
            serde_json::from_str(json).map_err(|error| error.to_string())?;
        let Quantity(number) = Quantity::from_json(members.from.number.get())?;
        let hash = members.from.hash;
        Ok(Self(BlockId { number, hash }))
    }
}

/// The block after which the events of a subscription begin: the one that its client has seen last,
/// or the head.
fn start(context: &RpcContext, resume: Option<ResumeArg>) -> Result<BlockId, RpcError> {
    let view = context.view();
    let head = view.head();
    let Some(ResumeArg(seen)) = resume else {
        return Ok(head);
    };
    let oldest = head.number.saturating_sub(MAX_LAG);
    let name = || {
        let hash = view.hash_of(oldest)?.unwrap_or_default();
        Ok::<_, RpcError>(format!(
            "the oldest block to resume after is {{number: {oldest:#x}, hash: {hash}}}"
        ))
    };
    if seen.number < oldest {
        return Err(RpcError::server(format!(
            "block {} is more than {MAX_LAG} blocks below the head: {}",
            seen.number,
            name()?
        )));
    }
    let canonical = view.hash_of(seen.number)? == Some(seen.hash);
    let abandoned = || (context.chain.abandoned)(seen.hash);
    if !canonical && abandoned()?.is_none_or(|block| block.payload.number() != seen.number) {
        return Err(RpcError::server(format!(
            "block {} with hash {} is not known here: {}",
            seen.number,
            seen.hash,
            name()?
        )));
    }
    Ok(seen)
}

/// The header of each block that joins the canonical chain.
pub fn new_heads(context: &Arc<RpcContext>, args: Args) -> Result<EventStream, RpcError> {
    let resume = args.at_most(2)?.optional()?;
    Ok(events(
        context,
        start(context, resume)?,
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

/// Hashes that one subscription of receipts names.
const MAX_HASHES: usize = 200;

/// The parameter of `transactionReceipts`: without hashes, all transactions.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ReceiptsQuery {
    transaction_hashes: Option<Vec<B256>>,
}

/// The receipts of each block that joins the canonical chain, as one list; nothing where none of
/// them is wanted.
pub fn transaction_receipts(
    context: &Arc<RpcContext>,
    args: Args,
) -> Result<EventStream, RpcError> {
    let mut args = args.at_most(3)?;
    let query = args
        .optional::<Json<ReceiptsQuery>>()?
        .map_or_else(Default::default, |Json(query)| query);
    let wanted = query.transaction_hashes.unwrap_or_default();
    if wanted.len() > MAX_HASHES {
        return Err(RpcError::invalid_params(
            "exceed max number of transaction hashes allowed per transactionReceipts subscription",
        ));
    }
    let wanted: HashSet<B256> = wanted.into_iter().collect();
    let own = context.clone();
    Ok(events(
        context,
        start(context, args.optional()?)?,
        Box::new(move |view, step| {
            let Step::Added(id) = step else {
                return Ok(vec![]);
            };
            let mut receipts = block_receipts(&own, view, id.number)?;
            if !wanted.is_empty() {
                receipts.retain(|receipt| wanted.contains(&receipt.transaction_hash));
            }
            if receipts.is_empty() {
                return Ok(vec![]);
            }
            Ok(vec![reply(receipts)?])
        }),
    ))
}

/// The logs of each block that becomes canonical, repeated with `removed` when a reorg
/// displaces it.
pub fn logs(context: &Arc<RpcContext>, args: Args) -> Result<EventStream, RpcError> {
    let mut args = args.at_most(3)?;
    let filter = args.optional::<LogFilter>()?.unwrap_or_default();
    filter.check_size(context.bounds.logs.query)?;
    let head = start(context, args.optional()?)?;
    let mut follower = LogFollower::new(filter, &context.bounds, head)?;
    Ok(events(
        context,
        head,
        Box::new(move |view, step| follower.apply(view, step)?.iter().map(reply).collect()),
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
    let events = transactions.filter_map(move |hash| {
        let event = match hash {
            // A subscriber that missed transactions must learn it: the subscription ends.
            Err(BroadcastStreamRecvError::Lagged(missed)) => Some(Err(SubscriptionEnd::Slow(
                SubscriberLag::Transactions(missed),
            ))),
            Ok(hash) if !full => Some(event_of(hash)),
            // A transaction that has left the pool since is not pending.
            Ok(hash) => pool
                .get(&hash)
                .map(|tx| event_of(TransactionJson::pooled(&tx))),
        };
        std::future::ready(event)
    });
    Ok(events.boxed())
}

fn event_of(result: impl Serialize) -> Result<SubscriptionEvent, SubscriptionEnd> {
    Ok(reply(result)?.into())
}
