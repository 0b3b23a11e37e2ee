//! Recorded responses of op-geth and op-node, and test servers that send wrong responses.

use super::{response, *};
use crate::rollup::http_fake::{Canned, CannedServer};
use parking_lot::Mutex;
use serde_json::{Value, json, value::RawValue};
use std::{fs::File, time::Duration};

mod local;

const TIMEOUT: Duration = Duration::from_millis(500);

/// The JSON lines of a packed fixture.
fn lines(path: &str) -> Option<Vec<Value>> {
    let file = File::open(starling_testkit::fixture(path)?).unwrap();
    let text = String::from_utf8(zstd::decode_all(file).unwrap()).unwrap();
    let read = |line: &str| serde_json::from_str(line).unwrap();
    Some(text.lines().map(read).collect())
}

fn raw(value: &Value) -> Box<RawValue> {
    serde_json::value::to_raw_value(value).unwrap()
}

fn number(value: &Value) -> u64 {
    let text = value.as_str().unwrap().trim_start_matches("0x");
    u64::from_str_radix(text, 16).unwrap()
}

/// Blocks with whole transactions as recorded from op-geth, over all forks.
fn recorded_blocks() -> Option<Vec<Value>> {
    let mut blocks = Vec::new();
    for name in ["ladder-singular", "jovian-span"] {
        let calls = lines(&format!("rpc-live/{name}.jsonl.zst"))?;
        let is_whole = |call: &&Value| {
            call["method"] == "eth_getBlockByHash"
                && call["params"][1] == true
                && call["answer"]["result"].is_object()
        };
        let whole = calls.iter().filter(is_whole);
        blocks.extend(whole.map(|call| call["answer"]["result"].clone()));
    }
    Some(blocks)
}

/// Each URL of a pair is easily mistaken for the other one.
#[tokio::test]
async fn a_url_of_the_other_program_of_a_pair_is_told_apart() {
    let server = CannedServer::start(|_| {
        let error =
            json!({ "code": -32601, "message": "the method does not exist/is not available" });
        Canned::ok(json!({ "jsonrpc": "2.0", "id": 0, "error": error }))
    })
    .await;
    let endpoints = L2Endpoints {
        rollup: vec![server.url()],
        eth: vec![server.url()],
        check_interval: Duration::ZERO,
        timeout: TIMEOUT,
    };
    let source = RpcSource::new(&endpoints).unwrap();
    for said in [
        source
            .rollup_config()
            .await
            .map(drop)
            .unwrap_err()
            .to_string(),
        source.heads().await.map(drop).unwrap_err().to_string(),
    ] {
        assert!(said.contains("its rollup node's port is 9545"), "{said}");
    }
    let said = source.block(1).await.map(drop).unwrap_err().to_string();
    assert!(
        said.contains("its execution client's port is 8545"),
        "{said}"
    );
}

#[test]
fn blocks_of_op_geth_are_read_and_hash_to_what_they_claim() {
    let Some(blocks) = recorded_blocks() else {
        return;
    };
    assert!(blocks.len() > 20, "{}", blocks.len());
    let mut transactions = 0;
    for block in &blocks {
        let number = number(&block["number"]);
        let payload = response::block(&raw(block), number).unwrap().unwrap();
        assert_eq!(payload.hash.to_string(), block["hash"].as_str().unwrap());
        let listed = block["transactions"].as_array().unwrap();
        assert_eq!(payload.transactions.len(), listed.len());
        transactions += listed.len();
        let id = response::block_id(&raw(block), number).unwrap();
        assert_eq!(id, Some(payload.id()));
    }
    assert!(transactions > blocks.len(), "not only deposits");
    assert_eq!(response::block(&raw(&json!(null)), 5), Ok(None));
}

