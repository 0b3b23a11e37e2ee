//! A replica without a swarm, which reads only a recorded L1, derives the chain that the real
//! op-node derived from this L1: every hash, the safe head at each L1 block, and the output roots.

mod branches;
pub mod verifier;

use crate::net::{Running, ask, call, wait};
use alloy_primitives::Bytes;
use branches::BranchingL1;
use serde_json::{Value, json};
use starling_testkit::free_port;
use std::{
    io::{Read, Write},
    net::TcpStream,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};
use verifier::{DEADLINE, Verifier};

/// A chain recorded with its L1.
pub struct Recording {
    pub folder: PathBuf,
}

impl Recording {
    /// Finds the recording `name`. `None`, recorded as a skip, if the fixtures are absent.
    pub fn of(name: &str) -> Option<Self> {
        let folder = starling_testkit::fixture("derivation-live")?.join(name);
        Some(Self { folder })
    }

    pub fn lines(&self, name: &str) -> Vec<Value> {
        let packed = std::fs::read(self.folder.join(name)).expect("a file of the recording");
        let text = zstd::decode_all(&packed[..]).expect("zstd");
        let text = String::from_utf8(text).expect("text");
        text.lines()
            .map(|line| serde_json::from_str(line).expect("JSON"))
            .collect()
    }

    /// Number of the last safe block.
    pub fn last_safe(&self) -> u64 {
        let heads = self.lines("safe-heads.jsonl.zst");
        let numbers = heads
            .iter()
            .filter_map(|entry| entry["safeHead"]["number"].as_u64());
        numbers.max().expect("a safe head")
    }

    fn l1_chain_id(&self) -> u64 {
        let text = std::fs::read_to_string(self.folder.join("rollup.json")).expect("rollup.json");
        let rollup: Value = serde_json::from_str(&text).expect("JSON");
        rollup["l1_chain_id"].as_u64().expect("a number")
    }

    /// Serves the recorded L1 and its beacon API, with these options of the replay server.
    pub fn serve(&self, options: &[&str]) -> RecordedL1 {
        let [port, beacon] = [free_port(), free_port()];
        let script = starling_testkit::shared("tools/l1_replay.py").expect("the replayer");
        let python = std::env::var("PYTHON").unwrap_or_else(|_| "python3".into());
        let child = Command::new(python)
            .arg(script)
            .arg(&self.folder)
            .args(["--port", &port.to_string()])
            .args(["--beacon-port", &beacon.to_string()])
            .args(options)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("python3 runs the replayer");
        let l1 = RecordedL1 {
            _process: Running { child },
            url: format!("http://127.0.0.1:{port}"),
            beacon: format!("http://127.0.0.1:{beacon}"),
        };
        wait("the recorded L1", Duration::from_secs(60), || {
            let answer = call(&l1.url, "eth_chainId", json!([]));
            answer
                .err()
                .is_none_or(|e| e.get("transport").is_none())
                .then_some(())
        });
        l1
    }

    /// Writes the recorded L2 blocks up to `last` to a file in `folder`.
    pub fn block_file(&self, folder: &Path, last: u64) -> PathBuf {
        let blocks = self.lines("l2.jsonl.zst").into_iter();
        let raw: Vec<u8> = blocks
            .filter(|block| (1..=last).contains(&block["number"].as_u64().expect("a number")))
            .flat_map(|block| {
                let raw: Bytes = serde_json::from_value(block["raw"].clone()).expect("RLP");
                raw.to_vec()
            })
            .collect();
        let file = folder.join("blocks.rlp");
        std::fs::write(&file, raw).expect("a file");
        file
    }

    pub fn verifier(&self, l1: &RecordedL1) -> Verifier {
        let beacon = format!("--l1.beacon={}", l1.beacon);
        Verifier::start(&self.folder, &l1.url, &[beacon])
    }

    /// A verifier whose unsafe chain is the recorded chain up to block `last`.
    fn verifier_with_unsafe_blocks(&self, l1: &str, last: u64) -> Verifier {
        let verifier = Verifier::stopped(&self.folder, l1, &[]);
        verifier.import(&self.block_file(verifier.folder.path(), last));
        verifier.started()
    }

