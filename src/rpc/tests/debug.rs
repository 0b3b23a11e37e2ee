//! The `debug` namespace: tracing of calls and blocks, its bounds, and its files.

use super::chain::{CONTRACT, Chain, RICH};
use crate::rpc::RpcContext;
use alloy_primitives::{B256, TxKind};
use op_alloy_consensus::{OpTxEnvelope, TxDeposit};
use serde_json::{Value, json};
use starling_proto::fork::Fork;

/// Code that loops for ever.
pub const LOOP: &str = "0x5b600056";
/// Code that loops until the counter from its calldata is zero.
pub const COUNTDOWN: &str = "0x6000355b600190038060035700";
/// Code that stores a value, logs, calls the identity precompile, and reverts with four bytes.
const BUSY: &str = "0x602a60015560aa60006000a1600060006000600060045afa5060046000fd";

pub async fn chain(change: impl FnOnce(&mut RpcContext)) -> Chain {
    let mut chain = Chain::new(Fork::Isthmus).with(change);
    chain.add(&[]);
    chain.serve(&["debug", "eth"]);
    chain
}

pub fn call_with(code: &str, options: Value) -> Value {
    let mut options = options;
    options["stateOverrides"] = json!({ CONTRACT.to_string(): { "code": code } });
    json!([{ "from": RICH, "to": CONTRACT, "gas": "0x186a0" }, "latest", options])
}

#[tokio::test]
async fn it_is_served_only_where_it_is_named() {
    let mut chain = chain(|_| ()).await;
    chain.serve(&["eth"]);
    let (code, _) = chain.error("debug_traceCall", json!([])).await;
    assert_eq!(code, -32601);
}

#[tokio::test]
async fn struct_logs_are_lines_in_geths_form() {
    let chain = chain(|_| ()).await;
    let code = "0x602a600155600154";
    let params = call_with(code, json!({ "enableMemory": true }));
    let trace = chain.result("debug_traceCall", params).await;
    assert_eq!(trace["failed"], false);
    assert_eq!(trace["returnValue"], "0x");
    let word = |number: u64| format!("{}", B256::from(alloy_primitives::U256::from(number)));
    let logs = trace["structLogs"].as_array().unwrap();
    let ops: Vec<_> = logs.iter().map(|log| log["op"].as_str().unwrap()).collect();
    assert_eq!(ops, ["PUSH1", "PUSH1", "SSTORE", "PUSH1", "SLOAD", "STOP"]);
    assert_eq!(
        logs[0],
        json!({ "pc": 0, "op": "PUSH1", "gas": 79_000, "gasCost": 3, "depth": 1, "stack": [] })
    );
    assert_eq!(logs[2]["storage"], json!({ word(1): word(0x2a) }));
    assert_eq!(logs[2]["gasCost"], 5_000);
    assert_eq!(logs[4]["stack"], json!(["0x1"]));
    assert_eq!(logs[4]["gasCost"], 100);
    let limited = call_with(code, json!({ "limit": 100 }));
    let trace = chain.result("debug_traceCall", limited).await;
    assert_eq!(trace["structLogs"].as_array().unwrap().len(), 2);
}

#[tokio::test]
async fn empty_code_has_no_steps() {
    let chain = chain(|_| ()).await;
    // The first call creates a contract with empty init code. The second call is itself such a
    // creation.
    let created = call_with("0x600060006000f0", json!({}));
    let root = json!([{ "from": RICH, "gas": "0x186a0" }, "latest", {}]);
    for (params, steps) in [(created, 5), (root, 0)] {
        let trace = chain.result("debug_traceCall", params).await;
        assert_eq!(trace["failed"], false, "{trace}");
        let logs = trace["structLogs"].as_array().unwrap();
        assert_eq!(logs.len(), steps, "{trace}");
    }
}

