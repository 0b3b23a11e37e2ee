//! Batcher and proposer: the encoder on one core, and both as processes on an L1 of our own.
//!
//! - `encoder`: rates and sizes of channels, compared with the bare compressors.
//! - `backlog`: share of the blobs admitted by L1 that the batcher uses until its backlog is
//!   posted.
//! - `memory`: peak resident memory of `starling batcher` with a long backlog.
//! - `first_safe`: time from the table that `starling devnet` prints to the first safe block.
//! - `idle`: processor time of batcher and proposer in a node's process, on empty blocks.
//!
//! A figure that misses its bar is marked in the output, and the bench then exits with an error.
//! Arguments name the sections to run (`cargo bench --bench batcher -- encoder idle`). Without
//! arguments all sections run, which takes about ten minutes on two cores. Sizes, with defaults in
//! brackets:
//!
//! - `encoder`: `STARLING_BENCH_BLOCKS` of a channel (1000), `STARLING_BENCH_ROUNDS` (3; the
//!   fastest counts).
//! - `backlog`: `STARLING_BENCH_BACKLOG_BLOCKS` (2000), each with
//!   `STARLING_BENCH_BACKLOG_TRANSFERS` (200).
//! - `memory`: `STARLING_BENCH_MEMORY_BLOCKS` (50000), each with `STARLING_BENCH_MEMORY_TRANSFERS`
//!   (100); posting lasts `STARLING_BENCH_MEMORY_SECONDS` (45).
//! - `first_safe`: `STARLING_BENCH_NETWORKS` that are started (3).
//! - `idle`: `STARLING_BENCH_IDLE_SECONDS` of measurement (60).

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
    // `cargo bench` passes options such as `--bench`; they name no section.
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

/// Prints a figure, marked if it misses its bar. Returns `is_met`.
fn judge(what: &str, is_met: bool) -> bool {
    let verdict = if is_met { "" } else { "   BEYOND ITS BAR" };
    println!("  {what}{verdict}");
    is_met
}
