//! Names of JSON members in any case, in every parameter that is an object.

use super::{
    chain::{CONTRACT, Chain, RICH},
    send::SENDER,
};
use crate::rpc::{
    engine::types::{AttributesJson, ForkchoiceJson, PayloadJson},
    params::{Arg, Json},
};
use alloy_primitives::{Address, B256, Bloom};
use serde_json::{Map, Value, json};
use starling_proto::fork::Fork;

/// Code that returns its value, its gas price, the size of its data, and NUMBER.
const CODE: &str = "0x345f523a602052366040524360605260805ff3";
/// Names that are values: of addresses, slots and tracers.
const VALUES: [&str; 1] = ["callTracer"];

/// The JSON with all names of members changed.
fn renamed(json: &Value, change: fn(&str) -> String) -> Value {
    match json {
        Value::Object(members) => {
            let renamed = members.iter().map(|(name, value)| {
                let is_value = name.starts_with("0x") || VALUES.contains(&name.as_str());
                let name = if is_value { name.clone() } else { change(name) };
                (name, self::renamed(value, change))
            });
            Value::Object(renamed.collect::<Map<_, _>>())
        }
        Value::Array(list) => list.iter().map(|value| renamed(value, change)).collect(),
        other => other.clone(),
    }
}

fn capitalized(name: &str) -> String {
    let (first, rest) = name.split_at(1);
    first.to_uppercase() + rest
}

fn requests(chain: &Chain) -> Vec<(&'static str, Value)> {
    let call = json!({
        "from": SENDER, "to": CONTRACT, "gas": "0x20000", "gasPrice": "0x7d0", "value": "0x5", "data": "0x1234",
    });
    let list = json!([{ "address": RICH, "storageKeys": [B256::ZERO] }]);
    let authorization = json!([{ "chainId": "0x1", "address": RICH, "nonce": "0x0", "yParity": "0x0", "r": "0x1", "s": "0x1" }]);
    let rich = json!({ "from": SENDER, "to": RICH, "accessList": list, "authorizationList": authorization });
    let state = json!({ CONTRACT.to_string(): {
        "code": CODE, "nonce": "0x7", "stateDiff": { B256::ZERO.to_string(): B256::ZERO },
    } });
    let block = json!({ "number": "0x63", "blobBaseFee": "0x10" });
    let bundle = json!([{ "transactions": [call], "blockOverride": block }]);
    let options = json!({
        "tracer": "callTracer", "tracerConfig": { "onlyTopCall": true }, "stateOverrides": state,
        "blockOverrides": block,
    });
    let mux = json!({ "tracer": "muxTracer", "tracerConfig": { "callTracer": { "withLog": true } }, "stateOverrides": state });
    let logs = json!({ "disableStack": true, "enableMemory": true, "limit": 100, "stateOverrides": state });
    let simulated = json!({
        "blockStateCalls": [{ "blockOverrides": block, "stateOverrides": state, "calls": [call] }],
        "traceTransfers": true, "returnFullTransactions": true,
    });
    let at = json!({ "blockNumber": "0x0", "transactionIndex": -1 });
    let filter = json!({ "fromBlock": "0x0", "toBlock": "0x0", "address": "0x12", "topics": [] });
    vec![
        ("eth_call", json!([call, "latest", state, block])),
        (
            "eth_call",
            json!([call, { "blockHash": chain.head().hash }, state]),
        ),
        ("eth_getBalance", json!([RICH, { "blockNumber": "0x7" }])),
        ("eth_estimateGas", json!([rich, "latest"])),
        ("eth_createAccessList", json!([call, "latest", state])),
        ("eth_fillTransaction", json!([call])),
        ("eth_simulateV1", json!([simulated])),
        ("eth_callMany", json!([bundle, at, state])),
        ("eth_getLogs", json!([filter])),
        (
            "eth_getLogs",
            json!([{ "blockHash": B256::repeat_byte(9) }]),
        ),
        ("eth_getLogs", json!([{ "topics": ["0x12"] }])),
        ("eth_newFilter", json!([{ "address": "0x12" }])),
        ("debug_traceCall", json!([call, "latest", options])),
        ("debug_traceCall", json!([call, "latest", mux])),
        ("debug_traceCall", json!([call, "latest", logs])),
        ("debug_traceCallMany", json!([bundle, at, options])),
        (
            "trace_call",
            json!([call, ["trace"], "latest", state, block]),
        ),
        (
            "trace_filter",
            json!([{ "fromBlock": "0x1", "toBlock": "0x1", "fromAddress": ["0x12"] }]),
        ),
    ]
}

#[tokio::test]
async fn members_are_known_by_their_names_in_any_case() {
    let mut chain = Chain::new(Fork::Isthmus);
    chain.add(&[]);
    chain.serve(&["eth", "debug", "trace"]);
    for (method, params) in requests(&chain) {
        let expected = chain.ask(method, params.clone()).await;
        for change in [str::to_lowercase, str::to_uppercase, capitalized] {
            let renamed = renamed(&params, change);
            let answer = chain.ask(method, renamed.clone()).await;
            assert_eq!(answer, expected, "{method} {renamed}");
        }
    }
    let params = &requests(&chain)[0].1;
    let words = chain.result("eth_call", params.clone()).await;
    assert_eq!(
        words,
        format!("0x{:064x}{:064x}{:064x}{:064x}", 5, 2000, 2, 0x63)
    );
}

#[test]
fn objects_of_the_engine_api_are_known_in_any_case() {
    let fork_choice = json!({
        "headBlockHash": B256::ZERO, "safeBlockHash": B256::ZERO, "finalizedBlockHash": B256::ZERO,
    });
    let withdrawal = json!({ "index": "0x0", "validatorIndex": "0x0", "address": Address::ZERO, "amount": "0x1" });
    let attributes = json!({
        "timestamp": "0x1", "prevRandao": B256::ZERO, "suggestedFeeRecipient": Address::ZERO,
        "withdrawals": [withdrawal], "parentBeaconBlockRoot": B256::ZERO, "noTxPool": true, "gasLimit": "0x1",
    });
    let payload = json!({
        "parentHash": B256::ZERO, "feeRecipient": Address::ZERO, "stateRoot": B256::ZERO, "receiptsRoot": B256::ZERO,
        "logsBloom": Bloom::ZERO, "prevRandao": B256::ZERO, "blockNumber": "0x1", "gasLimit": "0x1", "gasUsed": "0x1",
        "timestamp": "0x5", "extraData": "0x", "baseFeePerGas": "0x1", "blockHash": B256::ZERO, "transactions": [],
        "withdrawals": [withdrawal],
    });
    for change in [str::to_lowercase, str::to_uppercase, capitalized] {
        let text = |json| renamed(json, change).to_string();
        assert!(Json::<ForkchoiceJson>::from_json(&text(&fork_choice)).is_ok());
        let Json(read) = Json::<AttributesJson>::from_json(&text(&attributes)).unwrap();
        assert_eq!(read.parent_beacon_block_root, Some(B256::ZERO));
        assert_eq!(read.withdrawals.map(|all| all.len()), Some(1));
        let Json(read) = Json::<PayloadJson>::from_json(&text(&payload)).unwrap();
        assert_eq!(read.timestamp(), 5);
        assert_eq!(read.withdrawals.map(|all| all.len()), Some(1));
    }
}
