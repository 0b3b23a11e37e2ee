//! The JSON-RPC server under load: reads of blocks, logs of a long chain, how long honest clients
//! wait beside attackers, and what connections cost.
//!
//! The node is a process of its own on one core; the load is this process, on another core.
//!
//! `STARLING_BENCH_ONLY` names one part: `reads`, `logs`, `fairness` or `connections`.
//! `STARLING_BENCH_SERVER` is the path of another `starling` to measure, for the figures before a
//! change. Sizes: `STARLING_BENCH_SECONDS` (15) of each row of `fairness`, `STARLING_BENCH_IDLE`
//! (9000) idle connections.

#[path = "rpc/client.rs"]
mod client;
#[path = "rpc/connections.rs"]
mod connections;
#[path = "rpc/fairness.rs"]
mod fairness;
#[path = "rpc/log_index.rs"]
mod log_index;
#[allow(dead_code, reason = "the integration tests use more of it")]
#[path = "../tests/it/net.rs"]
mod net;
#[path = "rpc/reads.rs"]
mod reads;
mod support;

use std::{
    net::{SocketAddr, TcpListener},
    path::Path,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};
use support::Ground;

/// The core of the node, and the core of the load.
const CORES: [&str; 2] = ["0", "1"];
const PATIENCE: Duration = Duration::from_secs(60);

fn main() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let only = std::env::var("STARLING_BENCH_ONLY").ok();
    let wanted = |name: &str| only.as_deref().is_none_or(|only| only == name);
    // Made with all cores, before this process is bound to one.
    let chain = wanted("reads").then(|| reads::prepare(folder.path(), server));
    let indexed = wanted("logs").then(|| log_index::prepare(folder.path()));
    pin(CORES[1], std::process::id());
    if let Some(chain) = &chain {
        let node = Node::start(&chain.datadir, &[]);
        reads::run(node.http, chain);
    }
    if let Some(indexed) = &indexed {
        log_index::run(indexed, server);
    }
    let (genesis, empty) = (
        folder.path().join("empty.json"),
        folder.path().join("empty"),
    );
    std::fs::write(&genesis, Ground::new(1_700_000_000, 16).file.to_string())
        .expect("the genesis is written");
    // Made by the measured program: an older one could not open a directory made by this one.
    let made = server()
        .arg("init")
        .arg("--datadir")
        .arg(&empty)
        .arg(&genesis)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    assert!(
        made.is_ok_and(|status| status.success()),
        "the data directory is made"
    );
    if wanted("fairness") {
        fairness::run(&Node::start(&empty, &["--rpc.gascap=0"]));
    }
    if wanted("connections") {
        connections::run(&Node::start(&empty, &[]));
    }
}

/// The program that is measured.
fn server() -> Command {
    std::env::var_os("STARLING_BENCH_SERVER").map_or_else(net::starling, Command::new)
}

/// Binds a process and its future threads to one core.
fn pin(core: &str, process: u32) {
    let done = Command::new("taskset")
        .args(["-a", "-cp", core, &process.to_string()])
        .stdout(Stdio::null())
        .status();
    assert!(
        done.is_ok_and(|status| status.success()),
        "taskset (util-linux) binds processes to cores"
    );
}

/// A running node.
pub struct Node {
    pub http: SocketAddr,
    process: Child,
}

impl Node {
    /// Starts a node over a data directory and waits until it answers.
    pub fn start(datadir: &Path, options: &[&str]) -> Self {
        let mut command = server();
        let port = TcpListener::bind("127.0.0.1:0")
            .and_then(|socket| socket.local_addr())
            .expect("a free port")
            .port();
        command
            .args(["execution", "--http", "--authrpc.port=0"])
            .arg(format!("--http.port={port}"));
        command
            .arg("--datadir")
            .arg(datadir)
            .args(options)
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let process = command.spawn().expect("the node starts");
        pin(CORES[0], process.id());
        let begun = Instant::now();
        while net::head(&format!("http://127.0.0.1:{port}")).is_none() {
            assert!(begun.elapsed() < PATIENCE, "the node does not answer");
            std::thread::sleep(Duration::from_millis(10));
        }
        Self {
            http: SocketAddr::from(([127, 0, 0, 1], port)),
            process,
        }
    }

    /// Resident memory in bytes.
    pub fn memory(&self) -> u64 {
        1024 * support::process::field(&format!("/proc/{}/status", self.process.id()), "VmRSS:")
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.process.kill().and_then(|()| self.process.wait());
    }
}
