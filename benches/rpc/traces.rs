//! Traces over HTTP: a block under `callTracer` compared with the same block under `noopTracer`,
//! which observes the EVM and records nothing; the block's transactions, one request each; and the
//! memory of many concurrent struct-log traces, whose results are read and discarded.
//!
//! Each transaction of the block calls a contract that sends tokens to new accounts, one call each,
//! until the transaction's gas is used.
//!
//! Sizes: `STARLING_BENCH_TRANSACTIONS` of the block (200), `STARLING_BENCH_MGAS` of the block and
//! of a traced loop (30), `STARLING_BENCH_ROUNDS` of each tracer (15), `STARLING_BENCH_TRACES` at
//! once (64), `STARLING_BENCH_SECONDS` of concurrent traces (60).

use crate::{
    Node,
    chain_maker::{self, ChainMaker, GENESIS_TIME},
    client::{Client, body, is_result},
    support::{
        Alloc, EndOnDrop, Ground, Times, Unsigned, ms, print_times, size,
        token::{self, TOKEN},
        verdict,
    },
};
use alloy_primitives::{Address, B256, Bytes, U256, address, hex, keccak256};
use rayon::prelude::*;
use serde_json::{Value, json};
use starling_proto::payload::Payload;
use std::{
    io,
    net::SocketAddr,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

const SPENDER: Address = address!("5e4de40000000000000000000000000000000001");
/// Gas at which the spender contract stops, more than one call of the token needs.
const GAS_LEFT: u16 = 40_000;
/// Timeout of each read of a response; it is long, since a trace may be queued.
const PATIENCE: Duration = Duration::from_secs(120);
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Bars: the block's time under `callTracer` as a multiple of that under `noopTracer`; the time of
/// its transactions, one request each, as a multiple of one request for the block; megabytes that
/// concurrent traces add.
const BLOCK_BAR: f64 = 1.3;
const EACH_BAR: f64 = 3.0;
const MEMORY_BAR: f64 = 256.0;

/// Code of the spender contract: sends one unit of the token to account after account. Calldata:
/// the first account.
fn spender_code() -> String {
    // Put the calldata of `transfer` in memory: its selector, and one unit at byte 36.
    let mut code = hex!("63a9059cbb60e01b5f526001602452").to_vec();
    // PUSH0 CALLDATALOAD (account), JUMPDEST
    code.extend(hex!("5f35"));
    let start = code.len() as u8;
    // DUP1 PUSH1 4 MSTORE (account), then no output, 68 bytes of input at 0, no value
    code.extend(hex!("5b806004525f5f60445f5f73"));
    code.extend(TOKEN);
    // GAS CALL POP, PUSH1 1 ADD (next account), PUSH2 GAS_LEFT GAS GT PUSH1 start JUMPI, STOP
    code.extend(hex!("5af15060010161"));
    code.extend(GAS_LEFT.to_be_bytes());
    code.extend(hex!("5a1160"));
    code.extend([start, 0x57, 0x00]);
    hex::encode_prefixed(code)
}

/// A chain of one block, and the data to trace it.
pub struct TracedChain {
    genesis: Value,
    block: Arc<Payload>,
}

impl TracedChain {
    /// Makes the one-block chain in `folder`.
    pub fn make(folder: &Path) -> Self {
        let count = size("STARLING_BENCH_TRANSACTIONS", 200);
        let ground = Ground::with(GENESIS_TIME, count, |alloc: &mut Alloc, _| {
            token::insert(alloc, std::iter::once(SPENDER));
            chain_maker::insert_code(alloc, SPENDER, &spender_code());
        });
        let genesis = ground.file.clone();
        // Add the gas that a transaction leaves unused on average: half of `GAS_LEFT`.
        let gas = loop_gas() / count as u64 + u64::from(GAS_LEFT) / 2;
        let mut maker = ChainMaker::new(ground, &folder.join("traced-made"));
        let transactions = spend(&mut maker.ground, gas);
        let block = maker.block(transactions);
        maker.finish();
        Self { genesis, block }
    }
}

/// Gas of the block, and gas of a traced loop.
fn loop_gas() -> u64 {
    size("STARLING_BENCH_MGAS", 30) as u64 * 1_000_000
}

/// Calls of the spender contract, one by every sender, each paying different accounts.
fn spend(ground: &mut Ground, gas: u64) -> Vec<Bytes> {
    let chain_id = ground.rollup.l2_chain_id;
    let calls = ground.senders.iter_mut().map(|sender| {
        let first = B256::left_padding_from(&sender.address[..16]);
        sender.call(chain_id, SPENDER, U256::ZERO, gas, first.0.into())
    });
    let unsigned: Vec<_> = calls.collect();
    unsigned.into_par_iter().map(Unsigned::sign).collect()
}

pub fn run(folder: &Path, chain: &TracedChain) {
    let datadir = chain_maker::init(folder, "traced", &chain.genesis);
    let node = Node::start(&datadir, &["--http.api=eth,debug"]);
    node.feeder().import_all([&*chain.block]);
    // Skip the L1 attributes.
    let hashes: Vec<B256> = chain.block.transactions[1..]
        .iter()
        .map(keccak256)
        .collect();
    println!(
        "traces: a block of {} transactions, {:.1} Mgas",
        hashes.len(),
        chain.block.header.gas_used as f64 / 1e6
    );
    one_block(&node, &hashes);
    memory(node);
}

/// Options that select the tracer `name`.
fn tracer(name: &str) -> Value {
    json!({ "tracer": name })
}

/// A client that sends requests one at a time.
struct TimedClient(Client);

impl TimedClient {
    /// The time of a request, and the length of its response in bytes.
    fn time(&mut self, method: &str, params: &Value) -> (Duration, usize) {
        let begun = Instant::now();
        let bytes = read(&mut self.0, &body(method, params), |_| true);
        (begun.elapsed(), bytes.expect("a response without an error"))
    }
}

/// Times of the block at once, and of its transactions one by one in a third of the rounds.
fn one_block(node: &Node, hashes: &[B256]) {
    let mut client = TimedClient(Client::connect(node.http, PATIENCE).expect("a connection"));
    let rounds = size("STARLING_BENCH_ROUNDS", 15);
    let whole = whole_block(&mut client, rounds);
    single_transactions(&mut client, hashes, rounds.div_ceil(3), whole);
}

/// Times of the block under both tracers, alternately. Returns the median under callTracer in
/// milliseconds. Times of the first round are dropped, since it warms the caches.
fn whole_block(client: &mut TimedClient, rounds: usize) -> f64 {
    let [mut noop, mut calls] = [(); 2].map(|()| Times::default());
    let mut bytes = 0;
    for round in 0..=rounds {
        let mut block =
            |name| client.time("debug_traceBlockByNumber", &json!(["0x1", tracer(name)]));
        let (nothing, _) = block("noopTracer");
        let (traced, length) = block("callTracer");
        if round > 0 {
            noop.push(nothing);
            calls.push(traced);
            bytes = length;
        }
    }
    print_times("block under noopTracer", &noop);
    print_times("block under callTracer", &calls);
    let whole = ms(calls.percentile(50));
    let ratio = whole / ms(noop.percentile(50));
    println!(
        "  {bytes} bytes; callTracer / noopTracer {ratio:.2} (bar {BLOCK_BAR})   {}",
        verdict(ratio <= BLOCK_BAR)
    );
    whole
}

/// Times of the transactions, one request each, beside as many requests that only cost the way to
/// the node and back. `whole` is the time of the block at once in milliseconds.
fn single_transactions(client: &mut TimedClient, hashes: &[B256], rounds: usize, whole: f64) {
    let [mut each, mut sums, mut bare] = [(); 3].map(|()| Times::default());
    for round in 0..=rounds {
        let times = hashes.iter().map(|hash| {
            let params = json!([hash, tracer("callTracer")]);
            client.time("debug_traceTransaction", &params).0
        });
        let times: Vec<_> = times.collect();
        let ways = hashes
            .iter()
            .map(|_| client.time("eth_chainId", &json!([])).0);
        let ways: Vec<_> = ways.collect();
        if round > 0 {
            sums.push(times.iter().sum());
            times.into_iter().for_each(|time| each.push(time));
            ways.into_iter().for_each(|time| bare.push(time));
        }
    }
    print_times("a transaction under callTracer", &each);
    print_times("a bare request (eth_chainId)", &bare);
    let (sum, count) = (ms(sums.percentile(50)), hashes.len());
    let least = 1.0 + ms(bare.percentile(50)) * count as f64 / whole;
    let ratio = sum / whole;
    println!(
        "  {count} transactions, one request each {sum:.1} ms / block at once {ratio:.2} (bar {EACH_BAR}; \
         {least:.2} with bare requests in addition to the block)   {}",
        verdict(ratio <= EACH_BAR)
    );
}

/// Sends the call in `body`, then reads and discards the response while `goes_on` returns true for
/// the length of each piece. Returns the length of the response, or `Err` if it is a JSON-RPC
/// error.
pub fn read(
    client: &mut Client,
    body: &str,
    mut goes_on: impl FnMut(usize) -> bool,
) -> io::Result<usize> {
    let mut length = 0;
    client.exchange(body, |piece| {
        if length == 0 && !is_result(piece) {
            let text = piece[..piece.len().min(300)].escape_ascii().to_string();
            return Err(io::Error::other(text));
        }
        length += piece.len();
        if goes_on(piece.len()) {
            Ok(())
        } else {
            Err(io::ErrorKind::Interrupted.into())
        }
    })?;
    Ok(length)
}

/// Statistics of the clients that trace concurrently.
#[derive(Default)]
struct TraceCounts {
    bytes: AtomicU64,
    ended: AtomicU64,
    failed: AtomicU64,
}

/// Measures the node's memory while many clients trace a loop; each client repeats its trace.
fn memory(node: Node) {
    let traces = size("STARLING_BENCH_TRACES", 64);
    let length = Duration::from_secs(size("STARLING_BENCH_SECONDS", 60) as u64);
    let (counts, over) = (&TraceCounts::default(), &AtomicBool::new(false));
    let before = node.memory();
    let mut peak = before;
    std::thread::scope(|scope| {
        for _ in 0..traces {
            let server = node.http;
            scope.spawn(move || trace_loops(server, counts, over));
        }
        let end = EndOnDrop(over);
        let begun = Instant::now();
        while begun.elapsed() < length {
            std::thread::sleep(LOOK_EVERY);
            peak = peak.max(node.memory());
        }
        drop(end);
        // Ends the traces that are still queued in the node.
        drop(node);
    });
    let [before, peak] = [before, peak].map(|bytes| bytes as f64 / f64::from(1 << 20));
    let added = peak - before;
    println!(
        "  {traces} struct-log traces of loops of {} Mgas for {} s: {:.2} GB read, {} ended, {} refused or ended by the node",
        loop_gas() / 1_000_000,
        length.as_secs(),
        counts.bytes.load(Ordering::Relaxed) as f64 / 1e9,
        counts.ended.load(Ordering::Relaxed),
        counts.failed.load(Ordering::Relaxed)
    );
    println!(
        "  resident {before:.0} MB before, at most {peak:.0} MB, {added:.0} MB more (bar {MEMORY_BAR})   {}",
        verdict(added <= MEMORY_BAR)
    );
}

/// Runs one client of [`memory`].
fn trace_loops(server: SocketAddr, counts: &TraceCounts, over: &AtomicBool) {
    // JUMPDEST, PUSH1 0, JUMP
    let code = json!({ SPENDER.to_string(): { "code": "0x5b600056" } });
    let call = json!([{ "to": SPENDER, "gas": format!("{:#x}", loop_gas()) }, "latest", { "stateOverrides": code }]);
    let trace = body("debug_traceCall", &call);
    let is_over = || over.load(Ordering::Relaxed);
    while !is_over() {
        let client = Client::connect(server, PATIENCE);
        let ended = client.and_then(|mut client| {
            read(&mut client, &trace, |bytes| {
                counts.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
                !is_over()
            })
        });
        if !is_over() {
            let count = if ended.is_ok() {
                &counts.ended
            } else {
                &counts.failed
            };
            count.fetch_add(1, Ordering::Relaxed);
        }
    }
}
