//! Requests by range: a long gap filled from many peers at once.
//!
//! First come headers, from the trusted tip downward. Each header is the preimage of a hash that is
//! already trusted and names the next hash, so no peer can forge one; their hashes form the
//! skeleton. Then windows of blocks are requested upward, from several peers at once, as far ahead
//! as the budget of bodies allows. A peer gets its next window when it has delivered one, so a
//! slower peer gets fewer. If the lowest window is late, it is reassigned to a peer with capacity,
//! and the ledger gets an entry about the late peer.
//! A request names the highest block of its window by hash, so an honest peer on another branch
//! refuses it, and a peer that sends other blocks commits an offence.

use super::{
    FetchContext, Fetcher, InFlight, RangePeer, RequestKind, SyncAction,
    peers::back_off,
    requests::{BlockWindow, HeaderWalk},
};
use crate::{
    peers::Offence,
    sync::{
        gap::Gap,
        messages::{FetchError, HashLinks, RangeRequest},
    },
};
use alloy_primitives::B256;
use libp2p::PeerId;
use starling_proto::{
    payload::BlockId,
    wire::{MAX_BODIES, MAX_HEADERS},
};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

/// Length of the shortest gap that is requested by range. In a shorter gap the walk down by number
/// costs no additional round trip.
pub(in crate::sync) const MIN_RANGE: u64 = 16;
/// Approximate size of one window in bytes: small enough that a lost window costs little, large
/// enough that a round trip does not matter.
const WINDOW_BYTES: usize = 1 << 20;
/// Number of windows requested from one peer at once: the second is in flight while the first
/// arrives.
const WINDOWS_PER_PEER: usize = 2;
/// Age at which the request that blocks all progress is reassigned. For a window, the age is
/// `SLOWER` times the recent average time of a window if that is longer.
const REASSIGN_AFTER: Duration = Duration::from_secs(2);
const SLOWER: u32 = 4;
/// Time limit for all headers of one request, a few megabytes.
const WALK_TIMEOUT: Duration = Duration::from_secs(60);
/// Number of a peer's failures in a row, of any kind, at which a request that it drops is an
/// offence. Fewer may be due to load.
const MAX_FAILURES: u32 = 3;

/// The state of a header request after some of its headers have arrived.
pub(in crate::sync) struct LinksReceived {
    /// The block at which the received links begin.
    pub from: BlockId,
    /// Whether the response to the request is complete.
    pub complete: bool,
}

impl Fetcher {
    /// Handles verified headers of a request, highest first.
    pub fn on_links(&mut self, id: u64, links: &HashLinks, now: Instant) -> Option<LinksReceived> {
        let request = self.requests.get_mut(id)?;
        let RequestKind::Headers(walk) = &mut request.kind else {
            return None;
        };
        let from = walk.from;
        if let Some(hash) = links.parents.last().copied() {
            walk.from = BlockId {
                number: from.number.saturating_sub(links.parents.len() as u64),
                hash,
            };
        }
        if links.known.is_some() {
            walk.end = walk.from.number;
        }
        // End the request now, so that the peer can get block requests before its stream ends.
        let complete = walk.from.number <= walk.end && self.on_range_end(id, Ok(()), now);
        Some(LinksReceived { from, complete })
    }

    /// Handles blocks of a window that have arrived, up to `number`.
    pub fn on_blocks(&mut self, id: u64, number: u64) {
        if let Some(request) = self.requests.get_mut(id)
            && let RequestKind::Window(window) = &mut request.kind
        {
            window.next = number + 1;
        }
    }

    /// Handles the end of a range request. Returns `true` if its response is complete.
    pub fn on_range_end(&mut self, id: u64, outcome: Result<(), FetchError>, now: Instant) -> bool {
        let Some(request) = self.requests.remove_range(id) else {
            return false;
        };
        let peer = request.peer;
        let (number, complete) = match request.kind {
            RequestKind::Number(_) => return false,
            RequestKind::Headers(walk) => (walk.from.number, walk.from.number <= walk.end),
            RequestKind::Window(window) => (window.last, window.next > window.last),
        };
        if let RequestKind::Window(window) = request.kind {
            if !complete {
                self.windows.put_back(window);
            }
            if outcome.is_ok() {
                self.note_window_time(now.saturating_duration_since(request.since));
            }
        }
        match outcome {
            // Reset the peer's failures only when a request ends without an error, not for each
            // block: a peer that sends one block of each window and then stalls must still get a
            // back-off. A window may end early, since the peer limits its bytes.
            Ok(()) if complete || request.window().is_some() => self.on_range_success(&peer),
            // A failure: a peer that sends a few headers of each request would make a long walk
            // endless.
            Ok(()) => self.on_range_failure(&peer, now),
            Err(error) => {
                self.on_range_error(peer, number, error, now);
                return false;
            }
        }
        complete
    }

