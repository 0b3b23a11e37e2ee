//! Whom to fetch from: first whoever brought the tip, then as many more as there is work for, those that failed least, after a jittered
//! back-off that doubles with every failure.

use super::WINDOW;
use libp2p::PeerId;
use rand::{Rng, SeedableRng, rngs::StdRng};
use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

const FIRST_BACK_OFF: Duration = Duration::from_millis(200);
const MAX_BACK_OFF: Duration = Duration::from_secs(10);
/// A peer without the protocol may learn it only by a restart, which is a new connection.
const UNSUPPORTED: Duration = Duration::from_secs(120);
/// Blocks asked of one peer before another is asked as well: a short gap is not worth many peers, one of which may be slow, and a node of
/// the network answers four a second.
pub const SHARE: usize = 8;
/// A source that has answered nothing for this long is left for another, if there is one: who brings a tip is asked first for what lies
/// below it, and must not hold it up. What it was asked for is still welcome.
pub const PATIENCE: Duration = Duration::from_secs(2);

#[derive(Debug, Default)]
struct Standing {
    failures: u32,
    ready: Option<Instant>,
    /// Blocks are asked of it: when it was chosen, or answered last.
    heard: Option<Instant>,
}

impl Standing {
    fn is_ready(&self, now: Instant) -> bool {
        self.ready.is_none_or(|at| at <= now)
    }
}

#[derive(Debug)]
pub(super) struct Sources {
    peers: BTreeMap<PeerId, Standing>,
    rng: StdRng,
}

impl Sources {
    pub fn new(seed: u64) -> Self {
        Self {
            peers: BTreeMap::new(),
            rng: StdRng::seed_from_u64(seed),
        }
    }

    pub fn add(&mut self, peer: PeerId) {
        self.peers.insert(peer, Standing::default());
    }

    pub fn remove(&mut self, peer: &PeerId) {
        self.peers.remove(peer);
    }

    pub fn worked(&mut self, peer: &PeerId, now: Instant) {
        if let Some(standing) = self.peers.get_mut(peer) {
            *standing = Standing {
                heard: standing.heard.map(|_| now),
                ..Default::default()
            };
        }
    }

    pub fn failed(&mut self, peer: &PeerId, unsupported: bool, now: Instant) {
        let jitter = self.rng.random_range(0.5..1.0);
        let Some(standing) = self.peers.get_mut(peer) else {
            return;
        };
        let wait = match unsupported {
            true => UNSUPPORTED,
            false => FIRST_BACK_OFF
                .saturating_mul(1 << standing.failures.min(16))
                .min(MAX_BACK_OFF),
        };
        standing.failures = standing.failures.saturating_add(1);
        (standing.ready, standing.heard) = (Some(now + wait.mul_f64(jitter)), None);
    }

    /// Whom to ask for one more block: those that are asked already up to their share, then one more, and only where there is none more
    /// than a share of one. `load` is what is asked of a peer and has not come.
    pub fn choose(
        &mut self,
        preferred: Option<PeerId>,
        load: impl Fn(&PeerId) -> usize,
        now: Instant,
    ) -> Option<PeerId> {
        let asked: Vec<(PeerId, usize)> = self.asked().map(|peer| (*peer, load(peer))).collect();
        let room = asked
            .iter()
            .filter(|(_, load)| *load < SHARE)
            .min_by_key(|(peer, _)| (Some(*peer) != preferred, *peer));
        let least = || {
            asked
                .iter()
                .filter(|(_, load)| *load < WINDOW)
                .min_by_key(|(_, load)| *load)
                .map(|(peer, _)| *peer)
        };
        let peer = room
            .map(|(peer, _)| *peer)
            .or_else(|| self.pick(preferred, now))
            .or_else(least)?;
        let standing = self.peers.get_mut(&peer)?;
        if standing.heard.is_none() || load(&peer) == 0 {
            standing.heard = Some(now);
        }
        (load(&peer) < WINDOW).then_some(peer)
    }

    /// One that is not asked yet: `preferred` if it never failed, else any of those that failed least.
    fn pick(&mut self, preferred: Option<PeerId>, now: Instant) -> Option<PeerId> {
        let ready: Vec<(u32, PeerId)> = self
            .peers
            .iter()
            .filter(|(_, s)| s.heard.is_none() && s.is_ready(now))
            .map(|(p, s)| (s.failures, *p))
            .collect();
        if let Some(peer) = preferred.filter(|peer| ready.contains(&(0, *peer))) {
            return Some(peer);
        }
        let least = ready.iter().map(|(failures, _)| *failures).min()?;
        let best: Vec<PeerId> = ready
            .into_iter()
            .filter(|(failures, _)| *failures == least)
            .map(|(_, peer)| peer)
            .collect();
        Some(best[self.rng.random_range(0..best.len())])
    }

    /// Those that blocks are asked of.
    pub fn asked(&self) -> impl Iterator<Item = &PeerId> {
        self.peers
            .iter()
            .filter(|(_, standing)| standing.heard.is_some())
            .map(|(peer, _)| peer)
    }

    pub fn is_asked(&self, peer: &PeerId) -> bool {
        self.peers
            .get(peer)
            .is_some_and(|standing| standing.heard.is_some())
    }

    /// Peers that are asked, or could be now.
    pub fn able(&self, now: Instant) -> usize {
        self.peers
            .values()
            .filter(|standing| standing.is_ready(now))
            .count()
    }

    /// For another gap the choice is made anew.
    pub fn release(&mut self) {
        self.peers
            .values_mut()
            .for_each(|standing| standing.heard = None);
    }

    /// Leaves those that owe answers and have given none for a while, if there is anybody else.
    pub fn leave_late(&mut self, load: impl Fn(&PeerId) -> usize, now: Instant) {
        let is_late = |(peer, s): (&PeerId, &Standing)| {
            s.heard.is_some_and(|at| now >= at + PATIENCE) && load(peer) > 0
        };
        let late: Vec<PeerId> = self
            .peers
            .iter()
            .filter(|entry| is_late(*entry))
            .map(|(peer, _)| *peer)
            .collect();
        for peer in late {
            if self
                .peers
                .iter()
                .any(|(other, standing)| *other != peer && standing.is_ready(now))
            {
                self.failed(&peer, false, now);
            } else if let Some(standing) = self.peers.get_mut(&peer) {
                standing.heard = Some(now);
            }
        }
    }

    /// When the next of them is late.
    pub fn next_late(&self, load: impl Fn(&PeerId) -> usize) -> Option<Instant> {
        self.peers
            .iter()
            .filter(|(peer, _)| load(peer) > 0)
            .filter_map(|(_, standing)| standing.heard)
            .min()
            .map(|at| at + PATIENCE)
    }

    /// When the next peer comes out of its back-off.
    pub fn next_ready(&self) -> Option<Instant> {
        self.peers
            .values()
            .filter_map(|standing| standing.ready)
            .min()
    }
}
