//! Gap filling: trusted tips go in, payloads come out parents first, and the blocks in between are
//! fetched from peers.
//!
//! [`Sync`] is a pure state machine: events and `now` go in, [`SyncAction`]s come out of
//! [`Sync::poll`], and [`Sync::next_wake`] returns when to call [`Sync::on_timer`]. It owns no
//! socket, no clock and no task. [`client::SyncClient`] owns the tasks that send its requests, and
//! `service/sync.rs` connects the two.
//!
//! [`Sync`] is the façade. `gap.rs` has the state of the gap: a skeleton of hashes and the bodies
//! that have arrived. `fetcher.rs` decides what is requested from which peer, by number or by
//! range. `tips.rs` keeps the tips that wait outside the gap, and `known.rs` the chain's verdicts.
//!
//! Trust: a *tip* is trusted because gossip checked its signature, or because a rollup node sent
//! it. A block below a tip is trusted only by its hash link, since signatures do not survive a
//! change of signer. So a gap is walked backward from its tip, and each block is checked against
//! the parent hash of the block above it. The hashes (the *skeleton*, 32 bytes a block) are kept
//! for the whole gap, bodies only up to a byte budget. Once the walk meets a block that the chain
//! has executed, payloads are handed over upward.
//!
//! A higher tip replaces the top of a long gap whose walk has ended. The walk down from the new tip
//! ends where it meets the former skeleton, and the gap keeps the lower part of that skeleton with
//! its bodies and requests. Thus a skeleton is extended by blocks that gossip missed, and cut back
//! to the fork point if the sequencer built another branch.
//!
//! While a rollup node drives the chain over the Engine API, only the heads that it names open
//! gaps. A gossiped block with an unknown parent opens none, since the chain could not make it the
//! head.
//!
//! Overload: tips (bounded in number), skeleton and bodies (bounded, see [`SyncLimits`]), and
//! blocks that the chain has not settled yet (bounded in bytes and number). Past a bound something
//! is forgotten, and fetched again when it is needed.

mod bodies;
pub(crate) mod client;
mod clock;
mod fetcher;
mod gap;
mod known;
mod messages;
pub(crate) mod progress;
mod skeleton;
#[cfg(test)]
mod tests;
mod tips;

use crate::{
    peers::Offence,
    types::{Arrival, ChainHeads, Provenance, Settled, SyncReport},
};
use alloy_primitives::{Address, B256};
use fetcher::{FetchContext, Fetcher};
use gap::{Gap, GapStep, WrongBody};
use known::{BlockRefusal, KnownBlocks};
use libp2p::PeerId;
pub use messages::{FetchError, HashLinks, PeerStatus, RangeRequest};
use starling_proto::payload::{BlockId, Payload};
use std::{collections::VecDeque, sync::Arc, time::Instant};
use tips::Tips;

/// Bounds of the memory that sync uses.
#[derive(Clone, Copy, Debug)]
pub struct SyncLimits {
    /// Largest number of hashes kept for a gap, at 32 bytes each. The upper part of a longer gap is
    /// walked again later.
    pub skeleton: usize,
    /// Largest number of bytes of bodies kept for the gap.
    pub bodies: usize,
    /// Largest number of bytes of payloads handed over and not settled.
    pub unsettled_bytes: usize,
    /// Largest number of payloads handed over and not settled. It must not exceed the capacity of
    /// the event channel, so that the channel is never full.
    pub unsettled: usize,
}

impl Default for SyncLimits {
    fn default() -> Self {
        Self {
            skeleton: 1 << 20,
            bodies: 16 << 20,
            unsettled_bytes: 32 << 20,
            unsettled: 1024,
        }
    }
}

/// The reason why a tip was given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TipDropped {
    /// The tip is a block that the chain found invalid, or a descendant of one.
    Invalid,
    /// The tip's branch reaches the safe block's height, or genesis, without meeting our chain.
    Foreign,
    /// No peer could fill the gap below the tip, and a higher tip replaced it.
    Stalled,
}

