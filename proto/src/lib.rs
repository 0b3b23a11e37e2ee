//! The protocol of an OP Stack node: wire formats and every rule that needs no I/O.
//!
//! Nothing here reads a clock, a socket or a disk: time and bytes are arguments, decisions are
//! return values. The swarm (`starling-p2p`) and the node (`starling`) depend on this crate, and
//! this crate depends on neither.
//!
//! Every public item is documented. The variants of errors are documented by their messages.

#![warn(missing_docs)]

pub mod abi;
pub mod attributes;
pub mod batch;
pub mod blob;
pub mod channel;
pub mod config;
pub mod config_update;
pub mod consolidate;
pub mod deposit;
pub mod derive;
pub mod encoder;
pub mod enr;
pub mod fork;
pub mod frame;
pub mod gossip;
pub mod l1_config;
pub mod l1info;
pub mod network;
pub mod output;
pub mod payload;
pub mod provenance;
pub mod reqresp;
pub mod schedule;
pub mod sign;
pub mod signed_before;
pub mod span;
pub mod system_config;
pub mod upgrades;
pub mod wire;

// A file shared by unit tests and integration tests uses this crate's name in its imports.
#[cfg(test)]
extern crate self as starling_proto;
