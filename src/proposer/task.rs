//! The proposer's loop: reads L1 and the proposal source, gets the next step from the schedule, and
//! executes it. One transaction at a time is passed to the transaction manager, which gets it
//! mined.

#[cfg(test)]
mod tests;

use super::{
    handle::{
        MAX_WAITING_COMMANDS, ProposerCommand, ProposerCommandError, ProposerHandle, ProposerStatus,
    },
    metrics::ProposerMetrics,
    options::{ProposalTarget, ProposerOptionError, ProposerOptions},
    reader::{ContractReader, Permission, ProposalRefusal, ReaderError},
    schedule::{
        L1Reading, Proposal, ProposalSchedule, ProposerStep, ScheduleRules, SourceReading,
        WaitReason,
    },
    source::{ProposalSource, ProposalSourceError, SourcedProposal},
};
use crate::{
    rollup::l1::L1Client,
    telemetry::LoggedCauses,
    txmgr::{
        fees::INTRINSIC_GAS,
        machine::{MinedTx, SendFailure},
        shell::{TxCandidate, TxManagerHandle, TxOutcome},
    },
};
use alloy_primitives::{Bytes, U256};
use starling_proto::l1info::L2BlockRef;
use std::time::Duration;
use tokio::{
    sync::{mpsc, oneshot, watch},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

/// Interval of polls while a proposal waits for the next L1 block; at most `--poll-interval`.
const HELD_POLL: Duration = Duration::from_secs(1);
// Topics under which repeated warnings are suppressed.
const POLL: &str = "poll";
const PERMISSION: &str = "permission";
const SEND: &str = "send";
const BALANCE: &str = "balance";

/// The reason why the proposer cannot start, or has ended.
#[derive(Debug, thiserror::Error)]
pub enum ProposerError {
    #[error("invalid config: {0}")]
    Options(#[from] ProposerOptionError),
    #[error("{cause}; is the address of {option} right, and is --l1-eth-rpc the right chain?")]
    Contract {
        cause: ReaderError,
        option: &'static str,
    },
    /// The transaction manager has ended and has logged its own error.
    #[error("the transaction manager has ended; the log says why")]
    TxManager,
}

/// The reason why a poll fails.
#[derive(Debug, thiserror::Error)]
enum PollError {
    #[error(transparent)]
    L1(#[from] ReaderError),
    #[error(transparent)]
    Source(#[from] ProposalSourceError),
}

/// The parts that [`proposer`] builds the task from.
pub struct ProposerParts {
    pub options: ProposerOptions,
    /// Outputs of the rollup node, or super roots of [`super::Supervisors`].
    pub source: ProposalSource,
    pub l1: L1Client,
    pub txs: TxManagerHandle,
}

/// The proposer task, to be driven by [`ProposerTask::run`].
pub struct ProposerTask {
    worker: ProposalWorker,
    commands: mpsc::Receiver<ProposerCommand>,
    status: watch::Sender<ProposerStatus>,
}

/// The part of the task that polls. Commands are handled outside, so that they can interrupt a
/// poll.
struct ProposalWorker {
    target: ProposalTarget,
    poll_interval: Duration,
    schedule: ProposalSchedule,
    reader: ContractReader,
    source: ProposalSource,
    txs: TxManagerHandle,
    metrics: ProposerMetrics,
    /// Whether the account may propose. Reset after a failed proposal, so that it is checked again.
    permitted: bool,
    causes: LoggedCauses,
}

/// A transaction passed to the transaction manager.
struct SentProposal {
    outcome: oneshot::Receiver<TxOutcome>,
    /// The proposal in the transaction; `None` for an empty transaction.
    sourced: Option<SourcedProposal>,
}

/// The result of a poll.
enum Polled {
    Sent(Box<SentProposal>),
    /// Poll again after this pause.
    Pause(Duration),
}

/// Checks the options and creates the task and its handle. The proposer starts in the running
/// state.
pub fn proposer(parts: ProposerParts) -> Result<(ProposerHandle, ProposerTask), ProposerError> {
    let ProposerParts {
        options,
        source,
        l1,
        txs,
    } = parts;
    let target = options.target()?;
    let (commands, received) = mpsc::channel(MAX_WAITING_COMMANDS);
    let (status, watched) = watch::channel(ProposerStatus {
        running: true,
        proposed: None,
    });
    let worker = ProposalWorker {
        target,
        poll_interval: options.poll_interval,
        schedule: ProposalSchedule::new(ScheduleRules::new(&options, target)),
        reader: ContractReader::new(l1, target, txs.address()),
        source,
        txs,
        metrics: ProposerMetrics::new(),
        permitted: false,
        causes: LoggedCauses::default(),
    };
    let handle = ProposerHandle {
        commands,
        status: watched,
    };
    let task = ProposerTask {
        worker,
        commands: received,
        status,
    };
    Ok((handle, task))
}

impl ProposerTask {
    /// Proposes until `closing` is cancelled; then waits for the transaction in flight, if any.
    /// Ends at once if `ending` is cancelled. The transaction manager must run for as long.
    pub async fn run(
        self,
        closing: CancellationToken,
        ending: CancellationToken,
    ) -> Result<(), ProposerError> {
        let Self {
            mut worker,
            mut commands,
            status,
        } = self;
        tracing::info!(contract = %worker.target.address(), account = %worker.txs.address(), "Starting Proposer");
        tokio::select! {
            biased;
            () = ending.cancelled() => return Ok(()),
            () = closing.cancelled() => return Ok(()),
            connected = connect(&mut worker, &mut commands, &status) => connected?,
        }
        tracing::info!("Proposer started");
        let (mut sent, mut is_closing) = (None, false);
        let mut poll_at = Instant::now();
        loop {
            if is_closing && sent.is_none() {
                tracing::info!("Proposer stopped");
                return Ok(());
            }
            let may_poll = !is_closing && sent.is_none() && status.borrow().running;
            tokio::select! {
                biased;
                () = ending.cancelled() => {
                    say_left(sent.as_ref());
                    return Ok(());
                }
                () = closing.cancelled(), if !is_closing => {
                    tracing::info!("Stopping Proposer");
                    is_closing = true;
                }
                Some(command) = commands.recv() => {
                    command_received(command, &status);
                    poll_at = Instant::now();
                }
                outcome = outcome(&mut sent), if sent.is_some() => {
                    let sourced = sent.take().and_then(|sent: SentProposal| sent.sourced);
                    let pause = worker.finished(outcome, sourced, &status)?;
                    poll_at = Instant::now() + pause;
                }
                polled = worker.poll_at(poll_at), if may_poll => match polled? {
                    Polled::Sent(transaction) => sent = Some(*transaction),
                    Polled::Pause(pause) => poll_at = Instant::now() + pause,
                },
            }
        }
    }
}

/// Waits until the worker is connected to L1, and handles commands meanwhile.
async fn connect(
    worker: &mut ProposalWorker,
    commands: &mut mpsc::Receiver<ProposerCommand>,
    status: &watch::Sender<ProposerStatus>,
) -> Result<(), ProposerError> {
    let connecting = worker.connect();
    tokio::pin!(connecting);
    loop {
        tokio::select! {
            Some(command) = commands.recv() => command_received(command, status),
            connected = &mut connecting => return connected,
        }
    }
}

/// Waits for the outcome of the transaction in flight; waits forever if there is none.
async fn outcome(sent: &mut Option<SentProposal>) -> TxOutcome {
    match sent {
        Some(sent) => {
            let outcome = (&mut sent.outcome).await;
            outcome.unwrap_or(Err(SendFailure::Closed))
        }
        None => std::future::pending().await,
    }
}

/// Logs the proposal that is still unconfirmed at the end.
fn say_left(sent: Option<&SentProposal>) {
    if let Some(sourced) = sent.and_then(|sent| sent.sourced.as_ref()) {
        tracing::warn!(
            sequenceNum = sourced.proposal.sequence,
            output = %sourced.proposal.root,
            "Proposer stopped before its last proposal was confirmed; the next start finds it on L1"
        );
    } else {
        tracing::info!("Proposer stopped");
    }
}

fn command_received(command: ProposerCommand, status: &watch::Sender<ProposerStatus>) {
    let running = status.borrow().running;
    let result = match (command.start, running) {
        (true, true) => Err(ProposerCommandError::Running),
        (false, false) => Err(ProposerCommandError::NotRunning),
        (start, _) => {
            status.send_modify(|status| status.running = start);
            let text = if start {
                "Proposer started"
            } else {
                "Proposer stopped"
            };
            tracing::info!("{text}");
            Ok(())
        }
    };
    // Ignore the error: the caller may have dropped the receiver.
    let _ = command.reply.send(result);
}

impl ProposalWorker {
    /// Waits for L1, checks the contract, and waits for a predecessor's transactions.
    async fn connect(&mut self) -> Result<(), ProposerError> {
        loop {
            match self.reader.version().await {
                Ok(version) => {
                    let address = self.target.address();
                    tracing::info!(%address, version, contract = self.target.option(), "Connected to the contract");
                    break;
                }
                Err(cause) if cause.is_wrong_contract() => {
                    let option = self.target.option();
                    return Err(ProposerError::Contract { cause, option });
                }
                Err(error) => {
                    self.warn(&format!("waiting for L1: {error}"));
                    tokio::time::sleep(self.poll_interval).await;
                }
            }
        }
        let mut status = self.txs.status();
        if !status.borrow().settled {
            tracing::info!("waiting for transactions of this account that are not mined yet");
        }
        let settled = status.wait_for(|status| status.settled).await;
        settled.map(|_| ()).map_err(|_| ProposerError::TxManager)
    }

    /// Polls at this time. Dropping the future loses nothing, because sending is its last step.
    async fn poll_at(&mut self, at: Instant) -> Result<Polled, ProposerError> {
        tokio::time::sleep_until(at).await;
        match self.poll().await {
            Ok(polled) => Ok(polled),
            Err(error) => {
                self.warn(&format!("Error getting proposal: {error}"));
                Ok(Polled::Pause(self.poll_interval))
            }
        }
    }

    async fn poll(&mut self) -> Result<Polled, PollError> {
        if !self.is_permitted().await? {
            return Ok(Polled::Pause(self.poll_interval));
        }
        let account = self.reader.read().await?;
        self.show_balance(account.balance);
        let l1 = account.l1;
        let heads = self.source.heads().await?;
        let now = Instant::now().into_std();
        match self.schedule.next(&l1, &heads, now) {
            ProposerStep::Wait(reason) => Ok(self.wait(reason)),
            ProposerStep::Unblock => Ok(self.unblock().await),
            ProposerStep::Propose(proposal) => self.propose(proposal, None).await,
            ProposerStep::Read(sequence) => self.read(sequence, &l1, &heads).await,
        }
    }

    /// Reports the balance in ether to the metrics, and logs now and then if it is zero.
    fn show_balance(&mut self, ether: f64) {
        self.metrics.balance(ether);
        let account = self.txs.address();
        if ether > 0.0 {
            self.note_success(BALANCE);
        } else if self.note_failure(BALANCE, "") {
            tracing::error!(%account, "the account of the proposer has no ether on L1, so nothing can be proposed; send some to it");
        }
    }

    async fn read(
        &mut self,
        sequence: u64,
        l1: &L1Reading,
        heads: &SourceReading,
    ) -> Result<Polled, PollError> {
        let SourcedProposal { proposal, block } = self.source.proposal_at(sequence, heads).await?;
        match self.schedule.on_proposal(proposal, l1, heads) {
            ProposerStep::Propose(proposal) => self.propose(proposal, block).await,
            ProposerStep::Wait(reason) => Ok(self.wait(reason)),
            // The schedule never returns these steps after a read.
            ProposerStep::Read(_) | ProposerStep::Unblock => Ok(Polled::Pause(self.poll_interval)),
        }
    }

    /// Whether the account may propose; if not, logs the reason now and then.
    async fn is_permitted(&mut self) -> Result<bool, PollError> {
        if self.permitted {
            return Ok(true);
        }
        let account = self.txs.address();
        let text = match self.reader.permission().await? {
            Permission::Granted => {
                self.permitted = true;
                self.note_success(PERMISSION);
                return Ok(true);
            }
            Permission::OnlyFor(proposer) => format!(
                "the key's account {account} is not the proposer of this contract, which is {proposer}: nothing is proposed; use that account's key"
            ),
            Permission::NoGame => {
                "the factory has no implementation of this game type: nothing is proposed; check --game-type".into()
            }
        };
        if self.note_failure(PERMISSION, &text) {
            tracing::error!(contract = %self.target.address(), "{text}");
        }
        Ok(false)
    }

    fn wait(&mut self, reason: WaitReason) -> Polled {
        let pause = match reason {
            WaitReason::L1Head { .. } => HELD_POLL.min(self.poll_interval),
            _ => self.poll_interval,
        };
        match reason {
            WaitReason::NodeBehind { at, head } => self.warn(&format!(
                "the rollup node has derived up to L1 block {at} only, and L1 is at {head}: its blocks are too old to be named in a proposal"
            )),
            WaitReason::L1Behind { head, need } => self.warn(&format!(
                "L1's head is block {head}, and our last transaction is in block {need}: the endpoint lags"
            )),
            other => {
                tracing::debug!(reason = ?other, "nothing to propose now");
                self.note_success(POLL);
            }
        }
        Polled::Pause(pause)
    }

    /// Sends an empty transaction, because a transaction of our account is stuck in L1's pool.
    async fn unblock(&mut self) -> Polled {
        let account = self.txs.address();
        tracing::warn!(
            %account,
            "a transaction of this account is not mined, and this process did not send it; an empty transaction takes its place"
        );
        let empty = TxCandidate {
            to: Some(account),
            data: Bytes::new(),
            blobs: Vec::new(),
            gas_limit: INTRINSIC_GAS,
            value: U256::ZERO,
        };
        Polled::Sent(Box::new(SentProposal {
            outcome: self.txs.send(empty).await,
            sourced: None,
        }))
    }

    async fn propose(
        &mut self,
        proposal: Proposal,
        block: Option<L2BlockRef>,
    ) -> Result<Polled, PollError> {
        let candidate = match self.reader.candidate(&proposal).await? {
            Ok(candidate) => candidate,
            Err(ProposalRefusal::Exists(game)) => {
                tracing::debug!(%game, sequenceNum = proposal.sequence, "Skipping proposal: output root unchanged since last proposed game");
                return Ok(Polled::Pause(self.poll_interval));
            }
            Err(ProposalRefusal::OtherL1) => {
                self.schedule.done(None);
                let (number, hash) = (proposal.current_l1.number, proposal.current_l1.hash);
                self.warn(&format!(
                    "L1 has another block {number} than the rollup node, which has {hash}: waiting until both agree"
                ));
                return Ok(Polled::Pause(self.poll_interval));
            }
        };
        tracing::info!(output = %proposal.root, sequenceNum = proposal.sequence, extraData = %proposal.extra, "Proposing output root");
        Ok(Polled::Sent(Box::new(SentProposal {
            outcome: self.txs.send(candidate).await,
            sourced: Some(SourcedProposal { proposal, block }),
        })))
    }

    /// Handles the outcome of a transaction. Returns the pause before the next poll.
    fn finished(
        &mut self,
        outcome: TxOutcome,
        sourced: Option<SourcedProposal>,
        status: &watch::Sender<ProposerStatus>,
    ) -> Result<Duration, ProposerError> {
        let mined = match outcome {
            Ok(mined) => mined,
            Err(SendFailure::Stopped(_)) => return Err(ProposerError::TxManager),
            Err(error) => {
                self.schedule.done(None);
                self.permitted = false;
                if self.note_failure(SEND, &error.to_string()) {
                    tracing::error!(%error, "Failed to send proposal transaction");
                }
                return Ok(self.poll_interval);
            }
        };
        self.schedule.done(Some(mined.block));
        let Some(SourcedProposal { proposal, block }) = sourced else {
            return Ok(Duration::ZERO);
        };
        let MinedTx { hash, success, .. } = mined;
        if !success {
            self.permitted = false;
            // Logged every time, because every reverted transaction costs gas.
            tracing::error!(tx_hash = %hash, "Proposer tx successfully published but reverted");
            return Ok(self.poll_interval);
        }
        let current = proposal.current_l1;
        tracing::info!(tx_hash = %hash, l1blocknum = current.number, l1blockhash = %current.hash, "Proposer tx successfully published");
        self.metrics.proposed(proposal.sequence, block);
        status.send_modify(|status| status.proposed = Some(proposal.sequence));
        self.note_success(POLL);
        self.note_success(SEND);
        // Poll at once: the next output may already be due.
        Ok(Duration::ZERO)
    }

    /// Logs a cause, unless it was logged recently (`LoggedCauses`).
    fn warn(&mut self, text: &str) {
        if self.note_failure(POLL, text) {
            tracing::warn!("{text}");
        }
    }

    fn note_success(&mut self, topic: &'static str) {
        if self.causes.note_success(topic, Instant::now().into_std()) {
            tracing::info!(topic, "the cause of a warning is over");
        }
    }

    fn note_failure(&mut self, topic: &'static str, cause: &str) -> bool {
        self.causes
            .note_failure(topic, cause, Instant::now().into_std())
    }
}