impl From<BlockRefusal> for TipDropped {
    fn from(refusal: BlockRefusal) -> Self {
        match refusal {
            BlockRefusal::Invalid => TipDropped::Invalid,
            BlockRefusal::Foreign => TipDropped::Foreign,
        }
    }
}

/// An action for the caller to carry out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SyncAction {
    /// Hand the payload to the chain.
    HandOver {
        payload: Arc<Payload>,
        provenance: Provenance,
        blame: Option<PeerId>,
    },
    /// Request one block by number; the result goes to [`Sync::on_fetched`].
    FetchNumber { id: u64, peer: PeerId, number: u64 },
    /// Request a range; responses go to [`Sync::on_links`], [`Sync::on_blocks`] and
    /// [`Sync::on_range_end`].
    FetchRange {
        id: u64,
        peer: PeerId,
        request: RangeRequest,
    },
    /// Cancel a range request.
    Cancel { id: u64 },
    /// Report an offence of a peer to the peers module.
    Penalize {
        peer: PeerId,
        offence: Offence,
        evidence: String,
    },
    /// Write a decision about a peer, which is no offence, into the ledger.
    Note {
        peer: PeerId,
        reason: &'static str,
        evidence: String,
    },
    /// Log that a tip was given up.
    Drop { tip: BlockId, why: TipDropped },
}

/// A payload that arrived, with the reason why it is trusted.
#[derive(Clone, Debug)]
struct Body {
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
    fn is_from_engine(&self) -> bool {
        self.provenance == Provenance::Engine
    }

    fn parent_known(&self, known: &KnownBlocks) -> bool {
        self.arrival.parent_known || known.knows(&self.payload().parent_hash())
    }
}

/// The state machine of sync.
#[derive(Debug)]
pub struct Sync {
    limits: SyncLimits,
    known: KnownBlocks,
    fetcher: Fetcher,
    gap: Option<Gap>,
    /// The gap as it was before a higher tip replaced its top, until the walk down from the new tip
    /// meets it.
    former: Option<Gap>,
    /// Trusted tips outside the gap.
    tips: Tips,
    actions: VecDeque<SyncAction>,
    /// Whether a rollup node moves the head.
    driven: bool,
    /// Number of blocks that peers have delivered on request, by range or by number.
    arrived: u64,
}

impl Sync {
    /// `seed` feeds the jitter of back-offs.
    pub fn new(limits: SyncLimits, genesis: BlockId, seed: u64) -> Self {
        Self {
            limits,
            known: KnownBlocks::new(limits, genesis),
            fetcher: Fetcher::new(seed),
            gap: None,
            former: None,
            tips: Tips::default(),
            actions: VecDeque::new(),
            driven: false,
            arrived: 0,
        }
    }

    /// Number of blocks that peers have delivered on request so far.
    pub fn arrived(&self) -> u64 {
        self.arrived
    }

    /// The next action. Call after every event, until `None`.
    pub fn poll(&mut self) -> Option<SyncAction> {
        self.actions.extend(self.fetcher.take_actions());
        self.actions.pop_front()
    }

    /// The time at which [`Sync::on_timer`] should be called if no event comes first.
    pub fn next_wake(&self) -> Option<Instant> {
        let gap = self.gap.as_ref()?;
        let abandon = self.is_overtaken(gap).then(|| gap.clock.abandon_at());
        self.fetcher.next_wake(gap).into_iter().chain(abandon).min()
    }

    pub fn on_timer(&mut self, now: Instant) {
        self.pump(now);
    }

    /// Adds a connected peer from which blocks can be fetched.
    pub fn on_peer(&mut self, peer: PeerId, now: Instant) {
        self.fetcher.on_peer(peer);
        self.pump(now);
    }

    pub fn on_peer_gone(&mut self, peer: PeerId, now: Instant) {
        self.fetcher.on_peer_gone(&peer);
        self.pump(now);
    }

