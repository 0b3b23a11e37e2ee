//! `eth_simulateV1`, `eth_callMany`, `eth_fillTransaction`, and the methods that read accounts.

use super::{
    chain::{CHAIN_ID, CONTRACT, Chain, RICH},
    send::SENDER,
};
use alloy_primitives::{Address, B256};
use serde_json::{Value, json};
use starling_proto::fork::Fork;

/// Code that returns 42.
const ANSWER: &str = "0x602a60005260206000f3";
/// Code that returns NUMBER.
const NUMBER: &str = "0x4360005260206000f3";
/// Code that returns the hash of the block whose number is in the calldata.
const BLOCKHASH: &str = "0x6000354060005260206000f3";
/// Code that stores the calldata in slot 0 and returns the slot's earlier value.
const SWAP: &str = "0x60005460005260003560005560206000f3";
/// Topic of the event `Transfer(address,address,uint256)`.
const TRANSFER: &str = "0xddf252ad1be2c89b69c2b068fc378daa952ba7f163c4a11628f55a4df523b3ef";
const WALLET: Address = Address::repeat_byte(0x77);

fn chain() -> Chain {
    let mut chain = Chain::new(Fork::Isthmus);
    chain.add(&[]);
    chain
}

async fn simulate(chain: &Chain, payload: Value) -> Value {
    chain.result("eth_simulateV1", json!([payload])).await
}

/// Sends a payload that must be refused. Returns the code and message of the error.
async fn refused(chain: &Chain, payload: Value) -> (i64, String) {
    let error = chain.ask("eth_simulateV1", json!([payload])).await["error"].clone();
    (
        error["code"].as_i64().unwrap(),
        error["message"].as_str().unwrap().to_owned(),
    )
}

fn rich() -> Value {
    json!({ WALLET.to_string(): { "balance": "0xde0b6b3a7640000" } })
}

#[tokio::test]
async fn a_block_with_a_difficulty_is_refused() {
    let block = json!({ "blockOverrides": { "difficulty": "0x5" } });
    let (code, message) = refused(&chain(), json!({ "blockStateCalls": [block] })).await;
    assert_eq!(code, -32000);
    let words = "cannot finalize and assemble for legacy block header: 0x";
    assert!(message.starts_with(words), "{message}");
}

#[tokio::test]
async fn simulated_blocks_follow_each_other_and_gaps_are_filled() {
    let chain = chain();
    let calls = json!([{ "to": CONTRACT }]);
    let code = json!({ CONTRACT.to_string(): { "code": NUMBER } });
    let blocks = simulate(
        &chain,
        json!({ "blockStateCalls": [
            { "stateOverrides": code, "calls": calls },
            { "blockOverrides": { "number": "0x5", "time": "0x500" }, "calls": calls },
        ] }),
    )
    .await;
    let blocks = blocks.as_array().unwrap();
    assert_eq!(blocks.len(), 4, "two of them fill the gap");
    let mut parent = chain.head().hash;
    for (index, block) in blocks.iter().enumerate() {
        assert_eq!(block["number"], format!("{:#x}", index + 2));
        assert_eq!(block["parentHash"], json!(parent));
        parent = serde_json::from_value(block["hash"].clone()).unwrap();
        assert_eq!(block["baseFeePerGas"], "0x0");
        assert_eq!(block["withdrawals"], json!([]));
        assert_eq!(block["difficulty"], "0x0");
    }
    let times: Vec<&Value> = blocks.iter().map(|block| &block["timestamp"]).collect();
    assert_eq!(times, ["0x3f6", "0x402", "0x40e", "0x500"], "12 s apart");
    assert_eq!(blocks[0]["calls"][0]["returnData"], format!("0x{:064x}", 2));
    assert_eq!(
        blocks[3]["calls"][0]["returnData"],
        format!("0x{:064x}", 5),
        "state overrides hold in later blocks"
    );
    assert_eq!(blocks[1]["calls"], json!([]));
    assert_eq!(blocks[0]["transactions"].as_array().unwrap().len(), 1);
    assert_eq!(blocks[0]["stateRoot"], blocks[2]["stateRoot"]);
    assert_ne!(
        blocks[2]["stateRoot"], blocks[3]["stateRoot"],
        "the sender's nonce has changed"
    );
}

