//! `eth_subscribe`: the new heads and logs of every block without a gap, and transactions as they
//! enter the pool.
//!
//! A change of the heads only wakes the subscription. A cursor then walks from the last reported
//! block to the head, in batches. The next batch is read when the subscriber has taken the previous
//! one, so a slow reader uses no more memory. A subscription ends if more than [`MAX_LAG`] blocks
//! are added while its subscriber catches up. If a reorg abandons blocks that are no longer kept,
//! the subscription and its connection end, and the client must subscribe again. op-geth keeps such
//! blocks for ever.
//!
//! Subscribers that return at the same time, all far behind, share the memory of events: the less
//! memory is free, the smaller is a batch. The subscriptions of one connection read their batches in
//! turn, and a batch is charged to the connection ([`EventMemory`]) until its events have been sent.
//!
//! A client may name the block that it has seen last. It then gets the events that it has missed
//! before live events. That block must be at most [`MAX_LAG`] blocks behind the head, and its
//! branch must still be kept.

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
        json,
        log_filter::{LogFilter, LogFollower},
        memory::{BatchReservation, EventMemory, KIB, MemoryPermit, ResponseMemory},
        params::{Arg, Args, Json, Quantity},
        subscription::{
            ChainPosition, EventStream, Subscriber, SubscriberLag, SubscriptionEnd,
            SubscriptionEvent,
        },
    },
};
use alloy_primitives::B256;
use futures::{Stream, StreamExt, stream};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use starling_proto::payload::BlockId;
use std::{collections::HashSet, sync::Arc, time::Duration};
use tokio::{sync::watch, time::Instant};
use tokio_stream::wrappers::{BroadcastStream, errors::BroadcastStreamRecvError};

/// Maximum blocks between the start of a subscription and the head, and maximum blocks that may be
/// added while a subscriber catches up.
const MAX_LAG: u64 = 1024;

/// Maximum events in a batch. The subscriber takes a batch before more blocks are read.
const MAX_EVENTS: usize = 1000;

/// Bounds of the byte limit of a batch of events. A batch ends with the block that reaches its limit.
const MIN_BYTES: usize = 4 << 10;
const MAX_BYTES: usize = 256 << 10;

/// Largest batch that holds no memory permit. A batch of heads whose limit is `MIN_BYTES` fits, even
/// with the block that exceeds the limit. Subscriptions to heads therefore continue when the memory
/// of events is exhausted. The limits on connections and on the length of their queues bound the
/// memory of such batches.
const UNCOUNTED_BYTES: usize = 2 * MIN_BYTES;

/// A batch takes a sixteenth of the free memory of events, between `MIN_BYTES` and `MAX_BYTES`. The
/// memory thus lasts for some three hundred subscriptions whose clients do not read. While
/// it is used up, a subscription whose next batch does not fit ends with
/// [`SubscriptionEnd::Overloaded`].
const SHARE: usize = 16;

/// Time that a subscriber has to take a batch.
const PATIENCE: Duration = Duration::from_secs(60);

/// An event and a block number: that of the event's block, or of the parent if the block was
/// removed from the chain.
struct BlockEvent {
    json: Box<RawValue>,
    number: u64,
    /// The event's part of the batch's memory, until the event has been sent.
    held: Option<ResponseMemory>,
}

/// A batch of events that waits for its subscriber.
struct Events {
    list: Vec<BlockEvent>,
    /// Memory of the batch until it is charged to the connection; `None` for a small batch.
    held: Option<MemoryPermit>,
    heads: watch::Receiver<Heads>,
    until: Instant,
}

impl Events {
    /// Charges the batch to its connection.
    async fn charge(&mut self, reservation: BatchReservation<'_>) {
        if let Some(permit) = self.held.take() {
            distribute(reservation.charge(permit).await, &mut self.list);
        }
    }

    /// The events of the batch, in order. An event that the subscriber takes too late is replaced
    /// by an error.
    fn stream(self) -> impl Stream<Item = Result<SubscriptionEvent, SubscriptionEnd>> {
        let Self {
            list, heads, until, ..
        } = self;
        stream::iter(list).map(move |BlockEvent { json, number, held }| {
            let heads = heads.clone();
            let position = ChainPosition { number, heads };
            if Instant::now() < until {
                Ok(SubscriptionEvent::of_block(json, held, position))
            } else {
                let lag = SubscriberLag::of_block(&position);
                Err(SubscriptionEnd::Slow(lag))
            }
        })
    }
}

/// A function that returns the events of one step, in order.
type StepEvents = Box<dyn FnMut(&Arc<View>, Step) -> Result<Vec<Box<RawValue>>, RpcError> + Send>;

/// The position of a subscription on the chain.
struct Walk {
    context: Arc<RpcContext>,
    /// Memory of the connection's events.
    memory: EventMemory,
    heads: watch::Receiver<Heads>,
    cursor: Cursor,
    /// Number of the head when the walk began to catch up; `None` at the head. The lag is counted
    /// from this number, because the head may move by many blocks at once, which is no fault of the
    /// subscriber.
    catching_up: Option<u64>,
    events_of: StepEvents,
    /// The error that ends the subscription once its subscriber has taken all events before the
    /// error.
    failed: Option<SubscriptionEnd>,
}

