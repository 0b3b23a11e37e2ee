//! Nonces that other processes have used, and whether one of these processes is still running. Pure.
//!
//! A single nonce is no evidence. A predecessor's transaction may be mined that the endpoint's pool
//! has lost, and an endpoint that was behind shows many nonces when it has caught up. So each is
//! adopted: the machine goes on above it. **Another process has the same key** if
//!
//! - [`TURNS`] times a nonce of this process was confirmed and a later one was used by another: a
//!   predecessor left at most what it had in flight, and nothing of it is mined between
//!   transactions that were signed later, again and again; or
//! - [`LOSSES`] times in at least [`LOSS_TIME`] others have used nonces while none of this process
//!   was confirmed, each seen at an L1 whose newest block is younger than [`CURRENT_AGE`]: the
//!   other one is always faster, and the endpoint is not behind.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

/// Changes from an own nonce to another's that are evidence.
const TURNS: usize = 3;
/// Foreign nonces without an own one between them that are evidence.
const LOSSES: u32 = 10;
/// Shortest time for [`LOSSES`].
const LOSS_TIME: Duration = Duration::from_secs(600);
/// Age of L1's newest block below which the endpoint is not behind: some missed slots.
const CURRENT_AGE: Duration = Duration::from_secs(120);
/// Nonces remembered; the lowest go first.
const MAX_NONCES: usize = 64;

/// User of a nonce on L1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NonceUser {
    Own,
    Foreign,
}

/// Nonces that L1 has used lately, by their users.
#[derive(Clone, Debug, Default)]
pub(super) struct ForeignNonces {
    users: BTreeMap<u64, NonceUser>,
    /// Foreign nonces since the last own one, seen at an L1 that is not behind.
    losses: u32,
    /// Time of the first of `losses`.
    lost_since: Option<Instant>,
}

impl ForeignNonces {
    /// A transaction of this process is confirmed.
    pub fn own(&mut self, nonce: u64) {
        self.insert(nonce, NonceUser::Own);
        (self.losses, self.lost_since) = (0, None);
    }

    /// A nonce was used by another process. `head_age` is the age of L1's newest block, if it was
    /// read.
    pub fn foreign(&mut self, nonce: u64, head_age: Option<Duration>, now: Instant) {
        let is_known = self.users.get(&nonce) == Some(&NonceUser::Foreign);
        self.insert(nonce, NonceUser::Foreign);
        if !is_known && head_age.is_some_and(|age| age < CURRENT_AGE) {
            self.losses += 1;
            self.lost_since.get_or_insert(now);
        }
    }

    fn insert(&mut self, nonce: u64, user: NonceUser) {
        self.users.insert(nonce, user);
        if self.users.len() > MAX_NONCES {
            self.users.pop_first();
        }
    }

    /// Whether the age of L1's newest block matters: the next foreign nonce may be evidence.
    pub fn needs_age(&self) -> bool {
        self.users.values().any(|user| *user == NonceUser::Foreign)
    }

    /// Whether another process is running with the same key.
    pub fn is_contested(&self, now: Instant) -> bool {
        let users: Vec<NonceUser> = self.users.values().copied().collect();
        let turns = users
            .windows(2)
            .filter(|pair| *pair == [NonceUser::Own, NonceUser::Foreign]);
        let lost_for = self.lost_since.map(|since| now - since);
        turns.count() >= TURNS
            || (self.losses >= LOSSES && lost_for.is_some_and(|time| time >= LOSS_TIME))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// Nonces of others from `first` on, a minute apart, seen at an L1 of this age. Returns the time
    /// after the last.
    fn lose(
        nonces: &mut ForeignNonces,
        first: u64,
        count: u64,
        head_age: Option<Duration>,
        start: Instant,
    ) -> Instant {
        let minutes = |count: u64| start + Duration::from_secs(60 * count);
        for at in 0..count {
            nonces.foreign(first + at, head_age, minutes(at));
        }
        minutes(count)
    }

    #[test]
    fn ten_nonces_of_others_in_ten_minutes_are_evidence() {
        let start = Instant::now();
        let mut nonces = ForeignNonces::default();
        let end = lose(&mut nonces, 0, 9, Some(SECOND), start);
        assert!(!nonces.is_contested(end + 60 * LOSS_TIME), "nine");
        nonces.foreign(9, Some(SECOND), end);
        assert!(!nonces.is_contested(start + LOSS_TIME - SECOND));
        assert!(nonces.is_contested(start + LOSS_TIME));
    }

    #[test]
    fn an_own_nonce_among_those_of_others_begins_the_count_anew() {
        let mut nonces = ForeignNonces::default();
        let now = lose(&mut nonces, 0, 9, Some(SECOND), Instant::now());
        nonces.own(9);
        let again = lose(&mut nonces, 10, 9, Some(SECOND), now);
        assert!(!nonces.is_contested(again + LOSS_TIME));
        nonces.foreign(19, Some(SECOND), again);
        assert!(nonces.is_contested(now + LOSS_TIME));
    }

    #[test]
    fn one_nonce_that_is_seen_often_counts_once() {
        let mut nonces = ForeignNonces::default();
        let mut now = Instant::now();
        for _ in 0..20 {
            now = lose(&mut nonces, 5, 1, Some(SECOND), now);
        }
        assert!(!nonces.is_contested(now));
    }

    #[test]
    fn nonces_seen_at_an_l1_that_may_be_behind_do_not_count() {
        for head_age in [None, Some(CURRENT_AGE)] {
            let mut nonces = ForeignNonces::default();
            assert!(!nonces.needs_age());
            let end = lose(&mut nonces, 0, 20, head_age, Instant::now());
            assert!(!nonces.is_contested(end), "{head_age:?}");
            assert!(nonces.needs_age());
        }
    }

    /// Foreign nonces that are far apart may be of one predecessor each.
    #[test]
    fn turns_that_are_many_nonces_apart_are_forgotten() {
        for (between, is_contested) in [(10, true), (MAX_NONCES, false)] {
            let now = Instant::now();
            let mut nonces = ForeignNonces::default();
            let mut next = 0u64..;
            for _ in 0..TURNS {
                assert!(!nonces.is_contested(now), "{between}");
                next.by_ref()
                    .take(between)
                    .for_each(|nonce| nonces.own(nonce));
                nonces.foreign(next.next().unwrap(), None, now);
            }
            assert_eq!(nonces.is_contested(now), is_contested, "{between}");
        }
    }
}
