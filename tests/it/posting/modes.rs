//! One chain is posted in every mode of the batcher, on our L1 and on anvil. A node without a swarm
//! derives the same blocks from L1 alone, and the channels contain each block once.
//!
//! `STARLING_POSTING_BLOCKS` is the number of L2 blocks (150; 2000 is the full size).
//! `STARLING_POSTING_MODES=all` runs every mode instead of a selection. If
//! `STARLING_POSTING_FRAMES` names a folder, the data of each mode are written there for the
//! independent decoder in `crosscheck`.

use super::{
    chain::MadeChain,
    inbox::{InboxReader, PostedChannel, PostedTx, assert_each_block_once},
    process::{BATCHER, BatcherLinks, BatcherProcess},
    relay::{DEAR, RpcRelay},
};
use crate::{
    campaign::size,
    derive::verifier::Verifier,
    derive_actions::{beacon::StandInBeacon, world::account},
    l1_blobs::L1,
    net::{RunningGroup, call, client, head, wait},
};
use serde_json::json;
use starling_testkit::free_port;
use std::{
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

/// Longest time until the chain is posted in one mode.
const PATIENCE: Duration = Duration::from_secs(900);

/// A set of batcher options with which the chain is posted.
struct PostingMode {
    name: &'static str,
    options: &'static str,
    /// Whether a short run includes this mode, on our L1 and on anvil.
    is_short: [bool; 2],
}

const fn mode(name: &'static str, options: &'static str, is_short: [bool; 2]) -> PostingMode {
    PostingMode {
        name,
        options,
        is_short,
    }
}

const MODES: [PostingMode; 10] = [
    mode(
        "calldata-singular-shadow-zlib",
        "--data-availability-type=calldata --batch-type=0 --compressor=shadow --compression-algo=zlib",
        [false, true],
    ),
    mode(
        "calldata-span-ratio-brotli-9",
        "--data-availability-type=calldata --batch-type=1 --compressor=ratio --compression-algo=brotli-9 \
         --max-l1-tx-size-bytes=40000 --target-num-frames=3",
        [false, false],
    ),
    mode(
        "calldata-singular-ratio-brotli-10",
        "--data-availability-type=calldata --batch-type=0 --compressor=ratio --compression-algo=brotli-10",
        [true, false],
    ),
    mode(
        "calldata-span-none-zlib",
        "--data-availability-type=calldata --batch-type=1 --compressor=none --max-blocks-per-span-batch=20",
        [false, false],
    ),
    mode(
        "blobs-singular-none-zlib",
        "--data-availability-type=blobs --batch-type=0 --compressor=none --target-num-frames=2",
        [false, false],
    ),
    mode(
        "blobs-singular-shadow-brotli-9",
        "--data-availability-type=blobs --batch-type=0 --compression-algo=brotli-9 --target-num-frames=6",
        [false, false],
    ),
    mode(
        "blobs-span-shadow-brotli-10",
        "--data-availability-type=blobs --batch-type=1 --compression-algo=brotli-10 --target-num-frames=3",
        [true, true],
    ),
    mode(
        "blobs-span-ratio-brotli-11",
        "--data-availability-type=blobs --batch-type=1 --compressor=ratio --compression-algo=brotli-11",
        [false, false],
    ),
    mode(
        "auto-span-shadow-zlib",
        "--data-availability-type=auto --batch-type=1 --max-pending-tx=1",
        [true, false],
    ),
    mode(
        "auto-singular-ratio-brotli-9",
        "--data-availability-type=auto --batch-type=0 --compressor=ratio --compression-algo=brotli-9 \
         --max-pending-tx=1",
        [false, false],
    ),
];

/// An L1 that continues after the chain's last L1 block, with a block every second.
struct PostingL1 {
    url: String,
    beacon: String,
    /// Our L1, or the upstream L1 of anvil.
    _core: L1,
    _anvil: Option<RunningGroup>,
    _folder: tempfile::TempDir,
}

impl PostingL1 {
    fn core(chain: &MadeChain) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        chain.copy_l1(folder.path());
        let core = L1::of_datadir(folder.path(), &["--dev.period=1"]);
        Self {
            url: core.url.clone(),
            beacon: core.beacon.clone(),
            _core: core,
            _anvil: None,
            _folder: folder,
        }
    }

    /// anvil on a fork of the chain's L1, whose process makes no further blocks.
    fn anvil(chain: &MadeChain, program: &Path) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        chain.copy_l1(folder.path());
        let core = L1::of_datadir(folder.path(), &[]);
        let port = free_port();
        let mut command = Command::new(program);
        // anvil's default is one thread per core. On a small machine, calls that wait for the
        // upstream could then block each other for ever.
        command
            .arg(format!("--fork-url={}", core.url))
            .arg(format!("--port={port}"))
            .args(["--block-time=1", "--hardfork=cancun", "--silent"])
            .args(["--no-storage-caching", "--no-rate-limit", "--threads=16"]);
        let anvil = RunningGroup::spawn(&mut command);
        let url = format!("http://127.0.0.1:{port}");
        wait("anvil", Duration::from_secs(60), || {
            call(&url, "eth_chainId", json!([])).ok()
        });
        Self {
            beacon: StandInBeacon::by_time(&url, &url).url,
            url,
            _core: core,
            _anvil: Some(anvil),
            _folder: folder,
        }
    }
}

