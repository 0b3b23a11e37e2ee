//! Peers that discovery found, and the schedule of their dials. While fewer peers are connected
//! than the lower limit, some candidates are dialled, a few at a time: those with the fewest
//! failures first, and otherwise at random. At the limit or above, no candidate is dialled.
//!
//! Overload: nodes that invent records of our chain. The number of candidates is bounded, and the
//! candidate that was found or connected longest ago is dropped first. A candidate that cannot be
//! reached is dialled ever more rarely and then forgotten.

use libp2p::{Multiaddr, PeerId};
use lru::LruCache;
use rand::{Rng, SeedableRng, rngs::StdRng};
use std::{
    num::NonZeroUsize,
    time::{Duration, Instant},
};

/// Largest number of candidates remembered.
const CANDIDATES: NonZeroUsize = NonZeroUsize::new(1024).unwrap();
/// Largest number of dials in progress.
const DIALS: usize = 4;
/// Wait after a candidate's first failed dial; it doubles with every further failure.
const RETRY: Duration = Duration::from_secs(10);
const MAX_RETRY: Duration = Duration::from_secs(600);
/// Failures in a row after which a candidate is forgotten, until its next record.
const MAX_FAILURES: u32 = 8;
/// Pause before a peer that disconnected, or that our rules refuse, is dialled again.
const REST: Duration = Duration::from_secs(60);
/// Time limit of a dial that reports no result; the transport's own timeout is shorter.
const DIAL_TIMEOUT: Duration = Duration::from_secs(60);

/// A node of our chain and the addresses at which it listens. `Contact::of` in
/// `discovery/record.rs` makes it from a node record, after checking the record's chain and
/// addresses.
#[derive(Clone, Debug, PartialEq)]
pub struct Contact {
    pub peer: PeerId,
    pub addresses: Vec<Multiaddr>,
    pub seq: u64,
    pub record: String,
}

impl Contact {
    /// The peer id of the node.
    pub fn peer(&self) -> PeerId {
        self.peer
    }

    /// The addresses to dial; at least one.
    pub fn addresses(&self) -> &[Multiaddr] {
        &self.addresses
    }

    /// The sequence number of the node's record: a larger number means a newer record.
    pub fn seq(&self) -> u64 {
        self.seq
    }

    /// The node's record as text (`enr:…`).
    pub fn record(&self) -> &str {
        &self.record
    }
}

#[derive(Debug)]
struct Candidate {
    contact: Contact,
    state: DialState,
    /// Number of failed dials in a row.
    failures: u32,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum DialState {
    /// The candidate is not dialled before this time.
    Waiting(Instant),
    /// The dial in progress times out at this time.
    Dialling(Instant),
    Connected,
}

/// The candidates by peer id. The one that was found or connected longest ago is dropped first.
#[derive(Debug)]
pub struct Candidates {
    known: LruCache<PeerId, Candidate>,
    /// Random numbers for the order of dials and for their jitter.
    rng: StdRng,
}

impl Candidates {
    /// `seed` feeds the order of dials and their jitter.
    pub fn new(seed: u64) -> Self {
        Self {
            known: LruCache::new(CANDIDATES),
            rng: StdRng::seed_from_u64(seed),
        }
    }

    /// Handles a contact that was found, for the first time or again. `connected`: whether the peer
    /// is connected.
    pub fn on_found(&mut self, contact: Contact, connected: bool, now: Instant) {
        match self.known.get_mut(&contact.peer()) {
            Some(known) if known.contact.seq() >= contact.seq() => {}
            Some(known) => {
                // The failures were dials of the old addresses.
                if known.contact.addresses() != contact.addresses() {
                    known.failures = 0;
                    if let DialState::Waiting(at) = &mut known.state {
                        *at = now;
                    }
                }
                known.contact = contact;
            }
            None => {
                let state = if connected {
                    DialState::Connected
                } else {
                    DialState::Waiting(now)
                };
                self.known.put(
                    contact.peer(),
                    Candidate {
                        contact,
                        state,
                        failures: 0,
                    },
                );
            }
        }
    }

