//! Nonces that this process did not use: a predecessor's, or those of a second process.

use super::{world::World, *};
use std::collections::BTreeSet;

/// Blocks with a transaction of a predecessor each.
fn predecessors(world: &mut World, blocks: u64) {
    for _ in 0..blocks {
        world.foreign(world.latest(), TxClass::Calldata);
        world.mine();
    }
}

/// The endpoint was killed and begins some blocks below the others, without its pool.
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
            // Some blocks at once, and then time to be fooled again.
            world.behind = world.behind.saturating_sub(7);
            world.run(12);
        }
        world.mine_blocks(20);
        assert_eq!(world.stopped, None, "{behind}");
        // The caller repeats what has lost its nonce.
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

/// A restart of process and endpoint; the transactions had reached other pools.
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

/// A second process uses every nonce before us for an hour; returns when the machine has stopped.
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