/// The events of the blocks after `head`.
fn events(
    context: &Arc<RpcContext>,
    memory: &EventMemory,
    head: BlockId,
    events_of: StepEvents,
) -> EventStream {
    let heads = context.chain.heads.clone();
    let cursor = Cursor::new(head);
    let walk = Walk {
        context: context.clone(),
        memory: memory.clone(),
        heads,
        cursor,
        catching_up: None,
        events_of,
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

/// Waits for the next batch. An error ends the stream: no walk is returned with it.
async fn next_batch(mut walk: Walk) -> Option<(Result<Events, SubscriptionEnd>, Option<Walk>)> {
    let memory = walk.memory.clone();
    loop {
        let reservation = memory.reserve(MAX_BYTES / KIB).await;
        // Before the walk: a head that moves during the walk then wakes the next walk.
        walk.heads.mark_unchanged();
        let reads = walk.context.bounds.reads.clone();
        let step = blocking("eth_subscribe", reads, move || {
            let events = walk.step();
            Ok((walk, events))
        });
        let end = match step.await {
            Ok((next, Ok(None))) => {
                drop(reservation);
                walk = next;
                walk.heads.changed().await.ok()?;
                continue;
            }
            Ok((next, Ok(Some(mut events)))) => {
                events.charge(reservation).await;
                return Some((Ok(events), Some(next)));
            }
            Ok((_, Err(end))) => end,
            Err(error) => error.into(),
        };
        tracing::debug!(%end, "a subscription ended");
        return Some((Err(end), None));
    }
}

impl Walk {
    /// The next batch of events between the last reported block and the head; `None` at the head.
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
            let more = more.into_iter().map(|json| BlockEvent {
                json,
                number,
                held: None,
            });
            list.extend(more);
        }
        if list.is_empty() {
            return Ok(None);
        }
        let mut held = None;
        if bytes > UNCOUNTED_BYTES {
            let permit = u32::try_from(bytes / KIB).ok();
            let permit = permit.and_then(|kib| memory.try_acquire_many_owned(kib).ok());
            held = Some(permit.ok_or(SubscriptionEnd::Overloaded)?);
        }
        Ok(Some(Events {
            list,
            held,
            heads: self.heads.clone(),
            until: Instant::now() + PATIENCE,
        }))
    }

    /// The events of the cursor's next step; `None` at the head.
    fn next(&mut self, view: &Arc<View>) -> Result<Option<Vec<Box<RawValue>>>, RpcError> {
        let Some(step) = self.context.step(&mut self.cursor, view)? else {
            return Ok(None);
        };
        (self.events_of)(view, step).map(Some)
    }
}

/// Gives each event its part of the memory for their bytes. Among small events, only every few
/// events hold memory, one KiB each.
fn distribute(mut memory: ResponseMemory, events: &mut [BlockEvent]) {
    let mut bytes = 0;
    for event in events {
        bytes += event.json.get().len();
        event.held = memory.split(bytes / KIB);
        bytes %= KIB;
    }
}

/// The last parameter of a subscription, which names the block that the subscriber has seen last.
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

/// The block after which events begin, as a parameter.
struct ResumeArg(BlockId);

impl Arg for ResumeArg {
    fn from_json(json: &str) -> Result<Self, String> {
        let members: ResumeMembers<'_> = json::read(json).map_err(|error| error.to_string())?;
        let Quantity(number) = Quantity::from_json(members.from.number.get())?;
        let hash = members.from.hash;
        Ok(Self(BlockId { number, hash }))
    }
}

/// The block after which a subscription's events begin: the block that its client has seen last, or
/// the head.
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

/// `eth_subscribe("newHeads")`: the header of each block that joins the canonical chain.
pub fn new_heads(
    context: &Arc<RpcContext>,
    args: Args,
    subscriber: &Subscriber,
) -> Result<EventStream, RpcError> {
    let resume = args.at_most(2)?.optional()?;
    Ok(events(
        context,
        &subscriber.memory,
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

/// Maximum transaction hashes in one subscription of receipts.
const MAX_HASHES: usize = 200;

/// The parameter of `transactionReceipts`. Without hashes, it selects all transactions.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ReceiptsQuery {
    transaction_hashes: Option<Vec<B256>>,
}

/// `eth_subscribe("transactionReceipts")`: the receipts of each block that joins the canonical
/// chain, as one list. A block without a selected receipt has no event.
pub fn transaction_receipts(
    context: &Arc<RpcContext>,
    args: Args,
    subscriber: &Subscriber,
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
        &subscriber.memory,
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

/// `eth_subscribe("logs")`: the logs of each block that becomes canonical. They are repeated with
/// `removed` when a reorg displaces the block.
pub fn logs(
    context: &Arc<RpcContext>,
    args: Args,
    subscriber: &Subscriber,
) -> Result<EventStream, RpcError> {
    let mut args = args.at_most(3)?;
    let filter = args.optional::<LogFilter>()?.unwrap_or_default();
    filter.check_size(context.bounds.logs.query)?;
    let head = start(context, args.optional()?)?;
    let mut follower = LogFollower::new(filter, &context.bounds, head)?;
    Ok(events(
        context,
        &subscriber.memory,
        head,
        Box::new(move |view, step| follower.apply(view, step)?.iter().map(reply).collect()),
    ))
}

/// `eth_subscribe("newPendingTransactions")`: transactions as they become executable, as hashes or
/// in full.
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
            // A subscriber that has missed transactions must be notified, so its subscription ends.
            Err(BroadcastStreamRecvError::Lagged(missed)) => Some(Err(SubscriptionEnd::Slow(
                SubscriberLag::Transactions(missed),
            ))),
            Ok(hash) if !full => Some(event_of(hash)),
            // A transaction that has left the pool since then is not pending.
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
