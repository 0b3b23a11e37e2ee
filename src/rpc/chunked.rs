//! Results that are sent while they are being made: traces, which may be larger than memory.
//!
//! A tracing call hands on chunks through a channel of [`CHUNKS`]. While its reader is slow, the
//! call waits and its time passes: its slice ends at once where another call waits. A reader that
//! takes no chunk for long ends the call. A result that ends within its first chunk is never sent in
//! parts.

use super::{error::RpcError, heavy::StartedCall};
use crate::chain::evm::{ChunkSink, Deadline, StateError};
use bytes::Bytes;
use futures::future::BoxFuture;
use std::{
    thread::sleep,
    time::{Duration, Instant},
};
use tokio::sync::mpsc::{self, error::TrySendError};

/// Chunks that wait for the reader.
const CHUNKS: usize = 2;
/// Time between two attempts to hand on a chunk.
const RETRY: Duration = Duration::from_millis(2);

/// The end of a channel where a call hands on chunks.
pub(super) type ChunkSender = mpsc::Sender<Vec<u8>>;

/// A result in parts.
pub struct ChunkedText {
    /// `None` once it has ended.
    call: Option<BoxFuture<'static, Result<String, RpcError>>>,
    chunks: mpsc::Receiver<Vec<u8>>,
    /// The last part.
    end: Option<Result<String, RpcError>>,
}

impl ChunkedText {
    /// The result of `call`, which hands on its first parts through the sender it is given.
    pub(super) fn new(
        call: impl FnOnce(ChunkSender) -> BoxFuture<'static, Result<String, RpcError>>,
    ) -> Self {
        let (sender, chunks) = mpsc::channel(CHUNKS);
        Self {
            call: Some(call(sender)),
            chunks,
            end: None,
        }
    }

    /// The next part; `None` after the last one or after an error.
    pub async fn next(&mut self) -> Option<Result<Bytes, RpcError>> {
        loop {
            let Some(call) = &mut self.call else {
                return match self.chunks.try_recv() {
                    Ok(chunk) => Some(Ok(chunk.into())),
                    Err(_) => self.end.take().map(|end| end.map(Bytes::from)),
                };
            };
            tokio::select! {
                biased;
                Some(chunk) = self.chunks.recv() => return Some(Ok(chunk.into())),
                end = call => (self.call, self.end) = (None, Some(end)),
            }
        }
    }

    /// Whether nothing follows.
    pub fn has_ended(&self) -> bool {
        self.call.is_none() && self.end.is_none() && self.chunks.is_empty()
    }
}

/// Hands on the chunks of a call. It waits until the call cannot be restarted any more, and while
/// the channel is full, for `patience` at most.
pub(super) fn chunk_sink(
    sender: ChunkSender,
    deadline: &Deadline,
    started: &StartedCall,
    patience: Duration,
) -> ChunkSink {
    let (deadline, started) = (deadline.clone(), started.clone());
    Box::new(move |mut chunk| {
        let mut full_since = None;
        loop {
            deadline.check()?;
            if started.is_certain() {
                match sender.try_send(chunk) {
                    Ok(()) => return Ok(()),
                    Err(TrySendError::Full(back)) => {
                        chunk = back;
                        if full_since.get_or_insert_with(Instant::now).elapsed() >= patience {
                            return Err(StateError::Aborted(patience));
                        }
                        started.end_slice();
                    }
                    // The client is gone.
                    Err(TrySendError::Closed(_)) => {
                        return Err(StateError::Aborted(deadline.limit()));
                    }
                }
            }
            sleep(RETRY);
        }
    })
}