    /// Candidates to dial now. `wanted` is the number of missing peers. A candidate for which
    /// `refused` returns a reason is paused for [`REST`].
    pub fn due<R>(
        &mut self,
        wanted: usize,
        now: Instant,
        mut refused: impl FnMut(&PeerId, &[Multiaddr]) -> Option<R>,
    ) -> Vec<(PeerId, Vec<Multiaddr>)> {
        let mut dialling = 0;
        let mut timed_out = Vec::new();
        let mut ready = Vec::new();
        for (peer, candidate) in &mut self.known {
            match candidate.state {
                DialState::Dialling(end) if end > now => dialling += 1,
                DialState::Dialling(_) => timed_out.push(*peer),
                DialState::Waiting(at) if at <= now => {
                    ready.push((candidate.failures, self.rng.random::<u32>(), *peer))
                }
                DialState::Waiting(_) | DialState::Connected => {}
            }
        }
        for peer in timed_out {
            self.on_dial_failed(&peer, now);
        }
        ready.sort_unstable();
        let capacity = wanted.min(DIALS).saturating_sub(dialling);
        let mut dials = Vec::new();
        for (_, _, peer) in ready {
            if dials.len() >= capacity {
                break;
            }
            let Some(candidate) = self.known.peek_mut(&peer) else {
                continue;
            };
            if refused(&peer, candidate.contact.addresses()).is_some() {
                candidate.state = DialState::Waiting(now + REST);
                continue;
            }
            candidate.state = DialState::Dialling(now + DIAL_TIMEOUT);
            dials.push((peer, candidate.contact.addresses().to_vec()));
        }
        dials
    }

    pub fn on_connected(&mut self, peer: &PeerId) {
        if let Some(candidate) = self.known.get_mut(peer) {
            (candidate.state, candidate.failures) = (DialState::Connected, 0);
        }
    }

    pub fn on_disconnected(&mut self, peer: &PeerId, now: Instant) {
        if let Some(candidate) = self.known.peek_mut(peer) {
            candidate.state = DialState::Waiting(now + REST);
        }
    }

    pub fn on_dial_failed(&mut self, peer: &PeerId, now: Instant) {
        let Some(candidate) = self
            .known
            .peek_mut(peer)
            .filter(|candidate| candidate.state != DialState::Connected)
        else {
            return;
        };
        candidate.fail(now, &mut self.rng);
        if candidate.failures >= MAX_FAILURES {
            self.known.pop(peer);
        }
    }

    /// Forgets the peer on an operator's command.
    pub fn forget(&mut self, peer: &PeerId) {
        self.known.pop(peer);
    }

