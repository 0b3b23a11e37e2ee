//! Chooses among several endpoints, and keeps their cool-downs after failures. Pure: the time comes
//! in as an argument.
//!
//! The endpoint that succeeded last is used until it fails. Then the next endpoint in the list
//! without a cool-down is used. An endpoint that reports that it is busy gets no request before its
//! cool-down ends, even if it is the only one.

use std::time::{Duration, Instant};

/// First cool-down after a failure; it doubles with each failure in a row.
const FIRST_COOLDOWN: Duration = Duration::from_secs(1);
/// Longest cool-down unless the endpoint demands a longer one.
const MAX_COOLDOWN: Duration = Duration::from_secs(60);

/// The kind of an endpoint's failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndpointFault {
    /// The endpoint demands a cool-down: HTTP 429 or 5xx, or a JSON-RPC rate limit. Contains the
    /// duration that the endpoint names, if any.
    Busy(Option<Duration>),
    /// The endpoint returned no usable response: no connection, a timeout, or a malformed or false
    /// response. Other endpoints are preferred during its cool-down.
    Broken,
}

impl EndpointFault {
    /// The fault for an HTTP status that is not a success.
    pub fn of_status(code: u16, retry_after: Option<Duration>) -> Self {
        if code == 429 || code >= 500 {
            Self::Busy(retry_after)
        } else {
            Self::Broken
        }
    }
}

/// The endpoint to send a request to, and how long to wait first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pick {
    /// Position of the endpoint in the list.
    pub index: usize,
    /// Time until the cool-down of a busy endpoint ends; zero for any other endpoint.
    pub wait: Duration,
}

#[derive(Clone, Copy, Debug, Default)]
struct RotationMember {
    /// The endpoint's failures in a row.
    failures: u32,
    /// End of the endpoint's cool-down.
    until: Option<Instant>,
    /// The endpoint reported that it is busy: its cool-down is kept even if no other endpoint is
    /// available.
    busy: bool,
}

/// The endpoints of a list, at most [`Rotation::MAX`], with their failures and cool-downs.
#[derive(Clone, Debug)]
pub struct Rotation {
    members: Vec<RotationMember>,
    /// Position of the endpoint that is tried first.
    first: usize,
}

/// The endpoints that one call has tried already, as a bit set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tried(u64);

impl Tried {
    pub fn add(&mut self, index: usize) {
        self.0 |= 1 << index;
    }

    fn has(self, index: usize) -> bool {
        self.0 & 1 << index != 0
    }
}

/// The attempts of one call: at most one per endpoint. After a failed attempt the call does not
/// wait for another endpoint's cool-down.
#[derive(Clone, Copy, Debug)]
pub struct Attempts {
    tried: Tried,
    max_wait: Duration,
    has_failed: bool,
}

/// The next attempt of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextAttempt {
    /// Send the request to this endpoint after the wait.
    Send(Pick),
    /// The cool-down of the next endpoint is too long to wait for: give up.
    CoolingDown(Pick),
    /// All endpoints have been tried: give up.
    Exhausted,
}

impl Attempts {
    /// Skips the endpoints in `tried`. The first attempt waits at most `max_wait`.
    pub fn new(tried: Tried, max_wait: Duration) -> Self {
        Self {
            tried,
            max_wait,
            has_failed: false,
        }
    }

    /// The next attempt, at the endpoint that `pick` chooses. A further call means that the
    /// previous attempt failed.
    pub fn next_attempt(&mut self, pick: impl FnOnce(Tried) -> Option<Pick>) -> NextAttempt {
        let Some(pick) = pick(self.tried) else {
            return NextAttempt::Exhausted;
        };
        let is_too_long = self.has_failed || pick.wait > self.max_wait;
        if !pick.wait.is_zero() && is_too_long {
            return NextAttempt::CoolingDown(pick);
        }
        self.tried.add(pick.index);
        self.has_failed = true;
        NextAttempt::Send(pick)
    }
}

impl Rotation {
    /// Largest number of endpoints in one list.
    pub const MAX: usize = 64;

    /// Endpoints beyond [`Rotation::MAX`] are ignored.
    pub fn new(endpoints: usize) -> Self {
        Self {
            members: vec![RotationMember::default(); endpoints.min(Self::MAX)],
            first: 0,
        }
    }

    /// The endpoint that is tried first: usually the one that succeeded last.
    pub fn first(&self) -> usize {
        self.first
    }

    /// Makes an endpoint the one that is tried first. It is still passed over during a cool-down.
    pub fn prefer(&mut self, index: usize) {
        if index < self.members.len() {
            self.first = index;
        }
    }

    /// The endpoint of the next request that is not in `tried`: preferably one without a cool-down,
    /// then a broken one whose cool-down ends soonest, then a busy one. `None` if all were tried.
    pub fn pick(&self, tried: Tried, now: Instant) -> Option<Pick> {
        let count = self.members.len();
        let order = (0..count).map(|offset| (self.first + offset) % count);
        let candidates = order.filter(|index| !tried.has(*index)).map(|index| {
            let member = &self.members[index];
            let left = member
                .until
                .map(|until| until.saturating_duration_since(now));
            (index, member.busy, left.unwrap_or_default())
        });
        let rank = |(_, busy, left): &(usize, bool, Duration)| (*busy && !left.is_zero(), *left);
        let (index, busy, left) = candidates.min_by_key(rank)?;
        Some(Pick {
            index,
            wait: if busy { left } else { Duration::ZERO },
        })
    }

