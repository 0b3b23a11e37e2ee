//! A batcher that runs as a process, with its RPC and its log.

use crate::net::{Devnet, Running, call, starling, wait};
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use starling_testkit::free_port;
use std::{
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
    time::Duration,
};

const PATIENCE: Duration = Duration::from_secs(180);
/// Index of the account that a development network's SystemConfig names as batcher.
pub const BATCHER: usize = 9;

/// Batcher options that shorten a test.
const FAST: [&str; 7] = [
    "--poll-interval=250ms",
    "--num-confirmations=1",
    "--sub-safety-margin=4",
    "--max-pending-tx=4",
    "--txmgr.receipt-query-interval=250ms",
    "--throttle.unsafe-da-bytes-lower-threshold=0",
    "--rpc.enable-admin",
];

/// URLs of the nodes that a batcher uses, and its key.
#[derive(Clone, Debug)]
pub struct BatcherLinks {
    pub l1: String,
    pub l2: String,
    pub rollup: String,
    pub key: String,
    /// Folder for the log file.
    pub dir: PathBuf,
}

impl BatcherLinks {
    /// The links of a development network's batcher.
    pub fn of(net: &Devnet) -> Self {
        Self {
            l1: net.l1().http,
            l2: net.sequencer().http,
            rollup: net.sequencer().rpc.expect("an RPC"),
            key: net.accounts[BATCHER].key_hex(),
            dir: net.dir.clone(),
        }
    }
}

/// The value of the option `name` in a command line.
pub fn option(command: &[String], name: &str) -> String {
    let prefix = format!("{name}=");
    let mut values = command.iter().filter_map(|word| word.strip_prefix(&prefix));
    values.next().expect("the option is given").to_owned()
}

/// The part before `=` in an option such as `--name=value`.
fn name_of(option: &str) -> Option<&str> {
    option.split('=').next()
}

/// A running batcher.
pub struct BatcherProcess {
    pub process: Running,
    pub rpc: String,
    log: PathBuf,
}

impl BatcherProcess {
    /// Starts a batcher, and waits until its RPC responds. `options` replace options in [`FAST`]
    /// with the same name.
    pub fn start(links: &BatcherLinks, name: &str, options: &[&str]) -> Self {
        let mut batcher = Self::spawn(links, name, options);
        batcher.is_up();
        batcher
    }

    /// Starts a batcher, without checking that it keeps running.
    pub fn spawn(links: &BatcherLinks, name: &str, options: &[&str]) -> Self {
        let port = free_port();
        let log = links.dir.join(format!("{name}.log"));
        let out = std::fs::File::create(&log).expect("a log file");
        let is_kept = |fast: &&&str| !options.iter().any(|given| name_of(given) == name_of(fast));
        let child = starling()
            .arg("batcher")
            .arg(format!("--l1-eth-rpc={}", links.l1))
            .arg(format!("--l2-eth-rpc={}", links.l2))
            .arg(format!("--rollup-rpc={}", links.rollup))
            .arg(format!("--private-key={}", links.key))
            .arg("--rpc.addr=127.0.0.1")
            .arg(format!("--rpc.port={port}"))
            .args(FAST.iter().filter(is_kept))
            .args(options)
            .stdin(Stdio::null())
            .stdout(out.try_clone().expect("a log file"))
            .stderr(out)
            .spawn();
        Self {
            process: Running {
                child: child.expect("the batcher starts"),
            },
            rpc: format!("http://127.0.0.1:{port}"),
            log,
        }
    }

    /// Waits until the batcher's RPC responds.
    pub fn is_up(&mut self) {
        wait("the batcher's RPC", PATIENCE, || {
            if let Ok(Some(status)) = self.process.child.try_wait() {
                panic!("the batcher ended with {status}");
            }
            self.admin("admin_getThrottleController").ok()
        });
    }

    pub fn log(&self) -> String {
        read_log(&self.log)
    }

    pub fn admin(&self, method: &str) -> Result<Value, Value> {
        call(&self.rpc, method, json!([]))
    }

    /// Waits until the log contains this text.
    pub fn says(&self, text: &str) {
        wait(&format!("the log to say {text:?}"), PATIENCE, || {
            self.log().contains(text).then_some(())
        });
    }

    /// Number of log lines that contain this text.
    pub fn count(&self, text: &str) -> usize {
        let log = self.log();
        log.lines().filter(|line| line.contains(text)).count()
    }

    /// Stops posting over RPC. The call may time out when L1 responds slowly; the stop continues
    /// then.
    pub fn stop(&self) {
        match self.admin("admin_stopBatcher") {
            Err(error) if error["transport"].is_string() => self.says(STOPPED),
            answer => {
                answer.expect("a stop");
                let log = self.log();
                assert!(log.contains(STOPPED), "{log}");
            }
        }
    }

    pub fn signal(&self, signal: Signal) {
        crate::net::signal(self.process.child.id() as i32, signal);
    }

    /// Waits until the process has exited.
    pub fn ends(&mut self, within: Duration) -> ExitStatus {
        let child = &mut self.process.child;
        wait("the batcher to end", within, || {
            child.try_wait().expect("a child")
        })
    }

    /// Sends SIGTERM and waits until the process has exited.
    pub fn terminate(&mut self) -> ExitStatus {
        self.signal(Signal::SIGTERM);
        self.process.child.wait().expect("an end")
    }

    /// Whether a channel is open that contains L2 blocks.
    pub fn is_in_a_channel(&self) -> bool {
        let log = self.log();
        let count = |sentence| log.matches(sentence).count();
        count("Created channel") > count("Channel closed") + count("Dropped channel")
    }

    /// First and last block of each closed channel, in order.
    pub fn channels(&self) -> Vec<(u64, u64)> {
        let log = self.log();
        let closed = log.lines().filter(|line| line.contains("Channel closed"));
        closed
            .map(|line| (field(line, "oldest_l2"), field(line, "latest_l2")))
            .collect()
    }
}

/// The log message that ends a stop.
pub const STOPPED: &str = "Batch Submitter stopped";

pub fn read_log(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

/// Reads a numeric field of a log line.
pub fn field(line: &str, name: &str) -> u64 {
    let (_, rest) = line.split_once(&format!("{name}=")).expect("a field");
    let digits = rest.trim_start_matches(|c: char| !c.is_ascii_digit());
    let end = digits.find(|c: char| !c.is_ascii_digit());
    digits[..end.unwrap_or(digits.len())]
        .parse()
        .expect("a number")
}

/// Number of the newest L2 block that was loaded when the last stop in this log began.
pub fn loaded_at_stop(log: &str) -> u64 {
    let mut stops = log
        .lines()
        .filter(|line| line.contains("Stopping Batch Submitter"));
    field(stops.next_back().expect("a stop"), "through")
}

impl Drop for BatcherProcess {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- batcher\n{}", self.log());
        }
    }
}
