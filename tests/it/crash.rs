//! No block is lost: nodes killed with SIGKILL under load, late nodes, nodes cut off for a while.

use crate::net::{Account, Devnet, Node, Running, ask, call, head, signal, wait};
use alloy_primitives::{Address, Bytes, TxKind, U256};
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

/// Sends transfers at a steady rate until dropped. It ignores errors, since nodes are being killed.
struct Load {
    stop: Arc<AtomicBool>,
    sent: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

impl Load {
    fn start(url: String, account: Account, chain_id: u64, per_second: u64) -> Self {
        let (stop, sent) = (
            Arc::new(AtomicBool::new(false)),
            Arc::new(AtomicU64::new(0)),
        );
        let (stopped, counter) = (stop.clone(), sent.clone());
        let thread = std::thread::spawn(move || {
            let nonce_of = || {
                call(
                    &url,
                    "eth_getTransactionCount",
                    json!([account.address, "pending"]),
                )
                .ok()
                .map(|n| crate::net::number(&n))
            };
            let mut nonce = None;
            while !stopped.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_micros(1_000_000 / per_second));
                let Some(next) = nonce.or_else(nonce_of) else {
                    continue;
                };
                let to = TxKind::Call(Address::with_last_byte(next as u8));
                let raw = account.sign(chain_id, next, to, U256::from(1), Bytes::new(), 21_000);
                nonce = match call(&url, "eth_sendRawTransaction", json!([raw])) {
                    Ok(_) => {
                        counter.fetch_add(1, Ordering::Relaxed);
                        Some(next + 1)
                    }
                    Err(_) => None,
                };
            }
        });
        Self {
            stop,
            sent,
            thread: Some(thread),
        }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn hash_at(node: &Node, number: u64) -> Option<String> {
    let block = call(
        &node.http,
        "eth_getBlockByNumber",
        json!([format!("{number:#x}"), false]),
    )
    .ok()?;
    block["hash"].as_str().map(str::to_owned)
}

fn kills() -> usize {
    std::env::var("STARLING_KILLS")
        .ok()
        .and_then(|n| n.parse().ok())
        .unwrap_or(20)
}

#[test]
fn a_replica_killed_under_load_holds_the_same_chain() {
    let net = Devnet::start(&["--l2.block-time=1", "--l1.block-time=3", "--replicas=1"]);
    let (sequencer, replica) = (net.sequencer(), net.replicas().remove(0));
    let load = Load::start(
        sequencer.http.clone(),
        net.accounts[3].clone(),
        net.l2_chain_id,
        50,
    );
    wait("some blocks", Duration::from_secs(30), || {
        head(&replica.http).filter(|n| *n >= 3)
    });

    let log = net.dir.join("restarted-replica.log");
    let mut running: Option<Running> = None;
    for round in 0..kills() {
        let before = head(&replica.http).expect("the replica answers");
        let witness = hash_at(&replica, before).expect("its head");
        match &mut running {
            Some(process) => process.kill9(),
            None => replica.kill9(),
        }
        running = Some(replica.restart(&log));
        let reopened = wait("the replica after kill -9", Duration::from_secs(30), || {
            head(&replica.http)
        });
        // Blocks that were fetched after an earlier restart may have to be fetched again: allow for
        // three.
        assert!(
            reopened + 3 >= before,
            "round {round}: the head fell from {before} to {reopened}"
        );
        wait("what peers have", Duration::from_secs(60), || {
            head(&replica.http).filter(|n| *n >= before)
        });
        assert_eq!(
            hash_at(&replica, before).as_deref(),
            Some(witness.as_str()),
            "round {round}"
        );
    }
    let target = head(&sequencer.http).unwrap() + 2;
    wait("the replica to catch up", Duration::from_secs(30), || {
        head(&replica.http).filter(|n| *n >= target)
    });
    for number in 0..=target {
        assert_eq!(
            hash_at(&replica, number),
            hash_at(&sequencer, number),
            "block {number}"
        );
    }
    assert!(load.sent.load(Ordering::Relaxed) > 100, "there was load");
}

#[test]
fn a_killed_sequencer_never_signs_two_blocks_for_one_place() {
    let net = Devnet::start(&["--l2.block-time=1", "--l1.block-time=3", "--replicas=2"]);
    let (sequencer, replicas) = (net.sequencer(), net.replicas());
    let _load = Load::start(
        sequencer.http.clone(),
        net.accounts[4].clone(),
        net.l2_chain_id,
        50,
    );
    wait("some blocks", Duration::from_secs(30), || {
        head(&replicas[0].http).filter(|n| *n >= 3)
    });

    let log = net.dir.join("restarted-sequencer.log");
    let mut running: Option<Running> = None;
    let mut seen = SignedBlocks::default();
    for _ in 0..kills() {
        let from = head(&replicas[0].http).unwrap().saturating_sub(5).max(1);
        match &mut running {
            Some(process) => process.kill9(),
            None => sequencer.kill9(),
        }
        running = Some(sequencer.restart(&log));
        wait(
            "the sequencer after kill -9",
            Duration::from_secs(30),
            || head(&sequencer.http),
        );
        let grown = head(&replicas[0].http).unwrap() + 1;
        wait(
            "a block from the restarted sequencer",
            Duration::from_secs(30),
            || head(&replicas[0].http).filter(|n| *n >= grown),
        );
        replicas
            .iter()
            .for_each(|replica| seen.watch(replica, from));
    }
    let target = head(&sequencer.http).unwrap();
    for replica in &replicas {
        wait("the replicas", Duration::from_secs(30), || {
            head(&replica.http).filter(|n| *n >= target)
        });
        for number in 0..=target {
            assert_eq!(
                hash_at(replica, number),
                hash_at(&sequencer, number),
                "block {number}"
            );
        }
    }
}

/// Hashes of the blocks that replicas have shown, by height, parent and L1 origin.
#[derive(Default)]
struct SignedBlocks(HashMap<(u64, String, String), String>);

impl SignedBlocks {
    /// Checks that the node's blocks from height `from` on equal those seen earlier for the same
    /// height, parent and L1 origin.
    fn watch(&mut self, node: &Node, from: u64) {
        let top = head(&node.http).expect("replicas answer throughout");
        for number in from..=top {
            let block = ask(
                &node.http,
                "eth_getBlockByNumber",
                json!([format!("{number:#x}"), true]),
            );
            let text = |value: &Value| value.as_str().expect("text").to_owned();
            let attributes = text(&block["transactions"][0]["input"]);
            // The L1 origin's hash: bytes 100..132 of the attributes' calldata.
            let origin = attributes[2 + 200..2 + 264].to_owned();
            let key = (number, text(&block["parentHash"]), origin);
            let hash = text(&block["hash"]);
            let first = self.0.entry(key.clone()).or_insert_with(|| hash.clone());
            assert_eq!(*first, hash, "two blocks for {key:?}");
        }
    }
}

#[test]
fn a_late_replica_and_one_cut_off_catch_up() {
    let net = Devnet::start(&["--l2.block-time=1", "--l1.block-time=3", "--replicas=2"]);
    let (sequencer, mut replicas) = (net.sequencer(), net.replicas());
    let (cut_off, late) = (replicas.remove(0), replicas.remove(0));
    // A late node: killed near the beginning, and its data directory is reset to the genesis state.
    late.kill9();
    wait("some blocks", Duration::from_secs(30), || {
        head(&cut_off.http).filter(|n| *n >= 2)
    });
    // A node that is cut off: SIGSTOP for longer than the maximum age of gossiped blocks and than
    // the lifetime of gossipsub's seen cache.
    signal(cut_off.pid, Signal::SIGSTOP);
    let blocks = std::env::var("STARLING_LATE_BLOCKS")
        .ok()
        .and_then(|n| n.parse().ok())
        .unwrap_or(75);
    wait("time to pass", Duration::from_secs(blocks + 60), || {
        head(&sequencer.http).filter(|n| *n >= blocks)
    });
    signal(cut_off.pid, Signal::SIGCONT);
    let _late = late.restart(&net.dir.join("late.log"));
    let target = head(&sequencer.http).unwrap() + 2;
    for node in [&cut_off, &late] {
        wait(
            &format!("{} to catch up", node.name),
            Duration::from_secs(60),
            || head(&node.http).filter(|n| *n >= target),
        );
        for number in 0..=target {
            assert_eq!(
                hash_at(node, number),
                hash_at(&sequencer, number),
                "{} at block {number}",
                node.name
            );
        }
    }
}
