//! A `starling node` or `starling execution` without a swarm, run as a separate process.

use super::{
    layer1::Layer1,
    net::{self, Running, call},
    rollup::NodeFiles,
    support::process,
};
use serde_json::{Value, json};
use starling_testkit::free_port;
use std::{
    path::Path,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

/// Longest wait for any condition of a node.
const PATIENCE: Duration = Duration::from_secs(1800);
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// A running `starling node` or `starling execution`, killed when it is dropped.
pub struct MeasuredNode {
    process: Running,
    pub http: String,
    /// URL of the rollup RPC of `starling node`, or of the Engine API of `starling execution`.
    rpc: String,
}

/// A command that runs the measured program.
pub fn server() -> Command {
    std::env::var_os("STARLING_BENCH_SERVER").map_or_else(net::starling, Command::new)
}

impl MeasuredNode {
    /// Starts `starling node` over a data directory. Returns without waiting until the node responds.
    pub fn start(files: &NodeFiles, datadir: &Path, l1: &Layer1) -> Self {
        let rpc = free_port();
        let mut command = server();
        command
            .arg("node")
            .arg(format!("--rollup.config={}", files.rollup().display()))
            .arg(format!("--l1={}", l1.url))
            .arg(format!("--l1.beacon={}", l1.url))
            .arg(format!(
                "--rollup.l1-chain-config={}",
                files.l1_config().display()
            ))
            .args(["--p2p.disable", "--rpc.addr=127.0.0.1"])
            .arg(format!("--rpc.port={rpc}"));
        Self::spawn(command, datadir, rpc)
    }

    /// Starts `starling execution` over a data directory: the core of a node, without derivation.
    /// Returns without waiting until the core responds.
    pub fn start_core(datadir: &Path) -> Self {
        let engine = free_port();
        let mut command = server();
        command
            .arg("execution")
            .arg(format!("--authrpc.port={engine}"));
        Self::spawn(command, datadir, engine)
    }

    fn spawn(mut command: Command, datadir: &Path, rpc: u16) -> Self {
        let http = free_port();
        command
            .arg(format!("--datadir={}", datadir.display()))
            .arg("--http")
            .arg(format!("--http.port={http}"));
        let log = datadir.with_extension("log");
        let log = std::fs::File::options().create(true).append(true).open(log);
        let log = log.expect("a log file");
        let child = command
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a log file"))
            .stderr(log)
            .spawn()
            .expect("the node starts");
        Self {
            process: Running { child },
            http: format!("http://127.0.0.1:{http}"),
            rpc: format!("http://127.0.0.1:{rpc}"),
        }
    }

    fn status(&self) -> Option<Value> {
        call(&self.rpc, "optimism_syncStatus", json!([])).ok()
    }

    /// Number of the safe head; `None` if the rollup RPC does not respond.
    pub fn safe(&self) -> Option<u64> {
        self.status()?["safe_l2"]["number"].as_u64()
    }

    /// Number of the finalized head; `None` if the rollup RPC does not respond.
    pub fn finalized(&self) -> Option<u64> {
        self.status()?["finalized_l2"]["number"].as_u64()
    }

    /// Number of the L1 block up to which all data are derived, as the rollup RPC reports it.
    pub fn current_l1(&self) -> Option<u64> {
        self.status()?["current_l1"]["number"].as_u64()
    }

    /// Waits until the safe head has reached this number. Returns the duration of the wait.
    pub fn wait_safe(&mut self, number: u64) -> Duration {
        self.wait("a safe block", |node| node.safe() >= Some(number))
    }

    /// Waits until `is_done` returns true. Returns the duration of the wait.
    pub fn wait(&mut self, goal: &str, is_done: impl Fn(&Self) -> bool) -> Duration {
        let begun = Instant::now();
        while !is_done(self) {
            assert!(self.lives(), "the node ended before {goal}");
            assert!(begun.elapsed() < PATIENCE, "waited in vain for {goal}");
            std::thread::sleep(LOOK_EVERY);
        }
        begun.elapsed()
    }

    /// Whether the process is still running.
    pub fn lives(&mut self) -> bool {
        matches!(self.process.child.try_wait(), Ok(None))
    }

    /// Highest resident memory so far, in megabytes; `None` once the process has ended.
    pub fn peak(&self) -> Option<f64> {
        let path = format!("/proc/{}/status", self.process.child.id());
        let status = std::fs::read_to_string(path).ok()?;
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix("VmHWM:"))?;
        let kib: f64 = line.trim().trim_end_matches(" kB").parse().ok()?;
        Some(1024.0 * kib / 1e6)
    }

    /// User and system time of the process so far.
    pub fn processor(&self) -> Duration {
        process::processor_of(&self.process.child.id().to_string())
    }

    /// Ends the process in an orderly way: the store is written and closed.
    pub fn end(mut self) {
        let child = &mut self.process.child;
        net::signal(child.id() as i32, nix::sys::signal::Signal::SIGTERM);
        assert!(child.wait().expect("it ends").success(), "an orderly end");
    }

    pub fn kill9(mut self) {
        self.process.kill9();
    }
}
