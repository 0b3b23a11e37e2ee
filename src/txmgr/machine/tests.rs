//! Tests of the machine against a simulated L1, step by step and with random events.

mod faults;
mod foreign;
mod random;
mod world;

use super::*;
use crate::txmgr::{
    fees::{FeeCaps, L1Fees},
    options::TxOptions,
    publish_result::PublishResult,
};
use alloy_primitives::{B256, Bytes, address};
use std::collections::HashMap;
use world::World;

const ACCOUNT: Address = address!("f39Fd6e51aad88F6F4ce6aB8827279cffFb92266");

/// Settings with short times, to keep tests readable. The simulated L1 makes a block every two
/// seconds.
fn settings() -> SendSettings {
    let defaults = TxOptions::default().settings().unwrap();
    SendSettings {
        rules: SendRules {
            confirmations: 3,
            resubmission_timeout: Duration::from_secs(20),
            rebroadcast_interval: Duration::from_secs(6),
            mempool_timeout: Duration::from_secs(40),
            receipt_poll_interval: Duration::from_secs(2),
            ..defaults.rules
        },
        fees: defaults.fees,
    }
}

fn calldata(world: &mut World, count: u64) -> Vec<u64> {
    (0..count)
        .map(|_| world.submit(TxClass::Calldata))
        .collect()
}

#[test]
fn requests_are_mined_in_order_and_confirmed_at_their_depth() {
    let mut world = World::new(settings());
    let ids = calldata(&mut world, 5);
    world.run(2);
    assert_eq!(world.pool_data(), ids);
    world.mine();
    world.run(2);
    assert!(world.done.is_empty(), "one confirmation of three");
    world.mine();
    world.run(2);
    assert!(world.done.is_empty(), "two confirmations of three");
    world.mine();
    world.run(4);
    assert_eq!(world.done.keys().copied().collect::<Vec<_>>(), ids);
    assert_eq!(world.chain_data(), ids);
    assert_eq!(world.machine.pending(), 0);
    assert_eq!(world.machine.next_nonce(), 5);
}

#[test]
fn an_unmined_transaction_is_published_again_and_then_bumped() {
    let mut world = World::new(settings());
    world.base_fee = 10_000_000_000;
    calldata(&mut world, 1);
    world.run(1);
    let first = world.pool[&0].caps;
    world.base_fee = 300_000_000_000;
    world.pool.clear();
    world.run(8);
    assert_eq!(world.pool[&0].caps, first, "published again unchanged");
    world.run(20);
    assert!(
        world.pool[&0].caps.fee >= 2 * world.base_fee,
        "bumped to the new base fee"
    );
    world.mine_blocks(4);
    assert_eq!(world.done.len(), 1);
}

#[test]
fn a_bump_beyond_the_limit_is_refused_and_the_transaction_stays() {
    let mut world = World::new(settings());
    world.base_fee = 200_000_000_000;
    calldata(&mut world, 1);
    world.run(1);
    let first = world.pool[&0].caps;
    // The fee cap of a replacement by 10 % would be more than five times L1's suggestion.
    world.base_fee = 1;
    world.stuck = true;
    world.run(30);
    assert_eq!(world.pool[&0].caps, first);
    assert!(
        world.said("is over 5x multiple of the suggested value"),
        "{:?}",
        world.log
    );
    world.stuck = false;
    world.mine_blocks(4);
    assert_eq!(world.done.len(), 1);
}

#[test]
fn a_reorged_out_transaction_is_published_again() {
    let mut settings = settings();
    // Make sure that the rebroadcast interval is not the reason for publishing again.
    settings.rules.rebroadcast_interval = Duration::from_secs(600);
    let mut world = World::new(settings);
    let ids = calldata(&mut world, 2);
    world.run(1);
    world.mine();
    world.run(3);
    world.reorg(1, false);
    assert!(world.pool.is_empty());
    world.run(4);
    assert!(world.said("ReorgedOut"), "{:?}", world.log);
    assert_eq!(world.pool_data(), ids);
    world.mine_blocks(4);
    assert_eq!(world.done.len(), 2);
}

