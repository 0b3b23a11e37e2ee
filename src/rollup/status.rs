//! The state of the rollup node, as `optimism_syncStatus` reports it.
//!
//! The driver publishes it after every change; JSON-RPC reads it without waiting for the driver.

use crate::rollup::l1::L1Block;
use starling_proto::l1info::L2BlockRef;

/// Heads of L1 and L2. `None` until the first reset of derivation is complete, or the head is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RollupStatus {
    /// The L1 block up to which everything has been derived.
    pub current_l1: Option<L1Block>,
    pub head_l1: Option<L1Block>,
    pub safe_l1: Option<L1Block>,
    pub finalized_l1: Option<L1Block>,
    pub unsafe_l2: Option<L2BlockRef>,
    /// The newest block whose batch has been read, also where the rest of its span batch has not.
    pub pending_safe_l2: Option<L2BlockRef>,
    pub safe_l2: Option<L2BlockRef>,
    pub finalized_l2: Option<L2BlockRef>,
}
