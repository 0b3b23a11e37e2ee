//! Nonces that this process did not use: an earlier process's, or those of a second process.

use super::{world::World, *};
use std::collections::BTreeSet;

/// Mines `blocks` blocks, each with a transaction of an earlier process.
fn predecessors(world: &mut World, blocks: u64) {
    for _ in 0..blocks {
        world.foreign(world.latest(), TxClass::Calldata);
        world.mine();
    }
}

/// The endpoint was killed. After its restart it is some blocks behind, and its pool is empty.
#[test]
fn an_endpoint_that_was_behind_at_the_start_is_no_second_process() {
    for behind in 1..=40 {
        let mut world = World::new(settings());
        predecessors(&mut world, 50);
        (world.behind, world.lagging_pool) = (behind, Some(BTreeSet::new()));
        let ids = calldata(&mut world, 3);
        world.run(3);
        assert_eq!(world.signed.len(), 3, "it knows no better");
        while world.behind > 0 {
            // The endpoint catches up by some blocks at a time, and in between still reports
            // outdated nonces.
            world.behind = world.behind.saturating_sub(7);
            world.run(12);
        }
        world.mine_blocks(20);
        assert_eq!(world.stopped, None, "{behind}");
        // The caller repeats requests that have lost their nonce.
        let failed = |id: &u64| matches!(world.failed.get(id), Some(SendFailure::NonceTaken(_)));
        let is_known = |id: &u64| world.done.contains_key(id) || failed(id);
        assert!(ids.iter().all(is_known), "{:?}", world.failed);
        assert!(world.said("Adopted"), "{:?}", world.log);
        let id = world.submit(TxClass::Calldata);
        world.run(2);
        world.mine_blocks(4);
        assert!(world.done.contains_key(&id), "{behind}");
    }
}

/// Process and endpoint were restarted, but the transactions had reached other nodes' pools.
#[test]
fn predecessors_transactions_that_the_pool_has_lost_are_no_second_process() {
    for lost in 1..=5 {
        let mut world = World::new(settings());
        (0..lost).for_each(|nonce| world.foreign(nonce, TxClass::Calldata));
        world.lose_pool();
        let first = world.submit(TxClass::Calldata);
        world.run(2);
        assert_eq!(world.pool_data(), [first], "it knows no better");
        world.mine_blocks(8);
        assert_eq!(world.stopped, None, "{lost}");
        assert_eq!(world.failed[&first], SendFailure::NonceTaken(0));
        let again = world.submit(TxClass::Calldata);
        world.run(2);
        world.mine_blocks(4);
        assert!(world.done.contains_key(&again), "{lost}: {:?}", world.log);
    }
}

#[test]
fn a_second_process_between_our_transactions_stops_the_machine_at_the_third_time() {
    let mut world = World::new(settings());
    for turn in 1..=3 {
        assert_eq!(world.stopped, None, "turn {turn}");
        let id = world.submit(TxClass::Calldata);
        world.run(2);
        world.mine_blocks(4);
        assert!(world.done.contains_key(&id), "{:?}", world.failed);
        let other = world.latest();
        predecessors(&mut world, 2);
        let late = world.submit(TxClass::Calldata);
        world.mine_blocks(12);
        assert!(turn == 3 || world.done.contains_key(&late) || world.failed.contains_key(&late));
        if turn == 3 {
            let sentence = world.stopped.clone().expect("the machine has stopped");
            let expected = format!(
                "nonce {} of {ACCOUNT} was used by a transaction that this process did not send: another process has the same key; stop one of them",
                other + 1
            );
            assert!(sentence.starts_with(&expected), "{sentence}");
            assert!(matches!(world.failed[&late], SendFailure::Stopped(_)));
        }
    }
}

/// A second process uses every nonce before us for an hour. Returns the time until the machine
/// stops.
fn always_late(behind: usize) -> Option<Duration> {
    let mut world = World::new(settings());
    let start = world.now;
    world.run(2);
    while world.stopped.is_none() && world.now < start + Duration::from_secs(3_600) {
        while world.machine.pending() < 2 && world.stopped.is_none() {
            world.submit(TxClass::Calldata);
        }
        world.run(10);
        world.behind = 0;
        world.pool.clear();
        predecessors(&mut world, 1);
        world.mine();
        world.behind = behind;
        world.run(5);
    }
    assert!(world.done.is_empty(), "nothing of ours was mined");
    world.stopped.map(|_| world.now - start)
}

