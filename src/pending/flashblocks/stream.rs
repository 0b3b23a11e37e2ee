//! The flashblock stream: messages of a WebSocket, executed one after another.
//!
//! One message waits while another is executed, and the socket is not read meanwhile: a sequencer that
//! sends more than can be executed fills the socket's buffers and no memory of ours. A connection that
//! is lost is made again, after a pause that grows to [`MAX_PAUSE`].

use super::{
    NewestFlashblock,
    frame::{Flashblock, FlashblockFrameError, MAX_MESSAGE},
    open_block::{OpenFlashblock, OpenFlashblockError},
    sequence::{Assembler, FlashblockArrival, SequenceError},
};
use crate::chain::{rules::ChainSpec, view::View};
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

/// Time to connect.
const CONNECT: Duration = Duration::from_secs(10);
/// Silence after which a connection is made anew: sequencers publish every block.
const SILENT: Duration = Duration::from_secs(30);
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const MAX_PAUSE: Duration = Duration::from_secs(30);

/// The reason why a message is of no use.
#[derive(Debug, thiserror::Error)]
pub enum StreamError {
    #[error(transparent)]
    Frame(#[from] FlashblockFrameError),
    #[error(transparent)]
    Sequence(#[from] SequenceError),
    #[error(transparent)]
    Block(#[from] OpenFlashblockError),
}

/// The newest view of the chain.
pub type HeadReader = Arc<dyn Fn() -> Arc<View> + Send + Sync>;

/// The block in progress.
pub struct FlashblockWorker {
    spec: Arc<ChainSpec>,
    head: HeadReader,
    newest: Arc<NewestFlashblock>,
    assembler: Assembler,
    /// `None` while the parent of the current sequence is not here.
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

    /// Takes a message. After an error there is no pending block until the next one begins.
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

/// Reads the stream until `token` is cancelled.
pub async fn run(
    url: Url,
    spec: Arc<ChainSpec>,
    head: HeadReader,
    newest: Arc<NewestFlashblock>,
    token: CancellationToken,
) {
    let mut pause = FIRST_PAUSE;
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
        tracing::warn!(%url, reason, retry = ?pause, "no flashblocks: `pending` is the latest block");
        tokio::select! {
            () = token.cancelled() => return,
            () = sleep(pause) => {}
        }
        pause = (pause * 2).min(MAX_PAUSE);
    }
}

/// Reads one connection to its end. Returns why it ended.
async fn read(url: Url, begin: impl FnOnce() -> FlashblockWorker + Send + 'static) -> String {
    let connecting = WsTransportClientBuilder::default()
        .max_response_size(MAX_MESSAGE as u32)
        .build(url.clone());
    let (_sender, mut receiver) = match timeout(CONNECT, connecting).await {
        Ok(Ok(connection)) => connection,
        Ok(Err(error)) => return error.to_string(),
        Err(_) => return format!("no connection within {CONNECT:?}"),
    };
    tracing::info!(%url, "flashblocks are read");
    let (messages, waiting) = mpsc::channel(1);
    // The EVM stays on one thread. The closure ends with the connection, which drops `messages`.
    drop(tokio::task::spawn_blocking(move || work(begin(), waiting)));
    loop {
        let message = match timeout(SILENT, receiver.receive()).await {
            Ok(Ok(ReceivedMessage::Text(text))) => text.into_bytes(),
            Ok(Ok(ReceivedMessage::Bytes(bytes))) => bytes,
            Ok(Ok(ReceivedMessage::Pong)) => continue,
            Ok(Err(error)) => return error.to_string(),
            Err(_) => return format!("silence for {SILENT:?}"),
        };
        if messages.send(message).await.is_err() {
            return "a flashblock could not be executed".to_owned();
        }
    }
}

/// Takes the messages of one connection.
fn work(mut worker: FlashblockWorker, mut messages: mpsc::Receiver<Vec<u8>>) {
    while let Some(message) = messages.blocking_recv() {
        if let Err(error) = worker.on_message(&message, Instant::now()) {
            tracing::debug!(%error, "a flashblock was dropped");
        }
    }
    worker.newest.clear();
}
