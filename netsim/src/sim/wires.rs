//! The message layer of a world, in place of libp2p and discv5: messages between nodes, with the
//! delays and losses that the plan gives them. Gossip may be lost, repeated and overtaken. All
//! other messages of two nodes keep their order, as on a connection, and only requests are lost.

use super::{
    active::ActiveFaults,
    plan::SimPlan,
    queue::{MILLISECOND, SimTime},
};
use rand::{Rng, rngs::StdRng};
use std::sync::Arc;

/// A message from one node to another.
#[derive(Clone, Debug)]
pub enum SimMessage {
    /// Opens a connection.
    Dial {
        connection: u64,
    },
    Accepted {
        connection: u64,
    },
    /// No process listens, or the gate refuses the connection.
    Refused {
        connection: u64,
        unanswered: bool,
    },
    Closed {
        connection: u64,
    },
    /// The receiver has no connection to the sender of a message.
    NotConnected,
    Ping,
    Pong,
    /// A gossip message: its id, and its data after unpacking, with the flag byte.
    Gossip {
        id: u64,
        tagged: Arc<[u8]>,
    },
    /// A request on a stream of its own.
    Request {
        id: u64,
        body: SimRequest,
    },
    /// A part of the response.
    Frame {
        id: u64,
        bytes: Vec<u8>,
    },
    /// The end of the response.
    End {
        id: u64,
    },
}

/// A request as it is sent.
#[derive(Clone, Debug)]
pub enum SimRequest {
    /// A block by number.
    Number(u64),
    /// An encoded request of range sync.
    Range(Vec<u8>),
}

/// The wires between all nodes, with the effects of the active faults.
pub struct Wires {
    /// Delay from one node to another.
    delays: Vec<Vec<SimTime>>,
    /// Whether the wire from one node to another is cut.
    cuts: Vec<Vec<bool>>,
    /// Further delay of all messages from and to each node.
    slow: Vec<SimTime>,
    /// Percent of gossip messages and requests that are lost.
    loss: u32,
    /// Percent of gossip messages that arrive twice.
    duplicates: u32,
    /// Largest further delay of a gossip message, by which others may overtake it.
    reorder: SimTime,
    /// The last arrival from one node at another of messages that keep their order.
    last: Vec<Vec<SimTime>>,
}

impl Wires {
    pub fn new(plan: &SimPlan) -> Self {
        let count = plan.nodes.len();
        Self {
            delays: plan.delays.clone(),
            cuts: vec![vec![false; count]; count],
            slow: vec![0; count],
            loss: 0,
            duplicates: 0,
            reorder: 0,
            last: vec![vec![0; count]; count],
        }
    }

    pub fn is_cut(&self, from: usize, to: usize) -> bool {
        self.cuts[from][to]
    }

    /// Applies the active faults, after one of them began or ended.
    pub fn apply(&mut self, active: &ActiveFaults) {
        for (from, row) in self.cuts.iter_mut().enumerate() {
            for (to, cut) in row.iter_mut().enumerate() {
                *cut = active.cuts(from, to);
            }
        }
        for (node, slow) in self.slow.iter_mut().enumerate() {
            *slow = active.slow(node);
        }
        self.loss = active.loss();
        self.duplicates = active.duplicates();
        self.reorder = active.reorder();
    }

    /// The times at which a message sent now arrives: none if it is lost, two if it is repeated.
    pub fn arrivals(
        &mut self,
        (from, to): (usize, usize),
        message: &SimMessage,
        now: SimTime,
        dice: &mut StdRng,
    ) -> [Option<SimTime>; 2] {
        if self.is_cut(from, to) {
            return [None; 2];
        }
        let is_gossip = matches!(message, SimMessage::Gossip { .. });
        let may_be_lost = is_gossip || matches!(message, SimMessage::Request { .. });
        if may_be_lost && self.loss > 0 && dice.random_range(0..100) < self.loss {
            return [None; 2];
        }
        let delay = self.delays[from][to];
        let jitter = dice.random_range(0..=delay / 8 + MILLISECOND);
        let at = now + delay + jitter + self.slow[from] + self.slow[to];
        if !is_gossip {
            let last = &mut self.last[from][to];
            *last = at.max(*last);
            return [Some(*last), None];
        }
        let overtaken = |dice: &mut StdRng| match self.reorder {
            0 => 0,
            by => dice.random_range(0..by),
        };
        let first = at + overtaken(dice);
        let repeats = self.duplicates > 0 && dice.random_range(0..100) < self.duplicates;
        [Some(first), repeats.then(|| at + overtaken(dice))]
    }
}
