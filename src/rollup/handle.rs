//! The rollup node as JSON-RPC sees it.

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
    pub records: Option<SafeDb>,
    /// Reads the storage of the message passer also where the header has its root
    /// (`--fetch-withdrawal-root-from-state`).
    pub withdrawal_root_from_state: bool,
}
