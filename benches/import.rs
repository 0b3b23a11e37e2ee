//! Import of blocks: from payload bytes to a visible head, on a durable store that holds a million
//! accounts.
//!
//! One run has four sections. *Full blocks* of mixed transactions: the import alternates, chunk by
//! chunk, with its parts measured alone, so that both see the same load of the machine. *Log
//! index*: processes that import the full blocks, alternately with and without the index. *Small
//! blocks* of ten transfers. *Memory*: a separate process imports full blocks from a file at full
//! speed; the kernel reports the process's resident memory and the bytes that it wrote.
//!
//! Sizes: `STARLING_BENCH_ACCOUNTS` (1000000), `STARLING_BENCH_BLOCKS` (150), `STARLING_BENCH_MGAS`
//! of a full block (30), `STARLING_BENCH_SMALL_BLOCKS` (1000), `STARLING_BENCH_CACHE` in megabytes
//! (128, the default of `--cache`), `STARLING_BENCH_MINUTES` of the memory section (1; the bar is
//! meant for 10), `STARLING_BENCH_ROUNDS` of the log index section (5).

#[path = "import/load.rs"]
mod load;
#[path = "import/log_index.rs"]
mod log_index;
#[path = "import/parts.rs"]
mod parts;
mod support;

use alloy_primitives::Bytes;
use futures::{StreamExt, stream};
use load::Load;
use parts::Parts;
use starling::chain::{Chain, Inserted, Options, Threads};
use starling_p2p::Provenance;
use starling_proto::payload::{Payload, PayloadVersion, WirePayload};
use std::{
    fs::File,
    io::{BufReader, BufWriter, Write},
    path::Path,
    process::Command,
    sync::Arc,
    time::{Duration, Instant},
};
use support::{Ground, copy, frames, ms, process, size};

/// The default of `--cache`, in bytes.
fn cache() -> u64 {
    (size("STARLING_BENCH_CACHE", 128) as u64) << 20
}

const SENDERS: usize = 10_000;
/// Payloads that are decoded ahead of their import, and payloads in flight to the executor.
const AHEAD: usize = 3;
/// Blocks that are imported in a row before their parts are measured.
const CHUNK: usize = 25;
const TRANSFERS_OF_SMALL: usize = 10;
/// Bar: longest time of an import, as a multiple of the sum of its parts.
const BAR: f64 = 1.25;
const MEMORY_BAR: f64 = 600.0;
/// Environment variable that makes this program the process of the memory section; its value is the
/// data directory and the file of blocks.
const CHILD: &str = "STARLING_BENCH_CHILD";

fn main() {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    if let Some(paths) = std::env::var_os(CHILD) {
        let paths: Vec<_> = std::env::split_paths(&paths).collect();
        return runtime.block_on(child(&paths[0], &paths[1]));
    }
    if let Some(paths) = std::env::var_os(log_index::CHILD) {
        let paths: Vec<_> = std::env::split_paths(&paths).collect();
        return runtime.block_on(log_index::child(&paths));
    }
    let accounts = size("STARLING_BENCH_ACCOUNTS", 1_000_000);
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = |name: &str| folder.path().join(name);
    let receivers = accounts.saturating_sub(SENDERS);
    let mut database = None;
    let mut ground = Ground::with(1_700_000_000, SENDERS, |alloc, senders| {
        load::genesis(alloc, senders, receivers);
        database = Some(parts::database(alloc));
    });
    starling::chain::init(&path("genesis"), &ground.genesis).expect("the data directory is made");
    for name in ["source", "target", "parts", "child"] {
        copy(&path("genesis"), &path(name));
    }
    let mut parts = Parts::new(&ground, database.expect("it was filled"), &path("parts"));
    ground.genesis.overlay = Default::default();
    println!("{accounts} accounts; a cache of {} MB", cache() >> 20);

    let (source, threads) = open(&path("source"));
    let (target, target_threads) = open(&path("target"));
    let mut maker = BlockMaker {
        ground,
        load: Load::new(receivers),
        source,
        file: BufWriter::new(File::create(path("blocks")).expect("a file")),
    };
    runtime.block_on(measure(&mut maker, &target, &mut parts, folder.path()));
    for (chain, threads) in [(maker.source, threads), (target, target_threads)] {
        drop(chain);
        threads.stop().expect("the chain is stored");
    }
}

