//! The handle that starts and stops a running sequencer (`admin_startSequencer`, `admin_stopSequencer`). Error texts are op-node's.

use alloy_primitives::B256;
use serde::Serialize;
use tokio::sync::{mpsc, oneshot, watch};

/// Orders that may wait for the loop.
const COMMANDS: usize = 4;

/// Why an order is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ControlError {
    #[error("sequencer already running")]
    AlreadyRunning,
    #[error("sequencer not running")]
    NotRunning,
    #[error("block hash does not match: head {head}, received {received}")]
    WrongHead { head: B256, received: B256 },
    /// The loop has ended.
    #[error("sequencer is not enabled")]
    NotEnabled,
}

pub(super) enum Command {
    Start {
        hash: B256,
        reply: oneshot::Sender<Result<(), ControlError>>,
    },
    Stop {
        reply: oneshot::Sender<Result<B256, ControlError>>,
    },
    Recover(bool),
}

/// Whether blocks are made, and if not, why.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SequencerStatus {
    pub active: bool,
    /// Why it has stopped by itself; `None` while it runs, and where it was told to stop.
    pub reason: Option<String>,
}

/// A cloneable handle to the sequencer's loop.
#[derive(Clone, Debug)]
pub struct SequencerHandle {
    commands: mpsc::Sender<Command>,
    status: watch::Receiver<SequencerStatus>,
}

impl SequencerHandle {
    /// Starts sequencing on the head, which must be `hash`: whoever starts a sequencer says what it believes the chain to be.
    pub async fn start(&self, hash: B256) -> Result<(), ControlError> {
        self.ask(|reply| Command::Start { hash, reply }).await
    }

    /// Stops sequencing; the block under way is dropped. Gives the hash of the head.
    pub async fn stop(&self) -> Result<B256, ControlError> {
        self.ask(|reply| Command::Stop { reply }).await
    }

    /// `admin_setRecoverMode`.
    pub async fn set_recover(&self, recover: bool) -> Result<(), ControlError> {
        self.commands
            .send(Command::Recover(recover))
            .await
            .map_err(|_| ControlError::NotEnabled)
    }

    pub fn active(&self) -> bool {
        self.status.borrow().active
    }

    pub fn status(&self) -> SequencerStatus {
        self.status.borrow().clone()
    }

    /// Wakes when the status changes.
    pub fn watch(&self) -> watch::Receiver<SequencerStatus> {
        self.status.clone()
    }

    async fn ask<T>(
        &self,
        command: impl FnOnce(oneshot::Sender<Result<T, ControlError>>) -> Command,
    ) -> Result<T, ControlError> {
        let (reply, answer) = oneshot::channel();
        self.commands
            .send(command(reply))
            .await
            .map_err(|_| ControlError::NotEnabled)?;
        answer.await.map_err(|_| ControlError::NotEnabled)?
    }
}

pub(super) fn channel(
    active: bool,
) -> (
    SequencerHandle,
    mpsc::Receiver<Command>,
    watch::Sender<SequencerStatus>,
) {
    let (commands, receiver) = mpsc::channel(COMMANDS);
    let (sender, status) = watch::channel(SequencerStatus {
        active,
        reason: None,
    });
    (SequencerHandle { commands, status }, receiver, sender)
}

pub(super) fn may_start(active: bool, head: B256, received: B256) -> Result<(), ControlError> {
    if active {
        Err(ControlError::AlreadyRunning)
    } else if head != received {
        Err(ControlError::WrongHead { head, received })
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_start_names_the_head() {
        let (head, other) = (B256::repeat_byte(1), B256::ZERO);
        assert_eq!(may_start(false, head, head), Ok(()));
        assert_eq!(
            may_start(true, head, head),
            Err(ControlError::AlreadyRunning)
        );
        assert_eq!(
            may_start(false, head, other),
            Err(ControlError::WrongHead {
                head,
                received: other
            }),
            "zero is no wildcard"
        );
    }

    #[tokio::test]
    async fn orders_to_a_sequencer_that_has_ended_are_errors() {
        let (handle, commands, _status) = channel(true);
        assert!(handle.active());
        drop(commands);
        assert_eq!(handle.stop().await, Err(ControlError::NotEnabled));
        assert_eq!(
            handle.start(B256::ZERO).await,
            Err(ControlError::NotEnabled)
        );
    }
}
