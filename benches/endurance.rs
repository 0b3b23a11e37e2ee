//! A node that follows a chain of small blocks for long: how late a block becomes the head, what the process holds in memory, and what
//! the blocks take on the disk.
//!
//! A second process is the node: it gets blocks one by one over a pipe, as a follower gets them from the swarm, and shows each minute how
//! long blocks took from decoded bytes to a visible head: no compaction may hold one up. This process makes the blocks ahead, in a store
//! that keeps no history, and shares the machine with the node: a block that waits for a core waits in these figures too. The machine's
//! own stalls are in the last column: the longest that a thread which only sleeps for a millisecond overslept.
//!
//! Sizes: `STARLING_BENCH_MINUTES` (1; the bars are meant for 30), `STARLING_BENCH_RATE` of blocks a second (100), or 0 for full speed,
//! `STARLING_BENCH_ACCOUNTS` (1000000), `STARLING_BENCH_TRANSFERS` of a block (10), `STARLING_BENCH_CACHE` in megabytes (128, the default
//! of `--cache`).

mod support;

use starling::chain::{self, Chain, Inserted, Options, Threads, stats};
use starling_p2p::Provenance;
use starling_proto::payload::{Payload, PayloadVersion, WirePayload};
use std::{
    io::{BufReader, BufWriter, Write},
    path::Path,
    process::{Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};
use support::{Times, copy, frames, ms, process, size, spread::Spread};

/// Longest that the import of a block may take because of a compaction.
const STALL_BAR: Duration = Duration::from_millis(100);
const MEMORY_BAR: f64 = 300.0;
/// States that are kept by default.
const HISTORY: u64 = 302_400;
/// Blocks behind the head that are finalized, in both stores.
const FINALIZED: u64 = 1000;
const ROW_EVERY: Duration = Duration::from_secs(60);
/// Set for the process that is the node: its data directory.
const CHILD: &str = "STARLING_BENCH_CHILD";

fn main() {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    match std::env::var_os(CHILD) {
        Some(datadir) => runtime.block_on(node(Path::new(&datadir))),
        None => runtime.block_on(make()),
    }
}

/// Makes blocks and gives them to the node until the time is over.
async fn make() {
    let accounts = size("STARLING_BENCH_ACCOUNTS", 1_000_000);
    let rate = size("STARLING_BENCH_RATE", 100) as u32;
    let time = Duration::from_secs(60 * size("STARLING_BENCH_MINUTES", 1) as u64);
    let transfers = size("STARLING_BENCH_TRANSFERS", 10);
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = |name: &str| folder.path().join(name);

    let (mut ground, mut spread) = Spread::new(accounts);
    chain::init(&path("node"), &ground.genesis).expect("the data directory is made");
    ground.genesis.overlay = Default::default();
    copy(&path("node"), &path("maker"));
    let state = stats::folder(&path("node"));
    println!(
        "{accounts} accounts on {:.0} MB of disk, {:.0} bytes each; blocks of {transfers} transfers; a cache of {} MB",
        state as f64 / 1e6,
        state as f64 / accounts as f64,
        options(&path("node")).cache >> 20
    );

    let program = std::env::current_exe().expect("the bench has a path");
    let mut node = Command::new(program).env(CHILD, path("node")).stdin(Stdio::piped()).spawn().expect("it runs");
    let mut pipe = BufWriter::new(node.stdin.take().expect("its input"));
    let (chain, threads) = open(&path("maker"), 1);
    let (begun, mut made) = (Instant::now(), 0);
    while begun.elapsed() < time {
        let block = spread.block(&mut ground, &chain, transfers).await;
        finalize(&chain, &block).await;
        frames::write(&mut pipe, &block);
        pipe.flush().expect("the node runs");
        made += 1;
        if rate > 0 {
            tokio::time::sleep_until((begun + Duration::from_secs(1) * made / rate).into()).await;
        }
    }
    drop(pipe);
    assert!(node.wait().expect("it ends").success(), "the node failed");
    drop(chain);
    threads.stop().expect("the chain is stored");
    let blocks = stats::folder(&path("node")).saturating_sub(state) as f64;
    println!("on the disk {:.0} MB more, {:.0} bytes a block", blocks / 1e6, blocks / f64::from(made));
}

/// Once in a while: what is far behind the head is final.
async fn finalize(chain: &Chain, head: &Payload) {
    if head.number().is_multiple_of(FINALIZED)
        && let Some(hash) = chain.view().hash_of(head.number() - FINALIZED).expect("a read")
    {
        chain.forkchoice(head.hash, Some(hash), Some(hash)).await.expect("it is on the branch of the head");
    }
}

fn options(datadir: &Path) -> Options {
    let cache = (size("STARLING_BENCH_CACHE", 128) as u64) << 20;
    Options { datadir: datadir.to_owned(), cache, commit_interval: Duration::from_secs(1) }
}

fn open(datadir: &Path, states: u64) -> (Chain, Threads) {
    let opened = Chain::open(&options(datadir)).expect("the chain opens");
    opened.0.keep_states(Some(states));
    opened
}

/// The node: follows until the pipe ends.
async fn node(datadir: &Path) {
    let (chain, threads) = open(datadir, HISTORY);
    let mut pipe = BufReader::new(std::io::stdin());
    let overslept = Overslept::watch();
    let (mut all, mut minute, mut row, begun) = (Times::default(), Times::default(), Instant::now(), Instant::now());
    println!("  minute   blocks    p50 ms    p99 ms    max ms   resident MB   overslept ms");
    while let Some(wire) = frames::read(&mut pipe) {
        let decoded = WirePayload::decode(PayloadVersion::V4, &wire).expect("a payload").into_payload();
        let payload = Arc::new(decoded.expect("it is whole"));
        let sent = Instant::now();
        let provenance = Provenance::Linked { tip: payload.number() };
        let inserted = chain.submit(payload.clone(), provenance).await.expect("the chain runs").await;
        assert_eq!(inserted.expect("the chain runs"), Inserted::Valid);
        all.push(sent.elapsed());
        minute.push(sent.elapsed());
        finalize(&chain, &payload).await;
        if row.elapsed() >= ROW_EVERY {
            let [p50, p99, max] = [50, 99, 100].map(|percent| ms(minute.percentile(percent)));
            let (minutes, resident) = (begun.elapsed().as_secs() / 60, process::resident().0 as f64 / 1e6);
            let (blocks, slept) = (minute.len(), ms(overslept.take()));
            println!("{minutes:>8} {blocks:>8} {p50:>9.3} {p99:>9.3} {max:>9.3} {resident:>13.0} {slept:>14.1}");
            (minute, row) = (Times::default(), Instant::now());
        }
    }
    let late = all.longer_than(STALL_BAR);
    let [p50, p99, max] = [50, 99, 100].map(|percent| ms(all.percentile(percent)));
    println!(
        "{} blocks in {:.1} minutes: p50 {p50:.3} ms, p99 {p99:.3} ms, at most {max:.3} ms; {late} took longer than {} ms",
        all.len(),
        begun.elapsed().as_secs_f64() / 60.0,
        STALL_BAR.as_millis()
    );
    drop(chain);
    threads.stop().expect("the chain is stored");
    let (last, peak) = process::resident();
    println!("resident at most {:.0} MB (bar {MEMORY_BAR:.0}), at the end {:.0} MB", peak as f64 / 1e6, last as f64 / 1e6);
}

/// How long this machine lets a thread wait that wants a core.
struct Overslept(Arc<AtomicU64>);

impl Overslept {
    fn watch() -> Self {
        let longest = Arc::new(AtomicU64::new(0));
        let told = Arc::downgrade(&longest);
        std::thread::spawn(move || {
            const NAP: Duration = Duration::from_millis(1);
            loop {
                let begun = Instant::now();
                std::thread::sleep(NAP);
                let Some(longest) = told.upgrade() else { return };
                longest.fetch_max(begun.elapsed().saturating_sub(NAP).as_nanos() as u64, Ordering::Relaxed);
            }
        });
        Self(longest)
    }

    /// The longest since the last call.
    fn take(&self) -> Duration {
        Duration::from_nanos(self.0.swap(0, Ordering::Relaxed))
    }
}
