//! Reputation: scores of peers and the bans that follow from them. A pure state machine: events and
//! `now` (Unix seconds) go in, [`ReputationAction`]s come out of [`Reputation::poll`]; the ledger
//! holds the reason of each.
//!
//! A peer whose score falls below the threshold is banned for a time. After the third peer banned
//! at one address, the address is banned. Static and protected peers are never banned, only
//! reported. Their addresses are never banned either, nor are private addresses, which many peers
//! may share. Bans from before a restart follow the same rules.
//!
//! Overload: peers that connect, misbehave and reconnect under new names. Scores, bans
//! and ledger are bounded.

use super::{
    ledger::{Ledger, LedgerChange, LedgerEntry},
    score::{self, GossipScores, Offence, OffenceCounters, Scores, Scoring},
};
use crate::{
    address::{Scope, site},
    peers::store::{BanRecord, ScoreRecord, StoreRecord},
};
use libp2p::PeerId;
use std::{
    collections::{BTreeMap, BTreeSet, HashMap, VecDeque},
    net::IpAddr,
    time::Duration,
};

/// Peers banned at one address before the address is.
const BANS_PER_ADDRESS: usize = 3;
/// Peers, and addresses, banned at once. Above this number the ban that would end first ends.
const BANS: usize = 10_000;
/// Margin above gossipsub's graylist threshold for peers we still want to receive from.
const GRAYLIST_MARGIN: f64 = 1.0;
/// Scores of disconnected peers; above this number the oldest are forgotten.
const ABSENT: usize = 4096;

/// `--p2p.scoring` and `--p2p.ban.*`.
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

/// A step that the caller has to take.
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
    /// Unix seconds.
    pub until: u64,
    pub reason: String,
    /// Address of the peer.
    address: Option<IpAddr>,
}

#[derive(Debug, Default)]
struct PeerState {
    counters: OffenceCounters,
    /// gossipsub's part of the score: all but the application's.
    router: f64,
    gossip: GossipScores,
    connected: bool,
    address: Option<IpAddr>,
    /// Unix time of the last save.
    updated: u64,
    /// Whether a due ban was reported and not imposed.
    spared: bool,
}

