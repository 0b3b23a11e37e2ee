//! One gap: from a trusted tip backward to known ground by parent hash, then upward in order.

use super::{
    Action, Arrival, Body, Fault, Limits, MAX_FLIGHTS,
    ledger::{Ledger, Refusal},
};
use crate::{handle::Provenance, range::Links};
use alloy_primitives::B256;
use libp2p::PeerId;
use starling_proto::payload::BlockId;
use std::{
    collections::{BTreeMap, VecDeque},
    time::Instant,
};

/// What stopped [`Gap::advance`].
pub(crate) enum Step {
    /// A body must be fetched.
    Missing,
    /// The chain has too much unanswered.
    NoCredit,
    /// A peer's body is not the one the skeleton names; it is gone again.
    Wrong(Option<PeerId>),
    /// The branch is not wanted.
    Refused(Refusal),
    /// All handed over.
    Closed,
}

#[derive(Debug)]
pub(crate) struct Gap {
    /// Number of `hashes[0]`.
    low: u64,
    /// The skeleton: trusted hashes of `low`, `low + 1`, … up to the tip. Never empty, except when all is handed over.
    hashes: VecDeque<B256>,
    /// The known block that `hashes[0]` stands on, once found.
    ground: Option<B256>,
    /// Bodies by number: those in the skeleton's range match it, those below came ahead of their turn.
    bodies: BTreeMap<u64, Body>,
    bytes: usize,
    /// Who delivered the tip: it likely has the ancestors.
    deliverer: Option<PeerId>,
    /// The highest block of the skeleton that came over the Engine API.
    named: Option<BlockId>,
    pub progress: Instant,
}

impl Gap {
    pub fn new(tip: Body, now: Instant) -> Self {
        let deliverer = tip.arrival.from;
        let mut gap = Self {
            low: tip.number(),
            hashes: VecDeque::from([tip.hash()]),
            ground: None,
            bodies: BTreeMap::new(),
            bytes: 0,
            deliverer,
            named: tip.is_named().then_some(tip.payload().id()),
            progress: now,
        };
        gap.insert(tip);
        gap
    }

    pub fn top(&self) -> BlockId {
        let number = (self.low + self.hashes.len() as u64).saturating_sub(1);
        BlockId {
            hash: self
                .hashes
                .back()
                .copied()
                .or(self.ground)
                .unwrap_or_default(),
            number,
        }
    }

    /// Whether the skeleton has a block that came over the Engine API.
    pub fn is_named(&self) -> bool {
        self.named.is_some()
    }

    /// The lowest number of the skeleton.
    pub fn low(&self) -> u64 {
        self.low
    }

    /// Whether the way down has met a block that is known.
    pub fn is_grounded(&self) -> bool {
        self.ground.is_some()
    }

    pub fn len(&self) -> u64 {
        self.hashes.len() as u64
    }

    /// The lowest block of the skeleton.
    pub fn bottom(&self) -> BlockId {
        BlockId {
            hash: self
                .hashes
                .front()
                .copied()
                .or(self.ground)
                .unwrap_or_default(),
            number: self.low,
        }
    }

