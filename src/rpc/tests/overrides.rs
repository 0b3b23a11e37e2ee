//! Every override in every method that takes one: it is obeyed, or refused as op-geth v1.101702.3
//! refuses it.

use super::{
    chain::{CONTRACT, Chain},
    send::SENDER,
};
use alloy_primitives::{Address, B256};
use serde_json::{Value, json};
use starling_proto::fork::Fork;

const OTHER: Address = Address::repeat_byte(0x44);
/// The precompile that returns its input.
const IDENTITY: &str = "0x0000000000000000000000000000000000000004";
const RANDOM: B256 = B256::repeat_byte(0x11);
const RECIPIENT: Address = Address::repeat_byte(0x22);
/// Methods that take overrides of the block.
const METHODS: [&str; 7] = [
    "eth_call",
    "eth_estimateGas",
    "debug_traceCall",
    "trace_call",
    "eth_callMany",
    "debug_traceCallMany",
    "eth_simulateV1",
];

/// An override with the opcode that shows it and the value that a call must see.
struct Override {
    name: &'static str,
    value: Value,
    opcode: u8,
    seen: String,
}

fn word(value: u64) -> String {
    format!("0x{value:064x}")
}

/// Overrides that a call sees.
fn obeyed() -> Vec<Override> {
    let number = |name, opcode, value: u64| Override {
        name,
        value: json!(format!("{value:#x}")),
        opcode,
        seen: word(value),
    };
    let recipient = |name| Override {
        name,
        value: json!(RECIPIENT),
        opcode: 0x41,
        seen: RECIPIENT.into_word().to_string(),
    };
    let random = |name| Override {
        name,
        value: json!(RANDOM),
        opcode: 0x44,
        seen: RANDOM.to_string(),
    };
    vec![
        number("number", 0x43, 7),
        number("time", 0x42, 0x7000),
        number("gasLimit", 0x45, 0x99999),
        number("baseFeePerGas", 0x48, 0x77),
        number("blobBaseFee", 0x4a, 0x10),
        recipient("feeRecipient"),
        random("prevRandao"),
        // Names of other clients.
        number("blockNumber", 0x43, 7),
        number("timestamp", 0x42, 0x7000),
        number("baseFee", 0x48, 0x77),
        recipient("coinbase"),
        random("random"),
    ]
}

/// Code that returns what the opcode shows.
fn shows(opcode: u8) -> String {
    format!("0x{opcode:02x}5f5260205ff3")
}

/// Code that reverts unless the opcode shows this value.
fn requires(opcode: u8, seen: &str) -> String {
    format!("0x{opcode:02x}7f{}146029575f5ffd5b00", &seen[2..])
}

/// The parameters of a method for a call to the contract with these overrides.
fn params(method: &str, state: &Value, block: &Value) -> Value {
    // A price, since the base fee of a call without one is zero.
    let call = json!({ "from": SENDER, "to": CONTRACT, "gas": "0x20000", "gasPrice": "0x7d0" });
    let bundle = json!([{ "transactions": [call], "blockOverride": block }]);
    match method {
        "eth_call" | "eth_estimateGas" => json!([call, "latest", state, block]),
        "debug_traceCall" => json!([call, "latest", {
            "tracer": "callTracer", "stateOverrides": state, "blockOverrides": block,
        }]),
        "trace_call" => json!([call, ["trace"], "latest", state, block]),
        "eth_callMany" => json!([bundle, null, state]),
        "debug_traceCallMany" => {
            json!([bundle, null, { "tracer": "callTracer", "stateOverrides": state }])
        }
        _ => json!([{ "blockStateCalls": [
            { "blockOverrides": block, "stateOverrides": state, "calls": [call] },
        ] }]),
    }
}

