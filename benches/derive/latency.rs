//! A node far behind an L1 and a beacon API that respond after a delay, at the default limits. A
//! run without the delay shows the share of computing.

use super::{
    batcher::BatchCarrier,
    carrier,
    layer1::{Layer1, Manners},
    node::MeasuredNode,
    rollup::{Recipe, SyntheticRollup},
    support::size,
};
use std::time::{Duration, Instant};

/// Bar: longest time, as a multiple of the time that all requests take at full concurrency.
const TIME_BAR: f64 = 1.3;
/// Bar: largest average number of requests per L1 block.
const REQUESTS_BAR: f64 = 1.0;
/// The default of `--l1.max-concurrency`.
const MAX_CONCURRENCY: u32 = 10;

pub fn run() {
    let recipe = Recipe {
        l1_blocks: size("STARLING_BENCH_L1_BLOCKS", 2000),
        l2_block_time: size("STARLING_BENCH_L2_TIME", 2) as u64,
        transfers: 0,
        accounts: super::accounts(),
        epochs_per_channel: size("STARLING_BENCH_EPOCHS", 5),
        carrier: carrier(BatchCarrier::Blobs),
        crowd: super::crowd_size(super::CROWD),
    };
    let folder = tempfile::tempdir().expect("a temporary folder");
    let SyntheticRollup { files, l1, last } = SyntheticRollup::make(&recipe, folder.path());
    let head = l1.len() - 1;
    let delay = Duration::from_millis(size("STARLING_BENCH_DELAY", 100) as u64);
    println!("  {head} L1 blocks and {last} L2 blocks behind, a delay of {delay:?}");
    let manners = |delay| Manners {
        delay,
        finalized_depth: 100,
    };
    let mut l1 = Layer1::start(l1, head, manners(Duration::ZERO));
    for delay in [Duration::ZERO, delay] {
        l1 = l1.restart(head, manners(delay));
        let begun = Instant::now();
        let mut node = MeasuredNode::start(&files, &files.datadir("late"), &l1);
        node.wait_safe(last);
        let (time, requests) = (begun.elapsed(), l1.requests());
        node.kill9();
        let bound = delay * requests.sum() as u32 / MAX_CONCURRENCY;
        println!(
            "  delay {delay:?}: {:.2} s, {} requests to L1, {} to the beacon API, {:.2} for an L1 block (bar {REQUESTS_BAR})",
            time.as_secs_f64(),
            requests.rpc,
            requests.beacon,
            requests.sum() as f64 / head as f64
        );
        if !bound.is_zero() {
            println!(
                "  time / (requests x delay / {MAX_CONCURRENCY}) = {:.2} (bar {TIME_BAR})",
                time.as_secs_f64() / bound.as_secs_f64()
            );
        }
    }
}
