//! A rollup node that is behind or down, and an execution client on another branch.

use super::*;
use crate::{
    batcher::{FreshReplica, LARGE, safe},
    net::{ask, wait},
    posting::load::load,
};
use serde_json::{Value, json};
use std::{sync::Mutex, time::Duration};

const STATUS: &str = "optimism_syncStatus";
const RANGE: &str = "Error calculating L2 block range";

#[test]
fn a_rollup_node_that_is_behind_or_gone_is_one_warning_and_waited_for() {
    let world = RelayedNetwork::start();
    let batcher = world.batcher(&["--network-timeout=1s"]);
    world.all_becomes_safe();
    world.rollup.always(STATUS, RelayFault::Silence);
    std::thread::sleep(Duration::from_secs(6));
    assert_eq!(batcher.count(RANGE), 1, "{}", batcher.log());
    let log = batcher.log();
    let line = log.lines().find(|line| line.contains(RANGE));
    let line = line.expect("the warning");
    assert!(
        line.contains("failed to get sync status: ") && line.contains("context deadline exceeded"),
        "{line}"
    );
    world.rollup.clear();
    world.all_becomes_safe();
    world.rollup.always("", RelayFault::Status(502));
    std::thread::sleep(Duration::from_secs(4));
    world.rollup.clear();
    world.all_becomes_safe();
    // A sync status without heads, as a rollup node returns it during a reset.
    let empty = |status: &mut Value| {
        status["head_l1"]["hash"] = json!(alloy_primitives::B256::ZERO);
    };
    world.rollup.order(STATUS, RelayFault::Change(empty), 8);
    batcher.says("Received empty sync status, backing off");
    world.all_becomes_safe();
    has_each_warning_once(&batcher.log());
}

/// An earlier sync status, from which the relay returns the safe heads again.
static EARLIER: Mutex<Option<Value>> = Mutex::new(None);

/// Replaces the safe heads in a sync status by the earlier ones.
fn safe_head_of_before(status: &mut Value) {
    let earlier = EARLIER.lock().expect("no panic");
    let Some(earlier) = &*earlier else {
        return;
    };
    for head in ["safe_l2", "local_safe_l2"] {
        status[head] = earlier[head].clone();
    }
}

#[test]
fn a_safe_head_that_goes_back_is_followed() {
    let world = RelayedNetwork::start();
    let batcher = world.batcher(&[]);
    world.all_becomes_safe();
    let status = ask(&world.rollup.url, STATUS, json!([]));
    *EARLIER.lock().expect("no panic") = Some(status);
    std::thread::sleep(Duration::from_secs(4));
    world.all_becomes_safe();
    let change = RelayFault::Change(safe_head_of_before);
    world.rollup.order(STATUS, change, 3);
    batcher.says("next safe block is below oldest block in state");
    world.all_becomes_safe();
    has_each_warning_once(&batcher.log());
    batcher.stop();
    FreshReplica::derives(&world.net, safe(&world.net));
}

/// Turns a block into a sibling: the gas used in its header differs, and the hash matches the
/// header.
fn other_branch(block: &mut Value) {
    let Ok(header) = serde_json::from_value::<alloy_rpc_types_eth::Header>(block.clone()) else {
        return;
    };
    let mut inner = header.inner;
    inner.gas_used += 1;
    let sealed = alloy_rpc_types_eth::Header::new(inner);
    let Ok(Value::Object(fields)) = serde_json::to_value(&sealed) else {
        return;
    };
    for (name, value) in fields {
        block[&name] = value;
    }
}

#[test]
fn an_l2_reorg_under_an_open_channel_drops_it_and_the_chain_is_posted() {
    let world = RelayedNetwork::start();
    // Keep a channel open for several L1 blocks.
    let batcher = world.batcher(&["--max-channel-duration=4"]);
    for _ in 0..3 {
        std::thread::sleep(Duration::from_secs(2));
        world
            .l2
            .order("eth_getBlockByNumber", RelayFault::Change(other_branch), 1);
        wait("the block of another branch", PATIENCE, || {
            world.l2.is_done().then_some(())
        });
        world.all_becomes_safe();
    }
    batcher.says("Found L2 reorg");
    batcher.stop();
    FreshReplica::derives(&world.net, safe(&world.net));
}

#[test]
fn a_builder_without_the_method_of_throttling_ends_the_batcher() {
    let world = RelayedNetwork::start();
    let unknown = RelayFault::Error(-32601, "the method does not exist/is not available");
    world.l2.always("miner_setMaxDASize", unknown);
    let throttled = ["--throttle.unsafe-da-bytes-lower-threshold=1000"];
    let mut batcher = BatcherProcess::spawn(&world.setting(), "batcher", &throttled);
    let status = batcher.ends(PATIENCE);
    assert!(!status.success());
    let sentence = "either enable it or disable throttling";
    assert!(batcher.count(sentence) >= 1, "{}", batcher.log());
}

/// Limit on requests for blocks in four seconds: eight per poll, four polls a second, doubled.
const MAX_REQUESTS: usize = 256;

/// Blocks are added while L2 returns errors for them; no block may be left out.
#[test]
fn an_execution_client_that_fails_is_asked_again() {
    let world = RelayedNetwork::start();
    let batcher = world.batcher(&[]);
    world.all_becomes_safe();
    load(&world.net, 1, 10, LARGE);
    let none = RelayFault::Change(|block| *block = Value::Null);
    for fault in [RelayFault::Error(-32000, "busy"), none] {
        world.l2.always("eth_getBlockByNumber", fault);
        std::thread::sleep(Duration::from_secs(4));
        let requests = world.l2.requests();
        world.l2.clear();
        assert!((1..=MAX_REQUESTS).contains(&requests), "{requests}");
        world.all_becomes_safe();
    }
    batcher.says("error loading blocks, retrying on next tick");
    has_each_warning_once(&batcher.log());
}
