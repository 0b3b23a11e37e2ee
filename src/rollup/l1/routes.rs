//! Chooses endpoints for urgent and bulk requests. Pure: the time comes in as an argument.
//!
//! Urgent and bulk requests use the same endpoint as long as it serves both classes. If an endpoint
//! demands a cool-down of a bulk request, only bulk requests observe it. Urgent requests are few,
//! and the response to the next one shows whether the endpoint serves them. A failed bulk request,
//! such as a timeout of a large response, does not affect urgent requests either.

use super::gate::Urgency;
use crate::rollup::http::rotation::{EndpointFault, Pick, Rotation, Tried};
use std::time::Instant;

pub(super) struct L1Routes {
    urgent: Rotation,
    bulk: Rotation,
}

impl L1Routes {
    pub(super) fn new(endpoints: usize) -> Self {
        Self {
            urgent: Rotation::new(endpoints),
            bulk: Rotation::new(endpoints),
        }
    }

    /// The endpoint that requests of this class try first.
    pub(super) fn first(&self, urgency: Urgency) -> usize {
        match urgency {
            Urgency::Urgent => self.urgent.first(),
            Urgency::Bulk => self.bulk.first(),
        }
    }

    /// The endpoint of the next request; `None` if all were tried. Bulk requests prefer the
    /// endpoint of urgent ones, since L1's heads are read from it.
    pub(super) fn pick(&mut self, urgency: Urgency, tried: Tried, now: Instant) -> Option<Pick> {
        match urgency {
            Urgency::Urgent => self.urgent.pick(tried, now),
            Urgency::Bulk => {
                self.bulk.prefer(self.urgent.first());
                self.bulk.pick(tried, now)
            }
        }
    }

    /// Records that a request of this class succeeded at an endpoint.
    pub(super) fn succeeded(&mut self, urgency: Urgency, index: usize) {
        match urgency {
            Urgency::Urgent => self.urgent.succeeded(index),
            Urgency::Bulk => self.bulk.succeeded(index),
        }
    }

    /// Records that a request of this class failed at an endpoint.
    pub(super) fn failed(
        &mut self,
        urgency: Urgency,
        index: usize,
        fault: EndpointFault,
        now: Instant,
    ) {
        match (urgency, fault) {
            (Urgency::Bulk, _) => {
                self.bulk.failed(index, fault, now);
            }
            (Urgency::Urgent, fault) => {
                let cooldown = self.urgent.failed(index, fault, now);
                if let EndpointFault::Busy(_) = fault {
                    self.bulk
                        .failed(index, EndpointFault::Busy(Some(cooldown)), now);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Urgency::*, *};
    use std::time::Duration;

    fn pick(routes: &mut L1Routes, urgency: Urgency, now: Instant) -> (usize, u64) {
        let pick = routes.pick(urgency, Tried::default(), now).unwrap();
        (pick.index, pick.wait.as_secs())
    }

    #[test]
    fn a_pause_of_bulk_requests_is_not_one_of_urgent_requests() {
        let now = Instant::now();
        let busy = EndpointFault::Busy(Some(Duration::from_secs(30)));
        let mut routes = L1Routes::new(1);
        routes.failed(Bulk, 0, busy, now);
        assert_eq!(pick(&mut routes, Bulk, now), (0, 30));
        assert_eq!(pick(&mut routes, Urgent, now), (0, 0));
        // A response to an urgent request does not end the cool-down of bulk requests.
        routes.succeeded(Urgent, 0);
        assert_eq!(pick(&mut routes, Bulk, now), (0, 30));
        routes.failed(Urgent, 0, busy, now + Duration::from_secs(10));
        assert_eq!(pick(&mut routes, Urgent, now), (0, 40));
        assert_eq!(pick(&mut routes, Bulk, now), (0, 40), "a pause for all");
    }

    #[test]
    fn bulk_requests_follow_urgent_ones_to_another_endpoint_and_back() {
        let now = Instant::now();
        let mut routes = L1Routes::new(2);
        routes.failed(Urgent, 0, EndpointFault::Broken, now);
        routes.succeeded(Urgent, 1);
        assert_eq!(pick(&mut routes, Bulk, now), (1, 0));
        routes.failed(Bulk, 1, EndpointFault::Broken, now);
        routes.succeeded(Bulk, 0);
        assert_eq!(pick(&mut routes, Bulk, now), (0, 0));
        assert_eq!(routes.first(Bulk), 1, "preferred");
        assert_eq!(routes.first(Urgent), 1);
        let later = now + Duration::from_secs(1);
        assert_eq!(pick(&mut routes, Bulk, later), (1, 0), "heads are from it");
    }
}
