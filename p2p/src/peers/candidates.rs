//! Peers that discovery found: whom to dial, and when. Below the lower tide some of them are dialled, a few at a time, those that
//! failed least first and otherwise by lot; above it nobody is.
//!
//! What can overload it: strangers who make up nodes of our chain. The book is bounded, whoever was heard of longest ago goes first,
//! and one who cannot be reached is asked ever more rarely and then forgotten.

use crate::discovery::Contact;
use libp2p::{Multiaddr, PeerId};
use lru::LruCache;
use rand::Rng;
use std::{
    num::NonZeroUsize,
    time::{Duration, Instant},
};

/// Candidates remembered.
const CANDIDATES: NonZeroUsize = NonZeroUsize::new(1024).unwrap();
/// Dials at once.
const DIALS: usize = 4;
/// After a dial that failed, doubled with every further one.
const RETRY: Duration = Duration::from_secs(10);
const MAX_RETRY: Duration = Duration::from_secs(600);
/// Failures in a row after which a candidate is forgotten. It comes back with its next record.
const MAX_FAILURES: u32 = 8;
/// Before a peer that left, or that our rules refuse, is tried again.
const REST: Duration = Duration::from_secs(60);
/// A dial that reports nothing is given up after this; the transport's own timeout is shorter.
const DIAL_TIMEOUT: Duration = Duration::from_secs(60);

#[derive(Debug)]
struct Candidate {
    contact: Contact,
    state: State,
    /// In a row.
    failures: u32,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    /// Dialled not before this.
    Waiting(Instant),
    /// Given up at this time.
    Dialling(Instant),
    Connected,
}

/// The book of candidates.
#[derive(Debug)]
pub struct Candidates {
    known: LruCache<PeerId, Candidate>,
}

impl Default for Candidates {
    fn default() -> Self {
        Self {
            known: LruCache::new(CANDIDATES),
        }
    }
}

