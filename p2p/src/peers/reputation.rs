//! Reputation: the scores of peers (here), and the bans that follow from them
//! (`reputation/bans.rs`). A pure state machine: events and `now` (Unix seconds) go in,
//! [`ReputationAction`]s come out of [`Reputation::poll`]. The ledger records the reason of each
//! action.
//!
//! A peer's score is the sum of gossipsub's part and the application's part. This file computes the
//! application's part from the peer's offences and passes it to gossipsub. A peer whose score falls
//! below the threshold is banned for a time. Once three peers of one address are banned, the
//! address is banned. Static and protected peers are never banned, only reported. No ban is imposed
//! on an address of a static peer or of a connected protected peer, nor on a private address, which
//! many peers may share. Bans restored after a restart follow the same rules.
//!
//! Overload: peers that connect, misbehave and reconnect under new names. Scores, bans and ledger
//! are bounded.

mod bans;

use super::{
    ledger::{Ledger, LedgerChange, LedgerEntry},
    score::{self, GossipScores, Offence, OffenceClass, OffenceCounters, Scores, Scoring},
    store::{ScoreRecord, StoreRecord},
};
use crate::address::site;
use libp2p::PeerId;
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    net::IpAddr,
    time::Duration,
};

/// The score that gossipsub computes for a peer that can be banned is kept at least this far above
/// the graylist threshold: such a peer is banned by the node, not graylisted by gossipsub.
const GRAYLIST_MARGIN: f64 = 1.0;
/// Largest number of scores of disconnected peers; above it the oldest are forgotten.
const ABSENT: usize = 4096;
/// Number of half frames of one peer within [`HALF_FRAME_WINDOW`] that leads to a ban at the default
/// threshold. The connection ends after each of them, so an honest peer's line would have to fail as
/// often, each time within a frame.
const HALF_FRAMES: usize = 4;
/// Time in seconds for which half frames are counted. Counters decay too fast for that: with a half
/// frame every 20 s and blocks of 2 s, the penalty settles at -8.
const HALF_FRAME_WINDOW: u64 = 300;
/// Number of events as which a repeated half frame counts: -160, a ban also for a peer that has
/// served many blocks.
const REPEATED_HALF_FRAME: f64 = 40.0;

/// The settings `--p2p.scoring` and `--p2p.ban.*`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Policy {
    /// Whether offences lower the score.
    pub scoring: Scoring,
    /// Whether peers are banned at all.
    pub ban: bool,
    /// Score below which a peer is banned.
    pub threshold: f64,
    /// Duration of a ban.
    pub duration: Duration,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            scoring: Scoring::Light,
            ban: true,
            threshold: -100.0,
            duration: Duration::from_secs(3600),
        }
    }
}

/// An action that the caller has to carry out.
#[derive(Clone, Debug, PartialEq)]
pub enum ReputationAction {
    /// Set gossipsub's application score of a peer.
    Score {
        peer: PeerId,
        score: f64,
    },
    /// Close the peer's connections and refuse new ones.
    Ban(PeerId),
    Unban(PeerId),
    /// Refuse new connections from this address; existing ones stay.
    BanAddress(IpAddr),
    UnbanAddress(IpAddr),
    /// Store this record; a record without contents is removed.
    Save(StoreRecord),
}

/// A ban in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ban {
    /// End of the ban, in Unix seconds.
    pub until: u64,
    pub reason: String,
    /// Address of the banned peer.
    address: Option<IpAddr>,
}

/// The score of a peer, and the counters that it is computed from.
#[derive(Debug, Default)]
struct PeerState {
    counters: OffenceCounters,
    /// gossipsub's score without the application's part.
    router: f64,
    gossip: GossipScores,
    connected: bool,
    address: Option<IpAddr>,
    /// Unix time of the last save.
    updated: u64,
    /// Whether a ban that was due has been reported instead of imposed.
    spared: bool,
    /// Unix times of the newest half frames, fewer than [`HALF_FRAMES`].
    half_frames: Vec<u64>,
}

impl PeerState {
    /// The whole score: gossipsub's part and the application's.
    fn total(&self) -> f64 {
        self.router + self.counters.score()
    }

    /// Records a half frame. Returns the number of events as which it counts.
    fn on_half_frame(&mut self, now: u64) -> f64 {
        self.half_frames
            .retain(|at| now.saturating_sub(*at) < HALF_FRAME_WINDOW);
        self.half_frames.push(now);
        if self.half_frames.len() < HALF_FRAMES {
            return 1.0;
        }
        self.half_frames.remove(0);
        REPEATED_HALF_FRAME
    }
}

