//! Gap filling: trusted tips go in, payloads come out parents first, and whatever lies between is fetched from peers.
//!
//! A long gap is filled from many peers at once where peers of our own kind are connected: see `range.rs`.
//!
//! A pure state machine: events and `now` go in, [`Action`]s come out of [`Sync::poll`], and [`Sync::wakeup`] says when to call
//! [`Sync::on_timer`]. It owns no socket, no clock and no task; `service.rs` drives it.
//!
//! Trust: a *tip* is trusted because gossip checked its signature. Everything below a tip is trusted by hash link alone, since
//! signatures do not survive a change of signer. So a gap is walked backward from its tip, number by number, each payload
//! checked against the parent hash of the one above it; the hashes (the *skeleton*, 32 bytes a block) are kept for the whole
//! gap, bodies only up to a byte budget. Once the walk meets a block the chain knows, payloads are handed over upward.
//!
//! While a rollup node drives the chain over the Engine API, only the heads that it names open gaps. A gossiped block with an unknown
//! parent opens none, since the chain could not make it the head.
//!
//! What can overload it: tips (bounded in number), skeleton and bodies (bounded, see [`Limits`]), blocks the chain has not
//! answered yet (a credit in bytes and number). Past a bound something is forgotten and fetched again when its turn comes.

pub(crate) mod gap;
mod ledger;
mod long;
mod sources;
#[cfg(test)]
mod tests;

use crate::{
    handle::{Blocks, Heads, Provenance, Settled, SyncReport},
    range::{Order, Range},
};
use alloy_primitives::{Address, B256};
use gap::{Gap, Step};
pub(crate) use ledger::Ledger;
use ledger::Refusal;
use libp2p::PeerId;
use sources::{SHARE, Sources};
use starling_proto::payload::{BlockId, Payload};
use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
    time::{Duration, Instant},
};

/// Numbers asked of one source at a time.
pub const WINDOW: usize = 16;
/// Requests in the air altogether, those to former sources included.
pub const MAX_FLIGHTS: usize = 64;
/// Tips that wait beside the active gap.
const MAX_TIPS: usize = 8;
/// A gap that makes no progress for this long gives way to a higher tip. Longer than a request may take, so that one silent peer
/// does not cost the way already walked.
const STALL: Duration = Duration::from_secs(30);

/// Bounds of what the machine keeps.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Hashes of a gap: 32 bytes each. A longer gap is walked again from its lower part.
    pub skeleton: usize,
    /// Bytes of bodies kept for the gap.
    pub bodies: usize,
    /// Bytes handed over and not answered.
    pub unsettled_bytes: usize,
    /// Payloads handed over and not answered: at most the capacity of the event channel, so that it is never full.
    pub unsettled: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            skeleton: 1 << 20,
            bodies: 16 << 20,
            unsettled_bytes: 32 << 20,
            unsettled: 1024,
        }
    }
}

/// Why a fetch brought no payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The peer says it has no such block.
    NotFound,
    /// The stream was dropped, or the connection is gone.
    Unreachable,
    /// Nothing came in time, or an error that is not "not found".
    NoAnswer,
    /// The peer speaks neither spelling of the protocol.
    Unsupported,
    /// The peer answered with something that is not an answer.
    Malformed,
}

/// Misbehaviour that the machine finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The payload of this number is not the one a trusted child names as its parent. An honest peer on another branch does
    /// this too.
    WrongBlock,
    /// Not an answer.
    Malformed,
}

/// Why a tip was given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dropped {
    /// It is, or descends from, a block the chain found invalid.
    Invalid,
    /// Its branch reaches the safe block's height, or genesis, without meeting our chain.
    Foreign,
    /// No peer could fill the gap below it, and a newer tip took its place.
    Stalled,
}

