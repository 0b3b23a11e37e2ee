//! The own-key watch: blocks that carry our key's signature and were not made here are late blocks
//! of the previous leader, or blocks of a second active sequencer.
//!
//! In a high-availability set-up all sequencers share the key, so the last blocks of a stopped
//! leader may arrive after this one took over. Only a block that cannot be one of those stops
//! sequencing. Pure.

use alloy_primitives::B256;
use starling_proto::payload::Payload;
use std::{collections::VecDeque, fmt};

/// A block whose time is more than this many seconds after our start was made after our start. A
/// block of a leader that stopped before is at most 5 s ahead of its clock, since peers accept no
/// others; the other 5 s allow for clocks that disagree.
pub(super) const MARGIN: u64 = 10;
/// Own blocks that are remembered. Gossip accepts blocks of the last 60 s, which are at most 60
/// blocks.
const REMEMBERED: usize = 128;

/// One period of sequencing, from a start to a stop, and the evidence in it.
#[derive(Debug, Default)]
pub(super) struct SequencingPeriod {
    /// Start of the period, Unix seconds.
    started: u64,
    /// The newest blocks that were published here since the start.
    published: VecDeque<B256>,
    /// Whether a late block of the previous leader has been logged.
    late_block_logged: bool,
}

/// Evidence that a second sequencer is active.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Evidence {
    /// The block builds on one that was made here since the start.
    BuiltOnOurs,
    /// The block's time is this many seconds after the start.
    MadeAfterStart(u64),
}

impl SequencingPeriod {
    pub(super) fn new(started: u64) -> Self {
        Self {
            started,
            ..Self::default()
        }
    }

    /// A block was published here.
    pub(super) fn on_published(&mut self, hash: B256) {
        if self.published.len() == REMEMBERED {
            self.published.pop_front();
        }
        self.published.push_back(hash);
    }

    /// Evidence in a block with our key's signature that was not made here. `None`: the previous
    /// leader may have made it.
    pub(super) fn evidence_against(&self, block: &Payload) -> Option<Evidence> {
        if self.published.contains(&block.parent_hash()) {
            return Some(Evidence::BuiltOnOurs);
        }
        let after = block.timestamp().saturating_sub(self.started);
        (after > MARGIN).then_some(Evidence::MadeAfterStart(after))
    }

    /// Whether this late block is the first since the start.
    pub(super) fn is_first_late_block(&mut self) -> bool {
        !std::mem::replace(&mut self.late_block_logged, true)
    }
}

impl fmt::Display for Evidence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BuiltOnOurs => write!(f, "it is built on a block that was made here"),
            Self::MadeAfterStart(after) => {
                write!(f, "its time is {after} s after this sequencer's start")
            }
        }
    }
}

#[cfg(test)]
mod tests;
