//! The swarm: one task that owns the libp2p host, behind a cloneable [`Network`] handle.
//!
//! A gossiped block: socket → decompressed once (`topics.rs`) → checked on a thread of its own (`check.rs`) → verdict to the
//! router → `sync.rs`, which hands it over when its parent is known and fetches what lies between (`reqresp.rs`) when it is not →
//! [`Event`]. `service.rs` is the task that moves all this and never waits; `serve.rs` answers peers; `peers.rs` knows the people.

mod behaviour;
mod check;
pub mod config;
mod guard;
pub mod handle;
pub mod identity;
mod limits;
mod peers;
mod reqresp;
mod serve;
pub mod service;
pub mod sync;
mod topics;
mod transport;

pub use config::{Config, Genesis, Mesh};
pub use handle::{Blocks, Event, Heads, Network, PeerInfo, Provenance, Settled};
pub use libp2p::{Multiaddr, PeerId, identity::Keypair};
pub use service::{Service, StartError};
