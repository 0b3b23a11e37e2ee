//! A batcher or proposer as part of a process: its task, its transaction manager, and the order in
//! which the two stop.

use crate::{
    rollup::{
        l1::L1Client,
        signer::{RemoteCause, RemoteError},
    },
    tasks::{StopSignals, Tasks},
    txmgr::{
        options::TxOptions,
        shell::{TxManagerError, TxManagerHandle, TxManagerParts, TxManagerTask, manager},
        sign::{TxSignError, TxSigner, TxSignerConfig},
    },
};
use anyhow::{Context, anyhow};
use std::{
    fmt::Display,
    future::Future,
    time::{Duration, Instant},
};
use tokio_util::sync::CancellationToken;

/// Longest time from a stop signal until L1 has confirmed all transactions in flight.
const STOP_LIMIT: Duration = Duration::from_secs(60);
/// Time for a service to end after [`STOP_LIMIT`].
const END_LIMIT: Duration = Duration::from_secs(3);
/// Pause between two attempts to reach another program at the start of a service.
const UPSTREAM_PAUSE: Duration = Duration::from_secs(2);

/// The tokens that stop a service's tasks.
#[derive(Clone)]
pub(super) struct ServiceTokens {
    /// Cancelled when the service must finish its work in progress and then end.
    pub closing: CancellationToken,
    /// Cancelled when the service must end at once.
    pub ending: CancellationToken,
}

/// A running service.
pub(super) struct PostingService {
    name: &'static str,
    tasks: Tasks,
    tokens: ServiceTokens,
    /// Longest time from a stop signal to the end of the service.
    limit: Duration,
}

impl PostingService {
    pub fn new(name: &'static str) -> Self {
        Self::within(name, STOP_LIMIT)
    }

    /// A service that may take `limit` from a stop signal to its end.
    fn within(name: &'static str, limit: Duration) -> Self {
        let tokens = ServiceTokens {
            closing: CancellationToken::new(),
            ending: CancellationToken::new(),
        };
        let tasks = Tasks::new(tokens.closing.clone());
        Self {
            name,
            tasks: tasks.with_stop_timeout(limit + END_LIMIT),
            tokens,
            limit,
        }
    }

    pub fn tokens(&self) -> ServiceTokens {
        self.tokens.clone()
    }

    /// The service's tasks. Their token is [`ServiceTokens::closing`].
    pub fn tasks(&self) -> &Tasks {
        &self.tasks
    }

    /// Spawns the service's own task and its transaction manager, which closes after that task.
    pub fn spawn<F>(&self, task: F, txs: TxManagerTask)
    where
        F: Future<Output = anyhow::Result<()>> + Send + 'static,
    {
        let ServiceTokens { closing, ending } = self.tokens();
        let is_done = CancellationToken::new();
        let done = is_done.clone().drop_guard();
        let is_ending = ending.clone();
        self.tasks.spawn(self.name, async move {
            let _done = done;
            task.await?;
            // Let the transaction manager's failure be reported first: this end is its consequence.
            if is_ending.is_cancelled() {
                closing.cancelled().await;
            }
            Ok(())
        });
        self.tasks.spawn("transaction manager", async move {
            let ended = txs.run(is_done, ending.clone()).await;
            if ended.is_err() {
                // Without the transaction manager the service cannot finish its work.
                ending.cancel();
            }
            Ok(ended?)
        });
    }

