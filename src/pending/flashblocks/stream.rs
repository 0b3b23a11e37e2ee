//! The flashblock stream: receives messages from a WebSocket and executes them one after another.
//!
//! While a message is executed, at most two more are read from the socket. A sequencer that sends
//! more than can be executed therefore fills the socket's buffers, but not our memory. After a
//! connection is lost, it is made again after a pause, which grows up to [`MAX_PAUSE`].

use super::{
    NewestFlashblock,
    frame::{Flashblock, FlashblockFrameError, MAX_MESSAGE},
    open_block::{OpenFlashblock, OpenFlashblockError},
    sequence::{Assembler, FlashblockArrival, SequenceError},
};
use crate::{
    chain::{rules::ChainSpec, view::View},
    rollup::http::{endpoint_of, excerpt},
};
use jsonrpsee::{
    client_transport::ws::{Url, WsTransportClientBuilder},
    core::client::{ReceivedMessage, TransportReceiverT},
};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::{
    sync::mpsc,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;

/// Timeout for connecting.
const CONNECT: Duration = Duration::from_secs(10);
/// Time without a message after which the stream is reconnected, since sequencers publish parts of
/// every block.
const SILENT: Duration = Duration::from_secs(30);
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const MAX_PAUSE: Duration = Duration::from_secs(30);

/// The reason why a message is discarded.
#[derive(Debug, thiserror::Error)]
pub enum StreamError {
    #[error(transparent)]
    Frame(#[from] FlashblockFrameError),
    #[error(transparent)]
    Sequence(#[from] SequenceError),
    #[error(transparent)]
    Block(#[from] OpenFlashblockError),
}

/// A function that returns the newest view of the chain.
pub type HeadReader = Arc<dyn Fn() -> Arc<View> + Send + Sync>;

/// Executes the parts of the block in progress.
pub struct FlashblockWorker {
    spec: Arc<ChainSpec>,
    head: HeadReader,
    newest: Arc<NewestFlashblock>,
    assembler: Assembler,
    /// The block in progress; `None` while the parent of the current sequence is not known here.
    open: Option<OpenFlashblock>,
}

impl FlashblockWorker {
    pub fn new(spec: Arc<ChainSpec>, head: HeadReader, newest: Arc<NewestFlashblock>) -> Self {
        Self {
            spec,
            head,
            newest,
            assembler: Assembler::default(),
            open: None,
        }
    }

    /// Handles a message. After an error there is no pending block until the next block begins.
    pub fn on_message(&mut self, message: &[u8], now: Instant) -> Result<(), StreamError> {
        let taken = self.take(message, now);
        if taken.is_err() {
            self.assembler.current = None;
            self.open = None;
            self.newest.clear();
        }
        taken
    }

    fn take(&mut self, message: &[u8], now: Instant) -> Result<(), StreamError> {
        match self.assembler.accept(Flashblock::read(message)?)? {
            FlashblockArrival::Ignored => return Ok(()),
            FlashblockArrival::Begins => self.open = None,
            FlashblockArrival::Continues => {}
        }
        let Some(sequence) = &self.assembler.current else {
            return Ok(());
        };
        if self.open.is_none() {
            let head = (self.head)();
            self.open = OpenFlashblock::begin(&self.spec, &self.newest, &head, sequence, now)?;
        }
        if let Some(open) = &mut self.open {
            open.extend(sequence)?;
            self.newest.publish(Arc::new(open.view()?), now);
        }
        Ok(())
    }
}

/// Reads the stream until `token` is cancelled, and reconnects when a connection ends.
pub async fn run(
    url: Url,
    spec: Arc<ChainSpec>,
    head: HeadReader,
    newest: Arc<NewestFlashblock>,
    token: CancellationToken,
) {
    let mut pause = FIRST_PAUSE;
    let endpoint = endpoint_of(url.as_str());
    loop {
        let started = Instant::now();
        let begin = {
            let (spec, head, newest) = (spec.clone(), head.clone(), newest.clone());
            || FlashblockWorker::new(spec, head, newest)
        };
        let reason = tokio::select! {
            () = token.cancelled() => return,
            reason = read(url.clone(), begin) => reason,
        };
        if started.elapsed() > SILENT {
            pause = FIRST_PAUSE;
        }
        tracing::warn!(endpoint, reason, retry = ?pause, "no flashblocks: `pending` is the latest block");
        tokio::select! {
            () = token.cancelled() => return,
            () = sleep(pause) => {}
        }
        pause = (pause * 2).min(MAX_PAUSE);
    }
}

/// Reads one connection until it ends. Returns the reason why it ended.
async fn read(url: Url, begin: impl FnOnce() -> FlashblockWorker + Send + 'static) -> String {
    let connecting = WsTransportClientBuilder::default()
        .max_response_size(MAX_MESSAGE as u32)
        .build(url.clone());
    let (_sender, mut receiver) = match timeout(CONNECT, connecting).await {
        Ok(Ok(connection)) => connection,
        Ok(Err(error)) => return excerpt(error),
        Err(_) => return format!("no connection within {CONNECT:?}"),
    };
    tracing::info!(endpoint = endpoint_of(url.as_str()), "flashblocks are read");
    let (messages, waiting) = mpsc::channel(1);
    // The EVM stays on one thread. The closure ends when the connection does, which drops
    // `messages`.
    drop(tokio::task::spawn_blocking(move || work(begin(), waiting)));
    loop {
        let message = match timeout(SILENT, receiver.receive()).await {
            Ok(Ok(ReceivedMessage::Text(text))) => text.into_bytes(),
            Ok(Ok(ReceivedMessage::Bytes(bytes))) => bytes,
            Ok(Ok(ReceivedMessage::Pong)) => continue,
            Ok(Err(error)) => return excerpt(error),
            Err(_) => return format!("silence for {SILENT:?}"),
        };
        if messages.send(message).await.is_err() {
            return "a flashblock could not be executed".to_owned();
        }
    }
}

/// Handles the messages of one connection.
fn work(mut worker: FlashblockWorker, mut messages: mpsc::Receiver<Vec<u8>>) {
    while let Some(message) = messages.blocking_recv() {
        if let Err(error) = worker.on_message(&message, Instant::now()) {
            tracing::debug!(%error, "a flashblock was dropped");
        }
    }
    worker.newest.clear();
}
