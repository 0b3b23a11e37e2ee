//! Peers: which may connect, which are dialled, disconnected or banned, and for which offences.
//!
//! [`gate`] refuses connections by rules. [`statics`] schedules the dials of static peers, and
//! [`candidates`] those of peers that discovery found. [`links`] chooses connections to close,
//! [`score`] weighs offences, [`reputation`] bans for them, and [`ledger`] keeps the reasons.
//! [`store`] keeps scores, bans and operators' blocklists over a restart.
//!
//! [`Peers`] combines these modules: events and the time go in, [`PeersAction`]s come out of
//! [`Peers::poll`]. It opens no connection, and after the start it does not wait for the disk: a
//! blocking thread writes changes to the store, one batch at a time.
//!
//! Overload: peers that misbehave and reconnect under other names. Candidates, scores, bans and the
//! ledger are bounded, and warnings about offences are limited to one a second.

pub mod candidates;
pub mod gate;
pub mod ledger;
pub mod links;
pub mod reputation;
pub mod score;
pub mod statics;
pub(crate) mod store;

use crate::{
    address::site,
    clock::Moment,
    metrics as meters,
    types::{BanReport, RefusedPeers, Subject},
};
pub use candidates::Candidates;
use candidates::Contact;
use gate::{GateRules, SharedGateRules};
use ipnet::IpNet;
use ledger::{LedgerChange, LedgerEntry};
use libp2p::{Multiaddr, PeerId};
pub use links::{PeerLimits, PeerLink, TrimCandidate, surplus};
use reputation::{Ban, ReputationAction};
pub use reputation::{Policy, Reputation};
pub use score::Offence;
pub use statics::StaticPeers;
use std::{
    collections::BTreeSet,
    net::IpAddr,
    path::PathBuf,
    time::{Duration, Instant},
};
use store::{Peerstore, PeerstoreError, StoreRecord};
use tokio::task::JoinSet;

/// Shortest time between two warnings about offences: a peer that floods us must not flood our log.
const WARNING: Duration = Duration::from_secs(1);
/// Largest number of missed slots for which decay is caught up. It bounds the work after the clock
/// has jumped.
const MAX_SLOTS: u32 = 600;
/// Time between two writes of the scores of connected peers.
const SAVE_INTERVAL: Duration = Duration::from_secs(15);

/// The settings of this module; see [`crate::Config`].
pub struct PeersConfig {
    /// Our own id: never dialled.
    pub local: PeerId,
    pub static_peers: Vec<Multiaddr>,
    pub restrict: Vec<IpNet>,
    pub policy: Policy,
    pub limits: PeerLimits,
    /// The time between two blocks. Scores decay once per slot.
    pub slot: Duration,
    /// Path of the store; `None` keeps everything in memory.
    pub peerstore: Option<PathBuf>,
    /// Seed of the order and the jitter of dials.
    pub seed: u64,
}

/// An action for the service to carry out.
#[derive(Debug)]
pub enum PeersAction {
    /// Set gossipsub's application score of a peer.
    SetScore { peer: PeerId, score: f64 },
    /// Close the peer's connections.
    Disconnect {
        peer: PeerId,
        reason: &'static str,
        evidence: String,
    },
}

/// Rate limit of the warnings about offences.
#[derive(Debug, Default)]
struct OffenceWarnings {
    last: Option<Instant>,
    /// Number of offences since the last warning, which were not logged.
    silent: u64,
}

/// The peers module.
pub struct Peers {
    pub statics: StaticPeers,
    pub candidates: Candidates,
    pub reputation: Reputation,
    pub limits: PeerLimits,
    rules: SharedGateRules,
    store: Peerstore,
    /// The task that writes a batch to the store; at most one at a time.
    writing: JoinSet<()>,
    warnings: OffenceWarnings,
    slot: Duration,
    next_slot: Instant,
    next_save: Instant,
}

