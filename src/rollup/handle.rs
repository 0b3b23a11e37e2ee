//! Handles on the rollup node's parts, for JSON-RPC and for a proposer in the same process. Nothing here
//! queues: reads go to the core and the file of safe heads, a reset to the driver, which keeps the newest.

use crate::rollup::{driver::DriverHandle, engine::Engine, safe_db::SafeDb};
use starling_proto::config::RollupConfig;
use std::sync::Arc;

/// The parts of the rollup node that JSON-RPC answers from.
#[derive(Clone)]
pub struct RollupHandle {
    pub config: Arc<RollupConfig>,
    pub driver: DriverHandle,
    /// The core, for blocks and outputs.
    pub engine: Engine,
    /// With `--safedb.path`.
    pub safe_db: Option<SafeDb>,
    /// Reads the storage of the message passer also where the header has its root
    /// (`--fetch-withdrawal-root-from-state`).
    pub withdrawal_root_from_state: bool,
}
