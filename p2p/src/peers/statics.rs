//! Static peers: they are dialled at start, and redialled after a disconnect until they are
//! connected again.
//!
//! A refused dial means that the machine is up and no process listens; no response means that the
//! machine is down or unreachable. A dial costs a packet or two, and the peer may return at any
//! moment, so it is dialled as often after a long absence as after a short one. A peer whose
//! process restarts is found within [`REDIAL`] of listening again, since a refusal arrives at once.
//! A machine that was down is found within [`REDIAL`] plus the time between two packets of a dial.
//! This is 1.25 s over TCP, whose dials send a packet every second and are given up after two
//! ([`crate::host::transport`]). It is 2.25 s over QUIC, whose dials are given up after five.
//!
//! A peer that accepts and then disconnects, or has another id than expected, is dialled ever more
//! rarely. The disconnect may come from a process that ends soon after its start. In that case the
//! next dial is refused, and the count of early disconnects is reset.

use crate::address::{ip_of, static_peer};
use libp2p::{Multiaddr, PeerId};
use rand::{Rng, SeedableRng, rngs::StdRng};
use std::{
    collections::BTreeMap,
    net::IpAddr,
    time::{Duration, Instant},
};

const MIN_REDIAL: Duration = Duration::from_millis(100);
const MAX_REDIAL: Duration = Duration::from_secs(10);
/// Longest wait between the end of an unanswered dial and the next dial; the shortest wait is nine
/// tenths of it. A peer thus gets fewer than five dials a second.
const REDIAL: Duration = Duration::from_millis(225);
/// A connection shorter than this counts as an early disconnect.
const STEADY: Duration = Duration::from_secs(1);
/// Time limit of a dial that reports nothing; the transport's own timeout is shorter.
const DIAL_TIMEOUT: Duration = Duration::from_secs(60);

#[derive(Debug)]
struct StaticPeer {
    addresses: Vec<Multiaddr>,
    /// Time of the last disconnect.
    away: Option<Instant>,
    connected: Option<Instant>,
    next_dial: Option<Instant>,
    /// Number of early disconnects in a row.
    early_disconnects: u32,
    /// Whether a dial has failed since the last disconnect.
    failed: bool,
}

/// The static peers and the times of their next dials.
#[derive(Debug)]
pub struct StaticPeers {
    peers: BTreeMap<PeerId, StaticPeer>,
    /// Random numbers for the jitter of dials.
    rng: StdRng,
}

impl StaticPeers {
    /// Skips addresses without a peer id, which it logs, and those with our own id. `seed` feeds the
    /// jitter of dials.
    pub fn new(addresses: &[Multiaddr], local: PeerId, seed: u64, now: Instant) -> Self {
        let mut peers: BTreeMap<PeerId, StaticPeer> = BTreeMap::new();
        for address in addresses {
            match static_peer(address) {
                Some((_, peer)) if peer == local => {}
                Some((dial, peer)) => peers
                    .entry(peer)
                    .or_insert(StaticPeer {
                        addresses: Vec::new(),
                        away: Some(now),
                        connected: None,
                        next_dial: Some(now),
                        early_disconnects: 0,
                        failed: false,
                    })
                    .addresses
                    .push(dial),
                None => {
                    tracing::warn!(%address, "static peer has no /p2p/<peer id> at its end, skipped")
                }
            }
        }
        Self {
            peers,
            rng: StdRng::seed_from_u64(seed),
        }
    }

    pub fn ids(&self) -> impl Iterator<Item = &PeerId> {
        self.peers.keys()
    }

    /// The IP addresses of static peers; addresses given by name are left out.
    pub fn ips(&self) -> impl Iterator<Item = IpAddr> {
        self.peers
            .values()
            .flat_map(|entry| entry.addresses.iter().filter_map(ip_of))
    }

