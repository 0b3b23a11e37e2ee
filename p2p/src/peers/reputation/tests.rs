use super::*;
use crate::{peers::score::OffenceClass, peers::store::Peerstore};
use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

const NOW: u64 = 1_000_000;
const SLOT: Duration = Duration::from_secs(2);
const GARBAGE: Offence = Offence::Gossip("snappy");

fn reputation(policy: Policy, statics: &[PeerId]) -> Reputation {
    Reputation::new(
        policy,
        SLOT,
        statics.iter().copied(),
        ["203.0.113.1".parse().unwrap()],
    )
}

fn ip(last: u8) -> Option<IpAddr> {
    Some(IpAddr::from([203, 0, 113, last]))
}

fn actions(reputation: &mut Reputation) -> Vec<ReputationAction> {
    std::iter::from_fn(|| reputation.poll()).collect()
}

/// The actions other than setting scores and saving records.
fn verdicts(reputation: &mut Reputation) -> Vec<ReputationAction> {
    let mut all = actions(reputation);
    all.retain(|action| {
        !matches!(
            action,
            ReputationAction::Score { .. } | ReputationAction::Save(_)
        )
    });
    all
}

fn reasons(reputation: &Reputation, peer: &PeerId) -> Vec<(&'static str, LedgerChange)> {
    reputation
        .ledger()
        .read(Some(peer), 100)
        .iter()
        .rev()
        .map(|entry| (entry.reason, entry.change))
        .collect()
}

#[test]
fn six_messages_of_garbage_are_a_ban_with_its_evidence_and_it_ends() {
    let peer = PeerId::random();
    let mut all = reputation(Policy::default(), &[]);
    all.on_connected(peer, ip(2), false, NOW);
    for i in 0..5 {
        all.on_offence(peer, GARBAGE, "bad bytes", NOW + i);
        assert!(verdicts(&mut all).is_empty(), "after {i}");
    }
    all.on_offence(peer, GARBAGE, "bad bytes", NOW + 5);
    assert_eq!(verdicts(&mut all), [ReputationAction::Ban(peer)]);
    let until = NOW + 5 + 3600;
    assert_eq!(all.bans()[&peer].until, until);
    assert_eq!(
        reasons(&all, &peer),
        [
            ("it_dialled", LedgerChange::Connected),
            ("snappy", LedgerChange::Score(-120.0)),
            ("score", LedgerChange::Banned { until })
        ]
    );
    let evidence = all.ledger().read(Some(&peer), 1)[0].evidence.clone();
    assert!(
        evidence.contains("-120.0 below -100") && evidence.contains("garbage"),
        "{evidence}"
    );
    all.on_disconnected(&peer, "banned", "", NOW + 5);

    all.on_time(until - 1);
    assert!(verdicts(&mut all).is_empty());
    all.on_time(until);
    assert_eq!(verdicts(&mut all), [ReputationAction::Unban(peer)]);
    assert_eq!(
        reasons(&all, &peer).last(),
        Some(&("expired", LedgerChange::Unbanned))
    );
    // The counters begin at zero, and one more offence is not a ban again.
    all.on_connected(peer, ip(2), false, until);
    all.on_offence(peer, GARBAGE, "", until);
    assert_eq!((verdicts(&mut all), all.total(&peer)), (vec![], -20.0));
}

#[test]
fn static_and_protected_peers_are_reported_once_and_stay_in_the_mesh() {
    let (protected, chosen) = (PeerId::random(), PeerId::random());
    let mut all = reputation(Policy::default(), &[protected]);
    all.protect(chosen, NOW);
    for peer in [protected, chosen] {
        all.on_connected(peer, ip(2), false, NOW);
        for _ in 0..50 {
            all.on_offence(peer, GARBAGE, "", NOW);
        }
        assert!(all.total(&peer) < -300.0, "scored all the same");
        let spared = reasons(&all, &peer)
            .into_iter()
            .filter(|(_, change)| *change == LedgerChange::Spared)
            .count();
        assert_eq!(spared, 1);
    }
    assert!(!actions(&mut all).iter().any(|action| matches!(
        action,
        ReputationAction::Ban(_) | ReputationAction::Score { score: ..0.0, .. }
    )));
    // Without protection what it does counts again.
    all.unprotect(chosen, NOW);
    all.on_offence(chosen, GARBAGE, "", NOW);
    assert_eq!(verdicts(&mut all), [ReputationAction::Ban(chosen)]);
}

