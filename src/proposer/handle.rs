//! The handle on a proposer: `admin_startProposer` and `admin_stopProposer`.

use tokio::sync::{mpsc, oneshot, watch};

/// Commands that wait for the task.
pub(super) const WAITING: usize = 16;

/// Why a command has no effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProposerControlError {
    #[error("proposer is already running")]
    Running,
    #[error("proposer is not running")]
    NotRunning,
    /// The process is ending.
    #[error("the proposer has ended")]
    Ended,
}

/// State of a proposer, for status lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProposerStatus {
    pub running: bool,
    /// Sequence number of the newest proposal of this process that is on L1.
    pub proposed: Option<u64>,
}

pub(super) struct ProposerCommand {
    pub start: bool,
    pub answer: oneshot::Sender<Result<(), ProposerControlError>>,
}

/// A cloneable handle on the task.
#[derive(Clone)]
pub struct Proposer {
    pub(super) commands: mpsc::Sender<ProposerCommand>,
    pub(super) status: watch::Receiver<ProposerStatus>,
}

impl Proposer {
    /// Starts proposing again after [`Proposer::stop`].
    pub async fn start(&self) -> Result<(), ProposerControlError> {
        self.command(true).await
    }

    /// Stops proposing; a transaction that is sent already is followed to its end. The task goes on
    /// living, and can be started again.
    pub async fn stop(&self) -> Result<(), ProposerControlError> {
        self.command(false).await
    }

    /// The state, and its changes.
    pub fn status(&self) -> watch::Receiver<ProposerStatus> {
        self.status.clone()
    }

    async fn command(&self, start: bool) -> Result<(), ProposerControlError> {
        let (answer, answered) = oneshot::channel();
        let sent = self.commands.send(ProposerCommand { start, answer }).await;
        sent.map_err(|_| ProposerControlError::Ended)?;
        answered.await.unwrap_or(Err(ProposerControlError::Ended))
    }
}
