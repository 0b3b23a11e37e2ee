//! A node that follows a chain of small blocks for a long time: the delay until each block is the
//! head, the memory of the process, and the disk space of the blocks.
//!
//! The node runs in a second process. It receives blocks one by one over a pipe, as a follower
//! receives them from the swarm. Each minute it prints the delays from a decoded block to a visible
//! head, in which long compactions would show. The first process makes the blocks. Its store keeps
//! no history and is in memory if there is enough, so that only the node uses the disk. The cores
//! are shared, so that waiting for a core is part of the printed delays. The last columns show
//! delays that the machine itself causes: the longest oversleep of a thread that sleeps for a
//! millisecond, and the longest uncached read of 4 kB, repeated every 10 ms, of a file that the
//! node does not use.
//!
//! Sizes, with defaults in brackets:
//!
//! - `STARLING_BENCH_MINUTES` (1; the bars are meant for 30)
//! - `STARLING_BENCH_RATE`: blocks a second (100), or 0 for full speed
//! - `STARLING_BENCH_BLOCKS`: blocks of the chain at the start, with their history (0). In these
//!   blocks senders pay each other, which makes the blocks faster to build.
//! - `STARLING_BENCH_KEPT`: a folder in which the initial chain is built and kept. An interrupted
//!   build continues with the store options that it began with.
//! - `STARLING_BENCH_ACCOUNTS` (1000000)
//! - `STARLING_BENCH_TRANSFERS` of a block (10)
//! - `STARLING_BENCH_CACHE` in megabytes (128, the default of `--cache`)

mod support;

use starling::{
    chain::{self, Chain, Inserted, Options, Threads},
    db::stats,
};
use starling_p2p::Provenance;
use starling_proto::payload::{Payload, PayloadVersion, WirePayload};
use std::{
    io::{BufReader, BufWriter, Write},
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::{Path, PathBuf},
    process::{ChildStdin, Command, Stdio},
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};
use support::{Ground, Times, copy, frames, ms, process, size, spread::Spread};

/// Bar: longest delay that a compaction may cause in the import of a block.
const STALL_BAR: Duration = Duration::from_millis(100);
const MEMORY_BAR: f64 = 300.0;
/// Number of recent states that a node keeps by default.
const HISTORY: u64 = 302_400;
/// Blocks from one finalization to the next, and from the finalized block to the head at that time.
const FINALIZED: u64 = 1000;
const ROW_EVERY: Duration = Duration::from_secs(60);
/// In-memory folder (tmpfs), and the bytes that the store of the block-making process may grow by.
const MEMORY: &str = "/dev/shm";
const MAKER: u64 = 8 << 30;
/// Environment variable that makes this program the node process; its value is the data directory.
const CHILD: &str = "STARLING_BENCH_CHILD";

fn main() {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    match std::env::var_os(CHILD) {
        Some(datadir) => runtime.block_on(node(Path::new(&datadir))),
        None => runtime.block_on(make()),
    }
}

/// Makes blocks and sends them to the node until the time is over.
async fn make() {
    let accounts = size("STARLING_BENCH_ACCOUNTS", 1_000_000);
    let before = size("STARLING_BENCH_BLOCKS", 0) as u64;
    let transfers = size("STARLING_BENCH_TRANSFERS", 10);
    let folder = tempfile::tempdir().expect("a temporary folder");
    let datadir = folder.path().join("node");

    let (mut ground, mut spread) = Spread::new(accounts);
    let kept = std::env::var_os("STARLING_BENCH_KEPT").map(PathBuf::from);
    let built = kept.as_ref().unwrap_or(&datadir);
    let state = begin(&mut ground, built, accounts, before, transfers).await;
    if let Some(kept) = &kept {
        copy(kept, &datadir);
    }
    ground.genesis.overlay = Default::default();
    let maker = maker_folder(state);
    copy(&datadir, maker.path());

    let program = std::env::current_exe().expect("the bench has a path");
    let mut node = Command::new(program)
        .env(CHILD, &datadir)
        .stdin(Stdio::piped())
        .spawn()
        .expect("it runs");
    let pipe = BufWriter::new(node.stdin.take().expect("its input"));
    let (chain, threads) = open(maker.path(), 1);
    ground.resume(&chain);
    let made = feed(pipe, &chain, async || {
        spread.block(&mut ground, &chain, transfers).await
    })
    .await;
    assert!(node.wait().expect("it ends").success(), "the node failed");
    drop(chain);
    threads.stop().expect("the chain is stored");
    let blocks = stats::folder(&datadir).saturating_sub(state) as f64;
    println!(
        "on the disk {:.0} MB more, {:.0} bytes a block",
        blocks / 1e6,
        blocks / f64::from(made)
    );
}