#[test]
fn options_of_banning_and_scoring_decide() {
    let peer = PeerId::random();
    let offend = |policy: Policy, times: usize| {
        let mut all = reputation(policy, &[]);
        all.on_connected(peer, ip(2), false, NOW);
        (0..times).for_each(|_| all.on_offence(peer, GARBAGE, "", NOW));
        let banned = all.bans().get(&peer).map(|ban| ban.until);
        (banned, all.total(&peer))
    };
    let policy = Policy::default();
    assert_eq!(
        offend(
            Policy {
                ban: false,
                ..policy
            },
            50
        )
        .0,
        None
    );
    assert_eq!(
        offend(
            Policy {
                scoring: Scoring::None,
                ..policy
            },
            50
        ),
        (None, 0.0)
    );
    assert_eq!(
        offend(
            Policy {
                threshold: -30.0,
                ..policy
            },
            2
        )
        .0,
        Some(NOW + 3600)
    );
    assert_eq!(
        offend(
            Policy {
                threshold: -500.0,
                ..policy
            },
            10
        )
        .0,
        None
    );
    assert_eq!(
        offend(
            Policy {
                duration: Duration::from_secs(60),
                ..policy
            },
            6
        )
        .0,
        Some(NOW + 60)
    );
}

#[test]
fn the_routers_part_counts_too() {
    let peer = PeerId::random();
    let mut all = reputation(Policy::default(), &[]);
    all.on_connected(peer, ip(2), false, NOW);
    all.on_offence(peer, GARBAGE, "", NOW);
    all.on_router_score(peer, -20.0 - 64.0, 1, NOW);
    assert_eq!((all.total(&peer), verdicts(&mut all)), (-84.0, vec![]));
    assert_eq!(all.scores(&peer).gossip.behavioral_penalty, 8.0);
    // The application score keeps the peer above the graylist threshold.
    let application = 64.0 - 40.0 + GRAYLIST_MARGIN;
    all.on_router_score(peer, application - 100.0, 1, NOW + 1);
    assert_eq!(verdicts(&mut all), [ReputationAction::Ban(peer)]);
    assert!(all.bans()[&peer].reason.contains("router -100.0"));
}

#[test]
fn a_peer_that_may_be_banned_is_not_graylisted_until_it_is() {
    let peer = PeerId::random();
    let mut all = reputation(Policy::default(), &[]);
    let mut application = 0.0;
    let graylisted = |all: &mut Reputation, application: &mut f64, router: f64| {
        for action in actions(all) {
            if let ReputationAction::Score { score, .. } = action {
                *application = score;
            }
        }
        router + *application < score::router_thresholds().graylist_threshold
    };
    all.on_connected(peer, ip(2), false, NOW);
    // Ten others share its address, and it has done something, too.
    assert!(!graylisted(&mut all, &mut application, -35.0));
    all.on_router_score(peer, -35.0 + application, 11, NOW);
    for _ in 0..3 {
        all.on_offence(peer, GARBAGE, "", NOW);
        assert!(
            !graylisted(&mut all, &mut application, -35.0),
            "application {application}"
        );
        all.on_router_score(peer, -35.0 + application, 11, NOW);
    }
    assert!(
        !graylisted(&mut all, &mut application, -35.0),
        "application {application}"
    );
    assert_eq!((all.total(&peer), all.bans().len()), (-95.0, 0));
    all.on_offence(peer, GARBAGE, "", NOW);
    assert_eq!(all.bans().len(), 1);
}