/// What the caller must do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    HandOver {
        payload: Arc<Payload>,
        provenance: Provenance,
        blame: Option<PeerId>,
    },
    Fetch {
        id: u64,
        peer: PeerId,
        number: u64,
    },
    /// `number` is the block that it was seen from.
    Blame {
        peer: PeerId,
        fault: Fault,
        number: u64,
    },
    Dropped {
        tip: BlockId,
        why: Dropped,
    },
    /// Of the range machine.
    Range(Order),
}

/// A payload that came in, and what the chain says of it at that moment.
#[derive(Clone, Debug)]
pub struct Arrival {
    pub payload: Arc<Payload>,
    pub from: Option<PeerId>,
    /// The chain has executed it.
    pub known: bool,
    /// The chain has executed its parent.
    pub parent_known: bool,
}

impl Arrival {
    /// Asks the chain. Not for the swarm's task: the answer may take a disk read.
    pub fn of(payload: Payload, from: Option<PeerId>, blocks: &dyn Blocks) -> Self {
        let (known, parent_known) = (
            blocks.knows(payload.hash),
            blocks.knows(payload.parent_hash()),
        );
        Self {
            payload: Arc::new(payload),
            from,
            known,
            parent_known,
        }
    }
}

/// An [`Arrival`] with what is trusted about it.
#[derive(Clone, Debug)]
pub(crate) struct Body {
    arrival: Arrival,
    provenance: Provenance,
}

impl Body {
    fn payload(&self) -> &Payload {
        &self.arrival.payload
    }

    fn hash(&self) -> B256 {
        self.arrival.payload.hash
    }

    fn number(&self) -> u64 {
        self.arrival.payload.number()
    }

    /// Whether this payload came over the Engine API.
    fn is_named(&self) -> bool {
        self.provenance == Provenance::Engine
    }

    fn parent_known(&self, ledger: &Ledger) -> bool {
        self.arrival.parent_known || ledger.knows(&self.payload().parent_hash())
    }
}

/// The machine.
#[derive(Debug)]
pub struct Sync {
    limits: Limits,
    ledger: Ledger,
    sources: Sources,
    gap: Option<Gap>,
    /// Long gaps, from peers of our kind.
    range: Range,
    /// The gap before a higher tip took over, until the way down from that tip meets it.
    former: Option<Gap>,
    /// The range machine waits for time to pass.
    ranging: bool,
    /// Requests in the air: whom and what number they ask. They outlive a gap.
    flights: HashMap<u64, (PeerId, u64)>,
    /// Trusted tips that stand on no known block and not on the gap's branch, oldest first.
    tips: Vec<Body>,
    actions: VecDeque<Action>,
    next_id: u64,
    /// Something is missing and every peer is in its back-off.
    starved: bool,
    /// Sources are waited for.
    fetching: bool,
    /// Whether a rollup node moves the head.
    driven: bool,
    /// Blocks that peers have delivered on request, in ranges or by number.
    arrived: u64,
}

impl Sync {
    /// `seed` feeds the jitter of back-offs.
    pub fn new(limits: Limits, genesis: BlockId, seed: u64) -> Self {
        Self {
            limits,
            ledger: Ledger::new(limits, genesis),
            sources: Sources::new(seed),
            gap: None,
            range: Range::default(),
            former: None,
            ranging: false,
            flights: HashMap::new(),
            tips: Vec::new(),
            actions: VecDeque::new(),
            next_id: 0,
            starved: false,
            fetching: false,
            driven: false,
            arrived: 0,
        }
    }

    /// Blocks that peers have delivered on request so far.
    pub fn arrived(&self) -> u64 {
        self.arrived
    }

    /// The next thing to do. Call until `None` after every event.
    pub fn poll(&mut self) -> Option<Action> {
        self.actions
            .extend(self.range.take_orders().into_iter().map(Action::Range));
        self.actions.pop_front()
    }

