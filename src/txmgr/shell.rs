//! I/O around the state machine: one task that carries out the machine's actions at L1 and at the
//! signer.
//!
//! Callers submit transactions with [`TxManagerHandle::send`] and wait for the outcome. Bounds:
//! waiting commands ([`MAX_WAITING_COMMANDS`]), sidecars being built ([`PREPARING`]), requests in
//! the machine ([`MAX_PENDING`]; batcher and proposer set lower bounds with `--max-pending-tx`).
//! Every call to L1 and to the signer times out after `--network-timeout`. Once the token `closing`
//! is cancelled, the task accepts no new transaction, and ends when all its transactions in L1's
//! pool are confirmed. Cancelling the token `ending` ends the task at once.

mod metrics;
#[cfg(test)]
mod tests;
mod work;

use self::metrics::{ConfirmedTx, TxMetrics};
use super::{
    api::{self, TxApiError, TxRuntime},
    blobs::{CellProofTime, SidecarForm},
    machine::{MinedTx, SendAction, SendEvent, SendFailure, SendId, SendMachine, SendWork},
    options::{TxOptionError, TxOptions},
    sign::TxSigner,
};
use crate::{
    rollup::l1::{L1Client, L1Error},
    telemetry::LoggedCauses,
};
use alloy_eips::eip4844::Blob;
use alloy_primitives::{Address, Bytes, U256};
use futures::{
    FutureExt, StreamExt,
    future::BoxFuture,
    stream::{FuturesOrdered, FuturesUnordered},
};
use serde_json::value::RawValue;
use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;
use work::{PreparedTx, TxWorker};

/// Maximum number of commands that wait for the task.
const MAX_WAITING_COMMANDS: usize = 16;
/// Maximum number of transactions whose sidecars are being built.
const PREPARING: usize = 4;
/// Maximum number of requests in the machine.
const MAX_PENDING: usize = 1024;
/// Maximum time until the next tick, as a safeguard against a missed wakeup.
const MAX_PAUSE: Duration = Duration::from_secs(60);

/// A transaction to send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TxCandidate {
    /// `None` for a transaction that creates a contract.
    pub to: Option<Address>,
    pub data: Bytes,
    /// Blobs of a blob transaction; empty for a calldata transaction.
    pub blobs: Vec<Blob>,
    /// Gas limit, checked by a call; zero means that the gas limit is estimated.
    pub gas_limit: u64,
    pub value: U256,
}

/// Status of the manager, for callers and metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TxStatus {
    /// Whether the wait for an earlier process's transactions is over.
    pub settled: bool,
    /// Number of unfinished requests.
    pub pending: usize,
}

