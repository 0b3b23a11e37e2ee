//! Faults of L1 that batcher and proposer must survive, one per test.

use super::{world::World, *};

const GWEI: u128 = 1_000_000_000;

#[test]
fn fees_times_ten_in_one_block_cost_one_replacement() {
    for class in [TxClass::Calldata, TxClass::Blob] {
        let mut world = World::new(settings());
        (world.base_fee, world.blob_base_fee) = (30 * GWEI, 5 * GWEI);
        let id = world.submit(class);
        world.run(1);
        world.base_fee *= 10;
        world.blob_base_fee *= 10;
        world.mine_blocks(4);
        assert_eq!(world.pool_data(), [id], "it pays too little");
        for _ in 0..10 {
            world.mine();
            world.run(2);
        }
        assert!(world.done.contains_key(&id), "{class:?}: {:?}", world.log);
        let mined = &world.signed[&world.done[&id].hash];
        assert!(mined.caps.fee >= 2 * world.base_fee);
        assert!(class == TxClass::Calldata || mined.caps.blob_fee >= Some(2 * world.blob_base_fee));
        assert_eq!(world.signed.len(), 2, "the first one and its replacement");
    }
}

/// L1 gets a little dearer with every replacement, and then a lot.
#[test]
fn fees_rise_however_often_a_transaction_was_replaced() {
    let mut settings = settings();
    settings.fees.limit_threshold = u128::MAX;
    let mut world = World::new(settings);
    world.stuck = true;
    let id = world.submit(TxClass::Calldata);
    world.run(20 * (MAX_ATTEMPTS as u32 + 4));
    assert!(world.signed.len() > MAX_ATTEMPTS, "{}", world.signed.len());
    world.base_fee = 10 * world.pool[&0].caps.fee;
    world.run(21);
    assert!(world.pool[&0].caps.fee >= 2 * world.base_fee);
    world.stuck = false;
    world.mine_blocks(4);
    assert!(world.done.contains_key(&id), "{:?}", world.log);
}

/// A pool that finds every fee too low would be offered thousands of replacements in a moment.
#[test]
fn a_pool_to_which_every_fee_is_too_low_is_offered_a_bounded_number_at_once() {
    let mut settings = settings();
    settings.fees.limit_threshold = u128::MAX;
    let mut world = World::new(settings);
    world.run(2);
    world.refuse = Some("transaction underpriced: gas tip cap 0, minimum needed 1".into());
    world.submit(TxClass::Calldata);
    assert_eq!(world.signed.len(), MAX_ATTEMPTS);
    world.run(19);
    assert_eq!(world.signed.len(), MAX_ATTEMPTS, "the next one at its time");
    world.run(2);
    assert_eq!(world.signed.len(), MAX_ATTEMPTS + 1);
}

/// No publication was accepted, so the earlier responses must not count after a reorg.
#[test]
fn a_mined_transaction_ends_the_count_of_reserved_publications() {
    let mut world = World::new(settings());
    calldata(&mut world, 1);
    world.run(1);
    let slot = world.machine.slots.get_mut(&0).expect("a transaction");
    slot.reserved = RESERVED_LIMIT - 1;
    world.mine();
    world.run(3);
    assert_eq!(world.machine.slots[&0].reserved, 0);
}

#[test]
fn a_pool_that_is_full_for_some_seconds_costs_nothing() {
    let mut world = World::new(settings());
    world.run(2);
    world.refuse = Some("txpool is full".into());
    let ids = calldata(&mut world, 2);
    world.run(8);
    world.refuse = None;
    world.run(3);
    assert_eq!(world.pool_data(), ids);
    world.mine_blocks(4);
    assert_eq!((world.done.len(), world.failed.len()), (2, 0));
}

/// Either the endpoint is wrong, or another one already has a block that this one will get soon.
#[test]
fn a_nonce_that_is_called_too_low_and_is_unused_is_offered_again() {
    let mut world = World::new(settings());
    world.run(2);
    world.refuse = Some("nonce too low: next nonce 5, tx nonce 0".into());
    let ids = calldata(&mut world, 2);
    world.run(20);
    world.refuse = None;
    world.run(3);
    assert_eq!(world.pool_data(), ids);
    world.mine_blocks(4);
    assert_eq!((world.done.len(), world.failed.len()), (2, 0));
    assert_eq!(world.stopped, None);
}

