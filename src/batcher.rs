//! The batcher: posts the blocks of the sequencer on L1, so that they become safe (op-batcher).
//!
//! **Parties.** The rollup node's heads say which blocks are not safe yet; the batcher loads them,
//! encodes them as channels, and hands their frames to the transaction manager
//! ([`crate::txmgr`]), which reports where L1 has included them. When the safe head has passed the
//! blocks they are forgotten. Nothing is kept on disk, so a new process begins at the safe head.
//!
//! **Modules.** [`sync_actions`] decides what a status of the rollup node changes, [`blocks`] holds the
//! blocks above the safe head, [`channels`] the progress of each channel on L1, [`availability`] compares
//! the prices of calldata and blobs, [`spending`] sums costs; [`state`] combines sync actions,
//! blocks, channels and availability into one state machine. These are pure. [`task`] is the loop with the I/O, [`handle`] what RPC and process
//! call, [`node_sync`] the wait for a rollup node behind; [`throttle`] limits the sequencer's blocks.
//!
//! **Load.** A backlog costs some dozen bytes per block, because only the blocks that are encoded
//! next have their bodies in memory; data on the way to L1 are bounded by `--max-pending-tx`. If L1
//! takes less than the sequencer makes, the backlog grows, which throttling answers.

pub mod availability;
pub mod blocks;
pub mod channels;
pub mod handle;
mod metrics;
pub mod node_sync;
pub mod options;
pub mod spending;
pub mod state;
pub mod sync_actions;
pub mod task;
pub mod throttle;

#[cfg(test)]
mod testing;