/// The output of the call in the result of a method.
fn output(method: &str, result: &Value) -> Value {
    match method {
        "debug_traceCall" | "trace_call" => result["output"].clone(),
        "eth_callMany" => result[0][0]["value"].clone(),
        "debug_traceCallMany" => result[0][0]["output"].clone(),
        "eth_simulateV1" => {
            let blocks = result.as_array().expect("blocks");
            blocks.last().expect("a block")["calls"][0]["returnData"].clone()
        }
        _ => result.clone(),
    }
}

fn chain() -> Chain {
    let mut chain = Chain::new(Fork::Isthmus);
    chain.add(&[]);
    chain.serve(&["eth", "debug", "trace"]);
    chain
}

fn with_code(code: &str) -> Value {
    json!({ CONTRACT.to_string(): { "code": code } })
}

#[tokio::test]
async fn every_method_obeys_every_block_override() {
    let chain = chain();
    for Override {
        name,
        value,
        opcode,
        seen,
    } in obeyed()
    {
        let block = json!({ name: value });
        for method in METHODS {
            if method == "eth_estimateGas" {
                let code = requires(opcode, &seen);
                chain
                    .result(method, params(method, &with_code(&code), &block))
                    .await;
                let (_, message) = chain
                    .error(method, params(method, &with_code(&code), &json!({})))
                    .await;
                assert_eq!(message, "execution reverted", "{name}");
                continue;
            }
            let params = params(method, &with_code(&shows(opcode)), &block);
            let result = chain.result(method, params).await;
            assert_eq!(
                output(method, &result),
                json!(seen),
                "{method} {name}: {result}"
            );
        }
    }
}

#[tokio::test]
async fn overrides_that_a_call_does_not_have_are_refused() {
    let chain = chain();
    let state = json!({});
    for (name, value) in [("beaconRoot", json!(RANDOM)), ("withdrawals", json!([]))] {
        let block = json!({ name: value });
        for method in METHODS {
            let params = params(method, &state, &block);
            if method == "eth_simulateV1" {
                chain.result(method, params).await;
                continue;
            }
            let words = format!("block override \"{name}\" is not supported for this RPC method");
            assert_eq!(
                chain.error(method, params).await,
                (-32000, words),
                "{method}"
            );
        }
    }
    let block = json!({ "number": "0x7" });
    let params = json!([{ "to": CONTRACT }, "latest", {}, block]);
    let refused = chain.error("eth_createAccessList", params).await;
    assert_eq!(
        refused,
        (-32602, "too many arguments, want at most 3".to_owned())
    );
    // Values that the EVM cannot hold are refused instead of changed.
    for (name, most) in [
        ("baseFeePerGas", u64::MAX.to_string()),
        ("blobBaseFee", u128::MAX.to_string()),
    ] {
        let block = json!({ name: format!("0x{}", "f".repeat(40)) });
        let params = self::params("eth_call", &state, &block);
        let words = format!("invalid argument 3: block override \"{name}\" is above {most}");
        assert_eq!(chain.error("eth_call", params).await, (-32602, words));
    }
}

#[tokio::test]
async fn the_options_of_a_traced_bundle_override_its_blocks() {
    let chain = chain();
    let call = json!({ "from": SENDER, "to": CONTRACT });
    let options = json!({
        "tracer": "callTracer", "stateOverrides": with_code(&shows(0x4a)), "blockOverrides": { "blobBaseFee": "0x10" },
    });
    let own = json!({ "transactions": [call], "blockOverride": { "blobBaseFee": "0x11" } });
    let bundles = json!([{ "transactions": [call] }, own]);
    let result = chain
        .result("debug_traceCallMany", json!([bundles, null, options]))
        .await;
    assert_eq!(result[0][0]["output"], word(0x10));
    assert_eq!(result[1][0]["output"], word(0x11));
}

/// BLOCKHASH of the newest block with these block overrides.
async fn hash_of_head(chain: &Chain, method: &str, block: Value) -> Value {
    let head = chain.head().number;
    let state = with_code(&format!("0x60{head:02x}405f5260205ff3"));
    let result = chain.result(method, params(method, &state, &block)).await;
    output(method, &result)
}

