//! The four throttle controllers, which compute limits of transactions and blocks from the load.
//! Pure: the time is an argument.

use super::ThrottleInfo;
use crate::batcher::options::{PidOptions, ThrottleCurve, ThrottleOptions};
use std::time::Instant;

/// Limits in estimated bytes on L1; 0 means no limit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ThrottleLimits {
    /// Intensity of throttling, from 0 (none) to 1 (the lower limits apply).
    pub intensity: f64,
    pub max_tx: u64,
    pub max_block: u64,
}

/// The reason why a change of the controller is refused, in op-batcher's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ThrottleError {
    #[error("cannot set PID controller type without configuration")]
    NoPid,
    #[error("{0}")]
    Options(&'static str),
}

/// State of the PID controller.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PidState {
    /// Time of the last sample.
    at: Option<Instant>,
    /// Load above the lower threshold, divided by the lower threshold.
    pub error: f64,
    /// Integral of the error over time, in seconds.
    pub integral: f64,
    /// Change of the error per second.
    pub derivative: f64,
    intensity: f64,
}

impl PidState {
    /// Computes the intensity for `load`. A call before the sample time has passed changes nothing.
    fn update(&mut self, pid: &PidOptions, lower: u64, load: u64, now: Instant) -> f64 {
        let elapsed = self.at.map(|at| now.saturating_duration_since(at));
        if elapsed.is_some_and(|elapsed| elapsed < pid.sample_time) {
            return self.intensity;
        }
        if load <= lower {
            *self = Self {
                at: Some(now),
                ..Self::default()
            };
            return 0.0;
        }
        let error = (load - lower) as f64 / lower as f64;
        let seconds = elapsed.map_or(0.0, |elapsed| elapsed.as_secs_f64());
        let mut integral = self.integral;
        let mut derivative = 0.0;
        if seconds > 0.0 {
            integral = (integral + error * seconds).min(pid.integral_max);
            derivative = (error - self.error) / seconds;
        }
        let output = pid.kp * error + pid.ki * integral + pid.kd * derivative;
        *self = Self {
            at: Some(now),
            error,
            integral,
            derivative,
            intensity: output.clamp(0.0, pid.output_max),
        };
        self.intensity
    }
}

/// A controller with its last load and limits.
#[derive(Clone, Debug)]
pub struct ThrottleController {
    options: ThrottleOptions,
    pid: PidState,
    load: u64,
    limits: ThrottleLimits,
}

impl ThrottleController {
    /// Creates a controller before its first load. The options must have passed their checks.
    pub fn new(options: ThrottleOptions) -> Self {
        let limits = limits(&options, 0.0);
        Self {
            options,
            pid: PidState::default(),
            load: 0,
            limits,
        }
    }

    pub fn options(&self) -> &ThrottleOptions {
        &self.options
    }

    /// State of the PID controller; all zero with another curve.
    pub fn pid(&self) -> &PidState {
        &self.pid
    }

    /// Limits at the last load.
    pub fn limits(&self) -> ThrottleLimits {
        self.limits
    }

    /// Computes the limits at a load of `load` bytes.
    pub fn update(&mut self, load: u64, now: Instant) -> ThrottleLimits {
        let (lower, upper) = (self.options.lower_threshold, self.options.upper_threshold);
        let intensity = match self.options.curve {
            ThrottleCurve::Step if load > lower => 1.0,
            ThrottleCurve::Step => 0.0,
            ThrottleCurve::Linear => share(load, lower, upper),
            ThrottleCurve::Quadratic => share(load, lower, upper).powi(2),
            ThrottleCurve::Pid => {
                let pid = self.options.pid;
                self.pid.update(&pid, lower, load, now)
            }
        };
        self.load = load;
        self.limits = limits(&self.options, intensity);
        self.limits
    }

    /// Changes the curve and resets the controller. [`ThrottleCurve::Pid`] requires `pid`.
    pub fn set(
        &mut self,
        curve: ThrottleCurve,
        pid: Option<PidOptions>,
    ) -> Result<(), ThrottleError> {
        let mut options = self.options.clone();
        match (curve, pid) {
            (ThrottleCurve::Pid, None) => return Err(ThrottleError::NoPid),
            (ThrottleCurve::Pid, Some(pid)) => options.pid = pid,
            _ => {}
        }
        options.check_curve(curve).map_err(ThrottleError::Options)?;
        options.curve = curve;
        self.options = options;
        self.reset();
        Ok(())
    }

    /// Resets the PID state and the limits. `load` stays: it is the batcher's, not the controller's
    /// state.
    pub fn reset(&mut self) {
        self.pid = PidState::default();
        self.limits = limits(&self.options, 0.0);
    }

    pub fn info(&self) -> ThrottleInfo {
        ThrottleInfo {
            curve: self.options.curve.to_string(),
            lower_threshold: self.options.lower_threshold,
            upper_threshold: self.options.upper_threshold,
            current_load: self.load,
            intensity: self.limits.intensity,
            max_tx_size: self.limits.max_tx,
            max_block_size: self.limits.max_block,
        }
    }
}

/// Position of `load` between the thresholds, from 0 (at or below `lower`) to 1.
fn share(load: u64, lower: u64, upper: u64) -> f64 {
    if load <= lower {
        0.0
    } else if load >= upper {
        1.0
    } else {
        (load - lower) as f64 / (upper - lower) as f64
    }
}

/// Limits at this intensity. At intensity 0 only blocks are limited. A lower limit of 0 disables
/// the limit.
fn limits(options: &ThrottleOptions, intensity: f64) -> ThrottleLimits {
    let between = |lower: u64, upper: u64| {
        if options.curve == ThrottleCurve::Step {
            lower
        } else {
            (upper as f64 - intensity * (upper - lower) as f64) as u64
        }
    };
    let limited = intensity > 0.0;
    ThrottleLimits {
        intensity,
        max_tx: match options.tx_size_lower {
            lower if lower > 0 && limited => between(lower, options.tx_size_upper),
            _ => 0,
        },
        max_block: match options.block_size_lower {
            0 => 0,
            lower if limited => between(lower, options.block_size_upper),
            _ => options.block_size_upper,
        },
    }
}

#[cfg(test)]
mod tests;
