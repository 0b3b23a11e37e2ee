//! Which connections to close: all but one of a peer, and those of the peers that are too many.

use crate::gate::ip_of;
use libp2p::{Multiaddr, PeerId, swarm::ConnectionId};
use std::{
    net::IpAddr,
    time::{Duration, Instant},
};

/// One connection of a peer.
#[derive(Clone, Debug)]
pub struct Link {
    pub id: ConnectionId,
    /// Where the peer is at its other end.
    pub address: Multiaddr,
    /// We dialled it.
    pub outbound: bool,
    pub since: Instant,
}

impl Link {
    pub fn ip(&self) -> Option<IpAddr> {
        ip_of(&self.address)
    }
}

/// Two nodes that dial each other at the same moment.
const CROSSED: Duration = Duration::from_secs(5);

/// Which of a peer's connections to close. Of connections dialled by both sides at about the same time both sides keep the one
/// that the greater peer id dialled, so that they never close both; else the newest stays, since a peer that dials again has
/// usually lost the older one.
pub fn surplus(local: &PeerId, remote: &PeerId, links: &[Link]) -> Vec<ConnectionId> {
    let Some(newest) = links.iter().max_by_key(|link| link.since) else {
        return Vec::new();
    };
    let crossed = links
        .iter()
        .filter(|link| newest.since.saturating_duration_since(link.since) < CROSSED);
    let ours = local.to_bytes() > remote.to_bytes();
    let keep = crossed
        .filter(|link| link.outbound == ours)
        .max_by_key(|link| link.since)
        .unwrap_or(newest)
        .id;
    links
        .iter()
        .map(|link| link.id)
        .filter(|id| *id != keep)
        .collect()
}

/// How many peers to be connected with (`--p2p.peers.*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tides {
    /// Peers are looked for below it, and left alone once so few remain.
    pub lo: usize,
    /// Above it peers are dropped.
    pub hi: usize,
    /// A connection younger than this is not dropped.
    pub grace: Duration,
}

impl Default for Tides {
    fn default() -> Self {
        Self {
            lo: 20,
            hi: 30,
            grace: Duration::from_secs(30),
        }
    }
}

/// A score no further than this below zero counts as zero.
const SLIGHT: f64 = 10.0;

/// A peer as the tides see it.
#[derive(Clone, Copy, Debug)]
pub struct Tidal {
    pub peer: PeerId,
    /// Static, or protected by an operator: never dropped.
    pub protected: bool,
    pub outbound: bool,
    pub since: Instant,
    pub score: f64,
}

impl Tides {
    /// A sentence if the numbers contradict each other.
    pub fn check(&self) -> Result<(), String> {
        match 0 < self.lo && self.lo <= self.hi {
            true => Ok(()),
            false => Err(format!(
                "--p2p.peers.lo {} and --p2p.peers.hi {}: 0 < lo <= hi is needed",
                self.lo, self.hi
            )),
        }
    }

    /// Whom to drop when there are more than `hi`: of those that may be dropped all but `lo` (as go-libp2p counts: young and protected
    /// peers are nobody's surplus), the lowest score first, then those that came by themselves, then the newest. Who can fill the
    /// node with new connections thus displaces nobody; how many there may be at all is the gate's to say.
    pub fn ebb(&self, mut peers: Vec<Tidal>, now: Instant) -> Vec<PeerId> {
        if peers.len() <= self.hi {
            return Vec::new();
        }
        peers.retain(|peer| {
            !peer.protected && now.saturating_duration_since(peer.since) >= self.grace
        });
        let surplus = peers.len().saturating_sub(self.lo);
        // A slip or two is no reason to prefer a stranger of no merit.
        let score = |peer: &Tidal| {
            if (-SLIGHT..0.0).contains(&peer.score) {
                0.0
            } else {
                peer.score
            }
        };
        peers.sort_by(|a, b| {
            let by_score = score(a).total_cmp(&score(b));
            by_score
                .then(a.outbound.cmp(&b.outbound))
                .then(b.since.cmp(&a.since))
                .then(a.peer.cmp(&b.peer))
        });
        peers
            .into_iter()
            .take(surplus)
            .map(|peer| peer.peer)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_sides_keep_the_same_of_two_crossed_connections() {
        let (a, b, now) = (PeerId::random(), PeerId::random(), Instant::now());
        let (x, y) = (
            ConnectionId::new_unchecked(1),
            ConnectionId::new_unchecked(2),
        );
        let link = |id, outbound, ms| {
            let address = Multiaddr::empty();
            Link {
                id,
                address,
                outbound,
                since: now + Duration::from_millis(ms),
            }
        };
        // a dialled x, b dialled y; each side sees its own first.
        let at_a = surplus(&a, &b, &[link(x, true, 0), link(y, false, 3)]);
        let at_b = surplus(&b, &a, &[link(y, true, 0), link(x, false, 3)]);
        assert_eq!(at_a, at_b);
        assert_eq!(at_a.len(), 1);
        // A peer that dials again after a while: the newest stays on both sides.
        for outbound in [true, false] {
            assert_eq!(
                surplus(&a, &b, &[link(x, outbound, 0), link(y, !outbound, 60_000)]),
                [x]
            );
            assert_eq!(
                surplus(&a, &b, &[link(x, outbound, 0), link(y, outbound, 60_000)]),
                [x]
            );
        }
        assert!(surplus(&a, &b, &[link(x, true, 0)]).is_empty());
    }

    #[test]
    fn the_tide_takes_the_worst_and_the_newest_and_leaves_the_protected() {
        let tides = Tides {
            lo: 3,
            hi: 5,
            grace: Duration::from_secs(30),
        };
        let start = Instant::now();
        let at = |s| start + Duration::from_secs(s);
        let peer = |protected, outbound, since, score| Tidal {
            peer: PeerId::random(),
            protected,
            outbound,
            since: at(since),
            score,
        };
        let (friend, bad) = (peer(true, false, 90, -500.0), peer(false, true, 0, -20.0));
        let (dialled, old, newer, young) = (
            peer(false, true, 60, 0.0),
            peer(false, false, 0, 0.0),
            peer(false, false, 20, 0.0),
            peer(false, false, 99, -90.0),
        );
        let slipped = peer(false, true, 60, -9.0);
        let all = vec![friend, bad, dialled, old, newer, young];
        // The friend and the young one are not counted: one is too many.
        assert_eq!(tides.ebb(all.clone(), at(100)), [bad.peer]);
        assert_eq!(
            tides.ebb(
                vec![slipped, dialled, old, newer, friend, young, bad],
                at(100)
            ),
            [bad.peer, newer.peer]
        );
        let crowd: Vec<Tidal> = (0..30)
            .map(|_| peer(false, false, 99, 0.0))
            .chain([old, dialled, newer])
            .collect();
        assert!(
            tides.ebb(crowd, at(100)).is_empty(),
            "new connections drive nobody away"
        );
        assert!(
            tides.ebb(all[..5].to_vec(), at(100)).is_empty(),
            "not above the high mark"
        );
        assert!(tides.ebb(all, at(29)).is_empty(), "all are young");
        assert!(tides.ebb(vec![friend; 9], at(1000)).is_empty());
        assert!(tides.check().is_ok());
        for (lo, hi) in [(0, 5), (6, 5)] {
            assert!(Tides { lo, hi, ..tides }.check().is_err());
        }
    }
}
