//! The batcher: posts the sequencer's blocks on L1, so that they become safe (op-batcher).
//!
//! **Parties.** The rollup node reports its heads, which show the blocks that are not safe yet. The
//! batcher loads these blocks, encodes them as channels, and passes the channels' frames to the
//! transaction manager ([`crate::txmgr`]), which reports the L1 blocks that include them. The
//! batcher drops a block once the safe head has passed it. It stores nothing on disk, so a new
//! process begins at the safe head.
//!
//! **Modules.** Pure: [`sync_actions`] decides what a status of the rollup node changes, [`blocks`]
//! keeps the blocks above the safe head, [`channels`] the progress of each channel on L1,
//! [`availability`] compares the prices of calldata and blobs, [`spending`] sums costs, [`sender`]
//! checks the key's account, and [`state`] combines the first three into one state machine. With
//! I/O: [`task`] is the main loop, [`handle`] is the API for the RPC and the process, [`node_sync`]
//! waits for a rollup node that is behind, and [`throttle`] limits the sequencer's blocks.
//!
//! **Load.** A backlog costs about 60 bytes per block, because only the blocks to be encoded next
//! have their bodies in memory. `--max-pending-tx` bounds the data in flight to L1. If L1 includes
//! less data than the sequencer produces, the backlog grows, and throttling makes the sequencer's
//! blocks smaller.

pub mod availability;
pub mod blocks;
pub mod channels;
pub mod handle;
mod metrics;
pub mod node_sync;
pub mod options;
pub mod sender;
pub mod spending;
pub mod state;
pub mod sync_actions;
pub mod task;
pub mod throttle;

#[cfg(test)]
mod testing;
