//! Peak resident memory of a node that derives, minus the peak of `starling execution`, which does
//! not. Both have the same L2 blocks, imported beforehand. The bench reads all blocks of `starling
//! execution` over JSON-RPC, so that its store caches fill as in a node that derives.

use super::{
    batcher::BatchCarrier,
    carrier, execute,
    layer1::{Layer1, Manners},
    net::ask,
    node::MeasuredNode,
    rollup::{Recipe, SyntheticRollup},
    support::size,
};
use serde_json::json;
use std::time::Duration;

/// Bar: megabytes that a node with derivation may use beyond `starling execution`.
const BAR: f64 = 100.0;

pub fn run() {
    let recipe = Recipe {
        l1_blocks: size("STARLING_BENCH_L1_BLOCKS", 600),
        l2_block_time: 2,
        transfers: 0,
        accounts: super::accounts(),
        epochs_per_channel: 5,
        carrier: carrier(BatchCarrier::Blobs),
        crowd: super::crowd_size(super::CROWD),
    };
    let folder = tempfile::tempdir().expect("a temporary folder");
    let SyntheticRollup { files, l1, last } = SyntheticRollup::make(&recipe, folder.path());
    let head = l1.len() - 1;
    let bytes: usize = l1.iter().map(|block| block.json(true).len()).sum();
    let manners = Manners {
        delay: Duration::ZERO,
        finalized_depth: 64,
    };
    let l1 = Layer1::start(l1, head, manners);
    let datadir = execute::imported(&files, "without");
    let mut node = MeasuredNode::start_core(&datadir);
    node.wait("its first response", |node| {
        super::net::head(&node.http).is_some()
    });
    for number in 1..=last {
        let params = json!([format!("{number:#x}"), true]);
        ask(&node.http, "eth_getBlockByNumber", params);
    }
    let without = node.peak().expect("the node lives");
    node.kill9();
    let datadir = execute::imported(&files, "with");
    let mut node = MeasuredNode::start(&files, &datadir, &l1);
    node.wait_safe(last);
    let with = node.peak().expect("the node lives");
    println!(
        "  {head} L1 blocks of {:.0} kB as JSON, {last} L2 blocks",
        bytes as f64 / head as f64 / 1e3
    );
    println!(
        "  at most {with:.0} MB resident with derivation, {without:.0} without: {:.0} MB more (bar {BAR})",
        with - without
    );
}
