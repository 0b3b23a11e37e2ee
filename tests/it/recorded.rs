//! Our answers and a real op-geth's to the same requests on one genesis: parameters in forms that
//! Go's decoders read or refuse, texts that wallets look for, instructions that fail.
//!
//! op-geth's are kept as data, so that ours are compared with them without it. With
//! `STARLING_OP_GETH` the data are compared with what that op-geth answers now;
//! `STARLING_RECORD=write` records them again.

mod explained;
mod traces;

use crate::{
    foreign::{
        GETH,
        programs::{Started, op_geth, programs},
    },
    net::{Running, ask, call, starling, wait},
};
use explained::Outcome;
use serde_json::{Value, json};
use starling_testkit::free_port;
use std::{
    fs,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

/// The release whose answers are recorded.
const MODULE: &str = "op-geth v1.101702.3";
/// Longest result, in bytes of JSON, that is recorded. Of a longer one only the success is.
const LONGEST: usize = 160;
/// An answer that depends on how much op-geth has indexed.
const INDEXING: &str = "transaction indexing is in progress";
/// Stands for the hash of the genesis block in requests.
const GENESIS: &str = "BLOCKHASH";

fn file(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/recorded");
    folder.join(name)
}

fn read(name: &str) -> String {
    fs::read_to_string(file(name)).expect("a recorded file")
}

fn lines(name: &str) -> Vec<Value> {
    let text = read(name);
    let lines = text.lines().map(serde_json::from_str);
    lines.collect::<Result<_, _>>().expect("lines of JSON")
}

/// Compares the lines of an op-geth with a recorded file, or records them. The first line names
/// their source.
fn check(name: &str, node: &Started, recorded: Vec<Value>) {
    if std::env::var("STARLING_RECORD").is_ok_and(|mode| mode == "write") {
        let version = ask(&node.url, "web3_clientVersion", json!([]));
        let source = json!({ "module": MODULE, "source": version });
        let lines = std::iter::once(source).chain(recorded);
        let text: String = lines.map(|line| format!("{line}\n")).collect();
        fs::write(file(name), text).expect("a file");
        return;
    }
    let known = lines(name);
    assert_eq!(known.len(), recorded.len() + 1, "{name}");
    for (known, now) in known[1..].iter().zip(recorded) {
        assert_eq!(*known, now, "{name}");
    }
}

/// An op-geth on the recorded genesis, in a folder of its own.
fn theirs() -> Option<(tempfile::TempDir, Started)> {
    let [program] = programs([GETH])?;
    let dir = tempfile::tempdir().expect("a temporary folder");
    fs::copy(file("genesis.json"), dir.path().join("l2-genesis.json")).expect("a genesis");
    let names = "--http.api=eth,net,web3,txpool,debug".to_owned();
    let node = op_geth(dir.path(), &program, "op-geth", &[names]);
    Some((dir, node))
}

/// A node of ours on the recorded genesis, and the URL of its JSON-RPC.
fn ours() -> (tempfile::TempDir, Running, String) {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let data = format!("--datadir={}", dir.path().display());
    let status = starling()
        .args(["init", &data])
        .arg(file("genesis.json"))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    assert!(status.expect("it runs").success(), "init");
    let [port, auth] = [free_port(), free_port()];
    let mut command = starling();
    command
        .args(["execution", &data, "--http"])
        .arg("--http.api=eth,net,web3,txpool,debug,trace")
        .arg(format!("--http.port={port}"))
        .arg(format!("--authrpc.port={auth}"));
    let process = Running::spawn(&mut command);
    let url = format!("http://127.0.0.1:{port}");
    wait("the node's RPC", Duration::from_secs(60), || {
        call(&url, "eth_chainId", json!([])).ok()
    });
    (dir, process, url)
}

/// A template with its placeholder replaced.
fn put(template: &Value, form: &Value) -> Value {
    match template {
        Value::String(text) if text == "?" => form.clone(),
        Value::Array(items) => items.iter().map(|item| put(item, form)).collect(),
        Value::Object(members) => {
            let members = members.iter();
            members
                .map(|(name, value)| (name.clone(), put(value, form)))
                .collect()
        }
        other => other.clone(),
    }
}

/// The requests of the table of forms: each form of a kind at each place of that kind, and requests
/// as they are. Each is a method with its parameters.
fn requests() -> Vec<(String, Value)> {
    let table: Value = serde_json::from_str(&read("forms.json")).expect("a table");
    let list = |name: &str| table[name].as_array().expect("a list").clone();
    let text = |value: &Value| value.as_str().expect("a name").to_owned();
    let mut requests = Vec::new();
    for slot in list("slots") {
        for form in table["kinds"][&text(&slot[0])].as_array().expect("forms") {
            requests.push((text(&slot[1]), put(&slot[2], form)));
        }
    }
    let whole = list("whole");
    requests.extend(
        whole
            .iter()
            .map(|whole| (text(&whole[0]), whole[1].clone())),
    );
    requests
}

/// A node's answer to a request.
fn answer(url: &str, genesis: &str, method: &str, params: &Value) -> Value {
    let given = params.to_string().replace(GENESIS, genesis);
    let given = serde_json::from_str(&given).expect("JSON");
    match call(url, method, given) {
        Ok(result) if result.to_string().len() > LONGEST => json!({ "long": true }),
        Ok(result) => json!({ "result": result }),
        Err(error) => json!({ "error": error }),
    }
}

fn genesis_hash(url: &str) -> String {
    let genesis = ask(url, "eth_getBlockByNumber", json!(["0x0", false]));
    genesis["hash"].as_str().expect("a hash").to_owned()
}

#[test]
fn forms_of_parameters_are_read_and_refused_as_op_geth_does() {
    let (_dir, _process, url) = ours();
    let genesis = genesis_hash(&url);
    let cases = lines("answers.jsonl");
    assert!(cases.len() > 500);
    let mut unexplained = Vec::new();
    for case in &cases[1..] {
        let (method, params) = (case[0].as_str().expect("a method"), &case[1]);
        let own = answer(&url, &genesis, method, params);
        let (theirs, ours) = (Outcome::new(&case[2]), Outcome::new(&own));
        if theirs != ours && !explained::is_explained(method, params, &theirs, &ours) {
            unexplained.push(format!(
                "{method} {params}\n   op-geth: {}\n   ours: {own}",
                case[2]
            ));
        }
    }
    assert!(unexplained.is_empty(), "{}", unexplained.join("\n"));
}

#[test]
fn recorded_answers_to_forms_of_parameters_are_op_geths() {
    let Some((_dir, node)) = theirs() else {
        return;
    };
    let genesis = genesis_hash(&node.url);
    let mut recorded = Vec::new();
    for (method, params) in requests() {
        let answer = answer(&node.url, &genesis, &method, &params);
        if answer["error"]["message"] != INDEXING {
            recorded.push(json!([method, params, answer]));
        }
    }
    check("answers.jsonl", &node, recorded);
}
