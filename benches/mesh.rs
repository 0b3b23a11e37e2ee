//! The swarm alone, over loopback and without a chain. Measured are the time in which a block
//! crosses a mesh, the cost of garbage to its receiver and the delay that garbage causes for a
//! block, the cost of checking one message compared with the sum of its parts, and the memory of a
//! swarm.
//!
//! A node whose processor time or memory is measured runs in a separate process. Crossing a mesh is
//! measured within one process, and its processor time per node and block is printed next to the
//! wall time. On a machine with few cores all nodes share the cores, so that no block can cross
//! faster than the sum of the work done before it reaches the last node.
//!
//! Sizes: `STARLING_BENCH_NODES` (16) and `STARLING_BENCH_BLOCKS` (300) of the mesh,
//! `STARLING_BENCH_GARBAGE_SECONDS` (20), `STARLING_BENCH_PEERS` (30) and
//! `STARLING_BENCH_MEMORY_SECONDS` (60; the bar is meant for 600). `STARLING_BENCH_ONLY` names one
//! section: `parts`, `crossing`, `garbage` or `memory`.

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

/// Signed bytes of an ordinary block, and of a full block.
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