    /// Every static peer with its addresses.
    pub fn iter(&self) -> impl Iterator<Item = (&PeerId, &[Multiaddr])> {
        self.peers
            .iter()
            .map(|(peer, entry)| (peer, &*entry.addresses))
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

    /// Handles the end of the last connection to the peer.
    pub fn on_disconnected(&mut self, peer: &PeerId, now: Instant) {
        let Some(entry) = self.peers.get_mut(peer) else {
            return;
        };
        let steady = entry
            .connected
            .take()
            .is_some_and(|since| now.saturating_duration_since(since) >= STEADY);
        entry.away = Some(now);
        if steady {
            entry.early_disconnects = 0;
            entry.next_dial = Some(now);
        } else {
            let wait = early_disconnect_wait(entry.early_disconnects, &mut self.rng);
            entry.next_dial = Some(now + wait);
            entry.early_disconnects = entry.early_disconnects.saturating_add(1);
        }
    }

    /// Handles a failed dial. `unanswered`: no process accepts connections at the address. Returns
    /// `true` for a static peer's first failed dial since its disconnect.
    pub fn on_dial_failed(&mut self, peer: &PeerId, unanswered: bool, now: Instant) -> bool {
        let Some(entry) = self
            .peers
            .get_mut(peer)
            .filter(|entry| entry.connected.is_none())
        else {
            return false;
        };
        let wait = if unanswered {
            entry.early_disconnects = 0;
            REDIAL.mul_f64(self.rng.random_range(0.9..1.0))
        } else {
            redial_wait(entry.away, now, &mut self.rng)
        };
        entry.next_dial = Some(now + wait);
        !std::mem::replace(&mut entry.failed, true)
    }

    /// Peers to dial now, with their addresses. A peer becomes due again when its dial has ended.
    pub fn due(&mut self, now: Instant) -> Vec<(PeerId, Vec<Multiaddr>)> {
        let due = self
            .peers
            .iter_mut()
            .filter(|(_, entry)| entry.next_dial.is_some_and(|at| at <= now));
        due.map(|(peer, entry)| {
            entry.next_dial = Some(now + DIAL_TIMEOUT);
            (*peer, entry.addresses.clone())
        })
        .collect()
    }

    pub fn next_dial(&self) -> Option<Instant> {
        self.peers
            .values()
            .filter_map(|entry| entry.next_dial)
            .min()
    }
}

/// The wait before the next dial: a fifth of the time since the disconnect, so that dials become
/// exponentially rarer, up to ten seconds apart.
fn redial_wait(away: Option<Instant>, now: Instant, rng: &mut StdRng) -> Duration {
    let absence = away.map_or(Duration::ZERO, |since| now.saturating_duration_since(since));
    jitter((absence / 5).clamp(MIN_REDIAL, MAX_REDIAL), rng)
}

fn early_disconnect_wait(times: u32, rng: &mut StdRng) -> Duration {
    let wait = MIN_REDIAL.saturating_mul(1 << times.min(16));
    jitter(wait.min(MAX_REDIAL), rng)
}

fn jitter(wait: Duration, rng: &mut StdRng) -> Duration {
    wait.mul_f64(rng.random_range(0.5..1.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use libp2p::multiaddr::Protocol;

    fn address(peer: PeerId) -> Multiaddr {
        "/ip4/127.0.0.1/tcp/9"
            .parse::<Multiaddr>()
            .unwrap()
            .with(Protocol::P2p(peer))
    }

    #[test]
    fn a_static_peer_that_answers_and_fails_is_dialled_at_once_then_ever_more_rarely() {
        let (local, peer, start) = (PeerId::random(), PeerId::random(), Instant::now());
        let mut peers = StaticPeers::new(&[address(local), address(peer)], local, 1, start);
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
            peers.on_dial_failed(&peer, false, now);
            let next = peers.next_dial().unwrap();
            let wait = next - now;
            assert!(wait >= MIN_REDIAL / 2 && wait <= MAX_REDIAL);
            if now < gone + Duration::from_secs(5) {
                assert!(
                    wait <= Duration::from_secs(1),
                    "back within about a second of a short absence"
                );
            }
            longest = longest.max(wait);
            (now, dials) = (next, dials + 1);
        }
        assert!(
            dials < 120 && longest > Duration::from_secs(4),
            "{dials} dials, longest wait {longest:?}"
        );
    }

    #[test]
    fn a_peer_that_disconnects_at_once_is_not_dialled_in_a_hot_loop() {
        let (peer, mut now) = (PeerId::random(), Instant::now());
        let mut peers = StaticPeers::new(&[address(peer)], PeerId::random(), 1, now);
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
    fn a_process_that_ends_soon_after_its_start_is_found_again_as_soon_every_time() {
        let (peer, mut now) = (PeerId::random(), Instant::now());
        let mut peers = StaticPeers::new(&[address(peer)], PeerId::random(), 1, now);
        for _ in 0..50 {
            peers.due(now);
            peers.on_connected(&peer, now);
            now += STEADY / 2;
            peers.on_disconnected(&peer, now);
            for wait in [MIN_REDIAL, REDIAL, REDIAL] {
                let next = peers.next_dial().unwrap();
                assert!(next - now <= wait, "{:?}", next - now);
                now = next;
                peers.due(now);
                peers.on_dial_failed(&peer, true, now);
            }
            now = peers.next_dial().unwrap();
        }
    }

    #[test]
    fn an_unanswered_peer_is_found_as_soon_after_a_long_absence() {
        // A dial that is refused at once, and a dial without a response.
        for dial in [Duration::ZERO, Duration::from_secs(2)] {
            let (peer, gone) = (PeerId::random(), Instant::now());
            let mut peers = StaticPeers::new(&[address(peer)], PeerId::random(), 1, gone);
            let (mut now, mut dials) = (gone, 0);
            while now < gone + Duration::from_secs(3600) {
                assert_eq!(peers.due(now).len(), 1);
                now += dial;
                peers.on_dial_failed(&peer, true, now);
                let wait = peers.next_dial().unwrap() - now;
                assert!(wait <= REDIAL, "{wait:?} after {:?}", now - gone);
                (now, dials) = (now + wait, dials + 1);
            }
            assert!(dials < 5 * 3600, "{dials} dials in an hour");
        }
    }
}
