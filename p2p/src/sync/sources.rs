//! Whom to fetch from: one peer at a time, the one that failed least, after a jittered back-off that doubles with every failure.

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

#[derive(Debug, Default)]
struct Standing {
    failures: u32,
    ready: Option<Instant>,
}

#[derive(Debug)]
pub(super) struct Sources {
    peers: BTreeMap<PeerId, Standing>,
    rng: StdRng,
}

impl Sources {
    pub fn new(seed: u64) -> Self {
        Self { peers: BTreeMap::new(), rng: StdRng::seed_from_u64(seed) }
    }

    pub fn add(&mut self, peer: PeerId) {
        self.peers.insert(peer, Standing::default());
    }

    pub fn remove(&mut self, peer: &PeerId) {
        self.peers.remove(peer);
    }

    pub fn worked(&mut self, peer: &PeerId) {
        if let Some(standing) = self.peers.get_mut(peer) {
            *standing = Standing::default();
        }
    }

    pub fn failed(&mut self, peer: &PeerId, unsupported: bool, now: Instant) {
        let jitter = self.rng.random_range(0.5..1.0);
        let Some(standing) = self.peers.get_mut(peer) else { return };
        let wait = match unsupported {
            true => UNSUPPORTED,
            false => FIRST_BACK_OFF.saturating_mul(1 << standing.failures.min(16)).min(MAX_BACK_OFF),
        };
        standing.failures = standing.failures.saturating_add(1);
        standing.ready = Some(now + wait.mul_f64(jitter));
    }

    /// `preferred` if it never failed, else any of those that failed least.
    pub fn pick(&mut self, preferred: Option<PeerId>, now: Instant) -> Option<PeerId> {
        let ready: Vec<(u32, PeerId)> =
            self.peers.iter().filter(|(_, s)| s.ready.is_none_or(|at| at <= now)).map(|(p, s)| (s.failures, *p)).collect();
        if let Some(peer) = preferred.filter(|peer| ready.contains(&(0, *peer))) {
            return Some(peer);
        }
        let least = ready.iter().map(|(failures, _)| *failures).min()?;
        let best: Vec<PeerId> = ready.into_iter().filter(|(failures, _)| *failures == least).map(|(_, peer)| peer).collect();
        Some(best[self.rng.random_range(0..best.len())])
    }

    /// Whether anybody else could be asked now.
    pub fn has_other(&self, peer: &PeerId, now: Instant) -> bool {
        self.peers.iter().any(|(other, standing)| other != peer && standing.ready.is_none_or(|at| at <= now))
    }

    /// When the next peer comes out of its back-off.
    pub fn next_ready(&self) -> Option<Instant> {
        self.peers.values().filter_map(|standing| standing.ready).min()
    }
}