#[tokio::test]
async fn calls_see_what_earlier_ones_left_and_the_hashes_of_simulated_blocks() {
    let chain = chain();
    let set = |word: u64| json!({ "to": CONTRACT, "input": format!("0x{word:064x}") });
    let code = json!({ CONTRACT.to_string(): { "code": SWAP } });
    let hashes = json!({ CONTRACT.to_string(): { "code": BLOCKHASH } });
    let blocks = simulate(
        &chain,
        json!({ "blockStateCalls": [
            { "stateOverrides": code, "calls": [set(7), set(8)] },
            { "calls": [set(9)] },
            { "stateOverrides": hashes, "calls": [set(2), set(1), set(4)] },
        ] }),
    )
    .await;
    let returned = |block: usize, call: usize| blocks[block]["calls"][call]["returnData"].clone();
    assert_eq!(returned(0, 0), format!("0x{:064x}", 0));
    assert_eq!(returned(0, 1), format!("0x{:064x}", 7));
    assert_eq!(returned(1, 0), format!("0x{:064x}", 8));
    assert_eq!(returned(2, 0), blocks[0]["hash"]);
    assert_eq!(returned(2, 1), json!(chain.head().hash));
    assert_eq!(returned(2, 2), json!(B256::ZERO), "the block itself");
}

#[tokio::test]
async fn transfers_are_logs_on_request_and_failed_calls_have_none() {
    let chain = chain();
    let to = Address::repeat_byte(0x88);
    let send = json!({ "from": WALLET, "to": to, "value": "0x3e8" });
    let fail = json!({ "from": WALLET, "to": CONTRACT, "value": "0x1" });
    let payload = |transfers: bool| {
        let mut state = rich();
        state[CONTRACT.to_string()] = json!({ "code": "0x60006000fd" });
        json!({
            "traceTransfers": transfers,
            "returnFullTransactions": true,
            "blockStateCalls": [{ "stateOverrides": state, "calls": [send, fail, send] }],
        })
    };
    let quiet = simulate(&chain, payload(false)).await;
    assert_eq!(quiet[0]["calls"][0]["logs"], json!([]));
    let block = simulate(&chain, payload(true)).await[0].clone();
    let log = &block["calls"][0]["logs"][0];
    assert_eq!(log["topics"][0], TRANSFER);
    assert_eq!(log["topics"][2], json!(to.into_word()));
    assert_eq!(log["data"], format!("0x{:064x}", 1000));
    assert_eq!(log["blockHash"], block["hash"]);
    assert_eq!(log["blockTimestamp"], block["timestamp"]);
    let failed = &block["calls"][1];
    assert_eq!(failed["status"], "0x0");
    assert_eq!(failed["logs"], json!([]));
    assert_eq!(
        failed["error"],
        json!({ "message": "execution reverted", "code": 3, "data": "0x" })
    );
    assert_eq!(
        block["calls"][2]["logs"][0]["logIndex"], "0x2",
        "the number of the failed transfer is not used again"
    );
    let tx = &block["transactions"][2];
    assert_eq!(tx["from"], json!(WALLET));
    assert_eq!(tx["hash"], block["calls"][2]["logs"][0]["transactionHash"]);
    assert_eq!((&tx["type"], &tx["nonce"]), (&json!("0x2"), &json!("0x2")));
    assert_eq!((&tx["v"], &tx["r"]), (&json!("0x0"), &json!("0x0")));
    assert_eq!(
        block["logsBloom"], quiet[0]["logsBloom"],
        "they are no logs of the chain"
    );
    assert_eq!(block["hash"], quiet[0]["hash"]);
}

/// Checks that each payload is refused with its code.
async fn refuses(cases: Vec<(Value, i64)>) {
    let chain = chain();
    for (payload, code) in cases {
        let (have, message) = refused(&chain, payload.clone()).await;
        assert_eq!(
            have,
            code,
            "{message}: {}",
            &payload.to_string()[..80.min(payload.to_string().len())]
        );
    }
}

#[tokio::test]
async fn blocks_and_gas_are_refused_with_the_codes_of_the_specification() {
    let one = |call: Value| json!({ "blockStateCalls": [{ "calls": [call] }] });
    refuses(vec![
        (json!({ "blockStateCalls": [] }), -32602),
        (json!({}), -32602),
        (json!({ "blockStateCalls": vec![json!({}); 257] }), -38026),
        (
            json!({ "blockStateCalls": [{ "blockOverrides": { "number": "0x102" } }] }),
            -38026,
        ),
        (
            json!({ "blockStateCalls": [{ "blockOverrides": { "number": "0x1" } }] }),
            -38020,
        ),
        (
            json!({ "blockStateCalls": [{ "blockOverrides": { "time": "0x3ea" } }] }),
            -38021,
        ),
        (
            one(json!({ "from": WALLET, "to": CONTRACT, "value": "0x1" })),
            -38014,
        ),
        (one(json!({ "to": CONTRACT, "gas": "0x0" })), -38013),
        (
            one(json!({ "to": CONTRACT, "gas": "0x7fffffffffffff" })),
            -38015,
        ),
    ])
    .await;
}