#[test]
fn scores_fade_while_connected_and_are_kept_while_away() {
    let peer = PeerId::random();
    let mut all = reputation(Policy::default(), &[]);
    all.on_connected(peer, ip(2), false, NOW);
    (0..4).for_each(|_| all.on_offence(peer, GARBAGE, "", NOW));
    all.on_disconnected(&peer, "closed", "", NOW);
    (0..60).for_each(|_| all.on_slot(NOW + 60));
    assert_eq!(all.total(&peer), -80.0, "a score cannot be slept off");
    all.on_connected(peer, ip(2), false, NOW + 60);
    (0..60).for_each(|_| all.on_slot(NOW + 120));
    assert!(
        (all.total(&peer) + 0.8).abs() < 1e-9,
        "a hundredth after ten epochs"
    );
    all.on_disconnected(&peer, "closed", "", NOW + 120);
    all.on_slot(NOW + 120 + 1200);
    assert_eq!(
        all.scores(&peer),
        Scores::default(),
        "forgotten after a hundred epochs"
    );
    assert_eq!(
        actions(&mut all).last(),
        Some(&ReputationAction::Save(StoreRecord::Score(peer, None))),
        "on disk too"
    );
}

#[test]
fn the_third_ban_at_an_address_bans_the_address_but_not_that_of_a_static_peer() {
    let mut all = reputation(Policy::default(), &[]);
    let misbehave = |all: &mut Reputation, last| {
        let peer = PeerId::random();
        all.on_connected(peer, ip(last), false, NOW);
        (0..6).for_each(|_| all.on_offence(peer, GARBAGE, "", NOW));
        all.on_disconnected(&peer, "banned", "", NOW);
        verdicts(all)
            .iter()
            .any(|action| matches!(action, ReputationAction::BanAddress(_)))
    };
    assert_eq!(
        [(); 4].map(|()| misbehave(&mut all, 2)),
        [false, false, true, false]
    );
    assert_eq!(
        all.address_bans().keys().copied().collect::<Vec<_>>(),
        [ip(2).unwrap()]
    );
    assert_eq!(
        [(); 4].map(|()| misbehave(&mut all, 1)),
        [false; 4],
        "a static peer lives there"
    );
    let chosen = PeerId::random();
    all.protect(chosen, NOW);
    all.on_connected(chosen, ip(3), false, NOW);
    assert_eq!(
        [(); 4].map(|()| misbehave(&mut all, 3)),
        [false; 4],
        "a protected peer is there now"
    );
    for local in ["127.0.0.1", "192.168.1.1", "172.17.0.1", "::1", "fd00::1"] {
        all.ban_address(local.parse().unwrap(), "operator", String::new(), NOW);
        assert_eq!(verdicts(&mut all), [], "{local} stands for many");
    }
    all.on_time(NOW + 3600);
    assert!(all.address_bans().is_empty() && all.bans().is_empty());
}

#[test]
fn a_private_address_is_never_banned_neither_while_the_node_runs_nor_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    // A store as it is opened after a restart, with its bans applied.
    let open = |now| {
        let (store, records) =
            Peerstore::open(Some(&folder.path().join("store")), "--p2p.peerstore.path").unwrap();
        let mut all = reputation(Policy::default(), &[]);
        all.restore(records, now);
        (store, all)
    };
    let save = |mut store: Peerstore, mut all: Reputation| {
        actions(&mut all).iter().for_each(|action| {
            if let ReputationAction::Save(record) = action {
                store.note(record)
            }
        });
        store.take_changes().into_iter().for_each(|write| write());
    };
    let private = [
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
    let public = ["203.0.113.2", "2001:db8::1"].map(|address| address.parse::<IpAddr>().unwrap());

    let (mut store, mut all) = open(NOW);
    for address in private
        .map(|address| address.parse().unwrap())
        .into_iter()
        .chain(public)
    {
        for _ in 0..4 {
            let peer = PeerId::random();
            all.on_connected(peer, Some(address), false, NOW);
            (0..6).for_each(|_| all.on_offence(peer, GARBAGE, "", NOW));
            all.on_disconnected(&peer, "banned", "", NOW);
        }
    }
    let banned = |all: &Reputation| all.address_bans().keys().copied().collect::<Vec<_>>();
    assert_eq!(
        banned(&all),
        public.map(site),
        "peers are banned everywhere, addresses where they stand for one place"
    );
    assert_eq!(all.bans().len(), 4 * (private.len() + public.len()));
    // Records written by another version, or by op-node.
    for address in private.iter().chain(&["::", "2001:db8:1::1"]) {
        let record = BanRecord {
            expiry: NOW + 3600,
            last_update: NOW,
            reason: String::new(),
            address: None,
        };
        store.note(&StoreRecord::AddressBan(
            address.parse().unwrap(),
            Some(record),
        ));
    }
    save(store, all);

    let other = site("2001:db8:1::1".parse().unwrap());
    for (now, addresses, peers) in [
        (NOW + 1, [&public.map(site)[..], &[other]].concat(), 44),
        (NOW + 3601, vec![], 0),
    ] {
        let (store, all) = open(now);
        assert_eq!(
            (banned(&all), all.bans().len()),
            (addresses, peers),
            "after {} s",
            now - NOW
        );
        save(store, all);
    }
    let (_, records) =
        Peerstore::open(Some(&folder.path().join("store")), "--p2p.peerstore.path").unwrap();
    assert!(
        !records
            .iter()
            .any(|record| matches!(record, StoreRecord::AddressBan(..))),
        "{records:?}"
    );
}

