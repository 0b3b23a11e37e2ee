//! Processor time of a node that follows an L1 of full blocks. The batches of each L1 block hold
//! the empty L2 blocks of the previous slot.

use super::{
    batcher::BatchCarrier,
    carrier,
    layer1::{Layer1, Manners},
    node::MeasuredNode,
    rollup::{Recipe, SyntheticRollup},
    support::{ms, size},
};
use std::time::{Duration, Instant};

/// Bar: highest processor time (user and system) of one core, as a share of wall time.
const BAR: f64 = 0.05;
/// L1 blocks that are derived before the measurement begins.
const WARM_UP: usize = 20;

pub fn run() {
    let slot = Duration::from_secs(size("STARLING_BENCH_SLOT", 12) as u64);
    let minutes = size("STARLING_BENCH_MINUTES", 10);
    let slots = (60 * minutes).div_ceil(slot.as_secs() as usize);
    let recipe = Recipe {
        l1_blocks: WARM_UP + slots,
        l2_block_time: 2,
        transfers: 0,
        accounts: super::accounts(),
        epochs_per_channel: 1,
        carrier: carrier(BatchCarrier::Blobs),
        crowd: super::crowd_size(super::CROWD),
    };
    let folder = tempfile::tempdir().expect("a temporary folder");
    let SyntheticRollup { files, l1, last } = SyntheticRollup::make(&recipe, folder.path());
    let manners = Manners {
        delay: Duration::ZERO,
        finalized_depth: 64,
    };
    let l1 = Layer1::start(l1, WARM_UP, manners);
    let mut node = MeasuredNode::start(&files, &files.datadir("live"), &l1);
    node.wait("the first L1 blocks", |node| {
        node.current_l1() >= Some(WARM_UP as u64)
    });
    let (begun, before) = (Instant::now(), node.processor());
    for number in WARM_UP + 1..=l1.last() {
        l1.show(number);
        let end = slot * (number - WARM_UP) as u32;
        std::thread::sleep(end.saturating_sub(begun.elapsed()));
    }
    let (time, spent) = (begun.elapsed(), node.processor() - before);
    // The poll interval (`--l1.http-poll-interval`) may delay the last L1 block by up to a slot.
    node.wait_safe(last);
    println!(
        "  {slots} L1 blocks in {:.0} s: {:.2} % of one core (bar {:.0} %), {:.1} ms for an L1 block and its {} L2 blocks",
        time.as_secs_f64(),
        100.0 * spent.as_secs_f64() / time.as_secs_f64(),
        100.0 * BAR,
        ms(spent) / slots as f64,
        super::L1_BLOCK_TIME / recipe.l2_block_time
    );
}
