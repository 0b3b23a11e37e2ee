//! The requests and subscriptions of one connection that stays open: a WebSocket or a local socket.
//!
//! Answers and events leave through one bounded queue. A client that does not read fills it; then its
//! requests and subscriptions wait, and the transport drops the connection.

use super::{
    access::Caller,
    api::Api,
    frame::{self, Live, Session, Subscription},
    memory::{Allowance, MemoryPermit, ResponseMemory},
};
use futures::{Stream, StreamExt, stream::FuturesUnordered};
use tokio::sync::mpsc;

/// Requests of one connection that run at once; the next is read when one is done.
const CONCURRENT: usize = 16;

/// A message to the client, and its memory.
pub(super) type OutgoingMessage = (String, Option<ResponseMemory>);
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
    /// client is gone or a subscription failed.
    pub(super) async fn serve(&self, messages: impl Stream<Item = ReceivedMessage>) {
        tokio::pin!(messages);
        let mut calls = FuturesUnordered::new();
        let mut subscriptions = FuturesUnordered::new();
        loop {
            tokio::select! {
                message = messages.next(), if calls.len() < CONCURRENT => match message {
                    Some(message) => calls.push(self.answer(message)),
                    None => return,
                },
                Some(begun) = calls.next(), if !calls.is_empty() => {
                    subscriptions.extend(begun.into_iter().map(|subscription| self.feed(subscription)));
                }
                Some(alive) = subscriptions.next(), if !subscriptions.is_empty() => {
                    if !alive {
                        return;
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
            let _ = self.queue.send((text, answer.held)).await;
        }
        answer.subscriptions
    }

    /// Queues the events of a subscription. Returns false when the subscription ended by itself,
    /// because an event would have been left out.
    async fn feed(&self, subscription: Subscription) -> bool {
        let Subscription {
            id,
            namespace,
            mut events,
            token,
            permit: _permit,
        } = subscription;
        loop {
            let event = tokio::select! {
                () = token.cancelled() => return true,
                event = events.next() => event,
            };
            let Some(mut event) = event else {
                self.live.lock().remove(&id);
                return false;
            };
            let held = event.held.take().map(ResponseMemory::from);
            let notification = frame::notification(&namespace, &id, &event);
            // Only the copy waits for the client.
            drop(event);
            if self.queue.send((notification, held)).await.is_err() {
                return false;
            }
        }
    }
}