/// An endpoint of another chain reports a different nonce of the account.
#[test]
fn a_nonce_far_beyond_ours_stops_the_machine_and_is_not_adopted() {
    for (jump, is_stopped) in [(1_000, false), (1_100, true)] {
        let mut world = World::new(settings());
        world.run(2);
        world.submit(TxClass::Calldata);
        (0..jump).for_each(|nonce| world.foreign(nonce, TxClass::Calldata));
        world.mine_blocks(12);
        let expected = format!("L1 says that {jump} is the next nonce of {ACCOUNT}, which was ");
        let said = world.stopped.as_deref().unwrap_or_default();
        assert_eq!(said.starts_with(&expected), is_stopped, "{jump}: {said}");
        assert_eq!(world.stopped.is_some(), is_stopped, "{jump}");
    }
}

/// The response to the publication was lost, so a later publication fails with `nonce too low`.
#[test]
fn a_nonce_that_our_own_transaction_has_used_is_confirmed() {
    let mut world = World::new(settings());
    world.run(2);
    world.loses_answers = true;
    let id = world.submit(TxClass::Calldata);
    world.run(1);
    world.mine();
    world.loses_answers = false;
    world.mine_blocks(4);
    assert!(world.done.contains_key(&id), "{:?}", world.failed);
}

#[test]
fn a_transaction_that_vanishes_again_and_again_is_published_until_it_is_mined() {
    for class in [TxClass::Calldata, TxClass::Blob] {
        let mut world = World::new(settings());
        let id = world.submit(class);
        for _ in 0..4 {
            world.run(7);
            assert_eq!(world.pool_data(), [id]);
            world.pool.clear();
        }
        world.run(7);
        world.mine_blocks(4);
        assert!(world.done.contains_key(&id), "{:?}", world.log);
    }
}

#[test]
fn reorgs_of_every_depth_leave_what_is_in_flight_to_be_mined() {
    for depth in 1..=64 {
        for reinjects in [false, true] {
            let mut world = World::new(settings());
            for _ in 0..64 {
                calldata(&mut world, 1);
                world.run(1);
                world.mine();
            }
            world.run(6);
            let open = calldata(&mut world, 3);
            world.run(1);
            world.mine();
            world.run(3);
            world.reorg(depth, reinjects);
            for _ in 0..40 {
                world.run(3);
                world.mine();
            }
            world.run(3);
            assert_eq!(world.stopped, None, "{depth}");
            let chain = world.chain_data();
            let is_there = |id: &u64| world.done.contains_key(id) && chain.contains(id);
            assert!(open.iter().all(is_there), "{depth}: {:?}", world.failed);
        }
    }
}

#[test]
fn endpoints_that_disagree_by_some_blocks_do_no_harm() {
    for behind in 1..=4 {
        let mut world = World::new(settings());
        let mut ids = Vec::new();
        for second in 0..90 {
            // A different endpoint responds each second.
            world.behind = if second % 2 == 0 { behind } else { 0 };
            if second % 6 == 0 {
                ids.extend(calldata(&mut world, 1));
            }
            world.run(1);
            if second % 2 == 0 {
                world.mine();
            }
        }
        world.behind = 0;
        world.mine_blocks(12);
        assert_eq!(world.stopped, None, "{behind}");
        assert_eq!(world.done.len() + world.failed.len(), ids.len());
        let chain = world.chain_data();
        let of_requests: Vec<u64> = chain.into_iter().filter(|data| *data != 0).collect();
        let done: Vec<u64> = world.done.keys().copied().collect();
        assert_eq!(of_requests, done, "{behind}: in order, none twice");
        assert_eq!(world.failed.len(), 0, "{behind}: {:?}", world.failed);
    }
}

/// A load balancer gets the nonce from one endpoint, and the receipts from one that is behind.
#[test]
fn a_nonce_without_a_receipt_is_no_second_process_before_it_is_deep_enough() {
    for behind in 1..=2 {
        let mut world = World::new(settings());
        world.receipts_behind = behind;
        for _ in 0..10 {
            calldata(&mut world, 2);
            world.run(2);
            world.mine();
            world.run(2);
        }
        world.mine_blocks(6);
        assert_eq!(world.stopped, None, "{behind}");
        assert_eq!((world.done.len(), world.failed.len()), (20, 0));
        let done: Vec<u64> = world.done.keys().copied().collect();
        assert_eq!(world.chain_data(), done, "{behind}: in order, none twice");
    }
}

