//! The batcher as a process, on a local network: the blocks of the sequencer become safe in every
//! mode, over stops, starts and kills, and a node that reads L1 alone derives the same blocks.

pub(crate) mod process;

use crate::net::{Devnet, Running, ask, free_port, head, number, starling, wait};
use alloy_primitives::{Address, Bytes, TxKind, U256, keccak256};
use process::BatcherProcess;
use serde_json::json;
use std::{
    process::Stdio,
    time::{Duration, Instant},
};

pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
/// The account that the network's SystemConfig names as the sender of batches.
pub(crate) const BATCHER: usize = 9;
/// Bytes of calldata of a large transaction.
const LARGE: usize = 20_000;

pub(crate) fn network() -> Devnet {
    Devnet::start(&["--l2.block-time=1", "--l1.block-time=1", "--replicas=0"])
}

/// Address of the rollup node's RPC of the sequencer.
pub(crate) fn rollup_rpc(net: &Devnet) -> String {
    let command = net.sequencer().command;
    let port = command
        .iter()
        .find_map(|word| word.strip_prefix("--rpc.port="));
    format!("http://127.0.0.1:{}", port.expect("a port"))
}

/// Number and hash of the newest safe block.
pub(crate) fn safe(net: &Devnet) -> u64 {
    let status = ask(&rollup_rpc(net), "optimism_syncStatus", json!([]));
    status["local_safe_l2"]["number"]
        .as_u64()
        .expect("a safe head")
}

pub(crate) fn becomes_safe(net: &Devnet, block: u64) {
    wait("a block to become safe", PATIENCE, || {
        (safe(net) >= block).then_some(())
    });
}

/// Senders of large transactions that nobody can compress.
pub(crate) fn load(net: &Devnet, nonce: u64, count: u64) {
    let sequencer = net.sequencer().http;
    for nonce in nonce..nonce + count {
        let words = 0..(LARGE / 32) as u64;
        let input: Vec<u8> = words
            .flat_map(|word| keccak256([nonce.to_be_bytes(), word.to_be_bytes()].concat()).0)
            .collect();
        let raw = net.accounts[1].sign(
            net.l2_chain_id,
            nonce,
            TxKind::Call(Address::repeat_byte(0x42)),
            U256::ONE,
            Bytes::from(input),
            1_200_000,
        );
        ask(&sequencer, "eth_sendRawTransaction", json!([raw]));
    }
    let account = net.accounts[1].address;
    wait("the load in blocks", PATIENCE, || {
        let mined = ask(
            &sequencer,
            "eth_getTransactionCount",
            json!([account, "latest"]),
        );
        (number(&mined) == nonce + count).then_some(())
    });
}

/// Runs a node that has no peers until it has derived this block, and compares its blocks with the
/// sequencer's.
pub(crate) fn derives_the_same(net: &Devnet, last: u64) {
    let sequencer = net.sequencer();
    let datadir = format!("--datadir={}", net.dir.join("fresh").display());
    let genesis = net.dir.join("l2-genesis.json");
    let init = starling().args(["init", &datadir]).arg(genesis).output();
    assert!(init.expect("init starts").status.success());
    let [http, rpc] = [free_port(), free_port()];
    let is_kept = |word: &&String| {
        ["--rollup.config", "--l1", "--rollup.l1-chain-config"]
            .iter()
            .any(|kept| word.starts_with(kept))
    };
    let child = starling()
        .args(["node", &datadir, "--p2p.disable"])
        .args(sequencer.command.iter().filter(is_kept))
        .args(["--http", "--http.addr=127.0.0.1", "--rpc.addr=127.0.0.1"])
        .arg(format!("--http.port={http}"))
        .arg(format!("--rpc.port={rpc}"))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let _replica = Running {
        child: child.expect("a replica"),
    };
    let url = format!("http://127.0.0.1:{http}");
    wait("the replica to derive", PATIENCE, || {
        head(&url).filter(|head| *head >= last)
    });
    for block in 1..=last {
        let block = json!([format!("{block:#x}"), false]);
        let derived = ask(&url, "eth_getBlockByNumber", block.clone());
        let made = ask(&sequencer.http, "eth_getBlockByNumber", block);
        assert_eq!(derived["hash"], made["hash"]);
    }
}