/// The reason why the manager could not start, or has ended.
#[derive(Debug, thiserror::Error)]
pub enum TxManagerError {
    #[error("invalid config: {0}")]
    Options(#[from] TxOptionError),
    #[error("could not fetch L1 chain ID: {0}")]
    ChainId(#[from] L1Error),
    /// The machine has stopped, for example because a second process has the same key.
    #[error("{0}")]
    Stopped(String),
}

/// The outcome of a request.
pub type TxOutcome = Result<MinedTx, SendFailure>;

enum TxCommand {
    Send(Box<TxCandidate>, oneshot::Sender<TxOutcome>),
    Api {
        method: String,
        params: String,
        answer: oneshot::Sender<Result<Box<RawValue>, TxApiError>>,
    },
}

/// Handle on the manager's task.
#[derive(Clone)]
pub struct TxManagerHandle {
    commands: mpsc::Sender<TxCommand>,
    status: watch::Receiver<TxStatus>,
    address: Address,
}

impl TxManagerHandle {
    /// Address of the account that sends the transactions.
    pub fn address(&self) -> Address {
        self.address
    }

    /// Submits a transaction and returns a receiver of its outcome. Transactions get their nonces
    /// in the order of the calls. Waits while the command queue is full.
    pub async fn send(&self, candidate: TxCandidate) -> oneshot::Receiver<TxOutcome> {
        let (answer, outcome) = oneshot::channel();
        let command = TxCommand::Send(Box::new(candidate), answer);
        if let Err(mpsc::error::SendError(TxCommand::Send(_, answer))) =
            self.commands.send(command).await
        {
            // Ignore a failure: the caller may have dropped the receiver.
            let _ = answer.send(Err(SendFailure::Closed));
        }
        outcome
    }

    /// Executes a call of the RPC namespace `txmgr`; returns `None` if the task has ended.
    pub async fn api(
        &self,
        method: String,
        params: String,
    ) -> Option<Result<Box<RawValue>, TxApiError>> {
        let (answer, answered) = oneshot::channel();
        let command = TxCommand::Api {
            method,
            params,
            answer,
        };
        self.commands.send(command).await.ok()?;
        answered.await.ok()
    }

    /// Subscribes to the status.
    pub fn status(&self) -> watch::Receiver<TxStatus> {
        self.status.clone()
    }
}

/// Everything that [`manager()`] needs to create the task.
pub struct TxManagerParts {
    pub options: TxOptions,
    pub l1: L1Client,
    pub signer: TxSigner,
    /// Prefix of the metric names: `op_batcher_default_` or `op_proposer_default_`.
    pub metrics: &'static str,
}

/// The manager's task; [`TxManagerTask::run`] runs it.
pub struct TxManagerTask {
    machine: SendMachine,
    worker: Arc<TxWorker>,
    metrics: TxMetrics,
    commands: mpsc::Receiver<TxCommand>,
    status: watch::Sender<TxStatus>,
    /// Transactions whose sidecars are being built, in the order of their requests.
    preparing: FuturesOrdered<BoxFuture<'static, PreparedSend>>,
    /// Requests in the machine, by number.
    sends: HashMap<SendId, OpenSend>,
    /// Calls to L1 and the signer in flight.
    calls: FuturesUnordered<BoxFuture<'static, SendEvent>>,
    /// Requests whose transaction is being replaced, by the number of the signing operation.
    replacing: HashMap<u64, SendId>,
    last_id: SendId,
    blob_tip_dynamic: bool,
    causes: LoggedCauses,
    stopped: Option<String>,
}

/// A request in the machine, with the sender of its outcome.
struct OpenSend {
    tx: Arc<PreparedTx>,
    answer: oneshot::Sender<TxOutcome>,
    since: Instant,
    /// Number of replacements with higher fees that were signed.
    bumps: u32,
    /// Time from the request until a transaction of it was first seen in a block.
    included: Option<Duration>,
}

/// Result of building a sidecar, with the sender of the request's outcome.
type PreparedSend = (Result<PreparedTx, String>, oneshot::Sender<TxOutcome>);

/// Checks the options, reads L1's chain id, and creates the task and its handle.
pub async fn manager(
    parts: TxManagerParts,
) -> Result<(TxManagerHandle, TxManagerTask), TxManagerError> {
    let settings = parts.options.settings()?;
    let chain_id = parts.l1.chain_id().await?;
    let address = parts.signer.address();
    let (commands, received) = mpsc::channel(MAX_WAITING_COMMANDS);
    let (status, watched) = watch::channel(TxStatus::default());
    let worker = TxWorker {
        cell_proofs: CellProofTime::new(parts.options.cell_proof_time, chain_id),
        custom_errors: parts.options.already_published_custom_errs.clone(),
        timeout: parts.options.network_timeout,
        tips: tokio::sync::Mutex::new(parts.options.blob_tips()),
        l1: parts.l1,
        signer: parts.signer,
        chain_id,
    };
    let task = TxManagerTask {
        machine: SendMachine::new(address, settings, Instant::now()),
        worker: Arc::new(worker),
        metrics: TxMetrics::new(parts.metrics),
        commands: received,
        status,
        preparing: FuturesOrdered::new(),
        sends: HashMap::new(),
        calls: FuturesUnordered::new(),
        replacing: HashMap::new(),
        last_id: 0,
        blob_tip_dynamic: parts.options.blob_tip_cap_dynamic,
        causes: LoggedCauses::default(),
        stopped: None,
    };
    let handle = TxManagerHandle {
        commands,
        status: watched,
        address,
    };
    Ok((handle, task))
}

impl TxManagerTask {
    /// Runs until `closing` is cancelled and every request is finished, or until `ending` is
    /// cancelled. An error says why the account must not be used any more.
    pub async fn run(
        mut self,
        closing: CancellationToken,
        ending: CancellationToken,
    ) -> Result<(), TxManagerError> {
        let mut is_closing = false;
        self.handle(SendEvent::Tick);
        loop {
            if let Some(sentence) = self.stopped.take() {
                return Err(TxManagerError::Stopped(sentence));
            }
            if is_closing && self.sends.is_empty() && self.preparing.is_empty() {
                return Ok(());
            }
            let has_room = self.preparing.len() < PREPARING && self.sends.len() < MAX_PENDING;
            let pause = self.pause();
            tokio::select! {
                biased;
                () = ending.cancelled() => return Ok(()),
                () = closing.cancelled(), if !is_closing => {
                    is_closing = true;
                    self.handle(SendEvent::Close);
                }
                Some(event) = self.calls.next() => self.handle(event),
                Some((prepared, answer)) = self.preparing.next() => self.submit(prepared, answer),
                Some(command) = self.commands.recv(), if has_room => self.command(command, is_closing),
                () = tokio::time::sleep(pause) => self.handle(SendEvent::Tick),
            }
        }
    }

    fn pause(&self) -> Duration {
        let now = Instant::now();
        let wakeup = self.machine.wakeup();
        let pause = wakeup.map_or(MAX_PAUSE, |at| at.saturating_duration_since(now));
        pause.min(MAX_PAUSE)
    }

    fn command(&mut self, command: TxCommand, is_closing: bool) {
        match command {
            TxCommand::Send(_, answer) if is_closing => {
                let _ = answer.send(Err(SendFailure::Closed));
            }
            TxCommand::Send(candidate, answer) => {
                let worker = self.worker.clone();
                let prepared = async move { (worker.prepare(*candidate).await, answer) };
                self.preparing.push_back(prepared.boxed());
            }
            TxCommand::Api {
                method,
                params,
                answer,
            } => {
                let mut runtime = TxRuntime {
                    settings: self.machine.settings().clone(),
                    blob_tip_dynamic: self.blob_tip_dynamic,
                };
                let result = api::call(&method, &params, &mut runtime);
                *self.machine.settings_mut() = runtime.settings;
                self.blob_tip_dynamic = runtime.blob_tip_dynamic;
                let _ = answer.send(result);
                self.handle(SendEvent::Tick);
            }
        }
    }

    fn submit(&mut self, prepared: Result<PreparedTx, String>, answer: oneshot::Sender<TxOutcome>) {
        let tx = match prepared {
            Ok(tx) => Arc::new(tx),
            Err(reason) => {
                let _ = answer.send(Err(SendFailure::Craft(reason)));
                return;
            }
        };
        self.last_id += 1;
        let id = self.last_id;
        let class = tx.class();
        let since = Instant::now();
        let send = OpenSend {
            tx,
            answer,
            since,
            bumps: 0,
            included: None,
        };
        self.sends.insert(id, send);
        self.handle(SendEvent::Submit { id, class });
    }

    /// Passes an event to the machine, and starts the resulting actions.
    fn handle(&mut self, event: SendEvent) {
        self.observe(&event);
        let actions = self.machine.handle(event, Instant::now());
        for action in actions {
            self.act(action);
        }
        let status = TxStatus {
            settled: self.machine.is_settled(),
            pending: self.machine.pending(),
        };
        self.metrics
            .state(status.pending, self.machine.next_nonce());
        self.status.send_if_modified(|shown| {
            let before = std::mem::replace(shown, status);
            before != status
        });
    }

    /// Logs and counts an event.
    fn observe(&mut self, event: &SendEvent) {
        match event {
            SendEvent::Fees { fees, .. } => {
                if let Ok(fees) = fees {
                    self.metrics.fees(fees);
                }
                self.note("fees", fees.as_ref().err().cloned());
            }
            SendEvent::Signed { op, signed } => {
                let replaced = self.replacing.remove(op);
                if let Some(send) = replaced.and_then(|id| self.sends.get_mut(&id)) {
                    send.bumps += u32::from(signed.is_ok());
                }
                self.note("transaction", signed.as_ref().err().cloned());
            }
            SendEvent::Polled { reading, .. } => {
                self.note("account", reading.as_ref().err().cloned())
            }
            SendEvent::Published { answer, .. } => {
                self.metrics.published(answer);
                self.note("publication", answer.trouble());
            }
            _ => {}
        }
    }

    /// Logs a failed call, at most every ten minutes per cause, and the end of such a cause.
    fn note(&mut self, topic: &'static str, trouble: Option<String>) {
        match trouble {
            Some(error) if self.causes.note_failure(topic, &error, Instant::now()) => {
                tracing::warn!(
                    error,
                    topic,
                    "a call of the transaction manager failed; it is repeated"
                );
            }
            Some(_) => {}
            None if self.causes.note_success(topic, Instant::now()) => {
                tracing::info!(topic, "the calls of the transaction manager succeed again");
            }
            None => {}
        }
    }

    fn act(&mut self, action: SendAction) {
        let worker = self.worker.clone();
        let call = match action {
            SendAction::ReadFees { op } => {
                let rules = &self.machine.settings().fees;
                let (dynamic, min_tip) = (self.blob_tip_dynamic, rules.min_tip);
                async move {
                    let fees = worker.fees(dynamic, min_tip).await;
                    SendEvent::Fees { op, fees }
                }
                .boxed()
            }
            SendAction::Sign {
                op,
                nonce,
                work,
                class,
                caps,
                replaced_gas,
            } => {
                let tx = match work {
                    SendWork::Request(id) => {
                        if replaced_gas.is_some() {
                            self.replacing.insert(op, id);
                        }
                        self.sends.get(&id).map(|send| send.tx.clone())
                    }
                    SendWork::Filler => None,
                };
                async move {
                    let signed = worker.sign(tx, class, nonce, caps, replaced_gas).await;
                    SendEvent::Signed { op, signed }
                }
                .boxed()
            }
            SendAction::Publish { op, nonce, tx } => {
                tracing::info!(nonce, tx = %tx.hash, "Publishing transaction");
                async move {
                    let answer = worker.publish(&tx.raw).await;
                    SendEvent::Published { op, answer }
                }
                .boxed()
            }
            SendAction::Poll {
                op,
                deep_block,
                with_age,
                hashes,
            } => async move {
                let reading = worker.reading(deep_block, with_age, &hashes).await;
                SendEvent::Polled { op, reading }
            }
            .boxed(),
            other => return self.report(other),
        };
        self.calls.push(call);
    }

    /// Carries out an action that needs no call.
    fn report(&mut self, action: SendAction) {
        match action {
            SendAction::Included { id } => {
                if let Some(send) = self.sends.get_mut(&id) {
                    send.included = Some(send.since.elapsed());
                }
            }
            SendAction::Finished { id, result } => self.finish(id, result),
            SendAction::NotBumped { nonce, reason } => {
                self.metrics.not_bumped();
                if self.causes.note_failure("bump", &reason, Instant::now()) {
                    tracing::warn!(
                        nonce,
                        reason,
                        "unable to increase gas, will try to re-publish the tx"
                    );
                }
            }
            SendAction::Filling { nonce, reason }
                if self.causes.note_failure("filling", reason, Instant::now()) =>
            {
                tracing::warn!(nonce, reason, "an empty transaction uses up a nonce");
            }
            SendAction::Filling { .. } => {}
            SendAction::ReorgedOut { nonce, hash } => {
                // Limit the logging: one reorg removes many transactions, and disagreeing endpoints
                // look like repeated reorgs.
                if self.causes.note_failure("reorg", "", Instant::now()) {
                    tracing::warn!(nonce, tx = %hash, "a transaction left L1 by a reorg; it is published again");
                } else {
                    tracing::info!(nonce, tx = %hash, "a transaction left L1 by a reorg");
                }
            }
            SendAction::Adopted { nonce } => {
                if self.causes.note_failure("adopted", "", Instant::now()) {
                    tracing::warn!(
                        nonce,
                        "a nonce was used by a transaction that this process did not send; the next one is higher. A predecessor's transaction is the usual cause; if this goes on, another process has the same key"
                    );
                } else {
                    tracing::info!(
                        nonce,
                        "a nonce was used by a transaction of another process"
                    );
                }
            }
            SendAction::Stopped(sentence) => self.stopped = Some(sentence),
            _ => {}
        }
    }

    fn finish(&mut self, id: SendId, mut result: TxOutcome) {
        let Some(send) = self.sends.remove(&id) else {
            return;
        };
        if let Ok(mined) = &mut result {
            mined.delay = send.included.unwrap_or(send.since.elapsed());
        }
        match &result {
            Ok(mined) => {
                self.metrics.confirmed(&ConfirmedTx {
                    mined,
                    class: send.tx.class(),
                    bumps: send.bumps,
                    latency: send.since.elapsed(),
                });
                self.causes.note_success("bump", Instant::now());
                tracing::info!(tx = %mined.hash, block = mined.block, "Transaction confirmed");
            }
            // The caller logs this failure as a warning.
            Err(failure) => tracing::info!(%failure, "Aborting transaction submission"),
        }
        // Ignore a failure: the caller may have dropped the receiver.
        let _ = send.answer.send(result);
    }
}
