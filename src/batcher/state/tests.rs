//! The state machine against a simulated L1 and a simulated derivation: in chosen situations, and in
//! random ones.

mod faults;
mod random;
mod rules;
mod world;