/// The scores and bans of all peers.
#[derive(Debug)]
pub struct Reputation {
    policy: Policy,
    /// Time in seconds for which a peer's state is kept after its last connection has closed.
    retention: u64,
    peers: BTreeMap<PeerId, PeerState>,
    bans: BTreeMap<PeerId, Ban>,
    address_bans: BTreeMap<IpAddr, Ban>,
    statics: BTreeSet<PeerId>,
    /// Peers that an operator protects.
    protected: BTreeSet<PeerId>,
    /// Sites of static peers.
    trusted_sites: BTreeSet<IpAddr>,
    ledger: Ledger,
    actions: VecDeque<ReputationAction>,
}

impl Reputation {
    /// `addresses` are the IP addresses of static peers; static peers given by name are not among
    /// them.
    pub fn new(
        policy: Policy,
        slot: Duration,
        statics: impl IntoIterator<Item = PeerId>,
        addresses: impl IntoIterator<Item = IpAddr>,
    ) -> Self {
        let retention = match policy.scoring {
            Scoring::None => 0,
            Scoring::Light => score::retention(slot).as_secs(),
        };
        Self {
            policy,
            retention,
            peers: BTreeMap::new(),
            bans: BTreeMap::new(),
            address_bans: BTreeMap::new(),
            statics: statics.into_iter().collect(),
            protected: BTreeSet::new(),
            trusted_sites: addresses.into_iter().map(site).collect(),
            ledger: Ledger::default(),
            actions: VecDeque::new(),
        }
    }

    /// Restores the records that an earlier run of the node has stored.
    pub fn restore(&mut self, records: Vec<StoreRecord>, now: u64) {
        for record in records {
            match record {
                StoreRecord::Score(peer, Some(record))
                    if record.last_update.saturating_add(self.retention) > now =>
                {
                    let counters = record.peer_scores.counters();
                    self.peers.insert(
                        peer,
                        PeerState {
                            counters,
                            updated: record.last_update,
                            ..Default::default()
                        },
                    );
                }
                StoreRecord::PeerBan(peer, Some(record))
                    if record.expiry > now && !self.is_protected(&peer) =>
                {
                    self.restore_ban(peer, record, now);
                }
                StoreRecord::AddressBan(address, Some(record))
                    if record.expiry > now && !self.is_spared(site(address)) =>
                {
                    self.restore_address_ban(site(address), record, now);
                }
                stale => self
                    .actions
                    .push_back(ReputationAction::Save(stale.removed())),
            }
        }
        self.record_bans();
    }

    pub fn poll(&mut self) -> Option<ReputationAction> {
        self.actions.pop_front()
    }

    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    pub fn is_protected(&self, peer: &PeerId) -> bool {
        self.statics.contains(peer) || self.protected.contains(peer)
    }

    /// The peer's scores in the format that op-node reports.
    pub fn scores(&self, peer: &PeerId) -> Scores {
        self.peers
            .get(peer)
            .map(|state| Scores::of(state.gossip, &state.counters))
            .unwrap_or_default()
    }

    pub fn total(&self, peer: &PeerId) -> f64 {
        self.peers.get(peer).map_or(0.0, PeerState::total)
    }

    pub fn on_connected(
        &mut self,
        peer: PeerId,
        address: Option<IpAddr>,
        outbound: bool,
        now: u64,
    ) {
        let state = self.peers.entry(peer).or_default();
        (state.connected, state.router) = (true, 0.0);
        let score = state.counters.score();
        self.on_address(&peer, address);
        let reason = if outbound { "we_dialled" } else { "it_dialled" };
        let entry = LedgerEntry::of_peer(peer, LedgerChange::Connected, reason, "", score);
        self.ledger.write(entry.at(address), now);
        self.set_router_score(&peer);
    }

    /// Sets the address of a peer to the address of its oldest connection.
    pub fn on_address(&mut self, peer: &PeerId, address: Option<IpAddr>) {
        if self.statics.contains(peer) {
            self.trusted_sites.extend(address.map(site));
        }
        if let Some(state) = self.peers.get_mut(peer) {
            state.address = address;
        }
    }

