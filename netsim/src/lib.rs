//! Bad links for whole nodes: a [`FaultyLink`] between two real processes delays or stops their
//! traffic.
//!
//! The crate is no default member of the workspace, so that it is compiled only on request.

mod link;
pub use link::{Conditions, FaultyLink};
