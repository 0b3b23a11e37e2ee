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
