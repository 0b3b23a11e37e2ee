//! The choice among several endpoints, and their cool-downs after failures. Pure: the time comes in as an
//! argument.
//!
//! The endpoint that succeeded last is used until it fails; then the next in the list that is in no
//! cool-down takes over. An endpoint that reports that it is busy gets no request before its cool-down
//! ends, even if it is the only one.

use std::time::{Duration, Instant};

/// First cool-down after a failure; it doubles with each failure in a row.
const FIRST_COOLDOWN: Duration = Duration::from_secs(1);
/// Longest cool-down that the endpoint does not demand itself.
const MAX_COOLDOWN: Duration = Duration::from_secs(60);

/// How an endpoint failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndpointFault {
    /// The endpoint demands a cool-down: HTTP 429 or 5xx, or a JSON-RPC rate limit. With the time that it
    /// names, if it names one.
    Busy(Option<Duration>),
    /// There is no usable response: no connection, a timeout, or a malformed or false response.
    /// Other endpoints are tried first for a while.
    Broken,
}

impl EndpointFault {
    /// The fault of an endpoint that responded with an HTTP status that is no success.
    pub fn of_status(code: u16, retry_after: Option<Duration>) -> Self {
        if code == 429 || code >= 500 {
            Self::Busy(retry_after)
        } else {
            Self::Broken
        }
    }
}

/// The endpoint of a request, now or after a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pick {
    /// Position in the list of endpoints.
    pub index: usize,
    /// Time until the endpoint's cool-down ends.
    pub wait: Duration,
}

#[derive(Clone, Copy, Debug, Default)]
struct RotationMember {
    /// Failures in a row.
    failures: u32,
    /// End of its cool-down.
    until: Option<Instant>,
    /// The cool-down is kept even if no other endpoint is left.
    busy: bool,
}

/// The state of a list of endpoints. At most [`Rotation::MAX`] of them.
#[derive(Clone, Debug)]
pub struct Rotation {
    members: Vec<RotationMember>,
    /// The endpoint that is tried first.
    first: usize,
}

/// The endpoints that one call has tried.
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

/// The attempts of one call: one at each endpoint. A call that has failed at one endpoint does not wait for
/// the cool-down of another.
#[derive(Clone, Copy, Debug)]
pub struct Attempts {
    tried: Tried,
    max_wait: Duration,
    has_failed: bool,
}

/// The next attempt of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextAttempt {
    /// Send the request after the wait.
    Send(Pick),
    /// The cool-down of the next endpoint is too long to wait for.
    CoolingDown(Pick),
    /// All endpoints were tried.
    Exhausted,
}

impl Attempts {
    /// Leaves out the endpoints of `tried`. The first attempt waits at most `max_wait`.
    pub fn new(tried: Tried, max_wait: Duration) -> Self {
        Self {
            tried,
            max_wait,
            has_failed: false,
        }
    }

    /// The next attempt, at the endpoint that `pick` chooses. Called again, the attempt before has failed.
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
    /// Endpoints in one list.
    pub const MAX: usize = 64;

    /// Endpoints beyond [`Rotation::MAX`] are left out.
    pub fn new(endpoints: usize) -> Self {
        Self {
            members: vec![RotationMember::default(); endpoints.min(Self::MAX)],
            first: 0,
        }
    }

    /// The endpoint that succeeded last.
    pub fn first(&self) -> usize {
        self.first
    }

    /// Makes an endpoint the one that is tried first, whatever its cool-down.
    pub fn prefer(&mut self, index: usize) {
        if index < self.members.len() {
            self.first = index;
        }
    }

    /// The endpoint of the next request: one in no cool-down, then one that failed, soonest end of its
    /// cool-down first, then one that is busy. `None` if all were tried.
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

    /// The endpoint succeeded: it gets the next request.
    pub fn succeeded(&mut self, index: usize) {
        if let Some(member) = self.members.get_mut(index) {
            *member = RotationMember::default();
            self.first = index;
        }
    }

    /// The endpoint failed; returns its cool-down.
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
        // A request that was under way does not shorten the cool-down that another one began.
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
        // The list is a ring.
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
        // The failure of a request that was under way leaves the cool-down as it is.
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
