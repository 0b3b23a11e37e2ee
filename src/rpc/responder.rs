//! The requests and subscriptions of one connection that stays open: a WebSocket or a local socket.
//!
//! Responses and events go through one bounded queue. If a client does not read, the queue fills
//! up: its requests and subscriptions wait, and the transport closes the connection. The connection
//! is also closed when a subscription ends by itself, since events would be missing.

use super::{
    api::Api,
    frame::{self, Live, Session, Subscription},
    memory::{Allowance, RequestMemory, ResponseMemory},
    operator::RequestSender,
    subscription::{ChainPosition, SubscriptionEnd},
};
use futures::{Stream, StreamExt, stream::FuturesUnordered};
use tokio::sync::mpsc;

/// Maximum requests of one connection that run at once. The next request is read when one of them
/// is done.
const CONCURRENT: usize = 16;

/// A message to the client.
pub(super) struct OutgoingMessage {
    pub text: String,
    /// Memory permit that is held until the message has been sent.
    pub held: Option<ResponseMemory>,
    /// Position of the event on the chain; `None` for a response, and for an event that belongs to
    /// no block.
    pub position: Option<ChainPosition>,
}

type Queue = mpsc::Sender<OutgoingMessage>;

/// A message from the client, with the permit for its memory.
pub(super) struct ReceivedMessage {
    bytes: Vec<u8>,
    _held: RequestMemory,
}

impl ReceivedMessage {
    pub(super) fn new(bytes: Vec<u8>, held: RequestMemory) -> Self {
        Self { bytes, _held: held }
    }
}

/// Handles the requests of one connection and feeds its subscriptions. All output goes through one
/// queue.
pub(super) struct Responder<'a> {
    api: &'a Api,
    allowance: &'a Allowance,
    queue: Queue,
    live: Live,
    sender: RequestSender,
}

impl<'a> Responder<'a> {
    pub(super) fn new(api: &'a Api, allowance: &'a Allowance, queue: Queue) -> Self {
        Self {
            api,
            allowance,
            queue,
            live: Live::default(),
            sender: RequestSender::default(),
        }
    }

    /// Admits the calls that `sender` may make.
    pub(super) fn for_sender(self, sender: RequestSender) -> Self {
        Self { sender, ..self }
    }

    /// Handles messages side by side, and feeds the subscriptions that they begin. Returns when the
    /// client has disconnected, or with the reason why a subscription ended.
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
                    Some(message) => calls.push(self.respond(message)),
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

    /// Handles one message and queues its response. Returns the subscriptions that begin after
    /// that.
    async fn respond(&self, message: ReceivedMessage) -> Vec<Subscription> {
        let answer = Session {
            api: self.api,
            allowance: self.allowance,
            deadline: None,
            subscriptions: Some(&self.live),
            chunked: false,
            metrics: None,
            sender: &self.sender,
        }
        .respond(&message.bytes)
        .await;
        // Frees the memory of the request first, because the response may have to wait for the
        // client.
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
    /// because an event would be missing. The error is `None` if the client or the source of the
    /// events is gone.
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
                    self.live.tokens.lock().remove(&id);
                    return Err(ended.and_then(Result::err));
                }
            };
            let held = match event.held.take() {
                Some(held) => tokio::select! {
                    () = token.cancelled() => return Ok(()),
                    held = self.live.memory.admit(held) => Some(held),
                },
                None => None,
            };
            let message = OutgoingMessage {
                text: frame::notification(&namespace, &id, &event),
                held,
                position: event.position.take(),
            };
            // Drop the original: only the copy in `message` waits for the client.
            drop(event);
            if self.queue.send(message).await.is_err() {
                return Err(None);
            }
        }
    }
}
