//! Results that are sent while they are being made: traces, which may be larger than memory.
//!
//! A tracing call sends chunks through a channel of [`CHUNKS`]. While the reader is slow, the call
//! waits and its timeout runs on. Its slice of time ends at once if another call waits for a
//! permit. A reader that takes no chunk for too long ends the call. A result that fits into its
//! first chunk is not sent in parts.

use super::{error::RpcError, heavy::StartedCall};
use crate::chain::evm::{ChunkSink, Deadline, StateError};
use bytes::Bytes;
use futures::future::BoxFuture;
use std::{
    thread::sleep,
    time::{Duration, Instant},
};
use tokio::sync::mpsc::{self, error::TrySendError};

/// Maximum chunks that wait for the reader.
const CHUNKS: usize = 2;
/// Time between two attempts to send a chunk.
const RETRY: Duration = Duration::from_millis(2);

/// The sending end of the channel through which a call sends chunks.
pub(super) type ChunkSender = mpsc::Sender<Vec<u8>>;

/// A result that is read in parts.
pub struct ChunkedText {
    /// The running call; `None` once it has ended.
    call: Option<BoxFuture<'static, Result<String, RpcError>>>,
    chunks: mpsc::Receiver<Vec<u8>>,
    /// The last part, until it is read.
    end: Option<Result<String, RpcError>>,
}

impl ChunkedText {
    /// The result of `call`, which sends all parts but the last through the sender that it is
    /// given.
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

    /// Whether all parts have been read.
    pub fn has_ended(&self) -> bool {
        self.call.is_none() && self.end.is_none() && self.chunks.is_empty()
    }
}

/// A sink that sends the chunks of a call. It waits until the call cannot be restarted any more.
/// While the channel is full it waits for at most `patience`, and then aborts the call.
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
                    // The client has disconnected.
                    Err(TrySendError::Closed(_)) => {
                        return Err(StateError::Aborted(deadline.limit()));
                    }
                }
            }
            sleep(RETRY);
        }
    })
}