#[test]
fn a_second_process_that_is_always_faster_stops_the_machine_after_ten_minutes() {
    let stopped = always_late(0).expect("the machine has stopped");
    assert!((600..1_500).contains(&stopped.as_secs()), "{stopped:?}");
    assert_eq!(
        always_late(4),
        None,
        "the endpoint is behind: it may be a predecessor"
    );
}

/// Settings with a poll every two seconds, and no republication in between.
fn quiet() -> SendSettings {
    let mut settings = settings();
    settings.rules.rebroadcast_interval = Duration::from_secs(600);
    settings.rules.resubmission_timeout = Duration::from_secs(600);
    settings
}

/// Mines a block with transactions of another process at these nonces.
fn mine_foreign(world: &mut World, nonces: std::ops::Range<u64>) {
    nonces.for_each(|nonce| world.foreign(nonce, TxClass::Calldata));
    world.mine();
}

fn adopted(world: &World) -> usize {
    let lines = world.log.iter();
    lines.filter(|line| line.contains("Adopted")).count()
}

#[test]
fn nonces_beyond_ours_are_adopted_after_three_polls_in_a_row() {
    let mut world = World::new(quiet());
    let id = world.submit(TxClass::Calldata);
    world.run(2);
    let pool = world.pool.clone();
    for polls in [2, 1, 2] {
        mine_foreign(&mut world, 0..2);
        world.run(2 * polls);
        world.reorg(1, false);
        world.pool = pool.clone();
        world.run(2);
    }
    assert_eq!(adopted(&world), 0);
    mine_foreign(&mut world, 0..2);
    world.run(6);
    assert_eq!(adopted(&world), 1, "three polls");
    world.mine_blocks(4);
    assert_eq!(world.failed[&id], SendFailure::NonceTaken(0));
}

/// Polls that counted for the first nonce beyond ours do not count for the second.
#[test]
fn each_nonce_beyond_ours_is_adopted_after_three_polls() {
    let mut world = World::new(quiet());
    world.submit(TxClass::Calldata);
    world.run(2);
    mine_foreign(&mut world, 0..2);
    let step = Duration::from_millis(250);
    let until = world.now + Duration::from_secs(10);
    while adopted(&world) == 0 && world.now < until {
        world.now += step;
        world.event(SendEvent::Tick);
    }
    mine_foreign(&mut world, 2..3);
    world.run(4);
    assert_eq!(adopted(&world), 1, "two polls");
    world.reorg(1, false);
    world.run(4);
    assert_eq!(adopted(&world), 1);
}

/// One transaction of ours is in flight, and the nonce above it is free after a refusal.
#[test]
fn a_request_follows_the_nonces_of_others_at_once() {
    let mut world = World::new(quiet());
    world.submit(TxClass::Calldata);
    world.run(2);
    world.refuse = Some("txpool is full".into());
    let refused = world.submit(TxClass::Calldata);
    world.run(45);
    assert!(world.failed.contains_key(&refused));
    world.refuse = None;
    mine_foreign(&mut world, 0..3);
    world.run(6);
    assert_eq!(adopted(&world), 1);
    let signed = world.signed.len();
    let id = world.submit(TxClass::Calldata);
    world.run(1);
    assert_eq!(world.pool.get(&3).map(|tx| tx.data), Some(id));
    assert_eq!(world.signed.len(), signed + 1, "no nonce is tried in vain");
}

/// The nonce need not be deep: the pool's state at the start showed that an earlier process used
/// it.
#[test]
fn a_nonce_that_a_predecessor_used_is_given_up_at_once_and_is_no_evidence() {
    let mut world = World::new(settings());
    world.foreign(0, TxClass::Calldata);
    world.stuck = true;
    world.run(30);
    assert!(world.machine.is_settled());
    world.refuse = Some("txpool is full".into());
    let id = world.submit(TxClass::Calldata);
    world.run(1);
    assert_eq!(world.signed.values().next().map(|tx| tx.nonce), Some(0));
    (world.refuse, world.stuck) = (None, false);
    world.mine();
    world.run(12);
    assert_eq!(world.pool.get(&1).map(|tx| tx.data), Some(id));
    assert_eq!(adopted(&world), 0);
}
