//! The batcher's handle: what the RPC and the process call.

use tokio::sync::{mpsc, oneshot};

/// Why a call is refused, in op-batcher's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BatcherCallError {
    /// Stopped, or being stopped.
    #[error("batcher is not running")]
    NotRunning,
    /// Running, or being stopped.
    #[error("batcher is already running")]
    Running,
}

/// Answer to a call.
pub(super) type CallAnswer = oneshot::Sender<Result<(), BatcherCallError>>;

/// A call with the place for its answer.
pub(super) enum BatcherCall {
    Start(CallAnswer),
    Stop(CallAnswer),
    Flush(CallAnswer),
}

/// A handle on the task. Clones are equal.
#[derive(Clone, Debug)]
pub struct Batcher {
    calls: mpsc::Sender<BatcherCall>,
}

impl Batcher {
    pub(super) fn new(calls: mpsc::Sender<BatcherCall>) -> Self {
        Self { calls }
    }

    /// Begins to post blocks above the safe head.
    pub async fn start(&self) -> Result<(), BatcherCallError> {
        self.call(BatcherCall::Start).await
    }

    /// Posts everything that is loaded, and returns when L1 has confirmed it. Dropping the future does
    /// not cancel the stop.
    pub async fn stop(&self) -> Result<(), BatcherCallError> {
        self.call(BatcherCall::Stop).await
    }

    /// Closes the open channel, so that all loaded blocks leave. Returns before they are on L1.
    pub async fn flush(&self) -> Result<(), BatcherCallError> {
        self.call(BatcherCall::Flush).await
    }

    /// Fails with `NotRunning` if the task has ended.
    async fn call(&self, call: fn(CallAnswer) -> BatcherCall) -> Result<(), BatcherCallError> {
        let (answer, answered) = oneshot::channel();
        let sent = self.calls.send(call(answer)).await;
        sent.map_err(|_| BatcherCallError::NotRunning)?;
        answered.await.unwrap_or(Err(BatcherCallError::NotRunning))
    }
}
