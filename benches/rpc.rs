//! The JSON-RPC server under load. The node is a separate process on one core; this process makes
//! the load, on another core.
//!
//! - `reads`: full blocks, receipts and logs by topic.
//! - `logs`: queries with few results over a long chain, with and without the log index.
//! - `peers`: the usual methods compared with anvil (if `npm install` has been run in
//!   `tests/clients`) and op-geth (if `STARLING_OP_GETH` is its path).
//! - `traces`: a block under `callTracer` compared with the same block under a tracer that does
//!   nothing, the block's transactions one by one, and the memory of many concurrent struct-log
//!   traces.
//! - `beside`: cheap reads and imports of full blocks while traces and wide log queries run.
//! - `fairness`: waiting times of honest clients while attackers keep the EVM busy.
//! - `connections`: memory of idle connections.
//!
//! `STARLING_BENCH_ONLY` names one part. `STARLING_BENCH_SERVER` is the path of another `starling`
//! to measure, for example one from before a change. `STARLING_BENCH_CORES` names the node's cores
//! (0), in the syntax of `taskset`. Sizes: `STARLING_BENCH_SECONDS` (15) of each row of `fairness`,
//! and `STARLING_BENCH_IDLE` (9000) idle connections. The module docs in `benches/rpc` list the
//! sizes of the other parts.

#[path = "../tests/it/anvil.rs"]
mod anvil;
#[path = "rpc/beside.rs"]
mod beside;
#[path = "rpc/chain_maker.rs"]
mod chain_maker;
#[path = "rpc/client.rs"]
mod client;
#[path = "rpc/connections.rs"]
mod connections;
#[path = "rpc/fairness.rs"]
mod fairness;
#[path = "rpc/feeder.rs"]
mod feeder;
#[path = "import/load.rs"]
mod load;
#[path = "rpc/log_index.rs"]
mod log_index;
#[allow(dead_code, reason = "the integration tests use more of it")]
#[path = "../tests/it/net.rs"]
mod net;
#[allow(dead_code, reason = "the integration tests use more of it")]
#[path = "../tests/it/foreign/network.rs"]
mod network;
#[path = "rpc/peer_chain.rs"]
mod peer_chain;
#[path = "rpc/peer_servers.rs"]
mod peer_servers;
#[path = "rpc/peers.rs"]
mod peers;
#[allow(dead_code, reason = "the integration tests use more of it")]
#[path = "../tests/it/foreign/programs.rs"]
mod programs;
#[path = "rpc/rate.rs"]
mod rate;
#[path = "rpc/reads.rs"]
mod reads;
mod support;
#[path = "rpc/traces.rs"]
mod traces;

use feeder::Feeder;
use rate::ServerUnderLoad;
use starling_testkit::free_port;
use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};
use support::Ground;

/// The core of the servers, and the core of the load generator.
const CORES: [&str; 2] = ["0", "1"];
const PATIENCE: Duration = Duration::from_secs(60);

fn main() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let folder = folder.path();
    let only = std::env::var("STARLING_BENCH_ONLY").ok();
    let wanted = |name: &str| only.as_deref().is_none_or(|only| only == name);
    // Made before this process is bound to one core, so that all cores are used.
    let read = wanted("reads").then(|| reads::prepare(folder));
    let indexed = wanted("logs").then(|| log_index::prepare(folder));
    let common = wanted("peers").then(|| peer_chain::PeerChain::make(folder));
    let traced = wanted("traces").then(|| traces::TracedChain::make(folder));
    let imported = wanted("beside").then(|| beside::ImportedChain::make(folder));
    pin(CORES[1], std::process::id());
    if let Some(chain) = &read {
        reads::run(chain);
    }
    if let Some(indexed) = &indexed {
        log_index::run(indexed);
    }
    if let Some(chain) = &common {
        peers::run(folder, chain);
    }
    if let Some(chain) = &traced {
        traces::run(folder, chain);
    }
    if let Some(chain) = &imported {
        beside::run(folder, chain);
    }
    let genesis = Ground::new(chain_maker::GENESIS_TIME, 16).file;
    let empty = chain_maker::init(folder, "empty", &genesis);
    if wanted("fairness") {
        fairness::run(&Node::start(&empty, &["--rpc.gascap=0"]));
    }
    if wanted("connections") {
        connections::run(&Node::start(&empty, &[]));
    }
}

/// The measured program.
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
    engine: SocketAddr,
    secret: PathBuf,
    process: net::Running,
}

impl Node {
    /// Starts a node over a data directory and waits until it responds.
    pub fn start(datadir: &Path, options: &[&str]) -> Self {
        let cores = std::env::var("STARLING_BENCH_CORES");
        let [http, engine] = [free_port(), free_port()];
        let mut command = Command::new("taskset");
        command
            .args(["-c", cores.as_deref().unwrap_or(CORES[0])])
            .arg(server().get_program())
            .args(["execution", "--http"])
            .arg(format!("--http.port={http}"))
            .arg(format!("--authrpc.port={engine}"))
            .arg("--datadir")
            .arg(datadir)
            .args(options);
        let process = net::Running::spawn(&mut command);
        let begun = Instant::now();
        while net::head(&format!("http://127.0.0.1:{http}")).is_none() {
            assert!(begun.elapsed() < PATIENCE, "the node does not answer");
            std::thread::sleep(Duration::from_millis(10));
        }
        let [http, engine] = [http, engine].map(|port| SocketAddr::from(([127, 0, 0, 1], port)));
        Self {
            http,
            engine,
            secret: datadir.join("geth/jwtsecret"),
            process,
        }
    }

    pub fn under_load(&self) -> ServerUnderLoad {
        ServerUnderLoad {
            http: self.http,
            pid: self.process.child.id(),
        }
    }

    /// A client of the node's Engine API, which plays the rollup node.
    pub fn feeder(&self) -> Feeder {
        Feeder::connect(self.engine, &self.secret)
    }

    /// Resident memory of the node in bytes.
    pub fn memory(&self) -> u64 {
        let status = format!("/proc/{}/status", self.process.child.id());
        1024 * support::process::field(&status, "VmRSS:")
    }
}
