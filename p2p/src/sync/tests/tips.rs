//! Tips: which of them open a gap, extend a gap, wait, or are dropped.

use super::number_world::*;
use crate::{
    sync::{SyncLimits, TipDropped, fetcher::WINDOW},
    types::{Provenance, Settled},
};
use alloy_primitives::B256;
use starling_proto::payload::{BlockId, Payload};
use std::{sync::Arc, time::Duration};

#[test]
fn blocks_in_order_pass_straight_through() {
    let chain = branch(genesis(), 10, 1, 10);
    let mut world = NumberWorld::new(SyncLimits::default(), &chain);
    for block in &chain {
        world.gossip(block);
    }
    assert_eq!(
        world.handed,
        chain.iter().map(|b| b.hash).collect::<Vec<_>>()
    );
    assert!(
        world.requests.is_empty(),
        "a parent handed over and not settled counts as known"
    );
}

#[test]
fn while_a_rollup_node_drives_only_the_heads_that_it_names_are_fetched() {
    let chain = branch(genesis(), 80, 1, 100);
    let mut world = NumberWorld::new(SyncLimits::default(), &chain);
    world.connect(PeerKind::Honest(1));
    let engine_payload = |world: &mut NumberWorld, block: &Arc<Payload>| {
        let arrival = world.arrival(block, None);
        world.sync.on_engine_payload(arrival, world.now);
        world.act();
        world.run(Duration::from_secs(10));
    };
    // When the rollup node begins to drive, an open gap is dropped, and gossip opens no other.
    world.gossip(&chain[40]);
    world.sync.on_driven(true, world.now);
    world.act();
    world.run(Duration::from_secs(5));
    world.gossip(&chain[41]);
    world.run(Duration::from_secs(5));
    assert!(
        world.handed.is_empty() && !world.has(&chain[41]),
        "{}",
        world.handed.len()
    );
    // A gossiped block that extends the head is still executed.
    world.gossip(&chain[0]);
    world.run(Duration::from_secs(1));
    assert!(world.has(&chain[0]));
    // Gossip extends the named block, but only the named block's ancestors are fetched.
    engine_payload(&mut world, &chain[20]);
    assert!(world.has(&chain[20]) && !world.has(&chain[21]));
    assert_eq!(
        world.provenances[1..20],
        [Provenance::Ancestor { of: chain[20].id() }; 19]
    );
    assert_eq!(world.provenances[20..], [Provenance::Engine]);
    world.requests.clear();
    engine_payload(&mut world, &chain[20]);
    assert!(
        world.requests.is_empty() && world.handed.len() == 21,
        "again: nothing to do"
    );
    world.gossip(&chain[21]);
    world.run(Duration::from_secs(1));
    assert_eq!(world.provenances[21..], [Provenance::Signed(SIGNER)]);
    // Without a driving rollup node, gossip opens gaps again.
    world.sync.on_driven(false, world.now);
    world.gossip(&chain[60]);
    world.run(Duration::from_secs(10));
    assert!(world.has(&chain[60]));
    assert_eq!(
        world.provenances[22..60],
        [Provenance::Linked {
            tip: chain[60].number()
        }; 38]
    );
}

#[test]
fn tips_that_come_during_the_walk_extend_the_gap() {
    let chain = branch(genesis(), 120, 1, 100);
    let mut world = NumberWorld::new(SyncLimits::default(), &chain);
    world.connect(PeerKind::Honest(20));
    for block in &chain[100..] {
        world.gossip(block);
        world.run(Duration::from_millis(1));
    }
    world.run(Duration::from_secs(10));
    assert!(world.has(&chain[119]));
    assert_eq!(world.requests.len(), 100);
}

#[test]
fn descendants_of_an_invalid_block_are_not_fetched_again() {
    let chain = branch(genesis(), 60, 1, 100);
    let mut world = NumberWorld::new(
        SyncLimits {
            unsettled: 4,
            ..SyncLimits::default()
        },
        &chain,
    );
    world.invalid.insert(chain[20].hash);
    world.connect(PeerKind::Honest(1));
    world.gossip(&chain[50]);
    world.run(Duration::from_secs(30));
    assert!(world.has(&chain[19]) && !world.has(&chain[20]));
    assert_eq!(world.dropped, [(chain[50].id(), TipDropped::Invalid)]);

    let before: u64 = world.requests.values().sum();
    let handed = world.handed.len();
    for block in [
        &chain[50], &chain[51], &chain[52], &chain[22], &chain[21], &chain[20],
    ] {
        world.gossip(block);
        world.run(Duration::from_secs(5));
    }
    // From a tip with an unseen parent, the walk down ends at the first refused hash.
    world.gossip(&chain[56]);
    world.run(Duration::from_secs(5));
    world.gossip(&chain[57]);
    world.run(Duration::from_secs(5));
    let after: u64 = world.requests.values().sum();
    assert!(
        after - before <= WINDOW as u64 + 6,
        "{} fetched again",
        after - before
    );
    assert_eq!(
        world.handed.len(),
        handed,
        "no block of it is handed over again"
    );
}

/// A world whose safe block is 26, and a branch from genesis of which tip 41 was dropped.
fn foreign_branch() -> (NumberWorld, Vec<Arc<Payload>>) {
    let chain = branch(genesis(), 60, 1, 10);
    let mut world = NumberWorld::new(SyncLimits::default(), &chain);
    for block in &chain[..30] {
        world.gossip(block);
    }
    world.run(Duration::from_secs(1));
    world.set_heads(chain[29].id(), chain[25].id());
    world.canonical = world.other.clone();
    world.connect(PeerKind::Honest(1));
    let foreign: Vec<_> = world.other.values().cloned().collect();
    world.gossip(&foreign[40]);
    world.run(Duration::from_secs(10));
    assert_eq!(world.dropped, [(foreign[40].id(), TipDropped::Foreign)]);
    (world, foreign)
}

