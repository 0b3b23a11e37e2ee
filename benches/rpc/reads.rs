//! Reads of blocks: full blocks, their receipts, one receipt, and logs by topic over many blocks,
//! each asked by many connections at once.
//!
//! The chain is made here and imported by the server that is measured, so that an older version has
//! a store in its own format. Each request is for another block: one of the whole chain, most of
//! which is not in the cache of decoded blocks, or one of the newest.
//!
//! Sizes: `STARLING_BENCH_BLOCKS` (1000), `STARLING_BENCH_TRANSACTIONS` of a block (250),
//! `STARLING_BENCH_SECONDS` of each row (5).

use crate::support::{Alloc, Ground, size};
use alloy_primitives::{Address, B256, Bytes, U256, address, keccak256};
use rayon::prelude::*;
use serde_json::{Value, json};
use starling::{
    chain::{self, Chain, Options},
    transfer::block_file::BlockWriter,
};
use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpStream},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

const CONNECTIONS: usize = 32;
/// Number of newest blocks that are cached in decoded form.
const RECENT: u64 = 20;
/// Blocks of one request for logs.
const RANGE: u64 = 1000;
/// Logs a word of its calldata as a topic, with 32 bytes of data.
const LOGGER: Address = address!("1099e70000000000000000000000000000000001");
/// PUSH0 CALLDATALOAD, PUSH1 32, PUSH0, LOG1, STOP
const LOGGER_CODE: &str = "0x5f3560205fa100";
/// The topic of the first log of each block. All other logs have one of their own.
const COMMON: B256 = B256::repeat_byte(0xc0);
const ABSENT: B256 = B256::repeat_byte(0xee);

/// A chain in a data directory of the server that is measured.
pub struct Prepared {
    pub datadir: PathBuf,
    blocks: u64,
    /// A transaction of each block, from block 1 on.
    transactions: Vec<B256>,
}

/// Makes a chain in `folder` and imports it with the program that `server` gives.
pub fn prepare(folder: &Path, server: impl Fn() -> Command) -> Prepared {
    let (blocks, each) = (
        size("STARLING_BENCH_BLOCKS", 1000),
        size("STARLING_BENCH_TRANSACTIONS", 250),
    );
    let mut ground = Ground::with(1_700_000_000, each, |alloc: &mut Alloc, _| {
        alloc.insert(
            LOGGER.to_string(),
            json!({ "balance": "0x0", "nonce": "0x1", "code": LOGGER_CODE }),
        );
    });
    let (genesis, file, datadir) = (
        folder.join("genesis.json"),
        folder.join("blocks"),
        folder.join("measured"),
    );
    std::fs::write(&genesis, ground.file.to_string()).expect("the genesis is written");
    let made = folder.join("made");
    chain::init(&made, &ground.genesis).expect("the data directory is made");
    let options = Options {
        datadir: made,
        cache: 64 << 20,
        commit_interval: Duration::from_secs(1),
    };
    let (chain, threads) = Chain::open(&options).expect("the chain opens");
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let mut writer = BlockWriter::create(&file, false).expect("a file");
    let mut transactions = Vec::new();
    for number in 0..blocks {
        let raw = fill(&mut ground, number);
        transactions.push(keccak256(&raw[number % raw.len()]));
        let block = runtime.block_on(ground.seal(&chain, raw));
        writer.write(&block).expect("the block is written");
    }
    writer.finish().expect("the file is written");
    drop(chain);
    threads.stop().expect("the chain is stored");
    for (command, path) in [("init", &genesis), ("import", &file)] {
        let mut process = server();
        process
            .arg(command)
            .arg("--datadir")
            .arg(&datadir)
            .arg(path)
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        assert!(
            process.status().expect("the program runs").success(),
            "{command}"
        );
    }
    Prepared {
        datadir,
        blocks: blocks as u64,
        transactions,
    }
}