impl Candidates {
    /// A contact was found, or found again. `connected`: with this peer, now.
    pub fn on_found(&mut self, contact: Contact, connected: bool, now: Instant) {
        match self.known.get_mut(&contact.peer()) {
            Some(known) if known.contact.seq() >= contact.seq() => {}
            Some(known) => {
                // Where it is now nothing has failed yet.
                if known.contact.addresses() != contact.addresses() {
                    known.failures = 0;
                    if let State::Waiting(at) = &mut known.state {
                        *at = now;
                    }
                }
                known.contact = contact;
            }
            None => {
                let state = if connected {
                    State::Connected
                } else {
                    State::Waiting(now)
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

    /// Whom to dial now: `wanted` is by how many peers we are short. Whom `refused` gives a reason against rests.
    pub fn due<R>(
        &mut self,
        wanted: usize,
        now: Instant,
        mut refused: impl FnMut(&PeerId, &[Multiaddr]) -> Option<R>,
    ) -> Vec<(PeerId, Vec<Multiaddr>)> {
        let mut under_way = 0;
        let mut ready = Vec::new();
        for (peer, candidate) in &mut self.known {
            match candidate.state {
                State::Dialling(end) if end > now => under_way += 1,
                State::Dialling(_) => candidate.fail(now),
                State::Waiting(at) if at <= now => {
                    ready.push((candidate.failures, rand::rng().random::<u32>(), *peer))
                }
                State::Waiting(_) | State::Connected => {}
            }
        }
        ready.sort_unstable();
        let room = wanted.min(DIALS).saturating_sub(under_way);
        let mut dials = Vec::new();
        for (_, _, peer) in ready {
            if dials.len() >= room {
                break;
            }
            let Some(candidate) = self.known.peek_mut(&peer) else {
                continue;
            };
            if refused(&peer, candidate.contact.addresses()).is_some() {
                candidate.state = State::Waiting(now + REST);
                continue;
            }
            candidate.state = State::Dialling(now + DIAL_TIMEOUT);
            dials.push((peer, candidate.contact.addresses().to_vec()));
        }
        dials
    }

    pub fn on_connected(&mut self, peer: &PeerId) {
        if let Some(candidate) = self.known.get_mut(peer) {
            (candidate.state, candidate.failures) = (State::Connected, 0);
        }
    }

    pub fn on_disconnected(&mut self, peer: &PeerId, now: Instant) {
        if let Some(candidate) = self.known.peek_mut(peer) {
            candidate.state = State::Waiting(now + REST);
        }
    }

    pub fn on_dial_failed(&mut self, peer: &PeerId, now: Instant) {
        let Some(candidate) = self
            .known
            .peek_mut(peer)
            .filter(|candidate| candidate.state != State::Connected)
        else {
            return;
        };
        candidate.fail(now);
        if candidate.failures >= MAX_FAILURES {
            self.known.pop(peer);
        }
    }

    /// An operator wants nothing more to do with it.
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
    fn fail(&mut self, now: Instant) {
        let wait = (RETRY * 2u32.saturating_pow(self.failures.min(16))).min(MAX_RETRY);
        self.failures += 1;
        self.state = State::Waiting(now + wait.mul_f64(rand::rng().random_range(0.75..1.25)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::discovery::tests::contact;
    use std::collections::HashSet;

    const NOBODY: fn(&PeerId, &[Multiaddr]) -> Option<()> = |_, _| None;

    fn found(count: u8, now: Instant) -> (Candidates, Vec<PeerId>) {
        let mut candidates = Candidates::default();
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
            candidates.due(0, now, NOBODY).is_empty(),
            "enough peers: nobody is dialled"
        );
        let one = candidates.due(1, now, NOBODY);
        assert_eq!(one.len(), 1);
        assert!(
            candidates.due(1, now, NOBODY).is_empty(),
            "the one on its way counts"
        );
        assert_eq!(candidates.due(20, now, NOBODY).len(), DIALS - 1);
        candidates.on_connected(&one[0].0);
        let next = candidates.due(20, now, NOBODY);
        assert_eq!(next.len(), 1, "one came, the next may go");
        assert!(next[0].0 != one[0].0 && peers.contains(&next[0].0));
    }

    #[test]
    fn whoever_fails_is_asked_ever_more_rarely_and_then_forgotten() {
        let mut now = Instant::now();
        let (mut candidates, peers) = found(1, now);
        let mut waits = Vec::new();
        while !candidates.known.is_empty() {
            let since = now;
            while candidates.due(1, now, NOBODY).is_empty() {
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
    fn whoever_never_failed_goes_first() {
        let now = Instant::now();
        let (mut candidates, peers) = found(8, now);
        let first: HashSet<PeerId> = candidates
            .due(4, now, NOBODY)
            .into_iter()
            .map(|(peer, _)| peer)
            .collect();
        first
            .iter()
            .for_each(|peer| candidates.on_dial_failed(peer, now));
        let later = now + MAX_RETRY;
        let second: HashSet<PeerId> = candidates
            .due(4, later, NOBODY)
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
    fn a_dial_without_an_end_is_given_up() {
        let now = Instant::now();
        let (mut candidates, _) = found(1, now);
        assert_eq!(candidates.due(1, now, NOBODY).len(), 1);
        assert!(
            candidates.due(1, now + DIAL_TIMEOUT, NOBODY).is_empty(),
            "it waits like any failure"
        );
        assert_eq!(
            candidates
                .due(1, now + DIAL_TIMEOUT + RETRY * 2, NOBODY)
                .len(),
            1
        );
    }

    #[test]
    fn a_peer_that_left_and_one_that_is_refused_rest() {
        let now = Instant::now();
        let (mut candidates, peers) = found(2, now);
        candidates.on_connected(&peers[0]);
        candidates.on_disconnected(&peers[0], now);
        assert!(candidates.due(2, now, |_, _| Some(())).is_empty());
        assert!(candidates.due(2, now + REST / 2, NOBODY).is_empty());
        assert_eq!(candidates.due(2, now + REST, NOBODY).len(), 2);
    }

    #[test]
    fn a_newer_record_moves_a_candidate_and_an_older_one_does_not() {
        let now = Instant::now();
        let old = contact([10, 0, 0, 1], 5);
        let new = crate::discovery::tests::moved(&old, [10, 0, 0, 2], 6);
        let mut candidates = Candidates::default();
        candidates.on_found(old.clone(), false, now);
        candidates.due(1, now, NOBODY);
        candidates.on_dial_failed(&old.peer(), now);
        assert!(candidates.due(1, now, NOBODY).is_empty());
        candidates.on_found(new.clone(), false, now);
        assert_eq!(
            candidates.due(1, now, NOBODY),
            [(old.peer(), new.addresses().to_vec())]
        );
        candidates.on_found(old.clone(), false, now);
        assert_eq!(candidates.record(&old.peer()), Some(new.record()));
    }

    #[test]
    fn a_peer_that_is_there_already_is_not_dialled_and_the_book_is_bounded() {
        let now = Instant::now();
        let mut candidates = Candidates::default();
        candidates.on_found(contact([10, 0, 0, 1], 1), true, now);
        assert!(candidates.due(1, now, NOBODY).is_empty());
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
