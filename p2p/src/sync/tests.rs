//! The state machine of sync against models of the chain, its peers and the clock.

mod by_number;
mod number_world;
mod range_world;
mod ranges;
mod tips;