/// Runs the sections.
async fn measure(maker: &mut BlockMaker, target: &Chain, parts: &mut Parts, folder: &Path) {
    let blocks = size("STARLING_BENCH_BLOCKS", 150);
    let gas = size("STARLING_BENCH_MGAS", 30) as u64 * 1_000_000;
    let small = size("STARLING_BENCH_SMALL_BLOCKS", 1000);
    let minutes = size("STARLING_BENCH_MINUTES", 1);

    // The gas of a first block shows how many rounds fill a block.
    let probe = maker.full_block(10).await;
    let rounds = (gas as usize * 10 / probe.header.gas_used as usize).max(1);
    let mut chain = vec![probe];
    for _ in 0..blocks {
        chain.push(maker.full_block(rounds).await);
    }
    let title = format!("full blocks: {blocks} of {} Mgas", gas / 1_000_000);
    let full = section(&title, target, &chain, parts).await;
    let batch = parts.batch_bytes as f64 / chain.len() as f64;
    maker.file.flush().expect("the file is written");
    log_index::section(folder, chain.len());

    let mut chain = Vec::with_capacity(small);
    for _ in 0..small {
        chain.push(maker.small_block().await);
    }
    let title = format!("small blocks: {small} of {TRANSFERS_OF_SMALL} transfers");
    let small = section(&title, target, &chain, parts).await;

    let more = minutes as f64 * 60.0 * full.blocks / full.wall.as_secs_f64();
    for _ in full.blocks as usize..more as usize {
        maker.full_block(rounds).await;
    }
    maker.file.flush().expect("the file is written");
    let memory = memory(
        &folder.join("child"),
        &folder.join("blocks"),
        batch * more.max(full.blocks),
    );
    println!(
        "\n{} · {} · {memory}",
        full.closing(),
        small.closing_small()
    );
}

/// Builds blocks on its own store, and writes each to the file that the memory section imports.
struct BlockMaker {
    ground: Ground,
    load: Load,
    source: Chain,
    file: BufWriter<File>,
}

impl BlockMaker {
    async fn full_block(&mut self, rounds: usize) -> Arc<Payload> {
        let transactions = self.load.rounds(&mut self.ground, rounds);
        let block = self.ground.seal(&self.source, transactions).await;
        frames::write(&mut self.file, &block);
        block
    }

    async fn small_block(&mut self) -> Arc<Payload> {
        let block = self.ground.extend(&self.source, TRANSFERS_OF_SMALL).await;
        frames::write(&mut self.file, &block);
        block
    }
}

fn open(datadir: &Path) -> (Chain, Threads) {
    let options = Options {
        datadir: datadir.to_owned(),
        cache: cache(),
        commit_interval: Duration::from_secs(1),
    };
    Chain::open(&options).expect("the chain opens")
}

/// Measurements of one section, over full or small blocks.
struct Figures {
    blocks: f64,
    mgas: f64,
    wall: Duration,
    processor: Duration,
    parts: Duration,
    evm: Duration,
}

/// Imports the blocks at full speed, in chunks, and measures the parts of each chunk after its
/// import. The time of a chunk ends when all its blocks are stored.
async fn section(
    title: &str,
    target: &Chain,
    chain: &[Arc<Payload>],
    parts: &mut Parts,
) -> Figures {
    parts.clear();
    let (mut wall, mut threads) = (Duration::ZERO, process::Threads::default());
    for chunk in chain.chunks(CHUNK) {
        let wire: Vec<Bytes> = chunk
            .iter()
            .map(|payload| payload.to_wire(PayloadVersion::V4).into())
            .collect();
        let (before, begun) = (process::Threads::now(), Instant::now());
        import(target, stream::iter(wire)).await;
        while target.view().stored() != target.view().head() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        wall += begun.elapsed();
        threads.add(&process::Threads::now().since(&before));
        chunk
            .iter()
            .for_each(|payload| parts.measure(target, payload));
    }
    let figures = Figures {
        blocks: chain.len() as f64,
        mgas: chain
            .iter()
            .map(|payload| payload.header.gas_used)
            .sum::<u64>() as f64
            / 1e6,
        wall,
        processor: threads.sum(),
        parts: parts.sum(),
        evm: parts.evm.sum(),
    };
    figures.print(title, chain, parts, &threads);
    figures
}

/// Inserts payloads as the follower does: decoded on other threads, a few in flight at a time.
async fn import(chain: &Chain, wire: impl stream::Stream<Item = Bytes>) {
    let decode = |bytes: Bytes| {
        tokio::task::spawn_blocking(move || {
            WirePayload::decode(PayloadVersion::V4, &bytes)?
                .into_payload()
                .map_err(anyhow::Error::from)
        })
    };
    let mut answers = std::pin::pin!(
        wire.map(decode)
            .buffered(AHEAD)
            .map(|payload| Arc::new(payload.expect("decoding ends").expect("it is a payload")))
            .then(|payload| {
                let provenance = Provenance::Linked {
                    tip: payload.number(),
                };
                chain.submit(payload, provenance)
            })
            .map(|submitted| submitted.expect("the chain runs"))
            .buffered(AHEAD)
    );
    while let Some(answer) = answers.next().await {
        assert_eq!(answer.expect("the chain runs"), Inserted::Valid);
    }
}

impl Figures {
    fn per_block(&self, time: Duration) -> f64 {
        ms(time) / self.blocks
    }

    fn ratio(&self, other: Duration) -> f64 {
        self.wall.as_secs_f64() / other.as_secs_f64()
    }

