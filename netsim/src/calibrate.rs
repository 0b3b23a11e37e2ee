//! Calibration: labs of real nodes beside the model of the same networks, in one table.
//!
//! ```text
//! cli ── plan ── lab::run ── measured (a line of three nodes, then each network)
//!          └──── rows: the model with the measured times, without and with shared processors
//!                  └── report::RunCalibration
//! ```
//!
//! All inputs of the model are measured, none is fitted to the propagation of the networks that are
//! compared. A line of three nodes over loopback gives the time of a hop, and the time from the
//! sequencer's log line to that of its neighbour. The same lab and the network's own counters give
//! the processor time of a block and of a copy. Labs run one after the other on the processors of
//! this machine, and other programs on it falsify them.

pub mod cli;
mod measured;
mod plan;
mod rows;

pub use measured::{HopTimes, LabMeasurement};
pub use plan::CalibrationPlan;