    /// When [`Sync::on_timer`] should be called next, if no event comes first.
    pub fn wakeup(&self) -> Option<Instant> {
        let gap = self.gap.as_ref()?;
        let source = if self.starved {
            self.sources.next_ready()
        } else {
            None
        };
        let stall = Self::is_overtaken(gap, &self.tips).then(|| gap.progress + STALL);
        let range = if self.ranging {
            self.range.wakeup(gap)
        } else {
            None
        };
        let idle = if self.ranging && !self.fetching && !self.starved {
            self.range.idle_at()
        } else {
            None
        };
        let patience = if self.fetching {
            self.sources.next_late(|peer| load(&self.flights, peer))
        } else {
            None
        };
        source
            .into_iter()
            .chain(stall)
            .chain(range)
            .chain(idle)
            .chain(patience)
            .min()
    }

    pub fn on_timer(&mut self, now: Instant) {
        self.pump(now);
    }

    /// A peer that payloads can be fetched from is connected.
    pub fn on_peer(&mut self, peer: PeerId, now: Instant) {
        self.sources.add(peer);
        self.pump(now);
    }

    pub fn on_peer_gone(&mut self, peer: PeerId, now: Instant) {
        self.sources.remove(&peer);
        self.range.on_peer_gone(&peer);
        self.pump(now);
    }

    /// A block this node built and published: the chain has it.
    pub fn on_own(&mut self, hash: B256, now: Instant) {
        self.ledger.learn(hash);
        self.pump(now);
    }

    /// A payload that passed the gossip check.
    pub fn on_gossip(&mut self, arrival: Arrival, signer: Address, now: Instant) {
        self.on_tip(
            Body {
                arrival,
                provenance: Provenance::Signed(signer),
            },
            now,
        );
    }

    /// A payload that came over the Engine API, whose parent the chain lacks.
    pub fn on_named(&mut self, arrival: Arrival, now: Instant) {
        self.on_tip(
            Body {
                arrival,
                provenance: Provenance::Engine,
            },
            now,
        );
    }

    /// From now on a rollup node moves the head (`driven`), or the node itself does.
    pub fn on_driven(&mut self, driven: bool, now: Instant) {
        self.driven = driven;
        let unwanted = |gap: &mut Gap| driven && !gap.is_named();
        if self.gap.take_if(unwanted).is_some() {
            self.forget_range();
        }
        let mut tips = std::mem::take(&mut self.tips);
        tips.retain(|tip| self.is_wanted(tip));
        self.tips = tips;
        self.pump(now);
    }

    fn is_wanted(&self, tip: &Body) -> bool {
        !self.driven || tip.is_named() || tip.parent_known(&self.ledger)
    }

    fn on_tip(&mut self, body: Body, now: Instant) {
        let (id, parent) = (body.payload().id(), body.payload().parent_hash());
        if let Some(why) = self
            .ledger
            .refusal(&id.hash)
            .or_else(|| self.ledger.refusal(&parent))
        {
            self.ledger.refuse(id.hash, why);
            self.actions.push_back(Action::Dropped {
                tip: id,
                why: why.into(),
            });
            return;
        }
        if body.arrival.known {
            self.ledger.learn(id.hash);
        }
        if self.ledger.knows(&id.hash)
            || id.number <= self.ledger.floor()
            || self.tips.iter().any(|tip| tip.hash() == id.hash)
        {
            return;
        }
        let left = match &mut self.gap {
            Some(gap) => gap.offer(body, &self.limits, now),
            None => Some(body),
        };
        if let Some(body) = left
            && self.is_wanted(&body)
        {
            self.tips.push(body);
        }
        self.pump(now);
        if self.tips.len() > MAX_TIPS
            && let Some(lowest) = (0..self.tips.len()).min_by_key(|i| self.tips[*i].number())
        {
            self.tips.remove(lowest);
        }
    }

