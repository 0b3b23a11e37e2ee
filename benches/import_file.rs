//! `starling import` of small blocks. A file of blocks of ten transfers, each to any of a million
//! accounts, passes through the whole of `transfer::import`: from the first byte read until the
//! store is closed.
//!
//! The same file is imported twice, each time in a separate process: into a *durable* data
//! directory on a disk, and into one *in memory*, on `/dev/shm`. Journals, tables and compaction
//! are the same in both. Only the durable import writes to a device, so that the difference is the
//! cost of the disk. Both imports read the file from the page cache.
//!
//! Sizes: `STARLING_BENCH_ACCOUNTS` (1000000), `STARLING_BENCH_BLOCKS` (5000),
//! `STARLING_BENCH_TRANSFERS` of a block (10), `STARLING_BENCH_CACHE` in megabytes (128, the
//! default of `--cache`).

mod support;

use starling::{
    chain::{self, Chain, Options, store::IndexWindow},
    cli::config::HistoryConfig,
    transfer::{self, block_file::BlockWriter},
};
use std::{
    path::Path,
    process::{Command, Stdio},
    time::{Duration, Instant},
};
use support::{Ground, copy, process, size, spread::Spread};
use tokio_util::sync::CancellationToken;

const BAR: f64 = 2000.0;
const RATIO_BAR: f64 = 0.8;
/// Environment variable that makes this program the importing process; its value is the data
/// directory and the file of blocks.
const CHILD: &str = "STARLING_BENCH_CHILD";
const MEMORY: &str = "/dev/shm";
/// A node's default retention of old states and proofs.
const HISTORY: HistoryConfig = HistoryConfig {
    states: Some(302_400),
    proofs: 20_000_000_000,
    names: false,
    logs: IndexWindow::Blocks(2_350_000),
    addresses: false,
};

fn main() {
    if let Some(paths) = std::env::var_os(CHILD) {
        let paths: Vec<_> = std::env::split_paths(&paths).collect();
        return child(&paths[0], &paths[1]);
    }
    let accounts = size("STARLING_BENCH_ACCOUNTS", 1_000_000);
    let (blocks, transfers) = (
        size("STARLING_BENCH_BLOCKS", 5000),
        size("STARLING_BENCH_TRANSFERS", 10),
    );
    let disk = tempfile::tempdir().expect("a temporary folder");
    let memory = tempfile::tempdir_in(MEMORY).expect("a temporary folder in memory");
    let file = memory.path().join("blocks");

    let (mut ground, mut spread) = Spread::new(accounts);
    let genesis = memory.path().join("genesis");
    chain::init(&genesis, &ground.genesis).expect("the data directory is made");
    ground.genesis.overlay = Default::default();
    for folder in [&disk, &memory] {
        copy(&genesis, &folder.path().join("data"));
    }
    let (chain, threads) = Chain::open(&options(&genesis)).expect("the chain opens");
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(make(
        &mut spread,
        &mut ground,
        &chain,
        blocks,
        transfers,
        &file,
    ));
    drop(chain);
    threads.stop().expect("the chain is stored");
    std::fs::remove_dir_all(&genesis).expect("it is no longer needed");

    println!(
        "{blocks} blocks of {transfers} transfers, {accounts} accounts, a cache of {} MB",
        options(&genesis).cache >> 20
    );
    let in_memory = import("in memory", &memory.path().join("data"), &file, blocks);
    let durable = import("durable", &disk.path().join("data"), &file, blocks);
    println!(
        "\nimport of a file: {durable:.0} small blocks/s (bar {BAR:.0}), in memory {in_memory:.0}, ratio {:.2} (bar {RATIO_BAR})",
        durable / in_memory
    );
}

/// Makes the blocks and writes them to the file.
async fn make(
    spread: &mut Spread,
    ground: &mut Ground,
    chain: &Chain,
    blocks: usize,
    transfers: usize,
    file: &Path,
) {
    let mut file = BlockWriter::create(file, false).expect("a file");
    for _ in 0..blocks {
        file.write(&*spread.block(ground, chain, transfers).await)
            .expect("the block is written");
    }
    file.finish().expect("the file is written");
}

fn options(datadir: &Path) -> Options {
    let cache = (size("STARLING_BENCH_CACHE", 128) as u64) << 20;
    Options {
        datadir: datadir.to_owned(),
        cache,
        commit_interval: Duration::from_secs(1),
    }
}

/// Runs the process that imports the file and prints its figures. Returns blocks per second.
fn import(name: &str, datadir: &Path, file: &Path, blocks: usize) -> f64 {
    let program = std::env::current_exe().expect("the bench has a path");
    let paths = std::env::join_paths([datadir, file]).expect("the paths can be joined");
    let output = Command::new(program)
        .env(CHILD, paths)
        .stderr(Stdio::inherit())
        .output()
        .expect("it runs");
    assert!(output.status.success(), "the process that imports failed");
    let output = String::from_utf8_lossy(&output.stdout);
    let mut rows = output
        .lines()
        .filter_map(|line| line.rsplit_once(' '))
        .filter_map(|(name, n)| Some((name, n.parse().ok()?)));
    let mut figure = |wanted| {
        rows.next()
            .filter(|(name, _)| *name == wanted)
            .map_or(0.0, |(_, figure): (_, f64)| figure)
    };
    let [seconds, processor, peak, written] =
        ["seconds", "processor", "peak", "written"].map(&mut figure);
    let rate = blocks as f64 / seconds;
    println!(
        "\n{name}: {rate:.0} blocks/s, {seconds:.2} s, at most {peak:.0} MB resident, {written:.0} MB written to devices"
    );
    println!(
        "  processor time of a block {:>9.3} ms, of that",
        processor * 1e3 / blocks as f64
    );
    for (thread, seconds) in rows {
        println!("    {thread:<24} {:>9.3} ms", seconds * 1e3 / blocks as f64);
    }
    rate
}

/// The process that imports: prints seconds, processor time, peak of resident memory and bytes
/// written (in megabytes), then the processor time of each thread.
fn child(datadir: &Path, file: &Path) {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let (watch, before, begun) = (
        process::Watch::start(),
        process::processor(),
        Instant::now(),
    );
    let files = [file.to_owned()];
    let imported = transfer::import(options(datadir), HISTORY, &files, CancellationToken::new());
    runtime.block_on(imported).expect("the blocks are imported");
    let (seconds, processor) = (begun.elapsed(), process::processor() - before);
    let (_, peak) = process::resident();
    println!(
        "seconds {}\nprocessor {}",
        seconds.as_secs_f64(),
        processor.as_secs_f64()
    );
    println!(
        "peak {}\nwritten {}",
        peak as f64 / 1e6,
        process::written() as f64 / 1e6
    );
    for (name, spent) in watch.stop().table() {
        println!("{name} {}", spent.as_secs_f64());
    }
}
