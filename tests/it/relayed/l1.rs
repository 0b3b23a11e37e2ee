//! Faulty responses of L1.

use super::*;
use crate::batcher::{FreshReplica, LARGE, safe};
use crate::net::{number, wait};
use crate::posting::load::load;
use serde_json::{Value, json};
use std::time::Duration;

const SEND: &str = "eth_sendRawTransaction";

/// Responses to sent transactions, and the number of times that each is returned.
const ANSWERS: [(RelayFault, usize); 7] = [
    (RelayFault::Error(-32000, "txpool is full"), 3),
    (
        RelayFault::Error(-32000, "nonce too low: next nonce 9000, tx nonce 1"),
        2,
    ),
    (
        RelayFault::Error(-32000, "replacement transaction underpriced"),
        1,
    ),
    (RelayFault::Error(-32000, "already known"), 1),
    (RelayFault::Error(-32000, "address already reserved"), 3),
    (RelayFault::Status(429), 2),
    (RelayFault::Vanish, 2),
];

fn times_ten(fee: &mut Value) {
    *fee = json!(format!("{:#x}", 10 * number(fee)));
}

#[test]
fn each_answer_of_l1_is_survived_and_every_block_becomes_safe() {
    let world = RelayedNetwork::start();
    let batcher = world.batcher(&[]);
    world.all_becomes_safe();
    let mut read = 0;
    for (fault, times) in ANSWERS {
        world.l1.order(SEND, fault, times);
        wait("the order to be carried out", PATIENCE, || {
            world.l1.is_done().then_some(())
        });
        world.all_becomes_safe();
        let log = batcher.log();
        has_each_warning_once(&log[read..]);
        read = log.len();
    }
    // Fees rise tenfold, once before a transaction is sent and once before its replacement is sent.
    world.l1.order(SEND, RelayFault::Vanish, 1);
    let change = |block: &mut Value| times_ten(&mut block["baseFeePerGas"]);
    world
        .l1
        .order("eth_getBlockByNumber", RelayFault::Change(change), 20);
    world
        .l1
        .order("eth_blobBaseFee", RelayFault::Change(times_ten), 20);
    wait("the orders to be carried out", PATIENCE, || {
        world.l1.is_done().then_some(())
    });
    world.all_becomes_safe();
    has_each_warning_once(&batcher.log()[read..]);
    batcher.stop();
    FreshReplica::derives(&world.net, safe(&world.net));
}

#[test]
fn an_l1_that_is_away_for_a_while_loses_nothing_and_is_one_warning_of_each_part() {
    let world = RelayedNetwork::start();
    let batcher = world.batcher(&["--resubmission-timeout=3s"]);
    world.all_becomes_safe();
    for fault in [RelayFault::Silence, RelayFault::Status(503)] {
        world.l1.always("", fault);
        std::thread::sleep(Duration::from_secs(8));
        world.l1.clear();
        world.all_becomes_safe();
    }
    has_each_warning_once(&batcher.log());
    batcher.says("Failed to query L1 tip");
    batcher.says("the cause of a warning is over");
}

#[test]
fn two_endpoints_of_l1_that_disagree_cost_nothing() {
    let world = RelayedNetwork::start();
    let batcher = world.batcher(&["--num-confirmations=3"]);
    world.all_becomes_safe();
    world.l1.alternate(RelayFault::Behind(2));
    for _ in 0..3 {
        load(&world.net, 1, 10, LARGE);
        world.all_becomes_safe();
    }
    world.l1.clear();
    world.all_becomes_safe();
    has_each_warning_once(&batcher.log());
    batcher.stop();
    FreshReplica::derives(&world.net, safe(&world.net));
}

/// Adds a header field, as a future fork of L1 might. The fields that the batcher knows then have
/// another hash than the block.
fn newer_header(block: &mut Value) {
    if block.is_object() {
        block["slotNumber"] = json!("0x7");
        block["extraData"] = json!("0x07");
    }
}

#[test]
fn headers_of_a_newer_l1_do_not_stop_a_batcher_which_verifies_none() {
    let world = RelayedNetwork::start();
    let change = RelayFault::Change(newer_header);
    world.l1.always("eth_getBlockByNumber", change);
    let batcher = world.batcher(&["--wait-node-sync"]);
    world.all_becomes_safe();
    has_each_warning_once(&batcher.log());
    assert_eq!(batcher.count("Failed to query L1 tip"), 0);
    assert_eq!(batcher.count("not the batcher of SystemConfig"), 0);
    batcher.stop();
}

/// The first endpoint refuses a transaction, and the second one is down. The refusal is the result.
#[test]
fn a_refusal_counts_although_another_endpoint_is_away() {
    let world = RelayedNetwork::start();
    let mut setting = world.setting();
    setting.l1 = format!(
        "{},http://127.0.0.1:{}",
        setting.l1,
        starling_testkit::free_port()
    );
    // One transaction at a time without rebroadcasts, so that all three refusals are for one
    // transaction.
    let options = [
        "--max-channel-duration=1",
        "--max-pending-tx=1",
        "--txmgr.rebroadcast-interval=10m",
        "--txmgr.retry-interval=200ms",
        "--network-timeout=2s",
    ];
    let batcher = BatcherProcess::start(&setting, "batcher", &options);
    world.all_becomes_safe();
    // After three such refusals the batcher assumes that a transaction of the other class occupies
    // the nonce, and replaces that transaction by a filler.
    let reserved = RelayFault::Error(-32000, "address already reserved");
    world.l1.order(SEND, reserved, 3);
    batcher.says("an empty transaction uses up a nonce");
    world.all_becomes_safe();
    has_each_warning_once(&batcher.log());
    batcher.stop();
    FreshReplica::derives(&world.net, safe(&world.net));
}

/// A block with 25 transactions of 20 kB of random data, which one L1 transaction cannot carry.
#[test]
fn a_block_that_l1_cannot_hold_in_one_transaction_goes_out_in_several() {
    let world = RelayedNetwork::start();
    for mode in [
        [
            "--max-l1-tx-size-bytes=40000",
            "--data-availability-type=calldata",
        ],
        ["--target-num-frames=1", "--data-availability-type=blobs"],
    ] {
        load(&world.net, 1, 20, LARGE);
        let batcher = world.batcher(&mode);
        world.all_becomes_safe();
        batcher.stop();
        let log = batcher.log();
        let closed = log.lines().filter(|line| line.contains("Channel closed"));
        let field = crate::posting::process::field;
        let is_large = |line: &str| field(line, "blocks") == 1 && field(line, "num_frames") > 1;
        assert!(closed.into_iter().any(is_large), "{log}");
    }
    FreshReplica::derives(&world.net, safe(&world.net));
}
