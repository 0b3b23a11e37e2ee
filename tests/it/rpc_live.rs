//! op-geth's responses on two recorded chains, compared with those of a node that has imported the
//! chain: blocks, receipts, logs, proofs, past state, every tracer, raw objects.
//!
//! Each response is equal, or its difference is explained in `docs/differences.md`. A witness has
//! no order; instead it must suffice to execute its block. Responses of methods that op-geth lacks
//! are checked against blocks and receipts ([`other_forms`]).

mod other_forms;
mod scripts;

use crate::{
    derive::Recording,
    net::{Running, ask, call, number, starling, wait},
};
use alloy_consensus::Header;
use alloy_primitives::Bytes;
use serde_json::{Map, Value, json};
use starling::chain::{
    block_rlp, evm::WitnessState, execute::validate, genesis, rules::ChainSpec, trie::Witness,
};
use starling_testkit::free_port;
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    process::Stdio,
    sync::Arc,
    time::Duration,
};

/// Members that the recorded version of op-geth does not print.
const UNPRINTED: [&str; 4] = [
    "blockTimestamp",
    "totalDifficulty",
    "l1FeeScalar",
    "daFootprintGasScalar",
];
/// L1 fee members that Starling's receipts of deposits have.
const L1_OF_DEPOSITS: [&str; 8] = [
    "l1Fee",
    "l1GasPrice",
    "l1GasUsed",
    "l1BaseFeeScalar",
    "l1BlobBaseFee",
    "l1BlobBaseFeeScalar",
    "operatorFeeScalar",
    "operatorFeeConstant",
];

/// A kind of request for which some responses may differ.
struct ExplainedKind {
    /// The method, or for tracers the name of the tracer.
    kind: &'static str,
    /// Largest number of responses that may differ, on both chains together.
    most: usize,
}

/// Kinds whose differences `docs/differences.md` explains, under "Answers that differ from
/// op-geth's".
const EXPLAINED: [ExplainedKind; 3] = [
    ExplainedKind {
        kind: "debug_accountRange",
        most: 2,
    },
    ExplainedKind {
        kind: "debug_executionWitness",
        most: 10,
    },
    ExplainedKind {
        kind: "debug_storageRangeAt",
        most: 36,
    },
];

/// A node that has imported a recorded chain.
struct ImportedNode {
    process: Running,
    url: String,
    folder: tempfile::TempDir,
}

impl ImportedNode {
    fn start(recording: &Recording) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let data = folder.path().join("data");
        let genesis = unpacked(&recording.folder.join("l2-genesis.json.zst"), folder.path());
        let blocks = recording.block_file(folder.path(), u64::MAX);
        for (command, file) in [("init", &genesis), ("import", &blocks)] {
            let status = starling()
                .arg(command)
                .arg(format!("--datadir={}", data.display()))
                .args((command == "import").then_some("--gcmode=archive"))
                .arg(file)
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .status();
            assert!(status.expect("it runs").success(), "{command}");
        }
        let [port, auth] = [free_port(), free_port()];
        let mut command = starling();
        command
            .arg("execution")
            .arg(format!("--datadir={}", data.display()))
            .args(["--gcmode=archive", "--http"])
            .arg(format!("--http.port={port}"))
            .arg("--http.api=eth,net,web3,txpool,debug,trace,ots")
            .arg(format!("--authrpc.port={auth}"));
        let process = Running::spawn(&mut command);
        let url = format!("http://127.0.0.1:{port}");
        wait("the node's RPC", Duration::from_secs(60), || {
            call(&url, "eth_chainId", json!([])).ok()
        });
        Self {
            process,
            url,
            folder,
        }
    }
}

/// Decompresses a file into a folder. Returns its path.
fn unpacked(file: &Path, folder: &Path) -> PathBuf {
    let packed = std::fs::read(file).expect("a file of the recording");
    let plain = folder.join("genesis.json");
    std::fs::write(&plain, zstd::decode_all(&packed[..]).expect("zstd")).expect("a file");
    plain
}