#[test]
fn a_block_that_is_changed_anywhere_is_refused() {
    let Some(blocks) = recorded_blocks() else {
        return;
    };
    let has_many = |block: &&Value| block["transactions"].as_array().unwrap().len() > 1;
    let good = blocks.iter().find(has_many).unwrap();
    let height = number(&good["number"]);
    let refused = |change: &dyn Fn(&mut Value), asked: u64, expected: &str| {
        let mut block = good.clone();
        change(&mut block);
        let said = response::block(&raw(&block), asked)
            .unwrap_err()
            .to_string();
        assert!(said.contains(expected), "{said}");
    };
    let zero = format!("0x{}", "00".repeat(32));
    refused(&|_| {}, height + 1, "requested block");
    refused(&|b| b["hash"] = json!(zero), height, "claims the hash");
    refused(&|b| b["stateRoot"] = json!(zero), height, "claims the hash");
    let last_missing = |b: &mut Value| {
        b["transactions"].as_array_mut().unwrap().pop();
    };
    refused(&last_missing, height, "have the root");
    let swapped = |b: &mut Value| b["transactions"].as_array_mut().unwrap().reverse();
    refused(&swapped, height, "have the root");
    let nonce = |b: &mut Value| b["transactions"][1]["nonce"] = json!("0x999");
    refused(&nonce, height, "have the root");
    let hashes_only = |b: &mut Value| b["transactions"] = json!([zero]);
    refused(&hashes_only, height, "malformed");
    let without = |b: &mut Value| {
        b.as_object_mut().unwrap().remove("transactions");
    };
    refused(&without, height, "without transactions");
}

#[test]
fn heads_of_op_node_are_read() {
    let Some(text) = starling_testkit::fixture_text("derivation-live/jovian-span/sync-status.json")
    else {
        return;
    };
    let recorded: Value = serde_json::from_str(&text).unwrap();
    let heads = response::heads(&raw(&recorded)).unwrap();
    let current = heads.current_l1.unwrap();
    assert_eq!((current.id.number, current.time), (479, 1_795_403_160));
    let head = heads.unsafe_l2.unwrap();
    assert_eq!((head.id.number, head.origin.number), (2849, 475));
    assert_eq!(
        heads.local_safe_l2.unwrap().id.hash.to_string(),
        recorded["local_safe_l2"]["hash"].as_str().unwrap()
    );
    // Unknown heads have zero hashes; older op-node versions send no local safe head.
    let mut young = recorded.clone();
    young["finalized_l2"]["hash"] = json!(format!("0x{}", "00".repeat(32)));
    young.as_object_mut().unwrap().remove("local_safe_l2");
    let heads = response::heads(&raw(&young)).unwrap();
    assert_eq!(heads.finalized_l2, None);
    assert_eq!(heads.local_safe_l2, heads.safe_l2);
    assert!(heads.safe_l2.is_some());
}

#[test]
fn outputs_of_op_node_are_computed_again() {
    let Some(outputs) = lines("derivation-live/jovian-span/outputs.jsonl.zst") else {
        return;
    };
    let zero = format!("0x{}", "00".repeat(32));
    for recorded in &outputs {
        let mut output = recorded.clone();
        output["version"] = json!(zero);
        let height = recorded["number"].as_u64().unwrap();
        let read = response::output(&raw(&output), height).unwrap();
        assert_eq!(
            read.root.to_string(),
            recorded["outputRoot"].as_str().unwrap()
        );
        assert_eq!(read.block.id.number, height);
        let refused = |change: &dyn Fn(&mut Value), asked: u64, expected: &str| {
            let mut output = output.clone();
            change(&mut output);
            let said = response::output(&raw(&output), asked).unwrap_err();
            assert!(said.to_string().contains(expected), "{said}");
        };
        refused(&|_| {}, height + 1, "requested block");
        refused(&|o| o["stateRoot"] = json!(zero), height, "its parts give");
        refused(&|o| o["outputRoot"] = json!(zero), height, "its parts give");
        let other = format!("0x01{}", "00".repeat(31));
        refused(&|o| o["version"] = json!(other), height, "unsupported");
    }
    assert!(!outputs.is_empty());
}

