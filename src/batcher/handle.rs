//! Handle on the batcher's task, for the RPC and the process.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};
use tokio::sync::{mpsc, oneshot};

/// Whether the batcher is to run: set by `--stopped` at start, later by the RPC's start and stop.
/// All clones share one switch. The switch outlives the task, which the node restarts after a
/// failure.
#[derive(Clone, Debug)]
pub struct RunSwitch(Arc<AtomicBool>);

impl RunSwitch {
    /// Creates a switch that is on or off.
    pub fn new(is_on: bool) -> Self {
        Self(Arc::new(AtomicBool::new(is_on)))
    }

    /// Whether the switch is on.
    pub fn is_on(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    pub(super) fn set(&self, is_on: bool) {
        self.0.store(is_on, Ordering::Relaxed);
    }
}

/// The reason why a command was refused, in op-batcher's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BatcherCommandError {
    /// Flush or stop was called, but the batcher is stopped or stopping.
    #[error("batcher is not running")]
    NotRunning,
    /// Start was called, but the batcher is running or stopping.
    #[error("batcher is already running")]
    Running,
}

/// Sender of a command's result.
pub(super) type CommandReply = oneshot::Sender<Result<(), BatcherCommandError>>;

/// A command, with the sender of its result.
pub(super) enum BatcherCommand {
    Start(CommandReply),
    Stop(CommandReply),
    Flush(CommandReply),
}

/// Handle on the batcher's task. All clones control the same task.
#[derive(Clone, Debug)]
pub struct BatcherHandle {
    commands: mpsc::Sender<BatcherCommand>,
}

impl BatcherHandle {
    pub(super) fn new(commands: mpsc::Sender<BatcherCommand>) -> Self {
        Self { commands }
    }

    /// Starts posting blocks above the safe head.
    pub async fn start(&self) -> Result<(), BatcherCommandError> {
        self.send(BatcherCommand::Start).await
    }

    /// Posts every block that is loaded, and returns once L1 has confirmed them all. Dropping the
    /// future does not cancel the stop.
    pub async fn stop(&self) -> Result<(), BatcherCommandError> {
        self.send(BatcherCommand::Stop).await
    }

    /// Has the open channel closed, so that all loaded blocks are sent. Does not wait for this.
    pub async fn flush(&self) -> Result<(), BatcherCommandError> {
        self.send(BatcherCommand::Flush).await
    }

    /// Sends a command and waits for its result. Fails with `NotRunning` if the task has ended.
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
