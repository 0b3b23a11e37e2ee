//! The people in the swarm. Everything here is pure but for logs and counters: `now` comes in, decisions come out.
//!
//! [`statics`] says when to dial static peers again, [`candidates`] whom of those discovery found, [`links`] which connections to close, [`score`] what a deed weighs,
//! [`reputation`] who is banned for it, and [`ledger`] why.

pub mod candidates;
pub mod ledger;
pub mod links;
pub mod reputation;
pub mod score;
pub mod statics;

pub use candidates::Candidates;
pub use links::{Link, Tidal, Tides, surplus};
pub use reputation::{Policy, Reputation};
pub use score::Offence;
pub use statics::StaticPeers;