#[tokio::test]
async fn a_step_that_cannot_run_carries_its_error() {
    let chain = chain(|_| ()).await;
    for (code, error) in [
        ("0x01", "stack underflow (0 <=> 2)"),
        ("0x63ffffffff51", "out of gas"),
    ] {
        let trace = chain
            .result("debug_traceCall", call_with(code, json!({})))
            .await;
        assert_eq!(trace["failed"], true, "{trace}");
        let last = trace["structLogs"]
            .as_array()
            .unwrap()
            .last()
            .unwrap()
            .clone();
        assert_eq!(last["error"], error, "{trace}");
    }
    let trace = chain
        .result("debug_traceCall", call_with("0xfe", json!({})))
        .await;
    assert_eq!(trace["structLogs"][0].get("error"), None);
    let options = json!({ "tracer": "callTracer" });
    let frame = chain
        .result("debug_traceCall", call_with("0xfe", options))
        .await;
    assert_eq!(frame["error"], "invalid opcode: INVALID");
    assert_eq!(frame["gasUsed"], "0x186a0");
}

#[tokio::test]
async fn tracers_are_chosen_by_name() {
    let chain = chain(|_| ()).await;
    let trace = async |options: Value| {
        chain
            .result("debug_traceCall", call_with(BUSY, options))
            .await
    };
    let frame = trace(json!({ "tracer": "callTracer", "tracerConfig": { "withLog": true } })).await;
    assert_eq!(frame["type"], "CALL");
    let parts =
        json!({ "callTracer": { "withLog": true }, "noopTracer": null, "4byteTracer": null });
    let mux = trace(json!({ "tracer": "muxTracer", "tracerConfig": parts })).await;
    assert_eq!(mux["callTracer"], frame);
    assert_eq!(
        (&mux["noopTracer"], &mux["4byteTracer"]),
        (&json!({}), &json!({}))
    );
    let flat = trace(json!({ "tracer": "flatCallTracer" })).await;
    assert_eq!(flat[0]["action"]["callType"], "call");
    let before = trace(json!({ "tracer": "prestateTracer" })).await;
    let contract = &before[format!("{CONTRACT:#x}")];
    assert_eq!(contract["code"], BUSY);
    let diff = json!({ "tracer": "prestateTracer", "tracerConfig": { "diffMode": true } });
    let diff = trace(diff).await;
    assert!(diff["post"].is_object() && diff["pre"].is_object());
    let bundler = trace(json!({ "tracer": "erc7562Tracer" })).await;
    assert_eq!(bundler["usedOpcodes"]["0x55"], 1);
    let (code, message) = chain
        .error("debug_traceCall", call_with(BUSY, json!({ "tracer": "x" })))
        .await;
    assert_eq!(
        (code, message.ends_with("not found")),
        (-32602, true),
        "{message}"
    );
}

#[tokio::test]
async fn what_cannot_be_traced_is_told_in_geths_words() {
    let chain = chain(|_| ()).await;
    let hash = B256::repeat_byte(7);
    let unknown = format!("block {hash:#x} not found");
    for (method, params, text) in [
        (
            "debug_traceTransaction",
            json!([hash]),
            "transaction not found",
        ),
        (
            "debug_traceBlockByNumber",
            json!(["earliest"]),
            "genesis is not traceable",
        ),
        (
            "debug_traceBlockByNumber",
            json!(["0x64"]),
            "block #100 not found",
        ),
        ("debug_traceBlockByHash", json!([hash]), unknown.as_str()),
        (
            "debug_traceBlock",
            json!(["0xc0"]),
            "could not decode block",
        ),
        ("debug_traceBadBlock", json!([hash]), "bad block 0x0707"),
        (
            "debug_traceCall",
            json!([{}, "pending"]),
            "tracing on top of pending is not supported",
        ),
        ("debug_memStats", json!([]), "this node is not a Go program"),
        ("debug_preimage", json!([hash]), "unknown preimage"),
    ] {
        chain.fails(method, params, text).await;
    }
    assert_eq!(
        chain.result("debug_getBadBlocks", json!([])).await,
        json!([])
    );
}

