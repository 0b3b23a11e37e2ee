//! The driver's heads, as `optimism_syncStatus` reports them beside the core's unsafe head.
//!
//! The driver publishes them after every change; JSON-RPC reads them without waiting for the driver.

use crate::rollup::l1::L1Block;
use starling_proto::l1info::L2BlockRef;

/// Heads of L1, and the derived heads of L2. `None` if the head is not known. While a reset searches
/// for the start, the safe and finalized heads are those that the core had before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RollupStatus {
    /// The L1 block up to which everything has been derived; `None` during a reset.
    pub current_l1: Option<L1Block>,
    pub head_l1: Option<L1Block>,
    pub safe_l1: Option<L1Block>,
    pub finalized_l1: Option<L1Block>,
    /// The newest block whose batch has been read, also where the rest of its span batch has not.
    pub pending_safe_l2: Option<L2BlockRef>,
    /// Derived with the rest of its batch; it becomes safe when its L1 block is derived to the end.
    pub local_safe_l2: Option<L2BlockRef>,
    /// Recorded: a restart does not go below it.
    pub safe_l2: Option<L2BlockRef>,
    pub finalized_l2: Option<L2BlockRef>,
}
