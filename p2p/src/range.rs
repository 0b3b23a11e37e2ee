//! Range sync, the asking side: a long gap filled from many peers at once, over the protocol of `starling_proto::wire`.
//!
//! A pure state machine beside the gap that `sync.rs` works on: it says whom to ask for what. First headers, from the trusted tip
//! downward: each is the preimage of a hash that is trusted already and names the next one, so a false one cannot be told; their
//! hashes, 32 bytes a block, are the skeleton. Then windows of blocks upward, several peers at once, as far ahead as the budget of
//! bodies reaches. A peer that is slower takes fewer windows, since it is given the next one when it has delivered; the one that
//! holds up all others loses its window to an idle peer. A request names the highest block of its window by hash, so an honest peer
//! of another branch refuses it, and one that answers with other blocks lies.
//!
//! What can overload it: nothing that peers send on their own, only what they answer; what may be on its way is bounded in requests
//! and in bytes.

pub mod client;
pub mod serve;
mod words;

use crate::{
    peers::Offence,
    sync::{Limits, gap::Gap},
};
use alloy_primitives::B256;
use libp2p::PeerId;
use starling_proto::{
    payload::BlockId,
    wire::{MAX_BODIES, MAX_HEADERS},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::{Duration, Instant},
};
pub use words::{Ask, Links, Status, Trouble};

/// A shorter gap is filled number by number: the walk down costs no round trip of its own there.
pub const SHORTEST: u64 = 16;
/// Bytes of one window, about: small enough that a lost one costs little, large enough that a round trip does not matter.
const WINDOW_BYTES: usize = 1 << 20;
/// Windows asked of one peer at once: the next is on its way while one is delivered.
const WINDOWS_PER_PEER: usize = 2;
/// A peer's head is as old as what it said last; it is asked for so many blocks above.
const AHEAD: u64 = 64;
/// A window that everybody waits for may take this long, and so many times as long as windows lately took, before it is given away.
/// Headers, which everybody waits for, this long.
const PATIENCE: Duration = Duration::from_secs(2);
const SLOWER: u32 = 4;
/// An answer of headers, a few megabytes, takes a peer that means well no longer.
const LONGEST_WALK: Duration = Duration::from_secs(60);
/// With no question answered to its end for so long, blocks are asked for by number too: strangers that answer nothing, or too little,
/// must not keep them from those who would.
const IDLE: Duration = Duration::from_secs(10);
/// One question that is dropped is a busy peer; so many failures in a row are an offence.
const IN_A_ROW: u32 = 3;
const FIRST_BACK_OFF: Duration = Duration::from_millis(200);
const MAX_BACK_OFF: Duration = Duration::from_secs(10);

/// Where the way down ends.
#[derive(Clone, Copy, Debug)]
pub struct Ground {
    /// No block at or below this number is wanted.
    pub floor: u64,
    /// About here it will meet a block that is known.
    pub likely: u64,
}

/// What the machine wants done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Order {
    Ask {
        id: u64,
        peer: PeerId,
        ask: Ask,
    },
    Cancel {
        id: u64,
    },
    Charge {
        peer: PeerId,
        offence: Offence,
        evidence: String,
    },
}

#[derive(Debug)]
struct Peer {
    status: Status,
    failures: u32,
    ready: Option<Instant>,
    /// It has refused a block that it should have, since it said what it has.
    elsewhere: bool,
    /// It lied, and is not asked again while it stays.
    liar: bool,
}

#[derive(Debug)]
struct Flight {
    peer: PeerId,
    asked: Instant,
    /// When it may be given to another peer.
    patience: Instant,
    window: Option<Window>,
    /// The highest block asked about; of headers, the lowest that those which came lead to.
    from: BlockId,
    /// Of headers: the number that they are to lead to, unless they lead to what the chain has before.
    end: u64,
}

/// The part of a window that has not come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Window {
    next: u64,
    last: u64,
}

/// The machine.
#[derive(Debug, Default)]
pub struct Range {
    peers: BTreeMap<PeerId, Peer>,
    flights: BTreeMap<u64, Flight>,
    /// Nothing from this number on has been asked for.
    frontier: u64,
    /// Windows below it that came back undelivered, first and last number.
    holes: BTreeSet<(u64, u64)>,
    /// When a question was last answered to its end; at first, when there was one to ask.
    answered: Option<Instant>,
    /// How long windows take, lately.
    usual: Duration,
    next_id: u64,
    orders: Vec<Order>,
}

impl Range {
    /// What to do, in order. Take after every event.
    pub fn take_orders(&mut self) -> Vec<Order> {
        std::mem::take(&mut self.orders)
    }

