//! The rollup side of the node: L1, the safe chain that is derived from it, and block production on
//! the sequencer.
//!
//! [`engine`] is the seam to the execution core. [`l1`] reads L1, [`beacon`] its blobs, [`l1_config`]
//! has its blob fee schedule. [`driver`] derives, [`safe_db`]
//! records which L1 block made which L2 block safe, [`finality`] decides which block is final,
//! [`status`] is what operators read, [`handle`] what JSON-RPC answers from,
//! [`metrics`] what is measured. [`origin`] chooses the L1 origin of a new L2 block, [`sequencer`] makes blocks on time, [`rewind`] searches the head after an L1 reorg, [`signer`] signs blocks,
//! [`signing_log`] records what may be signed, and [`unsafe_signer`] reads the block signer from L1.
//! This room knows no libp2p and no EVM: blocks go to the core and to the
//! swarm through their handles.

pub mod beacon;
pub mod driver;
pub mod engine;
pub mod finality;
pub mod handle;
mod http;
pub mod l1;
pub mod l1_config;
pub mod metrics;
pub mod origin;
pub mod rewind;
pub mod safe_db;
pub mod sequencer;
pub mod signer;
pub mod signing_log;
pub mod status;
pub mod unsafe_signer;

#[cfg(test)]
pub(crate) use http::fake as http_fake;
