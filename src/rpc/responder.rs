//! The requests and subscriptions of one connection that stays open: a WebSocket or a local socket.
//!
//! Answers and events leave through one bounded queue. A client that does not read fills it; then its
//! requests and subscriptions wait, and the transport drops the connection. It is dropped, too, when a
//! subscription ends by itself, since events would be missing.

use super::{
    access::Caller,
    api::Api,
    frame::{self, Live, Session, Subscription},
    memory::{Allowance, MemoryPermit, ResponseMemory},
    subscription::{ChainPosition, SubscriptionEnd},
};
use futures::{Stream, StreamExt, stream::FuturesUnordered};
use tokio::sync::mpsc;

/// Requests of one connection that run at once; the next is read when one is done.
const CONCURRENT: usize = 16;

/// A message to the client.
pub(super) struct OutgoingMessage {
    pub text: String,
    /// Memory that is held until the message has been sent.
    pub held: Option<ResponseMemory>,
    /// `None` for an answer, and for an event that belongs to no block.
    pub position: Option<ChainPosition>,
}

type Queue = mpsc::Sender<OutgoingMessage>;

/// A message of the client, and the memory it holds.
pub(super) struct ReceivedMessage {
    bytes: Vec<u8>,
    _held: Option<MemoryPermit>,
}

impl ReceivedMessage {
    pub(super) fn new(bytes: Vec<u8>, held: Option<MemoryPermit>) -> Self {
        Self { bytes, _held: held }
    }
}

/// Answers the requests of one connection and feeds its subscriptions, through one queue.
pub(super) struct Responder<'a> {
    api: &'a Api,
    allowance: &'a Allowance,
    queue: Queue,
    live: Live,
    caller: Option<Caller>,
}

impl<'a> Responder<'a> {
    pub(super) fn new(api: &'a Api, allowance: &'a Allowance, queue: Queue) -> Self {
        Self {
            api,
            allowance,
            queue,
            live: Live::default(),
            caller: None,
        }
    }

    /// Takes the cost of calls from the budget of this caller.
    pub(super) fn for_caller(self, caller: Option<Caller>) -> Self {
        Self { caller, ..self }
    }

    /// Answers messages side by side, and feeds the subscriptions that they begin. Returns when the
    /// client is gone, or with the reason why a subscription ended.
    pub(super) async fn serve(
        &self,
        messages: impl Stream<Item = ReceivedMessage>,
    ) -> Option<SubscriptionEnd> {
        tokio::pin!(messages);
        let mut calls = FuturesUnordered::new();
        let mut subscriptions = FuturesUnordered::new();
        loop {
            tokio::select! {
                message = messages.next(), if calls.len() < CONCURRENT => match message {
                    Some(message) => calls.push(self.answer(message)),
                    None => return None,
                },
                Some(begun) = calls.next(), if !calls.is_empty() => {
                    subscriptions.extend(begun.into_iter().map(|subscription| self.feed(subscription)));
                }
                Some(fed) = subscriptions.next(), if !subscriptions.is_empty() => {
                    if let Err(end) = fed {
                        return end;
                    }
                }
            }
        }
    }

    /// Answers one message; returns the subscriptions that begin now that the answer is queued.
    async fn answer(&self, message: ReceivedMessage) -> Vec<Subscription> {
        let answer = Session {
            api: self.api,
            allowance: self.allowance,
            deadline: None,
            subscriptions: Some(&self.live),
            chunked: false,
            metrics: None,
            caller: self.caller.as_ref(),
        }
        .answer(&message.bytes)
        .await;
        // Frees the memory of the request before the answer waits for its reader.
        drop(message);
        if let Some(text) = answer.text {
            let message = OutgoingMessage {
                text,
                held: answer.held,
                position: None,
            };
            let _ = self.queue.send(message).await;
        }
        answer.subscriptions
    }

    /// Queues the events of a subscription until its client ends it. An error ends the connection,
    /// because an event would be left out; it has a reason unless client or source are gone.
    async fn feed(&self, subscription: Subscription) -> Result<(), Option<SubscriptionEnd>> {
        let Subscription {
            id,
            namespace,
            mut events,
            token,
            permit: _permit,
        } = subscription;
        loop {
            let event = tokio::select! {
                () = token.cancelled() => return Ok(()),
                event = events.next() => event,
            };
            let mut event = match event {
                Some(Ok(event)) => event,
                ended => {
                    self.live.lock().remove(&id);
                    return Err(ended.and_then(Result::err));
                }
            };
            let message = OutgoingMessage {
                text: frame::notification(&namespace, &id, &event),
                held: event.held.take().map(ResponseMemory::from),
                position: event.position.take(),
            };
            // Only the copy waits for the client.
            drop(event);
            if self.queue.send(message).await.is_err() {
                return Err(None);
            }
        }
    }
}
