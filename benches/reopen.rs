//! Time from a start after `kill -9` to the first response, over a large state.
//!
//! A child process makes a store of many accounts, builds blocks until its memtables, and so the
//! journal, have reached a given size, and kills itself. Then `starling execution` is started over
//! the store, queried for its head until it responds, and killed. This repeats, so that every start
//! finds the same journal. For comparison, the bench times starts over the same store after its
//! memtables were flushed, and the bare program.
//!
//! Sizes: `STARLING_BENCH_ACCOUNTS` (1000000), `STARLING_BENCH_JOURNAL` megabytes in memtables at
//! the kill (24), `STARLING_BENCH_KILLS` (10).

#[allow(dead_code, reason = "only the genesis of it is used")]
#[path = "import/load.rs"]
mod load;
#[allow(dead_code, reason = "the integration tests use more of it")]
#[path = "../tests/it/net.rs"]
mod net;
mod support;

use net::head;
use std::{
    fs,
    net::TcpListener,
    path::Path,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};
use support::{
    Ground, Times, ms, print_times,
    program::{time_bare, time_to_answer},
    size,
};

const SENDERS: usize = 1000;
const TRANSFERS: usize = 10;
const BAR: Duration = Duration::from_millis(500);
const PATIENCE: Duration = Duration::from_secs(60);
/// Environment variable that makes this program the killed process; its value is the data
/// directory.
const CHILD: &str = "STARLING_BENCH_CHILD";

fn main() {
    if let Some(datadir) = std::env::var_os(CHILD) {
        return build_and_die(Path::new(&datadir));
    }
    let kills = size("STARLING_BENCH_KILLS", 10);
    let folder = tempfile::tempdir().expect("a temporary folder");
    let datadir = folder.path();
    let child = Command::new(std::env::current_exe().expect("this program"))
        .env(CHILD, datadir)
        .status();
    assert!(!child.expect("the child runs").success(), "it is killed");

    let mut program = Times::default();
    (0..kills).for_each(|_| program.push(time_bare()));
    let held = journal(datadir);
    let killed = time_starts(datadir, kills);
    // An orderly end flushes the memtables.
    let (_, mut node) = start(datadir);
    net::signal(node.id() as i32, nix::sys::signal::Signal::SIGTERM);
    assert!(node.wait().expect("it ends").success());
    let clean = time_starts(datadir, kills);
    let accounts = size("STARLING_BENCH_ACCOUNTS", 1_000_000);
    println!(
        "from a start to the first answer; {accounts} accounts, {:.0} MB of rows in the journal",
        held as f64 / 1e6
    );
    print_times("the program alone (--version)", &program);
    print_times("after an orderly end", &clean);
    print_times("after kill -9", &killed);
    let median = killed.percentile(50);
    println!(
        "\nreopen after kill -9 {:.0} ms (bar {}) · {:.2} x after an orderly end · {:.1} ms for each MB of journal",
        ms(median),
        BAR.as_millis(),
        ms(median) / ms(clean.percentile(50)),
        (ms(median) - ms(clean.percentile(50))) / (held as f64 / 1e6)
    );
}

/// Times `kills` starts over the same store. Each start ends with a kill.
fn time_starts(datadir: &Path, kills: usize) -> Times {
    let mut starts = Times::default();
    for _ in 0..kills {
        let (time, mut node) = start(datadir);
        starts.push(time);
        node.kill()
            .and_then(|()| node.wait())
            .expect("it is killed");
    }
    starts
}

/// Used bytes of the store's journals, which an open reads, without the preallocated space after
/// them.
fn journal(datadir: &Path) -> usize {
    let files = fs::read_dir(datadir.join("chain"))
        .expect("a store")
        .flatten()
        .map(|entry| entry.path());
    let journals =
        files.filter(|path| path.extension().is_some_and(|extension| extension == "jnl"));
    let used = |path| {
        fs::read(path)
            .ok()
            .and_then(|bytes: Vec<u8>| bytes.iter().rposition(|byte| *byte != 0))
            .unwrap_or(0)
    };
    journals.map(used).sum()
}

/// Starts a node and waits for its first response.
fn start(datadir: &Path) -> (Duration, Child) {
    let port = TcpListener::bind("127.0.0.1:0")
        .and_then(|socket| socket.local_addr())
        .expect("a free port")
        .port();
    let begun = Instant::now();
    let mut command = net::starling();
    command
        .arg("execution")
        .arg("--datadir")
        .arg(datadir)
        .args(["--http", &format!("--http.port={port}"), "--authrpc.port=0"]);
    let node = command
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("the node starts");
    let url = format!("http://127.0.0.1:{port}");
    let time = time_to_answer(begun, PATIENCE, || head(&url).is_some());
    (time, node)
}

/// Makes the store, and kills this process once the journal has grown by the configured size.
fn build_and_die(datadir: &Path) {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let receivers = size("STARLING_BENCH_ACCOUNTS", 1_000_000).saturating_sub(SENDERS);
    let mut ground = Ground::with(1_700_000_000, SENDERS, |alloc, senders| {
        load::genesis(alloc, senders, receivers)
    });
    let (chain, _threads) = ground.open(datadir);
    runtime.block_on(async {
        let most = journal(datadir) + (size("STARLING_BENCH_JOURNAL", 24) << 20);
        while journal(datadir) < most {
            for _ in 0..10 {
                ground.extend(&chain, TRANSFERS).await;
            }
        }
        while chain.view().stored() != chain.view().head() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
    net::signal(std::process::id() as i32, nix::sys::signal::Signal::SIGKILL);
}