    /// Records the status of a connected peer that runs this node: the blocks that it claims to
    /// have.
    pub fn on_status(&mut self, peer: PeerId, status: PeerStatus, now: Instant) {
        self.fetcher.on_status(peer, status);
        self.pump(now);
    }

    /// Records a block that this node built and published: the chain has executed it.
    pub fn on_own(&mut self, hash: B256, now: Instant) {
        self.known.learn(hash);
        self.pump(now);
    }

    /// Handles a payload that passed the gossip check.
    pub fn on_gossip(&mut self, arrival: Arrival, signer: Address, now: Instant) {
        let provenance = Provenance::Signed(signer);
        self.on_tip(
            Body {
                arrival,
                provenance,
            },
            now,
        );
    }

    /// Handles a payload that came over the Engine API and whose parent the chain lacks.
    pub fn on_engine_payload(&mut self, arrival: Arrival, now: Instant) {
        let provenance = Provenance::Engine;
        self.on_tip(
            Body {
                arrival,
                provenance,
            },
            now,
        );
    }

    /// Sets whether a rollup node moves the head (`driven`) or the node itself.
    pub fn on_driven(&mut self, driven: bool, now: Instant) {
        self.driven = driven;
        self.gap.take_if(|gap| driven && !gap.is_from_engine());
        let known = &self.known;
        self.tips.retain(|tip| is_wanted(tip, driven, known));
        self.pump(now);
    }

    fn on_tip(&mut self, body: Body, now: Instant) {
        let (id, parent) = (body.payload().id(), body.payload().parent_hash());
        let refusal = self.known.refusal(&id.hash);
        if let Some(why) = refusal.or_else(|| self.known.refusal(&parent)) {
            self.known.refuse(id.hash, why);
            self.actions.push_back(SyncAction::Drop {
                tip: id,
                why: why.into(),
            });
            return;
        }
        if body.arrival.known {
            self.known.learn(id.hash);
        }
        if self.known.knows(&id.hash)
            || id.number <= self.known.floor()
            || self.tips.contains(&id.hash)
        {
            return;
        }
        let beside = match &mut self.gap {
            Some(gap) => gap.offer(body, &self.limits, now),
            None => Some(body),
        };
        if let Some(body) = beside
            && is_wanted(&body, self.driven, &self.known)
        {
            self.tips.push(body);
        }
        self.pump(now);
        self.tips.trim();
    }

    /// Handles the result of [`SyncAction::FetchNumber`]. A fetched payload has the requested
    /// number and a hash that was recomputed from its contents.
    pub fn on_fetched(&mut self, id: u64, outcome: Result<Arrival, FetchError>, now: Instant) {
        let Some((peer, number)) = self.fetcher.end_number_request(id) else {
            return;
        };
        self.arrived += u64::from(outcome.is_ok());
        match outcome {
            Ok(arrival) => {
                let filled = match &mut self.gap {
                    Some(gap) => gap.fill(number, arrival, &self.limits, now),
                    None => Ok(()),
                };
                match filled {
                    Ok(()) => self.fetcher.on_number_success(&peer, now),
                    Err(WrongBody) => self.fetcher.on_wrong_block(peer, number, now),
                }
            }
            Err(error) => self.fetcher.on_number_failure(peer, number, &error, now),
        }
        self.pump(now);
    }

    /// Handles a part of the response to a header request: hash links, highest first, already
    /// verified downward from the requested block.
    pub fn on_links(&mut self, id: u64, links: &HashLinks, now: Instant) {
        if let Some(received) = self.fetcher.on_links(id, links, now)
            && let Some(gap) = &mut self.gap
        {
            if received.complete {
                gap.clock.on_response(now);
            }
            // Blocks that came by number meanwhile may already have extended the skeleton.
            if !gap.is_linked()
                && let Some(links) = links.below(received.from, gap.bottom())
            {
                gap.extend_down(&links, &self.known, &self.limits, now);
                self.meet_former(now);
            }
        }
        self.pump(now);
    }

