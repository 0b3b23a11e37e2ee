//! Seeds of the simulation: no violation, the same history every time, and each planted bug is
//! found.

mod command_line;
mod derivation;
mod determinism;
mod overlaps;
mod planted;
mod program;
mod real;
mod seeds;