impl PostingL1 {
    fn inbox(&self, chain: &MadeChain) -> InboxReader {
        InboxReader {
            rpc: self.url.clone(),
            beacon: self.beacon.clone(),
            rollup: chain.rollup.clone(),
            batcher: account(BATCHER).address,
        }
    }
}

/// Waits until the block with number `last` is safe.
fn is_all_safe(node: &mut Verifier, last: u64) {
    wait(&format!("block {last} to be safe"), PATIENCE, || {
        (node.safe()? >= last).then_some(())
    });
}

/// Sets blob base fees such that the batcher posts to calldata, to blobs, and to calldata again.
/// `from` is the first L1 block with posted data.
fn flip_twice(relay: &RpcRelay, inbox: &InboxReader, from: u64) {
    let posts = |kind: u64| {
        wait(&format!("a transaction of type {kind}"), PATIENCE, || {
            let posted = inbox.transactions(from);
            posted.iter().any(|tx| tx.kind == kind).then_some(())
        });
    };
    posts(2);
    relay.show_blob_fee(0);
    posts(3);
    relay.show_blob_fee(DEAR);
}

fn has_kinds(name: &str, posted: &[PostedTx]) {
    let mut kinds: Vec<u64> = posted.iter().map(|tx| tx.kind).collect();
    kinds.dedup();
    match name.split('-').next().expect("a word") {
        "calldata" => assert_eq!(kinds, [2], "{name}"),
        "blobs" => assert_eq!(kinds, [3], "{name}"),
        _ => assert!(kinds.starts_with(&[2, 3, 2]), "{name}: {kinds:?}"),
    }
}

/// Checks that the channels contain the chain's user transactions.
fn holds_the_chain(chain: &MadeChain, channels: &[PostedChannel]) {
    let last = assert_each_block_once(channels, 1);
    assert_eq!(last as usize + 1, chain.blocks.len());
    let posted = channels.iter().flat_map(|channel| &channel.content);
    for (posted, made) in posted.zip(chain.user_parts()) {
        assert!(posted.transactions.iter().eq(made.iter().cloned()));
    }
}

