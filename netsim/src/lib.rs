//! Networks of nodes in tests, in three layers.
//!
//! - [`sim`] runs Starling's own state machines of many nodes in virtual time, from one seed.
//! - [`lab`] starts whole networks of the `starling` program on bad links, and checks them.
//! - [`model`] computes how blocks cross networks that are too large to run, and [`calibrate`]
//!   compares it with labs.
//! - [`mod@bench`] measures all of them.
//!
//! A [`FaultyLink`] between two real processes delays, loses, limits or stops their traffic, and
//! [`ladder`] has the conditions of common networks by name. [`packet`] does the same to the IP
//! packets of processes in network namespaces. [`report`] makes a page and JSON of a run.
//!
//! The crate is not a default member of the workspace, so it is compiled only on request.

pub mod bench;
pub mod calibrate;
mod files;
pub mod guard;
pub mod lab;
pub mod ladder;
mod link;
pub mod model;
mod nearest;
pub mod packet;
pub mod report;
pub mod sim;
pub use link::{
    DirectionConditions, FaultyLink, FlowId, LinkAddress, LinkArrival, LinkBandwidth,
    LinkConditionError, LinkConditions, LinkCounts, LinkDirection, LinkEnd, Passage, SEGMENT,
    StreamCapacity,
};
