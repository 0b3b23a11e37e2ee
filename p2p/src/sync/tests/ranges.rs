//! Long gaps filled by range, from peers with every kind of behaviour.

use super::range_world::*;
use crate::{
    peers::Offence,
    sync::{Sync, SyncLimits, fetcher::MIN_RANGE},
    types::ChainHeads,
};
use starling_proto::payload::BlockId;
use std::time::Duration;

#[test]
fn a_million_blocks_in_bounded_memory() {
    let mut world = RangeWorld::new(1_000_000);
    world.connect_three();
    world.gossip(1_000_000);
    let took = world.run();
    let limits = SyncLimits::default();
    assert!(world.most_hashes <= limits.skeleton as u64 && limits.skeleton * 32 <= 32 << 20);
    assert!(
        world.most_bytes <= limits.bodies,
        "{} bytes of bodies",
        world.most_bytes
    );
    assert!(
        world.headers <= 1_000_000 + 4096,
        "the walk down is made once: {}",
        world.headers
    );
    assert!(
        took < Duration::from_secs(60),
        "round trips do not add up: {took:?}"
    );
    assert!(world.penalties.is_empty() && world.dropped.is_empty());
    assert_eq!(
        world.numbers, 0,
        "blocks that come in ranges are not requested by number"
    );
    assert!(
        world.asked.values().all(|asked| *asked > 250_000),
        "all take part: {:?}",
        world.asked
    );
}

#[test]
fn the_lowest_window_is_requested_although_tips_fill_the_budget_of_bodies() {
    let limits = SyncLimits {
        bodies: 2 << 20,
        ..SyncLimits::default()
    };
    let mut world = RangeWorld::new(5_000);
    world.sync = Sync::new(limits, world.head, 1);
    // No peer is connected that serves blocks. Each new tip is a child of the last one.
    for tip in 5_000..=8_000 {
        world.grow(tip);
        world.gossip(tip);
    }
    assert!(
        world.most_bytes > limits.bodies / 2,
        "a window of 1 MiB no longer fits: {} bytes of bodies",
        world.most_bytes
    );
    // This peer has all blocks and serves them only in ranges.
    world.connect(PeerBehaviour::Short(8_000));
    let took = world.run();
    assert!(took < Duration::from_secs(5), "{took:?}");
    assert!(
        world.most_bytes <= limits.bodies,
        "{} bytes of bodies",
        world.most_bytes
    );
    assert!(world.penalties.is_empty() && world.dropped.is_empty());
}

#[test]
fn a_slow_peer_gets_few_windows() {
    let mut world = RangeWorld::new(50_000);
    let slow = world.connect(PeerBehaviour::Honest(60_000 * MS));
    let fast = [
        world.connect(PeerBehaviour::Honest(20 * MS)),
        world.connect(PeerBehaviour::Honest(20 * MS)),
    ];
    world.gossip(50_000);
    world.run_until(1);
    let took = world.run();
    assert!(took < Duration::from_secs(120), "{took:?}");
    let delivered = |peer| world.delivered.get(peer).copied().unwrap_or(0);
    assert!(
        delivered(&slow) * 10 < delivered(&fast[0]),
        "{:?}",
        world.delivered
    );
    assert!(world.penalties.is_empty(), "slow is no offence");
}

#[test]
fn a_silent_peer_delays_a_gap_briefly() {
    let mut world = RangeWorld::new(20_000);
    let silent = world.connect(PeerBehaviour::Silent);
    world.connect(PeerBehaviour::Honest(20 * MS));
    world.gossip(20_000);
    let took = world.run();
    assert!(took < Duration::from_secs(90), "{took:?}");
    // The ledger says why the silent peer gets fewer requests.
    assert!(world.notes.contains(&(silent, "late_response")));
    assert!(world.notes.iter().all(|(peer, _)| *peer == silent));
}

#[test]
fn headers_that_drip_are_reassigned_or_penalized_without_another_peer() {
    let mut world = RangeWorld::new(20_000);
    let drips = world.connect(PeerBehaviour::DripsHeaders);
    world.gossip(20_000);
    let begun = world.now;
    while world.now - begun < Duration::from_secs(70) && world.step() {}
    assert!(
        world.penalties.contains(&(drips, Offence::NoResponse)),
        "{:?}",
        world.penalties
    );
    let headers = world.headers;
    // This peer has all blocks and serves them only in ranges.
    world.connect(PeerBehaviour::Short(20_000));
    let took = world.run();
    assert!(took < Duration::from_secs(5), "{took:?}");
    assert!(
        world.headers - headers <= 20_000 + 4_096,
        "headers that have come are not requested again: {}",
        world.headers - headers
    );
}

#[test]
fn where_ranges_bring_nothing_blocks_are_requested_by_number() {
    for kind in [
        PeerBehaviour::Resets,
        PeerBehaviour::Silent,
        PeerBehaviour::Drips,
    ] {
        let mut world = RangeWorld::new(2_000);
        let peer = world.connect(kind);
        world.connect(PeerBehaviour::ByNumber);
        world.gossip(2_000);
        let took = world.run();
        assert!(took < Duration::from_secs(30), "{kind:?}: {took:?}");
        // The service, not sync, penalizes a silent peer.
        assert_eq!(
            world.penalties.contains(&(peer, Offence::NoResponse)),
            kind == PeerBehaviour::Resets,
            "{kind:?}"
        );
    }
}