    /// Runs until `stop` is cancelled and the work in progress is done. That work may take `limit`,
    /// and is cut off when `ending` is cancelled. Fails with the error of the first task that
    /// fails.
    pub async fn run(
        self,
        stop: &CancellationToken,
        ending: &CancellationToken,
    ) -> anyhow::Result<()> {
        let (name, tokens, limit) = (self.name, self.tokens, self.limit);
        let ended = self.tasks.run_until(std::future::pending());
        let orders = async {
            stop.cancelled().await;
            tracing::info!(
                "stopping the {name}: it waits for L1, at most {} s; a second signal ends that",
                limit.as_secs()
            );
            tokens.closing.cancel();
            tokio::select! {
                () = ending.cancelled() => {}
                () = tokio::time::sleep(limit) => tracing::warn!(
                    "the {name} did not finish within {} s: it ends now",
                    limit.as_secs()
                ),
            }
            tokens.ending.cancel();
            std::future::pending::<()>().await;
        };
        tokio::select! {
            biased;
            ended = ended => {
                // A failure of one task ends the other tasks.
                tokens.ending.cancel();
                ended
            }
            () = orders => Ok(()),
        }
    }
}

/// Pauses before a failed service in the node's process is started again.
#[derive(Clone, Copy, Debug)]
pub(super) struct RestartPauses {
    /// The pause after the first failure; every further failure doubles it.
    pub first: Duration,
    /// The longest pause. After this time without a failure, the next pause is `first` again.
    pub longest: Duration,
}

impl Default for RestartPauses {
    fn default() -> Self {
        Self {
            first: Duration::from_secs(60),
            longest: Duration::from_secs(480),
        }
    }
}

/// Starts a service in the node's process and runs it until a signal. After a failure the node
/// continues: its blocks are served and followed, and an operator needs the log and JSON-RPC to
/// find the cause. The service is started again after a pause, whatever the cause. Other programs
/// may recover, and an operator who stops a second process with the same key need not restart the
/// node. `start` gets the number of earlier starts.
pub(super) async fn keep_running<F>(
    name: &str,
    pauses: RestartPauses,
    start: impl Fn(u64) -> F,
    signals: StopSignals,
) where
    F: Future<Output = anyhow::Result<Option<PostingService>>>,
{
    let StopSignals { closing, ending } = signals;
    let mut pause = pauses.first;
    for starts in 0.. {
        let started = Instant::now();
        let ended = async {
            match start(starts).await? {
                Some(service) => service.run(&closing, &ending).await,
                None => Ok(()),
            }
        };
        let Err(error) = ended.await else {
            return;
        };
        if started.elapsed() >= pauses.longest {
            pause = pauses.first;
        }
        tracing::error!(
            error = crate::telemetry::sentence(&error),
            "the {name} has ended; the node goes on without it, and starts it again in {} s",
            pause.as_secs()
        );
        let waited = closing.run_until_cancelled(tokio::time::sleep(pause)).await;
        if waited.is_none() {
            return;
        }
        pause = (2 * pause).min(pauses.longest);
    }
}

/// Runs the services of a node until the first signal. Then stops the batcher, after it the
/// proposer, and then cancels `node`, the token of everything else. If `node` is cancelled before
/// that, the services end at once. Each service gets the signals on which it stops.
pub(super) async fn run_in_order(
    signals: StopSignals,
    batcher: impl AsyncFnOnce(StopSignals),
    proposer: impl AsyncFnOnce(StopSignals),
    node: CancellationToken,
) {
    let of_proposer = StopSignals {
        closing: CancellationToken::new(),
        ending: signals.ending.clone(),
    };
    let StopSignals { closing, ending } = signals.clone();
    let stop_proposer = of_proposer.closing.clone();
    let in_order = async {
        let first = async {
            batcher(signals).await;
            // Wait for the signal here too, since a node may have no batcher.
            closing.cancelled().await;
            stop_proposer.cancel();
        };
        tokio::join!(first, proposer(of_proposer));
    };
    tokio::pin!(in_order);
    let failed = async {
        node.cancelled().await;
        closing.cancel();
        ending.cancel();
        std::future::pending::<()>().await;
    };
    tokio::select! {
        () = &mut in_order => {}
        () = failed => {}
    }
    node.cancel();
}

