//! Time from a start after `kill -9` to the next safe block, whose batch was posted on L1 while the
//! node was down.

use super::{
    batcher::BatchCarrier,
    carrier,
    layer1::{Layer1, Manners},
    node::MeasuredNode,
    rollup::{Recipe, SyntheticRollup},
    support::{Times, print_times, size},
};
use std::time::{Duration, Instant};

/// Bar: longest time from a start after `kill -9` to the next safe block.
const BAR: Duration = Duration::from_secs(10);
const FINALIZED_DEPTH: usize = 100;

pub fn run() {
    let kills = size("STARLING_BENCH_KILLS", 5);
    let recipe = Recipe {
        l1_blocks: size("STARLING_BENCH_L1_BLOCKS", 300).max(FINALIZED_DEPTH + kills + 1),
        l2_block_time: 2,
        transfers: 0,
        accounts: super::accounts(),
        epochs_per_channel: 1,
        carrier: carrier(BatchCarrier::Blobs),
        crowd: super::crowd_size(super::CROWD),
    };
    let folder = tempfile::tempdir().expect("a temporary folder");
    let SyntheticRollup { files, l1, .. } = SyntheticRollup::make(&recipe, folder.path());
    let head = l1.len() - 1 - kills;
    let delay = Duration::from_millis(size("STARLING_BENCH_DELAY", 50) as u64);
    let manners = Manners {
        delay,
        finalized_depth: FINALIZED_DEPTH,
    };
    let l1 = Layer1::start(l1, head, manners);
    let datadir = files.datadir("killed");
    let start = || MeasuredNode::start(&files, &datadir, &l1);
    let mut node = start();
    let is_ready =
        |node: &MeasuredNode| node.current_l1() >= Some(head as u64) && node.finalized() > Some(0);
    node.wait("the head of L1 and a finalized block", is_ready);
    let (mut times, mut requests) = (Times::default(), 0);
    for _ in 0..kills {
        let safe = node.safe().expect("the node answers");
        node.kill9();
        l1.show(l1.head() + 1);
        let (begun, before) = (Instant::now(), l1.requests().sum());
        node = start();
        node.wait_safe(safe + 1);
        times.push(begun.elapsed());
        requests += l1.requests().sum() - before;
    }
    println!(
        "  L1 answers in {delay:?}, finalized {FINALIZED_DEPTH} L1 blocks back; the bar is {BAR:?}"
    );
    print_times("start after kill -9 to the next safe block", &times);
    println!("  {:.0} requests each", requests as f64 / kills as f64);
}
