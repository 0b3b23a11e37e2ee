//! Handles to the rollup node's parts, for JSON-RPC and for a batcher or proposer in the same
//! process. Calls are not queued here: reads use the core and the safe-head records, and several
//! pending reset requests to the driver count as one.

use crate::rollup::{driver::DriverHandle, engine::Engine, safe_db::SafeDb};
use starling_proto::config::RollupConfig;
use std::sync::Arc;

/// The parts of the rollup node that JSON-RPC reads from.
#[derive(Clone)]
pub struct RollupHandle {
    pub config: Arc<RollupConfig>,
    pub driver: DriverHandle,
    /// The core, for blocks and output roots.
    pub engine: Engine,
    /// The records of safe heads; `None` without `--safedb.path`.
    pub safe_db: Option<SafeDb>,
    /// Whether to read the message passer's storage root from the state even if the block header
    /// contains it (`--fetch-withdrawal-root-from-state`).
    pub withdrawal_root_from_state: bool,
}
