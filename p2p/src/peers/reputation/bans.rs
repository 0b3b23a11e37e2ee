//! Bans of peers whose score is too low, and of addresses at which several peers are banned. Each
//! ban has an end, a reason in the ledger and a record in the store.

use super::{Ban, Reputation, ReputationAction};
use crate::{
    address::{Scope, site},
    peers::{
        ledger::{LedgerChange, LedgerEntry},
        store::{BanRecord, StoreRecord},
    },
};
use libp2p::PeerId;
use std::{collections::BTreeMap, net::IpAddr};

/// Number of banned peers at one address that leads to a ban of the address.
const BANS_PER_ADDRESS: usize = 3;
/// Largest number of banned peers, and of banned addresses. Above it the ban that would end first
/// ends.
pub(super) const BANS: usize = 10_000;

impl Ban {
    fn record(&self, now: u64) -> BanRecord {
        BanRecord {
            expiry: self.until,
            last_update: now,
            reason: self.reason.clone(),
            address: self.address,
        }
    }
}

impl From<BanRecord> for Ban {
    fn from(record: BanRecord) -> Self {
        Self {
            until: record.expiry,
            reason: record.reason,
            address: record.address,
        }
    }
}

/// The subjects of bans that have expired.
fn expired<K: Copy>(bans: &BTreeMap<K, Ban>, now: u64) -> Vec<K> {
    let expired = bans.iter().filter(|(_, ban)| ban.until <= now);
    expired.map(|(subject, _)| *subject).collect()
}

/// The ban that must end before another is imposed, if the number of bans is at its maximum.
fn displaced<K: Copy>(bans: &BTreeMap<K, Ban>) -> Option<K> {
    let first = bans.iter().min_by_key(|(_, ban)| ban.until)?;
    (bans.len() >= BANS).then_some(*first.0)
}

impl Reputation {
    /// The banned peers.
    pub fn bans(&self) -> &BTreeMap<PeerId, Ban> {
        &self.bans
    }

    /// The banned addresses, as [`site`]s.
    pub fn address_bans(&self) -> &BTreeMap<IpAddr, Ban> {
        &self.address_bans
    }

    /// Restores a stored ban of a peer.
    pub(super) fn restore_ban(&mut self, peer: PeerId, record: BanRecord, now: u64) {
        let until = record.expiry;
        let change = LedgerChange::Banned { until };
        let entry = LedgerEntry::of_peer(peer, change, "kept", &*record.reason, 0.0);
        self.ledger.write(entry, now);
        self.bans.insert(peer, record.into());
        self.actions.push_back(ReputationAction::Ban(peer));
    }

    /// Restores a stored ban of an address, which is a [`site`].
    pub(super) fn restore_address_ban(&mut self, address: IpAddr, record: BanRecord, now: u64) {
        let until = record.expiry;
        let change = LedgerChange::Banned { until };
        let entry = LedgerEntry::of_address(address, change, "kept", &*record.reason);
        self.ledger.write(entry, now);
        self.address_bans.insert(address, record.into());
        self.actions
            .push_back(ReputationAction::BanAddress(address));
    }

    /// Ends bans that have expired.
    pub fn on_time(&mut self, now: u64) {
        for peer in expired(&self.bans, now) {
            self.unban(&peer, "expired", now);
        }
        for address in expired(&self.address_bans, now) {
            self.unban_address(address, "expired", now);
        }
    }

    /// Whether a [`site`] is not banned, because a static peer or a connected protected peer uses
    /// it or because it is not a public address. A private address may belong to a gateway or
    /// container bridge with a whole network behind it.
    pub(super) fn is_spared(&self, address: IpAddr) -> bool {
        let is_used = self.peers.iter().any(|(peer, state)| {
            state.connected && state.address.map(site) == Some(address) && self.is_protected(peer)
        });
        is_used || Scope::of(address) != Scope::World || self.trusted_sites.contains(&address)
    }

