//! Benchmarks of the swarm alone, over loopback and without a chain:
//!
//! - `parts`: the time to check one message, compared with the sum of the check's parts.
//! - `crossing`: the time in which a block crosses a mesh.
//! - `garbage`: the processor time that garbage costs its receiver, and the delay of the blocks
//!   that the receiver relays meanwhile.
//! - `memory`: the memory of a swarm.
//!
//! In `garbage` and `memory` the measured node runs in a separate process. In `crossing` all nodes
//! run in one process and share the machine's cores. A block therefore needs at least the sum of
//! the work done before it reaches the last node, divided by the number of cores. The processor
//! time per node and block is printed for comparison.
//!
//! Sizes: `STARLING_BENCH_NODES` (16) and `STARLING_BENCH_BLOCKS` (300) of the mesh,
//! `STARLING_BENCH_GARBAGE_SECONDS` (20), `STARLING_BENCH_PEERS` (30) and
//! `STARLING_BENCH_MEMORY_SECONDS` (60; the bar of `memory`, 60 MB, is meant for a run of 600
//! seconds). `STARLING_BENCH_ONLY` names one of the benchmarks.

#[path = "mesh/crossing.rs"]
mod crossing;
#[path = "mesh/garbage.rs"]
mod garbage;
#[path = "mesh/hostile.rs"]
mod hostile;
#[path = "mesh/memory.rs"]
mod memory;
#[path = "mesh/node.rs"]
mod node;
#[path = "mesh/parts.rs"]
mod parts;
mod support;

use std::time::Duration;
use support::{part, size};

/// Sizes of an ordinary block and of a full block: bytes that the block's signature covers.
const BLOCKS: [usize; 2] = [5_000, 100_000];

fn main() {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    if let Some((role, words)) = part::role() {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        match (&*role, &words[..]) {
            ("subject", [scoring, peers @ ..]) => runtime.block_on(node::subject(scoring, peers)),
            other => panic!("no such part: {other:?}"),
        }
        return;
    }
    let only = std::env::var("STARLING_BENCH_ONLY").ok();
    let wanted = |name: &str| only.as_deref().is_none_or(|only| only == name);
    let seconds = |name: &str, default| {
        Duration::from_secs(size(&format!("STARLING_BENCH_{name}_SECONDS"), default) as u64)
    };
    if wanted("parts") {
        BLOCKS.iter().for_each(|bytes| parts::run(*bytes));
    }
    if wanted("crossing") {
        let (nodes, blocks) = (
            size("STARLING_BENCH_NODES", 16),
            size("STARLING_BENCH_BLOCKS", 300),
        );
        BLOCKS
            .iter()
            .for_each(|bytes| runtime.block_on(crossing::run(nodes, blocks, *bytes)));
    }
    if wanted("garbage") {
        runtime.block_on(garbage::run(BLOCKS[0], seconds("GARBAGE", 20)));
    }
    if wanted("memory") {
        runtime.block_on(memory::run(
            size("STARLING_BENCH_PEERS", 30),
            BLOCKS[1],
            seconds("MEMORY", 60),
        ));
    }
}
