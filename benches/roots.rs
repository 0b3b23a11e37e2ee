//! Cost of a state root, by kind of change and by size of the state.
//!
//! For each size the bench makes and opens a store, and computes roots over it for the same kinds
//! of change sets: balances of random accounts, and slots of one contract that has a slot for every
//! tenth account. The rows that an update writes are counted too: they are the nodes on the changed
//! paths, which is the least that an update must read. The time to build the whole state is printed
//! as well.
//!
//! Sizes: `STARLING_BENCH_STATES` (100000,1000000; the bar is meant to be seen with 5000000 as
//! well, which takes 12 GB of memory), `STARLING_BENCH_ROUNDS` of each change set (30),
//! `STARLING_BENCH_CACHE` in megabytes (64).

#[allow(dead_code, reason = "only the genesis of it is used")]
#[path = "import/load.rs"]
mod load;
mod support;

use alloy_primitives::{B256, U256, keccak256};
use starling::chain::{
    Chain, Options,
    changes::{AccountChange, Changes, StorageChange},
    view::State,
};
use std::{
    collections::BTreeMap,
    path::Path,
    time::{Duration, Instant},
};
use support::{Ground, Times, ms, size};

const SENDERS: usize = 100;
/// Changed leaves of a quiet block, a busy block, and a full block.
const LEAVES: [usize; 3] = [20, 200, 2000];

fn main() {
    let states = std::env::var("STARLING_BENCH_STATES").unwrap_or_else(|_| "100000,1000000".into());
    let states = states.split(',').map(|text| {
        text.trim()
            .parse()
            .unwrap_or_else(|_| panic!("{text} is no number"))
    });
    let tables: Vec<Table> = states.map(measure).collect();
    println!(
        "\n{:>10} {:>8} {:>10} {:>10} {:>11} {:>12} {:>14}",
        "accounts", "leaves", "p50 ms", "p99 ms", "µs a leaf", "rows a leaf", "from nothing"
    );
    for table in &tables {
        for line in &table.lines {
            println!(
                "{:>10} {:>8} {:>10.3} {:>10.3} {:>11.2} {:>12.2} {:>12.1} s",
                table.accounts,
                line.leaves,
                ms(line.times.percentile(50)),
                ms(line.times.percentile(99)),
                line.per_leaf(),
                line.rows,
                table.built.as_secs_f64(),
            );
        }
    }
    let (Some(small), Some(large)) = (tables.first(), tables.last()) else {
        return;
    };
    let growth = large.accounts as f64 / small.accounts as f64;
    let ratios = small.lines.iter().zip(&large.lines).map(|(small, large)| {
        format!(
            "{} leaves {:.2} (rows {:.2})",
            small.leaves,
            large.per_leaf() / small.per_leaf(),
            large.rows / small.rows
        )
    });
    println!(
        "\nroots over a state {growth:.0} times as large cost so many times as much: {}",
        ratios.collect::<Vec<_>>().join(" · ")
    );
}

/// The figures for one size of the state.
struct Table {
    accounts: usize,
    /// Time to build the whole state with its root, and to store it.
    built: Duration,
    lines: Vec<Line>,
}

struct Line {
    leaves: usize,
    times: Times,
    /// Rows of flat state and tries that were written, per leaf.
    rows: f64,
}

impl Line {
    /// Median time per changed leaf, in microseconds.
    fn per_leaf(&self) -> f64 {
        ms(self.times.percentile(50)) * 1e3 / self.leaves as f64
    }
}

fn measure(accounts: usize) -> Table {
    let rounds = size("STARLING_BENCH_ROUNDS", 30);
    let folder = tempfile::tempdir().expect("a temporary folder");
    let receivers = accounts.saturating_sub(SENDERS);
    let built = make(folder.path(), receivers);
    println!("{accounts} accounts: made in {:.1} s", built.as_secs_f64());
    let cache = (size("STARLING_BENCH_CACHE", 64) as u64) << 20;
    let options = Options {
        datadir: folder.path().to_owned(),
        cache,
        commit_interval: Duration::from_secs(1),
    };
    let (chain, threads) = Chain::open(&options).expect("the chain opens");
    let state = chain.view().state();
    let mut random = Random(accounts as u64);
    let lines = LEAVES.map(|leaves| line(&state, leaves, receivers as u64, rounds, &mut random));
    drop((state, chain));
    threads.stop().expect("the chain is stored");
    Table {
        accounts,
        built,
        lines: lines.into(),
    }
}

/// Makes a store with `receivers` accounts and returns the time of making it.
fn make(datadir: &Path, receivers: usize) -> Duration {
    let begun = Instant::now();
    let ground = Ground::with(1_700_000_000, SENDERS, |alloc, senders| {
        load::genesis(alloc, senders, receivers)
    });
    starling::chain::init(datadir, &ground.genesis).expect("the data directory is made");
    begun.elapsed()
}

fn line(state: &State, leaves: usize, receivers: u64, rounds: usize, random: &mut Random) -> Line {
    let (mut times, mut rows) = (Times::default(), 0);
    // The first rounds fill the caches with the upper part of the tries, as in a running node.
    for round in 0..rounds + 5 {
        let changes = changes(state, leaves, receivers, random);
        let begun = Instant::now();
        let update = state.update(&changes).expect("the root");
        if round >= 5 {
            times.push(begun.elapsed());
            rows += update.overlay.rows.len();
        }
    }
    Line {
        leaves,
        times,
        rows: rows as f64 / (leaves * rounds) as f64,
    }
}

/// A change set: half of the leaves are balances of accounts, half are slots of the writer
/// contract.
fn changes(state: &State, leaves: usize, receivers: u64, random: &mut Random) -> Changes {
    let mut accounts = BTreeMap::new();
    let mut slots = BTreeMap::new();
    while accounts.len() < leaves / 2 {
        let address = load::receiver(random.next() % receivers);
        let account = state
            .account(address)
            .expect("it can be read")
            .expect("it is in the genesis");
        let balance = account.balance + U256::from(1 + random.next() % 1000);
        accounts.insert(
            keccak256(address),
            Some(AccountChange {
                nonce: account.nonce,
                balance,
                code_hash: account.code_hash,
            }),
        );
    }
    while slots.len() < leaves / 2 {
        let slot = B256::from(U256::from(random.next() % (receivers / 10)));
        slots.insert(keccak256(slot), U256::from(2 + random.next()));
    }
    let writer = state
        .account(load::WRITER)
        .expect("it can be read")
        .expect("it is in the genesis");
    let same = AccountChange {
        nonce: writer.nonce,
        balance: writer.balance,
        code_hash: writer.code_hash,
    };
    accounts.insert(keccak256(load::WRITER), Some(same));
    let storages = BTreeMap::from([(
        keccak256(load::WRITER),
        StorageChange {
            wiped: false,
            slots,
        },
    )]);
    Changes {
        accounts,
        storages,
        codes: BTreeMap::new(),
        names: Vec::new(),
    }
}

/// A xorshift generator, with the same sequence in every run.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}