/// Writes a mode's data items, and the blocks in them, to files with one line each.
fn keep_frames(name: &str, inbox: &InboxReader, posted: &[PostedTx], channels: &[PostedChannel]) {
    let Some(folder) = std::env::var_os("STARLING_POSTING_FRAMES") else {
        return;
    };
    let context = inbox.context();
    let mut text = format!(
        "chain {} {} {}\n",
        context.genesis_time, context.block_time, context.chain_id
    );
    for item in posted.iter().flat_map(|tx| &tx.items) {
        text += &format!("item {item}\n");
    }
    for block in channels.iter().flat_map(|channel| &channel.content) {
        let transactions: Vec<_> = block
            .transactions
            .iter()
            .map(|raw| raw.to_string())
            .collect();
        let transactions = transactions.join(" ");
        text += &format!(
            "block {} {} {transactions}\n",
            block.epoch_number, block.timestamp
        );
    }
    std::fs::write(Path::new(&folder).join(format!("{name}.txt")), text).expect("a file");
}

fn post(chain: &MadeChain, l1: &PostingL1, mode: &PostingMode, label: &str) {
    let started = Instant::now();
    let last = chain.blocks.len() as u64 - 1;
    let options = [format!("--l1.beacon={}", l1.beacon)];
    let mut holder = chain.holder(&l1.url, &options);
    let mut fresh = Verifier::start(chain.folder(), &l1.url, &options);
    wait("the chain's node", PATIENCE, || {
        let head = holder.status()?["unsafe_l2"]["number"].as_u64()?;
        (head == last).then_some(())
    });
    let inbox = l1.inbox(chain);
    // Earlier L1 blocks have no batches, and anvil would request each of them from its upstream.
    let from = head(&l1.url).expect("a head");
    let relay = RpcRelay::start(&l1.url);
    relay.show_blob_fee(if mode.name.starts_with("auto") {
        DEAR
    } else {
        0
    });
    let links = BatcherLinks {
        l1: relay.url.clone(),
        l2: holder.http.clone(),
        rollup: holder.rpc.clone(),
        key: account(BATCHER).key_hex(),
        dir: holder.folder.path().into(),
    };
    let mut options: Vec<&str> = mode.options.split_whitespace().collect();
    options.push("--max-channel-duration=5");
    let batcher = BatcherProcess::start(&links, "batcher", &options);
    if mode.name.starts_with("auto") {
        flip_twice(&relay, &inbox, from);
    }
    is_all_safe(&mut holder, last);
    let posting = started.elapsed();
    batcher.stop();
    is_all_safe(&mut fresh, last);
    for block in &chain.blocks[1..] {
        assert_eq!(fresh.hash_at(block.number()), json!(block.hash));
    }
    let posted = inbox.transactions(from);
    let channels = inbox.channels(&posted);
    has_kinds(mode.name, &posted);
    holds_the_chain(chain, &channels);
    keep_frames(
        &format!("{label}-{}", mode.name),
        &inbox,
        &posted,
        &channels,
    );
    let bytes: usize = channels.iter().map(|channel| channel.bytes).sum();
    println!(
        "{label} {}: {} transactions, {} channels, {bytes} bytes; safe after {posting:.1?}, derived after {:.1?}",
        mode.name,
        posted.len(),
        channels.len(),
        started.elapsed()
    );
}

fn post_in_modes(label: &str, at: usize, l1: impl Fn(&MadeChain) -> PostingL1) {
    let chain = MadeChain::new(size("STARLING_POSTING_BLOCKS", 150) as u64);
    let is_all = std::env::var("STARLING_POSTING_MODES").is_ok_and(|modes| modes == "all");
    for mode in MODES.iter().filter(|mode| is_all || mode.is_short[at]) {
        let l1 = l1(&chain);
        post(&chain, &l1, mode, label);
    }
}

#[test]
fn one_chain_is_derived_from_our_l1_in_every_mode() {
    post_in_modes("core", 0, PostingL1::core);
}

#[test]
fn one_chain_is_derived_from_anvil_in_every_mode() {
    let Some(anvil) = client("anvil") else { return };
    post_in_modes("anvil", 1, |chain| PostingL1::anvil(chain, &anvil));
}