    fn on_range_error(&mut self, id: PeerId, number: u64, error: FetchError, now: Instant) {
        match error {
            FetchError::NotFound | FetchError::Unsupported => self.on_refusal(id, number, now),
            FetchError::TimedOut => self.on_range_failure(&id, now),
            FetchError::Unreachable => {
                self.on_range_failure(&id, now);
                let failures = self.range_peer(&id).map_or(0, |peer| peer.failures);
                if failures >= MAX_FAILURES {
                    let evidence = format!(
                        "dropped a request for block {number}; {failures} in a row brought nothing"
                    );
                    self.penalize(id, Offence::NoResponse, evidence);
                }
            }
            FetchError::Malformed(evidence) => {
                self.on_range_failure(&id, now);
                self.penalize(id, Offence::MalformedResponse, evidence);
            }
            FetchError::False(evidence) => {
                if let Some(peer) = self.range_peer(&id) {
                    peer.sent_false_block = true;
                }
                self.penalize(id, Offence::FalseBlock, evidence);
            }
        }
    }

    fn note_window_time(&mut self, took: Duration) {
        self.window_time = if self.window_time.is_zero() {
            took
        } else {
            (self.window_time * 7 + took) / 8
        };
    }

    /// Cancels all range requests, because the gap was closed or replaced.
    pub fn cancel_ranges(&mut self) {
        for id in self.requests.range_ids(|_| true) {
            self.cancel(id);
        }
        self.windows.clear();
    }

    /// Cancels header requests, and requests for windows that reach above `number`: the skeleton
    /// has other hashes there now.
    pub fn cut_ranges(&mut self, number: u64) {
        let above = |request: &InFlight| request.window().is_none_or(|w| w.last > number);
        for id in self.requests.range_ids(above) {
            self.cancel(id);
        }
        self.windows.cut(number);
    }

    /// Number of peers that have sent a status and no false block.
    pub fn range_peers(&self) -> usize {
        self.with_status()
            .filter(|(_, peer)| !peer.sent_false_block)
            .count()
    }

    /// Whether any peer may have block `number`, even one in its back-off.
    pub(super) fn has_range_peer(&self, number: u64) -> bool {
        self.with_status().any(|(_, peer)| peer.may_have(number))
    }

    /// Whether some peer is on another branch, and no peer may have block `number`.
    pub fn is_refused_by_all(&self, number: u64) -> bool {
        self.with_status().any(|(_, peer)| peer.refused) && !self.has_range_peer(number)
    }

    /// The time at which [`Fetcher::request_ranges`] has something to do without an event.
    pub(super) fn next_range_wake(&self, gap: &Gap) -> Option<Instant> {
        let ready = self
            .with_status()
            .filter(|(_, peer)| peer.is_usable())
            .filter_map(|(_, peer)| peer.ready);
        // No reassignment is due if the lowest block is already there, or if there is no other
        // peer.
        let low = gap.low();
        let awaited = if self.with_status().count() <= 1 || gap.bodies().contains(low) {
            None
        } else if gap.is_linked() {
            self.requests.window_with(low)
        } else {
            self.walk_to(gap)
        };
        let reassign = awaited.and_then(|(_, request)| request.reassign_at());
        let overdue = self
            .requests
            .ranges()
            .filter(|(_, request)| request.walk().is_some())
            .map(|(_, request)| request.since + WALK_TIMEOUT);
        ready.chain(reassign).chain(overdue).min()
    }

