//! Scores and bans in force: offences in, the verdicts of `peers/reputation.rs` out to the router, the gate and the peerstore; the
//! tides; what is done once a second.

use super::{SAVE_INTERVAL, SECOND, Service};
use crate::{
    check::unix_now,
    metrics as meters,
    peers::{Offence, Tidal, reputation::Action},
};
use libp2p::PeerId;
use starling_proto::payload::PayloadVersion;
use std::{
    collections::HashMap,
    net::IpAddr,
    time::{Duration, Instant},
};

/// Warnings about offences at most this often: whoever floods us does not flood our log.
const WARNING: Duration = Duration::from_secs(1);
/// Replays of a peer that count in a second: more than a ban takes.
const REPLAYS: u32 = 200;
/// A clock that jumped is not followed slot by slot.
const MAX_SLOTS: u32 = 600;

impl Service {
    /// Every offence of every peer goes through here.
    pub(super) fn on_offence(&mut self, peer: PeerId, offence: Offence, evidence: &str) {
        let reason = offence.label();
        metrics::counter!("starling_p2p_offences_total", "reason" => reason).increment(1);
        let (last, silent) = self.offence_warning;
        let now = Instant::now();
        if last.is_none_or(|last| now.saturating_duration_since(last) >= WARNING) {
            tracing::warn!(%peer, reason, evidence, others = silent, "peer broke a rule");
            self.offence_warning = (Some(now), 0);
        } else {
            self.offence_warning.1 += 1;
        }
        self.reputation
            .on_offence(peer, offence, evidence, unix_now());
    }

    /// Does what the reputation asks for.
    pub(super) fn enforce(&mut self) {
        while let Some(action) = self.reputation.poll() {
            match action {
                Action::Score { peer, score } => {
                    self.swarm
                        .behaviour_mut()
                        .gossip
                        .set_application_score(&peer, score);
                }
                Action::Ban(peer) => {
                    self.rules.lock().banned_peers.insert(peer);
                    let why = self
                        .reputation
                        .bans()
                        .get(&peer)
                        .map(|ban| ban.reason.clone())
                        .unwrap_or_default();
                    self.close(peer, "banned", why);
                }
                Action::Unban(peer) => {
                    self.rules.lock().banned_peers.remove(&peer);
                }
                Action::BanAddress(address) => {
                    self.rules.lock().banned_addresses.insert(address);
                }
                Action::UnbanAddress(address) => {
                    self.rules.lock().banned_addresses.remove(&address);
                }
                Action::Save(record) => self.peerstore.note(&record),
            }
        }
        if self.writing.is_empty()
            && self.peerstore.has_changes()
            && let Some(write) = self.peerstore.take_changes()
        {
            self.writing.spawn_blocking(write);
        }
    }

    /// What is due by the clock.
    pub(super) fn tick(&mut self, now: Instant) {
        if now < self.ticks.second {
            return;
        }
        self.ticks.second = now + SECOND;
        let unix = unix_now();
        self.reputation.on_time(unix);
        for (peer, copies) in self.propagation.take_replayers() {
            let evidence = format!("{copies} copies of what it had sent before");
            (0..copies.min(REPLAYS))
                .for_each(|_| self.on_offence(peer, Offence::Replay, &evidence));
        }
        let mut sharing: HashMap<IpAddr, usize> = HashMap::new();
        for ip in self.peers.values().filter_map(super::Connected::ip) {
            *sharing.entry(ip).or_default() += 1;
        }
        for (id, peer) in &self.peers {
            if let Some(score) = self.swarm.behaviour().gossip.peer_score(id) {
                let sharing = peer
                    .ip()
                    .and_then(|ip| sharing.get(&ip).copied())
                    .unwrap_or(1);
                self.reputation.on_router_score(*id, score, sharing, unix);
            }
        }
        let missed =
            now.saturating_duration_since(self.ticks.slot).as_secs() / self.slot.as_secs().max(1);
        if now >= self.ticks.slot {
            (0..=missed.min(MAX_SLOTS.into())).for_each(|_| self.reputation.on_slot(unix));
            self.ticks.slot = now + self.slot;
        }
        if now >= self.ticks.save {
            self.ticks.save = now + SAVE_INTERVAL;
            self.reputation.save_all(unix);
            self.record_scores();
        }
        self.retry_unheard(unix);
        self.record_shape();
        self.ebb(now);
        self.ask_statuses(now);
        self.show_progress(now);
        self.dial_candidates(now);
    }

    fn record_scores(&self) {
        for peer in self.peers.keys() {
            let scores = self.reputation.scores(peer);
            let rows = [
                ("total", scores.gossip.total),
                ("blocksTimeInMesh", scores.gossip.blocks.time_in_mesh),
                (
                    "blocksFirstMessage",
                    scores.gossip.blocks.first_message_deliveries,
                ),
                (
                    "blocksMessageDeliveries",
                    scores.gossip.blocks.mesh_message_deliveries,
                ),
                (
                    "blocksInvalidMessageDeliveries",
                    scores.gossip.blocks.invalid_message_deliveries,
                ),
                ("ipColocation", scores.gossip.ip_colocation_factor),
                ("behavioralPenalty", scores.gossip.behavioral_penalty),
                ("reqRespValidResponses", scores.req_resp.valid_responses),
                ("reqRespErrorResponses", scores.req_resp.error_responses),
                ("reqRespRejectedPayloads", scores.req_resp.rejected_payloads),
            ];
            rows.into_iter()
                .for_each(|(kind, value)| meters::score(kind, value));
        }
    }

    /// What the mesh and the gap look like.
    fn record_shape(&self) {
        for version in PayloadVersion::ALL {
            let mesh = self.topics.name(version).map_or(0, |topic| {
                self.swarm.behaviour().gossip.mesh_peers(&topic).count()
            });
            let label = ["V1", "V2", "V3", "V4"][version as usize];
            metrics::gauge!("starling_p2p_mesh_peers", "topic" => label).set(mesh as f64);
        }
        meters::quarantine(self.sync.report().waiting);
    }

    /// Drops peers when there are too many.
    fn ebb(&mut self, now: Instant) {
        let tidal = |(id, peer): (&PeerId, &super::Connected)| Tidal {
            peer: *id,
            protected: self.reputation.is_protected(id),
            outbound: peer.links.first().is_some_and(|link| link.outbound),
            since: peer.since,
            score: self.reputation.total(id),
        };
        // Those on their way out do not count.
        let staying: Vec<Tidal> = self
            .peers
            .iter()
            .filter(|(_, peer)| peer.leaving.is_none())
            .map(tidal)
            .collect();
        let count = staying.len();
        for peer in self.tides.ebb(staying, now) {
            self.close(
                peer,
                "too_many_peers",
                format!("{count} peers, at most {} are kept", self.tides.hi),
            );
        }
    }

    /// Writes down everything before the swarm ends.
    pub(super) async fn store_at_end(&mut self) {
        self.reputation.save_all(unix_now());
        self.enforce();
        while !self.writing.is_empty() || self.peerstore.has_changes() {
            self.writing.join_next().await;
            self.enforce();
        }
    }
}