fn source(rollup: &[&CannedServer], eth: &[&CannedServer]) -> L2Source {
    let urls = |servers: &[&CannedServer]| servers.iter().map(|server| server.url()).collect();
    let endpoints = L2Endpoints {
        rollup: urls(rollup),
        eth: urls(eth),
        check_interval: Duration::from_secs(60),
        timeout: TIMEOUT,
    };
    L2Source::Rpc(Arc::new(RpcSource::new(&endpoints).unwrap()))
}

fn result(value: &Value) -> Canned {
    Canned::ok(json!({ "jsonrpc": "2.0", "id": 0, "result": value }))
}

fn refusal(code: i32, message: &str) -> Canned {
    let error = json!({ "code": code, "message": message });
    Canned::ok(json!({ "jsonrpc": "2.0", "id": 0, "error": error }))
}

/// A wrong response of an execution client is an error that names program, endpoint and method.
#[tokio::test]
async fn wrong_answers_are_named_and_never_a_block() {
    let Some(blocks) = recorded_blocks() else {
        return;
    };
    let block = blocks[0].clone();
    let height = number(&block["number"]);
    let mut false_hash = block.clone();
    false_hash["gasUsed"] = json!("0x1");
    let answers: Vec<(Canned, &str)> = vec![
        (result(&blocks[1]), "requested block"),
        (result(&false_hash), "claims the hash"),
        (Canned::html(), "a web page where JSON was expected"),
        (Canned::ok("{"), "malformed response"),
        (result(&json!([1, 2])), "malformed response"),
        (result(&json!("x".repeat(100_000))), "malformed response"),
        (refusal(-32000, "missing trie node"), "missing trie node"),
        (Canned::status(404, ""), "HTTP status 404"),
        (
            Canned::Half(b"{\"result\": null}".to_vec()),
            "eth_getBlockByNumber",
        ),
        (Canned::Silence, "no response within"),
    ];
    let answers = Mutex::new(answers.into_iter().collect::<Vec<_>>());
    let count = answers.lock().len();
    let expected = Arc::new(Mutex::new(""));
    let now = expected.clone();
    let server = CannedServer::start(move |_| {
        let (answer, expected) = answers.lock().remove(0);
        *now.lock() = expected;
        answer
    })
    .await;
    let source = source(&[&server], &[&server]);
    for _ in 0..count {
        let error = source.block(height).await.unwrap_err().to_string();
        let expected = *expected.lock();
        assert!(error.contains(expected), "{error}, not {expected}");
        let named = format!("L2 at {}: eth_getBlockByNumber: ", server.url());
        assert!(error.starts_with(&named), "{error}");
        assert!(error.len() < 600, "{} bytes", error.len());
    }
}

#[tokio::test]
async fn blocks_and_their_hashes_are_read() {
    let Some(blocks) = recorded_blocks() else {
        return;
    };
    let block = blocks[0].clone();
    let height = number(&block["number"]);
    let served = block.clone();
    let server = CannedServer::start(move |request| {
        if request.contains(&format!("\"0x{height:x}\"")) {
            result(&served)
        } else {
            result(&json!(null))
        }
    })
    .await;
    let source = source(&[&server], &[&server]);
    let payload = source.block(height).await.unwrap().unwrap();
    assert_eq!(payload.hash.to_string(), block["hash"].as_str().unwrap());
    assert_eq!(source.block_id(height).await.unwrap(), Some(payload.id()));
    assert!(source.block(height + 1).await.unwrap().is_none());
    assert!(source.block_id(height + 1).await.unwrap().is_none());
    let error = source.rollup_config().await.unwrap_err().to_string();
    assert!(error.starts_with("invalid rollup config"), "{error}");
}

