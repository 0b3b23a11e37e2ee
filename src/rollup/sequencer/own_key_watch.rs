//! The own-key watch. A block with our key's signature that was not built here is either a late
//! block of the previous leader, or a block of a second active sequencer.
//!
//! In a high-availability set-up all sequencers share the key, so the last blocks of a stopped
//! leader may arrive after this sequencer took over. Only a block that cannot be from the stopped
//! leader stops sequencing. Pure.

use alloy_primitives::B256;
use starling_proto::payload::Payload;
use std::{collections::VecDeque, fmt};

/// Margin in seconds: a block with a timestamp later than this after our start was built after our
/// start. A leader that stopped before our start has no block more than 5 s ahead of its clock,
/// since peers accept none. The other 5 s allow for a difference between the clocks.
pub(super) const MARGIN: u64 = 10;
/// Number of own blocks remembered. Gossip accepts only blocks of the last 60 s, which are at most
/// 60 blocks.
const REMEMBERED: usize = 128;

/// One period of sequencing, from a start to a stop, with the data that reveals a second sequencer.
#[derive(Debug, Default)]
pub(super) struct SequencingPeriod {
    /// Start of the period in Unix seconds.
    started: u64,
    /// The newest blocks that this sequencer has published in the period.
    published: VecDeque<B256>,
    /// Whether a late block of the previous leader has been logged.
    late_block_logged: bool,
}

/// Evidence that a second sequencer is active.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Evidence {
    /// The block builds on a block that was built here since the start.
    BuiltOnOurs,
    /// The block's timestamp is this many seconds after the start.
    MadeAfterStart(u64),
}

impl SequencingPeriod {
    pub(super) fn new(started: u64) -> Self {
        Self {
            started,
            ..Self::default()
        }
    }

    /// Records a block that was published here.
    pub(super) fn on_published(&mut self, hash: B256) {
        if self.published.len() == REMEMBERED {
            self.published.pop_front();
        }
        self.published.push_back(hash);
    }

    /// Evidence of a second sequencer in a block with our key's signature that was not built here.
    /// `None` if the previous leader may have built the block.
    pub(super) fn evidence_against(&self, block: &Payload) -> Option<Evidence> {
        if self.published.contains(&block.parent_hash()) {
            return Some(Evidence::BuiltOnOurs);
        }
        let after = block.timestamp().saturating_sub(self.started);
        (after > MARGIN).then_some(Evidence::MadeAfterStart(after))
    }

    /// Whether this is the first late block since the start.
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