    /// A peer says, for the first time or again, what it has.
    pub fn on_status(&mut self, peer: PeerId, status: Status) {
        match self.peers.get_mut(&peer) {
            Some(known) => (known.status, known.elsewhere) = (status, false),
            None => drop(self.peers.insert(
                peer,
                Peer {
                    status,
                    failures: 0,
                    ready: None,
                    elsewhere: false,
                    liar: false,
                },
            )),
        }
    }

    pub fn on_peer_gone(&mut self, peer: &PeerId) {
        self.peers.remove(peer);
        let theirs: Vec<u64> = self
            .flights
            .iter()
            .filter(|(_, flight)| flight.peer == *peer)
            .map(|(id, _)| *id)
            .collect();
        theirs.into_iter().for_each(|id| self.cancel(id));
    }

    /// The gap is another one: what was asked for the last one is not wanted, and nothing of this one is asked for.
    pub fn restart(&mut self) {
        let all: Vec<u64> = self.flights.keys().copied().collect();
        all.into_iter().for_each(|id| self.cancel(id));
        self.holes.clear();
        (self.frontier, self.answered) = (0, None);
    }

    /// The skeleton was cut back: above `number` it has other hashes.
    pub fn cut(&mut self, number: u64) {
        let above = |flight: &Flight| flight.window.is_none_or(|window| window.last > number);
        let all: Vec<u64> = self
            .flights
            .iter()
            .filter(|(_, flight)| above(flight))
            .map(|(id, _)| *id)
            .collect();
        all.into_iter().for_each(|id| self.cancel(id));
        let holes = std::mem::take(&mut self.holes);
        self.holes = holes
            .into_iter()
            .filter(|(first, _)| *first <= number)
            .map(|(first, last)| (first, last.min(number)))
            .collect();
        self.frontier = self.frontier.min(number + 1);
    }

    /// Some of the headers asked for came, verified by the caller down to the last; gives the block that they begin with.
    pub fn on_headers(&mut self, id: u64, links: &Links, now: Instant) -> Option<BlockId> {
        let flight = self.flights.get_mut(&id)?;
        let from = flight.from;
        if let Some(hash) = links.parents.last().copied() {
            flight.from = BlockId {
                number: from.number.saturating_sub(links.parents.len() as u64),
                hash,
            };
        }
        if links.known.is_some() {
            flight.end = flight.from.number;
        }
        // Its peer can be asked for blocks before the stream says that it has ended.
        if flight.from.number <= flight.end {
            self.on_end(id, Ok(()), now);
        }
        Some(from)
    }

    /// A part of a window came: blocks up to `number`.
    pub fn on_chunk(&mut self, id: u64, number: u64) {
        let Some(flight) = self.flights.get_mut(&id) else {
            return;
        };
        if let Some(window) = &mut flight.window {
            window.next = number + 1;
        }
    }

    /// A window's answer has ended, or a question was not answered.
    pub fn on_end(&mut self, id: u64, outcome: Result<(), Trouble>, now: Instant) {
        let Some(flight) = self.flights.remove(&id) else {
            return;
        };
        let rest = flight.window.filter(|window| window.next <= window.last);
        if let Some(window) = rest {
            self.holes.insert((window.next, window.last));
        }
        let (peer, number) = (
            flight.peer,
            flight
                .window
                .map_or(flight.from.number, |window| window.last),
        );
        match outcome {
            Ok(()) if flight.window.is_some() => {
                let took = now.saturating_duration_since(flight.asked);
                self.usual = if self.usual.is_zero() {
                    took
                } else {
                    (self.usual * 7 + took) / 8
                };
                if rest.is_none() {
                    self.answered = Some(now);
                }
                // Not before its end: one that brings a block of each window and then stalls has not worked.
                self.worked(&peer);
            }
            Ok(()) if flight.from.number <= flight.end => {
                self.answered = Some(now);
                self.worked(&peer);
            }
            // One header at a time is no way down.
            Ok(()) => self.failed(&peer, now),
            Err(Trouble::NotFound) => self.refused(peer, number, now),
            Err(Trouble::NoAnswer) => self.failed(&peer, now),
            Err(Trouble::Unreachable) => {
                self.failed(&peer, now);
                let failures = self.peers.get(&peer).map_or(0, |peer| peer.failures);
                if failures >= IN_A_ROW {
                    let evidence = format!(
                        "dropped a question about block {number}; {failures} in a row came to nothing"
                    );
                    self.orders.push(Order::Charge {
                        peer,
                        offence: Offence::NoResponse,
                        evidence,
                    });
                }
            }
            Err(Trouble::Malformed(evidence)) => {
                self.failed(&peer, now);
                self.orders.push(Order::Charge {
                    peer,
                    offence: Offence::MalformedResponse,
                    evidence,
                });
            }
            Err(Trouble::False(evidence)) => {
                if let Some(peer) = self.peers.get_mut(&peer) {
                    peer.liar = true;
                }
                self.orders.push(Order::Charge {
                    peer,
                    offence: Offence::FalseBlock,
                    evidence,
                });
            }
        }
    }

