//! Deriving with execution, and deriving with consolidation, compared with `starling import` of the
//! same blocks. Each rate covers the process from its start to its orderly end, when the store is
//! written and closed.

use super::{
    batcher::BatchCarrier,
    carrier,
    layer1::{Layer1, Manners},
    node::{MeasuredNode, server},
    rollup::{NodeFiles, Recipe, SyntheticRollup},
    support::{Times, size},
};
use std::{
    path::Path,
    process::Stdio,
    time::{Duration, Instant},
};

/// Least rate of deriving and executing, relative to `starling import` of the same blocks.
const EXECUTED_BAR: f64 = 0.8;
/// Least rate of consolidating blocks that the node already has, relative to the import.
const CONSOLIDATED_BAR: f64 = 3.0;

pub fn run() {
    let blocks = size("STARLING_BENCH_BLOCKS", 5000);
    let l2_block_time = 2;
    let blocks_per_epoch = (super::L1_BLOCK_TIME / l2_block_time) as usize;
    let epochs_per_channel = size("STARLING_BENCH_EPOCHS", 10);
    let recipe = Recipe {
        l1_blocks: blocks
            .div_ceil(blocks_per_epoch)
            .next_multiple_of(epochs_per_channel),
        l2_block_time,
        transfers: size("STARLING_BENCH_TRANSFERS", 10),
        accounts: size("STARLING_BENCH_ACCOUNTS", 1_000_000),
        epochs_per_channel,
        carrier: carrier(BatchCarrier::Calldata),
        crowd: super::crowd_size(0),
    };
    let folder = tempfile::tempdir().expect("a temporary folder");
    let SyntheticRollup { files, l1, last } = SyntheticRollup::make(&recipe, folder.path());
    let head = l1.len() - 1;
    println!(
        "  {last} L2 blocks of {} transfers, {} accounts; {head} L1 blocks, a channel in every {epochs_per_channel}th",
        recipe.transfers, recipe.accounts
    );
    let manners = Manners {
        delay: Duration::ZERO,
        finalized_depth: 100,
    };
    let l1 = Layer1::start(l1, head, manners);
    let [mut imported, mut executed, mut consolidated] = [(); 3].map(|()| Durations::default());
    for _ in 0..size("STARLING_BENCH_ROUNDS", 3) {
        let datadir = files.datadir("imported");
        imported.whole.push(import(&files, &datadir));
        consolidated.derive(&files, &datadir, &l1, last);
        executed.derive(&files, &files.datadir("derived"), &l1, last);
    }
    let rate = |times: &Times| last as f64 / times.percentile(50).as_secs_f64();
    println!(
        "  import                   {:>8.0} blocks/s",
        rate(&imported.whole)
    );
    for (name, durations) in [
        ("derived and executed", &executed),
        ("consolidated", &consolidated),
    ] {
        println!(
            "  {name:<24} {:>8.0} blocks/s, {:.0} to the last safe block",
            rate(&durations.whole),
            rate(&durations.to_safe)
        );
    }
    println!(
        "  derived and executed / import {:.2} (bar {EXECUTED_BAR}) · consolidated / import {:.2} (bar {CONSOLIDATED_BAR}), medians",
        rate(&executed.whole) / rate(&imported.whole),
        rate(&consolidated.whole) / rate(&imported.whole)
    );
}

/// Durations over several runs, each counted from the start of a process.
#[derive(Default)]
struct Durations {
    /// Time until the last safe block.
    to_safe: Times,
    /// Time until the orderly end of the process, when the store is written and closed.
    whole: Times,
}

impl Durations {
    /// Runs a node until it has derived the last safe block.
    fn derive(&mut self, files: &NodeFiles, datadir: &Path, l1: &Layer1, last: u64) {
        let begun = Instant::now();
        let mut node = MeasuredNode::start(files, datadir, l1);
        node.wait_safe(last);
        self.to_safe.push(begun.elapsed());
        node.end();
        self.whole.push(begun.elapsed());
    }
}

fn import(files: &NodeFiles, datadir: &Path) -> Duration {
    let begun = Instant::now();
    let status = server()
        .arg("import")
        .arg(format!("--datadir={}", datadir.display()))
        .arg(files.blocks())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    assert!(
        status.expect("it runs").success(),
        "the blocks are imported"
    );
    begun.elapsed()
}

/// Imports the blocks into a data directory called `name`.
pub fn imported(files: &NodeFiles, name: &str) -> std::path::PathBuf {
    let datadir = files.datadir(name);
    import(files, &datadir);
    datadir
}
