//! Speed and memory of derivation alone, on one core: L1 blocks in, attributes out, no execution.
//!
//! One run has three sections. *Near-empty blocks*: chains that op-node derived, and one made with
//! our encoder. *Full blocks*: span batches compressed with brotli 10, compared with only
//! decompressing and parsing the same channels. *Memory*: cases of a hostile batcher, each in its
//! own process, with the peak of resident memory that the kernel reports.
//!
//! A result that misses its bar is marked, and the bench then ends with an error.
//!
//! Environment variables and defaults: `STARLING_BENCH_BLOCKS` (12000) near-empty blocks,
//! `STARLING_BENCH_FULL_BLOCKS` (400) full blocks, `STARLING_BENCH_ROUNDS` (5) rounds, of which the
//! fastest counts. `STARLING_BENCH_ONLY` selects a section: empty, full or memory.

#[path = "../tests/hostile_memory/cases.rs"]
mod cases;
#[path = "pipeline/feed.rs"]
mod feed;
#[path = "pipeline/generated.rs"]
mod generated;
#[path = "../tests/derive/recorded.rs"]
mod recorded;

use feed::Feed;
use generated::{Generated, Shape, generate};
use recorded::Recording;
use starling_proto::{batch::Batch, channel::BatchReader, fork::Fork};
use std::{
    hint::black_box,
    process::{Command, ExitCode},
    time::{Duration, Instant},
};

/// Bar: least number of near-empty blocks per second.
const EMPTY_BAR: f64 = 20_000.0;
/// Bar: least speed of the pipeline, as a fraction of the speed of decompressing and parsing alone.
const FULL_BAR: f64 = 0.6;
/// Bar: largest memory, in bytes, above the memory that the protocol requires.
const MEMORY_BAR: u64 = 64_000_000;
const TRANSACTIONS_OF_FULL: u64 = 100;
/// Environment variable that tells a child process of the memory section the index of its case.
const CHILD: &str = "STARLING_BENCH_CHILD";

