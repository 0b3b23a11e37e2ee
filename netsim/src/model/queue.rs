//! The queue of future events, in the order of time; of several at one time, in the order in which
//! they were added. Both are numbers, so a seed gives one history.

use std::{cmp::Reverse, collections::BinaryHeap};

/// An event of the model. `node` is the node at which it occurs, and `entry` the connection in that
/// node's row over which it came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ModelEvent {
    Publish {
        block: u32,
    },
    /// The last byte of a copy is at the receiver's access line.
    Reach {
        entry: u32,
        block: u32,
        hop: u8,
    },
    /// A copy was received.
    Copy {
        entry: u32,
        block: u32,
        hop: u8,
    },
    /// The check of a block has ended.
    Checked {
        block: u32,
        hop: u8,
    },
    Graft {
        entry: u32,
    },
    Prune {
        entry: u32,
    },
    Announce {
        entry: u32,
        block: u32,
    },
    Request {
        entry: u32,
        block: u32,
    },
    /// A joining node starts.
    Start,
    /// The handshake of a joining node's connection has ended.
    Opened {
        entry: u32,
    },
    /// A request of headers or blocks is at the server.
    Serve {
        entry: u32,
        window: u32,
    },
    /// The next piece of a response may enter the server's access line.
    Piece {
        entry: u32,
        window: u32,
        left: u32,
    },
    /// A piece of a response is at the receiver's access line; `left` bytes follow.
    Arrive {
        entry: u32,
        window: u32,
        left: u32,
    },
    /// A response is complete.
    Complete {
        entry: u32,
        window: u32,
    },
    /// A gossiped block is the head; the work that it causes afterwards begins.
    Adopted,
    /// The blocks that were imported so far are executed.
    Imported,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct QueuedEvent {
    /// Nanoseconds since the start of the run.
    at: u64,
    number: u32,
    node: u32,
    event: ModelEvent,
}

#[derive(Default)]
pub(super) struct ModelQueue {
    heap: BinaryHeap<Reverse<QueuedEvent>>,
    added: u32,
}

impl ModelQueue {
    pub fn push(&mut self, at: u64, node: u32, event: ModelEvent) {
        let number = self.added;
        self.added = self.added.wrapping_add(1);
        self.heap.push(Reverse(QueuedEvent {
            at,
            number,
            node,
            event,
        }));
    }

    /// Time of the next event.
    pub fn next_at(&self) -> Option<u64> {
        self.heap.peek().map(|queued| queued.0.at)
    }

    pub fn pop(&mut self) -> Option<(u64, u32, ModelEvent)> {
        let Reverse(queued) = self.heap.pop()?;
        Some((queued.at, queued.node, queued.event))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_in_the_order_of_time_and_then_of_addition() {
        let mut queue = ModelQueue::default();
        for (at, node) in [(5, 1), (3, 2), (5, 3), (1, 4), (3, 5)] {
            queue.push(at, node, ModelEvent::Start);
        }
        assert_eq!(queue.next_at(), Some(1));
        let order: Vec<_> = std::iter::from_fn(|| queue.pop()).map(|it| it.1).collect();
        assert_eq!(order, [4, 2, 5, 1, 3]);
    }

    #[test]
    fn an_event_in_the_queue_is_small() {
        assert!(size_of::<QueuedEvent>() <= 32);
    }
}
