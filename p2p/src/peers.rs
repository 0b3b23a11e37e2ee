//! The people in the swarm: static peers and when to dial them again, which of two connections to keep, and the one place where
//! an offence ends up. Scores and bans belong here when they come. Pure but for logs and counters; `now` comes in.

use crate::config::static_peer;
use libp2p::{Multiaddr, PeerId, swarm::ConnectionId};
use rand::Rng;
use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

const MIN_REDIAL: Duration = Duration::from_millis(100);
const MAX_REDIAL: Duration = Duration::from_secs(10);
/// A connection that lasted less does not count as the peer being back.
const STEADY: Duration = Duration::from_secs(1);
/// A dial that reports nothing is given up after this; the transport's own timeout is shorter.
const DIAL_TIMEOUT: Duration = Duration::from_secs(60);

/// What a peer did wrong. The name is the label in logs and metrics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Offence {
    /// Gossip that the check rejected, and by which row.
    Gossip(&'static str),
    /// An answer that is not an answer.
    MalformedResponse,
    /// A payload that is not the parent a trusted block names. Also done by honest peers on another branch.
    WrongBlock,
}

impl Offence {
    pub fn label(&self) -> &'static str {
        match self {
            Offence::Gossip(row) => row,
            Offence::MalformedResponse => "malformed_response",
            Offence::WrongBlock => "wrong_block",
        }
    }
}

/// Warnings about offences at most this often: whoever floods us does not flood our log.
const WARNING: Duration = Duration::from_secs(1);

/// Every offence of every peer goes through here.
#[derive(Debug, Default)]
pub struct Offences {
    last_warning: Option<Instant>,
    /// Offences counted since then and not logged.
    silent: u64,
}

impl Offences {
    pub fn record(&mut self, peer: &PeerId, offence: &Offence, now: Instant) {
        let reason = offence.label();
        metrics::counter!("starling_p2p_offences_total", "reason" => reason).increment(1);
        if self.last_warning.is_none_or(|last| now.saturating_duration_since(last) >= WARNING) {
            tracing::warn!(%peer, reason, others = self.silent, "peer broke a rule");
            *self = Self { last_warning: Some(now), silent: 0 };
        } else {
            self.silent += 1;
        }
    }
}

#[derive(Debug)]
struct StaticPeer {
    addresses: Vec<Multiaddr>,
    /// Since when it has been away.
    away: Option<Instant>,
    connected: Option<Instant>,
    next_dial: Option<Instant>,
    /// A dial has failed since it went.
    failed: bool,
}

/// Static peers: dialled at start, redialled at once when they go, then at waits that grow with their absence.
#[derive(Debug, Default)]
pub struct StaticPeers {
    peers: BTreeMap<PeerId, StaticPeer>,
}

impl StaticPeers {
    /// Addresses without a peer id and our own are left out with a log line.
    pub fn new(addresses: &[Multiaddr], local: PeerId, now: Instant) -> Self {
        let mut peers: BTreeMap<PeerId, StaticPeer> = BTreeMap::new();
        for address in addresses {
            match static_peer(address) {
                Some((_, peer)) if peer == local => tracing::info!(%address, "static peer is this node, skipped"),
                Some((dial, peer)) => peers
                    .entry(peer)
                    .or_insert(StaticPeer {
                        addresses: Vec::new(),
                        away: Some(now),
                        connected: None,
                        next_dial: Some(now),
                        failed: false,
                    })
                    .addresses
                    .push(dial),
                None => tracing::warn!(%address, "static peer has no /p2p/<peer id> at its end, skipped"),
            }
        }
        Self { peers }
    }

    pub fn ids(&self) -> impl Iterator<Item = &PeerId> {
        self.peers.keys()
    }

    pub fn contains(&self, peer: &PeerId) -> bool {
        self.peers.contains_key(peer)
    }

    pub fn on_connected(&mut self, peer: &PeerId, now: Instant) {
        if let Some(entry) = self.peers.get_mut(peer) {
            entry.connected = Some(now);
            entry.next_dial = None;
            entry.failed = false;
        }
    }

    /// The last connection is gone.
    pub fn on_disconnected(&mut self, peer: &PeerId, now: Instant) {
        let Some(entry) = self.peers.get_mut(peer) else { return };
        let steady = entry.connected.take().is_some_and(|since| now.saturating_duration_since(since) >= STEADY);
        if steady || entry.away.is_none() {
            entry.away = Some(now);
            entry.next_dial = Some(now);
        } else {
            entry.next_dial = Some(now + redial_wait(entry.away, now));
        }
    }

    /// Whether this is a static peer's first failure since it went.
    pub fn on_dial_failed(&mut self, peer: &PeerId, now: Instant) -> bool {
        let Some(entry) = self.peers.get_mut(peer).filter(|entry| entry.connected.is_none()) else { return false };
        entry.next_dial = Some(now + redial_wait(entry.away, now));
        !std::mem::replace(&mut entry.failed, true)
    }

    /// Peers to dial now; each is then left alone until its dial ends.
    pub fn due(&mut self, now: Instant) -> Vec<(PeerId, Vec<Multiaddr>)> {
        let due = self.peers.iter_mut().filter(|(_, entry)| entry.next_dial.is_some_and(|at| at <= now));
        due.map(|(peer, entry)| {
            entry.next_dial = Some(now + DIAL_TIMEOUT);
            (*peer, entry.addresses.clone())
        })
        .collect()
    }

