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
    /// The newest block that is derived with the rest of its batch.
    pub local_safe_l2: Option<L2BlockRef>,
    /// The newest local-safe block that is recorded with the L1 block that made it safe: a restart goes
    /// on there.
    pub safe_l2: Option<L2BlockRef>,
    pub finalized_l2: Option<L2BlockRef>,
}
