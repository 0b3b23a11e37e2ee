//! The event queue of a world: events by time, and in the order of their insertion at one time.

use std::{cmp::Reverse, collections::BinaryHeap, time::Duration};

/// Microseconds of virtual time since the start of a world.
pub type SimTime = u64;

pub const MILLISECOND: SimTime = 1_000;
pub const SECOND: SimTime = 1_000_000;

/// The virtual time of a duration, rounded up, so that a timer never fires early.
pub fn sim_time(duration: Duration) -> SimTime {
    u64::try_from(duration.as_nanos().div_ceil(1_000)).unwrap_or(SimTime::MAX)
}

struct Queued<E> {
    key: Reverse<(SimTime, u64)>,
    event: E,
}

impl<E> PartialEq for Queued<E> {
    fn eq(&self, other: &Self) -> bool {
        self.key == other.key
    }
}

impl<E> Eq for Queued<E> {}

impl<E> PartialOrd for Queued<E> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> Ord for Queued<E> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.key.cmp(&other.key)
    }
}

/// Events that wait for their time.
pub struct EventQueue<E> {
    heap: BinaryHeap<Queued<E>>,
    inserted: u64,
}

impl<E> EventQueue<E> {
    pub fn new() -> Self {
        Self {
            heap: BinaryHeap::new(),
            inserted: 0,
        }
    }

    pub fn push(&mut self, at: SimTime, event: E) {
        self.inserted += 1;
        let key = Reverse((at, self.inserted));
        self.heap.push(Queued { key, event });
    }

    /// The next event, if it is due before `end`.
    pub fn pop(&mut self, end: SimTime) -> Option<(SimTime, E)> {
        let at = self.heap.peek()?.key.0.0;
        if at >= end {
            return None;
        }
        self.heap.pop().map(|queued| (at, queued.event))
    }
}
