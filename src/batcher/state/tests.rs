//! Tests of the state machine against a simulated L1 and a simulated derivation, in chosen
//! situations and with random events.

mod faults;
mod random;
mod rules;
mod world;
