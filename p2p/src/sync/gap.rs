//! A gap: the blocks missing between a trusted tip and the chain. Its skeleton of hashes is walked
//! from the tip backward by parent hash until it meets a known block; then the bodies are handed
//! over upward, in order.
//!
//! A body is accepted only if it has the hash that the skeleton names. Bodies that arrive for
//! numbers below the skeleton, ahead of the walk, are kept unverified until the walk reaches them.
//! This file knows neither peers nor requests: `fetcher.rs` decides what is requested from which
//! peer.

use super::{
    Arrival, Body, SyncAction, SyncLimits,
    bodies::Bodies,
    clock::StallClock,
    known::{BlockRefusal, KnownBlocks},
    messages::HashLinks,
    skeleton::Skeleton,
};
use crate::types::Provenance;
use alloy_primitives::B256;
use libp2p::PeerId;
use starling_proto::payload::BlockId;
use std::{collections::VecDeque, time::Instant};

/// Number of heights below the skeleton for which bodies are kept, ahead of the walk down.
pub(super) const MAX_AHEAD: u64 = 64;

/// The reason why [`Gap::advance`] stopped.
pub(super) enum GapStep {
    /// The next body must be fetched.
    Missing,
    /// The chain has as many unsettled payloads as are allowed.
    NoCapacity,
    /// A body of this peer did not have the hash that the skeleton names. The body was removed.
    Wrong(Option<PeerId>),
    /// The branch is refused, for the given reason.
    Refused(BlockRefusal),
    /// All blocks of the gap are handed over.
    Closed,
}

/// The error that a fetched body has another hash than the skeleton names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WrongBody;

#[derive(Debug)]
pub(super) struct Gap {
    /// The trusted hashes from the lowest found so far up to the tip. Empty only when all blocks
    /// are handed over.
    skeleton: Skeleton,
    /// The known block that the skeleton's lowest block extends, once found.
    base: Option<B256>,
    /// Bodies that match the skeleton, and unverified bodies for numbers below it.
    bodies: Bodies,
    /// The peer that delivered the tip, and likely has its ancestors.
    deliverer: Option<PeerId>,
    /// The highest block of the skeleton that came over the Engine API.
    engine_block: Option<BlockId>,
    pub clock: StallClock,
}

impl Gap {
    pub fn new(tip: Body, now: Instant) -> Self {
        let mut gap = Self {
            skeleton: Skeleton::new(tip.number(), tip.hash()),
            base: None,
            bodies: Bodies::default(),
            deliverer: tip.arrival.from,
            engine_block: tip.is_from_engine().then_some(tip.payload().id()),
            clock: StallClock::new(now),
        };
        gap.bodies.insert(tip);
        gap
    }

    /// The highest block of the skeleton.
    pub fn top(&self) -> BlockId {
        BlockId {
            hash: self.skeleton.highest().or(self.base).unwrap_or_default(),
            number: self.skeleton.top(),
        }
    }

    /// The lowest block of the skeleton.
    pub fn bottom(&self) -> BlockId {
        BlockId {
            hash: self.skeleton.lowest().or(self.base).unwrap_or_default(),
            number: self.skeleton.low(),
        }
    }

    /// The lowest number of the skeleton.
    pub fn low(&self) -> u64 {
        self.skeleton.low()
    }

    pub fn len(&self) -> u64 {
        self.skeleton.len()
    }

    pub fn hashes(&self) -> impl Iterator<Item = &B256> {
        self.skeleton.iter()
    }

    /// The hash that the skeleton has for this number.
    pub fn expected(&self, number: u64) -> Option<B256> {
        self.skeleton.get(number)
    }

    /// Whether the skeleton includes a block that came over the Engine API.
    pub fn is_from_engine(&self) -> bool {
        self.engine_block.is_some()
    }

    /// Whether the walk down has met a known block.
    pub fn is_linked(&self) -> bool {
        self.base.is_some()
    }

    pub fn deliverer(&self) -> Option<PeerId> {
        self.deliverer
    }

    pub fn bodies(&self) -> &Bodies {
        &self.bodies
    }

    /// Extends the skeleton downward by verified links, as far as the first known block among them.
    pub fn extend_down(
        &mut self,
        links: &HashLinks,
        known: &KnownBlocks,
        limits: &SyncLimits,
        now: Instant,
    ) {
        self.clock.on_progress(now);
        for (index, parent) in links.parents.iter().enumerate() {
            if self.low() == 0 {
                return;
            }
            if links.known == Some(index) || known.knows(parent) {
                self.drop_unmatched();
                return self.link_to(*parent);
            }
            self.skeleton.push_parent(*parent);
        }
        self.drop_unmatched();
        self.evict(limits);
    }

    /// Drops bodies within the skeleton that came ahead of the walk and have another hash than the
    /// skeleton names: they belong to another branch.
    fn drop_unmatched(&mut self) {
        let skeleton = &self.skeleton;
        self.bodies.retain(|body| {
            skeleton
                .get(body.number())
                .is_none_or(|hash| hash == body.hash())
        });
    }