impl Peers {
    /// Opens the store and restores scores, bans and operators' blocklists from it.
    pub fn new(config: PeersConfig, now: Moment) -> Result<Self, PeerstoreError> {
        let (seed, instant) = (config.seed, now.instant);
        let statics = StaticPeers::new(&config.static_peers, config.local, seed, instant);
        let (store, records) =
            Peerstore::open(config.peerstore.as_deref(), "--p2p.peerstore.path")?;
        let mut rules = GateRules {
            restrict: config.restrict,
            trusted_peers: statics.ids().copied().collect(),
            trusted_addresses: statics.ips().map(site).collect(),
            ..Default::default()
        };
        for record in &records {
            match record {
                StoreRecord::BlockedPeer(peer, true) => {
                    rules.blocked_peers.insert(*peer);
                }
                StoreRecord::BlockedAddress(address, true) => {
                    rules.blocked_addresses.insert(*address);
                }
                StoreRecord::BlockedSubnet(subnet, true) => {
                    rules.blocked_subnets.insert(*subnet);
                }
                _ => {}
            }
        }
        let mut reputation = Reputation::new(
            config.policy,
            config.slot,
            statics.ids().copied(),
            statics.ips(),
        );
        reputation.restore(records, now.unix);
        Ok(Self {
            statics,
            candidates: Candidates::new(seed.rotate_left(32)),
            reputation,
            limits: config.limits,
            rules: SharedGateRules::new(rules),
            store,
            writing: JoinSet::new(),
            warnings: OffenceWarnings::default(),
            slot: config.slot,
            next_slot: instant + config.slot,
            next_save: instant + SAVE_INTERVAL,
        })
    }

    /// The rules for refusing peers and addresses, shared with the gate and discovery.
    pub fn rules(&self) -> SharedGateRules {
        self.rules.clone()
    }

    /// The time of the next dial of a static peer.
    pub fn next_wake(&self) -> Option<Instant> {
        self.statics.next_dial()
    }

    /// Whether the peer is static, or protected by an operator.
    pub fn is_protected(&self, peer: &PeerId) -> bool {
        self.reputation.is_protected(peer)
    }

    /// Records an offence. Every offence of every peer is recorded by this function.
    pub fn on_offence(&mut self, peer: PeerId, offence: Offence, evidence: &str, now: Moment) {
        let reason = offence.label();
        metrics::counter!("starling_p2p_offences_total", "reason" => reason).increment(1);
        let (instant, warnings) = (now.instant, &mut self.warnings);
        if warnings
            .last
            .is_none_or(|last| instant.saturating_duration_since(last) >= WARNING)
        {
            tracing::warn!(%peer, reason, evidence, others = warnings.silent, "peer broke a rule");
            *warnings = OffenceWarnings {
                last: Some(instant),
                silent: 0,
            };
        } else {
            warnings.silent += 1;
        }
        self.reputation
            .on_offence(peer, offence, evidence, now.unix);
    }

    /// Writes an entry about a peer into the ledger; its score stays as it is.
    pub fn note(&mut self, peer: PeerId, reason: &'static str, evidence: String, now: Moment) {
        let score = self.reputation.total(&peer);
        let entry = LedgerEntry::of_peer(peer, LedgerChange::Score(0.0), reason, evidence, score);
        self.reputation.note(entry, now.unix);
    }

    /// The next action to carry out. Call after every event, until `None`.
    pub fn poll(&mut self) -> Option<PeersAction> {
        while let Some(action) = self.reputation.poll() {
            match action {
                ReputationAction::Score { peer, score } => {
                    return Some(PeersAction::SetScore { peer, score });
                }
                ReputationAction::Ban(peer) => {
                    self.rules.lock().banned_peers.insert(peer);
                    let ban = self.reputation.bans().get(&peer);
                    return Some(PeersAction::Disconnect {
                        peer,
                        reason: "banned",
                        evidence: ban.map(|ban| ban.reason.clone()).unwrap_or_default(),
                    });
                }
                ReputationAction::Unban(peer) => {
                    self.rules.lock().banned_peers.remove(&peer);
                }
                ReputationAction::BanAddress(address) => {
                    self.rules.lock().banned_addresses.insert(address);
                }
                ReputationAction::UnbanAddress(address) => {
                    self.rules.lock().banned_addresses.remove(&address);
                }
                ReputationAction::Save(record) => self.store.note(&record),
            }
        }
        self.write_changes();
        None
    }

    /// Starts to write what has changed, unless a batch is being written.
    fn write_changes(&mut self) {
        if self.writing.is_empty()
            && self.store.has_changes()
            && let Some(write) = self.store.take_changes()
        {
            self.writing.spawn_blocking(write);
        }
    }

    /// Pends until the batch being written, if any, is on disk.
    pub async fn next_written(&mut self) -> Option<()> {
        self.writing.join_next().await.map(drop)
    }