#[tokio::test]
async fn calls_are_refused_with_the_codes_of_the_specification() {
    let one = |call: Value| json!({ "blockStateCalls": [{ "calls": [call] }] });
    let checked = |call: Value, base_fee: &str| {
        json!({ "validation": true, "blockStateCalls": [{
            "blockOverrides": { "baseFeePerGas": base_fee }, "stateOverrides": rich(), "calls": [call] }] })
    };
    refuses(vec![        (
            checked(
                json!({ "from": WALLET, "to": CONTRACT, "nonce": "0x5" }),
                "0x0",
            ),
            -38011,
        ),
        (
            checked(json!({ "from": WALLET, "to": CONTRACT }), "0x5"),
            -38012,
        ),
        (
            checked(
                json!({ "from": WALLET, "to": CONTRACT, "maxFeePerGas": "0x5", "maxPriorityFeePerGas": "0x6" }),
                "0x5",
            ),
            -32602,
        ),
        (
            json!({ "validation": true, "blockStateCalls": [{ "blockOverrides": { "baseFeePerGas": "0x0" },
                "calls": [{ "from": RICH, "to": CONTRACT, "nonce": "0x1" }] }] }),
            -38010,
        ),
        (
            one(json!({ "from": WALLET, "input": format!("0x{}", "00".repeat(49_153)) })),
            -38025,
        ),
        (
            json!({ "blockStateCalls": [{ "stateOverrides": {
                CONTRACT.to_string(): { "movePrecompileToAddress": WALLET } } }] }),
            -32000,
        ),
        (
            json!({ "blockStateCalls": [{ "calls": vec![json!({}); 5001] }] }),
            -38026,
        ),
        (
            json!({ "blockStateCalls": [{ "blockOverrides": { "withdrawals": [
                { "index": "0x0", "validatorIndex": "0x0", "address": WALLET, "amount": "0x1" }] } }] }),
            -32000,
        ),
    ])
    .await;
}

#[tokio::test]
async fn gas_of_all_calls_together_is_bounded() {
    let chain = chain().with(|context| context.bounds.gas_cap = 100_000);
    // JUMPDEST, PUSH0, JUMP: the code runs until its gas is used.
    let state = json!({ CONTRACT.to_string(): { "code": "0x5b5f56" } });
    let call = json!({ "to": CONTRACT });
    let payload =
        json!({ "blockStateCalls": [{ "stateOverrides": state, "calls": [call, call] }] });
    let (code, message) = refused(&chain, payload).await;
    assert_eq!(code, -38013, "nothing is left for the second call");
    assert!(message.contains("supplied gas 0"), "{message}");
    let alone = json!({ "blockStateCalls": [{ "stateOverrides": state, "calls": [call] }] });
    let block = simulate(&chain, alone).await[0].clone();
    assert_eq!(block["gasUsed"], "0x186a0");
    assert_eq!(
        block["calls"][0]["error"],
        json!({ "code": -32015, "message": "out of gas (gas limit was capped by the RPC server's global gas cap)" })
    );
}

#[tokio::test]
async fn precompiles_are_moved_and_replaced() {
    let chain = chain();
    let sha256 = "0x0000000000000000000000000000000000000002";
    let call = |to: &str| json!({ "to": to, "input": "0x1234" });
    let moved = "0x0000000000000000000000000000000000123456";
    let blocks = simulate(
        &chain,
        json!({ "blockStateCalls": [
            { "calls": [call(sha256)] },
            { "stateOverrides": { sha256: { "movePrecompileToAddress": moved, "code": ANSWER } },
                "calls": [call(sha256), call(moved)] },
        ] }),
    )
    .await;
    let hash = "0x3a103a4e5729ad68c02a678ae39accfbc0ae208096437401b7ceab63cca0622f";
    assert_eq!(blocks[0]["calls"][0]["returnData"], hash);
    assert_eq!(
        blocks[1]["calls"][0]["returnData"],
        format!("0x{:064x}", 42)
    );
    assert_eq!(blocks[1]["calls"][1]["returnData"], hash);
}

