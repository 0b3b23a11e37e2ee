//! One WebSocket connection: requests run side by side, answers and events leave through one
//! bounded queue.
//!
//! A client that does not read fills the queue; then its requests and subscriptions wait (events
//! are pulled, not pushed, so nothing piles up; all answers together have one bound), and after
//! [`ServerLimits::ws_write`] without progress the connection is dropped.

mod fragments;

use super::{
    access::Caller,
    api::Api,
    limits::ServerLimits,
    memory::Allowance,
    responder::{OutgoingMessage, ReceivedMessage, Responder},
};
use fragments::Fragments;
use futures::stream;
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

/// Messages that wait for the socket.
const QUEUE: usize = 32;
/// Timeout of the closing handshake.
const CLOSE: Duration = Duration::from_secs(1);

type Socket = Compat<Fragments<TokioIo<Upgraded>>>;

/// Serves a connection until either side ends it.
pub async fn session(
    socket: TokioIo<Upgraded>,
    api: Arc<Api>,
    limits: &ServerLimits,
    allowance: &Allowance,
    caller: Option<Caller>,
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
    let responder = Responder::new(&api, allowance, queue).for_caller(caller);
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
                    let held = memory.lock().take();
                    let request = ReceivedMessage::new(message, held);
                    return Some((request, receiver));
                }
                Ok(Incoming::Pong(_)) => {}
                Ok(Incoming::Closed(_)) | Err(_) => return None,
            }
        }
    });
    responder.serve(messages).await;
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
