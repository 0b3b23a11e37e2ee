//! Gaps filled by number: which blocks are requested from which peers.

use super::number_world::*;
use crate::{
    peers::Offence,
    sync::{
        SyncLimits,
        fetcher::{PEER_QUOTA, RELEASE_AFTER, WINDOW},
    },
};
use proptest::prelude::*;
use rand::{Rng, SeedableRng, rngs::StdRng};
use starling_proto::payload::Payload;
use std::{sync::Arc, time::Duration};

#[test]
fn a_gap_of_300_blocks_is_filled_from_one_peer_in_order() {
    let chain = branch(genesis(), 301, 1, 100);
    let mut world = NumberWorld::new(SyncLimits::default(), &chain);
    world.connect(PeerKind::Honest(5));
    world.gossip(&chain[300]);
    world.run(Duration::from_secs(10));
    assert!(world.has(&chain[300]));
    assert_eq!(world.requests.len(), 300);
    assert!(
        world.requests.values().all(|n| *n == 1),
        "nothing is fetched twice"
    );
    assert!(world.penalties.is_empty());
}

#[test]
fn many_rate_limited_peers_fill_a_gap_together() {
    let chain = branch(genesis(), 401, 1, 100);
    let mut world = NumberWorld::new(SyncLimits::default(), &chain);
    for _ in 0..8 {
        world.connect(PeerKind::OpNode);
    }
    world.gossip(&chain[400]);
    let begun = world.now;
    while !world.has(&chain[400]) && world.step(begun + Duration::from_secs(600)) {}
    let took = world.now - begun;
    // One peer alone serves 15 blocks at once and 4 a second, which would take 96 s.
    assert!(
        world.has(&chain[400]) && took < Duration::from_secs(20),
        "{took:?}"
    );
    assert!(
        world.asked.len() == 8 && world.asked.values().all(|asked| *asked > 25),
        "{:?}",
        world.asked
    );
    assert!(
        world.requests.values().all(|times| *times == 1),
        "nothing is requested twice"
    );
}

#[test]
fn a_short_gap_is_requested_from_the_deliverer_of_the_tip_alone() {
    let chain = branch(genesis(), 9, 1, 100);
    let mut world = NumberWorld::new(SyncLimits::default(), &chain);
    let peers = [(); 4].map(|()| world.connect(PeerKind::Honest(20)));
    world.gossip_from(&chain[8], peers[2]);
    world.run(Duration::from_secs(5));
    assert!(world.has(&chain[8]));
    assert_eq!(world.asked.into_iter().collect::<Vec<_>>(), [(peers[2], 8)]);
}

#[test]
fn a_peer_with_wrong_blocks_is_penalized_and_another_asked() {
    let chain = branch(genesis(), 50, 1, 100);
    let mut world = NumberWorld::new(SyncLimits::default(), &chain);
    let wrong = world.connect(PeerKind::OtherBranch);
    world.gossip(&chain[49]);
    world.run(Duration::from_secs(1));
    assert!(world.penalties.contains(&(wrong, Offence::WrongBlock)));
    world.connect(PeerKind::Honest(1));
    world.run(Duration::from_secs(15));
    assert!(world.has(&chain[49]));
    assert!(world.penalties.iter().all(|(peer, _)| *peer == wrong));
}

#[test]
fn a_peer_on_another_branch_is_charged_once_for_blocks_requested_at_once() {
    let chain = branch(genesis(), 50, 1, 100);
    let mut world = NumberWorld::new(SyncLimits::default(), &chain);
    let wrong = world.connect(PeerKind::OtherBranch);
    world.gossip(&chain[49]);
    world.run(Duration::from_secs(60));
    // Each charge costs 2 points, and a score of -100 leads to a ban.
    let charges = world.penalties.len();
    assert!((2..25).contains(&charges), "{charges} charges");
    assert!(
        world
            .penalties
            .iter()
            .all(|it| *it == (wrong, Offence::WrongBlock))
    );
    assert!(world.requests.values().sum::<u64>() > 2 * charges as u64);
}