#[test]
fn a_reorg_below_the_confirmations_does_not_stop_later_requests() {
    let mut world = World::new(settings());
    calldata(&mut world, 3);
    world.run(1);
    world.mine_blocks(4);
    assert_eq!(world.done.len(), 3);
    let last = calldata(&mut world, 2);
    world.run(1);
    world.mine();
    world.run(3);
    world.reorg(5, false);
    assert_eq!(world.latest(), 0);
    for _ in 0..12 {
        world.mine();
        world.run(3);
    }
    assert_eq!(world.done.len(), 5);
    assert!(last.iter().all(|id| world.chain_data().contains(id)));
}

#[test]
fn a_predecessors_transactions_are_waited_for() {
    let mut world = World::new(settings());
    world.foreign(0, TxClass::Calldata);
    world.foreign(1, TxClass::Calldata);
    let ids = calldata(&mut world, 1);
    world.run(6);
    assert_eq!(world.pool.len(), 2, "nothing is sent yet");
    assert!(!world.machine.is_settled());
    world.mine();
    world.run(6);
    assert!(world.machine.is_settled());
    world.mine_blocks(4);
    assert_eq!(world.chain_data()[2..], ids);
}

#[test]
fn a_predecessors_stuck_transaction_is_replaced() {
    let mut world = World::new(settings());
    world.foreign(0, TxClass::Calldata);
    world.stuck = true;
    let ids = calldata(&mut world, 1);
    world.run(60);
    assert_eq!(world.pool_data(), ids, "{:?}", world.log);
    world.stuck = false;
    world.mine_blocks(4);
    assert_eq!(world.done.len(), 1);
}

#[test]
fn a_predecessors_transaction_of_the_other_class_is_cancelled() {
    for class in [TxClass::Calldata, TxClass::Blob] {
        let mut world = World::new(settings());
        world.foreign(0, class.other());
        world.stuck = true;
        let id = world.submit(class);
        world.run(40);
        assert!(world.said("blocks the account"), "{:?}", world.log);
        assert_eq!(world.pool[&0].class, class.other());
        assert_eq!(world.pool_data(), [0], "a filler");
        world.stuck = false;
        world.mine();
        world.run(10);
        world.mine_blocks(5);
        assert_eq!(world.chain_data(), [0, id]);
        assert_eq!(world.done.len(), 1);
    }
}

#[test]
fn own_transactions_of_the_other_class_are_waited_for() {
    let mut world = World::new(settings());
    let blob = world.submit(TxClass::Blob);
    let calldata = world.submit(TxClass::Calldata);
    world.run(6);
    assert_eq!(world.pool_data(), [blob]);
    world.mine();
    world.run(4);
    assert_eq!(world.pool_data(), [calldata]);
    world.mine_blocks(4);
    assert_eq!(world.chain_data(), [blob, calldata]);
    assert!(!world.said("Filling"), "{:?}", world.log);
}

#[test]
fn a_request_that_no_pool_takes_fails_and_leaves_its_nonce_to_the_next() {
    let mut world = World::new(settings());
    world.run(2);
    world.refuse = Some("exceeds block gas limit".into());
    let [first, second] = calldata(&mut world, 2)[..] else {
        unreachable!()
    };
    world.run(14);
    let said = world.failed[&first].to_string();
    assert_eq!(
        said,
        "L1 does not take the transaction: exceeds block gas limit"
    );
    world.refuse = None;
    world.run(3);
    assert_eq!(world.pool[&0].data, second);
    world.mine_blocks(4);
    assert_eq!(world.done.len(), 1);
}

#[test]
fn an_l1_that_is_away_ends_in_the_mempool_timeout_and_the_next_request_succeeds() {
    let mut world = World::new(settings());
    world.run(2);
    world.reachable = false;
    let [first] = calldata(&mut world, 1)[..] else {
        unreachable!()
    };
    world.run(60);
    assert!(matches!(
        world.failed[&first],
        SendFailure::NotInMempool | SendFailure::Craft(_)
    ));
    world.reachable = true;
    calldata(&mut world, 1);
    world.run(4);
    world.mine_blocks(4);
    assert_eq!(world.done.len(), 1);
}

