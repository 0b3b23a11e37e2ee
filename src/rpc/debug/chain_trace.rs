//! `debug_subscribe("traceChain", start, end, options)`: the traces of a range of blocks, block by
//! block.
//!
//! The next block is traced only when the event of the previous block is in the connection's queue.
//! Memory for its event is reserved first, and released when the event has been sent: slow
//! subscribers delay the others, but use no more memory. In the queue of tracing calls, all these
//! subscriptions together count as one client. Each block waits until its caller's budgets have paid
//! for it as for a call of [`PRICE`].

use crate::{
    chain::evm::{Deadline, TraceWriter},
    rpc::{
        access::Caller,
        context::RpcContext,
        error::RpcError,
        eth::block_arg::{BlockArg, BlockTag},
        heavy::StartedCall,
        memory::KIB,
        params::Args,
        schedule::Client,
        subscription::{EventStream, Subscriber, SubscriptionEvent},
        trace_session::{TraceOptions, TraceSession, known_number},
    },
};
use futures::{StreamExt, stream};
use serde_json::{
    json,
    value::{RawValue, to_raw_value},
};
use std::sync::Arc;

/// The client that all these subscriptions together count as. Real connections are numbered from
/// zero.
const CLIENT: Client = Client::Connection(u64::MAX);

/// Method whose cost is charged for each block.
const PRICE: &str = "debug_traceBlockByNumber";

/// A range of blocks that is being traced.
struct ChainTrace {
    context: Arc<RpcContext>,
    caller: Option<Caller>,
    options: TraceOptions,
    next: u64,
    end: u64,
}

/// The event of a block that cannot be traced. Tracing continues with the next block of the range.
fn failed_event(context: &RpcContext, number: u64, error: &RpcError) -> Option<Box<RawValue>> {
    let hash = context.view().hash_of(number).ok().flatten();
    let event = json!({
        "block": format!("{number:#x}"),
        "hash": hash,
        "traces": [],
        "error": error.message,
    });
    to_raw_value(&event).ok()
}

/// `debug_subscribe("traceChain", …)`: traces the blocks after `start` up to `end`. Blocks without
/// transactions are left out, except the last block.
pub fn subscribe(
    context: &Arc<RpcContext>,
    args: Args,
    subscriber: &Subscriber,
) -> Result<EventStream, RpcError> {
    let mut args = args.at_most(4)?;
    let (start, end): (BlockTag, BlockTag) = (args.required()?, args.required()?);
    let options: TraceOptions = args.optional()?.unwrap_or_default();
    let view = context.view();
    let number = |tag| known_number(context, &view, BlockArg::Tag(tag));
    let (start, end) = (number(start)?, number(end)?);
    if start >= end {
        return Err(RpcError::server(format!(
            "end block (#{end}) needs to come after start block (#{start})"
        )));
    }
    let trace = ChainTrace {
        context: context.clone(),
        caller: subscriber.caller.clone(),
        options,
        next: start + 1,
        end,
    };
    let events = stream::unfold(trace, |mut trace| async move {
        let event = trace.next_event().await?;
        Some((Ok(event), trace))
    });
    // Keep the stream open after the range: a subscription that ends closes its connection.
    Ok(events.chain(stream::pending()).boxed())
}

impl ChainTrace {
    /// Traces blocks up to the next one that has an event, and returns the event.
    async fn next_event(&mut self) -> Option<SubscriptionEvent> {
        let bounds = &self.context.bounds;
        let most = u32::try_from(bounds.trace_bytes.div_ceil(KIB)).ok()?;
        while self.next <= self.end {
            // Memory is reserved after the payment, so that a caller without a budget holds none.
            if let Some(caller) = &self.caller {
                caller.pay(PRICE).await;
            }
            let memory = self.context.bounds.chain_traces.clone();
            let mut held = memory.acquire_many_owned(most).await.ok()?;
            let number = self.next;
            self.next += 1;
            let last = number == self.end;
            let (context, options) = (self.context.clone(), self.options.clone());
            let deadline = Deadline::after(context.bounds.trace_timeout);
            let heavy = &self.context.bounds.heavy;
            let work = move |deadline: &Deadline, _: &StartedCall| {
                trace_block(&context, number, last, &options, deadline)
            };
            let traced = heavy.trace("debug_traceChain", CLIENT, deadline, work);
            let event = match traced.await {
                Ok(Some(event)) => event,
                Ok(None) => continue,
                Err(error) => failed_event(&self.context, number, &error)?,
            };
            let taken = event.get().len().div_ceil(KIB);
            drop(held.split(held.num_permits().saturating_sub(taken)));
            return Some(SubscriptionEvent::large(event, held));
        }
        None
    }
}

/// Traces one block. Returns `None` for a block without transactions that is not the `last`.
fn trace_block(
    context: &RpcContext,
    number: u64,
    last: bool,
    options: &TraceOptions,
    deadline: &Deadline,
) -> Result<Option<Box<RawValue>>, RpcError> {
    let out = TraceWriter::in_memory(context.bounds.trace_bytes);
    let mut session = TraceSession::new(context, deadline, options, out);
    let replay = session.replay(&context.view(), number)?;
    if replay.count() == 0 && !last {
        return Ok(None);
    }
    let hash = replay.payload().hash;
    session.raw(&format!(
        "{{\"block\":\"{number:#x}\",\"hash\":\"{hash}\",\"traces\":"
    ));
    session.trace_block_buffered(replay)?;
    session.raw("}");
    let text = session.finish()?;
    RawValue::from_string(text)
        .map(Some)
        .map_err(|error| RpcError::server(error.to_string()))
}
