//! The fetcher: decides what is requested from which peer to fill the gap, by number or by range.
//!
//! A short gap is requested block by block (`fetcher/by_number.rs`): every node of the network
//! serves blocks by number. A long gap is requested in ranges (`fetcher/by_range.rs`) from peers
//! that have sent a status, which only peers that run this node do. If range requests fail, a long
//! gap is requested by number as well. Both kinds of requests share one set of peers
//! (`fetcher/peers.rs`) and one table of requests in flight (`fetcher/requests.rs`). The gap's
//! stall clock (`clock.rs`) decides when to fall back.
//!
//! A peer has a back-off for each of the two protocols: a peer that refuses ranges may still serve
//! blocks by number.
//!
//! Overload: none, since peers cannot send anything unrequested. Requests in flight are bounded in
//! number, and their responses in bytes.

mod by_number;
mod by_range;
mod peers;
mod requests;
mod windows;

use super::{SyncAction, SyncLimits, gap::Gap, known::KnownBlocks, messages::PeerStatus};
use crate::peers::Offence;
#[cfg(test)]
pub(super) use by_number::{MAX_NUMBER_REQUESTS, PEER_QUOTA, RELEASE_AFTER, WINDOW};
pub(super) use by_range::MIN_RANGE;
use libp2p::PeerId;
use peers::{FetchPeer, RangePeer};
use rand::{SeedableRng, rngs::StdRng};
use requests::{InFlight, RequestKind, RequestTable};
use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};
use windows::Windows;

/// The state of the chain that decides which blocks are requested for a gap.
#[derive(Clone, Copy)]
pub(super) struct FetchContext<'a> {
    pub known: &'a KnownBlocks,
    pub limits: &'a SyncLimits,
    /// The number at which the walk down will likely meet a known block.
    pub likely_base: u64,
}

/// The events that the fetcher waits for after its last pass over the gap.
#[derive(Debug, Default)]
struct FetchWaits {
    /// The end of a back-off: blocks are missing, and every peer is in its back-off.
    starved: bool,
    /// Responses to requests by number.
    by_number: bool,
    /// Responses to range requests.
    by_range: bool,
}

#[derive(Debug)]
pub(super) struct Fetcher {
    /// Connected peers from which blocks may be requested.
    peers: BTreeMap<PeerId, FetchPeer>,
    requests: RequestTable,
    /// Windows of the gap that are not requested from any peer.
    windows: Windows,
    /// Moving average of the time in which a window arrives.
    window_time: Duration,
    waits: FetchWaits,
    /// Random numbers for the jitter of back-offs and for the choice among equal peers.
    rng: StdRng,
    actions: Vec<SyncAction>,
}

impl Fetcher {
    pub fn new(seed: u64) -> Self {
        Self {
            peers: BTreeMap::new(),
            requests: RequestTable::default(),
            windows: Windows::default(),
            window_time: Duration::ZERO,
            waits: FetchWaits::default(),
            rng: StdRng::seed_from_u64(seed),
            actions: Vec::new(),
        }
    }

    /// Requests to send and to cancel, and penalties, in order. Call after every event.
    pub fn take_actions(&mut self) -> std::vec::Drain<'_, SyncAction> {
        self.actions.drain(..)
    }

    pub fn on_peer(&mut self, peer: PeerId) {
        self.peers.entry(peer).or_default().number = Default::default();
    }

    pub fn on_peer_gone(&mut self, peer: &PeerId) {
        self.peers.remove(peer);
        for id in self.requests.ranges_of(peer) {
            self.cancel(id);
        }
    }

    /// Records the status of a peer: the blocks that it claims to have.
    pub fn on_status(&mut self, peer: PeerId, status: PeerStatus) {
        let Some(peer) = self.peers.get_mut(&peer) else {
            return;
        };
        match &mut peer.range {
            Some(range) => (range.status, range.refused) = (status, false),
            None => peer.range = Some(RangePeer::new(status)),
        }
    }

    /// Whether to request by range: range requests are in flight, or the gap is long enough and a
    /// peer may serve it.
    pub fn uses_ranges(&self, gap: &Gap, head: u64) -> bool {
        let below = if gap.is_linked() {
            0
        } else {
            gap.low().saturating_sub(head)
        };
        self.requests.has_ranges()
            || (gap.len() + below >= MIN_RANGE && self.has_range_peer(gap.low()))
    }

    /// Begins a pass over the gap, and forgets the events that the last pass waited for.
    pub fn begin_pass(&mut self) {
        self.waits = FetchWaits::default();
    }

    /// Requests the missing blocks of the gap, the most urgent first.
    pub fn request_missing(&mut self, gap: &mut Gap, context: FetchContext<'_>, now: Instant) {
        if !self.uses_ranges(gap, context.known.head()) {
            return self.request_by_number(gap, context, now);
        }
        self.request_ranges(gap, context, now);
        if gap.clock.fall_back_at().is_some_and(|at| now >= at) {
            self.request_by_number(gap, context, now);
        }
    }

    /// Requests blocks that are needed later, while the chain has no capacity for more payloads.
    pub fn read_ahead(&mut self, gap: &mut Gap, context: FetchContext<'_>, now: Instant) {
        // Nothing is needed now, so no response can be late.
        gap.clock.on_response(now);
        if self.uses_ranges(gap, context.known.head()) {
            self.request_ranges(gap, context, now);
        }
    }

    /// The time at which the gap needs another pass if no event comes first.
    pub fn next_wake(&self, gap: &Gap) -> Option<Instant> {
        let FetchWaits {
            starved,
            by_number,
            by_range,
        } = self.waits;
        let back_off = starved.then(|| self.next_number_peer_ready()).flatten();
        let range = by_range.then(|| self.next_range_wake(gap)).flatten();
        let fall_back = (by_range && !by_number && !starved)
            .then(|| gap.clock.fall_back_at())
            .flatten();
        let late = by_number.then(|| self.next_release()).flatten();
        [back_off, range, fall_back, late]
            .into_iter()
            .flatten()
            .min()
    }

    /// Whether blocks are missing and every peer is in its back-off.
    pub fn is_starved(&self) -> bool {
        self.waits.starved
    }

    /// Number of requests in flight.
    pub fn in_flight(&self) -> usize {
        self.requests.len()
    }

    /// The reasons why no peer delivers this block, as text for an operator.
    pub fn explain_missing(&self, number: u64, now: Instant) -> Vec<String> {
        let mut reasons = self.explain_range_peers(number, now);
        let requests = self.requests.numbers();
        reasons.extend(
            requests
                .filter(|(_, asked)| *asked == number)
                .map(|(peer, _)| format!("{peer} is asked for it by number")),
        );
        if reasons.is_empty() {
            reasons.push(if self.is_starved() {
                "every connected peer has failed lately".into()
            } else {
                "no peer that serves blocks is connected".into()
            });
        }
        reasons
    }

    /// Cancels a range request. Its part of the gap will be requested again.
    fn cancel(&mut self, id: u64) {
        let Some(request) = self.requests.remove(id) else {
            return;
        };
        if let RequestKind::Window(window) = request.kind {
            self.windows.put_back(window);
        }
        self.actions.push(SyncAction::Cancel { id });
    }

    fn penalize(&mut self, peer: PeerId, offence: Offence, evidence: String) {
        self.actions.push(SyncAction::Penalize {
            peer,
            offence,
            evidence,
        });
    }
}
