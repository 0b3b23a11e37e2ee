//! Wrong keys, and accounts without ether.

use super::*;
use crate::{
    batcher::{FreshReplica, safe},
    net::{Account, ask, number, wait},
    posting::process::read_log,
};
use alloy_primitives::{TxKind, U256, keccak256};
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use starling::devnet::genesis::{L1_CHAIN_ID, SYSTEM_CONFIG};
use std::{
    path::Path,
    time::{Duration, Instant},
};

/// Index of the account that owns SystemConfig.
const OWNER: usize = 0;
/// Time for which one of two batchers runs alone, a few L1 blocks.
const TURN: Duration = Duration::from_secs(4);
/// Longest wait until a batcher notices the other process, many times the alternations that it
/// needs.
const TURNS_PATIENCE: Duration = Duration::from_secs(180);

/// Has the owner of SystemConfig name this account as batcher.
fn name_batcher(world: &RelayedNetwork, batcher: &Account) {
    let (l1, owner) = (world.net.l1().http, &world.net.accounts[OWNER]);
    let params = json!([owner.address, "pending"]);
    let nonce = number(&ask(&l1, "eth_getTransactionCount", params));
    let setter = &keccak256("setBatcherHash(bytes32)")[..4];
    let input = [setter, &batcher.address.into_word()[..]].concat();
    let to = TxKind::Call(SYSTEM_CONFIG);
    let raw = owner.sign(L1_CHAIN_ID, nonce, to, U256::ZERO, input.into(), 200_000);
    ask(&l1, "eth_sendRawTransaction", json!([raw]));
}

#[test]
fn a_key_that_is_not_the_batchers_posts_nothing_until_system_config_names_it() {
    let world = RelayedNetwork::start();
    let not_batcher = "is not the batcher of SystemConfig: L2 ignores its batches";
    let empty = "has no ether on L1, so nothing can be posted";
    let mut setting = world.setting();
    setting.key = world.net.accounts[2].key_hex();
    let funded = BatcherProcess::spawn(&setting, "funded", &["--max-channel-duration=1"]);
    funded.says(not_batcher);
    setting.key = "0x".to_owned() + &"42".repeat(32);
    let unfunded = BatcherProcess::spawn(&setting, "unfunded", &[]);
    unfunded.says(not_batcher);
    unfunded.says(empty);
    let right = world.batcher(&[]);
    world.all_becomes_safe();
    world.all_becomes_safe();
    assert_eq!((funded.count(not_batcher), funded.count(empty)), (1, 0));
    assert_eq!((unfunded.count(not_batcher), unfunded.count(empty)), (1, 1));
    assert_eq!((right.count(not_batcher), right.count(empty)), (0, 0));
    has_each_warning_once(&unfunded.log());
    let params = json!([world.net.accounts[2].address, "pending"]);
    let sent = ask(&world.net.l1().http, "eth_getTransactionCount", params);
    assert_eq!(number(&sent), 0, "transactions of the foreign key");
    name_batcher(&world, &world.net.accounts[2]);
    right.says(not_batcher);
    funded.says("posting resumes");
    world.all_becomes_safe();
    right.stop();
}

/// L1 first refuses storage proofs, which the check does not need, and then calls, which is logged
/// once.
#[test]
fn a_key_is_checked_by_a_plain_call_or_the_log_says_that_it_is_not() {
    let world = RelayedNetwork::start();
    let not_batcher = "is not the batcher of SystemConfig: L2 ignores its batches";
    let unread = "L1 does not say the batcher of SystemConfig";
    let no_proof = RelayFault::Error(-32601, "the method eth_getProof does not exist");
    world.l1.always("eth_getProof", no_proof);
    let mut setting = world.setting();
    setting.key = world.net.accounts[2].key_hex();
    let wrong = BatcherProcess::spawn(&setting, "wrong", &[]);
    wrong.says(not_batcher);
    drop(wrong);
    let refused = RelayFault::Error(-32000, "execution reverted");
    world.l1.always("eth_call", refused);
    let unchecked = BatcherProcess::spawn(&setting, "unchecked", &[]);
    unchecked.says(unread);
    // Wait for some more polls.
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(
        (unchecked.count(unread), unchecked.count(not_batcher)),
        (1, 0)
    );
    world.l1.clear();
    unchecked.says(not_batcher);
    has_each_warning_once(&unchecked.log());
}

#[test]
fn a_key_that_is_not_the_proposers_and_an_empty_account_are_a_sentence_each_at_start() {
    let world = RelayedNetwork::start();
    let not_proposer = "is not the proposer of this contract, which is";
    let empty = "has no ether on L1, so nothing can be proposed";
    let count = |log: &Path, text: &str| read_log(log).matches(text).count();
    let says = |log: &Path, text: &str| {
        wait(&format!("the log to say {text:?}"), PATIENCE, || {
            (count(log, text) > 0).then_some(())
        });
    };
    let account = &world.net.accounts[2];
    let (_other, other) = world.proposer("other", &account.key_hex(), &[]);
    says(&other, not_proposer);
    let nothing = |balance: &mut Value| *balance = json!("0x0");
    world
        .l1
        .always("eth_getBalance", RelayFault::Change(nothing));
    let key = world.net.accounts[PROPOSER].key_hex();
    let (_poor, poor) = world.proposer("poor", &key, &[]);
    says(&poor, empty);
    // Wait for some more polls.
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!((count(&other, not_proposer), count(&other, empty)), (1, 0));
    assert_eq!((count(&poor, not_proposer), count(&poor, empty)), (0, 1));
    let params = json!([account.address, "pending"]);
    let sent = ask(&world.net.l1().http, "eth_getTransactionCount", params);
    assert_eq!(number(&sent), 0);
}

#[test]
fn one_of_two_batchers_with_the_same_key_says_so_and_stops() {
    let world = RelayedNetwork::start();
    let options = ["--max-channel-duration=1"];
    let start = |name: &str| BatcherProcess::spawn(&world.setting(), name, &options);
    let mut batchers = [start("first"), start("second")];
    for batcher in &mut batchers {
        batcher.is_up();
    }
    // The batchers run alternately, so that each finds nonces of the other after its own
    // transactions.
    let (mut running, mut since) = (0, Instant::now());
    batchers[1].signal(Signal::SIGSTOP);
    let (ended, status) = wait("one to stop", TURNS_PATIENCE, || {
        if since.elapsed() > TURN {
            batchers[running].signal(Signal::SIGSTOP);
            (running, since) = (1 - running, Instant::now());
            batchers[running].signal(Signal::SIGCONT);
        }
        let status = batchers[running].process.child.try_wait();
        Some((running, status.expect("a child")?))
    });
    assert!(!status.success());
    let sentence = "another process has the same key; stop one of them, then start this one again";
    let log = batchers[ended].log();
    assert!(log.contains(sentence), "{log}");
    assert!(
        !log.contains("has ended by itself"),
        "the cause comes first: {log}"
    );
    // Whether or not the second batcher has stopped too, a single batcher must continue.
    drop(batchers);
    let alone = world.batcher(&[]);
    world.all_becomes_safe();
    alone.stop();
    FreshReplica::derives(&world.net, safe(&world.net));
}