#[test]
fn a_branch_that_forks_off_below_the_safe_block_is_dropped_once() {
    let (mut world, foreign) = foreign_branch();
    assert!(
        world.requests.keys().all(|n| *n > 26),
        "nothing at or below the safe block is asked for"
    );
    let before: u64 = world.requests.values().sum();
    world.gossip(&foreign[41]);
    world.run(Duration::from_secs(10));
    assert_eq!(before, world.requests.values().sum::<u64>());
    // After the safe head has moved back, the branch may become canonical.
    world.set_heads(genesis(), genesis());
    world.gossip(&foreign[42]);
    world.run(Duration::from_secs(10));
    assert!(world.has(&foreign[42]));
}

/// Derivation replaces safe blocks after an L1 reorg. The chain reports its heads only after more
/// blocks are safe than before.
#[test]
fn a_branch_that_derivation_has_moved_to_is_followed() {
    let (mut world, foreign) = foreign_branch();
    let derived = foreign[..=38].iter().map(|block| block.hash);
    world.executed.extend(derived);
    world.set_heads(foreign[38].id(), foreign[36].id());
    world.gossip(&foreign[41]);
    world.run(Duration::from_secs(10));
    assert!(world.has(&foreign[41]));
}

#[test]
fn two_tips_at_one_height_are_both_handed_over() {
    let chain = branch(genesis(), 40, 1, 10);
    let rival = branch(chain[20].id(), 15, 2, 10);
    let mut world = NumberWorld::new(SyncLimits::default(), &chain);
    world
        .canonical
        .extend(rival[..0].iter().map(|b| (b.number(), b.clone())));
    world.connect(PeerKind::Honest(5));
    world.gossip(&chain[30]);
    for block in &rival {
        world.gossip(block);
        world.run(Duration::from_millis(3));
    }
    world.run(Duration::from_secs(60));
    assert!(world.has(&chain[30]), "{:?}", world.dropped);
    world.gossip(&rival[0]);
    world.run(Duration::from_secs(5));
    assert!(world.has(&rival[0]));
}

#[test]
fn a_tip_that_no_peer_can_link_gives_way_to_a_newer_one() {
    let chain = branch(genesis(), 40, 1, 10);
    let lost = branch(
        BlockId {
            hash: B256::repeat_byte(1),
            number: 30,
        },
        1,
        3,
        10,
    );
    let mut world = NumberWorld::new(SyncLimits::default(), &chain);
    world.connect(PeerKind::Lacks);
    world.connect(PeerKind::Honest(1));
    world.gossip(&lost[0]);
    world.run(Duration::from_secs(30));
    world.gossip(&chain[39]);
    world.run(Duration::from_secs(60));
    assert!(world.has(&chain[39]));
    assert_eq!(world.dropped, [(lost[0].id(), TipDropped::Stalled)]);
}

#[test]
fn without_capacity_nothing_is_lost() {
    let chain = branch(genesis(), 400, 1, 1000);
    let limits = SyncLimits {
        bodies: 20_000,
        unsettled_bytes: 10_000,
        unsettled: 4,
        ..SyncLimits::default()
    };
    let mut world = NumberWorld::new(limits, &chain);
    world.execution = Duration::from_millis(300);
    world.connect(PeerKind::Honest(1));
    for block in &chain {
        world.gossip(block);
        world.run(Duration::from_millis(10));
    }
    world.run(Duration::from_secs(300));
    assert!(world.has(&chain[399]));
}

#[test]
fn blocks_the_chain_got_from_elsewhere_are_not_fetched() {
    let chain = branch(genesis(), 100, 1, 10);
    let mut world = NumberWorld::new(SyncLimits::default(), &chain);
    world.gossip(&chain[99]);
    world.connect(PeerKind::Honest(50));
    world.run(Duration::from_millis(120));
    // The chain executes the blocks up to 90 from another source.
    world.executed.extend(chain[..90].iter().map(|b| b.hash));
    world.set_heads(chain[89].id(), genesis());
    world.act();
    world.run(Duration::from_secs(5));
    assert!(world.has(&chain[99]));
    assert!(
        world.requests.keys().all(|n| *n > chain[50].number()),
        "{:?}",
        world.requests.keys().min()
    );
}

#[test]
fn a_block_the_chain_did_not_take_is_fetched_again() {
    let chain = branch(genesis(), 4, 1, 10);
    let mut world = NumberWorld::new(SyncLimits::default(), &chain);
    world.connect(PeerKind::Honest(1));
    world.gossip(&chain[0]);
    world.unsettled.clear();
    world
        .sync
        .on_settled(chain[0].hash, &Settled::Dropped, world.now);
    world.gossip(&chain[1]);
    assert_eq!(
        world.handed.len(),
        1,
        "its child does not count as having a known parent"
    );
    world.run(Duration::from_secs(1));
    assert!(world.has(&chain[1]));
    assert_eq!(
        world.requests.keys().copied().collect::<Vec<_>>(),
        [chain[0].number()]
    );
}

#[test]
fn a_skeleton_past_its_bound_is_walked_in_parts() {
    let chain = branch(genesis(), 100, 1, 10);
    let mut world = NumberWorld::new(
        SyncLimits {
            skeleton: 30,
            ..SyncLimits::default()
        },
        &chain,
    );
    world.connect(PeerKind::Honest(1));
    world.gossip(&chain[98]);
    world.run(Duration::from_secs(5));
    assert!(world.has(&chain[20]) && !world.has(&chain[98]));
    for _ in 0..4 {
        world.gossip(&chain[99]);
        world.run(Duration::from_secs(5));
    }
    assert!(world.has(&chain[99]));
}