#[tokio::test]
async fn the_hash_of_the_head_is_seen_in_a_traced_next_block() {
    let chain = chain();
    let next = json!({ "number": "0x2" });
    let hash = json!(chain.head().hash);
    let zero = json!(B256::ZERO);
    assert_eq!(hash_of_head(&chain, "eth_call", next.clone()).await, zero);
    assert_eq!(hash_of_head(&chain, "debug_traceCall", next).await, hash);
    let later = json!({ "number": "0x5" });
    assert_eq!(
        hash_of_head(&chain, "debug_traceCall", later.clone()).await,
        zero
    );
    let named = json!({ "number": "0x5", "blockHash": { "1": RANDOM } });
    assert_eq!(
        hash_of_head(&chain, "eth_call", named.clone()).await,
        json!(RANDOM)
    );
    assert_eq!(
        hash_of_head(&chain, "debug_traceCall", named).await,
        json!(RANDOM)
    );
}

#[tokio::test]
async fn an_overridden_gas_limit_does_not_limit_an_estimate() {
    let chain = chain();
    let call = json!({ "to": CONTRACT, "data": "0x12" });
    let plain = chain.result("eth_estimateGas", json!([call])).await;
    let limited = json!([call, "latest", {}, { "gasLimit": "0x1" }]);
    assert_eq!(chain.result("eth_estimateGas", limited).await, plain);
}

/// State overrides that are refused, with op-geth's words.
fn refused_states() -> Vec<(Value, String)> {
    let at = |address: &str, account: Value| json!({ address: account });
    let (contract, other) = (CONTRACT.to_string(), OTHER.to_string());
    let both = json!({ "state": {}, "stateDiff": {} });
    let to_other = json!({ "movePrecompileToAddress": OTHER });
    vec![
        (
            at(&contract, to_other.clone()),
            format!("account {contract} is not a precompile"),
        ),
        (
            json!({ IDENTITY: to_other, other.clone(): { "nonce": "0x1" } }),
            format!("account {other} is already overridden"),
        ),
        (
            at(&contract, both.clone()),
            format!("account {contract} has both 'state' and 'stateDiff'"),
        ),
        // The lowest address counts.
        (
            json!({ other.clone(): both, contract.clone(): { "movePrecompileToAddress": RECIPIENT } }),
            format!("account {other} has both 'state' and 'stateDiff'"),
        ),
        (
            json!({ other.clone(): { "movePrecompileToAddress": RECIPIENT }, contract: both.clone() }),
            format!("account {other} is not a precompile"),
        ),
    ]
}

#[tokio::test]
async fn state_overrides_are_refused_in_geths_words() {
    let chain = chain();
    for (state, words) in refused_states() {
        for method in METHODS {
            let params = params(method, &state, &json!({}));
            assert_eq!(
                chain.error(method, params).await,
                (-32000, words.clone()),
                "{method} {state}"
            );
        }
    }
    // For an access list no account is a precompile that could be moved.
    let state = json!({ IDENTITY: { "movePrecompileToAddress": OTHER } });
    let params = json!([{ "to": OTHER }, "latest", state]);
    let words = format!("account {IDENTITY} is not a precompile");
    assert_eq!(
        chain.error("eth_createAccessList", params).await,
        (-32000, words)
    );
}

