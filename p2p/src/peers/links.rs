//! Chooses the connections to close: all but one of each peer, and those of peers above the limit.

use crate::address::ip_of;
use libp2p::{Multiaddr, PeerId, swarm::ConnectionId};
use std::{
    net::IpAddr,
    time::{Duration, Instant},
};

/// One connection of a peer.
#[derive(Clone, Debug)]
pub struct PeerLink {
    pub id: ConnectionId,
    /// The address of the remote end.
    pub address: Multiaddr,
    /// Whether we dialled this connection.
    pub outbound: bool,
    pub since: Instant,
}

impl PeerLink {
    /// The IP address of the remote end.
    pub fn ip(&self) -> Option<IpAddr> {
        ip_of(&self.address)
    }
}

/// Two connections to one peer made within this time may come from both nodes dialling each other.
const CROSSED: Duration = Duration::from_secs(5);

/// The connections of a peer to close, so that one remains. If both sides dialled at about the same
/// time, both keep the connection that the greater peer id dialled, so that they do not close both.
/// Otherwise the newest connection is kept, since a peer that dials again has usually lost the
/// older one.
pub fn surplus(local: &PeerId, remote: &PeerId, links: &[PeerLink]) -> Vec<ConnectionId> {
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

/// Limits of the number of connected peers (`--p2p.peers.*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerLimits {
    /// More peers are dialled while fewer than this number are connected; trimming leaves this
    /// number of the peers that may be trimmed.
    pub lo: usize,
    /// Peers are trimmed when more than this number are connected.
    pub hi: usize,
    /// A connection younger than this is not trimmed.
    pub grace: Duration,
}

impl Default for PeerLimits {
    fn default() -> Self {
        Self {
            lo: 20,
            hi: 30,
            grace: Duration::from_secs(30),
        }
    }
}

/// A negative score of at most this size counts as zero when peers are trimmed.
const SLIGHT: f64 = 10.0;

/// A peer that may be trimmed.
#[derive(Clone, Copy, Debug)]
pub struct TrimCandidate {
    pub peer: PeerId,
    /// Whether the peer is static, or protected by an operator: such a peer is never trimmed.
    pub protected: bool,
    pub outbound: bool,
    pub since: Instant,
    pub score: f64,
}

impl PeerLimits {
    /// Checks that the limits are consistent; the error is a sentence.
    pub fn check(&self) -> Result<(), String> {
        if 0 < self.lo && self.lo <= self.hi {
            return Ok(());
        }
        Err(format!(
            "--p2p.peers.lo {} and --p2p.peers.hi {}: 0 < lo <= hi is needed",
            self.lo, self.hi
        ))
    }

    /// The peers to trim when there are more than `hi`: all but `lo` of those that may be trimmed.
    /// Young and protected peers may not be trimmed and are not counted (as in go-libp2p). Peers
    /// with the lowest score come first, then inbound peers, then the newest, so a flood of new
    /// connections displaces no older peer that is otherwise equal. The gate bounds the number of
    /// connections.
    pub fn trim(&self, mut peers: Vec<TrimCandidate>, now: Instant) -> Vec<PeerId> {
        if peers.len() <= self.hi {
            return Vec::new();
        }
        peers.retain(|peer| {
            !peer.protected && now.saturating_duration_since(peer.since) >= self.grace
        });
        let surplus = peers.len().saturating_sub(self.lo);
        // One or two minor offences are no reason to trim a peer before one without any history.
        let score = |peer: &TrimCandidate| {
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
            PeerLink {
                id,
                address,
                outbound,
                since: now + Duration::from_millis(ms),
            }
        };
        // Peer a dialled connection x and peer b dialled y; each side sees its own dial first.
        let at_a = surplus(&a, &b, &[link(x, true, 0), link(y, false, 3)]);
        let at_b = surplus(&b, &a, &[link(y, true, 0), link(x, false, 3)]);
        assert_eq!(at_a, at_b);
        assert_eq!(at_a.len(), 1);
        // A peer dials again after a while: both sides keep the newest connection.
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
    fn the_worst_and_the_newest_are_trimmed_and_the_protected_stay() {
        let limits = PeerLimits {
            lo: 3,
            hi: 5,
            grace: Duration::from_secs(30),
        };
        let start = Instant::now();
        let at = |s| start + Duration::from_secs(s);
        let peer = |protected, outbound, since, score| TrimCandidate {
            peer: PeerId::random(),
            protected,
            outbound,
            since: at(since),
            score,
        };
        let (trusted, bad) = (peer(true, false, 90, -500.0), peer(false, true, 0, -20.0));
        let (dialled, old, newer, young) = (
            peer(false, true, 60, 0.0),
            peer(false, false, 0, 0.0),
            peer(false, false, 20, 0.0),
            peer(false, false, 99, -90.0),
        );
        let slipped = peer(false, true, 60, -9.0);
        let all = vec![trusted, bad, dialled, old, newer, young];
        // Trusted and young peers are not counted: there is one peer too many.
        assert_eq!(limits.trim(all.clone(), at(100)), [bad.peer]);
        assert_eq!(
            limits.trim(
                vec![slipped, dialled, old, newer, trusted, young, bad],
                at(100)
            ),
            [bad.peer, newer.peer]
        );
        let crowd: Vec<TrimCandidate> = (0..30)
            .map(|_| peer(false, false, 99, 0.0))
            .chain([old, dialled, newer])
            .collect();
        assert!(
            limits.trim(crowd, at(100)).is_empty(),
            "new connections displace no peer"
        );
        assert!(
            limits.trim(all[..5].to_vec(), at(100)).is_empty(),
            "not above the high mark"
        );
        assert!(limits.trim(all, at(29)).is_empty(), "all are young");
        assert!(limits.trim(vec![trusted; 9], at(1000)).is_empty());
        assert!(limits.check().is_ok());
        for (lo, hi) in [(0, 5), (6, 5)] {
            assert!(PeerLimits { lo, hi, ..limits }.check().is_err());
        }
    }
}
