//! Peak resident memory of a batcher with a long backlog.

use super::{
    chain::Backlog,
    judge,
    process::BatcherProcess,
    support::{process::field, size},
};
use std::time::{Duration, Instant};

/// Bar: highest resident memory, in megabytes.
const BAR: f64 = 256.0;

pub fn run() -> bool {
    let blocks = size("STARLING_BENCH_MEMORY_BLOCKS", 50_000) as u64;
    let transfers = size("STARLING_BENCH_MEMORY_TRANSFERS", 100);
    let time = Duration::from_secs(size("STARLING_BENCH_MEMORY_SECONDS", 45) as u64);
    let begun = Instant::now();
    let backlog = Backlog::new(blocks, transfers);
    println!("  made in {:.0?}", begun.elapsed());
    let nodes = backlog.serve();
    let options = [
        "--data-availability-type=blobs",
        "--target-num-frames=6",
        "--batch-type=1",
        "--max-pending-tx=10",
        "--poll-interval=1s",
    ];
    let batcher = BatcherProcess::start(&nodes.links, "batcher", &options);
    std::thread::sleep(time);
    let status = format!("/proc/{}/status", batcher.process.child.id());
    let [peak, now] = ["VmHWM:", "VmRSS:"].map(|name| 1024.0 * field(&status, name) as f64 / 1e6);
    let safe = nodes.safe().unwrap_or_default();
    judge(
        &format!(
            "{peak:.0} MB at most, {now:.0} MB after {time:?} (bar {BAR} MB); {safe} of {blocks} blocks safe"
        ),
        peak <= BAR,
    )
}