/// Types of the batcher's transactions in the newest blocks of L1, with the number of their blobs.
fn posted(net: &Devnet) -> Vec<(u64, usize)> {
    let l1 = net.l1().http;
    let batcher = json!(net.accounts[BATCHER].address);
    let blocks = 1..=head(&l1).expect("a head");
    let blocks = blocks.map(|block| {
        let params = json!([format!("{block:#x}"), true]);
        ask(&l1, "eth_getBlockByNumber", params)
    });
    let mut found = Vec::new();
    for block in blocks {
        let transactions = block["transactions"].as_array().expect("a list").iter();
        let ours = transactions.filter(|tx| tx["from"] == batcher);
        found.extend(ours.map(|tx| {
            let blobs = tx["blobVersionedHashes"].as_array();
            (number(&tx["type"]), blobs.map_or(0, Vec::len))
        }));
    }
    found
}

#[test]
fn every_mode_posts_what_a_node_derives_from_l1_alone() {
    let net = network();
    let started = Instant::now();
    let modes: [&[&str]; 3] = [
        &[
            "--data-availability-type=calldata",
            "--max-channel-duration=2",
        ],
        &[
            "--data-availability-type=blobs",
            "--batch-type=1",
            "--compression-algo=brotli-10",
            "--target-num-frames=3",
            "--max-channel-duration=2",
        ],
        &[
            "--data-availability-type=auto",
            "--target-num-frames=2",
            "--compressor=none",
            "--max-channel-duration=2",
        ],
    ];
    let mut posted_before = 0;
    for (round, mode) in (0..).zip(modes) {
        load(&net, 30 * round, 30);
        let last = head(&net.sequencer().http).expect("a head");
        let batcher = BatcherProcess::start(&net, &format!("batcher-{round}"), mode);
        becomes_safe(&net, last);
        batcher.stop();
        let posted = posted(&net).split_off(posted_before);
        posted_before += posted.len();
        match round {
            0 => assert!(posted.iter().all(|(ty, _)| *ty == 2), "{posted:?}"),
            1 => assert!(posted.contains(&(3, 3)), "{posted:?}"),
            // Nobody uses blobs on this L1, so they are cheaper.
            _ => assert!(posted.iter().all(|(ty, _)| *ty == 3), "{posted:?}"),
        }
    }
    eprintln!("three modes: {:?}", started.elapsed());
    derives_the_same(&net, safe(&net));
}

#[test]
fn a_stop_posts_everything_a_start_goes_on_and_a_kill_loses_nothing() {
    let net = network();
    // A channel has no longest duration, so one is open whenever the stop comes.
    let options = [
        "--data-availability-type=blobs",
        "--batch-type=1",
        "--target-num-frames=2",
    ];
    let batcher = BatcherProcess::start(&net, "batcher", &options);
    load(&net, 0, 10);
    let running = json!("batcher is already running");
    let refused = batcher.admin("admin_startBatcher").expect_err("it runs");
    assert_eq!(refused["message"], running);
    let loaded = head(&net.sequencer().http).expect("a head") - 2;
    batcher.stop();
    let refused = batcher
        .admin("admin_stopBatcher")
        .expect_err("it does not run");
    assert_eq!(refused["message"], "batcher is not running");
    let refused = batcher
        .admin("admin_flushBatcher")
        .expect_err("it does not run");
    assert_eq!(refused["message"], "batcher is not running");
    becomes_safe(&net, loaded);
    batcher.admin("admin_startBatcher").expect("a start");
    let later = head(&net.sequencer().http).expect("a head");
    wait("more channels", PATIENCE, || {
        batcher.admin("admin_flushBatcher").expect("a flush");
        (safe(&net) >= later).then_some(())
    });
    let channels = batcher.channels();
    assert!(channels.len() >= 2, "{channels:?}");
    for pair in channels.windows(2) {
        assert_eq!(
            pair[0].1 + 1,
            pair[1].0,
            "no gap, nothing twice: {channels:?}"
        );
    }
    let mut batcher = batcher;
    batcher.process.kill9();
    load(&net, 10, 10);
    let later = head(&net.sequencer().http).expect("a head");
    let again = BatcherProcess::start(
        &net,
        "batcher-again",
        &["--wait-node-sync", "--max-channel-duration=2"],
    );
    becomes_safe(&net, later);
    drop(again);
    derives_the_same(&net, later);
}
