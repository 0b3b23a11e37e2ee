//! Bans of peers and addresses while the node runs.

use super::*;
use crate::peers::reputation::bans::BANS;

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
    // After a ban the counters begin at zero, so one more offence does not lead to another ban.
    all.on_connected(peer, ip(2), false, until);
    all.on_offence(peer, GARBAGE, "", until);
    assert_eq!((verdicts(&mut all), all.total(&peer)), (vec![], -20.0));
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
    let unscored = Policy {
        scoring: Scoring::None,
        ..policy
    };
    assert_eq!(offend(unscored, 50), (None, 0.0));
    let spares = Policy {
        ban: false,
        ..policy
    };
    assert_eq!(offend(spares, 50).0, None);
    let threshold = |threshold| Policy {
        threshold,
        ..policy
    };
    assert_eq!(offend(threshold(-30.0), 2).0, Some(NOW + 3600));
    assert_eq!(offend(threshold(-500.0), 10).0, None);
    let brief = Policy {
        duration: Duration::from_secs(60),
        ..policy
    };
    assert_eq!(offend(brief, 6).0, Some(NOW + 60));
}

#[test]
fn the_third_ban_at_an_address_bans_the_address_but_not_that_of_a_static_peer() {
    let mut all = reputation(Policy::default(), &[]);
    let bans_address = |all: &mut Reputation, last| {
        misbehave(all, ip(last));
        verdicts(all)
            .iter()
            .any(|action| matches!(action, ReputationAction::BanAddress(_)))
    };
    assert_eq!(
        [(); 4].map(|()| bans_address(&mut all, 2)),
        [false, false, true, false]
    );
    assert_eq!(banned_addresses(&all), [ip(2).unwrap()]);
    assert_eq!(
        [(); 4].map(|()| bans_address(&mut all, 1)),
        [false; 4],
        "a static peer has this address"
    );
    let chosen = PeerId::random();
    all.protect(chosen, NOW);
    all.on_connected(chosen, ip(3), false, NOW);
    assert_eq!(
        [(); 4].map(|()| bans_address(&mut all, 3)),
        [false; 4],
        "a protected peer is connected from there"
    );
    for local in ["127.0.0.1", "192.168.1.1", "172.17.0.1", "::1", "fd00::1"] {
        all.ban_address(local.parse().unwrap(), "operator", String::new(), NOW);
        assert_eq!(verdicts(&mut all), [], "many peers may share {local}");
    }
    all.on_time(NOW + 3600);
    assert!(all.address_bans().is_empty() && all.bans().is_empty());
}

#[test]
fn a_peer_that_moves_is_banned_at_its_new_address() {
    let mut all = reputation(Policy::default(), &[]);
    for _ in 0..3 {
        let peer = PeerId::random();
        all.on_connected(peer, ip(2), false, NOW);
        all.on_address(&peer, ip(4));
        (0..6).for_each(|_| all.on_offence(peer, GARBAGE, "", NOW));
        all.on_disconnected(&peer, "banned", "", NOW);
    }
    assert_eq!(banned_addresses(&all), [ip(4).unwrap()]);
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
