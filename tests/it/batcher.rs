//! The batcher as a process, on a local network. In every mode, across stops, starts and kills, the
//! sequencer's blocks become safe, and a node that reads only L1 derives the same blocks.

use crate::{
    net::{Devnet, Running, ask, head, number, same_blocks, starling, wait},
    posting::{
        load::load,
        process::{BATCHER, BatcherLinks, BatcherProcess, loaded_at_stop},
    },
};
use serde_json::json;
use starling_testkit::free_port;
use std::{
    process::Stdio,
    time::{Duration, Instant},
};

pub const PATIENCE: Duration = Duration::from_secs(60);
/// Bytes of calldata of a large transaction.
pub const LARGE: usize = 20_000;

pub fn network() -> Devnet {
    Devnet::start(&["--l2.block-time=1", "--l1.block-time=1", "--replicas=0"])
}

/// URL of the RPC of the sequencer's rollup node.
pub fn rollup_rpc(net: &Devnet) -> String {
    net.sequencer().rpc.expect("an RPC")
}

/// Number of the safe head on the sequencer.
pub fn safe(net: &Devnet) -> u64 {
    let status = ask(&rollup_rpc(net), "optimism_syncStatus", json!([]));
    status["local_safe_l2"]["number"]
        .as_u64()
        .expect("a safe head")
}

pub fn becomes_safe(net: &Devnet, block: u64) {
    wait("a block to become safe", PATIENCE, || {
        (safe(net) >= block).then_some(())
    });
}

/// A new node without peers that derives its chain from L1 alone.
pub struct FreshReplica {
    pub http: String,
    /// URL of the rollup node's RPC.
    pub rpc: String,
    _process: Running,
}

impl FreshReplica {
    /// Runs a new node until it has derived block `last`, and compares its blocks with the
    /// sequencer's.
    pub fn derives(net: &Devnet, last: u64) -> Self {
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
        let replica = Self {
            http: format!("http://127.0.0.1:{http}"),
            rpc: format!("http://127.0.0.1:{rpc}"),
            _process: Running {
                child: child.expect("a replica"),
            },
        };
        wait("the replica to derive", PATIENCE, || {
            head(&replica.http).filter(|head| *head >= last)
        });
        same_blocks(&replica.http, &sequencer.http, last);
        replica
    }
}

/// Type and number of blobs of each of the batcher's transactions in the newest L1 blocks.
pub fn posted(net: &Devnet) -> Vec<(u64, usize)> {
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
    let links = BatcherLinks::of(&net);
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
        load(&net, 1, 30, LARGE);
        let last = head(&net.sequencer().http).expect("a head");
        let batcher = BatcherProcess::start(&links, &format!("batcher-{round}"), mode);
        becomes_safe(&net, last);
        batcher.stop();
        let posted = posted(&net).split_off(posted_before);
        posted_before += posted.len();
        match round {
            0 => assert!(posted.iter().all(|(ty, _)| *ty == 2), "{posted:?}"),
            1 => assert!(posted.contains(&(3, 3)), "{posted:?}"),
            // Only the batcher uses blobs on this L1, so blobs are cheaper than calldata.
            _ => assert!(posted.iter().all(|(ty, _)| *ty == 3), "{posted:?}"),
        }
    }
    eprintln!("three modes: {:?}", started.elapsed());
    FreshReplica::derives(&net, safe(&net));
}

#[test]
fn a_stop_posts_everything_a_start_goes_on_and_a_kill_loses_nothing() {
    let net = network();
    let links = BatcherLinks::of(&net);
    // Without a maximum channel duration a channel is still open when the batcher is stopped.
    let options = [
        "--data-availability-type=blobs",
        "--batch-type=1",
        "--target-num-frames=2",
    ];
    let batcher = BatcherProcess::start(&links, "batcher", &options);
    load(&net, 1, 10, LARGE);
    let running = json!("batcher is already running");
    let refused = batcher.admin("admin_startBatcher").expect_err("it runs");
    assert_eq!(refused["message"], running);
    wait("a channel", PATIENCE, || {
        batcher.is_in_a_channel().then_some(())
    });
    batcher.stop();
    let loaded = loaded_at_stop(&batcher.log());
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
    load(&net, 1, 10, LARGE);
    let later = head(&net.sequencer().http).expect("a head");
    let again = BatcherProcess::start(
        &links,
        "batcher-again",
        &["--wait-node-sync", "--max-channel-duration=2"],
    );
    becomes_safe(&net, later);
    drop(again);
    FreshReplica::derives(&net, later);
}
