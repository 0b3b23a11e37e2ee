//! The block that `pending` means: the latest one, one that is built of the pool's transactions
//! ([`built`]), or the newest flashblock of the sequencer ([`flashblocks`]).
//!
//! JSON-RPC asks for a view whenever a request names `pending`. What can overload it: many requests
//! share one built block for [`built::KEPT`], and flashblocks are executed one after another while the
//! socket waits.

pub mod built;
pub mod flashblocks;

use crate::chain::{pool::Pool, rules::ChainSpec, view::View};
use built::BuiltPending;
use flashblocks::NewestFlashblock;
use std::{sync::Arc, time::Instant};

/// The source of the block `pending`.
#[derive(Default)]
pub enum Pending {
    /// The latest block.
    #[default]
    Latest,
    /// A block of the pool's transactions on the latest one (`--rollup.computependingblock`).
    Built(BuiltPending),
    /// The newest flashblock (`--flashblocks-url`).
    Flashblocks(Arc<NewestFlashblock>),
}

impl Pending {
    /// The view whose head is the pending block; `None` if there is none on this head, so that the
    /// latest block takes its place.
    pub fn on(&self, spec: &Arc<ChainSpec>, pool: &Pool, head: &Arc<View>) -> Option<Arc<View>> {
        match self {
            Self::Latest => None,
            Self::Built(built) => built.on(spec, pool, head, Instant::now()),
            Self::Flashblocks(newest) => newest.on(head, Instant::now()),
        }
    }

    /// The view with the newest flashblock on this head: transactions in it are as good as mined. A
    /// block that is built here is a guess and is never returned.
    pub fn published(&self, head: &View) -> Option<Arc<View>> {
        match self {
            Self::Flashblocks(newest) => newest.on(head, Instant::now()),
            Self::Latest | Self::Built(_) => None,
        }
    }

    /// Whether the pending block is a guess of this node, whose hash no block will have.
    pub fn is_guess(&self) -> bool {
        matches!(self, Self::Built(_))
    }

    /// Whether flashblocks are read.
    pub fn has_flashblocks(&self) -> bool {
        matches!(self, Self::Flashblocks(_))
    }
}