#[test]
fn a_silent_deliverer_of_a_tip_delays_the_blocks_below_briefly() {
    let chain = branch(genesis(), 40, 1, 100);
    let mut world = NumberWorld::new(SyncLimits::default(), &chain);
    let silent = world.connect(PeerKind::Silent);
    world.connect(PeerKind::Honest(20));
    let begun = world.now;
    world.gossip_from(&chain[39], silent);
    let below = world
        .responses
        .values()
        .filter(|(.., peer)| *peer == silent)
        .count();
    assert_eq!(
        (below, world.requests.len()),
        (PEER_QUOTA, WINDOW),
        "it is asked first, for the lowest blocks"
    );
    while !world.has(&chain[39]) && world.step(begun + Duration::from_secs(60)) {}
    assert!(
        world.has(&chain[39]) && world.now - begun < RELEASE_AFTER * 2,
        "after {:?}",
        world.now - begun
    );
    assert!(world.penalties.is_empty(), "slow is no offence");
}

#[test]
fn a_source_that_is_slow_and_alone_is_kept() {
    let chain = branch(genesis(), 40, 1, 100);
    let mut world = NumberWorld::new(SyncLimits::default(), &chain);
    world.connect(PeerKind::Honest(5_000));
    world.gossip(&chain[39]);
    world.run(Duration::from_secs(60));
    assert!(world.has(&chain[39]));
    assert!(
        world.requests.values().all(|times| *times == 1),
        "nothing is requested twice"
    );
}

#[test]
fn a_peer_that_reconnects_is_used_again() {
    let chain = branch(genesis(), 200, 1, 100);
    let mut world = NumberWorld::new(SyncLimits::default(), &chain);
    let peer = world.connect(PeerKind::Honest(10));
    world.gossip(&chain[199]);
    world.run(Duration::from_millis(50));
    world.disconnect(peer);
    world.run(Duration::from_secs(30));
    assert!(!world.has(&chain[0]));
    world.connect(PeerKind::Honest(10));
    world.run(Duration::from_secs(10));
    assert!(world.has(&chain[199]));
}

#[test]
fn bodies_past_the_budget_are_fetched_again_when_needed() {
    let chain = branch(genesis(), 80, 1, 100_000);
    let limits = SyncLimits {
        bodies: 1_000_000,
        unsettled_bytes: 300_000,
        ..SyncLimits::default()
    };
    let mut world = NumberWorld::new(limits, &chain);
    world.connect(PeerKind::Honest(1));
    world.gossip(&chain[79]);
    world.run(Duration::from_secs(60));
    assert!(world.has(&chain[79]));
    assert!(
        world.requests.values().all(|n| *n <= 4),
        "{:?}",
        world.requests.values().max()
    );
}

#[test]
fn large_wrong_bodies_stay_within_the_budget() {
    let chain = branch(genesis(), 60, 1, 100);
    let limits = SyncLimits {
        bodies: 500_000,
        ..SyncLimits::default()
    };
    let mut world = NumberWorld::new(limits, &chain);
    world.other = branch(genesis(), 60, 999, 400_000)
        .into_iter()
        .map(|b| (b.number(), b))
        .collect();
    let wrong = world.connect(PeerKind::OtherBranch);
    // `NumberWorld::act` checks the budget.
    world.gossip(&chain[59]);
    world.run(Duration::from_secs(2));
    assert!(world.penalties.contains(&(wrong, Offence::WrongBlock)));
    world.connect(PeerKind::Honest(1));
    world.run(Duration::from_secs(30));
    assert!(world.has(&chain[59]));
}