/// The used nonce is deep enough, but only two polls of the required three have found no receipt.
#[test]
fn a_receipt_that_is_missing_for_fewer_polls_than_the_limit_is_waited_for() {
    let mut world = World::new(settings());
    let ids = calldata(&mut world, 1);
    world.run(2);
    world.receipts_behind = usize::MAX;
    (0..4).for_each(|_| world.mine());
    world.run(2);
    assert_eq!(world.stopped, None);
    world.receipts_behind = 0;
    world.run(3);
    let done: Vec<u64> = world.done.keys().copied().collect();
    assert_eq!((world.stopped, done), (None, ids));
}

/// Readings with the nonce used and no receipt count only if they are consecutive.
#[test]
fn a_receipt_is_waited_for_while_readings_contradict_each_other() {
    let mut settings = settings();
    // A refused publication would trigger an additional reading.
    settings.rules.rebroadcast_interval = Duration::from_secs(600);
    settings.rules.resubmission_timeout = Duration::from_secs(600);
    let mut world = World::new(settings);
    let ids = calldata(&mut world, 1);
    world.run(2);
    world.receipts_behind = usize::MAX;
    (0..8).for_each(|_| world.mine());
    for _ in 0..4 {
        // Two readings with the nonce used, then one from an endpoint without the transaction's
        // block.
        world.behind = 0;
        world.run(4);
        world.behind = 8;
        world.run(2);
    }
    assert_eq!((&world.stopped, world.failed.len()), (&None, 0));
    (world.behind, world.receipts_behind) = (0, 0);
    world.run(3);
    let done: Vec<u64> = world.done.keys().copied().collect();
    assert_eq!((world.stopped, done), (None, ids));
}

/// An error does not prove that the transaction is in no block.
#[test]
fn receipts_that_cannot_be_read_are_waited_for() {
    let mut world = World::new(settings());
    let ids = calldata(&mut world, 1);
    world.run(1);
    world.mine();
    world.run(3);
    world.receipts_fail = true;
    world.mine_blocks(12);
    assert!(!world.said("ReorgedOut"), "{:?}", world.log);
    assert_eq!((&world.stopped, world.failed.len()), (&None, 0));
    assert_eq!(world.signed.len(), 1, "nothing is sent again");
    world.receipts_fail = false;
    world.run(3);
    let done: Vec<u64> = world.done.keys().copied().collect();
    assert_eq!((world.stopped, done), (None, ids));
}

/// The other process's transaction is only on a branch that L1 soon reorgs out again.
#[test]
fn a_nonce_that_is_used_beyond_ours_for_two_polls_stops_nothing() {
    let mut world = World::new(settings());
    calldata(&mut world, 1);
    world.run(1);
    world.mine_blocks(4);
    world.foreign(1, TxClass::Calldata);
    world.mine();
    let id = world.submit(TxClass::Calldata);
    world.run(4);
    world.reorg(1, false);
    world.run(4);
    assert_eq!((&world.stopped, world.pool_data()), (&None, vec![id]));
    world.mine_blocks(4);
    assert!(world.done.contains_key(&id));
}

/// L1 reorgs to a branch without a confirmed transaction of ours, and back.
#[test]
fn a_gap_below_ours_for_one_poll_is_not_filled() {
    let mut world = World::new(settings());
    let mut ids = calldata(&mut world, 1);
    world.run(1);
    world.mine_blocks(4);
    world.stuck = true;
    ids.extend(calldata(&mut world, 1));
    world.run(1);
    let branch = world.blocks.clone();
    world.reorg(5, false);
    assert_eq!(world.latest(), 0);
    world.run(2);
    (world.blocks, world.stuck) = (branch, false);
    world.mine_blocks(4);
    assert!(!world.said("Filling"), "{:?}", world.log);
    assert_eq!(world.chain_data(), ids);
}

#[test]
fn after_a_reorg_below_everything_the_next_request_takes_the_lowest_free_nonce() {
    let mut world = World::new(settings());
    calldata(&mut world, 3);
    world.run(1);
    world.mine_blocks(4);
    assert_eq!(world.done.len(), 3);
    world.reorg(5, false);
    assert_eq!(world.latest(), 0);
    let id = world.submit(TxClass::Calldata);
    world.run(4);
    assert_eq!(world.pool.get(&0).map(|tx| tx.data), Some(id));
    world.mine_blocks(4);
    assert!(world.done.contains_key(&id) && !world.said("Filling"));
}

