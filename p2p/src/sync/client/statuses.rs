//! The statuses of peers that serve ranges. A peer's status is requested when the peer is
//! identified, and again every [`REFRESH`], or after [`RETRY`] if the request failed.

use super::{ClientEvent, FetchError, PeerStatus, by_range::RangeClient};
use crate::{clock::Moment, peers::Offence, types::ChainGenesis};
use libp2p::PeerId;
use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};
use tokio::task::JoinSet;

/// Time between two requests for a peer's status.
const REFRESH: Duration = Duration::from_secs(10);
/// Time from a failed request, other than a timeout, to the next one. A peer without a status is
/// not asked for ranges, and a gap must be filled within seconds.
const RETRY: Duration = Duration::from_secs(2);
/// Largest number of status requests in flight.
const STATUSES: usize = 32;
/// Seconds that a peer's clock may be ahead of ours.
const CLOCK: u64 = 60;

/// The times of the next status requests, and the verdicts on the responses. Pure.
#[derive(Debug)]
pub struct StatusSchedule {
    genesis: ChainGenesis,
    /// The peers that serve ranges, with the time of the next status request to each.
    due: BTreeMap<PeerId, Instant>,
}

impl StatusSchedule {
    pub fn new(genesis: ChainGenesis) -> Self {
        Self {
            genesis,
            due: BTreeMap::new(),
        }
    }

    /// Requests the peer's status regularly from now on. A second call changes nothing.
    pub fn track(&mut self, peer: PeerId, now: Instant) {
        self.due.entry(peer).or_insert(now);
    }

    pub fn untrack(&mut self, peer: &PeerId) {
        self.due.remove(peer);
    }

    /// The peers whose statuses are to be requested now, while `in_flight` requests are in flight.
    pub fn take_due(&mut self, in_flight: usize, now: Instant) -> Vec<PeerId> {
        let capacity = STATUSES.saturating_sub(in_flight);
        let due = self.due.iter_mut().filter(|(_, due)| **due <= now);
        due.take(capacity)
            .map(|(peer, due)| {
                *due = now + REFRESH;
                *peer
            })
            .collect()
    }

    /// The time of the next status request. `None` while [`STATUSES`] requests are in flight: then
    /// the end of a request is awaited first.
    pub fn next_wake(&self, in_flight: usize) -> Option<Instant> {
        let next = self.due.values().min().copied();
        next.filter(|_| in_flight < STATUSES)
    }

    /// The event that follows from the result of a request.
    pub fn judge(
        &mut self,
        peer: PeerId,
        status: Result<PeerStatus, FetchError>,
        now: Moment,
    ) -> Option<ClientEvent> {
        // Ignore the status of a peer that has disconnected meanwhile.
        let due = self.due.get_mut(&peer)?;
        let (offence, evidence) = match status {
            Ok(status) => {
                let highest = self.genesis.number_at(now.unix + CLOCK);
                if status.head.number <= highest {
                    return Some(ClientEvent::Status { peer, status });
                }
                let evidence = format!(
                    "its head is {}, and none above {highest} can be there yet",
                    status.head
                );
                (Offence::FalseHead, evidence)
            }
            Err(FetchError::Malformed(evidence)) => (Offence::MalformedResponse, evidence),
            Err(error) => {
                if matches!(error, FetchError::Unreachable) {
                    *due = (*due).min(now.instant + RETRY);
                }
                tracing::debug!(%peer, ?error, "no status from peer");
                return None;
            }
        };
        Some(ClientEvent::Offence {
            peer,
            offence,
            evidence,
        })
    }
}

/// The status requests in flight, and their schedule.
pub struct StatusTasks {
    schedule: StatusSchedule,
    tasks: JoinSet<(PeerId, Result<PeerStatus, FetchError>)>,
}

impl StatusTasks {
    pub fn new(genesis: ChainGenesis) -> Self {
        Self {
            schedule: StatusSchedule::new(genesis),
            tasks: JoinSet::new(),
        }
    }

