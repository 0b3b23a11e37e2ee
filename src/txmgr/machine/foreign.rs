//! Nonces that other processes used, and whether one of these processes is still running. Pure.
//!
//! A single foreign nonce proves nothing. It may come from an earlier process's transaction that
//! the endpoint's pool has lost. An endpoint that was behind also shows many foreign nonces once it
//! has caught up. The machine therefore adopts each foreign nonce and continues above it. It
//! concludes that **another process has the same key** in either of two cases:
//!
//! - [`TURNS`] times, a nonce of this process was confirmed, and another process used a later
//!   nonce. An earlier process's transactions do not cause this repeatedly, since they were all
//!   signed before ours.
//! - [`LOSSES`] times, over at least [`LOSS_TIME`], other processes used a nonce, and no nonce of
//!   this process was confirmed. Only readings where L1's newest block is younger than
//!   [`CURRENT_AGE`] count, so the endpoint is not behind: the other process is always faster.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

/// Number of times that a foreign nonce must follow an own nonce to prove a second process.
const TURNS: usize = 3;
/// Number of foreign nonces, with no own nonce between them, needed to prove a second process.
const LOSSES: u32 = 10;
/// Minimum time over which [`LOSSES`] must occur.
const LOSS_TIME: Duration = Duration::from_secs(600);
/// Maximum age of L1's newest block at an endpoint that is not behind. Allows for some missed
/// slots.
const CURRENT_AGE: Duration = Duration::from_secs(120);
/// Maximum number of nonces remembered; the lowest ones are dropped first.
const MAX_NONCES: usize = 64;

/// User of a nonce: this process or another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NonceUser {
    Own,
    Foreign,
}

/// Recently used nonces, with their users.
#[derive(Clone, Debug, Default)]
pub(super) struct ForeignNonces {
    users: BTreeMap<u64, NonceUser>,
    /// Number of foreign nonces since the last own one, read while the endpoint was not behind.
    losses: u32,
    /// Time of the first foreign nonce in `losses`.
    lost_since: Option<Instant>,
}

impl ForeignNonces {
    /// Records that a transaction of this process with this nonce is confirmed.
    pub fn own(&mut self, nonce: u64) {
        self.insert(nonce, NonceUser::Own);
        (self.losses, self.lost_since) = (0, None);
    }

    /// Records that another process used this nonce. `head_age` is the age of L1's newest block, if
    /// known.
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

    /// Whether polls must read the age of L1's newest block, since foreign nonces have been seen.
    pub fn needs_age(&self) -> bool {
        self.users.values().any(|user| *user == NonceUser::Foreign)
    }

    /// Whether another process is running with the same key, by the rule in the module's
    /// documentation.
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

    /// Records foreign nonces from `first` on, one per minute, at an L1 head of this age. Returns
    /// the time after the last one.
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

    /// Foreign nonces far apart may come from several earlier processes.
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