    /// Checks that every block, the safe head at each L1 block and the outputs equal the recorded
    /// ones.
    fn check(&self, verifier: &Verifier) {
        self.check_at(&verifier.http, &verifier.rpc);
    }

    /// Checks chain and rollup node at these two endpoints against the recording.
    pub fn check_at(&self, http: &str, rpc: &str) {
        for block in self.lines("l2.jsonl.zst") {
            let number = block["number"].as_u64().expect("a number");
            let at = json!([format!("{number:#x}"), false]);
            let hash = ask(http, "eth_getBlockByNumber", at)["hash"].take();
            assert_eq!(hash, block["hash"], "block {number}");
        }
        for entry in self.lines("safe-heads.jsonl.zst") {
            let l1 = entry["l1"].as_u64().expect("a number");
            let got = call(
                rpc,
                "optimism_safeHeadAtL1Block",
                json!([format!("{l1:#x}")]),
            );
            if entry.get("error").is_some() {
                assert!(got.is_err(), "L1 block {l1}: {got:?}");
                continue;
            }
            let got = got.unwrap_or_else(|error| panic!("L1 block {l1}: {error}"));
            assert_eq!(got["safeHead"], entry["safeHead"], "L1 block {l1}");
            assert_eq!(got["l1Block"], entry["l1Block"], "L1 block {l1}");
        }
        for output in self.lines("outputs.jsonl.zst") {
            let number = output["number"].as_u64().expect("a number");
            let got = ask(
                rpc,
                "optimism_outputAtBlock",
                json!([format!("{number:#x}")]),
            );
            for field in [
                "outputRoot",
                "withdrawalStorageRoot",
                "stateRoot",
                "blockRef",
            ] {
                assert_eq!(got[field], output[field], "{field} of block {number}");
            }
        }
    }
}

pub struct RecordedL1 {
    _process: Running,
    pub url: String,
    pub beacon: String,
}

fn derives(name: &str, options: &[&str]) {
    let Some(recording) = Recording::of(name) else {
        return;
    };
    let l1 = recording.serve(options);
    let mut verifier = recording.verifier(&l1);
    verifier.wait_until_safe(recording.last_safe());
    recording.check(&verifier);
}

#[test]
fn every_fork_from_regolith_to_jovian_in_singular_batches() {
    derives("ladder-singular", &[]);
}

#[test]
fn the_rollup_nodes_port_answers_health_checks() {
    let Some(recording) = Recording::of("ladder-singular") else {
        return;
    };
    let l1 = recording.serve(&[]);
    let mut verifier = recording.verifier(&l1);
    verifier.wait_until_safe(1);
    let version = ask(&verifier.rpc, "optimism_version", json!([]));
    assert_eq!(ask(&verifier.rpc, "health_status", json!([])), version);
    let answer = get(&verifier.rpc, "/healthz");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let (_, body) = answer.split_once("\r\n\r\n").expect("a body");
    let body: Value = serde_json::from_str(body).expect("JSON");
    assert_eq!(body, json!({ "version": version }));
    let elsewhere = get(&verifier.http, "/healthz");
    assert!(elsewhere.starts_with("HTTP/1.1 404"), "{elsewhere}");
}

fn get(url: &str, path: &str) -> String {
    let host = url.trim_start_matches("http://");
    let mut stream = TcpStream::connect(host).expect("a connection");
    write!(
        stream,
        "GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"
    )
    .expect("a request");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    answer
}

#[test]
fn span_batches_of_every_transaction_type() {
    derives("jovian-span", &[]);
}

#[test]
fn blobs_with_brotli() {
    derives("jovian-blobs", &[]);
}

#[test]
fn a_batcher_that_misbehaves() {
    derives("hostile-1", &[]);
}

#[test]
fn an_unsafe_chain_with_the_derived_blocks_is_consolidated() {
    let Some(recording) = Recording::of("jovian-span") else {
        return;
    };
    let l1 = recording.serve(&[]);
    let mut verifier = recording.verifier_with_unsafe_blocks(&l1.url, 2849);
    verifier.wait_until_safe(2849);
    recording.check(&verifier);
    assert!(
        !verifier.log().contains("L2 reorg"),
        "no block is built anew"
    );
}