#[test]
fn a_peer_that_moves_is_banned_where_it_is_now() {
    let mut all = reputation(Policy::default(), &[]);
    for _ in 0..3 {
        let peer = PeerId::random();
        all.on_connected(peer, ip(2), false, NOW);
        all.on_address(&peer, ip(4));
        (0..6).for_each(|_| all.on_offence(peer, GARBAGE, "", NOW));
        all.on_disconnected(&peer, "banned", "", NOW);
    }
    assert_eq!(
        all.address_bans().keys().copied().collect::<Vec<_>>(),
        [ip(4).unwrap()]
    );
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

#[test]
fn what_is_written_down_is_in_force_after_a_restart() {
    let (banned, poor, protected) = (PeerId::random(), PeerId::random(), PeerId::random());
    let mut before = reputation(Policy::default(), &[]);
    for peer in [banned, poor, protected] {
        before.on_connected(peer, ip(2), false, NOW);
    }
    (0..6).for_each(|_| before.on_offence(banned, GARBAGE, "", NOW));
    (0..6).for_each(|_| before.on_offence(protected, GARBAGE, "", NOW));
    (0..3).for_each(|_| before.on_offence(poor, GARBAGE, "", NOW));
    before.ban_address(
        IpAddr::from([203, 0, 113, 7]),
        "operator",
        String::new(),
        NOW,
    );
    before.save_all(NOW);
    let saved = |all: &mut Reputation| -> Vec<StoreRecord> {
        actions(all)
            .into_iter()
            .filter_map(|action| {
                if let ReputationAction::Save(record) = action {
                    Some(record)
                } else {
                    None
                }
            })
            .collect()
    };
    let records = saved(&mut before);

    // The third peer has become static meanwhile.
    let mut after = reputation(Policy::default(), &[protected]);
    let shown = BannedPeers::default();
    metrics::with_local_recorder(&shown, || after.restore(records.clone(), NOW + 100));
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

    let mut late = reputation(Policy::default(), &[]);
    late.restore(records, NOW + 4000);
    assert!(late.bans().is_empty() && late.address_bans().is_empty());
    assert_eq!(late.total(&poor), 0.0);
    assert!(
        saved(&mut late)
            .iter()
            .all(|record| record.clone().removed() == *record),
        "what is stale is removed"
    );
}

#[test]
fn nothing_grows_without_bound() {
    let mut all = reputation(
        Policy {
            duration: Duration::from_secs(1 << 40),
            ..Policy::default()
        },
        &[],
    );
    let mut rows = BTreeSet::new();
    for i in 0..BANS as u32 + 100 {
        let (peer, address) = (
            PeerId::random(),
            IpAddr::from((0x0b00_0000 + i).to_be_bytes()),
        );
        all.on_connected(peer, Some(address), false, NOW);
        (0..6).for_each(|_| all.on_offence(peer, GARBAGE, "", NOW + u64::from(i)));
        all.on_disconnected(&peer, "banned", "", NOW + u64::from(i));
        for action in actions(&mut all) {
            match action {
                ReputationAction::Save(StoreRecord::Score(peer, Some(_))) => {
                    rows.insert(peer);
                }
                ReputationAction::Save(StoreRecord::Score(peer, None)) => {
                    rows.remove(&peer);
                }
                _ => {}
            }
        }
    }
    assert_eq!(all.bans().len(), BANS);
    assert!(all.peers.len() <= ABSENT + 1);
    assert!(
        rows.len() <= ABSENT + 1,
        "{} rows are kept on disk",
        rows.len()
    );
}
