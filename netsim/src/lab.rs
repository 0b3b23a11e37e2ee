//! Networks of the shipped `starling` program as ordinary processes: own data directories, ports
//! and logs, and one genesis. A faulty link joins every two nodes with a swarm, each node and the
//! L1, and the sequencer and its batcher or proposer. Nodes that find each other through a bootnode
//! have a link to the L1 only. A scenario names the nodes, the links and the faults; the checks are
//! the same for all scenarios. `netsim run` runs a scenario and writes its report as JSON and as a
//! page.
//!
//! The controller is no node. It starts and signals processes, carries all links and changes them,
//! sends transactions, and reads heads by RPC and events from logs. Hostile peers are processes of
//! this program ([`hostile`]), which dial nodes past all links.
//!
//! ```text
//! file ── scenario ── validate ── plan ── run ── network (processes, links) ── guard
//!                                          │        ├── movable ── mounts, dns
//!                                          │        └── l1, other_chain, hostile
//!                                          ├── watch, logs, counters, ledgers (hostile)
//!                                          └── checks ── report ── run_report
//! ```
//!
//! The machine is the limit: nodes, hostile peers and controller share its processors. A tick of the
//! controller that comes 200 ms late is recorded as a stall of the machine, and blocks that travelled
//! during a stall are left out where propagation is compared.

mod account;
pub mod checks;
pub mod clocks;
pub mod commands;
pub(crate) mod counters;
mod discovery;
mod dns;
mod error;
mod file;
pub mod hostile;
mod l1;
mod link_threads;
mod links;
mod load;
mod logs;
pub(crate) mod measured;
mod mounts;
mod movable;
mod network;
mod network_key;
mod other_chain;
pub mod plan;
mod process;
pub mod report;
mod rpc;
mod run;
mod run_report;
pub mod scenario;
mod topology;
pub(crate) mod usage;
mod validate;
mod watch;

pub use error::{LabError, LabFileError};
pub use links::LabBackend;
pub use run::{LabSettings, run};
pub use scenario::{LabScenario, LabVerb, NodeVerb};
pub use topology::LabRole;