    /// The last connection of a peer has closed.
    pub fn on_disconnected(
        &mut self,
        peer: &PeerId,
        reason: &'static str,
        evidence: &str,
        now: u64,
    ) {
        metrics::counter!("starling_p2p_disconnects_total", "reason" => reason).increment(1);
        let score = self.total(peer);
        let address = self.peers.get(peer).and_then(|state| state.address);
        let change = LedgerChange::Disconnected;
        let entry = LedgerEntry::of_peer(*peer, change, reason, evidence, score);
        self.ledger.write(entry.at(address), now);
        tracing::info!(%peer, reason, evidence, "peer disconnected");
        self.save(peer, now);
        if let Some(state) = self.peers.get_mut(peer) {
            state.connected = false;
        }
        self.forget_oldest_absent();
    }

    /// Forgets the oldest score of a disconnected peer if there are more than [`ABSENT`]. Called
    /// whenever a peer disconnects.
    fn forget_oldest_absent(&mut self) {
        let absent = || self.peers.iter().filter(|(_, state)| !state.connected);
        if absent().count() <= ABSENT {
            return;
        }
        let oldest = absent().min_by_key(|(_, state)| state.updated);
        if let Some(oldest) = oldest.map(|(peer, _)| *peer) {
            self.peers.remove(&oldest);
            let removal = StoreRecord::Score(oldest, None);
            self.actions.push_back(ReputationAction::Save(removal));
        }
    }

    /// Counts an offence of the peer; `evidence` describes it.
    pub fn on_offence(&mut self, peer: PeerId, offence: Offence, evidence: &str, now: u64) {
        let state = self.peers.entry(peer).or_insert_with(|| PeerState {
            updated: now,
            ..Default::default()
        });
        let times = match offence {
            Offence::HalfFrame => state.on_half_frame(now),
            _ => offence.times(),
        };
        let change = match self.policy.scoring {
            Scoring::None => 0.0,
            Scoring::Light => state.counters.add_times(offence.class(), times),
        };
        let (address, score) = (state.address, state.total());
        let change = LedgerChange::Score(change);
        let entry = LedgerEntry::of_peer(peer, change, offence.label(), evidence, score);
        self.ledger.write(entry.at(address), now);
        self.set_router_score(&peer);
        self.judge(peer, now);
    }

    /// Counts a response with a valid block from the peer.
    pub fn on_valid_response(&mut self, peer: PeerId, now: u64) {
        let Some(state) = self.peers.get_mut(&peer) else {
            return;
        };
        if self.policy.scoring == Scoring::None {
            return;
        }
        let change = state.counters.add(OffenceClass::ValidResponse);
        if change > 0.0 {
            let (change, score) = (LedgerChange::Score(change), state.total());
            let entry = LedgerEntry::of_peer(peer, change, "valid_response", "", score);
            self.ledger.write(entry, now);
            self.set_router_score(&peer);
        }
    }

    /// Handles the end of a slot: the counters of connected peers decay. Disconnected peers keep
    /// their counters until their state is forgotten.
    pub fn on_slot(&mut self, now: u64) {
        let retention = self.retention;
        let actions = &mut self.actions;
        self.peers.retain(|peer, state| {
            let kept = state.connected || state.updated.saturating_add(retention) > now;
            if !kept {
                actions.push_back(ReputationAction::Save(StoreRecord::Score(*peer, None)));
            }
            kept
        });
        let connected = self
            .peers
            .iter_mut()
            .filter(|(_, state)| state.connected && !state.counters.is_empty());
        let changed: Vec<PeerId> = connected
            .map(|(peer, state)| {
                state.counters.decay();
                *peer
            })
            .collect();
        changed.iter().for_each(|peer| self.set_router_score(peer));
    }

    /// Records gossipsub's `total` score of a connected peer, the application's part included.
    /// `sharing` is the number of peers at the peer's address.
    pub fn on_router_score(&mut self, peer: PeerId, total: f64, sharing: usize, now: u64) {
        let before = self.application_score(&peer);
        let Some(state) = self.peers.get_mut(&peer) else {
            return;
        };
        state.router = total - before;
        state.gossip = GossipScores::of(state.router, state.counters.score(), sharing);
        if self.application_score(&peer) != before {
            self.set_router_score(&peer);
        }
        self.judge(peer, now);
    }

    /// Saves the scores of connected peers.
    pub fn save_all(&mut self, now: u64) {
        let connected: Vec<PeerId> = self
            .peers
            .iter()
            .filter(|(_, state)| state.connected)
            .map(|(peer, _)| *peer)
            .collect();
        connected.iter().for_each(|peer| self.save(peer, now));
    }