    fn print(
        &self,
        title: &str,
        chain: &[Arc<Payload>],
        parts: &Parts,
        threads: &process::Threads,
    ) {
        let transactions = chain
            .iter()
            .map(|payload| payload.transactions.len())
            .sum::<usize>() as f64;
        let [gas, transactions, batch] =
            [self.mgas, transactions, parts.batch_bytes as f64 / 1e3].map(|sum| sum / self.blocks);
        println!(
            "\n{title}: {transactions:.0} transactions, {gas:.1} Mgas, a batch of {batch:.0} kB each"
        );
        let rows = [
            ("sender recovery, all cores", parts.recovery.sum()),
            ("bare op-revm", parts.evm.sum()),
            ("roots in memory, all cores", parts.roots.sum()),
            ("commit to a bare database", parts.commit.sum()),
            ("sum of the parts", self.parts),
            ("import", self.wall),
        ];
        for (name, time) in rows {
            println!(
                "  {name:<30} {:>9.3} ms a block {:>8.0} Mgas/s",
                self.per_block(time),
                self.mgas / time.as_secs_f64()
            );
        }
        println!(
            "  ratio to the sum of the parts {:.2} (bar {BAR}), to bare op-revm {:.2}",
            self.ratio(self.parts),
            self.ratio(self.evm)
        );
        // Compare processor times, which other load of the machine hardly changes. The database's
        // threads are excluded, since they may work for either measurement at any time.
        let [ours, theirs] =
            [threads.foreground(), parts.processor].map(|time| self.per_block(time));
        println!(
            "  processor time without the database's threads {ours:.3} ms, of the parts {theirs:.3} ms, ratio {:.2}",
            ours / theirs
        );
        println!(
            "  processor time of the import {:.3} ms a block, of that",
            self.per_block(self.processor)
        );
        for (name, time) in threads.table() {
            println!("    {name:<28} {:>9.3} ms", self.per_block(time));
        }
    }

    fn closing(&self) -> String {
        let rate = self.mgas / self.wall.as_secs_f64();
        format!(
            "import {:.2} x its parts, {:.2} x op-revm, {rate:.0} Mgas/s",
            self.ratio(self.parts),
            self.ratio(self.evm)
        )
    }

    fn closing_small(&self) -> String {
        let rate = self.blocks / self.wall.as_secs_f64();
        format!(
            "small blocks {rate:.0}/s, {:.2} ms of processor each",
            self.per_block(self.processor)
        )
    }
}

/// Runs the process that imports the file of blocks. `batch` is the size in bytes of the batches
/// that the parts wrote for the same blocks.
fn memory(datadir: &Path, blocks: &Path, batch: f64) -> String {
    let program = std::env::current_exe().expect("the bench has a path");
    let paths = std::env::join_paths([datadir, blocks]).expect("the paths can be joined");
    let output = Command::new(program)
        .env(CHILD, paths)
        .stderr(std::process::Stdio::inherit())
        .output()
        .expect("it runs");
    assert!(
        output.status.success(),
        "the process of the memory section failed"
    );
    let output = String::from_utf8_lossy(&output.stdout);
    let figures: Vec<f64> = output
        .split_whitespace()
        .filter_map(|figure| figure.parse().ok())
        .collect();
    let [seconds, mgas, fresh, peak, last, written] = figures[..] else {
        panic!("six figures, not {output}")
    };
    println!(
        "\nmemory: {mgas:.0} Mgas in {seconds:.0} s at full speed, {:.0} Mgas/s",
        mgas / seconds
    );
    println!(
        "  resident when fresh {fresh:.0} MB, at the end {last:.0} MB, at most {peak:.0} MB (bar {MEMORY_BAR})"
    );
    let amplification = written * 1e6 / batch;
    println!("  written {written:.0} MB, {amplification:.2} bytes a byte of batch");
    format!(
        "at most {peak:.0} MB resident in {seconds:.0} s, {amplification:.2} bytes written a byte of batch"
    )
}

/// The process of the memory section: imports the file and prints seconds, Mgas, and megabytes:
/// resident memory at the start, at its peak and at the end, and bytes written.
async fn child(datadir: &Path, blocks: &Path) {
    let (chain, threads) = open(datadir);
    let mut file = BufReader::new(File::open(blocks).expect("the file of blocks"));
    let (fresh, _) = process::resident();
    let begun = Instant::now();
    import(
        &chain,
        stream::iter(std::iter::from_fn(|| frames::read(&mut file))),
    )
    .await;
    let seconds = begun.elapsed().as_secs_f64();
    let (last, peak) = process::resident();
    let view = chain.view();
    let mut gas = 0;
    for number in 1..=view.head().number {
        gas += view
            .header_of(number)
            .expect("a header")
            .expect("it is stored")
            .gas_used;
    }
    drop((view, chain));
    threads.stop().expect("the chain is stored");
    let [fresh, peak, last, written] =
        [fresh, peak, last, process::written()].map(|bytes| bytes as f64 / 1e6);
    println!(
        "{seconds} {} {fresh} {peak} {last} {written}",
        gas as f64 / 1e6
    );
}