/// Repeats an attempt to use another program until it succeeds. Logs `what` it waits for, and the
/// cause whenever it changes. `None` if the token is cancelled before that.
pub(super) async fn wait_for<T, E: Display, F>(
    what: &str,
    token: &CancellationToken,
    attempt: impl Fn() -> F,
) -> Option<T>
where
    F: Future<Output = Result<T, E>>,
{
    wait_with(what, token, UPSTREAM_PAUSE, attempt).await
}

/// Repeats `attempt` like [`wait_for`], with the given pause.
async fn wait_with<T, E: Display, F>(
    what: &str,
    token: &CancellationToken,
    pause: Duration,
    attempt: impl Fn() -> F,
) -> Option<T>
where
    F: Future<Output = Result<T, E>>,
{
    let mut last = None;
    loop {
        let answer = token.run_until_cancelled(attempt()).await?;
        let error = match answer {
            Ok(value) => {
                if last.is_some() {
                    tracing::info!("{what} answers now");
                }
                return Some(value);
            }
            Err(error) => error.to_string(),
        };
        if last.as_ref() != Some(&error) {
            tracing::warn!(error, "waiting for {what}");
            last = Some(error);
        }
        token.run_until_cancelled(tokio::time::sleep(pause)).await?;
    }
}

/// The parts of a service's transaction manager: L1, the account and the options.
pub(super) struct TxParts {
    pub options: TxOptions,
    pub l1: L1Client,
    pub signer: TxSignerConfig,
    /// Prefix of the names of the metrics.
    pub metrics: &'static str,
}

/// Makes the transaction manager once L1 responds. `None` if the token is cancelled before that.
pub(super) async fn transactions(
    parts: TxParts,
    token: &CancellationToken,
) -> anyhow::Result<Option<(TxManagerHandle, TxManagerTask)>> {
    parts.options.check().map_err(TxManagerError::Options)?;
    let Some(signer) = open_signer(&parts.signer, token).await? else {
        return Ok(None);
    };
    tracing::info!(account = %signer.address(), "the account that sends transactions");
    let attempt = || {
        manager(TxManagerParts {
            options: parts.options.clone(),
            l1: parts.l1.clone(),
            signer: signer.clone(),
            metrics: parts.metrics,
        })
    };
    let what = format!("L1 at {}", parts.l1.endpoint());
    Ok(wait_for(&what, token, attempt).await)
}

/// Reads a local key, so that a wrong key fails the start of the node.
pub(super) async fn check_local_key(config: &TxSignerConfig) -> anyhow::Result<()> {
    if !matches!(config, TxSignerConfig::Remote(_)) {
        TxSigner::open(config).await.context("the signer")?;
    }
    Ok(())
}

/// Opens the key. If the signer is another process, waits until it can be reached and is ready.
/// `None` if the token is cancelled before that.
async fn open_signer(
    config: &TxSignerConfig,
    token: &CancellationToken,
) -> anyhow::Result<Option<TxSigner>> {
    let attempt = || async {
        match TxSigner::open(config).await {
            Err(TxSignError::Remote(error)) if is_away(&error) => Err(error),
            opened => Ok(opened),
        }
    };
    let opened = wait_for("the signer", token, attempt).await;
    opened.transpose().context("the signer")
}

fn is_away(error: &RemoteError) -> bool {
    match error.cause {
        RemoteCause::Unreachable(_) | RemoteCause::Slow(_) => true,
        // A proxy returns these codes while the signer behind it is unavailable.
        RemoteCause::Status(status) => status == 429 || status >= 500,
        _ => false,
    }
}

/// Checks that the endpoint serves the rollup's L1.
pub(super) async fn check_l1_chain(
    l1: &L1Client,
    expected: u64,
    token: &CancellationToken,
) -> anyhow::Result<()> {
    let what = format!("L1 at {}", l1.endpoint());
    match wait_for(&what, token, || l1.chain_id()).await {
        Some(chain_id) if chain_id != expected => Err(anyhow!(
            "L1 at {} has the chain id {chain_id}, and the rollup's L1 is {expected}: give another endpoint with --l1-eth-rpc",
            l1.endpoint()
        )),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
