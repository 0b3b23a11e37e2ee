//! The handle that starts and stops a running sequencer (`admin_startSequencer`,
//! `admin_stopSequencer`). Error texts are op-node's.

use alloy_primitives::B256;
use serde::Serialize;
use starling_proto::payload::BlockId;
use tokio::sync::{mpsc, oneshot, watch};

/// Largest number of commands that wait for the sequencer's loop.
const COMMANDS: usize = 4;

/// The reason why a command was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SequencerControlError {
    #[error("sequencer already running")]
    AlreadyRunning,
    #[error("sequencer not running")]
    NotRunning,
    #[error("block hash does not match: head {}:{}, received {received}", head.hash, head.number)]
    WrongHead { head: BlockId, received: B256 },
    /// The node has no sequencer, or the sequencer's loop has ended.
    #[error("sequencer is not enabled")]
    NotEnabled,
}

pub(super) enum Command {
    Start {
        hash: B256,
        reply: oneshot::Sender<Result<(), SequencerControlError>>,
    },
    Stop {
        reply: oneshot::Sender<Result<B256, SequencerControlError>>,
    },
    Recover(bool),
}

impl Command {
    /// Whether the command's caller no longer waits for the outcome. Always false for
    /// `admin_setRecoverMode`, which has no outcome.
    pub(super) fn is_abandoned(&self) -> bool {
        match self {
            Self::Start { reply, .. } => reply.is_closed(),
            Self::Stop { reply } => reply.is_closed(),
            Self::Recover(_) => false,
        }
    }

    /// The command's name in the log.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Start { .. } => "start",
            Self::Stop { .. } => "stop",
            Self::Recover(_) => "recover",
        }
    }
}

/// Whether the sequencer builds blocks, and if not, the reason. Inactive until the sequencer's loop
/// runs: JSON-RPC is served before the block signer is known, and the loop may never start.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SequencerStatus {
    pub active: bool,
    /// The reason why the sequencer stopped by itself; `None` while it runs, and after a command to
    /// stop.
    pub reason: Option<String>,
}

/// A cloneable handle to the sequencer's loop.
#[derive(Clone, Debug)]
pub struct SequencerHandle {
    commands: mpsc::Sender<Command>,
    status: watch::Receiver<SequencerStatus>,
}

impl SequencerHandle {
    /// Starts sequencing on the head, which must have this hash. This prevents a start on a head
    /// that the operator does not know. If the returned future is dropped before the loop handles
    /// the command, the command has no effect.
    pub async fn start(&self, hash: B256) -> Result<(), SequencerControlError> {
        self.request(|reply| Command::Start { hash, reply }).await
    }

    /// Stops sequencing and drops the open block. Returns the hash of the head. If the returned
    /// future is dropped before the loop handles the command, the command has no effect.
    pub async fn stop(&self) -> Result<B256, SequencerControlError> {
        self.request(|reply| Command::Stop { reply }).await
    }

    /// Switches recover mode on or off (`admin_setRecoverMode`).
    pub async fn set_recover(&self, recover: bool) -> Result<(), SequencerControlError> {
        self.commands
            .send(Command::Recover(recover))
            .await
            .map_err(|_| SequencerControlError::NotEnabled)
    }

    pub fn active(&self) -> bool {
        self.status.borrow().active
    }

    pub fn status(&self) -> SequencerStatus {
        self.status.borrow().clone()
    }

    /// A receiver of the status. It wakes when the status changes.
    pub fn watch(&self) -> watch::Receiver<SequencerStatus> {
        self.status.clone()
    }

    async fn request<T>(
        &self,
        command: impl FnOnce(oneshot::Sender<Result<T, SequencerControlError>>) -> Command,
    ) -> Result<T, SequencerControlError> {
        let (reply, answer) = oneshot::channel();
        self.commands
            .send(command(reply))
            .await
            .map_err(|_| SequencerControlError::NotEnabled)?;
        answer
            .await
            .map_err(|_| SequencerControlError::NotEnabled)?
    }
}

pub(super) fn channel() -> (
    SequencerHandle,
    mpsc::Receiver<Command>,
    watch::Sender<SequencerStatus>,
) {
    let (commands, receiver) = mpsc::channel(COMMANDS);
    let (sender, status) = watch::channel(SequencerStatus::default());
    (SequencerHandle { commands, status }, receiver, sender)
}

pub(super) fn may_start(
    active: bool,
    head: BlockId,
    received: B256,
) -> Result<(), SequencerControlError> {
    if active {
        Err(SequencerControlError::AlreadyRunning)
    } else if head.hash != received {
        Err(SequencerControlError::WrongHead { head, received })
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_start_names_the_head() {
        let head = BlockId {
            number: 5,
            hash: B256::repeat_byte(1),
        };
        assert_eq!(may_start(false, head, head.hash), Ok(()));
        assert_eq!(
            may_start(true, head, head.hash),
            Err(SequencerControlError::AlreadyRunning)
        );
        let refused = may_start(false, head, B256::ZERO).expect_err("zero is no wildcard");
        assert_eq!(
            refused.to_string(),
            format!(
                "block hash does not match: head 0x{}:5, received 0x{}",
                "01".repeat(32),
                "00".repeat(32)
            )
        );
    }

    #[tokio::test]
    async fn commands_to_a_sequencer_that_has_ended_are_errors() {
        let (handle, commands, _status) = channel();
        drop(commands);
        assert_eq!(handle.stop().await, Err(SequencerControlError::NotEnabled));
        assert_eq!(
            handle.start(B256::ZERO).await,
            Err(SequencerControlError::NotEnabled)
        );
    }
}
