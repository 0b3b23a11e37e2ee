//! The swarm: one task that owns the libp2p host, behind a cloneable [`Network`] handle.
//!
//! # Modules
//!
//! Each module is a direct child of this crate and owns its state. A module uses only the modules
//! listed below it. Decisions for a module listed above it are returned by its `poll`, and
//! `service` passes them on.
//!
//! | module | job | uses | bounded by |
//! |---|---|---|---|
//! | `service` | the loop: dispatches events, commands and ticks | all | 256 commands; one event per iteration |
//! | `handle` | [`Network`]: commands and reports of the node | discovery, gossip, peers | the command channel |
//! | `config` | [`Config`], from which each module's settings are taken | all but `service` and `handle` | |
//! | [`discovery`] | finds nodes of our chain (discv5), in a task of its own | nat, peers, host's errors | 1024 records, 64 contacts |
//! | `nat` | maps our ports on the router, in a task of its own | | one request at a time |
//! | `serve` | serves blocks to peers, in tasks of its own | host, peers | permits and token buckets per peer and address |
//! | `sync` | fills gaps below signed blocks, and owns the requests for that | host, peers | skeleton, bodies, requests in flight |
//! | `host` | libp2p: transports, connections, streams, the guard | gossip, peers | the gate; streams per connection |
//! | `gossip` | messages: unpack, check, verdict, publish | peers | permits to unpack; checks per topic and per peer |
//! | `peers` | the gate, dial schedules, scores, bans, ledger, store | | candidates, bans, ledger rings |
//! | [`address`], `clock`, `metrics`, `types` | plain types and functions | | |
//!
//! # Flows
//!
//! A gossiped block: socket → unpacked once, by its connection (`gossip/router.rs`) → checked on a
//! thread of its own (`gossip/check.rs`) → verdict to gossipsub → `sync.rs`, which hands it over
//! when its parent is known, and otherwise fetches the missing blocks first (`sync/client.rs`) →
//! [`Event`].
//!
//! Our own block: [`Network::publish`] → the same check → gossipsub (`gossip/publish.rs`).
//!
//! The node sets the block signer ([`Network::set_signer`]). Offences for blocks of an unknown
//! signer are held until the next such call (`gossip/unknown_signer.rs`).
//!
//! A peer: `discovery` finds it → `peers/candidates.rs` schedules the dial → `peers/gate.rs` admits
//! the connection → `peers/reputation.rs` scores offences and bans → `peers/ledger.rs` keeps the
//! reasons, and `peers/store.rs` keeps scores and bans over a restart.

#![warn(missing_docs)]

pub mod address;
mod clock;
mod config;
pub mod discovery;
#[allow(missing_docs, reason = "its machines are public for simulations only")]
mod gossip;
mod handle;
mod host;
mod metrics;
mod nat;
#[allow(missing_docs, reason = "its machines are public for simulations only")]
mod peers;
#[allow(missing_docs, reason = "its machines are public for simulations only")]
mod serve;
mod service;
#[allow(missing_docs, reason = "its machines are public for simulations only")]
mod sync;
mod types;

/// Decoders that only the fuzz targets need.
#[doc(hidden)]
pub mod fuzzing {
    pub use crate::{nat::pmp_reply, peers::store::StoreRecord};
}

/// The machines of the swarm: decisions without I/O, for simulations of networks.
#[doc(hidden)]
pub mod machines {
    pub use crate::{
        address::site,
        clock::Moment,
        gossip::{
            check::{Accepted, CheckOutcome, CheckRules, CheckSettings},
            topics::{MessageParts, seal},
            unknown_signer::{RejectionCost, UnknownSignerHold},
        },
        peers::{
            Offence, PeerLink, Peers, PeersAction, PeersConfig, TrimCandidate,
            candidates::Contact,
            gate::{Gate, GateRefusal, SharedGateRules},
            surplus,
        },
        serve::{
            bucket::{LONGEST_WAIT, PEER_RATE, SHARED_RATE, TokenBucket, TokenRate},
            by_number::NumberRules,
            by_range::RangeRules,
        },
        sync::{
            FetchError, HashLinks, PeerStatus, RangeRequest, Sync, SyncAction, TipDropped,
            client::{
                ClientEvent, by_number,
                by_range::{decode_frame, first_known, read_status, verify_blocks, verify_headers},
                statuses::StatusSchedule,
            },
        },
        types::Arrival,
    };
    pub use libp2p::swarm::ConnectionId;
}

pub use config::Config;
pub use discovery::{DiscoveryConfig, DiscoveryReport, bootnode::Bootnode};
pub use gossip::timing::BlockTiming;
pub use gossip::topics::Mesh;
pub use handle::{Direction, Network, NetworkError, PeerReport, SwarmReport};
pub use host::identity;
pub use ipnet::IpNet;
pub use libp2p::{Multiaddr, PeerId, identity::Keypair};
pub use nat::NatConfig;
pub use peers::{
    PeerLimits, Policy,
    ledger::{LedgerChange, LedgerEntry},
    score::{Scores, Scoring},
};
pub use service::{Service, StartError};
pub use sync::SyncLimits;
pub use types::{
    BanReport, Blocks, ChainGenesis, ChainHeads, Event, MeshReport, PeerInfo, Provenance,
    RefusedPeers, Settled, Subject, SyncReport,
};