/// A rollup node that reports whether its sequencer is active, and identifies itself by its heads.
async fn rollup_node(active: Arc<Mutex<bool>>, height: u64) -> CannedServer {
    let text = starling_testkit::fixture_text("derivation-live/jovian-span/sync-status.json");
    let status: Value = text.map_or(Value::Null, |text| serde_json::from_str(&text).unwrap());
    CannedServer::start(move |request| {
        if request.contains("admin_sequencerActive") {
            return result(&json!(*active.lock()));
        }
        status_of(&mut status.clone(), height)
    })
    .await
}

fn status_of(status: &mut Value, height: u64) -> Canned {
    status["unsafe_l2"]["number"] = json!(height);
    result(status)
}

#[tokio::test]
async fn the_pair_of_the_active_sequencer_is_used() {
    if starling_testkit::fixture("derivation-live").is_none() {
        return;
    }
    let active: [_; 3] = std::array::from_fn(|_| Arc::new(Mutex::new(false)));
    let nodes = [
        rollup_node(active[0].clone(), 100).await,
        rollup_node(active[1].clone(), 101).await,
        rollup_node(active[2].clone(), 102).await,
    ];
    let source = source(&[&nodes[0], &nodes[1], &nodes[2]], &[]);
    let height = async || {
        let heads = source.heads().await?;
        Ok::<_, L2SourceError>(heads.unsafe_l2.unwrap().id.number)
    };
    let error = height().await.unwrap_err().to_string();
    assert!(
        error.starts_with("failed to find an active sequencer, tried following urls: [http://"),
        "{error}"
    );
    *active[1].lock() = true;
    assert_eq!(height().await.unwrap(), 101);
    // Within the interval no endpoint is checked again.
    let asked = nodes[0].count() + nodes[2].count();
    *active[1].lock() = false;
    *active[2].lock() = true;
    assert_eq!(height().await.unwrap(), 101);
    assert_eq!(nodes[0].count() + nodes[2].count(), asked);
}

#[tokio::test]
async fn a_sequencer_that_fails_is_left_at_once() {
    if starling_testkit::fixture("derivation-live").is_none() {
        return;
    }
    let broken = Arc::new(Mutex::new(false));
    let is_broken = broken.clone();
    let first = CannedServer::start(move |request| {
        if *is_broken.lock() {
            Canned::status(502, "")
        } else if request.contains("admin_sequencerActive") {
            result(&json!(true))
        } else {
            result(&json!(null))
        }
    })
    .await;
    let second = rollup_node(Arc::new(Mutex::new(true)), 7).await;
    let source = source(&[&first, &second], &[]);
    assert!(source.heads().await.is_err(), "null is no status");
    *broken.lock() = true;
    assert!(source.heads().await.is_err());
    let heads = source.heads().await.unwrap();
    assert_eq!(heads.unsafe_l2.unwrap().id.number, 7);
}

#[test]
fn lists_of_different_lengths_are_refused() {
    let endpoints = |rollup: usize, eth: usize| L2Endpoints {
        rollup: vec!["http://a".into(); rollup],
        eth: vec!["http://b".into(); eth],
        check_interval: TIMEOUT,
        timeout: TIMEOUT,
    };
    let said = |rollup, eth| endpoints(rollup, eth).check().unwrap_err().to_string();
    assert_eq!(
        said(2, 1),
        "number of rollup and eth URLs must match: 2 and 1"
    );
    assert_eq!(said(0, 0), "no URL of a rollup node is given");
    assert!(endpoints(2, 2).check().is_ok());
    assert!(endpoints(1, 0).check().is_ok());
    let wrong = L2Endpoints {
        rollup: vec!["ftp://name:password@host".into()],
        ..endpoints(1, 0)
    };
    let Err(error) = RpcSource::new(&wrong) else {
        panic!("a client of ftp");
    };
    assert!(!error.to_string().contains("password"), "{error}");
}
