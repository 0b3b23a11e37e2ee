//! Options of throttling (`--throttle.*`) and their checks.

use super::BatcherOptionError;
use std::{fmt, str::FromStr, time::Duration};

/// Rule for the intensity of throttling at a given load (`--throttle.controller-type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ThrottleCurve {
    /// Full intensity above the lower threshold, none below.
    Step,
    /// Intensity rises linearly with the load between the two thresholds.
    Linear,
    /// Square of the intensity that [`ThrottleCurve::Linear`] has.
    Quadratic,
    /// A PID control loop; experimental.
    Pid,
}

impl ThrottleCurve {
    /// All curves.
    pub const ALL: [Self; 4] = [Self::Step, Self::Linear, Self::Quadratic, Self::Pid];

    fn name(self) -> &'static str {
        match self {
            Self::Step => "step",
            Self::Linear => "linear",
            Self::Quadratic => "quadratic",
            Self::Pid => "pid",
        }
    }
}

impl fmt::Display for ThrottleCurve {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Error for a text that is not a [`ThrottleCurve`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("must be one of: [step linear quadratic pid]")]
pub struct UnknownCurve;

impl FromStr for ThrottleCurve {
    type Err = UnknownCurve;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let named = Self::ALL.into_iter().find(|curve| curve.name() == text);
        named.ok_or(UnknownCurve)
    }
}

/// Gains and limits of the PID control loop, [`ThrottleCurve::Pid`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PidOptions {
    /// Proportional gain, for the error itself; at least 0 (`--throttle.pid-kp`).
    pub kp: f64,
    /// Integral gain, for the sum of errors; at least 0 (`--throttle.pid-ki`).
    pub ki: f64,
    /// Derivative gain, for the change of the error; at least 0 (`--throttle.pid-kd`).
    pub kd: f64,
    /// Maximum of the sum of errors, above 0 (`--throttle.pid-integral-max`).
    pub integral_max: f64,
    /// Maximum intensity, above 0 and at most 1 (`--throttle.pid-output-max`).
    pub output_max: f64,
    /// Minimum time between two samples of the load, above 0 (`--throttle.pid-sample-time`).
    pub sample_time: Duration,
}

impl Default for PidOptions {
    fn default() -> Self {
        Self {
            kp: 0.33,
            ki: 0.01,
            kd: 0.05,
            integral_max: 1000.0,
            output_max: 1.0,
            sample_time: Duration::from_secs(2),
        }
    }
}

impl PidOptions {
    /// Checks the gains and limits. The error messages are those of op-batcher's RPC.
    pub fn check(&self) -> Result<(), &'static str> {
        let gains = [self.kp, self.ki, self.kd];
        if !gains.iter().all(|gain| gain.is_finite() && *gain >= 0.0) {
            Err("PID gains must be non-negative")
        } else if !(self.integral_max.is_finite() && self.integral_max > 0.0) {
            Err("PID IntegralMax must be positive")
        } else if !(self.output_max > 0.0 && self.output_max <= 1.0) {
            Err("PID OutputMax must be between 0 and 1")
        } else if self.sample_time.is_zero() {
            Err("PID SampleTime must be positive")
        } else {
            Ok(())
        }
    }
}

/// Load at which the sequencer's blocks are limited, and the limits.
#[derive(Clone, Debug, PartialEq)]
pub struct ThrottleOptions {
    /// `--throttle.controller-type`.
    pub curve: ThrottleCurve,
    /// Unsafe bytes above which throttling begins; 0 disables throttling
    /// (`--throttle.unsafe-da-bytes-lower-threshold`).
    pub lower_threshold: u64,
    /// Unsafe bytes from which on the linear and the quadratic curve have full intensity
    /// (`--throttle.unsafe-da-bytes-upper-threshold`).
    pub upper_threshold: u64,
    /// Maximum bytes of a transaction at full intensity; 0 never limits transactions
    /// (`--throttle.tx-size-lower-limit`).
    pub tx_size_lower: u64,
    /// Maximum bytes of a transaction where throttling just begins
    /// (`--throttle.tx-size-upper-limit`).
    pub tx_size_upper: u64,
    /// Maximum bytes of a block at full intensity; 0 never limits blocks
    /// (`--throttle.block-size-lower-limit`).
    pub block_size_lower: u64,
    /// Maximum bytes of a block without throttling (`--throttle.block-size-upper-limit`).
    pub block_size_upper: u64,
    /// Used by [`ThrottleCurve::Pid`] only.
    pub pid: PidOptions,
}

impl Default for ThrottleOptions {
    fn default() -> Self {
        Self {
            curve: ThrottleCurve::Quadratic,
            lower_threshold: 3_200_000,
            upper_threshold: 12_800_000,
            tx_size_lower: 150,
            tx_size_upper: 20_000,
            block_size_lower: 2_000,
            block_size_upper: 130_000,
            pid: PidOptions::default(),
        }
    }
}

impl ThrottleOptions {
    /// Whether throttling is enabled. Otherwise no limits are sent.
    pub fn is_enabled(&self) -> bool {
        self.lower_threshold > 0
    }

    pub(super) fn check(&self) -> Result<(), BatcherOptionError> {
        let wrong = |text| Err(BatcherOptionError::Throttle(text));
        if self.is_enabled() && self.upper_threshold <= self.lower_threshold {
            return wrong(
                "throttle.upper-threshold must be greater than throttle.lower-threshold \
                 (--throttle.unsafe-da-bytes-upper-threshold, --throttle.unsafe-da-bytes-lower-threshold)",
            );
        }
        if self.block_size_lower > 0 && self.block_size_lower >= self.block_size_upper {
            return wrong(
                "throttle.block-size-lower-limit must be less than throttle.block-size-upper-limit",
            );
        }
        self.check_curve(self.curve).or_else(wrong)
    }

    /// Checks the options that only some curves use.
    pub fn check_curve(&self, curve: ThrottleCurve) -> Result<(), &'static str> {
        let is_step = curve == ThrottleCurve::Step;
        if !is_step && self.tx_size_lower > 0 && self.tx_size_lower >= self.tx_size_upper {
            return Err(
                "throttle.tx-size-lower-limit must be less than throttle.tx-size-upper-limit",
            );
        }
        if curve == ThrottleCurve::Pid {
            self.pid.check()?;
        }
        Ok(())
    }
}
