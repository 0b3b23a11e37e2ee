//! Throttling: while more data waits for L1 than it takes, the sequencer's blocks are limited
//! (op-batcher's `throttling.md`).
//!
//! The batcher publishes its load ([`DataLoad`]) after every reading of L2. The task turns each
//! reading into limits ([`controller`], pure), and sends them with `miner_setMaxDASize` to every
//! execution client that may build blocks ([`target`]), or puts them into the core of this process.
//! Limits are sent again with every reading, so that a builder that was restarted gets them. A
//! builder that cannot be reached is tried again after [`RETRY`] and delays no other; one that does
//! not know the method ends the batcher, since its blocks would grow without limit. The limits outlast the
//! batcher, as with op-batcher: while nobody posts, data would pile up faster without them.

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

/// Pause after a builder did not take the limits.
pub const RETRY: Duration = Duration::from_secs(10);

// A warning, by which its end is named too.
const NOT_SET: &str = "SetMaxDASize RPC failed for endpoint, retrying.";

/// The load that throttling follows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DataLoad {
    /// Estimated bytes on L1 of all blocks that are not safe yet.
    pub unsafe_da_bytes: u64,
}

/// The state of throttling, as `admin_getThrottleController` answers.
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

/// A handle on the controller, for the RPC.
#[derive(Clone)]
pub struct ThrottleHandle {
    controller: Arc<Mutex<ThrottleController>>,
}

impl ThrottleHandle {
    pub fn info(&self) -> ThrottleInfo {
        self.controller.lock().info()
    }

    /// Changes the curve; its limits count from the next reading of the load on.
    pub fn set(&self, curve: ThrottleCurve, pid: Option<PidOptions>) -> Result<(), ThrottleError> {
        self.controller.lock().set(curve, pid)?;
        tracing::info!(new_type = %curve, "Successfully set throttle controller");
        Ok(())
    }

    /// Forgets the readings so far.
    pub fn reset(&self) {
        self.controller.lock().reset();
    }
}

/// Parts that the task is made of.
pub struct ThrottleParts {
    pub options: ThrottleOptions,
    /// The builders.
    pub targets: Vec<ThrottleTarget>,
    pub load: watch::Receiver<DataLoad>,
    /// Whether blocks are limited now.
    pub throttling: watch::Sender<bool>,
}

/// The task. [`ThrottleTask::run`] does everything.
pub struct ThrottleTask {
    controller: Arc<Mutex<ThrottleController>>,
    is_enabled: bool,
    targets: Vec<ThrottleTarget>,
    load: watch::Receiver<DataLoad>,
    throttling: watch::Sender<bool>,
    /// Made with the task, so that a scrape has the names also without throttling.
    metrics: ThrottleMetrics,
}

/// Makes the task and its handle.
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
    /// Sends limits until the token is cancelled. Fails if a builder does not know the method.
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
            // Without builders there is nothing to send.
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

/// Places that a reading of the load changes.
struct ControlOutputs<'a> {
    throttling: &'a watch::Sender<bool>,
    limits: &'a watch::Sender<ThrottleLimits>,
    metrics: &'a ThrottleMetrics,
}

/// Turns every reading of the load into limits; ends when the batcher has ended.
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

/// Sends the newest limits to one builder, after every reading, and again after a failure.
async fn keep_informed(
    target: &ThrottleTarget,
    mut limits: watch::Receiver<ThrottleLimits>,
    retry: Duration,
) -> Result<(), TargetError> {
    let mut causes = LoggedCauses::default();
    let mut must_retry = false;
    loop {
        if must_retry {
            // A reading in between is sent at once.
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
