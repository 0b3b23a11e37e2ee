//! One WebSocket connection: requests run side by side, and responses and events go through one
//! bounded queue.
//!
//! A client that does not read fills the queue; its requests and subscriptions then wait. Events
//! are pulled, not pushed, so nothing accumulates, and all responses together have one memory
//! bound. A client that does not take a whole message within [`ServerLimits::ws_write`] is logged,
//! and its subscriptions and queue are dropped. It gets the same time again to take the rest of the
//! message and the close frame. After that, the connection is dropped without a close frame.

mod close;
mod fragments;

use super::{
    api::Api,
    limits::ServerLimits,
    memory::Allowance,
    operator::RequestSender,
    responder::{OutgoingMessage, ReceivedMessage, Responder},
    subscription::{SubscriberLag, SubscriptionEnd},
};
use close::{CloseFrame, CloseFrames};
use fragments::Fragments;
use futures::{
    StreamExt,
    future::{join, maybe_done},
    stream,
};
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use soketto::{
    Incoming, Receiver, Sender,
    connection::{Builder, Error, Mode},
    data::ByteSlice125,
    extension::Extension,
};
use std::{
    net::SocketAddr,
    pin::pin,
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

/// Maximum messages that wait for the socket.
const QUEUE: usize = 32;
/// Timeout of the closing handshake.
const CLOSE: Duration = Duration::from_secs(1);

type Socket = Compat<Fragments<TokioIo<Upgraded>>>;

/// State that the reading and the writing side of a session share.
struct SessionState {
    peer: SocketAddr,
    /// Time at which the client last sent something.
    last_received: Mutex<Instant>,
    /// Token that is cancelled when the session serves no more requests.
    closing: CancellationToken,
    /// The reason why a subscription ended by itself, if one did.
    end: Mutex<Option<SubscriptionEnd>>,
}

impl SessionState {
    /// Logs a client that is dropped because it reads too slowly.
    fn log_slow(&self, lag: SubscriberLag) {
        tracing::warn!(peer = %self.peer, %lag, "dropped a WebSocket client that reads too slowly");
    }
}

/// Serves the connection of `peer` until either side ends it.
pub async fn session(
    socket: TokioIo<Upgraded>,
    peer: SocketAddr,
    api: Arc<Api>,
    limits: &ServerLimits,
    allowance: &Allowance,
    client: RequestSender,
    token: CancellationToken,
) {
    let fragments = Fragments::new(socket, limits.ws_message, limits.read, allowance);
    let incoming = fragments.incoming();
    let mut builder = Builder::new(fragments.compat(), Mode::Server);
    builder.set_max_message_size(limits.ws_message);
    builder.set_max_frame_size(limits.ws_message);
    builder.add_extensions([Box::new(CloseFrames) as Box<dyn Extension + Send>]);
    let (sender, receiver) = builder.finish();
    let (queue, messages) = mpsc::channel(QUEUE);
    let state = SessionState {
        peer,
        last_received: Mutex::new(Instant::now()),
        closing: CancellationToken::new(),
        end: Mutex::default(),
    };
    let responder = Responder::new(&api, allowance, queue).for_sender(client);
    let mut writer = Writer {
        sender,
        messages,
        limits,
        state: &state,
        torn: false,
    };
    let mut reading = pin!(maybe_done(read(receiver, incoming, responder, &state)));
    // The client is gone: the writer returns once the queue is empty.
    let reads = async {
        reading.as_mut().await;
        std::future::pending::<()>().await
    };
    let end = tokio::select! {
        () = token.cancelled() => None,
        () = reads => None,
        end = writer.run() => end,
    };
    state.closing.cancel();
    let closing = join(writer.close(CloseFrame::of(end.as_ref())), reading);
    let _ = timeout(CLOSE, closing).await;
}

/// Reads requests, handles them, and feeds the subscriptions that they begin. This ends when the
/// client is gone, a subscription ends, or the session closes. From then on the function reads
/// without responding until the client closes its side: unread bytes would reset the connection
/// before the client has received everything. `memory` is the permit for the message that is
/// arriving.
async fn read(
    receiver: Receiver<Socket>,
    memory: fragments::IncomingMemory,
    responder: Responder<'_>,
    state: &SessionState,
) {
    let memory = &memory;
    // A stream keeps the read in progress: a read that has begun must not be dropped.
    let messages = stream::unfold(receiver, |mut receiver| async move {
        let mut message = Vec::new();
        loop {
            let incoming = receiver.receive(&mut message).await;
            *state.last_received.lock() = Instant::now();
            match incoming {
                Ok(Incoming::Data(_)) => {
                    let held = std::mem::take(&mut *memory.lock());
                    let request = ReceivedMessage::new(message, held);
                    return Some((request, receiver));
                }
                Ok(Incoming::Pong(_)) => {}
                Ok(Incoming::Closed(_)) | Err(_) => return None,
            }
        }
    });
    let mut messages = pin!(messages.fuse());
    tokio::select! {
        end = responder.serve(messages.as_mut()) => *state.end.lock() = end,
        () = state.closing.cancelled() => {}
    }
    // Dropping the responder closes the queue.
    drop(responder);
    while messages.next().await.is_some() {}
}

/// The sending side of a session.
struct Writer<'a> {
    sender: Sender<Socket>,
    messages: mpsc::Receiver<OutgoingMessage>,
    limits: &'a ServerLimits,
    state: &'a SessionState,
    /// Whether a frame has been begun and not finished. No other frame can follow it.
    torn: bool,
}

