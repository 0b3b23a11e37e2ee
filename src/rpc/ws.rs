//! One WebSocket connection: requests run side by side, answers and events leave through one
//! bounded queue.
//!
//! A client that does not read fills the queue; then its requests and subscriptions wait (events
//! are pulled, not pushed, so nothing piles up; all answers together have one bound), and after
//! [`ServerLimits::ws_write`] without progress the connection is dropped.

mod fragments;

use super::{
    api::Api,
    frame::{self, Live, Session, Subscription},
    limits::ServerLimits,
    memory::{Allowance, MemoryPermit, ResponseMemory},
};
use fragments::Fragments;
use futures::{
    StreamExt,
    stream::{self, FuturesUnordered},
};
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use soketto::{
    Incoming, Receiver, Sender,
    connection::{Builder, Error, Mode},
    data::ByteSlice125,
};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::{
    sync::mpsc,
    time::{interval, timeout},
};
use tokio_util::{
    compat::{Compat, TokioAsyncReadCompatExt},
    sync::CancellationToken,
};

/// Requests of one connection that run at once; the next is read when one is done.
const CONCURRENT: usize = 16;
/// Messages that wait for the socket.
const QUEUE: usize = 32;
/// Timeout of the closing handshake.
const CLOSE: Duration = Duration::from_secs(1);

type Socket = Compat<Fragments<TokioIo<Upgraded>>>;

/// A message to the socket, and its memory.
type OutgoingMessage = (String, Option<ResponseMemory>);
type Queue = mpsc::Sender<OutgoingMessage>;

/// Serves a connection until either side ends it.
pub async fn session(
    socket: TokioIo<Upgraded>,
    api: Arc<Api>,
    limits: &ServerLimits,
    allowance: &Allowance,
    token: CancellationToken,
) {
    let fragments = Fragments::new(socket, limits.ws_message, limits.read, allowance);
    let incoming = fragments.incoming();
    let mut builder = Builder::new(fragments.compat(), Mode::Server);
    builder.set_max_message_size(limits.ws_message);
    builder.set_max_frame_size(limits.ws_message);
    let (mut sender, receiver) = builder.finish();
    let heard = Mutex::new(Instant::now());
    let (queue, messages) = mpsc::channel(QUEUE);
    let responder = Responder {
        api: &api,
        allowance,
        queue,
        live: Live::default(),
    };
    // When reading ends the responder is dropped. That closes the queue, and the writer returns
    // once it is empty.
    let reading = async {
        read(receiver, incoming, responder, &heard).await;
        std::future::pending::<()>().await
    };
    tokio::select! {
        () = token.cancelled() => {}
        () = reading => {}
        outcome = write(&mut sender, messages, &heard, limits) => {
            if let Err(error) = outcome {
                tracing::debug!(%error, "WebSocket dropped");
            }
        }
    }
    let _ = timeout(CLOSE, sender.close()).await;
}

/// Reads requests, answers them, and feeds the subscriptions they begin. Returns when the client is
/// gone or a subscription failed. `memory` holds the memory of the message that is arriving.
async fn read(
    receiver: Receiver<Socket>,
    memory: fragments::IncomingMemory,
    responder: Responder<'_>,
    heard: &Mutex<Instant>,
) {
    let memory = &memory;
    // A stream, because a read that has begun must not be dropped.
    let messages = stream::unfold(receiver, |mut receiver| async move {
        let mut message = Vec::new();
        loop {
            let incoming = receiver.receive(&mut message).await;
            *heard.lock() = Instant::now();
            match incoming {
                Ok(Incoming::Data(_)) => {
                    let request = ReceivedMessage {
                        bytes: message,
                        _held: memory.lock().take(),
                    };
                    return Some((request, receiver));
                }
                Ok(Incoming::Pong(_)) => {}
                Ok(Incoming::Closed(_)) | Err(_) => return None,
            }
        }
    });
    tokio::pin!(messages);
    let mut calls = FuturesUnordered::new();
    let mut subscriptions = FuturesUnordered::new();
    loop {
        tokio::select! {
            message = messages.next(), if calls.len() < CONCURRENT => match message {
                Some(message) => calls.push(responder.answer(message)),
                None => return,
            },
            Some(begun) = calls.next(), if !calls.is_empty() => {
                subscriptions.extend(begun.into_iter().map(|subscription| responder.feed(subscription)));
            }
            Some(alive) = subscriptions.next(), if !subscriptions.is_empty() => {
                if !alive {
                    return;
                }
            }
        }
    }
}

/// A message of the client, and the memory it holds.
struct ReceivedMessage {
    bytes: Vec<u8>,
    _held: Option<MemoryPermit>,
}

/// Answers the requests of one connection and feeds its subscriptions, through one queue.
struct Responder<'a> {
    api: &'a Api,
    allowance: &'a Allowance,
    queue: Queue,
    live: Live,
}

impl Responder<'_> {
    /// Answers one message; returns the subscriptions that begin now that the answer is queued.
    async fn answer(&self, message: ReceivedMessage) -> Vec<Subscription> {
        let answer = Session {
            api: self.api,
            allowance: self.allowance,
            deadline: None,
            subscriptions: Some(&self.live),
            chunked: false,
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
            let Some(event) = event else {
                self.live.lock().remove(&id);
                return false;
            };
            let notification = frame::notification(&namespace, &id, &event);
            if self.queue.send((notification, None)).await.is_err() {
                return false;
            }
        }
    }
}

/// Writes queued messages, and pings.
async fn write(
    sender: &mut Sender<Socket>,
    mut messages: mpsc::Receiver<OutgoingMessage>,
    heard: &Mutex<Instant>,
    limits: &ServerLimits,
) -> Result<(), Error> {
    let stalled = || Error::Io(std::io::ErrorKind::TimedOut.into());
    let mut ping = interval(limits.ws_ping);
    ping.tick().await;
    loop {
        tokio::select! {
            message = messages.recv() => {
                let Some((message, _held)) = message else { return Ok(()) };
                let sent = async {
                    sender.send_text_owned(message).await?;
                    sender.flush().await
                };
                timeout(limits.ws_write, sent).await.map_err(|_| stalled())??;
            }
            _ = ping.tick() => {
                if heard.lock().elapsed() >= limits.ws_ping * 2 {
                    return Err(stalled());
                }
                let sent = async {
                    sender.send_ping(ByteSlice125::try_from(&[][..]).expect("no bytes are at most 125")).await?;
                    sender.flush().await
                };
                timeout(limits.ws_write, sent).await.map_err(|_| stalled())??;
            }
        }
    }
}