#[derive(Debug)]
pub struct Reputation {
    policy: Policy,
    /// Seconds that a state outlives its peer's connection.
    retention: u64,
    peers: HashMap<PeerId, PeerState>,
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
    /// `addresses` are those of static peers, as far as they are given as numbers.
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
            peers: HashMap::new(),
            bans: BTreeMap::new(),
            address_bans: BTreeMap::new(),
            statics: statics.into_iter().collect(),
            protected: BTreeSet::new(),
            trusted_sites: addresses.into_iter().map(site).collect(),
            ledger: Ledger::default(),
            actions: VecDeque::new(),
        }
    }

    /// Restores the records of before a restart.
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

    fn restore_ban(&mut self, peer: PeerId, record: BanRecord, now: u64) {
        let change = LedgerChange::Banned {
            until: record.expiry,
        };
        let entry = LedgerEntry::of_peer(peer, change, "kept", &*record.reason, 0.0);
        self.ledger.write(entry, now);
        let ban = Ban {
            until: record.expiry,
            reason: record.reason,
            address: record.address,
        };
        self.bans.insert(peer, ban);
        self.actions.push_back(ReputationAction::Ban(peer));
    }

    /// `address` is a [`site`].
    fn restore_address_ban(&mut self, address: IpAddr, record: BanRecord, now: u64) {
        let change = LedgerChange::Banned {
            until: record.expiry,
        };
        let entry = LedgerEntry::of_address(address, change, "kept", &*record.reason);
        self.ledger.write(entry, now);
        let ban = Ban {
            until: record.expiry,
            reason: record.reason,
            address: None,
        };
        self.address_bans.insert(address, ban);
        self.actions
            .push_back(ReputationAction::BanAddress(address));
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

    pub fn bans(&self) -> &BTreeMap<PeerId, Ban> {
        &self.bans
    }

    pub fn address_bans(&self) -> &BTreeMap<IpAddr, Ban> {
        &self.address_bans
    }

    /// The peer's scores as the network's nodes report them.
    pub fn scores(&self, peer: &PeerId) -> Scores {
        self.peers
            .get(peer)
            .map(|state| Scores::of(state.gossip, &state.counters))
            .unwrap_or_default()
    }

    pub fn total(&self, peer: &PeerId) -> f64 {
        self.peers
            .get(peer)
            .map_or(0.0, |state| state.router + state.counters.score())
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
        self.ledger.write(
            LedgerEntry::of_peer(peer, LedgerChange::Connected, reason, "", score).at(address),
            now,
        );
        self.set_router_score(&peer);
    }

    /// Sets the address of a peer: that of its oldest connection.
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
        self.ledger.write(
            LedgerEntry::of_peer(*peer, LedgerChange::Disconnected, reason, evidence, score)
                .at(address),
            now,
        );
        tracing::info!(%peer, reason, evidence, "peer disconnected");
        self.save(peer, now);
        if let Some(state) = self.peers.get_mut(peer) {
            state.connected = false;
        }
        if self.peers.values().filter(|state| !state.connected).count() > ABSENT {
            let absent = self.peers.iter().filter(|(_, state)| !state.connected);
            if let Some(oldest) = absent
                .min_by_key(|(_, state)| state.updated)
                .map(|(peer, _)| *peer)
            {
                self.peers.remove(&oldest);
                self.actions
                    .push_back(ReputationAction::Save(StoreRecord::Score(oldest, None)));
            }
        }
    }

    /// The peer broke a rule; `evidence` is what shows it.
    pub fn on_offence(&mut self, peer: PeerId, offence: Offence, evidence: &str, now: u64) {
        let state = self.peers.entry(peer).or_insert_with(|| PeerState {
            updated: now,
            ..Default::default()
        });
        let change = match self.policy.scoring {
            Scoring::None => 0.0,
            Scoring::Light => state.counters.add_times(offence.class(), offence.times()),
        };
        let (address, score) = (state.address, state.router + state.counters.score());
        self.ledger.write(
            LedgerEntry::of_peer(
                peer,
                LedgerChange::Score(change),
                offence.label(),
                evidence,
                score,
            )
            .at(address),
            now,
        );
        self.set_router_score(&peer);
        self.judge(peer, now);
    }

    /// The peer responded to a request with a valid block.
    pub fn on_valid_response(&mut self, peer: PeerId, now: u64) {
        let Some(state) = self.peers.get_mut(&peer) else {
            return;
        };
        if self.policy.scoring == Scoring::None {
            return;
        }
        let change = state.counters.add(score::OffenceClass::ValidResponse);
        if change > 0.0 {
            let score = state.router + state.counters.score();
            self.ledger.write(
                LedgerEntry::of_peer(
                    peer,
                    LedgerChange::Score(change),
                    "valid_response",
                    "",
                    score,
                ),
                now,
            );
            self.set_router_score(&peer);
        }
    }

    /// A slot has passed: the counters of connected peers decay. Disconnected peers keep theirs
    /// until their state is forgotten.
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

    /// gossipsub's score of a connected peer, the application's part included, and the number of
    /// peers that share its address.
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

    /// Ends bans that have expired.
    pub fn on_time(&mut self, now: u64) {
        let over: Vec<PeerId> = self
            .bans
            .iter()
            .filter(|(_, ban)| ban.until <= now)
            .map(|(peer, _)| *peer)
            .collect();
        over.iter()
            .for_each(|peer| self.unban(peer, "expired", now));
        let over: Vec<IpAddr> = self
            .address_bans
            .iter()
            .filter(|(_, ban)| ban.until <= now)
            .map(|(ip, _)| *ip)
            .collect();
        over.iter()
            .for_each(|address| self.unban_address(*address, "expired", now));
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

    /// An operator protects a peer.
    pub fn protect(&mut self, peer: PeerId, now: u64) {
        self.unban(&peer, "protected", now);
        if self.protected.insert(peer) {
            self.ledger.write(
                LedgerEntry::of_peer(
                    peer,
                    LedgerChange::Protected,
                    "operator",
                    "",
                    self.total(&peer),
                ),
                now,
            );
        }
        self.set_router_score(&peer);
    }

    /// An operator no longer protects a peer.
    pub fn unprotect(&mut self, peer: PeerId, now: u64) {
        if self.protected.remove(&peer) {
            self.ledger.write(
                LedgerEntry::of_peer(
                    peer,
                    LedgerChange::Unprotected,
                    "operator",
                    "",
                    self.total(&peer),
                ),
                now,
            );
            self.set_router_score(&peer);
        }
    }

    /// Writes an entry into the ledger.
    pub fn note(&mut self, entry: LedgerEntry, now: u64) {
        self.ledger.write(entry, now);
    }

    /// Forgets the peer's score and ends its ban.
    pub fn forgive(&mut self, peer: &PeerId, reason: &'static str, now: u64) {
        self.unban(peer, reason, now);
        self.clear(peer);
    }

    /// Whether a [`site`] is never banned: a static or protected peer uses it, or it is not a
    /// public address. A private address may be that of a gateway or a container bridge with a
    /// whole network behind it.
    fn is_spared(&self, address: IpAddr) -> bool {
        let uses_address = |(peer, state): (&PeerId, &PeerState)| {
            state.connected && state.address.map(site) == Some(address) && self.is_protected(peer)
        };
        Scope::of(address) != Scope::World
            || self.trusted_sites.contains(&address)
            || self.peers.iter().any(uses_address)
    }

    /// Bans an address for the usual time, unless it [is spared](Self::is_spared).
    pub fn ban_address(
        &mut self,
        address: IpAddr,
        reason: &'static str,
        evidence: String,
        now: u64,
    ) {
        let address = site(address);
        if self.is_spared(address) {
            tracing::warn!(%address, reason, evidence, "address not banned: it is private, or a static or protected peer is there");
            self.ledger.write(
                LedgerEntry::of_address(address, LedgerChange::Spared, reason, evidence),
                now,
            );
            return;
        }
        let until = now.saturating_add(self.policy.duration.as_secs());
        tracing::warn!(%address, reason, evidence, until, "address banned");
        metrics::counter!("starling_p2p_bans_total", "reason" => reason).increment(1);
        self.ledger.write(
            LedgerEntry::of_address(
                address,
                LedgerChange::Banned { until },
                reason,
                evidence.clone(),
            ),
            now,
        );
        if self.address_bans.len() >= BANS
            && let Some(first) = self
                .address_bans
                .iter()
                .min_by_key(|(_, ban)| ban.until)
                .map(|(address, _)| *address)
        {
            self.unban_address(first, "too_many_bans", now);
        }
        let record = BanRecord {
            expiry: until,
            last_update: now,
            reason: evidence.clone(),
            address: None,
        };
        self.address_bans.insert(
            address,
            Ban {
                until,
                reason: evidence,
                address: None,
            },
        );
        self.actions
            .push_back(ReputationAction::BanAddress(address));
        self.actions
            .push_back(ReputationAction::Save(StoreRecord::AddressBan(
                address,
                Some(record),
            )));
    }

    pub fn unban_address(&mut self, address: IpAddr, reason: &'static str, now: u64) {
        let address = site(address);
        if self.address_bans.remove(&address).is_some() {
            tracing::info!(%address, reason, "address no longer banned");
            metrics::counter!("starling_p2p_unbans_total", "reason" => reason).increment(1);
            crate::metrics::address_unbanned();
            self.ledger.write(
                LedgerEntry::of_address(address, LedgerChange::Unbanned, reason, ""),
                now,
            );
            self.actions
                .push_back(ReputationAction::UnbanAddress(address));
            self.actions
                .push_back(ReputationAction::Save(StoreRecord::AddressBan(
                    address, None,
                )));
        }
    }

    fn judge(&mut self, peer: PeerId, now: u64) {
        let (threshold, protected) = (self.policy.threshold, self.is_protected(&peer));
        let Some(state) = self.peers.get_mut(&peer) else {
            return;
        };
        let total = state.router + state.counters.score();
        if self.policy.scoring == Scoring::None || total >= threshold {
            // Reported again only after a recovery.
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
            self.ledger.write(
                LedgerEntry::of_peer(peer, LedgerChange::Spared, reason, evidence, total)
                    .at(address),
                now,
            );
        }
    }

    fn ban(&mut self, peer: PeerId, reason: &'static str, evidence: String, now: u64) {
        if self.bans.contains_key(&peer) {
            return;
        }
        let until = now.saturating_add(self.policy.duration.as_secs());
        let address = self.peers.get(&peer).and_then(|state| state.address);
        tracing::warn!(%peer, reason, evidence, until, "peer banned");
        metrics::counter!("starling_p2p_bans_total", "reason" => reason).increment(1);
        let entry = LedgerEntry::of_peer(
            peer,
            LedgerChange::Banned { until },
            reason,
            evidence.clone(),
            self.total(&peer),
        )
        .at(address);
        self.ledger.write(entry, now);
        if self.bans.len() >= BANS
            && let Some(first) = self
                .bans
                .iter()
                .min_by_key(|(_, ban)| ban.until)
                .map(|(peer, _)| *peer)
        {
            self.unban(&first, "too_many_bans", now);
        }
        let record = BanRecord {
            expiry: until,
            last_update: now,
            reason: evidence.clone(),
            address,
        };
        self.bans.insert(
            peer,
            Ban {
                until,
                reason: evidence,
                address,
            },
        );
        self.actions.push_back(ReputationAction::Ban(peer));
        self.actions
            .push_back(ReputationAction::Save(StoreRecord::PeerBan(
                peer,
                Some(record),
            )));
        self.record_bans();
        if let Some(site) = address.map(site) {
            self.ban_crowded_site(site, now);
        }
    }

    /// Bans a site once too many peers of it are banned.
    fn ban_crowded_site(&mut self, address: IpAddr, now: u64) {
        if self.address_bans.contains_key(&address) {
            return;
        }
        let banned = self
            .bans
            .values()
            .filter(|ban| ban.address.map(site) == Some(address))
            .count();
        if banned >= BANS_PER_ADDRESS {
            let evidence = format!("{banned} peers of this address are banned");
            self.ban_address(address, "banned_peers", evidence, now);
        }
    }

    /// Ends a ban and clears the counters, which would otherwise ban the peer again at once.
    fn unban(&mut self, peer: &PeerId, reason: &'static str, now: u64) {
        if self.bans.remove(peer).is_some() {
            self.clear(peer);
            tracing::info!(%peer, reason, "peer no longer banned");
            metrics::counter!("starling_p2p_unbans_total", "reason" => reason).increment(1);
            crate::metrics::peer_unbanned();
            self.ledger.write(
                LedgerEntry::of_peer(*peer, LedgerChange::Unbanned, reason, "", 0.0),
                now,
            );
            self.actions.push_back(ReputationAction::Unban(*peer));
            self.actions
                .push_back(ReputationAction::Save(StoreRecord::PeerBan(*peer, None)));
            self.record_bans();
        }
    }

    fn record_bans(&self) {
        metrics::gauge!("starling_p2p_banned_peers").set(self.bans.len() as f64);
    }

    fn clear(&mut self, peer: &PeerId) {
        if let Some(state) = self.peers.get_mut(peer) {
            state.counters = OffenceCounters::default();
            self.actions
                .push_back(ReputationAction::Save(StoreRecord::Score(*peer, None)));
            self.set_router_score(peer);
        }
    }

    fn save(&mut self, peer: &PeerId, now: u64) {
        let Some(state) = self.peers.get_mut(peer) else {
            return;
        };
        state.updated = now;
        let total = state.router + state.counters.score();
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
    /// stay in the mesh. A peer that can be banned is kept above the graylist threshold whatever
    /// gossipsub's own part is: while it is graylisted, the node would unpack its messages and
    /// neither ban it nor see it improve.
    fn application_score(&self, peer: &PeerId) -> f64 {
        let (score, router) = self.peers.get(peer).map_or((0.0, 0.0), |state| {
            (state.counters.score(), state.router.min(0.0))
        });
        match (self.is_protected(peer), self.policy.ban) {
            (true, _) => score.max(0.0),
            (false, true) => {
                score.max(score::router_thresholds().graylist_threshold + GRAYLIST_MARGIN - router)
            }
            (false, false) => score,
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