    /// The peer's record (`enr:…`).
    pub fn record(&self, peer: &PeerId) -> Option<&str> {
        self.known
            .peek(peer)
            .map(|candidate| candidate.contact.record())
    }
}

impl Candidate {
    fn fail(&mut self, now: Instant, rng: &mut StdRng) {
        let wait = (RETRY * 2u32.saturating_pow(self.failures.min(16))).min(MAX_RETRY);
        self.failures += 1;
        self.state = DialState::Waiting(now + wait.mul_f64(rng.random_range(0.75..1.25)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    const NONE_REFUSED: fn(&PeerId, &[Multiaddr]) -> Option<()> = |_, _| None;

    fn contact(ip: [u8; 4], seq: u64) -> Contact {
        contact_of(PeerId::random(), ip, seq)
    }

    fn contact_of(peer: PeerId, ip: [u8; 4], seq: u64) -> Contact {
        let address = Multiaddr::from(std::net::IpAddr::from(ip));
        Contact {
            peer,
            addresses: vec![address.with(libp2p::multiaddr::Protocol::Tcp(9222))],
            seq,
            record: format!("enr:{peer}:{seq}"),
        }
    }

    fn found(count: u8, now: Instant) -> (Candidates, Vec<PeerId>) {
        let mut candidates = Candidates::new(1);
        let contacts: Vec<Contact> = (0..count).map(|i| contact([10, 0, 0, i], 1)).collect();
        contacts
            .iter()
            .for_each(|contact| candidates.on_found(contact.clone(), false, now));
        (candidates, contacts.iter().map(Contact::peer).collect())
    }

    #[test]
    fn as_many_are_dialled_as_are_missing_a_few_at_a_time() {
        let now = Instant::now();
        let (mut candidates, peers) = found(10, now);
        assert!(
            candidates.due(0, now, NONE_REFUSED).is_empty(),
            "enough peers: none is dialled"
        );
        let one = candidates.due(1, now, NONE_REFUSED);
        assert_eq!(one.len(), 1);
        assert!(
            candidates.due(1, now, NONE_REFUSED).is_empty(),
            "the dial in flight counts"
        );
        assert_eq!(candidates.due(20, now, NONE_REFUSED).len(), DIALS - 1);
        candidates.on_connected(&one[0].0);
        let next = candidates.due(20, now, NONE_REFUSED);
        assert_eq!(next.len(), 1, "one is connected, the next is dialled");
        assert!(next[0].0 != one[0].0 && peers.contains(&next[0].0));
    }

    #[test]
    fn a_candidate_that_fails_is_dialled_ever_more_rarely_and_then_forgotten() {
        let mut now = Instant::now();
        let (mut candidates, peers) = found(1, now);
        let mut waits = Vec::new();
        while !candidates.known.is_empty() {
            let since = now;
            while candidates.due(1, now, NONE_REFUSED).is_empty() {
                now += Duration::from_secs(1);
            }
            waits.push(now - since);
            candidates.on_dial_failed(&peers[0], now);
        }
        assert_eq!(waits.len(), MAX_FAILURES as usize);
        assert!(
            waits[1] >= RETRY / 2 && waits[1..].windows(2).all(|two| two[1] > two[0]),
            "{waits:?}"
        );
        assert!(waits[waits.len() - 1] <= MAX_RETRY * 2);
    }

    #[test]
    fn candidates_that_never_failed_are_dialled_first() {
        let now = Instant::now();
        let (mut candidates, peers) = found(8, now);
        let first: HashSet<PeerId> = candidates
            .due(4, now, NONE_REFUSED)
            .into_iter()
            .map(|(peer, _)| peer)
            .collect();
        first
            .iter()
            .for_each(|peer| candidates.on_dial_failed(peer, now));
        let later = now + MAX_RETRY;
        let second: HashSet<PeerId> = candidates
            .due(4, later, NONE_REFUSED)
            .into_iter()
            .map(|(peer, _)| peer)
            .collect();
        assert_eq!(
            second,
            peers
                .iter()
                .copied()
                .filter(|peer| !first.contains(peer))
                .collect()
        );
    }

    #[test]
    fn a_dial_without_an_outcome_times_out() {
        let now = Instant::now();
        let (mut candidates, _) = found(1, now);
        assert_eq!(candidates.due(1, now, NONE_REFUSED).len(), 1);
        assert!(
            candidates
                .due(1, now + DIAL_TIMEOUT, NONE_REFUSED)
                .is_empty(),
            "it waits like any failure"
        );
        assert_eq!(
            candidates
                .due(1, now + DIAL_TIMEOUT + RETRY * 2, NONE_REFUSED)
                .len(),
            1
        );
    }

    #[test]
    fn a_candidate_whose_dials_time_out_is_forgotten() {
        let mut now = Instant::now();
        let (mut candidates, _) = found(1, now);
        let mut dials = 0;
        while !candidates.known.is_empty() && dials <= MAX_FAILURES as usize {
            dials += candidates.due(1, now, NONE_REFUSED).len();
            now += RETRY;
        }
        assert_eq!(dials, MAX_FAILURES as usize);
    }

    #[test]
    fn a_peer_that_disconnected_and_one_that_is_refused_are_paused() {
        let now = Instant::now();
        let (mut candidates, peers) = found(2, now);
        candidates.on_connected(&peers[0]);
        candidates.on_disconnected(&peers[0], now);
        assert!(candidates.due(2, now, |_, _| Some(())).is_empty());
        assert!(candidates.due(2, now + REST / 2, NONE_REFUSED).is_empty());
        assert_eq!(candidates.due(2, now + REST, NONE_REFUSED).len(), 2);
    }

    #[test]
    fn a_newer_record_moves_a_candidate_and_an_older_one_does_not() {
        let now = Instant::now();
        let old = contact([10, 0, 0, 1], 5);
        let new = contact_of(old.peer(), [10, 0, 0, 2], 6);
        let mut candidates = Candidates::new(1);
        candidates.on_found(old.clone(), false, now);
        candidates.due(1, now, NONE_REFUSED);
        candidates.on_dial_failed(&old.peer(), now);
        assert!(candidates.due(1, now, NONE_REFUSED).is_empty());
        candidates.on_found(new.clone(), false, now);
        assert_eq!(
            candidates.due(1, now, NONE_REFUSED),
            [(old.peer(), new.addresses().to_vec())]
        );
        candidates.on_found(old.clone(), false, now);
        assert_eq!(candidates.record(&old.peer()), Some(new.record()));
    }

    #[test]
    fn a_connected_peer_is_not_dialled_and_candidates_are_bounded() {
        let now = Instant::now();
        let mut candidates = Candidates::new(1);
        candidates.on_found(contact([10, 0, 0, 1], 1), true, now);
        assert!(candidates.due(1, now, NONE_REFUSED).is_empty());
        let one = contact([10, 0, 0, 2], 1);
        candidates.on_found(one.clone(), false, now);
        (0..CANDIDATES.get())
            .for_each(|_| candidates.on_found(contact([10, 0, 0, 3], 1), false, now));
        assert_eq!(
            (candidates.known.len(), candidates.record(&one.peer())),
            (CANDIDATES.get(), None)
        );
    }
}