    /// See [`StatusSchedule::track`].
    pub fn track(&mut self, peer: PeerId, now: Instant) {
        self.schedule.track(peer, now);
    }

    pub fn untrack(&mut self, peer: &PeerId) {
        self.schedule.untrack(peer);
    }

    /// Sends the status requests that are due, up to [`STATUSES`] in flight.
    pub fn request_due(&mut self, client: &RangeClient, now: Instant) {
        for peer in self.schedule.take_due(self.tasks.len(), now) {
            let client = client.clone();
            self.tasks
                .spawn(async move { (peer, client.status(peer).await) });
        }
    }

    /// See [`StatusSchedule::next_wake`].
    pub fn next_wake(&self) -> Option<Instant> {
        self.schedule.next_wake(self.tasks.len())
    }

    /// The next status, or the offence of a peer that sent a bad one; pends while there is none.
    pub async fn next(&mut self) -> ClientEvent {
        loop {
            let (peer, status) = match self.tasks.join_next().await {
                Some(Ok(ended)) => ended,
                Some(Err(_)) => continue,
                None => std::future::pending().await,
            };
            if let Some(event) = self.schedule.judge(peer, status, Moment::now()) {
                return event;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloy_primitives::B256;
    use starling_proto::payload::BlockId;

    const NOW: u64 = 1_700_000_000;

    fn statuses(age: u64) -> StatusSchedule {
        StatusSchedule::new(ChainGenesis {
            id: BlockId::default(),
            time: NOW - age,
            block_time: 2,
        })
    }

    fn moment() -> Moment {
        Moment {
            instant: Instant::now(),
            unix: NOW,
        }
    }

    fn head(number: u64) -> Result<PeerStatus, FetchError> {
        let hash = B256::repeat_byte(1);
        Ok(PeerStatus {
            head: BlockId { number, hash },
            oldest: 0,
            safe: None,
            finalized: None,
        })
    }

    #[test]
    fn a_head_that_time_does_not_allow_is_an_offence_of_a_connected_peer() {
        let (mut statuses, peer) = (statuses(1_000), PeerId::random());
        let now = moment();
        assert!(
            statuses.judge(peer, head(500), now).is_none(),
            "not tracked"
        );
        statuses.track(peer, now.instant);
        for (number, is_false) in [(500, false), (530, false), (540, true)] {
            let judged = statuses.judge(peer, head(number), now);
            let offence = matches!(
                judged,
                Some(ClientEvent::Offence {
                    offence: Offence::FalseHead,
                    ..
                })
            );
            assert_eq!(offence, is_false, "{judged:?}");
        }
        assert!(
            statuses
                .judge(peer, Err(FetchError::TimedOut), now)
                .is_none()
        );
        statuses.untrack(&peer);
        assert!(
            statuses.judge(peer, head(540), now).is_none(),
            "disconnected"
        );
    }

    #[test]
    fn a_busy_peer_is_asked_for_its_status_again_soon_and_has_broken_no_rule() {
        let (mut statuses, peer, now) = (statuses(1_000), PeerId::random(), moment());
        statuses.track(peer, now.instant);
        assert_eq!(statuses.take_due(0, now.instant), [peer]);
        assert_eq!(statuses.next_wake(0), Some(now.instant + REFRESH));
        let busy = Err(FetchError::Unreachable);
        assert!(statuses.judge(peer, busy, now).is_none());
        assert_eq!(statuses.next_wake(0), Some(now.instant + RETRY));
    }

    #[test]
    fn the_earliest_status_sets_the_wake_up() {
        let (mut statuses, now) = (statuses(0), Instant::now());
        assert_eq!(statuses.next_wake(0), None);
        let later = now + REFRESH;
        let peer = PeerId::random();
        statuses.track(peer, later);
        statuses.track(PeerId::random(), now + REFRESH * 2);
        statuses.track(peer, now);
        assert_eq!(statuses.next_wake(0), Some(later), "tracked once");
    }
}
