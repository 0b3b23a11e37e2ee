//! Who is in good standing, and what follows when somebody no longer is. A pure state machine: deeds and `now` (Unix seconds) go in,
//! [`Action`]s come out of [`Reputation::poll`]; the ledger holds the reason of each.
//!
//! A peer whose score falls below the threshold is banned for a time; after the third peer banned at one address no new peer from
//! there is let in. Static and protected peers are never banned, only reported. Their addresses are never banned either, and nor
//! are private addresses, which many peers may share. Bans from before a restart obey the same rules.
//!
//! What can overload it: peers that come, misbehave and come back under new names. Standings, bans and ledger are bounded.

use super::{
    ledger::{Change, Entry, Ledger},
    score::{self, Counters, GossipScores, Offence, Scores, Scoring},
};
use crate::{
    discovery::Scope,
    gate::site,
    peerstore::{BanRecord, Record, ScoreRecord},
};
use libp2p::PeerId;
use std::{
    collections::{BTreeMap, BTreeSet, HashMap, VecDeque},
    net::IpAddr,
    time::Duration,
};

/// Peers banned at one address before the address is.
const BANS_PER_ADDRESS: usize = 3;
/// Peers, and addresses, banned at once. Past it the ban that would end first ends.
const BANS: usize = 10_000;
/// What a peer that is to be heard has above the score at which the router is deaf to it.
const HEARD: f64 = 1.0;
/// Standings of peers that left; past it those gone longest are forgotten.
const ABSENT: usize = 4096;

/// `--p2p.scoring` and `--p2p.ban.*`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Policy {
    pub scoring: Scoring,
    /// Whether peers are banned at all.
    pub ban: bool,
    /// Banned below it.
    pub threshold: f64,
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

/// What the caller must do.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// The router's application score of a peer.
    Score {
        peer: PeerId,
        score: f64,
    },
    /// Close the peer's connections and refuse new ones.
    Ban(PeerId),
    Unban(PeerId),
    /// Refuse new connections from there; those of peers in good standing stay.
    BanAddress(IpAddr),
    UnbanAddress(IpAddr),
    /// Write this down; a record without contents is removed.
    Save(Record),
}

/// A ban in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ban {
    /// Unix seconds.
    pub until: u64,
    pub reason: String,
    /// Where the peer was.
    address: Option<IpAddr>,
}

#[derive(Debug, Default)]
struct Standing {
    counters: Counters,
    /// The router's part of the score: all but the application's.
    router: f64,
    gossip: GossipScores,
    connected: bool,
    address: Option<IpAddr>,
    /// When it was last told to be kept.
    updated: u64,
    /// Its ban was due and reported.
    spared: bool,
}

#[derive(Debug)]
pub struct Reputation {
    policy: Policy,
    /// Seconds a standing outlives its peer's connection.
    retention: u64,
    peers: HashMap<PeerId, Standing>,
    bans: BTreeMap<PeerId, Ban>,
    address_bans: BTreeMap<IpAddr, Ban>,
    statics: BTreeSet<PeerId>,
    /// Protected by an operator.
    protected: BTreeSet<PeerId>,
    /// Where static peers live.
    friends: BTreeSet<IpAddr>,
    ledger: Ledger,
    actions: VecDeque<Action>,
}

