//! Bad links for whole nodes: a [`Link`] stands between two real processes and delays or cuts what flows.
//!
//! Not a default member of the workspace: nobody compiles it by accident.

mod link;
pub use link::{Conditions, Link};
