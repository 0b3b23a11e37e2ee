//! Stops in the middle of a channel, in every mode: by `admin_stopBatcher`, and by SIGTERM to the
//! batcher and to a node with a batcher. Afterwards every loaded block is safe on a replica, and
//! the next start posts each later block once.

use super::{
    inbox::{InboxReader, assert_each_block_once},
    load::LoadThread,
    process::{BATCHER, BatcherLinks, BatcherProcess, STOPPED, loaded_at_stop, read_log},
};
use crate::net::{Devnet, Node, ask, head, signal, wait};
use nix::sys::signal::Signal;
use serde_json::json;
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(180);
/// Size in bytes of each transaction that the load sends.
const LARGE: usize = 4_000;

/// Batcher options of each mode. Channels have no maximum duration, and frames are posted before
/// the channel is full, so that a stop interrupts an open channel.
const MODES: [(&str, &[&str]); 6] = [
    (
        "calldata-singular",
        &[
            "--data-availability-type=calldata",
            "--max-l1-tx-size-bytes=6000",
            "--target-num-frames=6",
            "--batch-type=0",
        ],
    ),
    (
        "calldata-span",
        &[
            "--data-availability-type=calldata",
            "--max-l1-tx-size-bytes=6000",
            "--target-num-frames=6",
            "--batch-type=1",
        ],
    ),
    (
        "blobs-singular",
        &[
            "--data-availability-type=blobs",
            "--target-num-frames=2",
            "--batch-type=0",
        ],
    ),
    (
        "blobs-span",
        &[
            "--data-availability-type=blobs",
            "--target-num-frames=2",
            "--batch-type=1",
        ],
    ),
    (
        "auto-singular",
        &["--data-availability-type=auto", "--batch-type=0"],
    ),
    (
        "auto-span",
        &["--data-availability-type=auto", "--batch-type=1"],
    ),
];

fn network() -> Devnet {
    Devnet::start(&["--l2.block-time=1", "--l1.block-time=1", "--replicas=1"])
}

/// Waits until a replica has derived this block.
fn is_safe_on_a_replica(net: &Devnet, block: u64) {
    let rpc = net.replicas()[0].rpc.clone().expect("an RPC");
    wait("a loaded block to be safe on a replica", PATIENCE, || {
        let status = ask(&rpc, "optimism_syncStatus", json!([]));
        (status["local_safe_l2"]["number"].as_u64()? >= block).then_some(())
    });
}

/// Waits until a channel is open that contains some blocks.
fn reach_the_middle_of_a_channel(batcher: &BatcherProcess) {
    wait("an open channel", PATIENCE, || {
        batcher.is_in_a_channel().then_some(())
    });
    std::thread::sleep(Duration::from_secs(3));
}

#[test]
fn a_stop_in_the_middle_of_a_channel_posts_every_loaded_block_in_every_mode() {
    let net = network();
    let links = BatcherLinks::of(&net);
    let load = LoadThread::start(&net, 1, LARGE, Duration::from_millis(500));
    let inbox = InboxReader::of(&net);
    let mut last = 0;
    for (name, mode) in MODES {
        let options = [mode, &["--wait-node-sync"]].concat();
        let started = Instant::now();
        let mut batcher = BatcherProcess::start(&links, name, &options);
        reach_the_middle_of_a_channel(&batcher);
        batcher.stop();
        let loaded = loaded_at_stop(&batcher.log());
        assert!(loaded > last, "{name}: {loaded}");
        is_safe_on_a_replica(&net, loaded);
        batcher.admin("admin_startBatcher").expect("a start");
        wait("blocks after the start", PATIENCE, || {
            let log = batcher.log();
            (log.matches("Created channel").count() > batcher.channels().len()).then_some(())
        });
        reach_the_middle_of_a_channel(&batcher);
        assert!(batcher.terminate().success(), "{name}: {}", batcher.log());
        assert_eq!(batcher.log().matches(STOPPED).count(), 2, "{name}");
        last = loaded_at_stop(&batcher.log());
        assert!(last > loaded, "{name}: {last}");
        is_safe_on_a_replica(&net, last);
        let transactions = inbox.transactions(0);
        let channels = inbox.channels(&transactions);
        assert_eq!(assert_each_block_once(&channels, 1), last, "{name}");
        assert!(channels.iter().all(|channel| channel.is_whole()), "{name}");
        println!("{name}: blocks up to {last} in {:?}", started.elapsed());
    }
    assert!(load.sent() > 0);
}

/// Options that restart the sequencer as a node with batcher and proposer.
fn node_options(net: &Devnet) -> Vec<String> {
    let key = net.accounts[BATCHER].key_hex();
    let options = [
        "--batcher.enabled",
        "--batcher.data-availability-type=blobs",
        "--batcher.target-num-frames=2",
        "--batcher.batch-type=1",
        "--batcher.poll-interval=250ms",
        "--batcher.num-confirmations=1",
        "--batcher.sub-safety-margin=4",
        "--batcher.txmgr.receipt-query-interval=250ms",
        "--batcher.wait-node-sync",
    ];
    let options = options.map(str::to_owned).into_iter();
    options
        .chain([format!("--batcher.private-key={key}")])
        .collect()
}

#[test]
fn a_node_that_is_terminated_posts_every_block_that_its_batcher_has_loaded() {
    let net = network();
    let sequencer: Node = net.sequencer();
    let inbox = InboxReader::of(&net);
    sequencer.kill9();
    let mut last = 0;
    for round in 0..2 {
        let log = net.dir.join(format!("node-{round}.log"));
        let mut node = sequencer.restart_with(&log, &node_options(&net));
        wait("blocks", PATIENCE, || {
            head(&sequencer.http).filter(|head| *head > last)
        });
        let load = LoadThread::start(&net, 1, LARGE, Duration::from_millis(500));
        wait("an open channel", PATIENCE, || {
            read_log(&log).contains("Created channel").then_some(())
        });
        std::thread::sleep(Duration::from_secs(4));
        drop(load);
        signal(node.child.id() as i32, Signal::SIGTERM);
        let status = node.child.wait().expect("an end");
        let log = read_log(&log);
        assert!(status.success() && log.contains(STOPPED), "{log}");
        let loaded = loaded_at_stop(&log);
        assert!(loaded > last, "{loaded}");
        last = loaded;
        is_safe_on_a_replica(&net, last);
    }
    let channels = inbox.channels(&inbox.transactions(0));
    assert_eq!(assert_each_block_once(&channels, 1), last);
}