    /// Protects a peer on an operator's command.
    pub fn protect(&mut self, peer: PeerId, now: u64) {
        self.unban(&peer, "protected", now);
        if self.protected.insert(peer) {
            self.note_protection(peer, LedgerChange::Protected, now);
        }
        self.set_router_score(&peer);
    }

    /// Ends the protection of a peer on an operator's command.
    pub fn unprotect(&mut self, peer: PeerId, now: u64) {
        if self.protected.remove(&peer) {
            self.note_protection(peer, LedgerChange::Unprotected, now);
            self.set_router_score(&peer);
        }
    }

    fn note_protection(&mut self, peer: PeerId, change: LedgerChange, now: u64) {
        let entry = LedgerEntry::of_peer(peer, change, "operator", "", self.total(&peer));
        self.ledger.write(entry, now);
    }

    /// Writes an entry into the ledger.
    pub fn note(&mut self, entry: LedgerEntry, now: u64) {
        self.ledger.write(entry, now);
    }

    /// Forgets the peer's offences and ends its ban.
    pub fn forgive(&mut self, peer: &PeerId, reason: &'static str, now: u64) {
        self.unban(peer, reason, now);
        self.clear(peer);
    }

    /// Bans the peer if its score is below the threshold, or records that the peer is spared.
    fn judge(&mut self, peer: PeerId, now: u64) {
        let (threshold, protected) = (self.policy.threshold, self.is_protected(&peer));
        let Some(state) = self.peers.get_mut(&peer) else {
            return;
        };
        let total = state.total();
        if self.policy.scoring == Scoring::None || total >= threshold {
            // Report a spared ban again only after the score has recovered.
            state.spared &= total < threshold / 2.0;
            return;
        }
        let router = if state.router < -0.5 {
            format!(", router {:.1}", state.router)
        } else {
            String::new()
        };
        let evidence = format!(
            "score {total:.1} below {threshold}: {}{router}",
            state.counters.explain()
        );
        if self.policy.ban && !protected {
            self.ban(peer, "score", evidence, now);
        } else if !std::mem::replace(&mut state.spared, true) {
            let reason = if protected {
                "protected"
            } else {
                "banning_is_off"
            };
            let address = state.address;
            tracing::warn!(%peer, reason, evidence, "peer would be banned");
            let entry = LedgerEntry::of_peer(peer, LedgerChange::Spared, reason, evidence, total);
            self.ledger.write(entry.at(address), now);
        }
    }

    /// Forgets the offences of a peer.
    fn clear(&mut self, peer: &PeerId) {
        if let Some(state) = self.peers.get_mut(peer) {
            state.counters = OffenceCounters::default();
            state.half_frames.clear();
            self.actions
                .push_back(ReputationAction::Save(StoreRecord::Score(*peer, None)));
            self.set_router_score(peer);
        }
    }

    /// Saves the score of a peer, unless all its counters are zero.
    fn save(&mut self, peer: &PeerId, now: u64) {
        let Some(state) = self.peers.get_mut(peer) else {
            return;
        };
        state.updated = now;
        let total = state.total();
        if self.policy.scoring == Scoring::Light && !state.counters.is_empty() {
            state.gossip.total = total;
            let peer_scores = Scores::of(state.gossip, &state.counters);
            let record = ScoreRecord {
                last_update: now,
                peer_scores,
            };
            self.actions
                .push_back(ReputationAction::Save(StoreRecord::Score(
                    *peer,
                    Some(record),
                )));
        }
    }

    /// The application score that gossipsub gets. A protected peer has none below zero: it must
    /// stay in the mesh. A peer that can be banned is kept above the graylist threshold, whatever
    /// gossipsub's own part is. If it were graylisted, the node would still unpack its messages,
    /// but would neither ban it nor see its score recover.
    fn application_score(&self, peer: &PeerId) -> f64 {
        let (score, router) = self.peers.get(peer).map_or((0.0, 0.0), |state| {
            (state.counters.score(), state.router.min(0.0))
        });
        if self.is_protected(peer) {
            score.max(0.0)
        } else if self.policy.ban {
            score.max(score::router_thresholds().graylist_threshold + GRAYLIST_MARGIN - router)
        } else {
            score
        }
    }

    fn set_router_score(&mut self, peer: &PeerId) {
        if self.policy.scoring == Scoring::Light {
            self.actions.push_back(ReputationAction::Score {
                peer: *peer,
                score: self.application_score(peer),
            });
        }
    }
}

#[cfg(test)]
mod tests;
