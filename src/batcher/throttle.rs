//! Throttling: limits the sequencer's blocks, more strictly the more data waits for L1 (op-batcher's
//! `throttling.md`).
//!
//! The batcher publishes its load ([`DataLoad`]) at polls of L2 and while it loads blocks. The task
//! computes limits from each load ([`controller`], pure). It sends them with `miner_setMaxDASize`
//! to every execution client that may build blocks ([`target`]), or sets them in this process's
//! transaction pool. Limits are sent again with every load, so a builder that was restarted gets
//! them. An unreachable builder is tried again after [`RETRY`], without delaying the others. A
//! builder that does not know the method ends the batcher, since its blocks would grow without
//! limit. The limits stay after the batcher ends, as with op-batcher: while no data is posted, a
//! backlog would grow faster without them.

pub mod controller;
mod metrics;
pub mod target;

pub use controller::{ThrottleError, ThrottleLimits};
pub use target::ThrottleTarget;

use super::options::{PidOptions, ThrottleCurve, ThrottleOptions};
use crate::telemetry::LoggedCauses;
use controller::ThrottleController;
use futures::future::try_join_all;
use metrics::ThrottleMetrics;
use parking_lot::Mutex;
use serde::Serialize;
use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use target::TargetError;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// Delay before the limits are sent again to a builder that did not accept them.
pub const RETRY: Duration = Duration::from_secs(10);

// Warning message. It also identifies the warning when its cause is over.
const NOT_SET: &str = "SetMaxDASize RPC failed for endpoint, retrying.";

/// The load that determines throttling.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DataLoad {
    /// Estimated bytes on L1 of all blocks that are not safe.
    pub unsafe_da_bytes: u64,
}

/// State of throttling: the result of `admin_getThrottleController`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ThrottleInfo {
    #[serde(rename = "type")]
    pub curve: String,
    pub lower_threshold: u64,
    pub upper_threshold: u64,
    pub current_load: u64,
    pub intensity: f64,
    pub max_tx_size: u64,
    pub max_block_size: u64,
}

/// Handle on the throttle controller, for the RPC.
#[derive(Clone)]
pub struct ThrottleHandle {
    controller: Arc<Mutex<ThrottleController>>,
}

impl ThrottleHandle {
    pub fn info(&self) -> ThrottleInfo {
        self.controller.lock().info()
    }

    /// Changes the curve. Its limits apply from the next load on.
    pub fn set(&self, curve: ThrottleCurve, pid: Option<PidOptions>) -> Result<(), ThrottleError> {
        self.controller.lock().set(curve, pid)?;
        tracing::info!(new_type = %curve, "Successfully set throttle controller");
        Ok(())
    }

    /// Resets the controller's PID state and limits to those before the first load.
    pub fn reset(&self) {
        self.controller.lock().reset();
    }
}

/// Everything that [`throttle()`] needs to create the task.
pub struct ThrottleParts {
    pub options: ThrottleOptions,
    /// The block builders that get the limits.
    pub targets: Vec<ThrottleTarget>,
    pub load: watch::Receiver<DataLoad>,
    /// Whether the sequencer's blocks are throttled now.
    pub throttling: watch::Sender<bool>,
}

/// The throttling task; [`ThrottleTask::run`] runs it.
pub struct ThrottleTask {
    controller: Arc<Mutex<ThrottleController>>,
    is_enabled: bool,
    targets: Vec<ThrottleTarget>,
    load: watch::Receiver<DataLoad>,
    throttling: watch::Sender<bool>,
    /// Created even if throttling is disabled, so that a scrape lists the metrics.
    metrics: ThrottleMetrics,
}

/// Creates the task and its handle.
pub fn throttle(parts: ThrottleParts) -> (ThrottleHandle, ThrottleTask) {
    let is_enabled = parts.options.is_enabled();
    let controller = Arc::new(Mutex::new(ThrottleController::new(parts.options)));
    let throttle = ThrottleHandle {
        controller: controller.clone(),
    };
    let task = ThrottleTask {
        controller,
        is_enabled,
        targets: parts.targets,
        load: parts.load,
        throttling: parts.throttling,
        metrics: ThrottleMetrics::new(),
    };
    (throttle, task)
}

