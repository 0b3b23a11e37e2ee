//! Windows of a linked gap that are not requested from any peer: those above the frontier, which
//! have not been requested yet, and holes below it, whose requests ended before all blocks had
//! arrived.

use super::requests::{BlockWindow, InFlight};
use crate::sync::gap::Gap;
use std::collections::BTreeSet;

#[derive(Debug, Default)]
pub(super) struct Windows {
    /// The lowest number from which on no block of the gap's skeleton has been requested in a
    /// window.
    frontier: u64,
    /// The holes below the frontier, as pairs of first and last number.
    holes: BTreeSet<(u64, u64)>,
}

impl Windows {
    pub fn clear(&mut self) {
        self.holes.clear();
        self.frontier = 0;
    }

    /// Records that the rest of a window is not requested any more.
    pub fn put_back(&mut self, window: BlockWindow) {
        self.holes.insert((window.next, window.last));
    }

    /// Removes the windows above `number`, where the skeleton has other hashes now.
    pub fn cut(&mut self, number: u64) {
        let holes = std::mem::take(&mut self.holes);
        self.holes = holes
            .into_iter()
            .filter(|(first, _)| *first <= number)
            .map(|(first, last)| (first, last.min(number)))
            .collect();
        self.frontier = self.frontier.min(number + 1);
    }

    /// Whether the gap's lowest block is missing and begins the run that [`Windows::next`] returns.
    /// No block can be handed over before the lowest block arrives.
    pub fn is_urgent(&self, gap: &Gap) -> bool {
        let first = self.holes.first().map_or(self.frontier, |hole| hole.0);
        first <= gap.low() && !gap.bodies().contains(gap.low())
    }

    /// Removes holes below the gap, and adds the hole at its bottom if it is neither requested nor
    /// listed. Its bodies were evicted, or came from another source and were wrong.
    pub fn repair<'a>(&mut self, gap: &Gap, requests: impl Iterator<Item = &'a InFlight>) {
        let low = gap.low();
        while let Some(hole) = self.holes.first().copied()
            && hole.1 < low
        {
            self.holes.remove(&hole);
        }
        self.frontier = self.frontier.max(low);
        if self.frontier == low || self.is_urgent(gap) || gap.bodies().contains(low) {
            return;
        }
        let mut end = gap.bodies().next_from(low).unwrap_or(u64::MAX);
        for window in requests.filter_map(InFlight::window) {
            if (window.next..=window.last).contains(&low) {
                return;
            }
            if window.next > low {
                end = end.min(window.next);
            }
        }
        self.holes.insert((low, end.min(self.frontier) - 1));
    }

    /// The lowest run of blocks that is not requested, at most `count` blocks.
    pub fn next(&mut self, gap: &Gap, count: u64) -> Option<(u64, u64)> {
        if let Some(hole) = self.holes.first() {
            let first = hole.0.max(gap.low());
            return Some((first, hole.1.min(first + count - 1)));
        }
        while gap.bodies().contains(self.frontier) {
            self.frontier += 1;
        }
        let (first, top) = (self.frontier, gap.top().number);
        (first <= top).then(|| (first, top.min(first + count - 1)))
    }

    /// Marks the blocks up to `last` of the run that [`Windows::next`] returned as requested.
    pub fn take(&mut self, last: u64) {
        match self.holes.pop_first() {
            Some((_, end)) if end > last => drop(self.holes.insert((last + 1, end))),
            Some(_) => {}
            None => self.frontier = last + 1,
        }
    }
}