/// A folder for the store of the block-making process. It is in memory if there is room for `state`
/// and `MAKER` bytes, so that only the node uses the disk.
fn maker_folder(state: u64) -> tempfile::TempDir {
    let roomy = |stat: nix::sys::statvfs::Statvfs| {
        stat.blocks_available() * stat.fragment_size() > state + MAKER
    };
    let in_memory = nix::sys::statvfs::statvfs(MEMORY).is_ok_and(roomy);
    let maker = if in_memory {
        tempfile::tempdir_in(MEMORY)
    } else {
        tempfile::tempdir()
    };
    maker.expect("a temporary folder")
}

/// Makes blocks at the configured rate for the configured time and writes them to the pipe. Returns
/// the number of blocks.
async fn feed(
    mut pipe: BufWriter<ChildStdin>,
    chain: &Chain,
    mut next: impl AsyncFnMut() -> Arc<Payload>,
) -> u32 {
    let rate = size("STARLING_BENCH_RATE", 100) as u32;
    let time = Duration::from_secs(60 * size("STARLING_BENCH_MINUTES", 1) as u64);
    let (begun, mut made) = (Instant::now(), 0);
    while begun.elapsed() < time {
        let block = next().await;
        finalize(chain, &block).await;
        frames::write(&mut pipe, &block);
        pipe.flush().expect("the node runs");
        made += 1;
        if rate > 0 {
            tokio::time::sleep_until((begun + Duration::from_secs(1) * made / rate).into()).await;
        }
    }
    made
}

/// Builds the node's initial chain, or continues an interrupted build. Returns the chain's size in
/// bytes.
async fn begin(
    ground: &mut Ground,
    datadir: &Path,
    accounts: usize,
    blocks: u64,
    transfers: usize,
) -> u64 {
    let new = chain::init(datadir, &ground.genesis).expect("the data directory is made");
    let state = stats::folder(datadir);
    if new {
        println!(
            "{accounts} accounts on {:.0} MB of disk, {:.0} bytes each",
            state as f64 / 1e6,
            state as f64 / accounts as f64
        );
    }
    println!(
        "blocks of {transfers} transfers; a cache of {} MB",
        options(datadir).cache >> 20
    );
    let ((chain, threads), begun) = (open(datadir, HISTORY), Instant::now());
    ground.resume(&chain);
    let there = chain.view().head().number;
    if there > 0 {
        println!("{there} blocks are there already");
    }
    for made in there + 1..=blocks {
        finalize(&chain, &*ground.extend(&chain, transfers).await).await;
        if made.is_multiple_of(100_000) {
            println!(
                "{made} blocks before, after {:.0} minutes",
                begun.elapsed().as_secs_f64() / 60.0
            );
        }
    }
    drop(chain);
    threads.stop().expect("the chain is stored");
    let whole = stats::folder(datadir);
    if blocks > 0 && new {
        let more = whole.saturating_sub(state) as f64;
        println!(
            "{blocks} blocks before on {:.0} MB, {:.0} bytes each",
            more / 1e6,
            more / blocks as f64
        );
    }
    whole
}

/// Finalizes a block `FINALIZED` behind the head, every `FINALIZED` blocks.
async fn finalize(chain: &Chain, head: &Payload) {
    if head.number().is_multiple_of(FINALIZED)
        && let Some(hash) = chain
            .view()
            .hash_of(head.number() - FINALIZED)
            .expect("a read")
    {
        chain
            .forkchoice(head.hash, Some(hash), Some(hash))
            .await
            .expect("it is on the branch of the head");
    }
}

fn options(datadir: &Path) -> Options {
    let cache = (size("STARLING_BENCH_CACHE", 128) as u64) << 20;
    Options {
        datadir: datadir.to_owned(),
        cache,
        commit_interval: Duration::from_secs(1),
    }
}

fn open(datadir: &Path, states: u64) -> (Chain, Threads) {
    let opened = Chain::open(&options(datadir)).expect("the chain opens");
    opened.0.keep_states(Some(states));
    opened
}

/// The node process: follows the chain until the pipe ends.
async fn node(datadir: &Path) {
    let (chain, threads) = open(datadir, HISTORY);
    let mut pipe = BufReader::new(std::io::stdin());
    let (overslept, read) = (
        Probe::watch(oversleep),
        Probe::watch(disk_read(datadir.parent().expect("a folder"))),
    );
    let (mut all, mut minute, mut late) = (Times::default(), Times::default(), Vec::new());
    let (mut row, begun) = (Instant::now(), Instant::now());
    println!(
        "  minute   blocks    p50 ms    p99 ms    max ms   resident MB   at most   overslept ms   disk read ms"
    );
    while let Some(wire) = frames::read(&mut pipe) {
        let decoded = WirePayload::decode(PayloadVersion::V4, &wire)
            .expect("a payload")
            .into_payload();
        let payload = Arc::new(decoded.expect("it is whole"));
        let sent = Instant::now();
        insert(&chain, payload.clone()).await;
        let ended = Instant::now();
        all.push(ended - sent);
        minute.push(ended - sent);
        if ended - sent > STALL_BAR {
            late.push((sent, ended));
        }
        finalize(&chain, &payload).await;
        if row.elapsed() >= ROW_EVERY {
            let (slept, read) = (overslept.take(), read.take());
            print_row(begun.elapsed(), &minute, slept, read);
            (minute, row) = (Times::default(), Instant::now());
        }
    }
    let of_disk = late
        .iter()
        .filter(|(from, to)| *to - *from < STALL_BAR + read.slow_within(*from, *to))
        .count();
    let [p50, p99, max] = [50, 99, 100].map(|percent| ms(all.percentile(percent)));
    println!(
        "{} blocks in {:.1} minutes: p50 {p50:.3} ms, p99 {p99:.3} ms, at most {max:.3} ms",
        all.len(),
        begun.elapsed().as_secs_f64() / 60.0,
    );
    println!(
        "{} took longer than {} ms; beside {of_disk} of them a bare read of the disk took all but that",
        late.len(),
        STALL_BAR.as_millis()
    );
    drop(chain);
    threads.stop().expect("the chain is stored");
    let (last, peak) = process::resident();
    println!(
        "resident at most {:.0} MB (bar {MEMORY_BAR:.0}), at the end {:.0} MB",
        peak as f64 / 1e6,
        last as f64 / 1e6
    );
}