    /// Whether anybody can be asked about the block `number`, now or after a back-off.
    pub fn can_ask(&self, number: u64) -> bool {
        self.peers.values().any(|peer| peer.may_have(number))
    }

    /// Whether there are peers, and all say that they are on another branch, or do not reach the block.
    pub fn is_refused_by_all(&self, number: u64) -> bool {
        self.peers.values().any(|peer| peer.elsewhere) && !self.can_ask(number)
    }

    pub fn is_flying(&self) -> bool {
        !self.flights.is_empty()
    }

    /// When blocks are to be asked for by number too, if no question is answered before.
    pub fn idle_at(&self) -> Option<Instant> {
        self.answered.map(|answered| answered + IDLE)
    }

    /// Nobody is waited for: the chain is slow, not the peers.
    pub fn excuse(&mut self, now: Instant) {
        self.answered = Some(now);
    }

    pub fn flights(&self) -> usize {
        self.flights.len()
    }

    /// Peers that say what they have, and do not lie.
    pub fn peers(&self) -> usize {
        self.peers.values().filter(|peer| !peer.liar).count()
    }

    /// When [`Range::drive`] has something to do without an event.
    pub fn wakeup(&self, gap: &Gap) -> Option<Instant> {
        let ready = self
            .peers
            .values()
            .filter(|peer| !peer.liar && !peer.elsewhere)
            .filter_map(|peer| peer.ready);
        // A block that came by another way is waited for no more.
        let missing = Some(gap.low()).filter(|low| self.peers.len() > 1 && !gap.has_body(*low));
        let holder = missing.and_then(|low| {
            if gap.is_grounded() {
                self.holder(low)
            } else {
                self.walker(gap)
            }
        });
        let late = holder.map(|(_, flight)| flight.patience);
        let overdue = self
            .flights
            .values()
            .filter(|flight| flight.window.is_none())
            .map(|flight| flight.asked + LONGEST_WALK);
        ready.chain(late).chain(overdue).min()
    }

    /// Asks for what the gap needs and may be asked for.
    pub fn drive(&mut self, gap: &Gap, ground: Ground, limits: &Limits, now: Instant) {
        for peer in self.peers.values_mut() {
            peer.ready.take_if(|ready| *ready <= now);
        }
        self.answered.get_or_insert(now);
        self.end_walks(now);
        if !gap.is_grounded() {
            return self.walk(gap, ground, now);
        }
        self.mend(gap);
        loop {
            // What everybody waits for may exceed the budget.
            let urgent = self
                .holes
                .first()
                .is_some_and(|(first, _)| *first <= gap.low());
            let used = gap.bytes() + self.flights.len() * WINDOW_BYTES;
            if !urgent && used + WINDOW_BYTES > limits.bodies {
                break;
            }
            let Some((first, last)) = self.next_window(gap) else {
                break;
            };
            let Some(peer) = self.pick(first, last) else {
                break;
            };
            self.ask_window(gap, peer, first, last, now);
        }
        self.steal(gap, now);
    }

    fn walk(&mut self, gap: &Gap, Ground { floor, likely }: Ground, now: Instant) {
        let from = gap.bottom();
        if from.number <= floor {
            return;
        }
        let peer = match self.walker(gap).map(|(id, _)| *id) {
            Some(id) => self.take_away(id, from.number, now),
            None => self.pick(from.number, from.number),
        };
        let Some(peer) = peer else { return };
        let count = from
            .number
            .saturating_sub(likely)
            .max(SHORTEST)
            .min(from.number - floor);
        let count = u32::try_from(count).unwrap_or(u32::MAX).min(MAX_HEADERS);
        self.ask(peer, Ask::Headers { from, count }, None, from, now);
    }

    /// The headers on their way to the bottom of the gap.
    fn walker(&self, gap: &Gap) -> Option<(&u64, &Flight)> {
        let leads = |flight: &Flight| gap.expected(flight.from.number) == Some(flight.from.hash);
        self.flights
            .iter()
            .find(|(_, flight)| flight.window.is_none() && leads(flight))
    }

