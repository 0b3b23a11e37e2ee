//! Batcher and proposer: the encoder on one core, and both as processes on an L1 of our own.
//!
//! - `encoder`: rates and sizes of channels, beside the bare compressors.
//! - `backlog`: share of the blobs that L1 admits which a backlog takes until it is gone.
//! - `memory`: peak of resident memory of `starling batcher` at a long backlog.
//! - `first_safe`: from the table of `starling devnet` to its first safe block.
//! - `idle`: processor time of batcher and proposer in a node's process, on empty blocks.
//!
//! A line beyond its bar says so, and the bench then ends with an error. Arguments name the sections
//! to run (`cargo bench --bench batcher -- encoder idle`); without any, all run, which takes some ten
//! minutes on two cores. Sizes:
//!
//! - `encoder`: `STARLING_BENCH_BLOCKS` (1000) of a channel, `STARLING_BENCH_ROUNDS` (3), of which the
//!   fastest counts.
//! - `backlog`: `STARLING_BENCH_BACKLOG_BLOCKS` (2000) of `STARLING_BENCH_BACKLOG_TRANSFERS` (200).
//! - `memory`: `STARLING_BENCH_MEMORY_BLOCKS` (50000) of `STARLING_BENCH_MEMORY_TRANSFERS` (100),
//!   `STARLING_BENCH_MEMORY_SECONDS` (45) of posting.
//! - `first_safe`: `STARLING_BENCH_NETWORKS` (3).
//! - `idle`: `STARLING_BENCH_IDLE_SECONDS` (60).

#[path = "batcher/backlog.rs"]
mod backlog;
#[path = "batcher/chain.rs"]
mod chain;
#[path = "batcher/encoder.rs"]
mod encoder;
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

use std::{process::ExitCode, time::Instant};

type Section = fn() -> bool;

const SECTIONS: [(&str, Section); 5] = [
    ("encoder", encoder::run),
    ("backlog", backlog::run),
    ("memory", memory::run),
    ("first_safe", first_safe::run),
    ("idle", idle::run),
];

fn main() -> ExitCode {
    // Cargo adds options of its own.
    let words = std::env::args().skip(1);
    let wanted: Vec<String> = words.filter(|word| !word.starts_with("--")).collect();
    let is_section = |word: &String| SECTIONS.iter().any(|(name, _)| name == word);
    if let Some(other) = wanted.iter().find(|word| !is_section(word)) {
        let names = SECTIONS.map(|(name, _)| name).join(", ");
        eprintln!("{other} is no section; there are {names}");
        return ExitCode::FAILURE;
    }
    let mut is_met = true;
    for (name, run) in SECTIONS {
        if wanted.is_empty() || wanted.iter().any(|word| word == name) {
            let begun = Instant::now();
            println!("\n{name}");
            is_met &= run();
            println!("  {name} took {:.0?}", begun.elapsed());
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
