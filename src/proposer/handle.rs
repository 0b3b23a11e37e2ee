//! The handle on a proposer, for `admin_startProposer` and `admin_stopProposer`.

use tokio::sync::{mpsc, oneshot, watch};

/// Largest number of commands that can wait for the task.
pub(super) const MAX_WAITING_COMMANDS: usize = 16;

/// The reason why a command has no effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProposerCommandError {
    #[error("proposer is already running")]
    Running,
    #[error("proposer is not running")]
    NotRunning,
    /// The proposer task has ended, because the process is stopping.
    #[error("the proposer has ended")]
    Ended,
}

/// State of a proposer, for status reports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProposerStatus {
    pub running: bool,
    /// Sequence number of this process's newest proposal on L1.
    pub proposed: Option<u64>,
}

pub(super) struct ProposerCommand {
    pub start: bool,
    pub reply: oneshot::Sender<Result<(), ProposerCommandError>>,
}

/// A cloneable handle on the proposer task.
#[derive(Clone)]
pub struct ProposerHandle {
    pub(super) commands: mpsc::Sender<ProposerCommand>,
    pub(super) status: watch::Receiver<ProposerStatus>,
}

impl ProposerHandle {
    /// Starts proposing again after [`ProposerHandle::stop`].
    pub async fn start(&self) -> Result<(), ProposerCommandError> {
        self.command(true).await
    }

    /// Stops proposing. A transaction already sent is still followed to its outcome. The task keeps
    /// running and can be started again.
    pub async fn stop(&self) -> Result<(), ProposerCommandError> {
        self.command(false).await
    }

    /// The proposer's state; the receiver is notified of changes.
    pub fn status(&self) -> watch::Receiver<ProposerStatus> {
        self.status.clone()
    }

    async fn command(&self, start: bool) -> Result<(), ProposerCommandError> {
        let (reply, replied) = oneshot::channel();
        let sent = self.commands.send(ProposerCommand { start, reply }).await;
        sent.map_err(|_| ProposerCommandError::Ended)?;
        replied.await.unwrap_or(Err(ProposerCommandError::Ended))
    }
}
