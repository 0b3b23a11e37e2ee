//! Metrics of throttling, under op-batcher's names.

use super::controller::ThrottleController;
use crate::batcher::options::ThrottleCurve;
use metrics::{Gauge, Histogram, gauge, histogram};
use std::time::Duration;

macro_rules! name {
    ($name:literal) => {
        concat!("op_batcher_default_", $name)
    };
}

/// Gauges of one curve, with the curve as label. Gauges of a curve that is not in use are zero.
struct CurveGauges {
    curve: ThrottleCurve,
    is_used: Gauge,
    intensity: Gauge,
    ratio: Gauge,
}

impl CurveGauges {
    fn new(curve: ThrottleCurve) -> Self {
        let label = curve.to_string();
        Self {
            curve,
            is_used: gauge!(name!("throttle_controller_type"), "type" => label.clone()),
            intensity: gauge!(name!("throttle_intensity"), "type" => label.clone()),
            ratio: gauge!(name!("unsafe_bytes_ratio"), "type" => label),
        }
    }
}

/// Metric handles, created once.
pub(super) struct ThrottleMetrics {
    curves: [CurveGauges; 4],
    max_tx: Gauge,
    max_block: Gauge,
    history: Histogram,
    error: Gauge,
    integral: Gauge,
    derivative: Gauge,
    response: Histogram,
}

impl ThrottleMetrics {
    pub fn new() -> Self {
        Self {
            curves: ThrottleCurve::ALL.map(CurveGauges::new),
            max_tx: gauge!(name!("throttle_max_tx_size")),
            max_block: gauge!(name!("throttle_max_block_size")),
            history: histogram!(name!("throttle_intensity_history")),
            error: gauge!(name!("pid_controller_error")),
            integral: gauge!(name!("pid_controller_integral")),
            derivative: gauge!(name!("pid_controller_derivative")),
            response: histogram!(name!("pid_response_time")),
        }
    }

    /// Records the controller's state after a `load` in bytes; `took` is the duration of the
    /// update.
    pub fn record(&self, controller: &ThrottleController, load: u64, took: Duration) {
        let (options, limits) = (controller.options(), controller.limits());
        let ratio = load as f64 / options.lower_threshold.max(1) as f64;
        for gauges in &self.curves {
            let share = f64::from(u8::from(gauges.curve == options.curve));
            gauges.is_used.set(share);
            gauges.intensity.set(share * limits.intensity);
            gauges.ratio.set(share * ratio);
        }
        self.max_tx.set(limits.max_tx as f64);
        self.max_block.set(limits.max_block as f64);
        self.history.record(limits.intensity);
        if options.curve == ThrottleCurve::Pid {
            let pid = controller.pid();
            self.error.set(pid.error);
            self.integral.set(pid.integral);
            self.derivative.set(pid.derivative);
            self.response.record(took);
        }
    }
}