impl Writer<'_> {
    /// Writes queued messages and pings until the queue is closed and empty, or the client cannot
    /// be reached. Returns the reason if the session closes because of a subscription.
    async fn run(&mut self) -> Option<SubscriptionEnd> {
        let mut ping = interval(self.limits.ws_ping);
        ping.tick().await;
        loop {
            let message = tokio::select! {
                message = self.messages.recv() => match message {
                    Some(message) => Some(message),
                    None => break,
                },
                _ = ping.tick() => None,
            };
            let silent = self.state.last_received.lock().elapsed();
            if message.is_none() && silent >= self.limits.ws_ping * 2 {
                tracing::debug!(peer = %self.state.peer, ?silent, "WebSocket dropped");
                return None;
            }
            match self.send(message).await {
                Ok(None) => {}
                Ok(Some(lag)) => return Some(SubscriptionEnd::Slow(lag)),
                Err(error) => {
                    tracing::debug!(peer = %self.state.peer, %error, "WebSocket dropped");
                    return None;
                }
            }
        }
        let end = self.state.end.lock().take();
        if let Some(SubscriptionEnd::Slow(lag)) = end {
            self.state.log_slow(lag);
        }
        end
    }

    /// Sends `message`, or a ping if it is `None`. Returns the client's lag if it did not take the
    /// message in time.
    async fn send(
        &mut self,
        message: Option<OutgoingMessage>,
    ) -> Result<Option<SubscriberLag>, Error> {
        let (sender, limit) = (&mut self.sender, self.limits.ws_write);
        let (text, position, _held) = match message {
            Some(message) => (Some(message.text), message.position, message.held),
            None => (None, None, None),
        };
        let sent = async {
            match text {
                Some(text) => sender.send_text_owned(text).await?,
                None => sender.send_ping(no_bytes()).await?,
            }
            sender.flush().await
        };
        let mut sent = pin!(sent);
        self.torn = true;
        let mut lag = None;
        if let Ok(sent) = timeout(limit, sent.as_mut()).await {
            sent?;
        } else {
            self.state.closing.cancel();
            self.messages.close();
            // Takes the waiting messages out of the queue, which frees their memory.
            let behind = std::iter::from_fn(|| self.messages.try_recv().ok());
            let waiting = std::iter::once(position).chain(behind.map(|message| message.position));
            let behind = SubscriberLag::of_messages(waiting);
            self.state.log_slow(behind);
            lag = Some(behind);
            let late = |_| Error::Io(std::io::ErrorKind::TimedOut.into());
            timeout(limit, sent).await.map_err(late)??;
        }
        self.torn = false;
        Ok(lag)
    }

    /// Ends the session with a close frame, if the client can still read one.
    async fn close(&mut self, frame: CloseFrame) {
        if self.torn {
            return;
        }
        if self.sender.send_binary(frame.bytes()).await.is_ok() {
            let _ = self.sender.flush().await;
        }
    }
}

fn no_bytes() -> ByteSlice125<'static> {
    ByteSlice125::try_from(&[][..]).expect("no bytes are at most 125")
}