/// Code that calls an account without code `times` times, with a megabyte of input each.
fn repeated(times: usize) -> String {
    format!("0x{}", "6000600062100000600060ee5afa50".repeat(times))
}

#[tokio::test]
async fn an_index_names_a_transaction_of_the_block() {
    let chain = chain(|_| ()).await;
    let hash = chain.head().hash;
    let range = |index: u64| json!(["latest", index, CONTRACT, "0x", 10]);
    let call = |index: &str| call_with("0x00", json!({ "txIndex": index }));
    chain.result("debug_storageRangeAt", range(0)).await;
    chain.result("debug_traceCall", call("0x0")).await;
    for (index, digits) in [(1, "0x1"), (7, "0x7")] {
        let text = format!("transaction index {index} out of range for block {hash:#x}");
        chain
            .fails("debug_storageRangeAt", range(index), &text)
            .await;
        chain.fails("debug_traceCall", call(digits), &text).await;
    }
}

#[tokio::test]
async fn time_memory_and_gas_of_a_trace_are_bounded() {
    let chain = chain(|context| context.bounds.trace_bytes = 1 << 20).await;
    let endless = |options: Value| {
        let mut params = call_with(LOOP, options);
        params[0]["gas"] = json!("0xffffffffffff");
        params
    };
    let large = "the trace is larger than 1 MB";
    chain
        .fails("debug_traceCall", endless(json!({})), large)
        .await;
    // The call ends at its timeout, or at the gas cap.
    let silent = json!({ "tracer": "noopTracer", "timeout": "1ms" });
    chain
        .fails("debug_traceCall", endless(silent), "execution timeout")
        .await;
    let capped = json!({ "tracer": "callTracer", "timeout": "10m" });
    let frame = chain.result("debug_traceCall", endless(capped)).await;
    assert_eq!(frame["gas"], "0x2faf080");
    assert_eq!(frame["error"], "out of gas");
    // Code whose calls have a megabyte of input each.
    let greedy = "0x5b6000600062100000600060045afa50600056";
    let mut params = call_with(greedy, json!({ "tracer": "callTracer" }));
    params[0]["gas"] = json!("0x2faf080");
    let full = "the trace is larger than 32 MB";
    chain.fails("debug_traceCall", params.clone(), full).await;
    // A single tracer may record these calls, but two tracers together may not.
    params[0]["gas"] = json!("0x989680");
    params[2]["stateOverrides"][CONTRACT.to_string()]["code"] = json!(repeated(20));
    chain.fails("debug_traceCall", params.clone(), large).await;
    params[2]["tracer"] = json!("muxTracer");
    params[2]["tracerConfig"] = json!({ "callTracer": null, "flatCallTracer": null });
    chain.fails("debug_traceCall", params, full).await;
}

#[tokio::test]
async fn bundles_of_calls_see_what_earlier_ones_changed() {
    let chain = chain(|_| ()).await;
    // Code that adds one to slot 0 and returns the new value.
    let code = "0x60005460010180600055600052602060 00f3".replace(' ', "");
    let call = json!({ "to": CONTRACT, "gas": "0x186a0" });
    let options = json!({
        "tracer": "callTracer",
        "stateOverrides": { CONTRACT.to_string(): { "code": code } },
    });
    let bundles = json!([{ "transactions": [call, call] }, { "transactions": [call] }]);
    let params = json!([bundles, { "blockNumber": "latest" }, options]);
    let traces = chain.result("debug_traceCallMany", params).await;
    let output = |bundle: usize, call: usize| traces[bundle][call]["output"].clone();
    let word = |number: u64| json!(format!("0x{number:064x}"));
    assert_eq!(output(0, 0), word(1));
    assert_eq!(output(0, 1), word(2));
    assert_eq!(output(1, 0), word(3));
}

