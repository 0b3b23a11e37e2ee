//! The batcher's handle: what the RPC and the process call.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};
use tokio::sync::{mpsc, oneshot};

/// Whether the batcher is to run: by `--stopped` at first, later by the last command of the RPC.
/// Clones are one switch. It outlives the task, which a node starts again after a failure.
#[derive(Clone, Debug)]
pub struct RunSwitch(Arc<AtomicBool>);

impl RunSwitch {
    /// A switch in this position.
    pub fn new(is_on: bool) -> Self {
        Self(Arc::new(AtomicBool::new(is_on)))
    }

    /// The position.
    pub fn is_on(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    pub(super) fn set(&self, is_on: bool) {
        self.0.store(is_on, Ordering::Relaxed);
    }
}

/// The reason why a command is refused, in op-batcher's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BatcherCommandError {
    /// Stopped, or being stopped.
    #[error("batcher is not running")]
    NotRunning,
    /// Running, or being stopped.
    #[error("batcher is already running")]
    Running,
}

/// The place for the result of a command.
pub(super) type CommandReply = oneshot::Sender<Result<(), BatcherCommandError>>;

/// A command with the place for its result.
pub(super) enum BatcherCommand {
    Start(CommandReply),
    Stop(CommandReply),
    Flush(CommandReply),
}

/// A handle on the task. Clones are equal.
#[derive(Clone, Debug)]
pub struct BatcherHandle {
    commands: mpsc::Sender<BatcherCommand>,
}

impl BatcherHandle {
    pub(super) fn new(commands: mpsc::Sender<BatcherCommand>) -> Self {
        Self { commands }
    }

    /// Begins to post blocks above the safe head.
    pub async fn start(&self) -> Result<(), BatcherCommandError> {
        self.send(BatcherCommand::Start).await
    }

    /// Posts everything that is loaded, and returns when L1 has confirmed it. Dropping the future does
    /// not cancel the stop.
    pub async fn stop(&self) -> Result<(), BatcherCommandError> {
        self.send(BatcherCommand::Stop).await
    }

    /// Closes the open channel, so that all loaded blocks leave. Returns before they are on L1.
    pub async fn flush(&self) -> Result<(), BatcherCommandError> {
        self.send(BatcherCommand::Flush).await
    }

    /// Fails with `NotRunning` if the task has ended.
    async fn send(
        &self,
        command: fn(CommandReply) -> BatcherCommand,
    ) -> Result<(), BatcherCommandError> {
        let (reply, replied) = oneshot::channel();
        let sent = self.commands.send(command(reply)).await;
        sent.map_err(|_| BatcherCommandError::NotRunning)?;
        replied
            .await
            .unwrap_or(Err(BatcherCommandError::NotRunning))
    }
}