#[test]
fn a_peer_that_sends_one_block_of_each_window_is_asked_ever_more_rarely() {
    let mut world = RangeWorld::new(200_000);
    let drips = world.connect(PeerBehaviour::Drips);
    world.connect(PeerBehaviour::Honest(500 * MS));
    world.connect(PeerBehaviour::Honest(500 * MS));
    world.gossip(200_000);
    let took = world.run();
    let windows = world.delivered.get(&drips).copied().unwrap_or(0);
    println!("{took:?}, {windows} windows with one block");
    assert!(windows <= 16, "{windows}");
}

#[test]
fn a_peer_with_false_blocks_is_penalized_at_once_and_asked_no_more() {
    let mut world = RangeWorld::new(20_000);
    let lying = world.connect(PeerBehaviour::Lies);
    world.connect_three();
    world.gossip(20_000);
    world.run();
    assert_eq!(
        world
            .penalties
            .iter()
            .filter(|penalty| **penalty == (lying, Offence::FalseBlock))
            .count(),
        world.penalties.len()
    );
    assert!(
        (1..=2).contains(&world.penalties.len()),
        "one for each window it was asked for: {:?}",
        world.penalties
    );
}

#[test]
fn a_reorg_in_the_middle_cuts_the_skeleton_back() {
    let mut world = RangeWorld::new(40_000);
    world.connect_three();
    world.gossip(40_000);
    world.run_until(10_000);
    let walked = world.headers;
    world.reorg(35_000, 40_100);
    world.gossip(40_100);
    let took = world.run();
    assert!(
        world.headers - walked <= 5_200 + 4_096,
        "only the new branch is walked: {}",
        world.headers - walked
    );
    assert!(
        took < Duration::from_secs(20),
        "nothing waits for a timeout: {took:?}"
    );
    assert!(
        world
            .penalties
            .iter()
            .all(|(_, offence)| *offence == Offence::FalseStatus),
        "{:?}",
        world.penalties
    );
}

#[test]
fn tips_that_gossip_missed_extend_the_skeleton() {
    let mut world = RangeWorld::new(30_000);
    world.connect_three();
    world.gossip(30_000);
    for tip in 1..20 {
        world.run_until((world.head.number + 1_000).min(world.hashes.len() as u64 - 1));
        world.grow(30_000 + tip * 10);
        world.send_statuses();
        world.gossip(30_000 + tip * 10);
    }
    world.run();
    assert!(
        world.headers <= 30_000 + 4_096 + 20 * MIN_RANGE,
        "{}",
        world.headers
    );
    assert!(world.penalties.is_empty());
}

#[test]
fn an_overtaken_gap_is_cancelled_and_another_one_begun() {
    let mut world = RangeWorld::new(30_000);
    let peers = world.connect_three();
    world.gossip(30_000);
    world.run_until(5_000);
    assert!(!world.in_flight.is_empty());
    // Derivation executes blocks beyond the gap.
    let head = BlockId {
        number: 30_000,
        hash: world.hashes[30_000],
    };
    world
        .sync
        .on_heads(ChainHeads { head, safe: head }, world.now);
    world.head = head;
    world.act();
    assert!(
        world.in_flight.is_empty() && world.cancelled > 0,
        "{:?}",
        world.in_flight
    );
    assert_eq!(world.sync.report().missing, 0);

    world.grow(50_000);
    world.send_statuses();
    world.gossip(50_000);
    world.run_until(35_000);
    // All peers disconnect and a new one connects: it gets the requests again.
    peers.iter().for_each(|peer| world.disconnect(*peer));
    assert!(world.in_flight.is_empty());
    world.connect(PeerBehaviour::Honest(20 * MS));
    world.run();
    assert!(world.penalties.is_empty());
}

#[test]
fn a_stall_names_the_missing_block_and_the_peers() {
    let mut world = RangeWorld::new(5_000);
    let short = world.connect(PeerBehaviour::Short(2_000));
    let silent = world.connect(PeerBehaviour::Silent);
    world.gossip(5_000);
    let begun = world.now;
    // The sequencer continues to build: its new blocks are no progress for the gap below.
    for slot in 1..=20 {
        while world.now - begun < Duration::from_secs(2 * slot) && world.step() {}
        world.now = world.now.max(begun + Duration::from_secs(2 * slot));
        world.grow(5_000 + slot);
        world.gossip(5_000 + slot);
    }
    let (missing, why) = world.sync.stall(world.now).expect("it has stalled");
    assert_eq!(missing.number, 4_999, "below the tip");
    assert!(
        why.contains("block 4999 (0x")
            && why.contains(&format!("{short} has only blocks 0 to 2000")),
        "{why}"
    );
    assert!(why.contains(&silent.to_string()), "{why}");
    // A peer that has the missing block ends the stall.
    world.connect(PeerBehaviour::Honest(20 * MS));
    world.run();
    assert!(world.sync.stall(world.now).is_none());
}

#[test]
fn a_tip_that_no_peer_has_gives_way_to_one_that_peers_have() {
    let mut world = RangeWorld::new(9_000);
    let peers = world.connect_three();
    // A tip that no peer has: right after building it, the sequencer was restarted from an earlier
    // block.
    let salt = std::mem::replace(&mut world.salt, (9_000, 7));
    let lost = world.hashes.clone();
    world.hashes.truncate(9_000);
    world.grow(9_000);
    world.gossip(9_000);
    (world.hashes, world.salt) = (lost, salt);
    world.grow(9_100);
    world.send_statuses();
    world.gossip(9_100);
    let took = world.run();
    assert!(took < Duration::from_secs(60), "{took:?}");
    assert!(
        world
            .penalties
            .iter()
            .all(|(peer, offence)| peers.contains(peer) && *offence == Offence::FalseStatus)
    );
}
