//! The rollup side of the node: reads L1, derives the safe chain from it, and builds blocks on the
//! sequencer. Nothing here knows libp2p or the EVM: blocks reach the core and the swarm through
//! their handles.
//!
//! The execution core
//! - [`engine`]: the handle through which all code here uses a core, in this process or in another.
//! - [`l2_response`]: parses blocks in responses of an execution client.
//!
//! L1
//! - [`l1`]: reads blocks, receipts and storage, verified unless the endpoint is trusted.
//! - [`beacon`]: reads blobs.
//! - [`blob_schedule`]: finds L1's schedule of blob fees, built in or in a file.
//!
//! Derivation
//! - [`driver`]: derives the safe chain and moves the heads.
//! - [`safe_db`]: records which L1 block made which L2 block safe.
//! - [`finality`]: decides which safe block is final.
//! - [`status`], [`handle`], [`metrics`], [`rpc_calls`]: status and calls for operators, JSON-RPC
//!   and Prometheus.
//! - [`output`]: output roots of L2 blocks.
//!
//! Sequencing
//! - [`sequencer`]: makes blocks on time.
//! - [`origin`]: chooses the L1 origin of a new block.
//! - [`head_search`]: finds the head to keep after an L1 reorg, by a [`gallop`] search.
//!
//! Keys
//! - [`signer`]: signs blocks; [`signing_log`] records blocks before they are signed.
//! - [`unsafe_signer`]: reads the block signer's address from L1.

pub mod beacon;
pub mod blob_schedule;
pub mod driver;
pub mod engine;
pub mod finality;
mod gallop;
pub mod handle;
pub mod head_search;
pub mod http;
pub mod l1;
pub mod l2_response;
pub mod metrics;
pub mod origin;
pub mod output;
pub mod rpc_calls;
pub mod safe_db;
pub mod sequencer;
pub mod signer;
pub mod signing_log;
pub mod status;
pub mod unsafe_signer;

#[cfg(test)]
pub(crate) use http::fake as http_fake;
