//! Requests by number: chooses the peers, and how many single blocks to request from each.
//!
//! The peer that delivered the tip is chosen first. More peers become active while there are blocks
//! to request, those with the fewest failures first. After a failure a peer has a jittered back-off
//! that doubles with each failure.

use super::{
    FetchContext, Fetcher, SyncAction,
    peers::{FetchPeer, NumberPeer, back_off},
    requests::RequestKind,
};
use crate::{
    peers::Offence,
    sync::{
        gap::{Gap, MAX_AHEAD},
        messages::FetchError,
    },
};
use libp2p::PeerId;
use rand::Rng;
use std::time::{Duration, Instant};

/// Largest number of requests by number in flight, including those to released peers: as many as
/// the bodies that are kept ahead of the walk down.
pub(in crate::sync) const MAX_NUMBER_REQUESTS: usize = MAX_AHEAD as usize;
/// Largest number of blocks requested from one peer at a time.
pub(in crate::sync) const WINDOW: usize = 16;
/// Number of blocks requested from one peer before another peer becomes active as well. A short gap
/// is not worth many peers, one of which may be slow. An op-node serves four requests a second.
pub(in crate::sync) const PEER_QUOTA: usize = 8;
/// Time without a response after which an active peer is released, if there is another peer. The
/// peer that delivered a tip is the first to get requests for the blocks below, and must not delay
/// them. A late response is still accepted.
pub(in crate::sync) const RELEASE_AFTER: Duration = Duration::from_secs(2);
/// Back-off of a peer that does not support the protocol. Only a restart can change that, and a
/// restart means a new connection.
const UNSUPPORTED: Duration = Duration::from_secs(120);
/// Shortest time between two charges of one peer for wrong blocks. An honest peer on another branch
/// sends only wrong blocks, and many are requested at once; at one charge a slot it is never banned.
const WRONG_BLOCK_INTERVAL: Duration = Duration::from_secs(2);

impl Fetcher {
    /// Requests the most urgent missing blocks by number.
    pub(super) fn request_by_number(
        &mut self,
        gap: &Gap,
        FetchContext { known, limits, .. }: FetchContext<'_>,
        now: Instant,
    ) {
        self.release_late_peers(now);
        // Blocks requested from released peers are requested again from others.
        let requested: Vec<u64> = self
            .requests
            .numbers()
            .filter(|(peer, _)| self.is_active(peer))
            .map(|(_, number)| number)
            .collect();
        let usable = self.peers.values().filter(|peer| peer.number.is_ready(now));
        let window = (usable.count() * PEER_QUOTA).clamp(WINDOW, MAX_NUMBER_REQUESTS);
        let in_flight = self.requests.numbers().count();
        let capacity = window
            .saturating_sub(requested.len())
            .min(MAX_NUMBER_REQUESTS.saturating_sub(in_flight));
        let wanted = gap.wanted(known, &requested, window as u64, limits);
        for number in wanted.into_iter().take(capacity) {
            let Some(peer) = self.pick_number_peer(gap.deliverer(), now) else {
                let is_starved = self.active_peers().next().is_none();
                self.waits.starved = is_starved;
                break;
            };
            // Do not request from a peer twice: a peer that was released may still deliver this
            // block.
            if self.requests.numbers().all(|other| other != (peer, number)) {
                let id = self.requests.insert(peer, RequestKind::Number(number), now);
                let action = SyncAction::FetchNumber { id, peer, number };
                self.actions.push(action);
            }
        }
        self.waits.by_number = !self.waits.starved;
    }

    /// Removes a request by number that ended; returns its peer and its number.
    pub fn end_number_request(&mut self, id: u64) -> Option<(PeerId, u64)> {
        self.requests.remove_number(id)
    }

    /// Records that the peer has delivered the requested block.
    pub fn on_number_success(&mut self, peer: &PeerId, now: Instant) {
        if let Some(peer) = self.peers.get_mut(peer) {
            peer.number = NumberPeer {
                active: peer.number.active.map(|_| now),
                ..Default::default()
            };
        }
    }

    /// Records that the peer has not delivered the requested block. An active peer gets a back-off;
    /// a late failure of a released peer changes nothing, unless its response is malformed.
    pub fn on_number_failure(
        &mut self,
        peer: PeerId,
        number: u64,
        error: &FetchError,
        now: Instant,
    ) {
        if matches!(error, FetchError::Malformed(_) | FetchError::False(_)) {
            let evidence = format!("asked for block {number}");
            self.penalize(peer, Offence::MalformedResponse, evidence);
            self.release(&peer, false, now);
        } else if self.is_active(&peer) {
            self.release(&peer, *error == FetchError::Unsupported, now);
        }
    }

    /// Releases a peer whose block is not the one that the skeleton names, and charges it if it was
    /// not charged lately.
    pub fn on_wrong_block(&mut self, peer: PeerId, number: u64, now: Instant) {
        let is_due = |at: Instant| now >= at + WRONG_BLOCK_INTERVAL;
        if let Some(record) = self.peers.get_mut(&peer)
            && record.charged.is_none_or(is_due)
        {
            record.charged = Some(now);
            let evidence = format!("its block {number} is not the one its child names");
            self.penalize(peer, Offence::WrongBlock, evidence);
        }
        self.release(&peer, false, now);
    }