#[test]
fn a_signer_that_is_down_fails_the_request_after_five_attempts() {
    let mut world = World::new(settings());
    world.run(2);
    world.signs = false;
    let [first] = calldata(&mut world, 1)[..] else {
        unreachable!()
    };
    world.run(30);
    assert_eq!(
        world.failed[&first].to_string(),
        "failed to create the tx: the signer is down"
    );
    assert_eq!(world.machine.next_nonce(), 0);
}

#[test]
fn a_request_given_up_in_the_pool_is_replaced_by_a_filler() {
    let mut settings = settings();
    settings.rules.send_timeout = Duration::from_secs(10);
    let mut world = World::new(settings);
    world.stuck = true;
    let ids = calldata(&mut world, 2);
    world.run(15);
    assert!(
        ids.iter()
            .all(|id| world.failed[id] == SendFailure::Timeout),
        "{:?}",
        world.failed
    );
    assert_eq!(world.pool_data(), [0, 0]);
    world.stuck = false;
    world.mine_blocks(5);
    let id = world.submit(TxClass::Calldata);
    world.run(2);
    world.mine_blocks(4);
    assert_eq!(world.chain_data(), [0, 0, id]);
}

#[test]
fn a_closed_machine_waits_for_what_is_in_the_pool() {
    let mut world = World::new(settings());
    let ids = calldata(&mut world, 2);
    world.run(2);
    world.reachable = false;
    let late = world.submit(TxClass::Calldata);
    world.run(1);
    world.event(SendEvent::Close);
    assert_eq!(world.failed[&late], SendFailure::Closed);
    world.reachable = true;
    world.mine_blocks(5);
    assert_eq!(world.chain_data(), ids);
    assert_eq!((world.done.len(), world.machine.pending()), (2, 0));
    let refused = world.submit(TxClass::Calldata);
    assert_eq!(world.failed[&refused], SendFailure::Closed);
}

#[test]
fn already_known_counts_as_sent() {
    let mut world = World::new(settings());
    world.run(2);
    world.loses_answers = true;
    let ids = calldata(&mut world, 1);
    world.run(2);
    assert_eq!(world.pool_data(), ids);
    world.loses_answers = false;
    world.run(3);
    let second = calldata(&mut world, 1);
    world.run(2);
    assert_eq!(world.pool_data(), [ids, second].concat());
}

/// The response to the first publication is lost, and the next block includes the transaction. The
/// second request is published then, while the first one still waits for two more blocks.
#[test]
fn a_request_does_not_wait_for_the_confirmations_of_one_whose_answer_was_lost() {
    let mut world = World::new(settings());
    world.run(2);
    world.loses_answers = true;
    let ids = calldata(&mut world, 2);
    world.run(1);
    world.loses_answers = false;
    world.mine();
    world.run(6);
    assert_eq!(world.chain_data(), ids[..1]);
    assert_eq!(world.pool_data(), ids[1..]);
    world.mine_blocks(4);
    assert_eq!(world.done.len(), 2);
}

#[test]
fn a_request_fails_if_the_one_before_used_its_nonce() {
    let mut world = World::new(settings());
    world.run(2);
    world.loses_answers = true;
    let first = world.submit(TxClass::Calldata);
    world.run(45);
    assert_eq!(world.failed[&first], SendFailure::NotInMempool);
    let old = world.pool[&0].clone();
    world.loses_answers = false;
    let second = world.submit(TxClass::Calldata);
    world.run(5);
    assert_eq!(world.pool_data(), [second], "it has taken the nonce over");
    // A pool of another node still had the first request's transaction, and a block includes it.
    world.pool.clear();
    world.blocks.push(vec![old]);
    world.mine_blocks(3);
    assert_eq!(world.failed[&second], SendFailure::NonceTaken(0));
    assert!(world.done.is_empty());
}