impl ThrottleTask {
    /// Sends limits until `token` is cancelled. Fails if a builder does not support the method.
    pub async fn run(self, token: CancellationToken) -> Result<(), TargetError> {
        if !self.is_enabled {
            token.cancelled().await;
            return Ok(());
        }
        let limits = watch::Sender::new(self.controller.lock().limits());
        let informed = self
            .targets
            .iter()
            .map(|target| keep_informed(target, limits.subscribe(), RETRY));
        let informed: Vec<_> = informed.collect();
        let sending = async {
            try_join_all(informed).await?;
            // `try_join_all` ends at once without builders. Wait, since throttling must not end.
            std::future::pending().await
        };
        let outputs = ControlOutputs {
            throttling: &self.throttling,
            limits: &limits,
            metrics: &self.metrics,
        };
        let control = control(&self.controller, self.load, outputs);
        tokio::select! {
            biased;
            () = token.cancelled() => Ok(()),
            failed = sending => failed,
            () = control => {
                token.cancelled().await;
                Ok(())
            }
        }
    }
}

/// Outputs of the control loop, updated for every load.
struct ControlOutputs<'a> {
    throttling: &'a watch::Sender<bool>,
    limits: &'a watch::Sender<ThrottleLimits>,
    metrics: &'a ThrottleMetrics,
}

/// Computes limits from every load; returns when the batcher has ended.
async fn control(
    controller: &Mutex<ThrottleController>,
    mut load: watch::Receiver<DataLoad>,
    outputs: ControlOutputs<'_>,
) {
    let ControlOutputs {
        throttling,
        limits,
        metrics,
    } = outputs;
    while load.changed().await.is_ok() {
        let bytes = load.borrow_and_update().unsafe_da_bytes;
        let new = {
            let mut controller = controller.lock();
            let before = Instant::now();
            let new = controller.update(bytes, before);
            metrics.record(&controller, bytes, before.elapsed());
            new
        };
        let is_throttling = new.intensity > 0.0;
        if throttling.send_if_modified(|was| std::mem::replace(was, is_throttling) != is_throttling)
        {
            let (tx, block) = (new.max_tx, new.max_block);
            if is_throttling {
                tracing::warn!(
                    unsafe_bytes = bytes,
                    intensity = new.intensity,
                    max_tx_size = tx,
                    max_block_size = block,
                    "unsafe bytes above threshold: the sequencer's blocks are throttled"
                );
            } else {
                tracing::info!(
                    unsafe_bytes = bytes,
                    "the sequencer's blocks are no longer throttled"
                );
            }
        }
        limits.send_replace(new);
    }
}

/// Sends the newest limits to one builder after every load, and again after a failure.
async fn keep_informed(
    target: &ThrottleTarget,
    mut limits: watch::Receiver<ThrottleLimits>,
    retry: Duration,
) -> Result<(), TargetError> {
    let mut causes = LoggedCauses::default();
    let mut must_retry = false;
    loop {
        if must_retry {
            // Limits that change during the delay are sent at once.
            let changed = tokio::time::timeout(retry, limits.changed()).await;
            if matches!(changed, Ok(Err(_))) {
                return Ok(());
            }
        } else if limits.changed().await.is_err() {
            return Ok(());
        }
        let newest = *limits.borrow_and_update();
        let sent = target.send(newest).await;
        must_retry = sent.is_err();
        match sent {
            Ok(()) => {
                if causes.note_success(NOT_SET, Instant::now()) {
                    tracing::info!(endpoint = %target.name(), "the limits of blocks are set again");
                }
            }
            Err(error) if error.is_final() => return Err(error),
            Err(error) => {
                if causes.note_failure(NOT_SET, &error.to_string(), Instant::now()) {
                    tracing::warn!(%error, "{NOT_SET}");
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
