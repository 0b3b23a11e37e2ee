//! The rollup side of the node: L1, the safe chain that is derived from it, and block production on
//! the sequencer. It knows no libp2p and no EVM: blocks go to the core and to the swarm through
//! their handles.
//!
//! The execution core
//! - [`engine`]: the handle through which everything here uses it, in this process or in another.
//! - [`l2_response`]: reads blocks that an execution client answers.
//!
//! L1
//! - [`l1`]: reads blocks, receipts and storage, all verified.
//! - [`beacon`]: reads blobs.
//! - [`blob_schedule`]: finds L1's schedule of blob fees, built in or in a file.
//!
//! Derivation
//! - [`driver`]: derives the safe chain and moves the heads.
//! - [`safe_db`]: records which L1 block made which L2 block safe.
//! - [`finality`]: decides which safe block is final.
//! - [`status`], [`handle`], [`metrics`], [`rpc_calls`]: what operators, JSON-RPC and Prometheus read.
//! - [`output`]: output roots of its blocks.
//!
//! Sequencing
//! - [`sequencer`]: makes blocks on time.
//! - [`origin`]: chooses the L1 origin of a new block.
//! - [`head_search`]: searches the head after an L1 reorg, by a [`gallop`] search.
//!
//! Keys
//! - [`signer`]: signs blocks; [`signing_log`] records what may be signed.
//! - [`unsafe_signer`]: reads the block signer from L1.

pub mod beacon;
pub mod blob_schedule;
pub mod driver;
pub mod engine;
pub mod finality;
mod gallop;
pub mod handle;
pub mod head_search;
mod http;
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