impl Reputation {
    /// `friends` are the addresses of static peers, as far as they are given as numbers.
    pub fn new(
        policy: Policy,
        slot: Duration,
        statics: impl IntoIterator<Item = PeerId>,
        friends: impl IntoIterator<Item = IpAddr>,
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
            friends: friends.into_iter().map(site).collect(),
            ledger: Ledger::default(),
            actions: VecDeque::new(),
        }
    }

    /// What was written down before a restart.
    pub fn restore(&mut self, records: Vec<Record>, now: u64) {
        for record in records {
            match record {
                Record::Score(peer, Some(record))
                    if record.last_update.saturating_add(self.retention) > now =>
                {
                    let counters = record.peer_scores.counters();
                    self.peers.insert(
                        peer,
                        Standing {
                            counters,
                            updated: record.last_update,
                            ..Default::default()
                        },
                    );
                }
                Record::PeerBan(peer, Some(record))
                    if record.expiry > now && !self.is_protected(&peer) =>
                {
                    let entry = Entry::of_peer(
                        peer,
                        Change::Banned {
                            until: record.expiry,
                        },
                        "kept",
                        &*record.reason,
                        0.0,
                    );
                    self.ledger.write(entry, now);
                    self.bans.insert(
                        peer,
                        Ban {
                            until: record.expiry,
                            reason: record.reason,
                            address: record.address,
                        },
                    );
                    self.actions.push_back(Action::Ban(peer));
                }
                Record::AddressBan(address, Some(record))
                    if record.expiry > now && !self.is_spared(site(address)) =>
                {
                    let address = site(address);
                    let change = Change::Banned {
                        until: record.expiry,
                    };
                    self.ledger.write(
                        Entry::of_address(address, change, "kept", &*record.reason),
                        now,
                    );
                    self.address_bans.insert(
                        address,
                        Ban {
                            until: record.expiry,
                            reason: record.reason,
                            address: None,
                        },
                    );
                    self.actions.push_back(Action::BanAddress(address));
                }
                stale => self.actions.push_back(Action::Save(stale.removed())),
            }
        }
        self.tell_bans();
    }

    pub fn poll(&mut self) -> Option<Action> {
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
            .map(|standing| Scores::of(standing.gossip, &standing.counters))
            .unwrap_or_default()
    }

    pub fn total(&self, peer: &PeerId) -> f64 {
        self.peers
            .get(peer)
            .map_or(0.0, |standing| standing.router + standing.counters.score())
    }

    pub fn on_connected(
        &mut self,
        peer: PeerId,
        address: Option<IpAddr>,
        outbound: bool,
        now: u64,
    ) {
        let standing = self.peers.entry(peer).or_default();
        (standing.connected, standing.router) = (true, 0.0);
        let score = standing.counters.score();
        self.on_address(&peer, address);
        let reason = if outbound { "we_dialled" } else { "it_dialled" };
        self.ledger.write(
            Entry::of_peer(peer, Change::Connected, reason, "", score).at(address),
            now,
        );
        self.tell_router(&peer);
    }

    /// The peer is there now: of its connections only others are left.
    pub fn on_address(&mut self, peer: &PeerId, address: Option<IpAddr>) {
        if self.statics.contains(peer) {
            self.friends.extend(address.map(site));
        }
        if let Some(standing) = self.peers.get_mut(peer) {
            standing.address = address;
        }
    }

    /// The last connection is gone.
    pub fn on_disconnected(
        &mut self,
        peer: &PeerId,
        reason: &'static str,
        evidence: &str,
        now: u64,
    ) {
        metrics::counter!("starling_p2p_disconnects_total", "reason" => reason).increment(1);
        let score = self.total(peer);
        let address = self.peers.get(peer).and_then(|standing| standing.address);
        self.ledger.write(
            Entry::of_peer(*peer, Change::Disconnected, reason, evidence, score).at(address),
            now,
        );
        tracing::info!(%peer, reason, evidence, "peer disconnected");
        self.save(peer, now);
        if let Some(standing) = self.peers.get_mut(peer) {
            standing.connected = false;
        }
        if self
            .peers
            .values()
            .filter(|standing| !standing.connected)
            .count()
            > ABSENT
        {
            let absent = self
                .peers
                .iter()
                .filter(|(_, standing)| !standing.connected);
            if let Some(oldest) = absent
                .min_by_key(|(_, standing)| standing.updated)
                .map(|(peer, _)| *peer)
            {
                self.peers.remove(&oldest);
                self.actions
                    .push_back(Action::Save(Record::Score(oldest, None)));
            }
        }
    }

    /// The peer broke a rule; `evidence` says what that was seen from.
    pub fn on_offence(&mut self, peer: PeerId, offence: Offence, evidence: &str, now: u64) {
        let standing = self.peers.entry(peer).or_insert_with(|| Standing {
            updated: now,
            ..Default::default()
        });
        let change = match self.policy.scoring {
            Scoring::None => 0.0,
            Scoring::Light => standing
                .counters
                .add_times(offence.class(), offence.times()),
        };
        let (address, score) = (
            standing.address,
            standing.router + standing.counters.score(),
        );
        self.ledger.write(
            Entry::of_peer(
                peer,
                Change::Score(change),
                offence.label(),
                evidence,
                score,
            )
            .at(address),
            now,
        );
        self.tell_router(&peer);
        self.judge(peer, now);
    }

    /// The peer answered a request with a block that fits.
    pub fn on_valid_response(&mut self, peer: PeerId, now: u64) {
        let Some(standing) = self.peers.get_mut(&peer) else {
            return;
        };
        if self.policy.scoring == Scoring::None {
            return;
        }
        let change = standing.counters.add(score::Class::ValidResponse);
        if change > 0.0 {
            let score = standing.router + standing.counters.score();
            self.ledger.write(
                Entry::of_peer(peer, Change::Score(change), "valid_response", "", score),
                now,
            );
            self.tell_router(&peer);
        }
    }

    /// A slot has passed: the counters of connected peers shrink. Who is away keeps its debts until they are forgotten as a whole.
    pub fn on_slot(&mut self, now: u64) {
        let retention = self.retention;
        let actions = &mut self.actions;
        self.peers.retain(|peer, standing| {
            let kept = standing.connected || standing.updated.saturating_add(retention) > now;
            if !kept {
                actions.push_back(Action::Save(Record::Score(*peer, None)));
            }
            kept
        });
        let connected = self
            .peers
            .iter_mut()
            .filter(|(_, standing)| standing.connected && !standing.counters.is_empty());
        let changed: Vec<PeerId> = connected
            .map(|(peer, standing)| {
                standing.counters.decay();
                *peer
            })
            .collect();
        changed.iter().for_each(|peer| self.tell_router(peer));
    }

    /// The router's score of a connected peer, the application's part included, and how many peers share its address.
    pub fn on_router_score(&mut self, peer: PeerId, total: f64, sharing: usize, now: u64) {
        let told = self.told(&peer);
        let Some(standing) = self.peers.get_mut(&peer) else {
            return;
        };
        standing.router = total - told;
        standing.gossip = GossipScores::of(standing.router, standing.counters.score(), sharing);
        if self.told(&peer) != told {
            self.tell_router(&peer);
        }
        self.judge(peer, now);
    }

    /// Ends bans that are over.
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

    /// Writes down the scores of who is connected.
    pub fn save_all(&mut self, now: u64) {
        let connected: Vec<PeerId> = self
            .peers
            .iter()
            .filter(|(_, standing)| standing.connected)
            .map(|(peer, _)| *peer)
            .collect();
        connected.iter().for_each(|peer| self.save(peer, now));
    }

    /// By an operator.
    pub fn protect(&mut self, peer: PeerId, now: u64) {
        self.unban(&peer, "protected", now);
        if self.protected.insert(peer) {
            self.ledger.write(
                Entry::of_peer(peer, Change::Protected, "operator", "", self.total(&peer)),
                now,
            );
        }
        self.tell_router(&peer);
    }

    pub fn unprotect(&mut self, peer: PeerId, now: u64) {
        if self.protected.remove(&peer) {
            self.ledger.write(
                Entry::of_peer(peer, Change::Unprotected, "operator", "", self.total(&peer)),
                now,
            );
            self.tell_router(&peer);
        }
    }

    /// Writes what an operator decided elsewhere.
    pub fn note(&mut self, entry: Entry, now: u64) {
        self.ledger.write(entry, now);
    }

    /// Forgets the peer's score and ends its ban.
    pub fn forgive(&mut self, peer: &PeerId, reason: &'static str, now: u64) {
        self.unban(peer, reason, now);
        self.clear(peer);
    }

    /// Whether a [`site`] is never banned: a static or protected peer uses it, or it is not a public address. A private address may be
    /// that of a gateway or a container bridge with a whole network behind it.
    fn is_spared(&self, address: IpAddr) -> bool {
        let uses_it = |(peer, standing): (&PeerId, &Standing)| {
            standing.connected
                && standing.address.map(site) == Some(address)
                && self.is_protected(peer)
        };
        Scope::of(address) != Scope::World
            || self.friends.contains(&address)
            || self.peers.iter().any(uses_it)
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
                Entry::of_address(address, Change::Spared, reason, evidence),
                now,
            );
            return;
        }
        let until = now.saturating_add(self.policy.duration.as_secs());
        tracing::warn!(%address, reason, evidence, until, "address banned");
        metrics::counter!("starling_p2p_bans_total", "reason" => reason).increment(1);
        self.ledger.write(
            Entry::of_address(address, Change::Banned { until }, reason, evidence.clone()),
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
        self.actions.push_back(Action::BanAddress(address));
        self.actions
            .push_back(Action::Save(Record::AddressBan(address, Some(record))));
    }

    pub fn unban_address(&mut self, address: IpAddr, reason: &'static str, now: u64) {
        let address = site(address);
        if self.address_bans.remove(&address).is_some() {
            tracing::info!(%address, reason, "address no longer banned");
            metrics::counter!("starling_p2p_unbans_total", "reason" => reason).increment(1);
            crate::metrics::address_unbanned();
            self.ledger.write(
                Entry::of_address(address, Change::Unbanned, reason, ""),
                now,
            );
            self.actions.push_back(Action::UnbanAddress(address));
            self.actions
                .push_back(Action::Save(Record::AddressBan(address, None)));
        }
    }

    fn judge(&mut self, peer: PeerId, now: u64) {
        let (threshold, protected) = (self.policy.threshold, self.is_protected(&peer));
        let Some(standing) = self.peers.get_mut(&peer) else {
            return;
        };
        let total = standing.router + standing.counters.score();
        if self.policy.scoring == Scoring::None || total >= threshold {
            // Reported again only after a recovery.
            standing.spared &= total < threshold / 2.0;
            return;
        }
        let router = if standing.router < -0.5 {
            format!(", router {:.1}", standing.router)
        } else {
            String::new()
        };
        let evidence = format!(
            "score {total:.1} below {threshold}: {}{router}",
            standing.counters.explain()
        );
        if self.policy.ban && !protected {
            self.ban(peer, "score", evidence, now);
        } else if !std::mem::replace(&mut standing.spared, true) {
            let reason = if protected {
                "protected"
            } else {
                "banning_is_off"
            };
            let address = standing.address;
            tracing::warn!(%peer, reason, evidence, "peer would be banned");
            self.ledger.write(
                Entry::of_peer(peer, Change::Spared, reason, evidence, total).at(address),
                now,
            );
        }
    }

    fn ban(&mut self, peer: PeerId, reason: &'static str, evidence: String, now: u64) {
        if self.bans.contains_key(&peer) {
            return;
        }
        let until = now.saturating_add(self.policy.duration.as_secs());
        let address = self.peers.get(&peer).and_then(|standing| standing.address);
        tracing::warn!(%peer, reason, evidence, until, "peer banned");
        metrics::counter!("starling_p2p_bans_total", "reason" => reason).increment(1);
        let entry = Entry::of_peer(
            peer,
            Change::Banned { until },
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
        self.actions.push_back(Action::Ban(peer));
        self.actions
            .push_back(Action::Save(Record::PeerBan(peer, Some(record))));
        self.tell_bans();

        let Some(place) = address
            .map(site)
            .filter(|place| !self.address_bans.contains_key(place))
        else {
            return;
        };
        let there = self
            .bans
            .values()
            .filter(|ban| ban.address.map(site) == Some(place))
            .count();
        if there >= BANS_PER_ADDRESS {
            self.ban_address(
                place,
                "banned_peers",
                format!("{there} peers of this address are banned"),
                now,
            );
        }
    }

    /// A ban that ends leaves nothing behind: what it was for would otherwise ban the peer again at once.
    fn unban(&mut self, peer: &PeerId, reason: &'static str, now: u64) {
        if self.bans.remove(peer).is_some() {
            self.clear(peer);
            tracing::info!(%peer, reason, "peer no longer banned");
            metrics::counter!("starling_p2p_unbans_total", "reason" => reason).increment(1);
            crate::metrics::peer_unbanned();
            self.ledger.write(
                Entry::of_peer(*peer, Change::Unbanned, reason, "", 0.0),
                now,
            );
            self.actions.push_back(Action::Unban(*peer));
            self.actions
                .push_back(Action::Save(Record::PeerBan(*peer, None)));
            self.tell_bans();
        }
    }

    fn tell_bans(&self) {
        metrics::gauge!("starling_p2p_banned_peers").set(self.bans.len() as f64);
    }

    fn clear(&mut self, peer: &PeerId) {
        if let Some(standing) = self.peers.get_mut(peer) {
            standing.counters = Counters::default();
            self.actions
                .push_back(Action::Save(Record::Score(*peer, None)));
            self.tell_router(peer);
        }
    }

    fn save(&mut self, peer: &PeerId, now: u64) {
        let Some(standing) = self.peers.get_mut(peer) else {
            return;
        };
        standing.updated = now;
        let total = standing.router + standing.counters.score();
        if self.policy.scoring == Scoring::Light && !standing.counters.is_empty() {
            standing.gossip.total = total;
            let peer_scores = Scores::of(standing.gossip, &standing.counters);
            let record = ScoreRecord {
                last_update: now,
                peer_scores,
            };
            self.actions
                .push_back(Action::Save(Record::Score(*peer, Some(record))));
        }
    }

    /// What the router is told. A peer that must not be lost is not pushed out of the mesh by what it did. One that can be banned is
    /// heard until it is, whatever the router itself holds against it: deaf to it, the node would unpack what it sends and neither ban
    /// it nor see it improve.
    fn told(&self, peer: &PeerId) -> f64 {
        let (score, router) = self.peers.get(peer).map_or((0.0, 0.0), |standing| {
            (standing.counters.score(), standing.router.min(0.0))
        });
        match (self.is_protected(peer), self.policy.ban) {
            (true, _) => score.max(0.0),
            (false, true) => {
                score.max(score::router_thresholds().graylist_threshold + HEARD - router)
            }
            (false, false) => score,
        }
    }

    fn tell_router(&mut self, peer: &PeerId) {
        if self.policy.scoring == Scoring::Light {
            self.actions.push_back(Action::Score {
                peer: *peer,
                score: self.told(peer),
            });
        }
    }
}

#[cfg(test)]
mod tests;