#[test]
fn derived_blocks_override_an_unsafe_chain_without_batches() {
    let Some(recording) = Recording::of("hostile-1") else {
        return;
    };
    // No batch is posted from L1 block 60 on. When the sequencing window ends, empty blocks replace
    // the unsafe blocks.
    let l1 = BranchingL1::start(&recording, 110);
    l1.empty(60);
    // With more than five windows of unsafe blocks the reorg would be refused as too deep.
    let mut verifier = recording.verifier_with_unsafe_blocks(&l1.url, 300);
    let status = verifier.wait_until_derived(&l1.grow(0));
    assert!(
        verifier.log().contains("L2 reorg"),
        "unsafe blocks were replaced"
    );
    check_against_a_new_one(&recording, &l1, &status);
    // Safe and unsafe head stay on one branch while L1 grows.
    let status = verifier.wait_until_derived(&l1.grow(20));
    check_against_a_new_one(&recording, &l1, &status);
}

#[test]
fn an_l1_that_fails_by_chance() {
    derives("ladder-singular", &["--fail", "15"]);
}

#[test]
fn a_growing_l1_and_a_node_that_is_killed_meanwhile() {
    let Some(recording) = Recording::of("ladder-singular") else {
        return;
    };
    let l1 = recording.serve(&["--grow", "0.3"]);
    let mut verifier = recording.verifier(&l1);
    for number in [60, 150, 230] {
        verifier.wait_until_safe(number);
        let safe = verifier.safe().expect("an answer");
        verifier.restart();
        wait("an answer with a safe head", DEADLINE, || {
            verifier.safe().filter(|safe| *safe > 0)
        });
        assert!(
            verifier.safe().expect("an answer") >= safe,
            "the safe head never steps back"
        );
    }
    verifier.wait_until_safe(296);
    recording.check(&verifier);
}

#[test]
fn blobs_from_an_l1_that_is_slow_and_fails_by_chance() {
    derives("jovian-blobs", &["--delay", "50", "--fail", "15"]);
}

#[test]
fn a_batcher_that_misbehaves_on_a_growing_l1_that_fails_by_chance() {
    derives("hostile-1", &["--grow", "0.04", "--fail", "5"]);
}

#[test]
fn heads_are_reported_while_l1_is_unreachable() {
    let Some(recording) = Recording::of("ladder-singular") else {
        return;
    };
    let l1 = recording.serve(&[]);
    let options = [
        format!("--l1.beacon={}", l1.beacon),
        "--l1.beacon.ignore".into(),
    ];
    let mut verifier = Verifier::start(&recording.folder, &l1.url, &options);
    verifier.wait_until_safe(296);
    // The restarted verifier finds no L1 to connect to.
    drop(l1);
    verifier.restart();
    let status = wait("a status", DEADLINE, || {
        let status = verifier.status()?;
        (status["unsafe_l2"]["timestamp"] != 0).then_some(status)
    });
    let number = status["unsafe_l2"]["number"].as_u64().expect("a number");
    assert_eq!(status["unsafe_l2"]["hash"], verifier.hash_at(number));
    assert_eq!(status["current_l1"]["number"], 0);
}

/// Checks that the verifier has the heads of a new verifier that has seen only the current L1.
fn check_against_a_new_one(recording: &Recording, l1: &BranchingL1, status: &Value) {
    let head = l1.grow(0);
    let mut fresh = Verifier::start(&recording.folder, &l1.url, &[]);
    let expected = fresh.wait_until_derived(&head);
    for head in ["safe_l2", "unsafe_l2", "pending_safe_l2"] {
        assert_eq!(status[head], expected[head], "{head}");
    }
}

#[test]
fn l1_reorgs_of_any_depth_are_followed() {
    let Some(recording) = Recording::of("hostile-1") else {
        return;
    };
    let l1 = BranchingL1::start(&recording, 110);
    let mut verifier = Verifier::start(&recording.folder, &l1.url, &[]);
    verifier.wait_until_derived(&l1.grow(0));
    for (depth, salt) in [(1, 1), (5, 2), (20, 3), (64, 4), (1, 5)] {
        let head = l1.reorganise(depth, salt);
        verifier.wait_until_derived(&head);
        // Wait until replaced transactions are posted again or their sequencing window ends.
        let head = l1.grow(15);
        let status = verifier.wait_until_derived(&head);
        check_against_a_new_one(&recording, &l1, &status);
    }
}
