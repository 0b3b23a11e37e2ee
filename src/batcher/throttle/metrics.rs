//! Metrics of throttling, by op-batcher's names.

use super::controller::ThrottleController;
use crate::batcher::options::ThrottleCurve;
use metrics::{gauge, histogram};

/// The curve that is shown.
#[derive(Default)]
pub struct ThrottleMetrics {
    curve: Option<ThrottleCurve>,
}

impl ThrottleMetrics {
    /// Shows the controller after a reading of `load` bytes.
    pub fn record(&mut self, controller: &ThrottleController, load: u64) {
        let (options, limits) = (controller.options(), controller.limits());
        let curve = options.curve.to_string();
        if let Some(old) = self.curve.replace(options.curve) {
            gauge!("op_batcher_default_throttle_controller_type", "type" => old.to_string())
                .set(0.0);
        }
        gauge!("op_batcher_default_throttle_controller_type", "type" => curve.clone()).set(1.0);
        gauge!("op_batcher_default_throttle_intensity", "type" => curve.clone())
            .set(limits.intensity);
        gauge!("op_batcher_default_throttle_max_tx_size").set(limits.max_tx as f64);
        gauge!("op_batcher_default_throttle_max_block_size").set(limits.max_block as f64);
        let ratio = load as f64 / options.lower_threshold.max(1) as f64;
        gauge!("op_batcher_default_unsafe_bytes_ratio", "type" => curve.clone()).set(ratio);
        histogram!("op_batcher_default_throttle_intensity_history", "type" => curve)
            .record(limits.intensity);
        if options.curve == ThrottleCurve::Pid {
            let pid = controller.pid();
            gauge!("op_batcher_default_pid_controller_error").set(pid.error);
            gauge!("op_batcher_default_pid_controller_integral").set(pid.integral);
            gauge!("op_batcher_default_pid_controller_derivative").set(pid.derivative);
        }
    }
}