    /// Bytes of the bodies at hand.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    pub fn has_body(&self, number: u64) -> bool {
        self.bodies.contains_key(&number)
    }

    /// The first body at hand from this number on.
    pub fn next_body(&self, number: u64) -> Option<u64> {
        self.bodies
            .range(number..)
            .next()
            .map(|(number, _)| *number)
    }

    /// Continues the skeleton downward by verified links, to the first that is known if one is.
    pub fn descend(&mut self, links: &Links, ledger: &Ledger, limits: &Limits, now: Instant) {
        self.progress = now;
        for (index, parent) in links.parents.iter().enumerate() {
            if self.low == 0 {
                return;
            }
            if links.known == Some(index) || ledger.knows(parent) {
                return self.stand_on(*parent);
            }
            self.hashes.push_front(*parent);
            self.low -= 1;
        }
        self.evict(limits);
    }

    /// Takes over the lower part of `former` if this skeleton has come down to it; returns the highest number taken over.
    pub fn join(&mut self, former: &mut Gap, now: Instant) -> Option<u64> {
        let at = self.low.max(former.low);
        // Hash links: where they agree they agree in everything below.
        let meet = (at..)
            .take_while(|n| {
                self.expected(*n)
                    .is_some_and(|hash| former.expected(*n) == Some(hash))
            })
            .last()?;
        while self.low <= meet {
            self.pop_low();
        }
        let lower = usize::try_from(meet + 1 - former.low)
            .unwrap_or(usize::MAX)
            .min(former.hashes.len());
        let mut hashes: VecDeque<B256> = former.hashes.drain(..lower).collect();
        hashes.append(&mut self.hashes);
        self.hashes = hashes;
        (self.low, self.ground, self.progress) = (former.low, former.ground, now);
        let kept = std::mem::take(&mut former.bodies);
        kept.into_iter()
            .filter(|(number, _)| *number <= meet)
            .for_each(|(_, body)| self.insert(body));
        Some(meet)
    }

    pub fn hashes(&self) -> impl Iterator<Item = &B256> {
        self.hashes.iter()
    }

    pub fn deliverer(&self) -> Option<PeerId> {
        self.deliverer
    }

    /// Takes a trusted payload if it belongs here: a missing body of the skeleton, or the child of its top. Else gives it back.
    pub fn offer(&mut self, body: Body, limits: &Limits, now: Instant) -> Option<Body> {
        let (number, is_named) = (body.number(), body.is_named());
        let top = self.top();
        if number.checked_sub(1) == Some(top.number) && body.payload().parent_hash() == top.hash {
            // Of what is missing below nothing has come.
            self.hashes.push_back(body.hash());
            self.deliverer = body.arrival.from.or(self.deliverer);
        } else if self.expected(number) == Some(body.hash()) {
            // A repeated request for the same payload must not postpone the stall timeout.
            if !self.has_body(number) {
                self.progress = now;
            }
        } else {
            return Some(body);
        }
        if is_named && self.named.is_none_or(|named| named.number < number) {
            self.named = Some(body.payload().id());
        }
        self.insert(body);
        self.evict(limits);
        None
    }

    /// Takes a fetched body. Inside the skeleton it must match; below it is kept until its turn.
    pub fn fill(
        &mut self,
        number: u64,
        arrival: Arrival,
        limits: &Limits,
        now: Instant,
    ) -> Result<(), Fault> {
        let body = Body {
            arrival,
            provenance: Provenance::Linked {
                tip: self.top().number,
            },
        };
        let ahead = if self.ground.is_some() {
            0
        } else {
            MAX_FLIGHTS as u64
        };
        if self.bodies.contains_key(&number)
            || number.saturating_add(ahead) < self.low
            || number > self.top().number
        {
            return Ok(());
        }
        if body.number() != number
            || self
                .expected(number)
                .is_some_and(|hash| hash != body.hash())
        {
            return Err(Fault::WrongBlock);
        }
        if self.expected(number).is_some() {
            self.progress = now;
        }
        self.insert(body);
        self.evict(limits);
        Ok(())
    }

    /// The chain's head has moved by another way: what lies at or below it on this branch is no longer missing.
    pub fn ground_at(&mut self, head: BlockId) {
        if self.expected(head.number) != Some(head.hash) {
            return;
        }
        while self.low <= head.number && !self.hashes.is_empty() {
            self.pop_low();
        }
        self.stand_on(head.hash);
    }

    /// Walks down while bodies are there, then hands over upward while there is credit.
    pub fn advance(
        &mut self,
        ledger: &mut Ledger,
        limits: &Limits,
        actions: &mut VecDeque<Action>,
        now: Instant,
    ) -> Step {
        loop {
            let Some(&expected) = self.hashes.front() else {
                return Step::Closed;
            };
            match self.ground {
                Some(ground) => {
                    if let Some(why) = ledger.refusal(&ground) {
                        return Step::Refused(why);
                    }
                    if ledger.knows(&expected) {
                        self.pop_low();
                        self.ground = Some(expected);
                        continue;
                    }
                    let Some(body) = self.bodies.get(&self.low) else {
                        return Step::Missing;
                    };
                    if !ledger.has_credit(body.payload()) {
                        // The chain is slow, not the peers.
                        self.progress = now;
                        return Step::NoCredit;
                    }
                    self.ground = Some(expected);
                    let named = self.named.filter(|named| named.number >= self.low);
                    if let Some(mut body) = self.pop_low() {
                        if let (Provenance::Linked { .. }, Some(of)) = (body.provenance, named) {
                            body.provenance = Provenance::Ancestor { of };
                        }
                        ledger.hand_over(body, actions);
                    }
                    self.progress = now;
                }
                None => {
                    if ledger.knows(&expected) {
                        self.pop_low();
                        self.stand_on(expected);
                        continue;
                    }
                    if let Some(why) = ledger.refusal(&expected) {
                        return Step::Refused(why);
                    }
                    if self.low <= ledger.floor() {
                        return Step::Refused(Refusal::Foreign);
                    }
                    let Some(body) = self.bodies.get(&self.low) else {
                        return Step::Missing;
                    };
                    if body.hash() != expected {
                        let from = body.arrival.from;
                        self.distrust(from);
                        return Step::Wrong(from);
                    }
                    self.progress = now;
                    let parent = body.payload().parent_hash();
                    if body.arrival.known {
                        self.pop_low();
                        self.stand_on(expected);
                    } else if body.arrival.parent_known {
                        self.stand_on(parent);
                    } else {
                        self.hashes.push_front(parent);
                        self.low -= 1;
                        self.evict(limits);
                    }
                }
            }
        }
    }

    /// Numbers to ask for next, the most urgent first, without those in `asked` and no further than `window`: downward below the
    /// skeleton to what is likely missing, upward once on the ground.
    pub fn wanted(&self, ledger: &Ledger, asked: &[u64], window: u64, limits: &Limits) -> Vec<u64> {
        let missing = |number: &u64| !self.bodies.contains_key(number) && !asked.contains(number);
        if self.ground.is_none() {
            // Bodies above make way, so the whole budget is for those that come ahead of their turn.
            let ahead = ((limits.bodies / self.average()) as u64).clamp(1, window);
            let lowest = ledger
                .likely_missing(self.low)
                .max((self.low + 1).saturating_sub(ahead));
            return (lowest..=self.low).rev().filter(missing).collect();
        }
        // Upward only what will not be evicted before its turn.
        let room =
            (limits.bodies.saturating_sub(self.bytes) / self.average()).saturating_sub(asked.len());
        // A little further than the window: bodies from gossip may stand in between.
        let end = (self.low + self.len()).min(self.low + 4 * window);
        (self.low..end)
            .filter(missing)
            .enumerate()
            .filter(|(i, n)| *i < room || *n == self.low)
            .map(|(_, n)| n)
            .collect()
    }

    /// How large the bodies to come are, if they are about as large as those at hand.
    pub fn average(&self) -> usize {
        (self.bytes / self.bodies.len().max(1)).max(1000)
    }

    /// The skeleton's hash of this number.
    pub fn expected(&self, number: u64) -> Option<B256> {
        let index = usize::try_from(number.checked_sub(self.low)?).ok()?;
        self.hashes.get(index).copied()
    }

    fn stand_on(&mut self, ground: B256) {
        self.ground = Some(ground);
        while let Some((&number, _)) = self.bodies.first_key_value()
            && number < self.low
        {
            self.remove(number);
        }
    }

    /// Forgets the unverified bodies of a peer: they belong to the same wrong branch.
    fn distrust(&mut self, from: Option<PeerId>) {
        let theirs: Vec<u64> = self
            .bodies
            .range(..=self.low)
            .filter(|(_, b)| b.arrival.from == from)
            .map(|(n, _)| *n)
            .collect();
        for number in theirs {
            self.remove(number);
        }
    }

    fn pop_low(&mut self) -> Option<Body> {
        self.hashes.pop_front()?;
        let body = self.remove(self.low);
        self.low += 1;
        body
    }

    fn insert(&mut self, body: Body) {
        let number = body.number();
        self.remove(number);
        self.bytes += body.payload().weight();
        self.bodies.insert(number, body);
    }

    fn remove(&mut self, number: u64) -> Option<Body> {
        let body = self.bodies.remove(&number)?;
        self.bytes -= body.payload().weight();
        Some(body)
    }

    /// Forgets bodies past the budget, those needed last first, and the highest hashes of a skeleton past its bound. The body whose
    /// turn it is stays.
    fn evict(&mut self, limits: &Limits) {
        while self.hashes.len() > limits.skeleton.max(1) {
            let top = self.top().number;
            self.hashes.pop_back();
            self.remove(top);
        }
        while self.bytes > limits.bodies
            && let Some((&highest, _)) = self.bodies.last_key_value()
            && highest > self.low
        {
            self.remove(highest);
        }
        while self.bytes > limits.bodies
            && let Some((&lowest, _)) = self.bodies.first_key_value()
            && lowest < self.low
        {
            self.remove(lowest);
        }
    }
}