/// Inserts a block as the follower does, and waits until it is the head.
async fn insert(chain: &Chain, payload: Arc<Payload>) {
    let provenance = Provenance::Linked {
        tip: payload.number(),
    };
    let inserted = chain
        .submit(payload, provenance)
        .await
        .expect("the chain runs")
        .await;
    assert_eq!(inserted.expect("the chain runs"), Inserted::Valid);
}

/// Prints the delays of the last minute's blocks, and the delays that the machine caused.
fn print_row(time: Duration, minute: &Times, slept: Duration, read: Duration) {
    let [p50, p99, max] = [50, 99, 100].map(|percent| ms(minute.percentile(percent)));
    let minutes = time.as_secs() / 60;
    let (resident, peak) = process::resident();
    let (resident, peak) = (resident as f64 / 1e6, peak as f64 / 1e6);
    let (blocks, slept, read) = (minute.len(), ms(slept), ms(read));
    println!(
        "{minutes:>8} {blocks:>8} {p50:>9.3} {p99:>9.3} {max:>9.3} {resident:>13.0} {peak:>9.0} {slept:>14.1} {read:>14.1}"
    );
}

/// A thread that repeats an action and records its longest duration.
struct Probe(Arc<Mutex<Taken>>);

#[derive(Default)]
struct Taken {
    longest: Duration,
    /// Start and end of each round that took longer than half of the bar.
    slow: Vec<(Instant, Instant)>,
}

impl Probe {
    /// Repeats `act`, which returns its duration, until the probe is dropped.
    fn watch(mut act: impl FnMut() -> Duration + Send + 'static) -> Self {
        let taken = Arc::new(Mutex::new(Taken::default()));
        let told = Arc::downgrade(&taken);
        std::thread::spawn(move || {
            loop {
                let took = act();
                let now = Instant::now();
                let Some(taken) = told.upgrade() else { return };
                let mut taken = taken.lock().expect("nobody panics");
                taken.longest = taken.longest.max(took);
                if took > STALL_BAR / 2 {
                    taken.slow.push((now - took, now));
                }
            }
        });
        Self(taken)
    }

    /// The longest duration since the last call.
    fn take(&self) -> Duration {
        std::mem::take(&mut self.0.lock().expect("nobody panics").longest)
    }

    /// The part of the interval that overlaps with slow rounds.
    fn slow_within(&self, from: Instant, to: Instant) -> Duration {
        let taken = self.0.lock().expect("nobody panics");
        taken
            .slow
            .iter()
            .map(|(begun, ended)| {
                (*ended)
                    .min(to)
                    .saturating_duration_since((*begun).max(from))
            })
            .sum()
    }
}

/// Measures how much longer than requested the thread sleeps, which is mostly the wait for a core.
fn oversleep() -> Duration {
    const NAP: Duration = Duration::from_millis(1);
    let begun = Instant::now();
    std::thread::sleep(NAP);
    begun.elapsed().saturating_sub(NAP)
}

/// Measures an uncached read of 4 kB.
fn disk_read(folder: &Path) -> impl FnMut() -> Duration + Send + 'static {
    const PAGES: u64 = 4096;
    #[repr(align(4096))]
    struct Page([u8; 4096]);
    let path = folder.join("probe");
    let direct = nix::fcntl::OFlag::O_DIRECT.bits();
    std::fs::write(&path, vec![1; PAGES as usize * size_of::<Page>()]).expect("a file");
    let file = std::fs::OpenOptions::new()
        .read(true)
        .custom_flags(direct)
        .open(&path)
        .expect("the disk is read directly");
    file.sync_all().expect("a sync");
    let (mut page, mut turn) = (Box::new(Page([0; 4096])), 0);
    move || {
        std::thread::sleep(Duration::from_millis(10));
        turn += 1;
        let begun = Instant::now();
        file.read_exact_at(&mut page.0, turn * 1021 % PAGES * size_of::<Page>() as u64)
            .expect("a read");
        begun.elapsed()
    }
}
