//! Full blocks are imported one after the other through the Engine API, while a client sends cheap
//! reads. Chunks of one chain alternate: some are imported with no other load, the others while
//! traces of full blocks and wide log queries run. The log queries request the token's logs of the
//! whole chain.
//!
//! Sizes: `STARLING_BENCH_ACCOUNTS` (100000), `STARLING_BENCH_MGAS` of a block (30),
//! `STARLING_BENCH_FULL_BLOCKS` before the first chunk (20), `STARLING_BENCH_ROUNDS` of two chunks
//! (4), `STARLING_BENCH_CHUNK` blocks of each chunk (20), `STARLING_BENCH_TRACES` (4) and
//! `STARLING_BENCH_QUERIES` (4) at once.

use crate::{
    Node,
    chain_maker::{self, ChainMaker, GENESIS_TIME},
    client::{Client, body},
    feeder::{Feeder, ImportCalls},
    load::{self, Load},
    support::{EndOnDrop, Ground, Times, ms, print_times, size, token::TOKEN, verdict},
    traces::read,
};
use serde_json::{Value, json};
use starling_proto::payload::Payload;
use std::{
    net::SocketAddr,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

const SENDERS: usize = 1000;
/// Pause between two cheap reads.
const PACE: Duration = Duration::from_millis(5);
/// Timeout of each read of a trace or of a log query.
const PATIENCE: Duration = Duration::from_secs(120);
/// Time between the start of traces and queries and the first import.
const START: Duration = Duration::from_millis(300);
/// Bars: p99 of a cheap read, and the time of an import under load as a multiple of its time
/// without.
const READ_BAR: Duration = Duration::from_millis(10);
const IMPORT_BAR: f64 = 1.2;

/// A chain of full blocks, and its genesis.
pub struct ImportedChain {
    genesis: Value,
    blocks: Vec<Arc<Payload>>,
    /// Number of blocks that are imported before the first chunk.
    before: usize,
    chunk: usize,
}

impl ImportedChain {
    /// Makes the chain in `folder`.
    pub fn make(folder: &Path) -> Self {
        let accounts = size("STARLING_BENCH_ACCOUNTS", 100_000);
        let gas = size("STARLING_BENCH_MGAS", 30) as u64 * 1_000_000;
        let before = size("STARLING_BENCH_FULL_BLOCKS", 20);
        let chunk = size("STARLING_BENCH_CHUNK", 20);
        let count = before + 2 * chunk * size("STARLING_BENCH_ROUNDS", 4);
        let receivers = accounts.saturating_sub(SENDERS).max(100);
        let mut ground = Ground::with(GENESIS_TIME, SENDERS, |alloc, senders| {
            load::genesis(alloc, senders, receivers);
        });
        let genesis = std::mem::take(&mut ground.file);
        let mut maker = ChainMaker::new(ground, &folder.join("imported-made"));
        let mut load = Load::new(receivers);
        let mut block = |rounds: usize| {
            let transactions = load.rounds(&mut maker.ground, rounds);
            maker.block(transactions)
        };
        // The gas of a first block shows how many rounds fill a block.
        let probe = block(10);
        let rounds = (gas as usize * 10 / probe.header.gas_used as usize).max(1);
        let mut blocks = vec![probe];
        blocks.extend((0..count).map(|_| block(rounds)));
        maker.finish();
        Self {
            genesis,
            blocks,
            before: before + 1,
            chunk,
        }
    }
}

/// Statistics over several chunks.
#[derive(Default)]
struct ImportFigures {
    blocks: Times,
    reads: Times,
    traces: AtomicU64,
    queries: AtomicU64,
    /// Traces and queries that the node refused or aborted.
    failed: AtomicU64,
}

pub fn run(folder: &Path, chain: &ImportedChain) {
    let datadir = chain_maker::init(folder, "imported", &chain.genesis);
    let options = [
        "--http.api=eth,debug",
        "--rpc.max-logs-per-response=0",
        "--rpc.evmtimeout=0",
    ];
    let node = Node::start(&datadir, &options);
    let mut feeder = node.feeder();
    let (before, rest) = chain.blocks.split_at(chain.before);
    feeder.import_all(before.iter().map(|block| &**block));
    let (mut alone, mut beside) = (ImportFigures::default(), ImportFigures::default());
    let (traces, queries) = (
        size("STARLING_BENCH_TRACES", 4),
        size("STARLING_BENCH_QUERIES", 4),
    );
    for (turn, blocks) in rest.chunks(chain.chunk).enumerate() {
        let calls: Vec<_> = blocks.iter().map(|block| ImportCalls::new(block)).collect();
        let (figures, clients) = if turn % 2 == 0 {
            (&mut alone, [0, 0])
        } else {
            (&mut beside, [traces, queries])
        };
        chunk(node.http, &mut feeder, &calls, figures, clients);
    }
    let gas: u64 = rest.iter().map(|block| block.header.gas_used).sum();
    println!(
        "beside: {} imports of {:.1} Mgas, in turns alone and beside {traces} traces of blocks and {queries} log queries",
        rest.len(),
        gas as f64 / 1e6 / rest.len().max(1) as f64
    );
    report(&alone, &beside);
}

fn report(alone: &ImportFigures, beside: &ImportFigures) {
    for (name, figures) in [("alone", alone), ("beside them", beside)] {
        print_times(&format!("import of a block {name}"), &figures.blocks);
        print_times(
            &format!("cheap reads during imports {name}"),
            &figures.reads,
        );
    }
    println!(
        "  {} traces and {} log queries ended meanwhile, {} failed",
        beside.traces.load(Ordering::Relaxed),
        beside.queries.load(Ordering::Relaxed),
        beside.failed.load(Ordering::Relaxed)
    );
    let p99 = beside.reads.percentile(99);
    println!(
        "  p99 of cheap reads {:.2} ms (bar {})   {}",
        ms(p99),
        READ_BAR.as_millis(),
        verdict(p99 <= READ_BAR)
    );
    let ratio = ms(beside.blocks.mean()) / ms(alone.blocks.mean());
    println!(
        "  import beside them / alone {ratio:.2} (bar {IMPORT_BAR})   {}",
        verdict(ratio <= IMPORT_BAR)
    );
}

/// Imports the `chunk` blocks while one client sends cheap reads, `traces` clients trace blocks,
/// and `queries` clients query logs.
fn chunk(
    server: SocketAddr,
    feeder: &mut Feeder,
    calls: &[ImportCalls],
    figures: &mut ImportFigures,
    [traces, queries]: [usize; 2],
) {
    let over = &AtomicBool::new(false);
    let logs = body(
        "eth_getLogs",
        &json!([{ "address": TOKEN, "fromBlock": "0x1", "toBlock": "latest" }]),
    );
    let trace = body(
        "debug_traceBlockByNumber",
        &json!(["0x2", { "tracer": "callTracer" }]),
    );
    let ImportFigures {
        blocks,
        reads,
        traces: traced,
        queries: found,
        failed,
    } = figures;
    let failed = &*failed;
    std::thread::scope(|scope| {
        for (call, ended, count) in [(&trace, &*traced, traces), (&logs, &*found, queries)] {
            for _ in 0..count {
                scope.spawn(move || repeat(server, call, [ended, failed], over));
            }
        }
        let _end = EndOnDrop(over);
        std::thread::sleep(START);
        scope.spawn(|| read_cheaply(server, reads, over));
        for call in calls {
            let begun = Instant::now();
            feeder.import(call);
            blocks.push(begun.elapsed());
        }
    });
}

/// Repeats one call, discards the responses, and counts those that `ended` and those that `failed`.
fn repeat(server: SocketAddr, call: &str, [ended, failed]: [&AtomicU64; 2], over: &AtomicBool) {
    let mut client = Client::connect(server, PATIENCE).expect("a connection");
    while !over.load(Ordering::Relaxed) {
        if read(&mut client, call, |_| true).is_ok() {
            ended.fetch_add(1, Ordering::Relaxed);
        } else {
            failed.fetch_add(1, Ordering::Relaxed);
            client = Client::connect(server, PATIENCE).expect("a connection");
        }
    }
}

/// Sends cheap reads one after the other, and records their times.
fn read_cheaply(server: SocketAddr, times: &mut Times, over: &AtomicBool) {
    let mut client = Client::connect(server, PATIENCE).expect("a connection");
    let calls = [
        body("eth_blockNumber", &json!([])),
        body("eth_getBalance", &json!([TOKEN, "latest"])),
        body("eth_getBlockByNumber", &json!(["latest", false])),
    ];
    for call in calls.iter().cycle() {
        if over.load(Ordering::Relaxed) {
            break;
        }
        let begun = Instant::now();
        read(&mut client, call, |_| true).expect("a result");
        let spent = begun.elapsed();
        times.push(spent);
        std::thread::sleep(PACE.saturating_sub(spent));
    }
}
