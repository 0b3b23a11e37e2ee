//! The batcher as a process, on a local network: the blocks of the sequencer become safe in every
//! mode, over stops, starts and kills, and a node that reads L1 alone derives the same blocks.

use crate::net::{
    Devnet, Running, ask, call, free_port, head, number, same_blocks, starling, wait,
};
use alloy_primitives::{Address, Bytes, TxKind, U256, keccak256};
use serde_json::{Value, json};
use std::{
    path::PathBuf,
    process::Stdio,
    time::{Duration, Instant},
};

const PATIENCE: Duration = Duration::from_secs(60);
/// The account that the network's SystemConfig names as the sender of batches.
const BATCHER: usize = 9;
/// Bytes of calldata of a large transaction.
const LARGE: usize = 20_000;

/// Options that make a test short.
const FAST: [&str; 7] = [
    "--poll-interval=250ms",
    "--num-confirmations=1",
    "--sub-safety-margin=4",
    "--max-pending-tx=4",
    "--txmgr.receipt-query-interval=250ms",
    "--throttle.unsafe-da-bytes-lower-threshold=0",
    "--rpc.enable-admin",
];

pub fn network() -> Devnet {
    Devnet::start(&["--l2.block-time=1", "--l1.block-time=1", "--replicas=0"])
}

/// Address of the rollup node's RPC of the sequencer.
pub fn rollup_rpc(net: &Devnet) -> String {
    let command = net.sequencer().command;
    let port = command
        .iter()
        .find_map(|word| word.strip_prefix("--rpc.port="));
    format!("http://127.0.0.1:{}", port.expect("a port"))
}

/// Number and hash of the newest safe block.
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

/// Senders of large transactions that nobody can compress.
pub fn load(net: &Devnet, nonce: u64, count: u64) {
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

/// A batcher, and its RPC.
pub struct BatcherProcess {
    process: Running,
    rpc: String,
    log: PathBuf,
}

impl BatcherProcess {
    pub fn start(net: &Devnet, name: &str, options: &[&str]) -> Self {
        let port = free_port();
        let log = net.dir.join(format!("{name}.log"));
        let out = std::fs::File::create(&log).expect("a log file");
        let child = starling()
            .arg("batcher")
            .arg(format!("--l1-eth-rpc={}", net.l1().http))
            .arg(format!("--l2-eth-rpc={}", net.sequencer().http))
            .arg(format!("--rollup-rpc={}", rollup_rpc(net)))
            .arg(format!("--private-key={}", net.accounts[BATCHER].key_hex()))
            .arg("--rpc.addr=127.0.0.1")
            .arg(format!("--rpc.port={port}"))
            .args(FAST)
            .args(options)
            .stdin(Stdio::null())
            .stdout(out.try_clone().expect("a log file"))
            .stderr(out)
            .spawn();
        let batcher = Self {
            process: Running {
                child: child.expect("the batcher starts"),
            },
            rpc: format!("http://127.0.0.1:{port}"),
            log,
        };
        wait("the batcher's RPC", PATIENCE, || {
            batcher.admin("admin_getThrottleController").ok()
        });
        batcher
    }

    fn log(&self) -> String {
        std::fs::read_to_string(&self.log).expect("a log")
    }

    fn admin(&self, method: &str) -> Result<Value, Value> {
        call(&self.rpc, method, json!([]))
    }

    pub fn stop(&self) {
        self.admin("admin_stopBatcher").expect("a stop");
        let log = self.log();
        assert!(log.contains("Batch Submitter stopped"), "{log}");
    }

    /// First and last blocks of the channels that were closed, in order.
    fn channels(&self) -> Vec<(u64, u64)> {
        let log = self.log();
        let closed = log.lines().filter(|line| line.contains("Channel closed"));
        let field = |line: &str, name: &str| {
            let (_, rest) = line.split_once(&format!("{name}=")).expect("a field");
            let digits = rest.trim_start_matches(|c: char| !c.is_ascii_digit());
            let end = digits.find(|c: char| !c.is_ascii_digit());
            digits[..end.unwrap_or(digits.len())]
                .parse()
                .expect("a number")
        };
        closed
            .map(|line| (field(line, "oldest_l2"), field(line, "latest_l2")))
            .collect()
    }
}

impl Drop for BatcherProcess {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- batcher\n{}", self.log());
        }
    }
}

/// A node that has no peers and derives its chain from L1 alone.
pub struct FreshReplica {
    pub http: String,
    /// The RPC of its rollup node.
    pub rpc: String,
    _process: Running,
}

impl FreshReplica {
    /// Runs the node until it has derived this block, and compares its blocks with the sequencer's.
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

/// Types of the batcher's transactions in the newest blocks of L1, with the number of their blobs.
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
    FreshReplica::derives(&net, safe(&net));
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
    FreshReplica::derives(&net, later);
}