    /// Requests headers and windows that the gap needs, within the budget.
    pub(super) fn request_ranges(
        &mut self,
        gap: &mut Gap,
        context: FetchContext<'_>,
        now: Instant,
    ) {
        self.waits.by_range = true;
        for peer in self.peers.values_mut().filter_map(|p| p.range.as_mut()) {
            peer.ready.take_if(|ready| *ready <= now);
        }
        gap.clock.expect_response(now);
        self.end_overdue_walks(now);
        if !gap.is_linked() {
            return self.walk_down(gap, context, now);
        }
        let requests = self.requests.ranges().map(|(_, request)| request);
        self.windows.repair(gap, requests);
        loop {
            // Only the window at the bottom of the gap, which blocks all progress, may exceed the
            // budget. When its blocks arrive, the highest bodies are evicted.
            let used = gap.bodies().bytes() + self.requests.ranges().count() * WINDOW_BYTES;
            if !self.windows.is_urgent(gap) && used + WINDOW_BYTES > context.limits.bodies {
                break;
            }
            let Some((first, last)) = self.next_window(gap) else {
                break;
            };
            let Some(peer) = self.pick_range_peer(first, last) else {
                break;
            };
            self.request_window(gap, peer, first, last, now);
        }
        self.reassign_lowest(gap, now);
    }

    /// Requests headers below the skeleton.
    fn walk_down(&mut self, gap: &Gap, context: FetchContext<'_>, now: Instant) {
        let (from, floor) = (gap.bottom(), context.known.floor());
        if from.number <= floor {
            return;
        }
        let peer = match self.walk_to(gap).map(|(id, _)| id) {
            Some(id) => self.reassign(id, from.number, now),
            None => self.pick_range_peer(from.number, from.number),
        };
        let Some(peer) = peer else { return };
        let count = from
            .number
            .saturating_sub(context.likely_base)
            .max(MIN_RANGE)
            .min(from.number - floor);
        let count = u32::try_from(count).unwrap_or(u32::MAX).min(MAX_HEADERS);
        let walk = HeaderWalk {
            from,
            end: from.number.saturating_sub(count.into()),
            reassign_at: now + REASSIGN_AFTER,
        };
        let id = self.requests.insert(peer, RequestKind::Headers(walk), now);
        let request = RangeRequest::Headers { from, count };
        self.actions
            .push(SyncAction::FetchRange { id, peer, request });
    }

    /// The header request in flight whose next header is that of a block of the gap's skeleton.
    fn walk_to(&self, gap: &Gap) -> Option<(u64, &InFlight)> {
        let leads = |walk: HeaderWalk| gap.expected(walk.from.number) == Some(walk.from.hash);
        self.requests
            .ranges()
            .find(|(_, request)| request.walk().is_some_and(leads))
    }

    /// Ends header requests that take too long in total, although each frame may have arrived in
    /// time.
    fn end_overdue_walks(&mut self, now: Instant) {
        let overdue =
            |request: &InFlight| request.walk().is_some() && now >= request.since + WALK_TIMEOUT;
        for id in self.requests.range_ids(overdue) {
            let Some(peer) = self.requests.get(id).map(|request| request.peer) else {
                continue;
            };
            self.cancel(id);
            self.on_range_failure(&peer, now);
            let evidence = format!(
                "has not sent the requested headers within {} s",
                WALK_TIMEOUT.as_secs()
            );
            self.penalize(peer, Offence::NoResponse, evidence);
        }
    }

    /// The lowest run of blocks that is not requested, at most as long as a window.
    fn next_window(&mut self, gap: &Gap) -> Option<(u64, u64)> {
        let count = (WINDOW_BYTES / gap.bodies().average()).clamp(1, MAX_BODIES as usize);
        self.windows.next(gap, count as u64)
    }

    fn request_window(&mut self, gap: &Gap, peer: PeerId, first: u64, last: u64, now: Instant) {
        let reach = self.range_peer(&peer).map_or(last, |peer| peer.reach());
        let last = last.min(reach);
        self.windows.take(last);
        let hashes: Arc<[B256]> = (first..=last)
            .map_while(|number| gap.expected(number))
            .collect();
        if hashes.is_empty() {
            return;
        }
        let window = BlockWindow {
            next: first,
            last,
            reassign_at: now + REASSIGN_AFTER.max(self.window_time * SLOWER),
        };
        let id = self.requests.insert(peer, RequestKind::Window(window), now);
        let request = RangeRequest::Bodies {
            first,
            hashes,
            max_bytes: 2 * WINDOW_BYTES as u32,
        };
        self.actions
            .push(SyncAction::FetchRange { id, peer, request });
    }

