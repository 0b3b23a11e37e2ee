//! Blocks that carry our key's signature and were not made here: of a leader that is gone, or of a second sequencer that lives.
//!
//! In a high-availability set-up all sequencers share the key, so the last blocks of the dead leader may arrive after this one took
//! over. Only a block that cannot be such a one stops us. Pure.

use alloy_primitives::B256;
use starling_proto::payload::Payload;
use std::{collections::VecDeque, fmt};

/// Seconds after our start from which a block's time proves that its maker was alive after our start. A leader that died before has
/// made no block whose time is more than 5 s ahead of its clock, since peers accept none; the other 5 s are for clocks that disagree.
pub(super) const MARGIN: u64 = 10;
/// Own blocks that are remembered. Gossip brings blocks of the last 60 s, which are at most 60 blocks.
const REMEMBERED: usize = 128;

/// One period of sequencing, from a start to a stop.
#[derive(Debug, Default)]
pub(super) struct Term {
    /// Unix seconds.
    started: u64,
    /// The newest blocks that were published here since the start.
    made: VecDeque<B256>,
    /// A block of the leader before has been reported.
    late: bool,
}

/// What proves that a second sequencer lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Evidence {
    /// It built on a block that was made here since the start.
    BuiltOnOurs,
    /// The block's time is this many seconds after the start.
    MadeAfterStart(u64),
}

impl Term {
    pub(super) fn new(started: u64) -> Self {
        Self { started, ..Self::default() }
    }

    /// A block was published here.
    pub(super) fn made(&mut self, hash: B256) {
        if self.made.len() == REMEMBERED {
            self.made.pop_front();
        }
        self.made.push_back(hash);
    }

    /// Judges a block by our key that was not made here. `None`: it may be of a leader that is gone.
    pub(super) fn judge(&self, block: &Payload) -> Option<Evidence> {
        if self.made.contains(&block.parent_hash()) {
            return Some(Evidence::BuiltOnOurs);
        }
        let after = block.timestamp().saturating_sub(self.started);
        (after > MARGIN).then_some(Evidence::MadeAfterStart(after))
    }

    /// Whether a late block is the first since the start.
    pub(super) fn first_late(&mut self) -> bool {
        !std::mem::replace(&mut self.late, true)
    }
}

impl fmt::Display for Evidence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BuiltOnOurs => write!(f, "it is built on a block that was made here"),
            Self::MadeAfterStart(after) => write!(f, "its time is {after} s after this sequencer's start"),
        }
    }
}

#[cfg(test)]
mod tests;
