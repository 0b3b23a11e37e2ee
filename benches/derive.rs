//! Derivation in real processes: `starling node` without a swarm, over stand-ins of L1 and its
//! beacon API that this process serves on loopback.
//!
//! - `execute`: L2 blocks of ten transfers, derived and executed, compared with `starling import`
//!   of the same blocks; then derived again and consolidated with the imported blocks.
//! - `latency`: a node far behind an L1 whose responses are delayed.
//! - `live`: processor time of a node that follows an L1 block by block.
//! - `restart`: time from a start after `kill -9` to the next safe block.
//! - `memory`: peak resident memory with derivation, compared with `starling execution`.
//! - `hostile`: peak resident memory while a batcher posts decompression bombs.
//!
//! `STARLING_BENCH_ONLY` names one section. `STARLING_BENCH_SERVER` is the path of another
//! `starling` to measure. Sizes, with defaults in brackets:
//!
//! - All: `STARLING_BENCH_ACCOUNTS` of L2's genesis (`execute`: 1000000, others: 20000),
//!   `STARLING_BENCH_CROWD` transactions and logs of other users in an L1 block (`execute`: 0, as
//!   in recordings of devnets, others: 200), `STARLING_BENCH_L1_BLOCKS` (`latency`: 2000,
//!   `restart`: 300, `memory`: 600).
//! - `execute`: `STARLING_BENCH_BLOCKS` (5000), `STARLING_BENCH_TRANSFERS` (10),
//!   `STARLING_BENCH_EPOCHS` L1 blocks from one channel to the next (10), `STARLING_BENCH_BLOBS`
//!   (0; 1 posts blobs instead of calldata), `STARLING_BENCH_ROUNDS` (3).
//! - `latency`: `STARLING_BENCH_DELAY` ms (100), `STARLING_BENCH_EPOCHS` (5),
//!   `STARLING_BENCH_BLOBS` (1), `STARLING_BENCH_L2_TIME` seconds between L2 blocks (2).
//! - `live`: `STARLING_BENCH_MINUTES` (10), `STARLING_BENCH_SLOT` seconds between L1 blocks (12).
//! - `restart`: `STARLING_BENCH_DELAY` ms (50), `STARLING_BENCH_KILLS` (5), `STARLING_BENCH_BLOBS`
//!   (1).
//! - `hostile`: `STARLING_BENCH_BOMB` megabytes of each bomb (100), `STARLING_BENCH_CHANNELS`
//!   (1000000), `STARLING_BENCH_SPAN` blocks (10000000), `STARLING_BENCH_CEILING` megabytes at
//!   which a node is killed (6000).

#[path = "derive/batcher.rs"]
mod batcher;
#[path = "derive/crowd.rs"]
mod crowd;
#[path = "derive/execute.rs"]
mod execute;
#[path = "derive/hostile.rs"]
mod hostile;
#[path = "derive/l1_block.rs"]
mod l1_block;
#[path = "derive/latency.rs"]
mod latency;
#[path = "derive/layer1.rs"]
mod layer1;
#[path = "derive/live.rs"]
mod live;
#[path = "derive/memory.rs"]
mod memory;
#[allow(dead_code, reason = "the integration tests use more of it")]
#[path = "../tests/it/net.rs"]
mod net;
#[path = "derive/node.rs"]
mod node;
#[path = "derive/restart.rs"]
mod restart;
#[path = "derive/rollup.rs"]
mod rollup;
mod support;

use batcher::BatchCarrier;
use support::size;

/// Chain id of the stand-in L1.
const L1_CHAIN_ID: u64 = 900;
/// Seconds between L1 blocks.
const L1_BLOCK_TIME: u64 = 12;

/// Transactions of other users in a full L1 block, and also the number of their logs.
const CROWD: usize = 200;

fn main() {
    let only = std::env::var("STARLING_BENCH_ONLY").ok();
    let wanted = |name: &str| only.as_deref().is_none_or(|only| only == name);
    let sections: [(&str, fn()); 6] = [
        ("execute", execute::run),
        ("latency", latency::run),
        ("live", live::run),
        ("restart", restart::run),
        ("memory", memory::run),
        ("hostile", hostile::run),
    ];
    for (name, run) in sections {
        if wanted(name) {
            println!("\n{name}");
            run();
        }
    }
}

/// Accounts of L2's genesis in the sections that do not measure their number.
fn accounts() -> usize {
    size("STARLING_BENCH_ACCOUNTS", 20_000)
}

/// Transactions of other users in an L1 block, and their logs; `STARLING_BENCH_CROWD` overrides
/// `default`.
fn crowd_size(default: usize) -> (usize, usize) {
    let count = size("STARLING_BENCH_CROWD", default);
    (count, count)
}

/// Calldata or blobs for the batches; `STARLING_BENCH_BLOBS` overrides `default`.
fn carrier(default: BatchCarrier) -> BatchCarrier {
    let is_default_blobs = usize::from(default == BatchCarrier::Blobs);
    if size("STARLING_BENCH_BLOBS", is_default_blobs) == 1 {
        BatchCarrier::Blobs
    } else {
        BatchCarrier::Calldata
    }
}
