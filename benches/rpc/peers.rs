//! Starling compared with anvil and op-geth: rate and p99 of the same requests for the same state.
//! In each round one server at a time is loaded, alone on the servers' core.
//!
//! anvil keeps everything in memory; Starling and op-geth serve a durable store. op-geth prunes old
//! states as by default, but uses the hash scheme for its state.
//!
//! Sizes: `STARLING_BENCH_FULL_BLOCKS` (20), `STARLING_BENCH_BLOCKS` with one log each (1000),
//! `STARLING_BENCH_ROUNDS` (5), `STARLING_BENCH_SECONDS` of each round (3).

use crate::{
    client::{self, Client},
    peer_chain::{PeerChain, WANTED_TOPIC},
    peer_servers::{PeerServer, PeerServers},
    rate::{CONNECTIONS, RateFigures, ServerUnderLoad, measure},
    support::{
        median, ms, size,
        token::{self, TOKEN},
        verdict,
    },
};
use alloy_primitives::keccak256;
use serde_json::{Value, json};
use std::{path::Path, time::Duration};

const PATIENCE: Duration = Duration::from_secs(60);

/// One kind of request.
struct PeerRow {
    name: String,
    /// Bodies of the requests, sent in rotation.
    bodies: Vec<String>,
    /// Extracts the part of a result that must be equal on all servers, since anvil's block hashes
    /// differ.
    common: fn(&Value) -> Value,
}

impl PeerRow {
    fn new(method: &str, note: &str, params: Vec<Value>, common: fn(&Value) -> Value) -> Self {
        let bodies = params.iter().map(|params| client::body(method, params));
        Self {
            name: format!("{method}{note}"),
            bodies: bodies.collect(),
            common,
        }
    }

    /// Checks that all servers return an equal result for the first request.
    fn compare(&self, ours: ServerUnderLoad, others: &[PeerServer]) {
        let expected = self.answer(ours);
        assert!(
            expected != json!(0) && !expected.is_null(),
            "{}: ours has nothing",
            self.name
        );
        for other in others {
            let answer = self.answer(other.server);
            assert_eq!(answer, expected, "{}: {} and ours", self.name, other.name);
        }
    }

    fn answer(&self, server: ServerUnderLoad) -> Value {
        let client = Client::connect(server.http, PATIENCE);
        let answer = client.and_then(|mut client| client.post(&self.bodies[0]));
        let answer: Value = serde_json::from_slice(&answer.expect("an answer")).expect("JSON");
        let result = answer.get("result");
        (self.common)(result.unwrap_or_else(|| panic!("{}: {answer}", self.name)))
    }
}

fn whole(result: &Value) -> Value {
    result.clone()
}

fn count(list: &Value) -> Value {
    json!(list.as_array().map(Vec::len))
}

fn transactions(block: &Value) -> Value {
    count(&block["transactions"])
}

fn transaction(receipt: &Value) -> Value {
    receipt["transactionHash"].clone()
}

/// Only the form of an estimate is compared, since estimates may exceed the gas used.
fn is_quantity(estimate: &Value) -> Value {
    json!(estimate.as_str().is_some_and(|text| text.starts_with("0x")))
}

/// Requests for the state of the newest block.
fn state_rows(chain: &PeerChain) -> Vec<PeerRow> {
    let of_accounts = |params: &dyn Fn(usize) -> Value| -> Vec<Value> {
        (0..chain.accounts.len()).map(params).collect()
    };
    let account = |index: usize| chain.accounts[index % chain.accounts.len()];
    let read = of_accounts(&|index| json!([account(index), "latest"]));
    // anvil charges the sender of a call, and the default sender has no funds: send from an
    // account.
    let balance = of_accounts(
        &|index| json!([{ "from": account(index), "to": TOKEN, "data": token::balance_of(account(index)) }, "latest"]),
    );
    let transfer = of_accounts(
        &|index| json!([{ "from": account(index), "to": TOKEN, "data": token::transfer(account(index + 1)) }]),
    );
    vec![
        PeerRow::new("eth_blockNumber", "", vec![json!([])], whole),
        PeerRow::new("eth_chainId", "", vec![json!([])], whole),
        PeerRow::new("eth_getBalance", "", read.clone(), whole),
        PeerRow::new("eth_getTransactionCount", "", read, whole),
        PeerRow::new("eth_call", ", balanceOf", balance, whole),
        PeerRow::new("eth_estimateGas", ", transfer", transfer, is_quantity),
    ]
}

