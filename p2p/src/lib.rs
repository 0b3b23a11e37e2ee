//! The swarm: one task that owns the libp2p host, behind a cloneable [`Network`] handle.
//!
//! A gossiped block: socket → unpacked once, by its connection (`router.rs`) → checked on a thread of its own (`check.rs`) → verdict
//! to the router → `sync.rs`, which hands it over when its parent is known and fetches what lies between (`reqresp.rs`) when it is not →
//! [`Event`]. `service.rs` is the task that moves all this and never waits; `serve.rs` answers peers.
//!
//! Who may sign blocks is told by the node ([`Network::set_signer`]), which `doubt.rs` asks before a block by a stranger is held
//! against whoever sent it.
//!
//! A peer: `discovery.rs` finds it, `gate.rs` lets it in, `peers.rs` scores what it does, bans it and writes the reason into the
//! ledger, `peerstore.rs` remembers that over a restart.

mod behaviour;
mod check;
pub mod config;
pub mod discovery;
mod doubt;
mod gate;
mod guard;
pub mod handle;
pub mod identity;
mod limits;
mod metrics;
pub mod nat;
pub mod peers;
mod peerstore;
mod propagation;
mod range;
mod reqresp;
mod router;
mod serve;
pub mod service;
mod streams;
pub mod sync;
mod topics;
mod transport;

/// Decoders that nothing outside needs but whoever fuzzes them.
#[doc(hidden)]
pub mod fuzzing {
    pub use crate::{nat::pmp_answer, peerstore::Record};
}

pub use config::{Config, Genesis, Mesh};
pub use discovery::{DiscoveryConfig, DiscoveryReport, bootnode::Bootnode};
pub use handle::{
    BanReport, Blocks, ControlError, Direction, Event, Heads, MeshReport, Network, PeerInfo,
    PeerReport, Provenance, Refused, Report, Settled, Subject, SyncReport,
};
pub use ipnet::IpNet;
pub use libp2p::{Multiaddr, PeerId, identity::Keypair};
pub use nat::NatConfig;
pub use peers::{
    Policy, Tides,
    ledger::{Change, Entry},
    score::{Scores, Scoring},
};
pub use propagation::Passage;
pub use service::{Service, StartError};
