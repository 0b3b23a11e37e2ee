//! Import of blocks full of transfers: how fast a second data directory takes over a chain, where the time goes, and how far that is
//! from executing the same transactions and doing nothing else.
//!
//! Sizes: `STARLING_BENCH_BLOCKS` (300), `STARLING_BENCH_TRANSFERS` per block (200), `STARLING_BENCH_ACCOUNTS` (20000).

mod support;

use rayon::prelude::*;
use starling::chain::{
    Inserted,
    evm::ParentState,
    execute::{BlockExecution, recover},
    payload_log::PayloadLog,
    store::{Identity, Store},
    view::{ExecutedBlock, View},
};
use starling_p2p::Provenance;
use starling_proto::payload::Payload;
use std::{
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};
use support::{Ground, Times, ms, size};

const CACHE: u64 = 64 << 20;

/// The stages of one block, each alone and in order.
#[derive(Default)]
struct Stages {
    recovery: Times,
    execution: Times,
    roots: Times,
    log: Times,
    commit: Times,
}

fn main() {
    let [blocks, transfers, accounts] = [("BLOCKS", 300), ("TRANSFERS", 200), ("ACCOUNTS", 20_000)]
        .map(|(name, default)| size(&format!("STARLING_BENCH_{name}"), default));
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut ground = Ground::new(1_700_000_000, accounts);

    let (source, threads) = ground.open(&folder.path().join("source"));
    let chain: Vec<_> = runtime.block_on(async {
        let mut payloads = Vec::new();
        for _ in 0..blocks {
            payloads.push(ground.extend(&source, transfers).await);
        }
        payloads
    });
    drop(source);
    threads.stop().expect("the source is stored");

    let stages = stage_by_stage(&ground, &folder.path().join("stages"), &chain);

    let (target, threads) = ground.open(&folder.path().join("target"));
    let started = Instant::now();
    let mut follow = Times::default();
    runtime.block_on(async {
        for payload in &chain {
            let begun = Instant::now();
            let inserted = target.follow(payload.clone(), Provenance::Linked).await.expect("the chain runs");
            assert_eq!(inserted, Inserted::Valid, "block {}", payload.number());
            follow.push(begun.elapsed());
        }
    });
    let executed = started.elapsed();
    drop(target);
    threads.stop().expect("the target is stored");
    let stored = started.elapsed();
    report(&chain, transfers, accounts, &stages, &follow, executed, stored);
}

/// Does by hand, one after the other, what the executor and the persister do.
fn stage_by_stage(ground: &Ground, folder: &Path, chain: &[Arc<Payload>]) -> Stages {
    let spec = &ground.genesis.spec;
    let identity = Identity { chain_id: spec.chain_id, genesis_hash: spec.genesis_hash };
    let store = Store::create(folder, CACHE, identity, &ground.genesis.payload(), &ground.genesis.overlay).expect("a store");
    let log = PayloadLog::open(&folder.join("wal")).expect("a payload log");
    let mut stages = Stages::default();
    for payload in chain {
        let view = View::new(store.snapshot().expect("a snapshot"), vec![], None, None).expect("a view");
        let parent = ParentState::from(Arc::new(view).state());

        let begun = Instant::now();
        let recovered: Vec<_> = payload
            .transactions
            .par_iter()
            .enumerate()
            .map(|(index, raw)| recover(index, raw).expect("our transactions are signed"))
            .collect();
        stages.recovery.push(begun.elapsed());

        let begun = Instant::now();
        let mut execution = BlockExecution::begin(spec, &payload.header, parent.clone()).expect("the block begins");
        for (tx, raw) in recovered.iter().zip(&payload.transactions) {
            execution.transact(tx, raw).expect("our transactions are valid");
        }
        let execution = execution.finish();
        stages.execution.push(begun.elapsed());

        let begun = Instant::now();
        let (outcome, update) = execution.outcome(&spec.at(payload.timestamp()), &parent).expect("roots");
        assert_eq!(outcome.state_root, payload.header.state_root, "block {}", payload.number());
        stages.roots.push(begun.elapsed());

        let begun = Instant::now();
        log.append(payload, 0).expect("the payload is logged");
        stages.log.push(begun.elapsed());

        let senders = recovered.iter().map(|tx| tx.signer()).collect();
        let block = ExecutedBlock::new(payload.clone(), senders, Arc::new(execution.receipts), Arc::new(update.overlay));
        drop(parent);
        let begun = Instant::now();
        store.commit(&[Arc::new(block)], None, None).expect("the block is stored");
        stages.commit.push(begun.elapsed());
    }
    stages
}

fn report(
    chain: &[Arc<Payload>],
    transfers: usize,
    accounts: usize,
    stages: &Stages,
    follow: &Times,
    executed: Duration,
    stored: Duration,
) {
    let blocks = chain.len();
    let gas: u64 = chain.iter().map(|payload| payload.header.gas_used).sum();
    let mgas = |time: Duration| gas as f64 / 1e6 / time.as_secs_f64();
    let per_block = |time: Duration| ms(time) / blocks as f64;
    println!("import of {blocks} blocks of {transfers} transfers, {accounts} accounts, {:.1} Mgas in all", gas as f64 / 1e6);
    println!("\nstage by stage, one thread but for sender recovery and roots");
    let all = [
        ("sender recovery", &stages.recovery),
        ("execution", &stages.execution),
        ("roots", &stages.roots),
        ("payload log", &stages.log),
        ("commit", &stages.commit),
    ];
    let sum: Duration = all.iter().map(|(_, times)| times.sum()).sum();
    for (name, times) in all {
        let share = 100.0 * times.sum().as_secs_f64() / sum.as_secs_f64();
        println!("  {name:<20} {:>8.3} ms a block   {share:>5.1} %   {:>8.0} Mgas/s", ms(times.mean()), mgas(times.sum()));
    }
    let bare = stages.execution.sum();
    println!("\nimport through the chain");
    support::print_times("one block, until it is the head", follow);
    for (name, time) in [("until executed", executed), ("until stored", stored)] {
        let rate = blocks as f64 / time.as_secs_f64();
        println!("  {name:<20} {:>8.3} ms a block   {rate:>7.0} blocks/s   {:>6.0} Mgas/s", per_block(time), mgas(time));
    }
    println!("\nratio to bare execution: {:.2} until executed, {:.2} until stored", ratio(executed, bare), ratio(stored, bare));
}

fn ratio(time: Duration, bare: Duration) -> f64 {
    time.as_secs_f64() / bare.as_secs_f64()
}