/// Normalizes a response: removes members that the recording cannot have, and lower-cases hex.
fn normal(value: &Value) -> Value {
    match value {
        Value::Object(members) => {
            let deposit = members.get("type") == Some(&json!("0x7e"))
                && members.contains_key("transactionHash");
            let kept = members.iter().filter(|(name, _)| {
                let is_of_deposit = deposit && L1_OF_DEPOSITS.contains(&name.as_str());
                !(UNPRINTED.contains(&name.as_str()) || is_of_deposit)
            });
            let step = members.contains_key("pc");
            let kept = kept.map(|(name, value)| match name.as_str() {
                "storage" if step => (name.clone(), without_prefixes(value)),
                _ => (name.clone(), normal(value)),
            });
            Value::Object(kept.collect())
        }
        Value::Array(items) => items.iter().map(normal).collect(),
        Value::String(text) if text.starts_with("0x") => text.to_lowercase().into(),
        // Go prints a whole number without a decimal point, so compare numbers as floats.
        Value::Number(number) => json!(number.as_f64()),
        other => other.clone(),
    }
}

/// The storage slots of a step. The recorded op-geth prints them without `0x`, newer versions with
/// it.
fn without_prefixes(slots: &Value) -> Value {
    let plain = |text: &str| text.trim_start_matches("0x").to_owned();
    let slots = slots.as_object().into_iter().flatten();
    let slots = slots.map(|(slot, value)| {
        let value = value.as_str().map(plain).unwrap_or_default();
        (plain(slot), Value::from(value))
    });
    Value::Object(slots.collect())
}

/// The method of a request, or for tracers the name of the tracer.
fn kind(request: &Value) -> String {
    let method = request["method"].as_str().expect("a method");
    let options = request["params"]
        .as_array()
        .and_then(|params| params.last());
    let Some(options) = options
        .and_then(Value::as_object)
        .filter(|_| is_trace(method))
    else {
        return method.to_owned();
    };
    let tracer = options.get("tracer").and_then(Value::as_str);
    let tracer = tracer.map(|name| {
        if name.starts_with('{') {
            "script"
        } else {
            name
        }
    });
    format!("{method} {}", tracer.unwrap_or("struct logs"))
}

fn is_trace(method: &str) -> bool {
    method.starts_with("debug_trace")
}

/// Whether the node's response equals the recorded one.
fn equal(url: &str, request: &Value) -> bool {
    let method = request["method"].as_str().expect("a method");
    let want = request["answer"]
        .as_object()
        .cloned()
        .unwrap_or_else(Map::new);
    let simulates = method == "eth_simulateV1";
    let mut params = request["params"].clone();
    if simulates {
        set_times(&mut params, &request["answer"]["result"]);
    }
    match (want.get("error"), call(url, method, params)) {
        (Some(want), Err(got)) => {
            let code = simulates || want["code"] == got["code"];
            code && want["message"] == got["message"]
        }
        (None, Ok(got)) => {
            let got = match method {
                "eth_simulateV1" => simulated_then(got),
                _ => got,
            };
            let [want, got] = [&want["result"], &got].map(|answer| match method {
                "eth_createAccessList" => sorted_list(normal(answer)),
                _ => normal(answer),
            });
            want == got
        }
        _ => false,
    }
}

/// Sets the times of simulated blocks to those of op-geth, which are 1 s apart; Starling's are 12 s
/// apart.
fn set_times(params: &mut Value, answer: &Value) {
    let blocks = answer.as_array().into_iter().flatten();
    for (index, block) in blocks.enumerate() {
        let call = &mut params[0]["blockStateCalls"][index];
        call["blockOverrides"]["time"] = block["timestamp"].clone();
    }
}

/// Removes from simulated blocks the members and error codes that the recorded op-geth lacks.
fn simulated_then(mut blocks: Value) -> Value {
    for block in blocks.as_array_mut().into_iter().flatten() {
        for call in block["calls"].as_array_mut().into_iter().flatten() {
            if let Some(members) = call.as_object_mut() {
                members.remove("maxUsedGas");
            }
            if call["error"]["code"] == 3 {
                call["error"]["code"] = json!(-32000);
            }
        }
    }
    blocks
}