#[tokio::test]
async fn malformed_overrides_are_refused_in_geths_words() {
    let chain = chain();
    let slot = json!({ "state": { "0x1": "0x1" } });
    let accounts = [
        (
            json!([]),
            "array into Go value of type override.OverrideAccount",
        ),
        (
            json!({ "balance": "10" }),
            "hex string without 0x prefix into Go struct field OverrideAccount.balance of type *hexutil.Big",
        ),
        (
            json!({ "nonce": 10 }),
            "non-string into Go struct field OverrideAccount.nonce of type hexutil.Uint64",
        ),
        (
            json!({ "code": "0x1" }),
            "hex string of odd length into Go struct field OverrideAccount.code of type hexutil.Bytes",
        ),
        (
            slot,
            "hex string of odd length into Go struct field OverrideAccount.state of type common.Hash",
        ),
    ];
    let call = json!({ "to": CONTRACT });
    for (account, words) in accounts {
        let params = json!([call, "latest", { CONTRACT.to_string(): account }]);
        let words = format!("invalid argument 2: json: cannot unmarshal {words}");
        assert_eq!(chain.error("eth_call", params).await, (-32602, words));
    }
}

#[tokio::test]
async fn refusals_name_the_fields_that_lead_to_a_malformed_override() {
    let chain = chain();
    let call = json!({ "to": CONTRACT });
    let words = "json: cannot unmarshal hex string without 0x prefix into Go struct field";
    let block = json!({ "number": "1" });
    let plain = format!("invalid argument 3: {words} BlockOverrides.Number of type *hexutil.Big");
    let refused = chain
        .error("eth_call", json!([call, "latest", {}, block]))
        .await;
    assert_eq!(refused, (-32602, plain));
    let nested = format!(
        "invalid argument 2: {words} BlockOverrides.BlockOverrides.Number of type *hexutil.Big"
    );
    let refused = chain
        .error(
            "debug_traceCall",
            json!([call, "latest", { "blockOverrides": block }]),
        )
        .await;
    assert_eq!(refused, (-32602, nested));
    let deep = format!(
        "invalid argument 0: {words} BlockOverrides.BlockStateCalls.BlockOverrides.Number of type *hexutil.Big"
    );
    let blocks = json!([{ "blockStateCalls": [{ "blockOverrides": block }] }]);
    assert_eq!(chain.error("eth_simulateV1", blocks).await, (-32602, deep));
    for (state, words) in [
        (
            json!([]),
            "json: cannot unmarshal array into Go value of type override.StateOverride",
        ),
        (
            json!({ "0x12": {} }),
            "hex string has length 2, want 40 for common.Address",
        ),
        (
            json!({ "": {} }),
            "hex string has length 0, want 40 for common.Address",
        ),
    ] {
        let refused = chain
            .error("eth_call", json!([call, "latest", state]))
            .await;
        assert_eq!(refused, (-32602, format!("invalid argument 2: {words}")));
    }
}

#[tokio::test]
async fn accounts_are_overridden_as_in_geth() {
    let chain = chain();
    let call = |to: &str, state: Value| {
        let params = json!([{ "to": to, "data": "0x1234" }, "latest", state]);
        chain.ask("eth_call", params)
    };
    let (contract, other) = (CONTRACT.to_string(), OTHER.to_string());
    let moved = json!({ IDENTITY: { "movePrecompileToAddress": OTHER } });
    assert_eq!(call(&other, moved.clone()).await["result"], "0x1234");
    assert_eq!(call(IDENTITY, moved).await["result"], "0x");
    // Unknown members, and null for an account or a member, change nothing.
    let null =
        json!({ "code": null, "state": null, "stateDiff": null, "balance": null, "unknown": 1 });
    for account in [null, Value::Null] {
        let state = json!({ contract.clone(): account });
        assert_eq!(call(&contract, state).await["result"], "0x");
    }
    // A malformed delegation is code.
    for code in [
        "0xef0100".to_owned(),
        format!("0xef01ff{}", "11".repeat(20)),
    ] {
        let state = json!({ contract.clone(): { "code": code } });
        let message = call(&contract, state).await["error"]["message"].clone();
        assert_eq!(message, "invalid opcode");
    }
    let delegated = json!({
        contract.clone(): { "code": format!("0xef0100{}", &other[2..]) },
        other: { "code": "0x305f5260205ff3" },
    });
    assert_eq!(
        call(&contract, delegated).await["result"],
        CONTRACT.into_word().to_string()
    );
}