    /// Whether changes wait to be written, or are being written.
    pub fn has_unwritten(&self) -> bool {
        !self.writing.is_empty() || self.store.has_changes()
    }

    /// Handles a new connection to a peer. `first`: the peer had no other connection.
    pub fn on_connected(
        &mut self,
        peer: PeerId,
        ip: Option<IpAddr>,
        outbound: bool,
        first: bool,
        now: Moment,
    ) {
        if self.statics.contains(&peer) {
            self.rules.lock().trusted_addresses.extend(ip.map(site));
        }
        if first {
            self.reputation.on_connected(peer, ip, outbound, now.unix);
            self.candidates.on_connected(&peer);
            self.statics.on_connected(&peer, now.instant);
        }
    }

    /// Handles the end of the last connection to a peer.
    pub fn on_disconnected(
        &mut self,
        peer: PeerId,
        reason: &'static str,
        evidence: &str,
        now: Moment,
    ) {
        self.reputation
            .on_disconnected(&peer, reason, evidence, now.unix);
        self.statics.on_disconnected(&peer, now.instant);
        self.candidates.on_disconnected(&peer, now.instant);
    }

    /// Handles a failed dial. `unanswered`: no process accepts connections at the address. Returns
    /// `true` for the first failed dial of a static peer since it was last connected.
    pub fn on_dial_failed(&mut self, peer: &PeerId, unanswered: bool, now: Instant) -> bool {
        self.candidates.on_dial_failed(peer, now);
        self.statics.on_dial_failed(peer, unanswered, now)
    }

    /// Handles a peer that discovery found. Static peers are ignored here: they have a dial
    /// schedule of their own.
    pub fn on_found(&mut self, contact: Contact, connected: bool, now: Instant) {
        if !self.statics.contains(&contact.peer()) {
            self.candidates.on_found(contact, connected, now);
        }
    }

    /// The candidates to dial now, given the number of connected peers.
    pub fn candidates_to_dial(
        &mut self,
        connected: usize,
        now: Instant,
    ) -> Vec<(PeerId, Vec<Multiaddr>)> {
        let wanted = self.limits.lo.saturating_sub(connected);
        let rules = &self.rules;
        let refused = |peer: &PeerId, addresses: &[Multiaddr]| {
            let refusal = rules.lock().any_of(peer, addresses).err();
            if let Some(refusal) = refusal {
                metrics::counter!("starling_p2p_refused_candidates_total", "reason" => refusal.label()).increment(1);
                tracing::debug!(%peer, reason = refusal.label(), "not dialled: {refusal}");
            }
            refusal
        };
        let dials = self.candidates.due(wanted, now, refused);
        for (peer, addresses) in &dials {
            tracing::debug!(%peer, ?addresses, peers = connected, wanted = self.limits.lo, "dialling a peer that discovery found");
            metrics::counter!("starling_p2p_candidates_dialled_total").increment(1);
        }
        dials
    }

    /// Called once a second. Lets scores decay slot by slot, and saves the scores of connected
    /// peers every [`SAVE_INTERVAL`]. Returns whether the scores were saved.
    pub fn on_second(&mut self, Moment { instant: now, unix }: Moment) -> bool {
        let missed =
            now.saturating_duration_since(self.next_slot).as_secs() / self.slot.as_secs().max(1);
        if now >= self.next_slot {
            (0..=missed.min(MAX_SLOTS.into())).for_each(|_| self.reputation.on_slot(unix));
            self.next_slot = now + self.slot;
        }
        let saves = now >= self.next_save;
        if saves {
            self.next_save = now + SAVE_INTERVAL;
            self.reputation.save_all(unix);
        }
        saves
    }

