//! Scores, and the bans that follow from them (`tests/bans.rs`), also after a restart
//! (`tests/restart.rs`), and for half frames (`tests/half_frames.rs`).

mod bans;
mod half_frames;
mod restart;

use super::*;

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

/// A peer at this address sends enough garbage to be banned, and is disconnected.
fn misbehave(reputation: &mut Reputation, address: Option<IpAddr>) {
    let peer = PeerId::random();
    reputation.on_connected(peer, address, false, NOW);
    (0..6).for_each(|_| reputation.on_offence(peer, GARBAGE, "", NOW));
    reputation.on_disconnected(&peer, "banned", "", NOW);
}

/// The addresses that are banned.
fn banned_addresses(reputation: &Reputation) -> Vec<IpAddr> {
    reputation.address_bans().keys().copied().collect()
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
    // Without protection the peer's offences lower its score again.
    all.unprotect(chosen, NOW);
    all.on_offence(chosen, GARBAGE, "", NOW);
    assert_eq!(verdicts(&mut all), [ReputationAction::Ban(chosen)]);
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
    // Ten other peers share the peer's address, and the peer commits offences, too.
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