/// Requests for blocks.
fn block_rows(chain: &PeerChain) -> Vec<PeerRow> {
    let hex = |number: u64| format!("{number:#x}");
    let full = chain.full();
    let empty = chain
        .empty()
        .iter()
        .map(|block| json!([hex(block.number()), false]));
    let whole_blocks = full.iter().map(|block| json!([hex(block.number()), true]));
    let receipts = full.iter().map(|block| json!([hex(block.number())]));
    // Skip the L1 attributes, the first transaction of each block.
    let each = full.iter().flat_map(|block| &block.transactions[1..]);
    let one = each.map(|raw| json!([keccak256(raw)]));
    let [from, to] = chain.logging().map(hex);
    let logs = json!([{ "fromBlock": from, "toBlock": to, "topics": [WANTED_TOPIC] }]);
    vec![
        PeerRow::new(
            "eth_getBlockByNumber",
            ", empty",
            empty.collect(),
            transactions,
        ),
        PeerRow::new(
            "eth_getBlockByNumber",
            ", full",
            whole_blocks.collect(),
            transactions,
        ),
        PeerRow::new("eth_getTransactionReceipt", "", one.collect(), transaction),
        PeerRow::new("eth_getBlockReceipts", "", receipts.collect(), count),
        PeerRow::new("eth_getLogs", "", vec![logs], count),
    ]
}

/// Starts all servers on the chain, and measures each kind of request.
pub fn run(folder: &Path, chain: &PeerChain) {
    let servers = PeerServers::start(folder, chain);
    let (ours, others) = (servers.ours(), servers.others());
    let rounds = size("STARLING_BENCH_ROUNDS", 5);
    let length = Duration::from_secs(size("STARLING_BENCH_SECONDS", 3) as u64);
    println!(
        "peers: {CONNECTIONS} connections, {} blocks, medians of {rounds} rounds of {} s",
        chain.blocks.len(),
        length.as_secs()
    );
    let (mut met, mut all) = (0, 0);
    for row in state_rows(chain).iter().chain(&block_rows(chain)) {
        row.compare(ours, &others);
        let servers: Vec<_> = std::iter::once(ours)
            .chain(others.iter().map(|other| other.server))
            .collect();
        let mut rates = vec![Vec::new(); servers.len()];
        for server in &servers {
            measure(*server, &row.bodies, length / 10);
        }
        for _ in 0..rounds {
            for (server, rates) in servers.iter().zip(&mut rates) {
                rates.push(measure(*server, &row.bodies, length));
            }
        }
        let medians: Vec<_> = rates.iter().map(|rounds| middle(rounds)).collect();
        print(&row.name, "ours", &medians[0], "");
        for (other, theirs) in others.iter().zip(&medians[1..]) {
            let (ratio, is_met) = judge(other, &medians[0], theirs);
            print("", other.name, theirs, &ratio);
            met += usize::from(is_met);
            all += 1;
        }
    }
    println!("  {met} of {all} comparisons met");
}

/// The medians of the rounds' figures.
fn middle(rounds: &[RateFigures]) -> RateFigures {
    let of = |figure: fn(&RateFigures) -> f64| median(rounds.iter().map(figure).collect());
    RateFigures {
        rate: of(|round| round.rate),
        p99: Duration::from_secs_f64(of(|round| round.p99.as_secs_f64())),
        server: of(|round| round.server),
        load: of(|round| round.load),
    }
}

/// Starling's rate divided by another server's, as text, and whether the bar is met.
fn judge(other: &PeerServer, ours: &RateFigures, theirs: &RateFigures) -> (String, bool) {
    let ratio = ours.rate / theirs.rate;
    let is_met = ratio >= other.bar.rate && (!other.bar.is_p99_compared || ours.p99 <= theirs.p99);
    (format!("ours x {ratio:.2}   {}", verdict(is_met)), is_met)
}

fn print(row: &str, server: &str, figures: &RateFigures, verdict: &str) {
    let bound = if figures.is_bound_by_load() {
        "   at least: the load's core is busy, the server's is not"
    } else {
        ""
    };
    println!(
        "  {row:<32} {server:<8} {:>9.0}/s   p99 {:>8.2} ms   busy {:>3.0} %, load {:>3.0} %   {verdict}{bound}",
        figures.rate,
        ms(figures.p99),
        100.0 * figures.server,
        100.0 * figures.load
    );
}
