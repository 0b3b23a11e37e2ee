//! Progress of a channel's frames: made, taken for a transaction, in flight, included.

use std::collections::BTreeSet;

/// Consecutive frames of a channel, which one transaction carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FrameRange {
    /// Number of the first frame.
    pub begin: usize,
    /// One more than the number of the last frame.
    pub end: usize,
}

impl FrameRange {
    /// The frames' positions in the list of all frames of the channel.
    pub fn indices(self) -> std::ops::Range<usize> {
        self.begin..self.end
    }
}

/// Frames of a channel that are sent, and the L1 blocks that include them.
#[derive(Clone, Debug, Default)]
pub struct FrameProgress {
    /// Number of the next frame to send.
    next: usize,
    in_flight: BTreeSet<FrameRange>,
    /// Numbers of the first and the last L1 block that include frames.
    included: Option<Inclusion>,
}

#[derive(Clone, Copy, Debug)]
struct Inclusion {
    first: u64,
    last: u64,
}

impl FrameProgress {
    /// Takes the frames for the next transaction. The channel has `made` frames so far. A
    /// transaction carries `size` frames. Only the last transaction of a closed channel carries
    /// fewer.
    pub fn take(&mut self, made: usize, size: usize, is_closed: bool) -> Option<FrameRange> {
        let taken = made.saturating_sub(self.next).min(size);
        if taken == 0 || (taken < size && !is_closed) {
            return None;
        }
        let begin = self.next;
        self.next += taken;
        let range = FrameRange {
            begin,
            end: self.next,
        };
        self.in_flight.insert(range);
        Some(range)
    }

    /// The transaction with these frames failed. These frames and all later ones are sent again,
    /// since frames must arrive in order. No effect if the frames are not in flight.
    pub fn on_failure(&mut self, range: FrameRange) {
        if self.in_flight.remove(&range) {
            self.next = self.next.min(range.begin);
        }
    }

    /// The transaction with these frames was included in L1 block number `l1_block`. No effect if
    /// the frames are not in flight.
    pub fn on_inclusion(&mut self, range: FrameRange, l1_block: u64) {
        if !self.in_flight.remove(&range) {
            return;
        }
        let before = self.included.unwrap_or(Inclusion {
            first: l1_block,
            last: l1_block,
        });
        self.included = Some(Inclusion {
            first: before.first.min(l1_block),
            last: before.last.max(l1_block),
        });
    }

    /// Number of the first L1 block that includes frames of the channel.
    pub fn first_inclusion(&self) -> Option<u64> {
        self.included.map(|included| included.first)
    }

    /// Number of the last L1 block that includes frames of the channel.
    pub fn last_inclusion(&self) -> Option<u64> {
        self.included.map(|included| included.last)
    }

    /// Whether the L1 blocks with frames are so far apart that readers drop the channel.
    pub fn is_timed_out(&self, channel_timeout: u64) -> bool {
        self.included
            .is_some_and(|included| included.last - included.first >= channel_timeout)
    }

    /// Whether no frame is in flight or included.
    pub fn is_untouched(&self) -> bool {
        self.in_flight.is_empty() && self.included.is_none()
    }

    /// Whether all `made` frames of a closed channel are included.
    pub fn is_complete(&self, made: usize) -> bool {
        self.in_flight.is_empty() && self.next >= made
    }
}
