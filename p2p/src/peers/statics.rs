//! Static peers: dialled at start, redialled at once when they go, and until they are back.
//!
//! Where the connection is refused, a machine is there and its process is away; where nothing comes back, the machine is, or the way to
//! it. Asking again costs a packet or two, and either may be back any moment: such a peer is found again as soon after a long absence
//! as after a short one. One whose process runs is found within [`REDIAL`] of listening again, since a refusal comes at once. A machine
//! that was dark is found within that and the time between two packets of a dial: 1.25 s over TCP, whose dials send one every second and
//! are given up after two ([`crate::transport`]), 2.25 s over QUIC, where they end after five.
//!
//! One that answers and then hangs up, or is not who it should be, is asked ever more rarely. What looks like hanging up may be a
//! process that ends soon after it began: then the next dial is refused, and it is no longer held against the peer.

use crate::{config::static_peer, gate::ip_of};
use libp2p::{Multiaddr, PeerId};
use rand::Rng;
use std::{
    collections::BTreeMap,
    net::IpAddr,
    time::{Duration, Instant},
};

const MIN_REDIAL: Duration = Duration::from_millis(100);
const MAX_REDIAL: Duration = Duration::from_secs(10);
/// At most, and nine tenths at least, between the end of a dial that nobody answered and the next: fewer than five in a second.
const REDIAL: Duration = Duration::from_millis(225);
/// A connection that lasted less does not count as the peer being back.
const STEADY: Duration = Duration::from_secs(1);
/// A dial that reports nothing is given up after this; the transport's own timeout is shorter.
const DIAL_TIMEOUT: Duration = Duration::from_secs(60);

#[derive(Debug)]
struct StaticPeer {
    addresses: Vec<Multiaddr>,
    /// Since when it has been away.
    away: Option<Instant>,
    connected: Option<Instant>,
    next_dial: Option<Instant>,
    /// How often in a row it has hung up at once.
    hung_up: u32,
    /// A dial has failed since it went.
    failed: bool,
}

/// The static peers.
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
                Some((_, peer)) if peer == local => {
                    tracing::info!(%address, "static peer is this node, skipped")
                }
                Some((dial, peer)) => peers
                    .entry(peer)
                    .or_insert(StaticPeer {
                        addresses: Vec::new(),
                        away: Some(now),
                        connected: None,
                        next_dial: Some(now),
                        hung_up: 0,
                        failed: false,
                    })
                    .addresses
                    .push(dial),
                None => {
                    tracing::warn!(%address, "static peer has no /p2p/<peer id> at its end, skipped")
                }
            }
        }
        Self { peers }
    }

    pub fn ids(&self) -> impl Iterator<Item = &PeerId> {
        self.peers.keys()
    }

    /// Where they live, as far as that is given in numbers.
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

    /// The last connection is gone.
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
            entry.hung_up = 0;
            entry.next_dial = Some(now);
        } else {
            entry.next_dial = Some(now + hung_up_wait(entry.hung_up));
            entry.hung_up = entry.hung_up.saturating_add(1);
        }
    }

    /// Whether this is a static peer's first failure since it went.
    pub fn on_dial_failed(&mut self, peer: &PeerId, unanswered: bool, now: Instant) -> bool {
        let Some(entry) = self
            .peers
            .get_mut(peer)
            .filter(|entry| entry.connected.is_none())
        else {
            return false;
        };
        let wait = match unanswered {
            true => REDIAL.mul_f64(rand::rng().random_range(0.9..1.0)),
            false => redial_wait(entry.away, now),
        };
        if unanswered {
            entry.hung_up = 0;
        }
        entry.next_dial = Some(now + wait);
        !std::mem::replace(&mut entry.failed, true)
    }

    /// Peers to dial now; each is then left alone until its dial ends.
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

/// A fifth of the time the peer has been away: dials thin out exponentially.
fn redial_wait(away: Option<Instant>, now: Instant) -> Duration {
    let absence = away.map_or(Duration::ZERO, |since| now.saturating_duration_since(since));
    jitter((absence / 5).clamp(MIN_REDIAL, MAX_REDIAL))
}

fn hung_up_wait(times: u32) -> Duration {
    jitter(
        MIN_REDIAL
            .saturating_mul(1 << times.min(16))
            .min(MAX_REDIAL),
    )
}

fn jitter(wait: Duration) -> Duration {
    wait.mul_f64(rand::rng().random_range(0.5..1.0))
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
    fn a_process_that_ends_soon_after_it_began_is_found_again_as_soon_every_time() {
        let (peer, mut now) = (PeerId::random(), Instant::now());
        let mut peers = StaticPeers::new(&[address(peer)], PeerId::random(), now);
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
    fn a_peer_that_nobody_answers_for_is_found_as_soon_after_a_long_absence() {
        // What a dial takes: one that is refused, and one into the dark.
        for dial in [Duration::ZERO, Duration::from_secs(2)] {
            let (peer, gone) = (PeerId::random(), Instant::now());
            let mut peers = StaticPeers::new(&[address(peer)], PeerId::random(), gone);
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
