//! A backlog of full blocks on an L1 with a block every second: the share of admitted blobs that
//! the batcher uses.

use super::{
    chain::Backlog,
    judge,
    net::{ask, head, number, wait},
    process::BatcherProcess,
    support::size,
};
use serde_json::json;
use std::time::{Duration, Instant};

/// Blobs of a transaction, which is also the maximum per L1 block in this blob schedule.
const BLOBS: usize = 6;
/// Bar: least share of the blobs admitted by L1 that the batcher uses.
const BAR: f64 = 0.9;
const PATIENCE: Duration = Duration::from_secs(1800);
/// L1 blocks ignored at the end, because the last transaction is not full.
const TAIL: usize = 1;

pub fn run() -> bool {
    let blocks = size("STARLING_BENCH_BACKLOG_BLOCKS", 2_000) as u64;
    let transfers = size("STARLING_BENCH_BACKLOG_TRANSFERS", 200);
    let begun = Instant::now();
    let backlog = Backlog::new(blocks, transfers);
    println!("  made in {:.0?}", begun.elapsed());
    let nodes = backlog.serve();
    let first = head(&nodes.links.l1).expect("a head");
    let options = [
        "--data-availability-type=blobs",
        "--target-num-frames=6",
        "--batch-type=1",
        "--max-pending-tx=10",
        "--max-channel-duration=5",
        "--poll-interval=1s",
    ];
    let begun = Instant::now();
    let batcher = BatcherProcess::start(&nodes.links, "batcher", &options);
    wait("the backlog to be safe", PATIENCE, || {
        (nodes.safe()? >= blocks).then_some(())
    });
    let time = begun.elapsed();
    drop(batcher);
    let l1 = &nodes.links.l1;
    let counts = first + 1..=head(l1).expect("a head");
    let counts = counts.map(|at| {
        let params = json!([format!("{at:#x}"), false]);
        let block = ask(l1, "eth_getBlockByNumber", params);
        number(&block["blobGasUsed"]) as usize / 131_072
    });
    let counts: Vec<usize> = counts.collect();
    let used = |count: &usize| *count > 0;
    let begin = counts.iter().position(used).expect("a blob");
    let end = counts.iter().rposition(used).expect("a blob") + 1;
    let taken = &counts[begin..end - TAIL];
    let share = taken.iter().sum::<usize>() as f64 / (BLOBS * taken.len().max(1)) as f64;
    println!("  blobs in each L1 block from the start on: {counts:?}");
    judge(
        &format!(
            "{} blobs in {} L1 blocks, {:.1} % of those admitted (bar {:.0} %); all safe after {time:.0?}",
            counts.iter().sum::<usize>(),
            end - begin,
            100.0 * share,
            100.0 * BAR
        ),
        share >= BAR,
    )
}