    /// Records the scores of these peers in the metrics.
    pub fn record_scores<'a>(&self, peers: impl IntoIterator<Item = &'a PeerId>) {
        for peer in peers {
            let (gossip, responses) = {
                let scores = self.reputation.scores(peer);
                (scores.gossip, scores.req_resp)
            };
            let rows = [
                ("total", gossip.total),
                ("blocksTimeInMesh", gossip.blocks.time_in_mesh),
                ("blocksFirstMessage", gossip.blocks.first_message_deliveries),
                (
                    "blocksMessageDeliveries",
                    gossip.blocks.mesh_message_deliveries,
                ),
                (
                    "blocksInvalidMessageDeliveries",
                    gossip.blocks.invalid_message_deliveries,
                ),
                ("ipColocation", gossip.ip_colocation_factor),
                ("behavioralPenalty", gossip.behavioral_penalty),
                ("reqRespValidResponses", responses.valid_responses),
                ("reqRespErrorResponses", responses.error_responses),
                ("reqRespRejectedPayloads", responses.rejected_payloads),
            ];
            rows.into_iter()
                .for_each(|(kind, value)| meters::score(kind, value));
        }
    }

    /// Protects a peer on an operator's command, or ends the protection.
    pub fn protect(&mut self, peer: PeerId, protected: bool, now: Moment) {
        if protected {
            self.reputation.protect(peer, now.unix);
        } else {
            self.reputation.unprotect(peer, now.unix);
        }
        let protected = self.is_protected(&peer);
        set_member(&mut self.rules.lock().trusted_peers, peer, protected);
    }

    /// Forgets a peer on an operator's command: unblocks it, ends its ban, and drops its offences
    /// and its node record.
    pub fn forget(&mut self, peer: &PeerId, now: Moment) {
        self.block(Subject::Peer(*peer), false, now);
        self.reputation.forgive(peer, "operator", now.unix);
        self.candidates.forget(peer);
    }

    /// Blocks a peer, address or subnet on an operator's command, or unblocks it.
    pub fn block(&mut self, subject: Subject, blocked: bool, Moment { unix: now, .. }: Moment) {
        let (record, entry, changed) = self.set_blocked(subject, blocked);
        if changed {
            tracing::info!(?subject, blocked, "an operator changed who may connect");
            self.store.note(&record);
            self.reputation.note(entry, now);
        }
        match subject {
            Subject::Peer(peer) if !blocked => self.reputation.forgive(&peer, "operator", now),
            Subject::Address(address) if !blocked => {
                self.reputation.unban_address(address, "operator", now)
            }
            _ => {}
        }
    }

    /// Blocks or unblocks the subject in the rules. Returns the row and the ledger entry to write,
    /// and whether the rules changed.
    fn set_blocked(&self, subject: Subject, blocked: bool) -> (StoreRecord, LedgerEntry, bool) {
        let change = if blocked {
            LedgerChange::Blocked
        } else {
            LedgerChange::Unblocked
        };
        let mut rules = self.rules.lock();
        match subject {
            Subject::Peer(peer) => (
                StoreRecord::BlockedPeer(peer, blocked),
                LedgerEntry::of_peer(peer, change, "operator", "", self.reputation.total(&peer)),
                set_member(&mut rules.blocked_peers, peer, blocked),
            ),
            Subject::Address(address) => {
                let address = address.to_canonical();
                (
                    StoreRecord::BlockedAddress(address, blocked),
                    LedgerEntry::of_address(address, change, "operator", ""),
                    set_member(&mut rules.blocked_addresses, address, blocked),
                )
            }
            Subject::Subnet(subnet) => (
                StoreRecord::BlockedSubnet(subnet, blocked),
                LedgerEntry::of_address(subnet, change, "operator", ""),
                set_member(&mut rules.blocked_subnets, subnet, blocked),
            ),
        }
    }

    /// The peers, addresses and subnets that an operator blocks, and the bans in force.
    pub fn refused(&self) -> RefusedPeers {
        let rules = self.rules.lock();
        let report = |subject: String, ban: &Ban| BanReport {
            subject,
            until: ban.until,
            reason: ban.reason.clone(),
        };
        let peers = self.reputation.bans().iter();
        let addresses = self.reputation.address_bans().iter();
        RefusedPeers {
            peers: rules.blocked_peers.iter().copied().collect(),
            addresses: rules.blocked_addresses.iter().copied().collect(),
            subnets: rules.blocked_subnets.iter().copied().collect(),
            bans: peers
                .map(|(peer, ban)| report(peer.to_string(), ban))
                .chain(addresses.map(|(address, ban)| report(address.to_string(), ban)))
                .collect(),
        }
    }
}

/// Adds a member to a set, or removes it if not `contained`. Returns whether the set changed.
fn set_member<T: Ord>(set: &mut BTreeSet<T>, member: T, contained: bool) -> bool {
    if contained {
        set.insert(member)
    } else {
        set.remove(&member)
    }
}