#[tokio::test]
async fn blocks_are_executed_again_and_written_to_files_inside_their_folder() {
    let folder = tempfile::tempdir().unwrap();
    let traces = folder.path().join("traces");
    let chain = chain(|context| context.traces = Some(traces.clone())).await;
    let hash = chain.head().hash;
    let options = json!({ "tracer": "callTracer" });
    let by_hash = chain
        .result("debug_traceBlockByHash", json!([hash, options]))
        .await;
    assert_eq!(by_hash[0]["result"]["type"], "CALL");
    let rlp = chain.result("debug_getRawBlock", json!(["latest"])).await;
    let by_rlp = chain
        .result("debug_traceBlock", json!([rlp, options]))
        .await;
    assert_eq!(by_rlp, by_hash);
    let files = chain
        .result("debug_standardTraceBlockToFile", json!([hash]))
        .await;
    let file = std::path::Path::new(files[0].as_str().unwrap());
    assert!(file.starts_with(&traces), "{files}");
    let text = std::fs::read_to_string(file).unwrap();
    assert!(
        text.lines()
            .all(|line| serde_json::from_str::<Value>(line).is_ok()),
        "{text}"
    );
    let block = alloy_primitives::hex::decode(rlp.as_str().unwrap()).unwrap();
    std::fs::write(traces.join("block.rlp"), &block).unwrap();
    std::fs::write(folder.path().join("outside.rlp"), &block).unwrap();
    std::os::unix::fs::symlink(folder.path().join("outside.rlp"), traces.join("link")).unwrap();
    let from = |name: &str| json!([name, options]);
    let inside = chain
        .result("debug_traceBlockFromFile", from("block.rlp"))
        .await;
    assert_eq!(inside, by_hash);
    for name in ["../outside.rlp", "/etc/passwd", "link", "", ".", "missing"] {
        let start = "could not read file";
        chain
            .fails("debug_traceBlockFromFile", from(name), start)
            .await;
    }
}

/// A creation whose init code loops `times` times.
pub fn looping(source_hash: B256, times: u16) -> OpTxEnvelope {
    let code = format!("0x61{times:04x}5b600190038060035700");
    TxDeposit {
        source_hash,
        from: RICH,
        to: TxKind::Create,
        gas_limit: 1_000_000,
        input: code.parse().unwrap(),
        ..TxDeposit::default()
    }
    .into()
}

