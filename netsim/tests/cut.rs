//! A replica behind a link that is unplugged for longer than the largest block age that gossip
//! accepts. The link is silent, but connections are not closed. The nodes are real processes, and a
//! local network provides their genesis, keys and L1.

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::{Value, json};
use starling_netsim::{FaultyLink, LinkConditions, LinkEnd, Passage};
use std::{
    fs::File,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

/// Number of blocks, one a second, during the cut: the age limit of gossip and a few more.
const CUT_BLOCKS: u64 = 66;

/// Seed of the link. No fault is drawn in this test.
const SEED: u64 = 22;

/// The program of STARLING_BINARY. Without one, it is built with the profile of these tests.
fn starling() -> PathBuf {
    if let Some(named) = std::env::var_os("STARLING_BINARY") {
        return named.into();
    }
    let own = std::env::current_exe().expect("this test's file");
    let profile = own
        .parent()
        .and_then(Path::parent)
        .expect("target/PROFILE/deps");
    let mut build = Command::new(env!("CARGO"));
    build
        .args(["build", "--quiet", "--bin", "starling"])
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    // Remove the variables of the test build: otherwise build scripts would run again.
    for (name, _) in std::env::vars_os() {
        let is_of_test = |name: &str| {
            ["CARGO_MANIFEST_", "CARGO_PKG_"]
                .iter()
                .any(|it| name.starts_with(it))
        };
        if name.to_str().is_some_and(is_of_test) {
            build.env_remove(name);
        }
    }
    if profile.ends_with("release") {
        build.arg("--release");
    }
    assert!(
        build.status().expect("cargo").success(),
        "the program builds"
    );
    profile.join("starling")
}

/// A process that is stopped with the test: by an interrupt, or by a kill if it does not stop.
struct Running(Child);

impl Running {
    fn start(program: &Path, args: &[String], log: &Path) -> Self {
        let out = File::options()
            .create(true)
            .append(true)
            .open(log)
            .expect("a log file");
        let err = out.try_clone().expect("a log file");
        Self(
            Command::new(program)
                .args(args)
                .stdin(Stdio::null())
                .stdout(out)
                .stderr(err)
                .spawn()
                .expect("the program starts"),
        )
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = kill(Pid::from_raw(self.0.id() as i32), Signal::SIGINT);
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(20) && matches!(self.0.try_wait(), Ok(None)) {
            std::thread::sleep(Duration::from_millis(50));
        }
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A node of the network, as the network's description file names it.
struct Node {
    pid: i32,
    command: Vec<String>,
    /// Address of the node's JSON-RPC, as HOST:PORT.
    http: String,
    p2p: String,
}

impl Node {
    fn read(network: &Value, role: &str) -> Self {
        let node = network["nodes"]
            .as_array()
            .unwrap()
            .iter()
            .find(|node| node["role"] == role)
            .unwrap();
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        Self {
            pid: node["pid"].as_i64().unwrap() as i32,
            command: node["command"]
                .as_array()
                .unwrap()
                .iter()
                .map(text)
                .collect(),
            http: text(&node["http"])
                .trim_start_matches("http://")
                .trim_end_matches('/')
                .to_owned(),
            p2p: text(&node["p2p"]),
        }
    }

    /// Kills the node and starts it again with only these static peers.
    fn restart(&self, peers: &[String], log: &Path) -> Running {
        kill(Pid::from_raw(self.pid), Signal::SIGKILL).expect("it runs");
        // The ports of a killed process are free only after the network has reaped it.
        let (begun, process) = (Instant::now(), format!("/proc/{}", self.pid));
        while Path::new(&process).exists() {
            assert!(
                begun.elapsed() < Duration::from_secs(60),
                "{process} does not die"
            );
            std::thread::sleep(Duration::from_millis(10));
        }
        let mut args = self.command[1..].to_vec();
        args.retain(|arg| !arg.starts_with("--p2p.static="));
        args.extend(peers.iter().map(|peer| format!("--p2p.static={peer}")));
        Running::start(Path::new(&self.command[0]), &args, log)
    }

    /// The result of an RPC call; `None` if the node does not respond.
    async fn call(&self, method: &str, params: Value) -> Option<Value> {
        let body =
            json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).to_string();
        let (host, length) = (&self.http, body.len());
        let request = format!(
            "POST / HTTP/1.0\r\nHost: {host}\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
        );
        let mut answer = String::new();
        let mut stream = TcpStream::connect(host).await.ok()?;
        stream.write_all(request.as_bytes()).await.ok()?;
        stream.read_to_string(&mut answer).await.ok()?;
        let mut answer: Value = serde_json::from_str(answer.split_once("\r\n\r\n")?.1).ok()?;
        Some(answer["result"].take())
    }

    async fn head(&self) -> Option<u64> {
        let number = self.call("eth_blockNumber", json!([])).await?;
        u64::from_str_radix(number.as_str()?.trim_start_matches("0x"), 16).ok()
    }

    async fn hash(&self, number: u64) -> Value {
        let block = self
            .call(
                "eth_getBlockByNumber",
                json!([format!("{number:#x}"), false]),
            )
            .await
            .expect("an answer");
        block["hash"].clone()
    }

    async fn reaches(&self, number: u64, limit: Duration) {
        let start = Instant::now();
        while self.head().await.is_none_or(|head| head < number) {
            assert!(
                start.elapsed() < limit,
                "head {:?} and not {number} after {limit:?}",
                self.head().await
            );
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
}

async fn description(path: &Path) -> Value {
    let start = Instant::now();
    loop {
        if let Ok(text) = std::fs::read_to_string(path) {
            return serde_json::from_str(&text).expect("it is written whole");
        }
        assert!(
            start.elapsed() < Duration::from_secs(60),
            "no {}",
            path.display()
        );
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_whose_link_was_cut_catches_up() {
    let program = tokio::task::spawn_blocking(starling).await.unwrap();
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("net");
    let args = network_args(&dir);
    let _network = Running::start(&program, &args, &temp.path().join("network.log"));
    let network = description(&dir.join("devnet.json")).await;
    let (sequencer, replica) = (
        Node::read(&network, "sequencer"),
        Node::read(&network, "replica"),
    );
    let (link, address) = link_to(&sequencer).await;
    let _sequencer = sequencer.restart(&[], &temp.path().join("sequencer.log"));
    let replica_log = temp.path().join("replica.log");
    let _replica = replica.restart(&[address], &replica_log);
    let start = sequencer.head().await.unwrap_or_default() + 3;
    replica.reaches(start, Duration::from_secs(60)).await;

    let mut unplugged = LinkConditions::CLEAR;
    unplugged.up.passage = Passage::Unplugged;
    unplugged.down.passage = Passage::Unplugged;
    link.set(unplugged).unwrap();
    let cut = sequencer.head().await.unwrap();
    sequencer
        .reaches(cut + CUT_BLOCKS, Duration::from_secs(CUT_BLOCKS + 120))
        .await;
    let behind = replica.head().await.unwrap();
    assert!(
        behind <= cut + 2,
        "block {behind} passed a link that was cut at {cut}"
    );

    link.set(LinkConditions::CLEAR).unwrap();
    let target = sequencer.head().await.unwrap() + 2;
    replica.reaches(target, Duration::from_secs(90)).await;
    for number in 0..=target {
        assert_eq!(
            replica.hash(number).await,
            sequencer.hash(number).await,
            "block {number}"
        );
    }
    let log = std::fs::read_to_string(replica_log).unwrap();
    assert!(
        log.contains("reason=no_answer"),
        "silence is noticed:\n{log}"
    );
    assert!(
        log.matches("peer connected").count() >= 2,
        "and the peer is dialled again:\n{log}"
    );
}

/// Arguments of a network with a sequencer and one replica. There is no batcher, since the replica
/// would get the blocks from L1.
fn network_args(dir: &Path) -> Vec<String> {
    let datadir = format!("--datadir={}", dir.display());
    [
        "devnet",
        &datadir,
        "--replicas=1",
        "--batcher=false",
        "--proposer=false",
        "--l2.block-time=1",
        "--l1.block-time=3",
    ]
    .map(String::from)
    .to_vec()
}

/// A link to the sequencer's swarm, and the multiaddr `/ip4/127.0.0.1/tcp/PORT/p2p/ID` at which a
/// replica dials the sequencer through it. The sequencer dials no peer.
async fn link_to(sequencer: &Node) -> (FaultyLink, String) {
    let mut address: Vec<&str> = sequencer.p2p.split('/').collect();
    let port: u16 = address[4].parse().unwrap();
    let link = FaultyLink::new(SEED, LinkConditions::CLEAR).unwrap();
    let target = ([127, 0, 0, 1], port).into();
    let near = link.tcp(LinkEnd::Far, target).await.unwrap();
    let near = near.port().to_string();
    address[4] = &near;
    (link, address.join("/"))
}
