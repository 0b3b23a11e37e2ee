//! The block that `pending` refers to: the latest block, a block built of the pool's transactions
//! ([`built`]), or the newest flashblock of the sequencer ([`flashblocks`]).
//!
//! JSON-RPC requests a view whenever a call names `pending`. To limit the load, many requests share
//! one built block for [`built::KEPT`]. Flashblocks are executed one after another, and at most two
//! messages are read ahead.

pub mod built;
pub mod flashblocks;

use crate::chain::{memory_only, pool::Pool, rules::ChainSpec, view::View};
use built::BuiltPending;
use flashblocks::NewestFlashblock;
use std::{sync::Arc, time::Instant};

/// The source of the block `pending`.
#[derive(Default)]
pub enum Pending {
    /// The latest block serves as `pending`.
    #[default]
    Latest,
    /// A block built of the pool's transactions on the latest block
    /// (`--rollup.computependingblock`).
    Built(BuiltPending),
    /// The newest flashblock (`--flashblocks-url`).
    Flashblocks(Arc<NewestFlashblock>),
}

impl Pending {
    /// The view whose head is the pending block; `None` if there is none on this head. The latest
    /// block is served instead then.
    pub fn on(&self, spec: &Arc<ChainSpec>, pool: &Pool, head: &Arc<View>) -> Option<Arc<View>> {
        match self {
            Self::Latest => None,
            // Building takes long, and another request may be building.
            Self::Built(_) if memory_only::refuses() => None,
            Self::Built(built) => built.on(spec, pool, head, Instant::now()),
            Self::Flashblocks(newest) => newest.on(head, Instant::now()),
        }
    }

    /// The view with the newest flashblock on this head. Its transactions count as mined. A block
    /// built by this node is only an estimate and is never returned here.
    pub fn published(&self, head: &View) -> Option<Arc<View>> {
        match self {
            Self::Flashblocks(newest) => newest.on(head, Instant::now()),
            Self::Latest | Self::Built(_) => None,
        }
    }

    /// Whether the pending block is an estimate by this node. The next block will usually have
    /// another hash.
    pub fn is_guess(&self) -> bool {
        matches!(self, Self::Built(_))
    }

    /// Whether the pending block comes from flashblocks.
    pub fn has_flashblocks(&self) -> bool {
        matches!(self, Self::Flashblocks(_))
    }
}
