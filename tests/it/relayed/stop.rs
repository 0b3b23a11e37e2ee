//! Stops: over RPC with a caller that closes the connection, by one signal, and by two signals.

use super::*;
use crate::{
    batcher::{FreshReplica, safe},
    net::call,
};
use nix::sys::signal::Signal;
use serde_json::json;
use std::{io::Write, net::TcpStream, time::Duration};

/// Options without a maximum channel duration, so that a channel is open when the stop begins.
const OPEN: [&str; 2] = ["--data-availability-type=blobs", "--target-num-frames=2"];

#[test]
fn a_stop_goes_on_when_its_caller_hangs_up() {
    let world = RelayedNetwork::start();
    let mut batcher = BatcherProcess::spawn(&world.setting(), "batcher", &OPEN);
    batcher.is_up();
    batcher.says("Created channel");
    let loaded = world.newest() - 1;
    std::thread::sleep(Duration::from_secs(1));
    let full = RelayFault::Error(-32000, "txpool is full");
    world.l1.always("eth_sendRawTransaction", full);
    let body = json!({ "jsonrpc": "2.0", "id": 1, "method": "admin_stopBatcher", "params": [] });
    let body = body.to_string();
    let mut caller = TcpStream::connect(batcher.rpc.trim_start_matches("http://")).expect("a call");
    let length = body.len();
    let head = "POST / HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n";
    write!(caller, "{head}content-length: {length}\r\n\r\n{body}").expect("a request");
    caller.flush().expect("a request");
    batcher.says("Stopping Batch Submitter");
    drop(caller);
    // The stop is still in progress, since L1 accepts no transactions yet.
    let said = |method: &str| batcher.admin(method).expect_err("a refusal")["message"].clone();
    assert_eq!(said("admin_stopBatcher"), "batcher is not running");
    assert_eq!(said("admin_flushBatcher"), "batcher is not running");
    assert_eq!(said("admin_startBatcher"), "batcher is already running");
    assert_eq!(batcher.count("Batch Submitter stopped"), 0);
    world.l1.clear();
    batcher.says("Batch Submitter stopped");
    becomes_safe(&world.net, loaded);
    batcher.admin("admin_startBatcher").expect("a start");
    batcher.stop();
    let log = batcher.log();
    assert_eq!(log.matches("Batch Submitter stopped").count(), 2, "{log}");
}

#[test]
fn a_signal_in_the_middle_of_a_channel_posts_what_is_loaded() {
    let world = RelayedNetwork::start();
    let mut batcher = BatcherProcess::spawn(&world.setting(), "batcher", &OPEN);
    batcher.is_up();
    batcher.says("Created channel");
    let loaded = world.newest() - 1;
    std::thread::sleep(Duration::from_secs(1));
    batcher.signal(Signal::SIGTERM);
    assert!(batcher.ends(PATIENCE).success());
    batcher.says("Batch Submitter stopped");
    becomes_safe(&world.net, loaded);
    let next = world.batcher(&[]);
    world.all_becomes_safe();
    next.stop();
    FreshReplica::derives(&world.net, safe(&world.net));
}

#[test]
fn a_second_signal_ends_the_waiting_and_names_the_blocks_that_are_left() {
    let world = RelayedNetwork::start();
    let mut batcher = BatcherProcess::spawn(&world.setting(), "batcher", &OPEN);
    batcher.is_up();
    batcher.says("Created channel");
    world.l1.always("", RelayFault::Silence);
    batcher.signal(Signal::SIGTERM);
    batcher.says("Stopping Batch Submitter");
    std::thread::sleep(Duration::from_secs(1));
    batcher.signal(Signal::SIGTERM);
    batcher.ends(Duration::from_secs(10));
    let log = batcher.log();
    let sentence = "Batch Submitter ended before these L2 blocks were confirmed on L1";
    let line = log.lines().find(|line| line.contains(sentence));
    let line = line.unwrap_or_else(|| panic!("{log}"));
    let field = crate::posting::process::field;
    assert!(field(line, "first") >= 1 && field(line, "last") >= field(line, "first"));
}

#[test]
fn the_level_of_the_log_changes_while_the_batcher_runs() {
    let world = RelayedNetwork::start();
    let batcher = world.batcher(&[]);
    world.all_becomes_safe();
    assert_eq!(batcher.count("Added L2 block to local state"), 0);
    let level = call(&batcher.rpc, "admin_setLogLevel", json!(["debug"]));
    assert_eq!(level, Ok(json!(null)));
    batcher.says("Added L2 block to local state");
    let unknown = call(&batcher.rpc, "admin_setLogLevel", json!(["loud"]));
    let said = unknown.expect_err("a refusal")["message"].to_string();
    assert!(said.contains("there is no log level"), "{said}");
}
