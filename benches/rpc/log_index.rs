//! `eth_getLogs` over a long chain with few matches: with the log index, and by scanning the
//! headers.
//!
//! The blocks are committed directly to the store, with receipts that no execution produced, so
//! that a million blocks take only a minute or two. For the scans, `db prune` drops the index
//! first.
//!
//! Sizes: `STARLING_BENCH_INDEXED_BLOCKS` (1000000), `STARLING_BENCH_LOGS` of a block (4),
//! `STARLING_BENCH_QUERIES` of each row of the table (300).

use crate::{
    Node, chain_maker,
    client::{Client, body},
    support::{Ground, Times, ms, print_times, size},
};
use alloy_primitives::{Address, B256, Bytes, Log, U256, address, keccak256};
use serde_json::{Value, json};
use starling::chain::{
    self,
    receipt::Receipt,
    rows::ExecutedBlock,
    store::{IndexWindow, Store},
};
use starling_proto::payload::Payload;
use std::{
    ffi::OsStr,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

/// Logs that match the queries, spread evenly over the chain.
const MATCHES: usize = 100;
const WANTED: Address = address!("1099e70000000000000000000000000000000002");
const WANTED_TOPIC: B256 = B256::repeat_byte(0xd0);
/// The first topic of every log.
const TRANSFER: B256 = B256::repeat_byte(0xdd);
/// Number of addresses of the other logs, and number of accounts in log topics.
const CONTRACTS: u64 = 1000;
const ACCOUNTS: u64 = 1_000_000;
const GROUP: usize = 500;
const PATIENCE: Duration = Duration::from_secs(120);
const CACHE: u64 = 128 << 20;
/// Number of measured queries that scan the headers.
const BY_HEADERS: usize = 3;
/// Bars: milliseconds of a query with the index, and the factor by which a header scan takes
/// longer.
const BAR: f64 = 20.0;
const RATIO_BAR: f64 = 100.0;

/// A chain whose logs are indexed, in a data directory.
pub struct Indexed {
    datadir: PathBuf,
    blocks: usize,
    logs: usize,
    /// Bytes of the keyspace that contains the index.
    bytes: u64,
}

/// Bytes of the history keyspace, which contains the index.
fn index_bytes(store: &Store) -> u64 {
    let all = store.disk_use();
    let history = all.iter().find(|(name, _)| *name == "history");
    history.map_or(0, |(_, bytes)| *bytes)
}

/// A pseudo-random number below `below`.
fn pick(turn: u64, below: u64) -> u64 {
    turn.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23) % below
}

/// Logs such as a token emits: the contract's address, and two accounts as topics.
fn logs(number: usize, each: usize, blocks: usize) -> Vec<Log> {
    let word = |number: u64| keccak256(number.to_be_bytes());
    let mut logs: Vec<_> = (number * each..(number + 1) * each)
        .map(|turn| {
            let turn = turn as u64;
            let contract = Address::from_word(word(pick(turn, CONTRACTS)));
            let accounts = [turn * 3, turn * 3 + 1].map(|turn| word(pick(turn, ACCOUNTS)));
            let topics = vec![TRANSFER, accounts[0], accounts[1]];
            Log::new_unchecked(contract, topics, Bytes::from(word(turn).to_vec()))
        })
        .collect();
    if number.is_multiple_of((blocks / MATCHES).max(1)) {
        let topics = vec![TRANSFER, WANTED_TOPIC];
        logs.push(Log::new_unchecked(WANTED, topics, Bytes::new()));
    }
    logs
}