    pub fn next_dial(&self) -> Option<Instant> {
        self.peers.values().filter_map(|entry| entry.next_dial).min()
    }
}

/// A fifth of the time the peer has been away: dials thin out exponentially, and a peer that comes back is found within a
/// fraction of its absence.
fn redial_wait(away: Option<Instant>, now: Instant) -> Duration {
    let absence = away.map_or(Duration::ZERO, |since| now.saturating_duration_since(since));
    let wait = (absence / 5).clamp(MIN_REDIAL, MAX_REDIAL);
    wait.mul_f64(rand::rng().random_range(0.5..1.0))
}

/// One connection of a peer.
#[derive(Clone, Copy, Debug)]
pub struct Link {
    pub id: ConnectionId,
    /// We dialled it.
    pub outbound: bool,
    pub since: Instant,
}

/// Two nodes that dial each other at the same moment.
const CROSSED: Duration = Duration::from_secs(5);

/// Which of a peer's connections to close. Of connections dialled by both sides at about the same time both sides keep the one
/// that the greater peer id dialled, so that they never close both; else the newest stays, since a peer that dials again has
/// usually lost the older one.
pub fn surplus(local: &PeerId, remote: &PeerId, links: &[Link]) -> Vec<ConnectionId> {
    let Some(newest) = links.iter().max_by_key(|link| link.since) else { return Vec::new() };
    let crossed = links.iter().filter(|link| newest.since.saturating_duration_since(link.since) < CROSSED);
    let ours = local.to_bytes() > remote.to_bytes();
    let keep = crossed.filter(|link| link.outbound == ours).max_by_key(|link| link.since).unwrap_or(newest).id;
    links.iter().map(|link| link.id).filter(|id| *id != keep).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use libp2p::multiaddr::Protocol;

    fn address(peer: PeerId) -> Multiaddr {
        "/ip4/127.0.0.1/tcp/9".parse::<Multiaddr>().unwrap().with(Protocol::P2p(peer))
    }

    #[test]
    fn a_static_peer_that_goes_is_dialled_at_once_then_ever_more_rarely() {
        let (local, peer, start) = (PeerId::random(), PeerId::random(), Instant::now());
        let mut peers = StaticPeers::new(&[address(local), address(peer)], local, start);
        assert_eq!(peers.due(start).len(), 1, "our own id is skipped");
        assert!(peers.due(start).is_empty(), "one dial at a time");
        peers.on_connected(&peer, start);
        assert_eq!(peers.next_dial(), None);

        let gone = start + Duration::from_secs(60);
        peers.on_disconnected(&peer, gone);
        assert_eq!(peers.next_dial(), Some(gone));
        let (mut now, mut dials, mut longest) = (gone, 0, Duration::ZERO);
        while now < gone + Duration::from_secs(120) {
            assert_eq!(peers.due(now).len(), 1);
            peers.on_dial_failed(&peer, now);
            let next = peers.next_dial().unwrap();
            let wait = next - now;
            assert!(wait >= MIN_REDIAL / 2 && wait <= MAX_REDIAL);
            if now < gone + Duration::from_secs(5) {
                assert!(wait <= Duration::from_secs(1), "back within about a second of a short absence");
            }
            longest = longest.max(wait);
            (now, dials) = (next, dials + 1);
        }
        assert!(dials < 120 && longest > Duration::from_secs(4), "{dials} dials, longest wait {longest:?}");
    }

    #[test]
    fn a_peer_that_hangs_up_at_once_is_not_dialled_in_a_hot_loop() {
        let (peer, mut now) = (PeerId::random(), Instant::now());
        let mut peers = StaticPeers::new(&[address(peer)], PeerId::random(), now);
        let end = now + Duration::from_secs(10);
        let mut dials = 0;
        while now < end {
            peers.due(now);
            dials += 1;
            peers.on_connected(&peer, now);
            peers.on_disconnected(&peer, now);
            now = peers.next_dial().unwrap();
        }
        assert!(dials < 60, "{dials}");
    }

    #[test]
    fn both_sides_keep_the_same_of_two_crossed_connections() {
        let (a, b, now) = (PeerId::random(), PeerId::random(), Instant::now());
        let (x, y) = (ConnectionId::new_unchecked(1), ConnectionId::new_unchecked(2));
        let link = |id, outbound, ms| Link { id, outbound, since: now + Duration::from_millis(ms) };
        // a dialled x, b dialled y; each side sees its own first.
        let at_a = surplus(&a, &b, &[link(x, true, 0), link(y, false, 3)]);
        let at_b = surplus(&b, &a, &[link(y, true, 0), link(x, false, 3)]);
        assert_eq!(at_a, at_b);
        assert_eq!(at_a.len(), 1);
        // A peer that dials again after a while: the newest stays on both sides.
        for outbound in [true, false] {
            assert_eq!(surplus(&a, &b, &[link(x, outbound, 0), link(y, !outbound, 60_000)]), [x]);
            assert_eq!(surplus(&a, &b, &[link(x, outbound, 0), link(y, outbound, 60_000)]), [x]);
        }
        assert!(surplus(&a, &b, &[link(x, true, 0)]).is_empty());
    }
}