#[test]
fn an_l1_that_is_away_for_an_hour_costs_no_transaction_in_its_pool_and_no_busy_waiting() {
    let mut world = World::new(settings());
    world.stuck = true;
    let sent = calldata(&mut world, 2);
    world.run(2);
    world.reachable = false;
    let late = world.submit(TxClass::Calldata);
    let back = world.now + Duration::from_secs(3_600);
    let mut steps = 0;
    while world.now < back {
        let next = world.machine.wakeup().expect("something is open");
        assert!(next >= world.now, "time goes on");
        world.now = next.max(world.now + Duration::from_millis(1));
        world.event(SendEvent::Tick);
        steps += 1;
    }
    assert!(steps < 5 * 3_600, "{steps} steps in an hour");
    assert_eq!(world.failed.keys().copied().collect::<Vec<_>>(), [late]);
    (world.reachable, world.stuck) = (true, false);
    let again = world.submit(TxClass::Calldata);
    world.run(3);
    world.mine_blocks(5);
    world.mine_blocks(5);
    assert_eq!(world.chain_data(), [sent, vec![again]].concat());
    assert_eq!(world.done.len(), 3);
}

/// A request without a nonce needs the account's state, which the unreachable L1 cannot provide.
#[test]
fn a_request_that_waits_for_an_l1_that_is_away_asks_at_the_interval_of_retries() {
    let mut world = World::new(settings());
    world.run(2);
    world.reachable = false;
    world.now += Duration::from_secs(60);
    let id = world.submit(TxClass::Calldata);
    let back = world.now + Duration::from_secs(3_600);
    let mut steps = 0;
    while world.now < back {
        world.now = world.machine.wakeup().expect("it asks again");
        world.event(SendEvent::Tick);
        steps += 1;
    }
    assert!(steps <= 3_601, "{steps} steps in an hour");
    assert!(
        world.failed.is_empty(),
        "it has no nonce that could be lost"
    );
    world.reachable = true;
    world.run(3);
    world.mine_blocks(4);
    assert!(world.done.contains_key(&id));
}

/// An earlier process's transaction blocks the account, and the signer does not sign the filler.
#[test]
fn a_filler_that_is_not_signed_is_no_busy_waiting() {
    let mut world = World::new(settings());
    world.foreign(0, TxClass::Blob);
    world.stuck = true;
    let id = world.submit(TxClass::Calldata);
    while world.signed.is_empty() {
        world.run(1);
    }
    world.signs = false;
    world.run(5);
    assert!(world.said("blocks the account"), "{:?}", world.log);
    let back = world.now + Duration::from_secs(3_600);
    let mut steps = 0;
    while world.now < back {
        let next = world.machine.wakeup().expect("something is open");
        world.now = next.max(world.now + Duration::from_millis(1));
        world.event(SendEvent::Tick);
        steps += 1;
    }
    assert!(steps < 2 * 3_600, "{steps} steps in an hour");
    (world.signs, world.stuck) = (true, false);
    world.run(6);
    world.mine_blocks(6);
    world.mine_blocks(6);
    assert!(world.done.contains_key(&id), "{:?}", world.log);
}

/// The publication's response was lost, and then a pool reported `address already reserved`.
#[test]
fn a_request_whose_nonce_was_to_be_filled_counts_if_it_was_mined_after_all() {
    let mut world = World::new(settings());
    world.run(2);
    world.loses_answers = true;
    let id = world.submit(TxClass::Calldata);
    world.loses_answers = false;
    world.refuse = Some("address already reserved".into());
    world.run(4);
    assert!(world.said("blocks the account"), "{:?}", world.log);
    world.refuse = None;
    world.mine();
    world.mine_blocks(6);
    assert!(world.done.contains_key(&id));
    assert_eq!(world.chain_data(), [id], "once");
}

/// The machine gave up waiting for these transactions. They were mined before the first request.
#[test]
fn a_request_follows_a_predecessors_transactions_at_once() {
    let mut world = World::new(settings());
    world.foreign(0, TxClass::Calldata);
    world.foreign(1, TxClass::Calldata);
    world.stuck = true;
    world.run(30);
    assert!(world.machine.is_settled());
    world.stuck = false;
    world.mine();
    let id = world.submit(TxClass::Calldata);
    world.run(2);
    assert_eq!(world.pool_data(), [id]);
    assert_eq!(world.signed.len(), 1, "no nonce was tried in vain");
}

#[test]
fn nothing_is_begun_while_a_signer_is_away_and_everything_after_it() {
    let mut world = World::new(settings());
    world.run(2);
    world.signs = false;
    let ids = calldata(&mut world, 3);
    world.run(12);
    assert!(world.pool.is_empty() && world.failed.is_empty());
    world.signs = true;
    world.run(6);
    assert_eq!(world.pool_data(), ids);
    world.mine_blocks(4);
    assert_eq!(world.done.len(), 3);
}
