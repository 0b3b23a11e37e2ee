//! Bad network links for whole nodes: a [`FaultyLink`] between two real processes delays, loses,
//! limits or stops their traffic. [`ladder`] has the conditions of common networks by name.
//! [`model`] computes how blocks cross networks that are too large to run, and [`report`] turns a
//! run into JSON and a page.
//!
//! The crate is not a default member of the workspace, so it is compiled only on request.

pub mod ladder;
mod link;
pub mod model;
pub mod replay;
pub mod report;
pub use link::{
    DirectionConditions, FaultyLink, FlowId, LinkArrival, LinkBandwidth, LinkConditionError,
    LinkConditions, LinkCounts, LinkDirection, LinkEnd, Passage, SEGMENT, StreamCapacity,
};