/// Makes the chain in `folder`.
pub fn prepare(folder: &Path) -> Indexed {
    let blocks = size("STARLING_BENCH_INDEXED_BLOCKS", 1_000_000);
    let each = size("STARLING_BENCH_LOGS", 4);
    let datadir = folder.join("indexed");
    let genesis = Ground::new(chain_maker::GENESIS_TIME, 16).genesis;
    chain::init(&datadir, &genesis).expect("the data directory is made");
    let store = Store::open(&datadir, CACHE, None).expect("the store opens");
    store.keep_logs(IndexWindow::All);
    let (mut parent, begun) = (genesis.payload(), Instant::now());
    let mut count = 0;
    for first in (1..=blocks).step_by(GROUP) {
        let mut group = Vec::with_capacity(GROUP);
        for number in first..=blocks.min(first + GROUP - 1) {
            let logs = logs(number, each, blocks);
            count += logs.len();
            let block = block(&parent, logs);
            parent = (*block.payload).clone();
            group.push(block);
        }
        store.commit(&group, None, None).expect("a commit");
    }
    println!(
        "log index: {blocks} blocks with {count} logs, {MATCHES} of them wanted, written in {:.0} s",
        begun.elapsed().as_secs_f64()
    );
    store.prune().expect("the tables are compacted");
    let bytes = index_bytes(&store);
    Indexed {
        datadir,
        blocks,
        logs: count,
        bytes,
    }
}

/// A block of one transaction with these logs. The block changes no state.
fn block(parent: &Payload, logs: Vec<Log>) -> Arc<ExecutedBlock> {
    let mut header = parent.header.clone();
    header.parent_hash = parent.hash;
    header.number += 1;
    header.timestamp += 1;
    header.logs_bloom = logs.iter().collect();
    let transaction = U256::from(header.number).to_be_bytes_vec().into();
    let receipt = Receipt {
        tx_type: 2,
        success: true,
        cumulative_gas_used: 21_000,
        logs,
        deposit_nonce: None,
        deposit_version: None,
        post_state: None,
    };
    Arc::new(ExecutedBlock::new(
        Arc::new(Payload::sealed(header, vec![transaction])),
        vec![Address::ZERO],
        Arc::new(vec![receipt]),
        Arc::default(),
    ))
}

/// Measures the queries with and without the index.
pub fn run(chain: &Indexed) {
    let options = [
        "--rpc.max-blocks-per-filter=0",
        "--rpc.evmtimeout=0",
        "--gcmode=archive",
    ];
    let queries = size("STARLING_BENCH_QUERIES", 300);
    let filters = [
        ("by address", json!({ "address": WANTED })),
        (
            "by address and a topic of every log",
            json!({ "address": WANTED, "topics": [TRANSFER] }),
        ),
        ("by second topic", json!({ "topics": [null, WANTED_TOPIC] })),
    ];
    let node = Node::start(&chain.datadir, &options);
    let mut worst: f64 = 0.0;
    for (name, filter) in &filters {
        let times = measure(node.http, filter, chain.blocks, queries);
        print_times(&format!("logs {name}"), &times);
        worst = worst.max(ms(times.percentile(99)));
    }
    drop(node);
    let prune = ["db", "prune", "--history.logs.disable", "--gcmode=archive"];
    chain_maker::run_tool(&chain.datadir, &prune.map(OsStr::new));
    let node = Node::start(&chain.datadir, &options);
    let times = measure(node.http, &filters[0].1, chain.blocks, BY_HEADERS);
    print_times("logs by address, by the headers", &times);
    drop(node);
    let store = Store::open(&chain.datadir, CACHE, None).expect("the store opens");
    let bytes = chain.bytes.saturating_sub(index_bytes(&store));
    println!(
        "  p99 by the index {worst:.2} ms (bar {BAR}), {:.0} times faster than by the headers (bar {RATIO_BAR}); {:.1} bytes a log on disk",
        ms(times.percentile(50)) / worst,
        bytes as f64 / chain.logs as f64
    );
}

/// Times of queries over the whole chain. A first query is not counted.
fn measure(server: SocketAddr, filter: &Value, blocks: usize, queries: usize) -> Times {
    let mut client = Client::connect(server, PATIENCE).expect("a connection");
    let mut filter = filter.clone();
    filter["fromBlock"] = "0x1".into();
    filter["toBlock"] = format!("{blocks:#x}").into();
    let query = body("eth_getLogs", &json!([filter]));
    let mut times = Times::default();
    for turn in 0..=queries {
        let begun = Instant::now();
        let answer = client.post(&query).expect("an answer");
        if turn > 0 {
            times.push(begun.elapsed());
        }
        let found = answer.windows(10).filter(|part| part == b"\"logIndex\"");
        assert_eq!(found.count(), MATCHES.min(blocks));
    }
    times
}