    /// The outcome of [`Action::Fetch`]. A payload carries the requested number and a hash recomputed from its contents.
    pub fn on_fetched(&mut self, id: u64, outcome: Result<Arrival, Failure>, now: Instant) {
        let Some((peer, number)) = self.flights.remove(&id) else {
            return;
        };
        self.arrived += u64::from(outcome.is_ok());
        match outcome {
            Ok(arrival) => match self
                .gap
                .as_mut()
                .map_or(Ok(()), |gap| gap.fill(number, arrival, &self.limits, now))
            {
                Ok(()) => self.sources.worked(&peer, now),
                Err(fault) => self.blame(peer, fault, number, now),
            },
            Err(Failure::Malformed) => self.blame(peer, Fault::Malformed, number, now),
            // A former source's late failures say nothing new.
            Err(failure) => {
                if self.sources.is_asked(&peer) {
                    self.sources
                        .failed(&peer, failure == Failure::Unsupported, now);
                }
            }
        }
        self.pump(now);
    }

    /// The chain's answer to a payload handed over.
    pub fn on_settled(&mut self, hash: B256, settled: &Settled, now: Instant) {
        self.ledger.settle(hash, settled);
        if matches!(settled, Settled::Invalid(_)) {
            let ledger = &mut self.ledger;
            self.tips.sort_by_key(Body::number);
            let actions = &mut self.actions;
            self.tips.retain(|tip| {
                let why = ledger.refusal(&tip.payload().parent_hash());
                if let Some(why) = why {
                    ledger.refuse(tip.hash(), why);
                    actions.push_back(Action::Dropped {
                        tip: tip.payload().id(),
                        why: why.into(),
                    });
                }
                why.is_none()
            });
        }
        self.pump(now);
    }

    /// Where the chain stands.
    pub fn on_heads(&mut self, heads: Heads, now: Instant) {
        self.ledger.set_heads(heads);
        let floor = self.ledger.floor();
        self.tips.retain(|tip| tip.number() > floor);
        if let Some(gap) = &mut self.gap {
            gap.ground_at(heads.head);
            if gap.top().number <= floor {
                self.gap = None;
            }
        }
        self.pump(now);
    }

    /// The numbers still to hand over, for logs and metrics.
    pub fn gap_len(&self) -> u64 {
        self.gap.as_ref().map_or(0, Gap::len)
    }

    /// What is missing, in numbers.
    pub fn report(&self) -> SyncReport {
        let gap = self.gap.as_ref();
        SyncReport {
            target: gap.map(|gap| gap.top().number),
            missing: self.gap_len(),
            linked: gap.is_some_and(Gap::is_grounded),
            waiting: self.tips.len() as u64,
            requests: (self.flights.len() + self.range.flights()) as u64,
            peers: self.range.peers() as u64,
            source: self
                .sources
                .asked()
                .map(PeerId::to_string)
                .reduce(|one, other| one + ", " + &other),
            starved: self.starved,
            stalled: None,
        }
    }

    fn blame(&mut self, peer: PeerId, fault: Fault, number: u64, now: Instant) {
        self.actions.push_back(Action::Blame {
            peer,
            fault,
            number,
        });
        self.sources.failed(&peer, false, now);
    }

    /// Moves everything that can move.
    fn pump(&mut self, now: Instant) {
        (self.starved, self.ranging, self.fetching) = (false, false, false);
        self.hand_over_tips();
        loop {
            let Some(gap) = &mut self.gap else {
                self.forget_range();
                self.sources.release();
                let Some(tip) = self.next_tip() else { return };
                let mut gap = Gap::new(tip, now);
                self.tips
                    .retain(|tip| gap.offer(tip.clone(), &self.limits, now).is_some());
                self.gap = Some(gap);
                continue;
            };
            match gap.advance(&mut self.ledger, &self.limits, &mut self.actions, now) {
                Step::NoCredit => {
                    self.range.excuse(now);
                    if self.is_long() {
                        self.drive(now);
                    }
                    return;
                }
                Step::Missing => {
                    if !self.on_missing(now) {
                        return;
                    }
                }
                Step::Wrong(peer) => {
                    let number = gap.low();
                    if let Some(peer) = peer {
                        self.blame(peer, Fault::WrongBlock, number, now);
                    }
                }
                Step::Refused(why) => {
                    for hash in gap.hashes() {
                        self.ledger.refuse(*hash, why);
                    }
                    self.give_up(why.into());
                }
                Step::Closed => self.gap = None,
            }
            self.hand_over_tips();
        }
    }