    /// Records a success: the endpoint's cool-down ends, and it is tried first from now on.
    pub fn succeeded(&mut self, index: usize) {
        if let Some(member) = self.members.get_mut(index) {
            *member = RotationMember::default();
            self.first = index;
        }
    }

    /// Records a failure and returns the endpoint's cool-down.
    pub fn failed(&mut self, index: usize, fault: EndpointFault, now: Instant) -> Duration {
        let Some(member) = self.members.get_mut(index) else {
            return Duration::ZERO;
        };
        let doubled = FIRST_COOLDOWN.saturating_mul(1 << member.failures.min(16));
        let own = doubled.min(MAX_COOLDOWN);
        let (busy, cooldown) = match fault {
            EndpointFault::Busy(demanded) => (true, demanded.unwrap_or(own)),
            EndpointFault::Broken => (false, own),
        };
        // A failure of a request that was in flight must not shorten a cool-down that another
        // request began.
        let until = member.until.max(now.checked_add(cooldown));
        *member = RotationMember {
            failures: member.failures.saturating_add(1),
            until,
            busy: busy || member.busy && member.until > Some(now),
        };
        cooldown
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(start: Instant, seconds: u64) -> Instant {
        start + Duration::from_secs(seconds)
    }

    fn pick(rotation: &Rotation, now: Instant) -> (usize, u64) {
        let pick = rotation.pick(Tried::default(), now).unwrap();
        (pick.index, pick.wait.as_secs())
    }

    #[test]
    fn the_endpoint_that_succeeded_last_is_kept() {
        let start = Instant::now();
        let mut rotation = Rotation::new(3);
        assert_eq!(pick(&rotation, start), (0, 0));
        rotation.failed(0, EndpointFault::Broken, start);
        assert_eq!(pick(&rotation, start), (1, 0));
        rotation.failed(1, EndpointFault::Broken, start);
        rotation.succeeded(2);
        assert_eq!(pick(&rotation, at(start, 3600)), (2, 0));
        // After the last endpoint in the list comes the first.
        rotation.failed(2, EndpointFault::Broken, at(start, 3600));
        assert_eq!(pick(&rotation, at(start, 3600)), (0, 0));
    }

    #[test]
    fn one_call_tries_each_endpoint_once() {
        let now = Instant::now();
        let rotation = Rotation::new(2);
        let mut tried = Tried::default();
        let mut order = vec![];
        while let Some(pick) = rotation.pick(tried, now) {
            order.push(pick.index);
            tried.add(pick.index);
        }
        assert_eq!(order, [0, 1]);
        assert_eq!(Rotation::new(0).pick(Tried::default(), now), None);
        assert_eq!(Rotation::new(1000).members.len(), Rotation::MAX);
    }

    #[test]
    fn a_call_waits_for_a_short_cooldown_once() {
        let pick = |index, seconds| {
            let wait = Duration::from_secs(seconds);
            move |_| Some(Pick { index, wait })
        };
        let mut attempts = Attempts::new(Tried::default(), Duration::from_secs(5));
        let mut next = |index, seconds| attempts.next_attempt(pick(index, seconds));
        assert!(matches!(next(0, 6), NextAttempt::CoolingDown(_)));
        assert!(matches!(next(0, 5), NextAttempt::Send(_)));
        let after_a_failure = next(1, 1);
        assert!(matches!(after_a_failure, NextAttempt::CoolingDown(_)));
        assert!(matches!(next(1, 0), NextAttempt::Send(_)));
    }

    #[test]
    fn a_lone_endpoint_cools_down_only_if_it_is_busy() {
        let start = Instant::now();
        let mut rotation = Rotation::new(1);
        rotation.failed(0, EndpointFault::Broken, start);
        assert_eq!(pick(&rotation, start), (0, 0));
        rotation.failed(0, EndpointFault::Busy(Some(Duration::from_secs(30))), start);
        assert_eq!(pick(&rotation, start), (0, 30));
        // The failure of a request that was in flight leaves the cool-down unchanged.
        rotation.failed(0, EndpointFault::Broken, at(start, 10));
        assert_eq!(pick(&rotation, at(start, 10)), (0, 20));
        assert_eq!(pick(&rotation, at(start, 30)), (0, 0));
    }

    #[test]
    fn a_busy_endpoint_is_called_last_and_soonest_first() {
        let start = Instant::now();
        let mut rotation = Rotation::new(3);
        rotation.failed(0, EndpointFault::Busy(Some(Duration::from_secs(9))), start);
        rotation.failed(1, EndpointFault::Busy(Some(Duration::from_secs(5))), start);
        rotation.failed(2, EndpointFault::Broken, start);
        assert_eq!(pick(&rotation, start), (2, 0), "a broken one may be called");
        let mut tried = Tried::default();
        tried.add(2);
        let next = rotation.pick(tried, start).unwrap();
        assert_eq!((next.index, next.wait.as_secs()), (1, 5));
    }

    #[test]
    fn cooldowns_double_up_to_a_bound_and_success_ends_them() {
        let now = Instant::now();
        let mut rotation = Rotation::new(1);
        let mut cooldowns =
            (0..100).map(|_| rotation.failed(0, EndpointFault::Busy(None), now).as_secs());
        let first: Vec<_> = cooldowns.by_ref().take(8).collect();
        assert_eq!(first, [1, 2, 4, 8, 16, 32, 60, 60]);
        assert_eq!(cooldowns.max(), Some(60));
        rotation.succeeded(0);
        assert_eq!(
            rotation.failed(0, EndpointFault::Busy(None), now).as_secs(),
            1
        );
    }
}
