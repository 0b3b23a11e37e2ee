//! Batcher and proposer as processes, on an L1 of our own with a block every second.
//!
//! - `backlog`: share of the blobs that L1 admits which a backlog takes until it is gone.
//! - `memory`: peak of resident memory of `starling batcher` at a long backlog.
//! - `first_safe`: from the table of `starling devnet` to its first safe block.
//! - `idle`: processor time of batcher and proposer in a node's process, on empty blocks.
//!
//! A line beyond its bar says so, and the bench then ends with an error. `STARLING_BENCH_ONLY` names
//! one section. Sizes:
//!
//! - `backlog`: `STARLING_BENCH_BLOCKS` (2000) L2 blocks of `STARLING_BENCH_TRANSFERS` (200).
//! - `memory`: `STARLING_BENCH_BLOCKS` (50000) L2 blocks of `STARLING_BENCH_TRANSFERS` (100),
//!   `STARLING_BENCH_SECONDS` (120) of posting.
//! - `first_safe`: `STARLING_BENCH_ROUNDS` (3).
//! - `idle`: `STARLING_BENCH_SECONDS` (300) with and without the two.

#[path = "batcher/backlog.rs"]
mod backlog;
#[path = "batcher/chain.rs"]
mod chain;
#[path = "batcher/first_safe.rs"]
mod first_safe;
#[path = "batcher/idle.rs"]
mod idle;
#[path = "batcher/memory.rs"]
mod memory;
#[allow(dead_code, reason = "the integration tests use more of it")]
#[path = "../tests/it/net.rs"]
mod net;
#[allow(dead_code, reason = "the integration tests use more of it")]
#[path = "../tests/it/posting/process.rs"]
mod process;
mod support;

use std::process::ExitCode;

fn main() -> ExitCode {
    let only = std::env::var("STARLING_BENCH_ONLY").ok();
    let wanted = |name: &str| only.as_deref().is_none_or(|only| only == name);
    type Section = fn() -> bool;
    let sections: [(&str, Section); 4] = [
        ("backlog", backlog::run),
        ("memory", memory::run),
        ("first_safe", first_safe::run),
        ("idle", idle::run),
    ];
    let mut is_met = true;
    for (name, run) in sections {
        if wanted(name) {
            println!("\n{name}");
            is_met &= run();
        }
    }
    if is_met {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// Prints a figure beside its bar; returns whether it is met.
fn judge(what: &str, is_met: bool) -> bool {
    let verdict = if is_met { "" } else { "   BEYOND ITS BAR" };
    println!("  {what}{verdict}");
    is_met
}
