//! Seeds of the simulation: no violation, the same history every time, and each planted bug is
//! found.

mod planted;
mod seeds;