    /// Takes over the lower part of `former` if this skeleton meets that of `former`. Returns the
    /// highest number taken over.
    pub fn take_over(&mut self, former: &mut Gap, now: Instant) -> Option<u64> {
        let meet = self.skeleton.meet(&former.skeleton)?;
        while self.low() <= meet {
            self.pop_lowest();
        }
        self.skeleton.take_lower(&mut former.skeleton, meet);
        self.base = former.base;
        self.clock.on_progress(now);
        self.drop_unmatched();
        former.bodies.move_to(&mut self.bodies, meet);
        Some(meet)
    }

    /// Accepts a trusted payload if it belongs to the gap: a missing body of the skeleton, or the
    /// child of the skeleton's top. Otherwise returns the payload.
    pub fn offer(&mut self, body: Body, limits: &SyncLimits, now: Instant) -> Option<Body> {
        let (number, is_from_engine) = (body.number(), body.is_from_engine());
        let top = self.top();
        if number.checked_sub(1) == Some(top.number) && body.payload().parent_hash() == top.hash {
            // A new tip is no progress: all missing blocks are below it.
            self.skeleton.push_child(body.hash());
            self.deliverer = body.arrival.from.or(self.deliverer);
        } else if self.expected(number) == Some(body.hash()) {
            // Only a new body is progress: a repeated payload must not postpone the stall timeout.
            if !self.bodies.contains(number) {
                self.clock.on_progress(now);
            }
        } else {
            return Some(body);
        }
        if is_from_engine && self.engine_block.is_none_or(|block| block.number < number) {
            self.engine_block = Some(body.payload().id());
        }
        self.bodies.insert(body);
        self.evict(limits);
        None
    }

    /// Accepts a fetched body. A body within the skeleton must have the skeleton's hash. A body
    /// below the skeleton is kept unverified until the walk reaches it.
    pub fn fill(
        &mut self,
        number: u64,
        arrival: Arrival,
        limits: &SyncLimits,
        now: Instant,
    ) -> Result<(), WrongBody> {
        let body = Body {
            arrival,
            provenance: Provenance::Linked {
                tip: self.top().number,
            },
        };
        let ahead = if self.is_linked() { 0 } else { MAX_AHEAD };
        if self.bodies.contains(number)
            || number.saturating_add(ahead) < self.low()
            || number > self.top().number
        {
            return Ok(());
        }
        let expected = self.expected(number);
        if body.number() != number || expected.is_some_and(|hash| hash != body.hash()) {
            return Err(WrongBody);
        }
        if expected.is_some() {
            self.clock.on_progress(now);
        }
        self.bodies.insert(body);
        self.evict(limits);
        Ok(())
    }

    /// Handles a move of the chain's head: blocks of this branch at or below the head are no longer
    /// missing.
    pub fn on_head(&mut self, head: BlockId) {
        if self.expected(head.number) != Some(head.hash) {
            return;
        }
        while self.low() <= head.number && !self.skeleton.is_empty() {
            self.pop_lowest();
        }
        self.link_to(head.hash);
    }

    /// Walks down as long as there are bodies, then hands over upward while the chain has capacity.
    pub fn advance(
        &mut self,
        known: &mut KnownBlocks,
        limits: &SyncLimits,
        actions: &mut VecDeque<SyncAction>,
        now: Instant,
    ) -> GapStep {
        loop {
            let Some(lowest) = self.skeleton.lowest() else {
                return GapStep::Closed;
            };
            let stopped = match self.base {
                Some(base) => self.hand_over_lowest(base, lowest, known, actions, now),
                None => self.walk_down(lowest, known, limits, now),
            };
            if let Some(step) = stopped {
                return step;
            }
        }
    }

    /// Hands over the lowest block. Returns the reason to stop, or `None` to go on.
    fn hand_over_lowest(
        &mut self,
        base: B256,
        lowest: B256,
        known: &mut KnownBlocks,
        actions: &mut VecDeque<SyncAction>,
        now: Instant,
    ) -> Option<GapStep> {
        if let Some(why) = known.refusal(&base) {
            return Some(GapStep::Refused(why));
        }
        if known.knows(&lowest) {
            self.pop_lowest();
            self.base = Some(lowest);
            return None;
        }
        let Some(body) = self.bodies.get(self.low()) else {
            return Some(GapStep::Missing);
        };
        if !known.has_capacity(body.payload()) {
            // The wait is due to the chain, not to peers.
            self.clock.on_progress(now);
            return Some(GapStep::NoCapacity);
        }
        self.base = Some(lowest);
        let engine_block = self.engine_block.filter(|of| of.number >= self.low());
        if let Some(mut body) = self.pop_lowest() {
            if let (Provenance::Linked { .. }, Some(of)) = (body.provenance, engine_block) {
                body.provenance = Provenance::Ancestor { of };
            }
            known.hand_over(body, actions);
        }
        self.clock.on_progress(now);
        None
    }