    /// Picks a peer with capacity that may have the first of these blocks: the least loaded; of
    /// several, first one that may have all, then the one with the fewest failures.
    fn pick_range_peer(&self, first: u64, last: u64) -> Option<PeerId> {
        self.with_status()
            .filter(|(_, peer)| peer.ready.is_none() && peer.may_have(first))
            .map(|(id, peer)| {
                let load = self.requests.range_load(id);
                (load, peer.reach() < last, peer.failures, *id)
            })
            .filter(|(load, ..)| *load < WINDOWS_PER_PEER)
            .min()
            .map(|(.., id)| id)
    }

    /// Reassigns the lowest window, which blocks all progress, to a peer with capacity.
    fn reassign_lowest(&mut self, gap: &Gap, now: Instant) {
        let low = gap.low();
        if gap.bodies().contains(low) {
            return;
        }
        let Some(id) = self.requests.window_with(low).map(|(id, _)| id) else {
            return;
        };
        if let Some(peer) = self.reassign(id, low, now)
            && let Some((first, last)) = self.next_window(gap)
        {
            self.request_window(gap, peer, first, last, now);
        }
    }

    /// Cancels the request `id`, which blocks all progress, if it is late and another peer has
    /// capacity. Returns that peer.
    fn reassign(&mut self, id: u64, number: u64, now: Instant) -> Option<PeerId> {
        let request = self.requests.get(id)?;
        request.reassign_at().filter(|at| now >= *at)?;
        let holder = request.peer;
        let other = self.pick_range_peer(number, number);
        let Some(other) = other.filter(|other| *other != holder) else {
            self.requests.postpone_reassignment(now + back_off(0));
            return None;
        };
        let age = now.saturating_duration_since(request.since);
        self.cancel(id);
        self.on_range_failure(&holder, now);
        let evidence = format!(
            "the request for block {number} was late after {:.1} s and went to {other}",
            age.as_secs_f64()
        );
        tracing::debug!(%holder, evidence, "late range request reassigned");
        self.actions.push(SyncAction::Note {
            peer: holder,
            reason: "late_response",
            evidence,
        });
        Some(other)
    }

    fn on_range_success(&mut self, peer: &PeerId) {
        if let Some(peer) = self.range_peer(peer) {
            (peer.failures, peer.ready) = (0, None);
        }
    }

    fn on_range_failure(&mut self, peer: &PeerId, now: Instant) {
        if let Some(peer) = self.range_peer(peer) {
            peer.ready = Some(now + back_off(peer.failures));
            peer.failures = peer.failures.saturating_add(1);
        }
    }

    fn on_refusal(&mut self, id: PeerId, number: u64, now: Instant) {
        self.on_range_failure(&id, now);
        let Some(peer) = self.range_peer(&id).filter(|peer| peer.claims(number)) else {
            return;
        };
        // Charge once per status only: honest peers on another branch refuse too.
        if !std::mem::replace(&mut peer.refused, true) {
            let (oldest, head) = (peer.status.oldest, peer.status.head);
            let evidence = format!(
                "says it has blocks {oldest} to {head} and refused block {number} of our branch"
            );
            self.penalize(id, Offence::FalseStatus, evidence);
        }
    }

    /// For each peer with a status, the reason why it does not deliver the block.
    pub(super) fn explain_range_peers(&self, number: u64, now: Instant) -> Vec<String> {
        let oldest_request = |id: &PeerId| {
            let requests = self.requests.ranges().filter(|(_, r)| r.peer == *id);
            requests
                .map(|(_, r)| now.saturating_duration_since(r.since).as_secs())
                .max()
        };
        let explain = |(id, peer): (&PeerId, &RangePeer)| match oldest_request(id) {
            _ if peer.sent_false_block => format!("{id} sent false blocks"),
            Some(seconds) => {
                format!("{id} was asked {seconds} s ago and has not answered to the end")
            }
            None if peer.refused => {
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
        self.with_status().map(explain).collect()
    }

    /// The peers that have sent a status.
    fn with_status(&self) -> impl Iterator<Item = (&PeerId, &RangePeer)> {
        self.peers
            .iter()
            .filter_map(|(id, peer)| Some((id, peer.range.as_ref()?)))
    }

    fn range_peer(&mut self, id: &PeerId) -> Option<&mut RangePeer> {
        self.peers.get_mut(id)?.range.as_mut()
    }
}