    /// Releases all peers: for another gap the peers are chosen anew.
    pub fn release_all(&mut self) {
        for peer in self.peers.values_mut() {
            peer.number.active = None;
        }
    }

    /// The peers from which blocks are requested by number.
    pub fn active_peers(&self) -> impl Iterator<Item = &PeerId> {
        self.peers
            .iter()
            .filter(|(_, peer)| peer.number.active.is_some())
            .map(|(id, _)| id)
    }

    fn is_active(&self, peer: &PeerId) -> bool {
        self.peers
            .get(peer)
            .is_some_and(|peer| peer.number.active.is_some())
    }

    /// Picks a peer for one more block: first an active peer below [`PEER_QUOTA`], then a new peer,
    /// then any active peer below [`WINDOW`].
    fn pick_number_peer(&mut self, preferred: Option<PeerId>, now: Instant) -> Option<PeerId> {
        let active: Vec<(PeerId, usize)> = self
            .active_peers()
            .map(|peer| (*peer, self.requests.number_load(peer)))
            .collect();
        let below_quota = active
            .iter()
            .filter(|(_, load)| *load < PEER_QUOTA)
            .min_by_key(|(peer, _)| (Some(*peer) != preferred, *peer))
            .map(|(peer, _)| *peer);
        let least_loaded = || {
            let below_window = active.iter().filter(|(_, load)| *load < WINDOW);
            let least = below_window.min_by_key(|(_, load)| *load);
            least.map(|(peer, _)| *peer)
        };
        let id = below_quota
            .or_else(|| self.pick_new_peer(preferred, now))
            .or_else(least_loaded)?;
        let load = self.requests.number_load(&id);
        let peer = self.peers.get_mut(&id)?;
        if peer.number.active.is_none() || load == 0 {
            peer.number.active = Some(now);
        }
        (load < WINDOW).then_some(id)
    }

    /// Picks a peer that is not active yet: `preferred` if it never failed, otherwise one of those
    /// with the fewest failures.
    fn pick_new_peer(&mut self, preferred: Option<PeerId>, now: Instant) -> Option<PeerId> {
        let ready: Vec<(u32, PeerId)> = self
            .peers
            .iter()
            .filter(|(_, peer)| peer.number.active.is_none() && peer.number.is_ready(now))
            .map(|(id, peer)| (peer.number.failures, *id))
            .collect();
        if let Some(peer) = preferred.filter(|peer| ready.contains(&(0, *peer))) {
            return Some(peer);
        }
        let least = ready.iter().map(|(failures, _)| *failures).min()?;
        let best: Vec<PeerId> = ready
            .into_iter()
            .filter(|(failures, _)| *failures == least)
            .map(|(_, peer)| peer)
            .collect();
        Some(best[self.rng.random_range(0..best.len())])
    }

    /// Releases the peer, and starts its back-off.
    fn release(&mut self, peer: &PeerId, unsupported: bool, now: Instant) {
        let jitter = self.rng.random_range(0.5..1.0);
        let Some(FetchPeer { number: peer, .. }) = self.peers.get_mut(peer) else {
            return;
        };
        let wait = if unsupported {
            UNSUPPORTED
        } else {
            back_off(peer.failures)
        };
        peer.failures = peer.failures.saturating_add(1);
        (peer.ready, peer.active) = (Some(now + wait.mul_f64(jitter)), None);
    }

    /// Releases active peers that have requests in flight and have not responded for
    /// [`RELEASE_AFTER`], if there is another peer.
    fn release_late_peers(&mut self, now: Instant) {
        let late: Vec<PeerId> = self
            .peers
            .iter()
            .filter(|(_, peer)| {
                let release_at = peer.number.active.map(|since| since + RELEASE_AFTER);
                release_at.is_some_and(|at| now >= at)
            })
            .map(|(id, _)| *id)
            .filter(|id| self.requests.number_load(id) > 0)
            .collect();
        for id in late {
            let mut others = self.peers.iter().filter(|(other, _)| **other != id);
            if others.any(|(_, peer)| peer.number.is_ready(now)) {
                self.release(&id, false, now);
            } else if let Some(peer) = self.peers.get_mut(&id) {
                peer.number.active = Some(now);
            }
        }
    }

    /// The time at which the next active peer is released.
    pub(super) fn next_release(&self) -> Option<Instant> {
        self.peers
            .iter()
            .filter(|(id, _)| self.requests.number_load(id) > 0)
            .filter_map(|(_, peer)| peer.number.active)
            .min()
            .map(|since| since + RELEASE_AFTER)
    }

    /// The time at which the next back-off ends.
    pub(super) fn next_number_peer_ready(&self) -> Option<Instant> {
        self.peers
            .values()
            .filter_map(|peer| peer.number.ready)
            .min()
    }
}