#[test]
fn for_a_small_gap_only_missing_blocks_are_requested() {
    let chain = branch(genesis(), 60, 1, 10);
    let mut world = NumberWorld::new(SyncLimits::default(), &chain);
    for block in &chain[..30] {
        world.gossip(block);
    }
    world.run(Duration::from_secs(1));
    world.set_heads(chain[29].id(), genesis());
    world.connect(PeerKind::OpNode);
    let numbers = |blocks: &[Arc<Payload>]| blocks.iter().map(|b| b.number()).collect::<Vec<_>>();
    world.gossip(&chain[33]);
    world.run(Duration::from_secs(1));
    assert!(world.has(&chain[33]));
    let first = world.requested();
    assert_eq!(first, numbers(&chain[30..33]));
    // The next tip arrives before the chain has settled the blocks: unsettled blocks are not
    // missing.
    world.execution = Duration::from_secs(1);
    world.gossip(&chain[34]);
    world.gossip(&chain[36]);
    world.run(Duration::from_millis(500));
    let both = [first, numbers(&chain[35..36])].concat();
    assert_eq!(world.requested(), both);
    // A branch that forks off below our head is walked down to the fork point.
    let rival = branch(chain[24].id(), 30, 2, 10);
    world
        .canonical
        .extend(rival.iter().map(|b| (b.number(), b.clone())));
    world.execution = Duration::from_millis(2);
    world.gossip(&rival[14]);
    world.run(Duration::from_secs(20));
    assert!(world.has(&rival[14]), "{:?}", world.dropped);
    // For a short branch, the fork point is not searched far below.
    world.set_heads(rival[14].id(), genesis());
    let rival = branch(rival[12].id(), 2, 3, 10);
    world
        .canonical
        .extend(rival.iter().map(|b| (b.number(), b.clone())));
    world.requests.clear();
    world.gossip(&rival[1]);
    world.run(Duration::from_secs(20));
    assert!(world.has(&rival[1]), "{:?}", world.dropped);
    assert_eq!(world.requests.values().sum::<u64>(), 3);
}

#[test]
fn without_peers_the_machine_sleeps() {
    let chain = branch(genesis(), 10, 1, 10);
    let mut world = NumberWorld::new(SyncLimits::default(), &chain);
    world.gossip(&chain[5]);
    assert_eq!(world.sync.next_wake(), None);
    assert!(!world.step(world.now + Duration::from_secs(3600)));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    /// However peers behave and in whatever order tips arrive: with one honest peer in the end, the
    /// whole chain is executed in order, or all blocks before an invalid one. `NumberWorld::act`
    /// checks the bounds, and only misbehaving peers are penalized.
    #[test]
    fn every_gap_closes(seed: u64, length in 1usize..200, tips in 1usize..6, bad in 0usize..5, weight in 0usize..20_000,
                        slow: bool, invalid in 0usize..800) {
        let mut rng = StdRng::seed_from_u64(seed);
        let chain = branch(genesis(), length as u64, 1, weight);
        let (bodies, unsettled_bytes) = (rng.random_range(1..400_000), rng.random_range(1..100_000));
        let mut world = NumberWorld::new(SyncLimits { bodies, unsettled_bytes, unsettled: 8, ..SyncLimits::default() }, &chain);
        world.invalid.extend(chain.get(invalid).map(|block| block.hash));
        if slow {
            world.execution = Duration::from_millis(200);
        }
        let mut honest = world.connect(PeerKind::Honest(rng.random_range(1..50)));
        for _ in 0..bad {
            let kinds = [PeerKind::OtherBranch, PeerKind::Lacks, PeerKind::Silent, PeerKind::Garbles];
            world.connect(kinds[rng.random_range(0..kinds.len())]);
        }
        for _ in 0..tips {
            let block = chain[rng.random_range(0..length)].clone();
            world.gossip(&block);
            world.run(Duration::from_millis(rng.random_range(0..300)));
            if rng.random_bool(0.3) {
                world.disconnect(honest);
                world.run(Duration::from_millis(rng.random_range(0..3000)));
                honest = world.connect(PeerKind::Honest(5));
            }
        }
        world.gossip(&chain[length - 1]);
        world.run(Duration::from_secs(900));
        let valid = &chain[..invalid.min(length)];
        prop_assert!(valid.iter().all(|block| world.has(block)), "dropped {:?}", world.dropped);
        prop_assert!(chain[valid.len()..].iter().all(|block| !world.has(block)));
        prop_assert!(world.penalties.iter().all(|(peer, _)| !matches!(world.peers.get(peer), Some(PeerKind::Honest(_)))));
        prop_assert!(world.sync.gap.is_none() && world.sync.tips.is_empty());
    }
}
