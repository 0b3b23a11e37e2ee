//! The driver's heads, as `optimism_syncStatus` reports them together with the core's unsafe head.
//!
//! The driver publishes its heads after every change. JSON-RPC reads them without waiting for the
//! driver.

use crate::rollup::l1::L1Block;
use starling_proto::l1info::L2BlockRef;

/// Heads of L1 and derived heads of L2. An unknown head is `None`. While a reset searches for the
/// start, the safe and finalized heads are those of the core and the records before the reset.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RollupStatus {
    /// The newest L1 block from which all data has been derived; `None` during a reset.
    pub current_l1: Option<L1Block>,
    pub head_l1: Option<L1Block>,
    pub safe_l1: Option<L1Block>,
    pub finalized_l1: Option<L1Block>,
    /// The newest derived block, even if the rest of its span batch is not derived yet.
    pub pending_safe_l2: Option<L2BlockRef>,
    /// The newest derived block whose batch is complete.
    pub local_safe_l2: Option<L2BlockRef>,
    /// The newest local-safe block that is recorded together with the L1 block that made it safe. A
    /// restart continues from this block.
    pub safe_l2: Option<L2BlockRef>,
    pub finalized_l2: Option<L2BlockRef>,
}