/// Sorts an access list, since op-geth's order is that of a Go map.
fn sorted_list(mut answer: Value) -> Value {
    let list = answer["accessList"].as_array_mut();
    if let Some(list) = list {
        for entry in list.iter_mut() {
            if let Some(slots) = entry["storageKeys"].as_array_mut() {
                slots.sort_by_key(Value::to_string);
            }
        }
        list.sort_by_key(|entry| entry["address"].to_string());
    }
    answer
}

/// Executes a block with no state except the witness that the node at `url` returns for it.
pub fn check_witness(url: &str, spec: &ChainSpec, block: &Value) {
    let bytes = |value: Value| -> Vec<Bytes> { serde_json::from_value(value).expect("bytes") };
    let witness = ask(url, "debug_executionWitness", json!([block]));
    let raw = ask(url, "debug_getRawBlock", json!([block]));
    let raw: Bytes = serde_json::from_value(raw).expect("bytes");
    let payload = block_rlp::decode(raw).expect("a block");
    let headers: Vec<Header> = serde_json::from_value(witness["headers"].clone()).expect("headers");
    let parent = headers.first().expect("the parent's header").clone();
    assert_eq!(parent.hash_slow(), payload.parent_hash());
    let encoded = headers
        .iter()
        .map(|header| Bytes::from(alloy_rlp::encode(header)));
    let parts = [&witness["state"], &witness["codes"]].map(|part| bytes(part.clone()));
    let witness = Witness::new(parts.concat().into_iter().chain(encoded));
    let state = WitnessState {
        witness,
        header: parent,
    };
    let executed = validate(spec, state, Arc::new(payload)).expect("the witness is complete");
    assert!(!executed.receipts.is_empty());
}

/// The number of responses that differ, by kind of request.
fn differing(chain: &str) -> Option<BTreeMap<String, usize>> {
    let recording = Recording::of(chain)?;
    let file = starling_testkit::fixture(&format!("rpc-live/{chain}.jsonl.zst"))?;
    let packed = std::fs::read(file).expect("a file of the recording");
    let text = String::from_utf8(zstd::decode_all(&packed[..]).expect("zstd")).expect("text");
    let node = ImportedNode::start(&recording);
    let head = call(&node.url, "eth_blockNumber", json!([])).expect("a head");
    assert!(number(&head) > 0, "{chain} was imported");
    let genesis = std::fs::read_to_string(node.folder.path().join("genesis.json"));
    let spec = genesis::parse(&genesis.expect("a file"))
        .expect("a genesis")
        .spec;
    other_forms::check(&node.url, number(&head));
    let mut differing = BTreeMap::new();
    for line in text.lines() {
        let request: Value = serde_json::from_str(line).expect("JSON");
        if request["method"] == "debug_executionWitness" {
            check_witness(&node.url, &spec, &request["params"][0]);
            other_forms::check_payload(&node, &spec, &request["params"][0]);
        }
        if !equal(&node.url, &request) {
            *differing.entry(kind(&request)).or_default() += 1;
        }
    }
    Some(differing)
}

#[test]
fn answers_are_those_of_op_geth() {
    let mut all: BTreeMap<String, usize> = BTreeMap::new();
    for chain in ["ladder-singular", "jovian-span"] {
        let Some(differing) = differing(chain) else {
            return;
        };
        for (kind, count) in differing {
            *all.entry(kind).or_default() += count;
        }
    }
    let most = |kind: &str| {
        let explained = EXPLAINED.iter().find(|explained| explained.kind == kind);
        explained.map_or(0, |explained| explained.most)
    };
    let unexplained: Vec<_> = all
        .iter()
        .filter(|(kind, count)| **count > most(kind))
        .collect();
    assert!(
        unexplained.is_empty(),
        "answers that differ from op-geth's: {unexplained:?}"
    );
    for explained in &EXPLAINED {
        assert!(
            all.contains_key(explained.kind),
            "{} does not differ any more: take it off the list",
            explained.kind
        );
    }
}