    /// Something must come from peers; true if another gap takes its place instead.
    fn on_missing(&mut self, now: Instant) -> bool {
        let stalled = self
            .gap
            .as_ref()
            .is_some_and(|gap| now >= gap.progress + STALL && Self::is_overtaken(gap, &self.tips));
        if stalled {
            self.give_up(Dropped::Stalled);
        } else if !self.is_long() {
            self.fetch(now);
        } else if !self.follow_tip(now) {
            self.drive(now);
            if self.range.idle_at().is_some_and(|at| now >= at) {
                self.fetch(now);
            }
        } else {
            return true;
        }
        stalled
    }

    fn is_overtaken(gap: &Gap, tips: &[Body]) -> bool {
        tips.iter().any(|tip| tip.number() > gap.top().number)
    }

    /// Tips that stand on known blocks need no gap.
    fn hand_over_tips(&mut self) {
        self.tips.retain(|tip| !self.ledger.knows(&tip.hash()));
        while let Some(i) = self
            .tips
            .iter()
            .position(|tip| tip.parent_known(&self.ledger))
        {
            if !self.ledger.has_credit(self.tips[i].payload()) {
                return;
            }
            let body = self.tips.remove(i);
            self.ledger.hand_over(body, &mut self.actions);
        }
    }

    /// The tip to work toward: one on known ground (it only lacks credit), else the highest, the latest of equals.
    fn next_tip(&mut self) -> Option<Body> {
        let known = self
            .tips
            .iter()
            .position(|tip| tip.parent_known(&self.ledger));
        let best = known.or_else(|| (0..self.tips.len()).max_by_key(|i| self.tips[*i].number()))?;
        Some(self.tips.remove(best))
    }

    fn give_up(&mut self, why: Dropped) {
        if let Some(gap) = self.gap.take() {
            self.actions.push_back(Action::Dropped {
                tip: gap.top(),
                why,
            });
        }
    }

    /// Asks for what is missing by number, the most urgent first.
    fn fetch(&mut self, now: Instant) {
        let Some(gap) = &self.gap else { return };
        self.sources
            .leave_late(|peer| load(&self.flights, peer), now);
        // What was asked of those that were left is asked again.
        let asked: Vec<u64> = self
            .flights
            .values()
            .filter(|(peer, _)| self.sources.is_asked(peer))
            .map(|(_, number)| *number)
            .collect();
        let window = (self.sources.able(now) * SHARE).clamp(WINDOW, MAX_FLIGHTS);
        let room = window
            .saturating_sub(asked.len())
            .min(MAX_FLIGHTS.saturating_sub(self.flights.len()));
        for number in gap
            .wanted(&self.ledger, &asked, window as u64, &self.limits)
            .into_iter()
            .take(room)
        {
            let Some(peer) =
                self.sources
                    .choose(gap.deliverer(), |peer| load(&self.flights, peer), now)
            else {
                self.starved = self.sources.asked().next().is_none();
                break;
            };
            // It may have been left before, and still owe this one.
            if self
                .flights
                .values()
                .all(|flight| *flight != (peer, number))
            {
                let id = self.next_id;
                self.next_id += 1;
                self.flights.insert(id, (peer, number));
                self.actions.push_back(Action::Fetch { id, peer, number });
            }
        }
        self.fetching = !self.starved;
    }
}

/// Requests in the air to a peer.
fn load(flights: &HashMap<u64, (PeerId, u64)>, peer: &PeerId) -> usize {
    flights.values().filter(|(asked, _)| asked == peer).count()
}

impl From<Refusal> for Dropped {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Invalid => Dropped::Invalid,
            Refusal::Foreign => Dropped::Foreign,
        }
    }
}
