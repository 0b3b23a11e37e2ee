//! A batcher as a process, with its log and its RPC.

use super::{BATCHER, PATIENCE, rollup_rpc};
use crate::net::{Devnet, Running, call, free_port, starling, wait};
use nix::sys::signal::{self, Signal};
use serde_json::{Value, json};
use std::{
    path::PathBuf,
    process::{ExitStatus, Stdio},
    time::Duration,
};

/// Options that make a test short.
const FAST: [&str; 7] = [
    "--poll-interval=250ms",
    "--num-confirmations=1",
    "--sub-safety-margin=4",
    "--max-pending-tx=4",
    "--txmgr.receipt-query-interval=250ms",
    "--throttle.unsafe-da-bytes-lower-threshold=0",
    "--rpc.enable-admin",
];

/// The parties of a batcher, by URL, and its key.
pub(crate) struct BatcherSetting {
    pub l1: String,
    pub l2: String,
    pub rollup: String,
    pub key: String,
}

impl BatcherSetting {
    /// Those of a network, without anything between.
    pub(crate) fn of(net: &Devnet) -> Self {
        Self {
            l1: net.l1().http,
            l2: net.sequencer().http,
            rollup: rollup_rpc(net),
            key: net.accounts[BATCHER].key_hex(),
        }
    }
}

/// A batcher, and its RPC.
pub(crate) struct BatcherProcess {
    pub process: Running,
    pub rpc: String,
    log: PathBuf,
}

impl BatcherProcess {
    /// Starts a batcher, and waits until it serves its RPC.
    pub(crate) fn start(net: &Devnet, name: &str, options: &[&str]) -> Self {
        let batcher = Self::spawn(net, name, &BatcherSetting::of(net), options);
        batcher.is_up();
        batcher
    }

    /// Options that come later win over the fast ones.
    pub(crate) fn spawn(
        net: &Devnet,
        name: &str,
        setting: &BatcherSetting,
        options: &[&str],
    ) -> Self {
        let port = free_port();
        let log = net.dir.join(format!("{name}.log"));
        let out = std::fs::File::create(&log).expect("a log file");
        let is_given = |fast: &&&str| {
            let name = fast.split('=').next();
            options
                .iter()
                .any(|option| option.split('=').next() == name)
        };
        let child = starling()
            .arg("batcher")
            .arg(format!("--l1-eth-rpc={}", setting.l1))
            .arg(format!("--l2-eth-rpc={}", setting.l2))
            .arg(format!("--rollup-rpc={}", setting.rollup))
            .arg(format!("--private-key={}", setting.key))
            .arg("--rpc.addr=127.0.0.1")
            .arg(format!("--rpc.port={port}"))
            .args(FAST.iter().filter(|fast| !is_given(fast)))
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

    /// Waits until the RPC answers.
    pub(crate) fn is_up(&self) {
        wait("the batcher's RPC", PATIENCE, || {
            self.admin("admin_getThrottleController").ok()
        });
    }

    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(&self.log).expect("a log")
    }

    /// Waits until the log has this text.
    pub(crate) fn says(&self, text: &str) {
        wait(&format!("the log to say {text:?}"), PATIENCE, || {
            self.log().contains(text).then_some(())
        });
    }

    /// Lines of the log with this text.
    pub(crate) fn count(&self, text: &str) -> usize {
        self.log()
            .lines()
            .filter(|line| line.contains(text))
            .count()
    }

    pub(crate) fn admin(&self, method: &str) -> Result<Value, Value> {
        call(&self.rpc, method, json!([]))
    }

    /// Stops posting. A call that L1 lets wait too long may break off; the stop goes on.
    pub(crate) fn stop(&self) {
        match self.admin("admin_stopBatcher") {
            Err(error) if error["transport"].is_string() => self.says("Batch Submitter stopped"),
            answer => {
                answer.expect("a stop");
                let log = self.log();
                assert!(log.contains("Batch Submitter stopped"), "{log}");
            }
        }
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let pid = nix::unistd::Pid::from_raw(self.process.child.id() as i32);
        signal::kill(pid, signal).expect("a process");
    }

    /// Waits until the process has ended.
    pub(crate) fn ends(&mut self, within: Duration) -> ExitStatus {
        let child = &mut self.process.child;
        wait("the batcher to end", within, || {
            child.try_wait().expect("a child")
        })
    }

    /// First and last blocks of the channels that were closed, in order.
    pub(crate) fn channels(&self) -> Vec<(u64, u64)> {
        let log = self.log();
        let closed = log.lines().filter(|line| line.contains("Channel closed"));
        closed
            .map(|line| (field(line, "oldest_l2"), field(line, "latest_l2")))
            .collect()
    }
}

/// A number in a line of the log.
pub(crate) fn field(line: &str, name: &str) -> u64 {
    let (_, rest) = line.split_once(&format!("{name}=")).expect("a field");
    let digits = rest.trim_start_matches(|c: char| !c.is_ascii_digit());
    let end = digits.find(|c: char| !c.is_ascii_digit());
    digits[..end.unwrap_or(digits.len())]
        .parse()
        .expect("a number")
}

impl Drop for BatcherProcess {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- batcher\n{}", self.log());
        }
    }
}