    /// Bans a peer for the usual time, unless it is banned already.
    pub(super) fn ban(&mut self, peer: PeerId, reason: &'static str, evidence: String, now: u64) {
        if self.bans.contains_key(&peer) {
            return;
        }
        let until = now.saturating_add(self.policy.duration.as_secs());
        let address = self.peers.get(&peer).and_then(|state| state.address);
        tracing::warn!(%peer, reason, evidence, until, "peer banned");
        metrics::counter!("starling_p2p_bans_total", "reason" => reason).increment(1);
        let change = LedgerChange::Banned { until };
        let entry = LedgerEntry::of_peer(peer, change, reason, &*evidence, self.total(&peer));
        self.ledger.write(entry.at(address), now);
        if let Some(first) = displaced(&self.bans) {
            self.unban(&first, "too_many_bans", now);
        }
        let ban = Ban {
            until,
            reason: evidence,
            address,
        };
        let record = StoreRecord::PeerBan(peer, Some(ban.record(now)));
        self.bans.insert(peer, ban);
        self.actions.push_back(ReputationAction::Ban(peer));
        self.actions.push_back(ReputationAction::Save(record));
        self.record_bans();
        if let Some(site) = address.map(site) {
            self.ban_crowded_site(site, now);
        }
    }

    /// Bans a site once [`BANS_PER_ADDRESS`] peers of it are banned.
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
            let entry = LedgerEntry::of_address(address, LedgerChange::Spared, reason, evidence);
            return self.ledger.write(entry, now);
        }
        let until = now.saturating_add(self.policy.duration.as_secs());
        tracing::warn!(%address, reason, evidence, until, "address banned");
        metrics::counter!("starling_p2p_bans_total", "reason" => reason).increment(1);
        let change = LedgerChange::Banned { until };
        let entry = LedgerEntry::of_address(address, change, reason, &*evidence);
        self.ledger.write(entry, now);
        if let Some(first) = displaced(&self.address_bans) {
            self.unban_address(first, "too_many_bans", now);
        }
        let ban = Ban {
            until,
            reason: evidence,
            address: None,
        };
        let record = StoreRecord::AddressBan(address, Some(ban.record(now)));
        self.address_bans.insert(address, ban);
        self.actions
            .push_back(ReputationAction::BanAddress(address));
        self.actions.push_back(ReputationAction::Save(record));
    }

    /// Ends a peer's ban and clears its counters, which would otherwise lead to a new ban at once.
    pub(super) fn unban(&mut self, peer: &PeerId, reason: &'static str, now: u64) {
        if self.bans.remove(peer).is_none() {
            return;
        }
        self.clear(peer);
        tracing::info!(%peer, reason, "peer no longer banned");
        metrics::counter!("starling_p2p_unbans_total", "reason" => reason).increment(1);
        crate::metrics::peer_unbanned();
        let entry = LedgerEntry::of_peer(*peer, LedgerChange::Unbanned, reason, "", 0.0);
        self.ledger.write(entry, now);
        self.actions.push_back(ReputationAction::Unban(*peer));
        let removal = StoreRecord::PeerBan(*peer, None);
        self.actions.push_back(ReputationAction::Save(removal));
        self.record_bans();
    }

    /// Ends the ban of an address.
    pub fn unban_address(&mut self, address: IpAddr, reason: &'static str, now: u64) {
        let address = site(address);
        if self.address_bans.remove(&address).is_none() {
            return;
        }
        tracing::info!(%address, reason, "address no longer banned");
        metrics::counter!("starling_p2p_unbans_total", "reason" => reason).increment(1);
        crate::metrics::address_unbanned();
        let entry = LedgerEntry::of_address(address, LedgerChange::Unbanned, reason, "");
        self.ledger.write(entry, now);
        self.actions
            .push_back(ReputationAction::UnbanAddress(address));
        let removal = StoreRecord::AddressBan(address, None);
        self.actions.push_back(ReputationAction::Save(removal));
    }

    /// Sets the metric of the number of banned peers.
    pub(super) fn record_bans(&self) {
        metrics::gauge!("starling_p2p_banned_peers").set(self.bans.len() as f64);
    }
}