    /// Handles a part of a window of blocks, lowest first, each block with the requested hash.
    pub fn on_blocks(&mut self, id: u64, blocks: Vec<Arrival>, now: Instant) {
        self.arrived += blocks.len() as u64;
        if let Some(last) = blocks.last() {
            self.fetcher.on_blocks(id, last.payload.number());
        }
        for arrival in blocks {
            let (number, hash) = (arrival.payload.number(), arrival.payload.hash);
            let mut gaps = self.gap.iter_mut().chain(&mut self.former);
            if let Some(gap) = gaps.find(|gap| gap.expected(number) == Some(hash)) {
                // The hash is the expected one, so this cannot fail.
                let _ = gap.fill(number, arrival, &self.limits, now);
            }
        }
        self.pump(now);
    }

    /// Handles the end of the response to a range request.
    pub fn on_range_end(&mut self, id: u64, outcome: Result<(), FetchError>, now: Instant) {
        if self.fetcher.on_range_end(id, outcome, now)
            && let Some(gap) = &mut self.gap
        {
            gap.clock.on_response(now);
        }
        self.pump(now);
    }

    /// Handles the chain's verdict on a payload that was handed over.
    pub fn on_settled(&mut self, hash: B256, settled: &Settled, now: Instant) {
        self.known.settle(hash, settled);
        if matches!(settled, Settled::Invalid(_)) {
            self.tips.drop_refused(&mut self.known, &mut self.actions);
        }
        self.pump(now);
    }

    /// Handles a move of the chain's heads.
    pub fn on_heads(&mut self, heads: ChainHeads, now: Instant) {
        self.known.set_heads(heads);
        let floor = self.known.floor();
        self.tips.retain(|tip| tip.number() > floor);
        if let Some(gap) = &mut self.gap {
            gap.on_head(heads.head);
            if gap.top().number <= floor {
                self.gap = None;
            }
        }
        self.pump(now);
    }

    /// Number of blocks of the skeleton that are still to be handed over, for logs and metrics.
    pub fn gap_len(&self) -> u64 {
        self.gap.as_ref().map_or(0, Gap::len)
    }

    /// The state of the gap for reports.
    pub fn report(&self) -> SyncReport {
        let gap = self.gap.as_ref();
        SyncReport {
            target: gap.map(|gap| gap.top().number),
            missing: self.gap_len(),
            linked: gap.is_some_and(Gap::is_linked),
            waiting: self.tips.len() as u64,
            requests: self.fetcher.in_flight() as u64,
            peers: self.fetcher.range_peers() as u64,
            source: self
                .fetcher
                .active_peers()
                .map(PeerId::to_string)
                .reduce(|one, other| one + ", " + &other),
            starved: self.fetcher.is_starved(),
            stalled: None,
        }
    }

    /// The lowest missing block and the reasons why no peer delivers it, as text, once the gap has
    /// stalled.
    pub fn stall(&self, now: Instant) -> Option<(BlockId, String)> {
        let gap = self.gap.as_ref()?;
        let seconds = gap.clock.stalled_for(now)?.as_secs();
        let missing = gap.bottom();
        let reasons = self.fetcher.explain_missing(missing.number, now);
        Some((
            missing,
            format!(
                "block {missing} has not come for {seconds} s: {}",
                reasons.join("; ")
            ),
        ))
    }