/// One call of the logger by every sender.
fn fill(ground: &mut Ground, number: usize) -> Vec<Bytes> {
    let (chain_id, each) = (ground.rollup.l2_chain_id, ground.senders.len());
    let calls = ground
        .senders
        .iter_mut()
        .enumerate()
        .map(|(index, sender)| {
            let topic = if index == 0 {
                COMMON
            } else {
                keccak256((number * each + index).to_be_bytes())
            };
            sender.call(chain_id, LOGGER, U256::ZERO, 40_000, topic.0.into())
        });
    let unsigned: Vec<_> = calls.collect();
    unsigned.into_par_iter().map(|call| call.sign()).collect()
}

/// Measures the server at this address, which serves the prepared chain.
pub fn run(server: SocketAddr, chain: &Prepared) {
    let blocks = chain.blocks;
    println!("reads by {CONNECTIONS} connections, of a chain of {blocks} blocks");
    for (kept, oldest) in [
        ("", 1),
        (", recent", blocks.saturating_sub(RECENT - 1).max(1)),
    ] {
        let number = |turn: u64| oldest + turn * 7919 % (blocks + 1 - oldest);
        let hex = |turn| format!("{:#x}", number(turn));
        let hash = |turn| chain.transactions[number(turn) as usize - 1];
        row(&format!("full block{kept}"), server, &|turn| {
            ("eth_getBlockByNumber", json!([hex(turn), true]))
        });
        row(&format!("receipts of a block{kept}"), server, &|turn| {
            ("eth_getBlockReceipts", json!([hex(turn)]))
        });
        row(&format!("one receipt{kept}"), server, &|turn| {
            ("eth_getTransactionReceipt", json!([hash(turn)]))
        });
    }
    let last = blocks.min(RANGE);
    let filter = |topic: B256| json!([{ "fromBlock": "0x1", "toBlock": format!("{last:#x}"), "topics": [topic] }]);
    row("logs by topic, one in each block", server, &|_| {
        ("eth_getLogs", filter(COMMON))
    });
    row("logs by topic, none", server, &|_| {
        ("eth_getLogs", filter(ABSENT))
    });
}

/// The rate at which one kind of request is answered.
fn row(name: &str, server: SocketAddr, request: &(dyn Fn(u64) -> (&'static str, Value) + Sync)) {
    let length = Duration::from_secs(size("STARLING_BENCH_SECONDS", 5) as u64);
    let (turn, answered) = (AtomicU64::new(0), AtomicU64::new(0));
    let begun = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..CONNECTIONS {
            scope.spawn(|| {
                let mut connection =
                    BufReader::new(TcpStream::connect(server).expect("a connection"));
                while begun.elapsed() < length {
                    let (method, params) = request(turn.fetch_add(1, Ordering::Relaxed));
                    let answer = ask(&mut connection, method, params);
                    let start = &answer[..answer.len().min(60)];
                    assert!(
                        start.windows(9).any(|part| part == b"\"result\":"),
                        "{method}: {}",
                        start.escape_ascii()
                    );
                    answered.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    let rate = answered.into_inner() as f64 / begun.elapsed().as_secs_f64();
    println!("  {name:<36} {rate:>10.1} a second");
}

/// The body of a response, unparsed, so that the load costs little.
pub fn ask(connection: &mut BufReader<TcpStream>, method: &str, params: Value) -> Vec<u8> {
    let body = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params }).to_string();
    let head = format!(
        "POST / HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {}",
        body.len()
    );
    connection
        .get_mut()
        .write_all(format!("{head}\r\n\r\n{body}").as_bytes())
        .expect("it is sent");
    let mut length = 0;
    loop {
        let mut line = String::new();
        assert!(
            connection.read_line(&mut line).expect("an answer") > 0,
            "{method}: the connection was closed"
        );
        let line = line.trim().to_ascii_lowercase();
        if line.is_empty() {
            break;
        }
        length = line
            .strip_prefix("content-length: ")
            .and_then(|text| text.parse().ok())
            .unwrap_or(length);
    }
    let mut body = vec![0; length];
    connection.read_exact(&mut body).expect("an answer");
    body
}