    /// Whoever sends headers one by one keeps a place only for so long.
    fn end_walks(&mut self, now: Instant) {
        let overdue =
            |flight: &Flight| flight.window.is_none() && now >= flight.asked + LONGEST_WALK;
        let all: Vec<(u64, PeerId)> = self
            .flights
            .iter()
            .filter(|(_, f)| overdue(f))
            .map(|(id, f)| (*id, f.peer))
            .collect();
        for (id, peer) in all {
            self.cancel(id);
            self.failed(&peer, now);
            let evidence = format!(
                "has not sent the headers it was asked for within {} s",
                LONGEST_WALK.as_secs()
            );
            self.orders.push(Order::Charge {
                peer,
                offence: Offence::NoResponse,
                evidence,
            });
        }
    }

    /// The lowest block is missing and neither asked for nor noted as missing: bodies had to make way, or came by another way.
    fn mend(&mut self, gap: &Gap) {
        let low = gap.low();
        while let Some(hole) = self.holes.first().copied()
            && hole.1 < low
        {
            self.holes.remove(&hole);
        }
        self.frontier = self.frontier.max(low);
        let noted =
            self.frontier == low || self.holes.first().is_some_and(|(first, _)| *first <= low);
        if !noted && !gap.has_body(low) && self.holder(low).is_none() {
            let next = gap.next_body(low).unwrap_or(u64::MAX);
            let flying = self
                .flights
                .values()
                .filter_map(|flight| flight.window)
                .map(|window| window.next)
                .filter(|n| *n > low)
                .min();
            let end = next.min(flying.unwrap_or(u64::MAX)).min(self.frontier);
            self.holes.insert((low, end - 1));
        }
    }

    /// The lowest run of blocks that is not asked for, as long as a window.
    fn next_window(&mut self, gap: &Gap) -> Option<(u64, u64)> {
        let count = (WINDOW_BYTES / gap.average()).clamp(1, MAX_BODIES as usize) as u64;
        let top = gap.top().number;
        if let Some(hole) = self.holes.first() {
            let first = hole.0.max(gap.low());
            return Some((first, hole.1.min(first + count - 1)));
        }
        while gap.has_body(self.frontier) {
            self.frontier += 1;
        }
        let first = self.frontier;
        (first <= top).then(|| (first, top.min(first + count - 1)))
    }

    fn ask_window(&mut self, gap: &Gap, peer: PeerId, first: u64, last: u64, now: Instant) {
        let last = last.min(self.peers.get(&peer).map_or(last, Peer::reach));
        match self.holes.pop_first() {
            Some((_, end)) if end > last => drop(self.holes.insert((last + 1, end))),
            Some(_) => {}
            None => self.frontier = last + 1,
        }
        let hashes: Arc<[B256]> = (first..=last)
            .map_while(|number| gap.expected(number))
            .collect();
        let Some(hash) = hashes.last().copied() else {
            return;
        };
        let ask = Ask::Bodies {
            first,
            hashes,
            max_bytes: 2 * WINDOW_BYTES as u32,
        };
        self.ask(
            peer,
            ask,
            Some(Window { next: first, last }),
            BlockId { number: last, hash },
            now,
        );
    }

    fn ask(&mut self, peer: PeerId, ask: Ask, window: Option<Window>, from: BlockId, now: Instant) {
        let id = self.next_id;
        self.next_id += 1;
        let usual = if window.is_some() {
            self.usual * SLOWER
        } else {
            Duration::ZERO
        };
        let patience = now + PATIENCE.max(usual);
        let end = if let Ask::Headers { count, .. } = ask {
            from.number.saturating_sub(count.into())
        } else {
            0
        };
        self.flights.insert(
            id,
            Flight {
                peer,
                asked: now,
                patience,
                window,
                from,
                end,
            },
        );
        self.orders.push(Order::Ask { id, peer, ask });
    }

    /// A peer with room that has these blocks: of those that failed least, the one with the least to do.
    fn pick(&self, first: u64, last: u64) -> Option<PeerId> {
        let busy = |id: &PeerId| {
            self.flights
                .values()
                .filter(|flight| flight.peer == *id)
                .count()
        };
        let able = self
            .peers
            .iter()
            .filter(|(_, peer)| peer.ready.is_none() && peer.may_have(first));
        let with_load = able.map(|(id, peer)| (busy(id), peer.reach() < last, peer.failures, *id));
        with_load
            .filter(|(busy, ..)| *busy < WINDOWS_PER_PEER)
            .min()
            .map(|(.., id)| id)
    }