#[tokio::test]
async fn a_file_has_all_lines_of_a_long_trace_in_order() {
    let folder = tempfile::tempdir().unwrap();
    let traces = folder.path().join("traces");
    let mut chain = chain(|context| context.traces = Some(traces)).await;
    let block = chain.add(&[(looping(B256::ZERO, 2_000), vec![])]);
    let hash = block.payload.hash;
    let traced = chain.result("debug_traceBlockByHash", json!([hash])).await;
    let steps = traced[1]["result"]["structLogs"].as_array().unwrap().len();
    assert!(steps > 12_000, "{steps}");
    let files = chain
        .result("debug_standardTraceBlockToFile", json!([hash]))
        .await;
    let text = std::fs::read_to_string(files[1].as_str().unwrap()).unwrap();
    // The trace has several chunks.
    assert!(text.len() > 1 << 20, "{}", text.len());
    let first = text.lines().next().unwrap();
    assert!(first.starts_with(r#"{"pc":0,"op":97,"#), "{first}");
    assert_eq!(text.lines().count(), steps + 1);
    assert!(text.lines().last().unwrap().starts_with(r#"{"output":"#));
}

#[tokio::test]
async fn all_files_of_a_call_share_what_is_left_for_the_folder() {
    let folder = tempfile::tempdir().unwrap();
    let traces = folder.path().join("traces");
    std::fs::create_dir(&traces).unwrap();
    let mut chain = chain(|context| context.traces = Some(traces.clone())).await;
    let long = |source: u8| looping(B256::repeat_byte(source), 2_000);
    let block = chain.add(&[(long(1), vec![]), (long(2), vec![])]);
    let params = json!([block.payload.hash]);
    // A sparse file: it counts for all bytes of the folder but three megabytes, and takes no space
    // on the disk.
    let large = std::fs::File::create(traces.join("old")).unwrap();
    let write = "debug_standardTraceBlockToFile";
    large.set_len((16 << 30) - (3 << 20)).unwrap();
    let (_, refused) = chain.error(write, params.clone()).await;
    let text = "the trace is larger than 1 MB, which is what one file may take";
    assert!(refused.contains(text), "{refused}");
    assert_eq!(std::fs::read_dir(&traces).unwrap().count(), 1);
    large.set_len((16 << 30) + 1).unwrap();
    chain.fails(write, params.clone(), "the files in").await;
    large.set_len((16 << 30) - (5 << 20)).unwrap();
    let writing = chain.context.bounds.trace_files.clone();
    let held = writing.try_acquire_owned().unwrap();
    let other = "another call writes traces";
    chain.fails(write, params.clone(), other).await;
    drop(held);
    let files = chain.result(write, params).await;
    assert_eq!(files.as_array().unwrap().len(), 3);
}

#[tokio::test]
async fn names_are_known_where_they_are_kept() {
    let chain = chain(|_| ()).await;
    let range = json!(["latest", 0, CONTRACT, "0x", 10]);
    let slot = |response: &Value| {
        let storage = response["storage"].as_object().unwrap();
        storage.values().next().unwrap()["key"].clone()
    };
    let dump = json!(["latest", "0x", 10, true, true, true]);
    let plain = chain.result("debug_accountRange", dump.clone()).await;
    let accounts = plain["accounts"].as_object().unwrap();
    assert!(accounts.keys().all(|name| name.starts_with("pre(0x")));
    assert_eq!(
        slot(&chain.result("debug_storageRangeAt", range.clone()).await),
        Value::Null
    );
    chain.store.keep_names(true);
    let named = chain.result("debug_accountRange", dump).await;
    let entry = &named["accounts"][CONTRACT.to_string()];
    assert_eq!(entry["address"], json!(CONTRACT));
    assert_eq!(entry["key"], json!(alloy_primitives::keccak256(CONTRACT)));
    let known = json!(["latest", "0x", 10, true, true, false]);
    let known = chain.result("debug_accountRange", known).await;
    assert_eq!(known["accounts"], named["accounts"]);
    let first = B256::with_last_byte(1);
    assert_eq!(
        slot(&chain.result("debug_storageRangeAt", range).await),
        json!(first)
    );
    let hash = json!([alloy_primitives::keccak256(RICH)]);
    assert_eq!(chain.result("debug_preimage", hash).await, json!(RICH));
}

#[tokio::test]
async fn a_witness_needs_a_known_parent_and_whole_attributes() {
    let chain = chain(|_| ()).await;
    let attributes = json!({
        "timestamp": "0x5000", "prevRandao": B256::ZERO, "suggestedFeeRecipient": RICH, "withdrawals": [],
        "parentBeaconBlockRoot": B256::ZERO, "transactions": [],
    });
    let unknown = json!([B256::repeat_byte(7), attributes]);
    chain
        .fails("debug_executePayload", unknown, "block 0x0707")
        .await;
    let head = chain.head().hash;
    let incomplete = json!([head, attributes]);
    let start = "eip1559Params is missing";
    chain.fails("debug_executePayload", incomplete, start).await;
    let (code, _) = chain.error("debug_executePayload", json!([head, {}])).await;
    assert_eq!(code, -32602);
}

#[tokio::test]
async fn a_sync_target_is_set_only_where_a_rollup_node_drives() {
    let chain = chain(|_| ()).await;
    let sync = |hash: B256| chain.ask("debug_sync", json!([hash]));
    assert_eq!(sync(chain.head().hash).await["result"], Value::Null);
    let below = chain.context.chain.spec.genesis_hash;
    let stale = "stale sync target, current: 1, received: 0";
    chain.fails("debug_sync", json!([below]), stale).await;
    let unknown = json!([B256::repeat_byte(7)]);
    chain
        .fails("debug_sync", unknown, "no sync target can be set here")
        .await;
}
