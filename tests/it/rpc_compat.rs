//! The conformance cases of the execution API, run against a node that has imported their chain: an
//! Ethereum chain with every fork from Homestead to BPO2, including the merge.
//!
//! A case passes if the response equals the expected JSON, regardless of the order of keys;
//! messages of errors may differ. The few cases that do not pass are listed here, and in
//! `docs/differences.md` with reasons.

use crate::net::{Running, call, starling, wait};
use serde_json::{Value, json};
use starling::jwt::JwtSecret;
use starling_testkit::free_port;
use std::{
    collections::BTreeSet,
    io::{Read, Write},
    net::TcpStream,
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

/// Paths of the cases whose responses differ.
const EXPLAINED: [&str; 2] = [
    "eth_simulateV1/ethSimulate-empty-with-block-num-set-firstblock.io",
    "eth_simulateV1/ethSimulate-override-ecrecover.io",
];

/// A node that has imported the chain of the cases, with its head set over the Engine API.
struct CompatNode {
    _process: Running,
    _folder: tempfile::TempDir,
    url: String,
}

impl CompatNode {
    fn start(cases: &Path) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let data = format!("--datadir={}", folder.path().display());
        let [genesis, blocks] = ["genesis.json", "chain.rlp"].map(|file| cases.join(file));
        run(starling().args(["init", &data]).arg(genesis));
        run(starling()
            .args(["import", &data, "--gcmode=archive"])
            .arg(blocks));
        run(starling().args(["db", "verify", &data]));
        let secret_file = folder.path().join("jwt");
        let secret = JwtSecret::load_or_create(&secret_file).expect("a secret");
        let [port, auth] = [free_port(), free_port()];
        let mut command = starling();
        command
            .args(["execution", &data, "--gcmode=archive", "--http"])
            .arg(format!("--http.port={port}"))
            .arg("--http.api=eth,net,web3,txpool,debug,testing")
            .arg(format!("--authrpc.port={auth}"))
            .arg(format!("--authrpc.jwtsecret={}", secret_file.display()));
        let process = Running::spawn(&mut command);
        let url = format!("http://127.0.0.1:{port}");
        wait("the node's RPC", Duration::from_secs(60), || {
            call(&url, "eth_chainId", json!([])).ok()
        });
        let choice = std::fs::read_to_string(cases.join("headfcu.json")).expect("a fork choice");
        let status = post(auth, Some(&secret), &choice);
        let status = &status["result"]["payloadStatus"]["status"];
        assert_eq!(status, "VALID", "the fork choice");
        Self {
            _process: process,
            _folder: folder,
            url,
        }
    }

    fn port(&self) -> u16 {
        let port = self
            .url
            .rsplit(':')
            .next()
            .and_then(|port| port.parse().ok());
        port.expect("a port")
    }
}

/// Runs a command that must succeed.
fn run(command: &mut Command) {
    let output = command.output().expect("it runs");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {errors}");
}

/// Posts a request body unchanged. Returns the response.
fn post(port: u16, secret: Option<&JwtSecret>, body: &str) -> Value {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = now.expect("a clock").as_secs();
    let token = secret.map_or(String::new(), |secret| {
        format!("authorization: {}\r\n", secret.authorization(now))
    });
    let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("a connection");
    let timeout = Some(Duration::from_secs(20));
    stream.set_read_timeout(timeout).expect("a timeout");
    let head = format!(
        "POST / HTTP/1.0\r\nhost: localhost\r\n{token}content-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    stream
        .write_all((head + body).as_bytes())
        .expect("a request");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    let (_, json) = answer.split_once("\r\n\r\n").expect("a body");
    serde_json::from_str(json).unwrap_or_else(|error| panic!("{body}: {error}: {json}"))
}

/// The cases in a folder, ordered by path: some cases add pool transactions that later cases see.
fn cases(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "io") {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

/// Normalizes a response: 1.0 equals 1, and error messages are masked.
fn normal(mut answer: Value) -> Value {
    if let Some(error) = answer.get_mut("error").and_then(Value::as_object_mut) {
        error.insert("message".to_owned(), Value::Null);
    }
    floats(answer)
}

fn floats(value: Value) -> Value {
    match value {
        Value::Number(number) => json!(number.as_f64()),
        Value::Array(items) => items.into_iter().map(floats).collect(),
        Value::Object(members) => {
            let members = members.into_iter();
            members.map(|(name, value)| (name, floats(value))).collect()
        }
        other => other,
    }
}

/// Whether the node returns the expected response to every request of a case.
fn is_equal(node: &CompatNode, case: &Path) -> bool {
    let text = std::fs::read_to_string(case).expect("a case");
    let by_schema = text
        .lines()
        .any(|line| line.starts_with("//") && line.contains("speconly:"));
    let mut answer = Value::Null;
    for line in text.lines() {
        if let Some(request) = line.strip_prefix(">> ") {
            answer = post(node.port(), None, request);
        } else if let Some(want) = line.strip_prefix("<< ") {
            let want: Value = serde_json::from_str(want).expect("JSON");
            let same_kind = want.get("result").is_some() == answer.get("result").is_some();
            let by_schema = by_schema && same_kind && want.get("result").is_some();
            if !by_schema && normal(want) != normal(answer.clone()) {
                println!("{}: {answer} instead of {line}", case.display());
                return false;
            }
        }
    }
    true
}

#[test]
fn the_cases_of_the_execution_api_pass() {
    let Some(folder) = starling_testkit::fixture("rpc-compat/tests") else {
        return;
    };
    let node = CompatNode::start(&folder);
    let cases = cases(&folder);
    assert!(cases.len() > 150, "{} cases", cases.len());
    let failed: BTreeSet<String> = cases
        .iter()
        .filter(|case| !is_equal(&node, case))
        .map(|case| {
            case.strip_prefix(&folder)
                .expect("a case")
                .display()
                .to_string()
        })
        .collect();
    let explained: BTreeSet<String> = EXPLAINED.map(str::to_owned).into();
    assert_eq!(failed, explained, "cases that differ, and those explained");
}