fn main() -> ExitCode {
    if let Ok(index) = std::env::var(CHILD) {
        child(index.parse().expect("an index"));
        return ExitCode::SUCCESS;
    }
    let only = std::env::var("STARLING_BENCH_ONLY").ok();
    let is_wanted = |name: &str| only.as_deref().is_none_or(|only| only == name);
    let mut held = true;
    if is_wanted("empty") {
        held &= near_empty();
    }
    if is_wanted("full") {
        held &= full();
    }
    if is_wanted("memory") {
        held &= memory();
    }
    if held {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn size(name: &str, default: u64) -> u64 {
    let text = std::env::var(name).ok();
    text.and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// Runs all functions in alternation for some rounds. Returns the fastest time of each.
fn fastest<const N: usize>(mut runs: [&mut dyn FnMut(); N]) -> [Duration; N] {
    let mut best = [Duration::MAX; N];
    for _ in 0..size("STARLING_BENCH_ROUNDS", 5) {
        for (best, run) in best.iter_mut().zip(&mut runs) {
            let begin = Instant::now();
            run();
            *best = begin.elapsed().min(*best);
        }
    }
    best
}

fn verdict(held: bool) -> &'static str {
    if held { "" } else { "   missed" }
}

fn near_empty() -> bool {
    println!("near-empty blocks, blocks/s (bar {EMPTY_BAR})");
    let mut held = true;
    let mut measure = |name: &str, feed: &Feed| {
        let blocks = feed.l2.len() - 1;
        // Short chains are derived several times per round.
        let times = 10_000 / blocks + 1;
        let [time] = fastest([&mut || (0..times).for_each(|_| feed.derive())]);
        let rate = (blocks * times) as f64 / time.as_secs_f64();
        let is_held = rate >= EMPTY_BAR;
        held &= is_held;
        println!(
            "{name:<36} {blocks:>6} blocks {rate:>9.0}{}",
            verdict(is_held)
        );
    };
    for name in ["ladder-singular", "jovian-blobs", "jovian-span"] {
        match Recording::load(name) {
            Some(recording) => measure(&format!("{name} (recorded)"), &recording.into()),
            None => println!("{name} (recorded): no fixtures"),
        }
    }
    for fork in [Fork::Granite, Fork::Jovian] {
        let generated = generate(&Shape {
            fork,
            blocks: size("STARLING_BENCH_BLOCKS", 12_000),
            span: 600,
            transactions: |number| u64::from(number.is_multiple_of(4)),
        });
        measure(
            &format!("{fork:?}, spans of 600 (our encoder)"),
            &generated.feed,
        );
    }
    held
}

fn full() -> bool {
    println!(
        "full blocks of {TRANSACTIONS_OF_FULL} transactions, span batches, brotli 10 (bar {FULL_BAR} of bare)"
    );
    let mut held = true;
    for fork in [Fork::Granite, Fork::Jovian] {
        let generated = generate(&Shape {
            fork,
            blocks: size("STARLING_BENCH_FULL_BLOCKS", 400),
            span: 100,
            transactions: |_| TRANSACTIONS_OF_FULL,
        });
        let [bare, pipeline] =
            fastest([&mut || parse(&generated), &mut || generated.feed.derive()]);
        let blocks = (generated.feed.l2.len() - 1) as f64;
        let rate = |time: Duration| blocks / time.as_secs_f64();
        let share = bare.as_secs_f64() / pipeline.as_secs_f64();
        let bytes: usize = generated.channels.iter().map(|data| data.len()).sum();
        held &= share >= FULL_BAR;
        println!(
            "{:<10} {bytes:>9} bytes of channels; blocks/s: bare {:>7.0}, pipeline {:>7.0}, {share:.2}{}",
            format!("{fork:?}"),
            rate(bare),
            rate(pipeline),
            verdict(share >= FULL_BAR)
        );
    }
    held
}

/// Decompresses all channels and copies out their transactions.
fn parse(generated: &Generated) {
    for data in &generated.channels {
        let reader = BatchReader::new(data.clone(), generated.context, true);
        let mut reader = reader.expect("a channel");
        while let Some(batch) = reader.next_batch() {
            let Ok(Batch::Span(span)) = batch else {
                panic!("no span batch");
            };
            for block in span.blocks {
                black_box(block.transactions.iter().collect::<Vec<_>>());
            }
        }
    }
}

fn memory() -> bool {
    println!(
        "memory of a hostile batcher, MB (bar {} above the protocol's)",
        MEMORY_BAR / 1_000_000
    );
    println!(
        "{:<55} {:>9} {:>6} {:>6} {:>6}",
        "", "protocol", "peak", "above", "s"
    );
    let mut held = true;
    for (index, (name, _)) in cases::CASES.iter().enumerate() {
        let begin = Instant::now();
        let program = std::env::current_exe().expect("this program");
        let output = Command::new(program).env(CHILD, index.to_string()).output();
        let output = output.expect("a process");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let numbers: Vec<u64> = text.split_whitespace().flat_map(str::parse).collect();
        let [protocol, peak] = numbers[..] else {
            println!("{name}: {text}{}", String::from_utf8_lossy(&output.stderr));
            held = false;
            continue;
        };
        let above = peak.saturating_sub(protocol);
        let is_held = above <= MEMORY_BAR || name.contains("no bound");
        held &= is_held;
        let mb = |bytes: u64| bytes as f64 / 1e6;
        println!(
            "{name:<55} {:>9.1} {:>6.0} {:>6.0} {:>6.1}{}",
            mb(protocol),
            mb(peak),
            mb(above),
            begin.elapsed().as_secs_f64(),
            verdict(is_held)
        );
    }
    held
}

/// Runs one memory case. Prints the bytes that the protocol requires and the peak in bytes.
fn child(index: usize) {
    let (name, make) = cases::CASES[index];
    let case = make(1);
    let (protocol, (reason, times)) = (case.protocol, case.dropped);
    let (peak, (_, drops)) = cases::peak_memory(|| case.run());
    assert_eq!(drops.get(reason), times, "{name}: {drops:?}");
    println!("{protocol} {peak}");
}