    /// Hands over, and requests, as many blocks as is possible now. Called after every event.
    fn pump(&mut self, now: Instant) {
        self.fetcher.begin_pass();
        loop {
            self.tips.hand_over(&mut self.known, &mut self.actions);
            let Some(gap) = &mut self.gap else {
                self.former = None;
                self.fetcher.cancel_ranges();
                self.fetcher.release_all();
                let Some(tip) = self.tips.take_next(&self.known) else {
                    return;
                };
                let gap = self.gap.insert(Gap::new(tip, now));
                self.tips.offer_to(gap, &self.limits, now);
                continue;
            };
            match gap.advance(&mut self.known, &self.limits, &mut self.actions, now) {
                GapStep::NoCapacity => {
                    let context = context(&self.known, &self.limits, self.former.as_ref());
                    return self.fetcher.read_ahead(gap, context, now);
                }
                GapStep::Missing => {
                    if !self.on_missing(now) {
                        return;
                    }
                }
                GapStep::Wrong(peer) => {
                    if let Some(peer) = peer {
                        self.fetcher.on_wrong_block(peer, gap.low(), now);
                    }
                }
                GapStep::Refused(why) => {
                    for hash in gap.hashes() {
                        self.known.refuse(*hash, why);
                    }
                    self.give_up(why.into());
                }
                GapStep::Closed => self.gap = None,
            }
        }
    }

    /// Requests missing bodies from peers. Returns `true` if the gap was given up or replaced
    /// instead.
    fn on_missing(&mut self, now: Instant) -> bool {
        let stalled = self
            .gap
            .as_ref()
            .is_some_and(|gap| now >= gap.clock.abandon_at() && self.is_overtaken(gap));
        if stalled {
            self.give_up(TipDropped::Stalled);
        }
        if stalled || self.follow_tip(now) {
            return true;
        }
        if let Some(gap) = &mut self.gap {
            let context = context(&self.known, &self.limits, self.former.as_ref());
            self.fetcher.request_missing(gap, context, now);
        }
        false
    }

    /// Whether a waiting tip is higher than the gap.
    fn is_overtaken(&self, gap: &Gap) -> bool {
        self.tips.reach_above(gap.top().number)
    }

    /// Replaces the top of a long gap by a higher tip, or abandons a branch that no peer has.
    /// Returns `true` if the gap has changed.
    fn follow_tip(&mut self, now: Instant) -> bool {
        let Some(gap) = &self.gap else { return false };
        if !self.fetcher.uses_ranges(gap, self.known.head()) || !self.is_overtaken(gap) {
            return false;
        }
        if !gap.is_linked() {
            let refused = self.fetcher.is_refused_by_all(gap.low());
            if refused {
                self.give_up(TipDropped::Stalled);
            }
            return refused;
        }
        let clock = gap.clock.successor(now);
        let Some(tip) = self.tips.take_next(&self.known) else {
            return false;
        };
        self.fetcher.release_all();
        let mut next = Gap::new(tip, now);
        next.clock = clock;
        self.tips.offer_to(&mut next, &self.limits, now);
        self.former = self.gap.replace(next);
        self.meet_former(now);
        true
    }

    /// Takes over the lower part of the former gap once the walk down has met its skeleton.
    fn meet_former(&mut self, now: Instant) {
        let (Some(gap), Some(former)) = (&mut self.gap, &mut self.former) else {
            return;
        };
        if let Some(meet) = gap.take_over(former, now) {
            tracing::debug!(
                number = meet,
                target = gap.top().number,
                "the skeleton continues below another tip"
            );
            self.fetcher.cut_ranges(meet);
            self.former = None;
        } else if gap.is_linked() {
            gap.clock.on_cancelled();
            self.fetcher.cancel_ranges();
            self.former = None;
        }
    }

    fn give_up(&mut self, why: TipDropped) {
        if let Some(gap) = self.gap.take() {
            self.actions.push_back(SyncAction::Drop {
                tip: gap.top(),
                why,
            });
        }
    }
}

/// Whether a tip may open a gap. While a rollup node drives, only a head that the rollup node named
/// may do so, or a tip that needs no gap.
fn is_wanted(tip: &Body, driven: bool, known: &KnownBlocks) -> bool {
    !driven || tip.is_from_engine() || tip.parent_known(known)
}

fn context<'a>(
    known: &'a KnownBlocks,
    limits: &'a SyncLimits,
    former: Option<&Gap>,
) -> FetchContext<'a> {
    let former = former.map_or(0, |former| former.top().number);
    FetchContext {
        known,
        limits,
        likely_base: former.max(known.head()),
    }
}
