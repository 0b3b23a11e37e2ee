//! Flashblocks: parts of the block that the sequencer is building, published a few times a second.
//!
//! [`frame`] decodes them, [`sequence`] puts the parts of one block in order, [`open_block`]
//! executes them on the parent's state, and [`stream`] receives them from a WebSocket. JSON-RPC
//! reads the result from [`NewestFlashblock`]. After a gap, an invalid part, a part of another
//! chain, or silence there is no pending block until the next block begins.

mod frame;
mod open_block;
mod sequence;
mod stream;
#[cfg(test)]
mod tests;

pub use frame::{Flashblock, FlashblockFrameError};
pub use sequence::{Assembler, FlashblockArrival, FlashblockSequence, SequenceError};
pub use stream::{FlashblockWorker, StreamError, run};

use crate::chain::view::View;
use arc_swap::ArcSwapOption;
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

/// Time without flashblocks after which the newest one is no longer the pending block. It is longer
/// than the delay of a block that is published late, but shorter than users wait.
const SILENCE: Duration = Duration::from_secs(5);
/// Maximum number of blocks by which a flashblock may be above our head. A node that follows its
/// chain is less far behind.
const MAX_AHEAD: u64 = 64;

/// The newest flashblock, as a view on its parent's state.
#[derive(Default)]
pub struct NewestFlashblock(ArcSwapOption<PublishedFlashblock>);

struct PublishedFlashblock {
    view: Arc<View>,
    at: Instant,
}

impl NewestFlashblock {
    /// The view with the newest flashblock, if it is recent and builds on this head.
    pub fn on(&self, head: &View, now: Instant) -> Option<Arc<View>> {
        let newest = self.0.load_full()?;
        let (pending, head) = (newest.view.head(), head.head());
        let ahead = pending.number.checked_sub(head.number)?;
        let fresh = now.saturating_duration_since(newest.at) < SILENCE;
        if !fresh || !(1..=MAX_AHEAD).contains(&ahead) {
            return None;
        }
        let shared = newest.view.hash_of(head.number).ok().flatten();
        (shared == Some(head.hash)).then(|| newest.view.clone())
    }

    /// The view on which to execute a block with the parent `hash`: our head, or a pending block on
    /// our head.
    fn parent(
        &self,
        head: &Arc<View>,
        hash: alloy_primitives::B256,
        now: Instant,
    ) -> Option<Arc<View>> {
        if head.head().hash == hash {
            return Some(head.clone());
        }
        let pending = self.on(head, now)?;
        let room = pending.head().number - head.head().number < MAX_AHEAD;
        (room && pending.head().hash == hash).then_some(pending)
    }

    fn publish(&self, view: Arc<View>, at: Instant) {
        self.0
            .store(Some(Arc::new(PublishedFlashblock { view, at })));
    }

    fn clear(&self) {
        self.0.store(None);
    }
}