#[tokio::test]
async fn many_calls_share_a_state() {
    let chain = chain();
    let set = |word: u64| json!({ "to": CONTRACT, "input": format!("0x{word:064x}") });
    let state = json!({ CONTRACT.to_string(): { "code": SWAP } });
    let poor = json!({ "from": WALLET, "to": CONTRACT, "value": "0x1" });
    let bundles = json!([
        { "transactions": [set(7), poor, set(8)] },
        { "transactions": [set(9)], "blockOverride": { "number": "0x63" } },
    ]);
    let responses = chain
        .result(
            "eth_callMany",
            json!([bundles, { "blockNumber": "latest" }, state]),
        )
        .await;
    assert_eq!(responses[0][0]["value"], format!("0x{:064x}", 0));
    let error = responses[0][1]["error"].as_str().unwrap();
    assert!(error.contains("insufficient funds"), "{error}");
    assert_eq!(responses[0][2]["value"], format!("0x{:064x}", 7));
    assert_eq!(responses[1][0]["value"], format!("0x{:064x}", 8));
    let none = chain.ask("eth_callMany", json!([[]])).await;
    assert_eq!(none["error"]["code"], -32602);
    let many = json!([[{ "transactions": vec![json!({}); 5001] }]]);
    assert_eq!(
        chain.ask("eth_callMany", many).await["error"]["code"],
        -32602
    );
}

#[tokio::test]
async fn filled_transactions_have_nonce_gas_and_fees() {
    let chain = chain();
    let call = json!({ "from": SENDER, "to": RICH, "value": "0x1" });
    let filled = chain.result("eth_fillTransaction", json!([call])).await;
    let tx = &filled["tx"];
    assert_eq!(tx["type"], "0x2");
    assert_eq!(tx["gas"], "0x5208");
    assert_eq!(tx["nonce"], "0x0");
    assert_eq!(tx["chainId"], format!("{CHAIN_ID:#x}"));
    assert_eq!(tx["maxPriorityFeePerGas"], "0xf4240");
    assert_eq!(tx["maxFeePerGas"], format!("{:#x}", 1_000_000 + 2 * 1000));
    assert_eq!(tx["gasPrice"], Value::Null);
    assert!(filled["raw"].as_str().unwrap().starts_with("0x02"));
    let legacy =
        json!({ "from": SENDER, "to": RICH, "gasPrice": "0x7d0", "gas": "0x5208", "nonce": "0x9" });
    let legacy = chain.result("eth_fillTransaction", json!([legacy])).await;
    assert_eq!(legacy["tx"]["type"], "0x0");
    assert_eq!(legacy["tx"]["gasPrice"], "0x7d0");
    for (call, text) in [
        (
            json!({ "from": SENDER }),
            "contract creation without any data provided",
        ),
        (
            json!({ "to": RICH, "gasPrice": "0x0" }),
            "gasPrice must be non-zero after london fork",
        ),
        (
            json!({ "to": RICH, "maxFeePerGas": "0x1", "maxPriorityFeePerGas": "0x2" }),
            "maxFeePerGas (0x1) < maxPriorityFeePerGas (0x2)",
        ),
    ] {
        let response = chain.ask("eth_fillTransaction", json!([call])).await;
        assert_eq!(response["error"]["message"], text);
    }
}

#[tokio::test]
async fn accounts_are_read_whole() {
    let chain = chain();
    let account = chain
        .result("eth_getAccount", json!([RICH, "latest"]))
        .await;
    assert_eq!(account["nonce"], "0x7");
    assert_eq!(account["balance"], "0xf4240");
    assert_eq!(
        account["codeHash"],
        json!(alloy_primitives::KECCAK256_EMPTY)
    );
    assert_eq!(account["storageRoot"], json!(alloy_trie::EMPTY_ROOT_HASH));
    let nobody = chain
        .result("eth_getAccount", json!([WALLET, "latest"]))
        .await;
    assert_eq!(nobody, Value::Null);
    let info = chain
        .result("eth_getAccountInfo", json!([CONTRACT, "latest"]))
        .await;
    assert_eq!(
        info,
        json!({ "balance": "0x0", "nonce": "0x1", "code": "0x600000" })
    );
    let nobody = chain
        .result("eth_getAccountInfo", json!([WALLET, "latest"]))
        .await;
    assert_eq!(
        nobody,
        json!({ "balance": "0x0", "nonce": "0x0", "code": "0x" })
    );
}
