//! Scores and bans that are stored and restored.

use super::*;
use crate::peers::{
    score::OffenceClass,
    store::{BanRecord, Peerstore},
};
use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

/// Addresses that many peers may share. They are therefore never banned.
const PRIVATE: [&str; 9] = [
    "10.1.2.3",
    "172.17.0.1",
    "192.168.1.1",
    "169.254.3.4",
    "100.64.0.1",
    "127.0.0.1",
    "::1",
    "fd00::1",
    "fe80::1",
];
const PUBLIC: [&str; 2] = ["203.0.113.2", "2001:db8::1"];

fn parsed(address: &str) -> IpAddr {
    address.parse().unwrap()
}

/// The records that the reputation asks its caller to save.
fn saved(reputation: &mut Reputation) -> Vec<StoreRecord> {
    let records = actions(reputation).into_iter().filter_map(|action| {
        if let ReputationAction::Save(record) = action {
            Some(record)
        } else {
            None
        }
    });
    records.collect()
}

/// A store in a temporary folder.
struct StoreOnDisk {
    _folder: tempfile::TempDir,
    path: PathBuf,
}

impl StoreOnDisk {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        Self {
            path: folder.path().join("store"),
            _folder: folder,
        }
    }

    fn open(&self) -> (Peerstore, Vec<StoreRecord>) {
        Peerstore::open(Some(&self.path), "--p2p.peerstore.path").unwrap()
    }

    /// Opens the store as a restarted node does, and restores its bans.
    fn restore(&self, now: u64) -> (Peerstore, Reputation) {
        let (store, records) = self.open();
        let mut all = reputation(Policy::default(), &[]);
        all.restore(records, now);
        (store, all)
    }
}

/// Writes all records that are to be saved, and closes the store.
fn close(mut store: Peerstore, mut reputation: Reputation) {
    saved(&mut reputation)
        .iter()
        .for_each(|record| store.note(record));
    store.take_changes().into_iter().for_each(|write| write());
}

/// Notes bans of addresses as another version, or op-node, may have written them.
fn note_foreign_bans(store: &mut Peerstore, addresses: &[&str]) {
    let record = BanRecord {
        expiry: NOW + 3600,
        last_update: NOW,
        reason: String::new(),
        address: None,
    };
    for address in addresses {
        let record = Some(record.clone());
        store.note(&StoreRecord::AddressBan(parsed(address), record));
    }
}

#[test]
fn a_private_address_is_never_banned_neither_while_the_node_runs_nor_after_a_restart() {
    let disk = StoreOnDisk::new();
    let public = PUBLIC.map(|address| site(parsed(address)));

    let (mut store, mut all) = disk.restore(NOW);
    for address in PRIVATE.iter().chain(&PUBLIC) {
        (0..4).for_each(|_| misbehave(&mut all, Some(parsed(address))));
    }
    assert_eq!(
        banned_addresses(&all),
        public,
        "peers are banned everywhere, addresses only if they are public"
    );
    let peers = 4 * (PRIVATE.len() + PUBLIC.len());
    assert_eq!(all.bans().len(), peers);
    note_foreign_bans(&mut store, &PRIVATE);
    note_foreign_bans(&mut store, &["::", "2001:db8:1::1"]);
    close(store, all);

    let other = site(parsed("2001:db8:1::1"));
    for (now, addresses, peers) in [
        (NOW + 1, [&public[..], &[other]].concat(), peers),
        (NOW + 3601, vec![], 0),
    ] {
        let (store, all) = disk.restore(now);
        assert_eq!(
            (banned_addresses(&all), all.bans().len()),
            (addresses, peers),
            "after {} s",
            now - NOW
        );
        close(store, all);
    }
    let (_, records) = disk.open();
    let is_address_ban = |record: &StoreRecord| matches!(record, StoreRecord::AddressBan(..));
    assert!(!records.iter().any(is_address_ban), "{records:?}");
}

/// The gauge `starling_p2p_banned_peers`.
#[derive(Default)]
struct BannedPeers(Arc<AtomicU64>);

impl metrics::Recorder for BannedPeers {
    fn describe_counter(
        &self,
        _: metrics::KeyName,
        _: Option<metrics::Unit>,
        _: metrics::SharedString,
    ) {
    }
    fn describe_gauge(
        &self,
        _: metrics::KeyName,
        _: Option<metrics::Unit>,
        _: metrics::SharedString,
    ) {
    }
    fn describe_histogram(
        &self,
        _: metrics::KeyName,
        _: Option<metrics::Unit>,
        _: metrics::SharedString,
    ) {
    }
    fn register_counter(&self, _: &metrics::Key, _: &metrics::Metadata<'_>) -> metrics::Counter {
        metrics::Counter::noop()
    }
    fn register_gauge(&self, key: &metrics::Key, _: &metrics::Metadata<'_>) -> metrics::Gauge {
        match key.name() {
            "starling_p2p_banned_peers" => metrics::Gauge::from_arc(self.0.clone()),
            _ => metrics::Gauge::noop(),
        }
    }
    fn register_histogram(
        &self,
        _: &metrics::Key,
        _: &metrics::Metadata<'_>,
    ) -> metrics::Histogram {
        metrics::Histogram::noop()
    }
}

/// The records of a banned peer, of a peer with a poor score, and of a peer that becomes protected
/// after the restart.
fn records_of(banned: PeerId, poor: PeerId, protected: PeerId) -> Vec<StoreRecord> {
    let mut all = reputation(Policy::default(), &[]);
    for (peer, offences) in [(banned, 6), (poor, 3), (protected, 6)] {
        all.on_connected(peer, ip(2), false, NOW);
        (0..offences).for_each(|_| all.on_offence(peer, GARBAGE, "", NOW));
    }
    all.ban_address(parsed("203.0.113.7"), "operator", String::new(), NOW);
    all.save_all(NOW);
    saved(&mut all)
}

#[test]
fn stored_scores_and_bans_are_in_force_after_a_restart() {
    let [banned, poor, protected] = [(); 3].map(|()| PeerId::random());
    let records = records_of(banned, poor, protected);

    // The third peer is static after the restart.
    let mut after = reputation(Policy::default(), &[protected]);
    let shown = BannedPeers::default();
    metrics::with_local_recorder(&shown, || after.restore(records, NOW + 100));
    assert_eq!(
        f64::from_bits(shown.0.load(Ordering::Relaxed)),
        1.0,
        "the metric counts them"
    );
    assert_eq!(after.bans().keys().copied().collect::<Vec<_>>(), [banned]);
    assert_eq!(after.bans()[&banned].until, NOW + 3600);
    assert_eq!(verdicts(&mut after).len(), 2);
    assert!(
        reasons(&after, &banned)
            .iter()
            .any(|(reason, _)| *reason == "kept")
    );
    after.on_connected(poor, ip(2), false, NOW + 100);
    assert_eq!(
        (
            after.total(&poor),
            after.scores(&poor).offences[OffenceClass::Garbage.label()]
        ),
        (-60.0, 3.0)
    );
}

#[test]
fn stale_records_are_removed_after_a_restart() {
    let [banned, poor, protected] = [(); 3].map(|()| PeerId::random());
    let mut late = reputation(Policy::default(), &[]);
    late.restore(records_of(banned, poor, protected), NOW + 4000);
    assert!(late.bans().is_empty() && late.address_bans().is_empty());
    assert_eq!(late.total(&poor), 0.0);
    let records = saved(&mut late);
    assert!(!records.is_empty());
    assert!(
        records
            .iter()
            .all(|record| record.clone().removed() == *record),
        "{records:?}"
    );
}
