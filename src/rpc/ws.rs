//! One WebSocket connection: requests run side by side, answers and events leave through one bounded queue.
//!
//! A client that does not read fills the queue; then its requests and subscriptions wait (events are pulled, not pushed, so
//! nothing piles up; all answers together have one bound), and after [`Limits::ws_write`] without progress the connection is dropped.

mod fragments;

use super::{
    api::Api,
    frame::{self, Allowance, Held, Live, Room, Session, Subscription},
    server::Limits,
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
/// How long a closing connection may take to say so.
const CLOSE: Duration = Duration::from_secs(1);

type Socket = Compat<Fragments<TokioIo<Upgraded>>>;

/// What is written to the socket, with the memory it was given.
type Message = (String, Option<Held>);
type Queue = mpsc::Sender<Message>;

/// Serves a connection until either side ends it.
pub async fn session(
    socket: TokioIo<Upgraded>,
    api: Arc<Api>,
    limits: &Limits,
    allowance: &Allowance,
    token: CancellationToken,
) {
    let fragments = Fragments::new(socket, limits.ws_message, limits.read, allowance);
    let room = fragments.incoming();
    let mut builder = Builder::new(fragments.compat(), Mode::Server);
    builder.set_max_message_size(limits.ws_message);
    builder.set_max_frame_size(limits.ws_message);
    let (mut sender, receiver) = builder.finish();
    let heard = Mutex::new(Instant::now());
    let (queue, messages) = mpsc::channel(QUEUE);
    // When nothing is read any more the queue closes, and the writer returns once it is empty.
    let reading = async {
        read((receiver, room), (&api, allowance), queue, &heard).await;
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

/// Reads requests, answers them, feeds the subscriptions they begin. Returns when the client is gone or cannot be served on.
async fn read(
    (receiver, room): (Receiver<Socket>, fragments::Incoming),
    served: (&Api, &Allowance),
    queue: Queue,
    heard: &Mutex<Instant>,
) {
    // A stream, because a read that has begun must not be dropped.
    let room = &room;
    let messages = stream::unfold(receiver, |mut receiver| async move {
        let mut message = Vec::new();
        loop {
            let incoming = receiver.receive(&mut message).await;
            *heard.lock() = Instant::now();
            match incoming {
                Ok(Incoming::Data(_)) => {
                    let room = room.lock().take();
                    return Some(((message, room), receiver));
                }
                Ok(Incoming::Pong(_)) => {}
                Ok(Incoming::Closed(_)) | Err(_) => return None,
            }
        }
    });
    tokio::pin!(messages);
    let live = Live::default();
    let mut calls = FuturesUnordered::new();
    let mut subscriptions = FuturesUnordered::new();
    loop {
        tokio::select! {
            message = messages.next(), if calls.len() < CONCURRENT => match message {
                Some(message) => calls.push(answer(message, served, &queue, &live)),
                None => return,
            },
            Some(begun) = calls.next(), if !calls.is_empty() => {
                subscriptions.extend(begun.into_iter().map(|subscription| feed(subscription, &queue, &live)));
            }
            Some(alive) = subscriptions.next(), if !subscriptions.is_empty() => {
                if !alive {
                    return;
                }
            }
        }
    }
}

/// Answers one message; gives back the subscriptions that begin now that the answer is in the queue.
async fn answer(
    (message, room): (Vec<u8>, Option<Room>),
    (api, allowance): (&Api, &Allowance),
    queue: &Queue,
    live: &Live,
) -> Vec<Subscription> {
    let answer = Session {
        api,
        allowance,
        deadline: None,
        subscriptions: Some(live),
    }
    .answer(&message)
    .await;
    // A large request is not kept for as long as its answer.
    drop((message, room));
    if let Some(text) = answer.text {
        let _ = queue.send((text, answer.held)).await;
    }
    answer.subscriptions
}

/// Passes on the events of a subscription. False when it ended by itself, which it does when events would be left out.
async fn feed(subscription: Subscription, queue: &Queue, live: &Live) -> bool {
    let Subscription {
        id,
        namespace,
        mut events,
        token,
        place: _place,
    } = subscription;
    loop {
        let event = tokio::select! {
            () = token.cancelled() => return true,
            event = events.next() => event,
        };
        let Some(event) = event else {
            live.lock().remove(&id);
            return false;
        };
        if queue
            .send((frame::notification(&namespace, &id, &event), None))
            .await
            .is_err()
        {
            return false;
        }
    }
}

/// Writes what is queued and a ping now and then.
async fn write(
    sender: &mut Sender<Socket>,
    mut messages: mpsc::Receiver<Message>,
    heard: &Mutex<Instant>,
    limits: &Limits,
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
