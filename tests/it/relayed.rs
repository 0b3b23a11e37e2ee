//! Batcher and proposer as processes, with faults in everything around them: L1, rollup node and
//! execution client of a local network are each behind a relay that returns wrong responses on
//! command. No block is lost, a lasting cause is logged once, and operation resumes by itself.

mod in_node;
mod l1;
mod l2;
mod links;
mod metrics;
mod own;
mod relay;
mod stop;

use crate::{
    batcher::{PATIENCE, becomes_safe, network, rollup_rpc},
    net::{Devnet, Running, head, starling},
    posting::process::{BATCHER, BatcherLinks, BatcherProcess},
};
use relay::{Relay, RelayFault};
use starling::devnet::genesis::OUTPUT_ORACLE;
use starling_testkit::free_port;
use std::{path::PathBuf, process::Stdio};

/// Index of the account of the network's proposer.
const PROPOSER: usize = 8;

/// A network whose batcher reaches the nodes through relays.
struct RelayedNetwork {
    net: Devnet,
    l1: Relay,
    l2: Relay,
    rollup: Relay,
}

impl RelayedNetwork {
    fn start() -> Self {
        let net = network();
        Self {
            l1: Relay::start(&net.l1().http),
            l2: Relay::start(&net.sequencer().http),
            rollup: Relay::start(&rollup_rpc(&net)),
            net,
        }
    }

    fn setting(&self) -> BatcherLinks {
        BatcherLinks {
            l1: self.l1.url.clone(),
            l2: self.l2.url.clone(),
            rollup: self.rollup.url.clone(),
            key: self.net.accounts[BATCHER].key_hex(),
            dir: self.net.dir.clone(),
        }
    }

    /// Starts a batcher with short channels.
    fn batcher(&self, options: &[&str]) -> BatcherProcess {
        let usual = [
            "--max-channel-duration=1",
            "--txmgr.rebroadcast-interval=1s",
            "--txmgr.retry-interval=200ms",
            "--network-timeout=2s",
        ];
        let options = [&usual[..], options].concat();
        BatcherProcess::start(&self.setting(), "batcher", &options)
    }

    /// Starts a proposer of outputs that reaches L1 through the relay. Returns its process and its
    /// log file.
    fn proposer(&self, name: &str, key: &str, options: &[String]) -> (Running, PathBuf) {
        let log = self.net.dir.join(format!("{name}.log"));
        let out = std::fs::File::create(&log).expect("a log file");
        let child = starling()
            .arg("proposer")
            .arg(format!("--l1-eth-rpc={}", self.l1.url))
            .arg(format!("--rollup-rpc={}", rollup_rpc(&self.net)))
            .arg(format!("--l2oo-address={OUTPUT_ORACLE}"))
            .arg(format!("--private-key={key}"))
            .args([
                "--allow-non-finalized",
                "--poll-interval=250ms",
                "--num-confirmations=1",
                "--txmgr.receipt-query-interval=250ms",
                "--rpc.addr=127.0.0.1",
            ])
            .arg(format!("--rpc.port={}", free_port()))
            .args(options)
            .stdin(Stdio::null())
            .stdout(out.try_clone().expect("a log file"))
            .stderr(out)
            .spawn();
        let child = child.expect("a proposer");
        (Running { child }, log)
    }

    /// Number of the sequencer's newest block.
    fn newest(&self) -> u64 {
        head(&self.net.sequencer().http).expect("a head")
    }

    /// Waits until the current unsafe head, and at least block 5, is safe.
    fn all_becomes_safe(&self) {
        becomes_safe(&self.net, self.newest().max(5));
    }
}

/// Panics if the log contains the same warning or error twice although its cause did not end in
/// between.
fn has_each_warning_once(log: &str) {
    let mut lasting: Vec<&str> = Vec::new();
    for line in log.lines() {
        if let Some(cause) = ended_cause(line) {
            lasting.retain(|warning| !warning.contains(cause));
        }
        let Some(at) = line.find("WARN").or_else(|| line.find("ERROR")) else {
            continue;
        };
        let warning = &line[at..];
        assert!(!lasting.contains(&warning), "logged twice: {warning}");
        lasting.push(warning);
    }
}

/// The topic or the warning whose cause has ended by this line of a log.
fn ended_cause(line: &str) -> Option<&str> {
    let ends = [
        "the cause of a warning is over warning=",
        "the cause of a warning is over topic=",
        "the calls of the transaction manager succeed again topic=",
    ];
    let cause = ends.iter().find_map(|end| line.split_once(end))?.1;
    Some(cause.trim_matches('"'))
}

#[test]
fn a_warning_may_be_repeated_only_after_its_cause_ended() {
    let failed = "1 WARN  a call failed error=\"nonce too low\" topic=publication\n";
    let over = "2 INFO  the calls of the transaction manager succeed again topic=publication\n";
    has_each_warning_once(&[failed, over, failed].concat());
    let twice = [failed, over, failed, failed].concat();
    assert!(std::panic::catch_unwind(|| has_each_warning_once(&twice)).is_err());
    let other = over.replace("publication", "account");
    let twice = [failed, &other, failed].concat();
    assert!(std::panic::catch_unwind(|| has_each_warning_once(&twice)).is_err());
}