    /// Extends the skeleton by the parent that the lowest body names. Returns the reason to stop,
    /// or `None` to go on.
    fn walk_down(
        &mut self,
        lowest: B256,
        known: &mut KnownBlocks,
        limits: &SyncLimits,
        now: Instant,
    ) -> Option<GapStep> {
        if known.knows(&lowest) {
            self.pop_lowest();
            self.link_to(lowest);
            return None;
        }
        if let Some(why) = known.refusal(&lowest) {
            return Some(GapStep::Refused(why));
        }
        if self.low() <= known.floor() {
            return Some(GapStep::Refused(BlockRefusal::Foreign));
        }
        let Some(body) = self.bodies.get(self.low()) else {
            return Some(GapStep::Missing);
        };
        if body.hash() != lowest {
            // The other unverified bodies from this peer belong to the same wrong branch.
            let from = body.arrival.from;
            self.bodies.remove_from_peer(self.low(), from);
            return Some(GapStep::Wrong(from));
        }
        self.clock.on_progress(now);
        let parent = body.payload().parent_hash();
        if body.arrival.known {
            self.pop_lowest();
            self.link_to(lowest);
        } else if body.arrival.parent_known {
            self.link_to(parent);
        } else {
            self.skeleton.push_parent(parent);
            self.evict(limits);
        }
        None
    }

    /// Numbers to request next, the most urgent first, without those in `requested`. Before the gap
    /// is linked: downward from the bottom of the skeleton to the estimated end of the gap, at most
    /// `window` numbers. Once linked: upward, as many as fit into the budget.
    pub fn wanted(
        &self,
        known: &KnownBlocks,
        requested: &[u64],
        window: u64,
        limits: &SyncLimits,
    ) -> Vec<u64> {
        let low = self.low();
        let missing = |number: &u64| !self.bodies.contains(*number) && !requested.contains(number);
        if !self.is_linked() {
            // Bodies above the walk are evicted first, so bodies below can use the whole budget.
            let ahead = ((limits.bodies / self.bodies.average()) as u64).clamp(1, window);
            let lowest = known
                .likely_missing(low)
                .max((low + 1).saturating_sub(ahead));
            return (lowest..=low).rev().filter(missing).collect();
        }
        // Upward, request only bodies that fit into the budget: any other would be evicted before
        // it is executed.
        let capacity = (limits.bodies.saturating_sub(self.bodies.bytes()) / self.bodies.average())
            .saturating_sub(requested.len());
        // Look further than the window: bodies from gossip may lie in between.
        let end = (low + self.len()).min(low + 4 * window);
        (low..end)
            .filter(missing)
            .enumerate()
            .filter(|(i, n)| *i < capacity || *n == low)
            .map(|(_, n)| n)
            .collect()
    }

    /// Ends the walk down at the known block `base`, which the lowest block extends.
    fn link_to(&mut self, base: B256) {
        self.base = Some(base);
        self.bodies.remove_below(self.low());
    }

    fn pop_lowest(&mut self) -> Option<Body> {
        let number = self.skeleton.pop_lowest()?;
        self.bodies.remove(number)
    }

    /// Forgets the skeleton's highest hashes past its bound, and bodies past the budget. The body
    /// of the lowest block is kept.
    fn evict(&mut self, limits: &SyncLimits) {
        while self.len() > limits.skeleton.max(1) as u64
            && let Some(top) = self.skeleton.pop_highest()
        {
            self.bodies.remove(top);
        }
        self.bodies.evict(limits.bodies, self.low());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloy_consensus::Header;
    use alloy_primitives::Address;
    use starling_proto::payload::Payload;
    use std::sync::Arc;

    fn arrival(number: u64, parent_hash: B256) -> Arrival {
        let header = Header {
            number,
            parent_hash,
            ..Default::default()
        };
        Arrival {
            payload: Arc::new(Payload::sealed(header, Vec::new())),
            from: None,
            known: false,
            parent_known: false,
        }
    }

    /// A body of another branch came by number, ahead of headers that name the block of its height.
    #[test]
    fn a_body_ahead_of_the_walk_is_dropped_when_headers_name_another_block() {
        let (limits, now) = (SyncLimits::default(), Instant::now());
        let [parent, base] = [B256::repeat_byte(1), B256::repeat_byte(2)];
        let tip = Body {
            arrival: arrival(9, parent),
            provenance: Provenance::Signed(Address::ZERO),
        };
        let mut gap = Gap::new(tip, now);
        let other = arrival(8, B256::repeat_byte(3));
        assert_eq!(gap.fill(8, other, &limits, now), Ok(()));
        assert!(gap.bodies().contains(8), "it may be the right one");
        let mut known = KnownBlocks::new(limits, BlockId::default());
        known.learn(base);
        let links = HashLinks {
            parents: vec![parent, base],
            known: None,
        };
        gap.extend_down(&links, &known, &limits, now);
        assert!(gap.is_linked() && gap.expected(8) == Some(parent));
        assert!(!gap.bodies().contains(8) && gap.bodies().contains(9));
    }
}
