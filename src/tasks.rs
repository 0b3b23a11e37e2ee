//! The node's long-lived tasks: a token that stops them, a tracker that waits for their end, and
//! the first failure.
//!
//! Only [`node`](crate::node) calls [`Tasks::spawn`].

use anyhow::anyhow;
use std::{future::Future, time::Duration};
use tokio::sync::mpsc;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

/// Maximum time that stopping tasks get to end.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// The operator's signals to end the process.
#[derive(Clone, Debug, Default)]
pub struct StopSignals {
    /// Cancelled by the first signal: finish the current work, then end.
    pub closing: CancellationToken,
    /// Cancelled by the second signal: end at once.
    pub ending: CancellationToken,
}

/// Long-lived tasks of one node.
pub struct Tasks {
    token: CancellationToken,
    tracker: TaskTracker,
    stop_timeout: Duration,
    failure: mpsc::Sender<anyhow::Error>,
    failures: mpsc::Receiver<anyhow::Error>,
}

impl Tasks {
    /// Creates a set of tasks that end when `token` is cancelled.
    pub fn new(token: CancellationToken) -> Self {
        let (failure, failures) = mpsc::channel(1);
        Self {
            token,
            tracker: TaskTracker::new(),
            stop_timeout: STOP_TIMEOUT,
            failure,
            failures,
        }
    }

    /// Sets the time that stopping tasks get to end.
    pub fn with_stop_timeout(self, stop_timeout: Duration) -> Self {
        Self {
            stop_timeout,
            ..self
        }
    }

    /// Token on whose cancellation a task must end.
    pub fn token(&self) -> CancellationToken {
        self.token.clone()
    }

    /// Runs a task that must end only after the token is cancelled. An error, a panic or an earlier
    /// end stops the node.
    pub fn spawn<F>(&self, name: &'static str, task: F)
    where
        F: Future<Output = anyhow::Result<()>> + Send + 'static,
    {
        let failure = self.failure.clone();
        let token = self.token.clone();
        let task = self.tracker.spawn(task);
        self.tracker.spawn(async move {
            let error = match task.await {
                Ok(Ok(())) if token.is_cancelled() => return,
                Ok(Ok(())) => anyhow!("{name} has ended by itself"),
                Ok(Err(error)) => error.context(format!("{name} has failed")),
                Err(error) => anyhow!("{name} has failed: {error}"),
            };
            tracing::error!(
                task = name,
                error = crate::telemetry::sentence(&error),
                "a task failed"
            );
            // The channel has room for the first failure only: later ones usually follow from it.
            let _ = failure.try_send(error);
        });
    }

    /// Waits for the first failure, for `stop`, or for the token's cancellation, then stops all
    /// tasks. Returns the failure, if there was one.
    pub async fn run_until(mut self, stop: impl Future<Output = ()>) -> anyhow::Result<()> {
        let failure = tokio::select! {
            biased;
            failure = self.failures.recv() => failure,
            () = self.token.cancelled() => None,
            () = stop => None,
        };
        self.token.cancel();
        self.tracker.close();
        if tokio::time::timeout(self.stop_timeout, self.tracker.wait())
            .await
            .is_err()
        {
            tracing::warn!(
                tasks = self.tracker.len(),
                "some tasks did not stop in time"
            );
        }
        failure.map_or(Ok(()), Err)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::bail;

    /// Error message of a node that runs this task.
    async fn ends(task: impl Future<Output = anyhow::Result<()>> + Send + 'static) -> String {
        let tasks = Tasks::new(CancellationToken::new());
        let token = tasks.token();
        tasks.spawn("a patient task", {
            let token = token.clone();
            async move {
                token.cancelled().await;
                Ok(())
            }
        });
        tasks.spawn("a task", task);
        let error = tasks.run_until(std::future::pending()).await.unwrap_err();
        assert!(token.is_cancelled());
        crate::telemetry::sentence(&error)
    }

    #[tokio::test]
    async fn the_first_failure_ends_the_node_and_is_named() {
        assert_eq!(
            ends(async { bail!("no more tea") }).await,
            "a task has failed: no more tea"
        );
        assert_eq!(ends(async { Ok(()) }).await, "a task has ended by itself");
        let panic = ends(async { panic!("a bug") }).await;
        assert!(
            panic.starts_with("a task has failed: task ") && panic.contains("panicked"),
            "{panic}"
        );
    }

    #[tokio::test]
    async fn a_stop_is_no_failure() {
        let token = CancellationToken::new();
        let tasks = Tasks::new(token.clone());
        let stopped = token.clone();
        tasks.spawn("a task", async move {
            stopped.cancelled().await;
            Ok(())
        });
        token.cancel();
        tasks.run_until(std::future::pending()).await.unwrap();
    }
}