    /// Who was asked for the block.
    fn holder(&self, number: u64) -> Option<(&u64, &Flight)> {
        self.flights.iter().find(|(_, flight)| {
            flight
                .window
                .is_some_and(|window| (window.next..=window.last).contains(&number))
        })
    }

    /// Gives the window that holds up everybody to a peer that has nothing to do.
    fn steal(&mut self, gap: &Gap, now: Instant) {
        if gap.has_body(gap.low()) {
            return;
        }
        let Some(id) = self.holder(gap.low()).map(|(id, _)| *id) else {
            return;
        };
        let Some(thief) = self.take_away(id, gap.low(), now) else {
            return;
        };
        if let Some((first, last)) = self.next_window(gap) {
            self.ask_window(gap, thief, first, last, now);
        }
    }

    /// Ends a question that everybody waits for once it is late and another peer is free, which is given.
    fn take_away(&mut self, id: u64, number: u64, now: Instant) -> Option<PeerId> {
        let flight = self
            .flights
            .get(&id)
            .filter(|flight| now >= flight.patience)?;
        let holder = flight.peer;
        let Some(thief) = self.pick(number, number).filter(|thief| *thief != holder) else {
            self.flights
                .values_mut()
                .for_each(|flight| flight.patience = flight.patience.max(now + FIRST_BACK_OFF));
            return None;
        };
        self.cancel(id);
        self.failed(&holder, now);
        tracing::debug!(number, from = %holder, to = %thief, "what is late is asked of another peer");
        Some(thief)
    }

    fn cancel(&mut self, id: u64) {
        let Some(flight) = self.flights.remove(&id) else {
            return;
        };
        if let Some(window) = flight.window {
            self.holes.insert((window.next, window.last));
        }
        self.orders.push(Order::Cancel { id });
    }

    fn worked(&mut self, peer: &PeerId) {
        if let Some(peer) = self.peers.get_mut(peer) {
            (peer.failures, peer.ready) = (0, None);
        }
    }

    fn failed(&mut self, peer: &PeerId, now: Instant) {
        let Some(peer) = self.peers.get_mut(peer) else {
            return;
        };
        let wait = FIRST_BACK_OFF
            .saturating_mul(1 << peer.failures.min(16))
            .min(MAX_BACK_OFF);
        peer.failures = peer.failures.saturating_add(1);
        peer.ready = Some(now + wait);
    }

    fn refused(&mut self, id: PeerId, number: u64, now: Instant) {
        self.failed(&id, now);
        let Some(peer) = self.peers.get_mut(&id).filter(|peer| peer.claims(number)) else {
            return;
        };
        // Once for what it says it has: honest peers of another branch do this too.
        if !std::mem::replace(&mut peer.elsewhere, true) {
            let (oldest, head) = (peer.status.oldest, peer.status.head);
            let evidence = format!(
                "says it has blocks {oldest} to {head} and refused block {number} of our branch"
            );
            self.orders.push(Order::Charge {
                peer: id,
                offence: Offence::FalseStatus,
                evidence,
            });
        }
    }

    /// Why no peer brings the block, in words; for whoever has to find out.
    pub fn complain(&self, number: u64, now: Instant) -> Vec<String> {
        let asked = |id: &PeerId| {
            let flights = self.flights.values().filter(|flight| flight.peer == *id);
            flights
                .map(|flight| now.saturating_duration_since(flight.asked).as_secs())
                .max()
        };
        let word = |(id, peer): (&PeerId, &Peer)| match asked(id) {
            _ if peer.liar => format!("{id} answered with false blocks"),
            Some(seconds) => {
                format!("{id} was asked {seconds} s ago and has not answered to the end")
            }
            None if peer.elsewhere => {
                format!("{id} is on another branch or lacks what it says it has")
            }
            None if !peer.may_have(number) => {
                format!(
                    "{id} has only blocks {} to {}",
                    peer.status.oldest, peer.status.head.number
                )
            }
            None => format!("{id} failed {} times in a row", peer.failures),
        };
        self.peers.iter().map(word).collect()
    }
}

impl Peer {
    fn reach(&self) -> u64 {
        self.status.head.number.saturating_add(AHEAD)
    }

    fn may_have(&self, number: u64) -> bool {
        !self.liar && !self.elsewhere && (self.status.oldest..=self.reach()).contains(&number)
    }

    fn claims(&self, number: u64) -> bool {
        (self.status.oldest..=self.status.head.number).contains(&number)
    }
}
