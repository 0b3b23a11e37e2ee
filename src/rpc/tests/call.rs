//! `eth_call`, `eth_estimateGas` and `eth_createAccessList` through the EVM.

use super::{
    chain::{CONTRACT, Chain, FUNDS, RICH},
    send::SENDER,
};
use alloy_primitives::{Address, B256};
use serde_json::{Value, json};
use starling_proto::fork::Fork;

/// Code that reverts with its calldata.
const REVERT: &str = "0x366000600037366000fd";
/// Code that returns 42.
const ANSWER: &str = "0x602a60005260206000f3";
/// Revert data of Solidity: `Error("nope")`, and `Panic(0x11)`.
const ERROR: &str = "0x08c379a00000000000000000000000000000000000000000000000000000000000000020\
    00000000000000000000000000000000000000000000000000000000000000046e6f706500000000000000000000000000000000000000000000000000000000";
const PANIC: &str = "0x4e487b710000000000000000000000000000000000000000000000000000000000000011";

async fn chain() -> Chain {
    let mut chain = Chain::new(Fork::Isthmus);
    chain.add(&[]);
    chain
}

fn with_code(code: &str) -> Value {
    json!({ CONTRACT.to_string(): { "code": code } })
}

#[tokio::test]
async fn calls_return_what_the_code_returns() {
    let chain = chain().await;
    let call = json!({ "to": CONTRACT });
    assert_eq!(chain.result("eth_call", json!([call])).await, "0x");
    let response = chain
        .result("eth_call", json!([call, "latest", with_code(ANSWER)]))
        .await;
    assert_eq!(response, format!("0x{:064x}", 42));
    // Code that returns NUMBER, which is the number of the requested block.
    let number = with_code("0x4360005260206000f3");
    assert_eq!(
        chain
            .result("eth_call", json!([call, "latest", number]))
            .await,
        format!("0x{:064x}", 1)
    );
    assert_eq!(
        chain
            .result("eth_call", json!([call, "earliest", number]))
            .await,
        format!("0x{:064x}", 0)
    );
    let block = json!({ "number": "0x63" });
    assert_eq!(
        chain
            .result("eth_call", json!([call, "latest", number, block]))
            .await,
        format!("0x{:064x}", 99)
    );
}

#[tokio::test]
async fn reverts_are_told_with_code_reason_and_data() {
    let chain = chain().await;
    let revert = with_code(REVERT);
    for (data, message) in [
        (ERROR, "execution reverted: nope"),
        (
            PANIC,
            "execution reverted: arithmetic underflow or overflow",
        ),
        ("0x", "execution reverted"),
        ("0x12345678", "execution reverted"),
    ] {
        let call = json!({ "to": CONTRACT, "input": data });
        for method in ["eth_call", "eth_estimateGas"] {
            let response = chain.ask(method, json!([call, "latest", revert])).await;
            assert_eq!(
                response["error"],
                json!({ "code": 3, "message": message, "data": data }),
                "{method}"
            );
        }
    }
}

#[tokio::test]
async fn other_failures_have_no_code_of_their_own() {
    let chain = chain().await;
    let call = json!({ "to": CONTRACT, "gas": "0x100000" });
    let error = |code: &'static str| {
        let params = json!([call, "latest", with_code(code)]);
        chain.error("eth_call", params)
    };
    assert_eq!(error("0x01").await, (-32000, "stack underflow".into()));
    assert_eq!(
        error("0x600056").await,
        (-32000, "invalid jump destination".into())
    );
    assert_eq!(error("0x5b600056").await, (-32000, "out of gas".into()));
    let both = json!({ "to": CONTRACT, "gasPrice": "0x1", "maxFeePerGas": "0x1" });
    let message = "both gasPrice and (maxFeePerGas or maxPriorityFeePerGas) specified";
    assert_eq!(
        chain.error("eth_call", json!([both])).await,
        (-32000, message.into())
    );
    let two = json!({ "to": CONTRACT, "data": "0x01", "input": "0x02" });
    let (_, message) = chain.error("eth_fillTransaction", json!([two])).await;
    assert!(
        message.starts_with(r#"both "data" and "input" are set and not equal"#),
        "{message}"
    );
    let foreign = json!({ "to": CONTRACT, "chainId": "0x1" });
    assert_eq!(
        chain.error("eth_call", json!([foreign])).await.1,
        "chainId does not match node's (have=1, want=901)"
    );
    let (code, message) = chain
        .error(
            "eth_call",
            json!([{ "from": Address::ZERO, "to": CONTRACT, "value": "0x1" }]),
        )
        .await;
    assert!(
        code == -32000
            && message.starts_with("err: insufficient funds for gas * price + value: address "),
        "{message}"
    );
    assert_eq!(chain.error("eth_call", json!(["0x"])).await.0, -32602);
}

#[tokio::test]
async fn estimates_are_enough_and_near() {
    let chain = chain().await;
    let from = super::send::SENDER;
    let transfer = json!({ "from": from, "to": Address::repeat_byte(1), "value": "0x1" });
    assert_eq!(
        chain.result("eth_estimateGas", json!([transfer])).await,
        "0x5208"
    );
    let store = json!([{ "from": from, "to": CONTRACT }, "latest", with_code("0x6001600055")]);
    let gas = chain.result("eth_estimateGas", store).await;
    let gas = u64::from_str_radix(&gas.as_str().unwrap()[2..], 16).unwrap();
    assert!((43_000..46_000).contains(&gas), "{gas}");
    let poor = json!({ "from": from, "to": CONTRACT, "gasPrice": format!("{:#x}", FUNDS) });
    let (code, message) = chain.error("eth_estimateGas", json!([poor])).await;
    assert_eq!(
        (code, message.as_str()),
        (-32000, "gas required exceeds allowance (1)")
    );
    // With a gas price, a transfer of the whole balance is refused: nothing is left for gas.
    // Without a gas price, only a transfer of more than the balance is refused.
    let all = json!({ "from": from, "to": CONTRACT, "gasPrice": "0x3e8", "value": format!("{FUNDS:#x}") });
    assert_eq!(
        chain.error("eth_estimateGas", json!([all])).await,
        (-32000, "insufficient funds for transfer".into())
    );
    let more = json!({ "from": Address::ZERO, "to": CONTRACT, "value": "0x1" });
    let text = "failed with 30000000 gas: insufficient funds for gas * price + value: \
                address 0x0000000000000000000000000000000000000000 have 0 want 1";
    assert_eq!(
        chain.error("eth_estimateGas", json!([more])).await,
        (-32000, text.into())
    );
    let cheap = json!({ "from": from, "to": CONTRACT, "gasPrice": "0x1" });
    let (_, message) = chain.error("eth_estimateGas", json!([cheap])).await;
    assert!(
        message.starts_with("failed with 30000000 gas: max fee per gas less than block base fee: "),
        "{message}"
    );
}

#[tokio::test]
async fn access_lists_name_what_a_call_touches() {
    let mut chain = Chain::new(Fork::Isthmus);
    chain.add(&[]);
    let other = Address::repeat_byte(0xee);
    // Code: sload(1); balance(0xee…); sload(49,973,000 < gas). The last slot is another one once
    // the access list has used some gas.
    let code = format!(
        "0x60015450 73{} 3150 5a6302fa870810 5450 00",
        "ee".repeat(20)
    )
    .replace(' ', "");
    let code = json!({ CONTRACT.to_string(): { "code": code } });
    let call = json!({ "from": SENDER, "to": CONTRACT });
    let response = chain
        .result("eth_createAccessList", json!([call, "latest", code]))
        .await;
    let slot = |n: u8| B256::with_last_byte(n);
    let list = json!([
        { "address": CONTRACT, "storageKeys": [slot(0), slot(1)] },
        { "address": other, "storageKeys": [] },
    ]);
    assert_eq!(response["accessList"], list);
    assert!(response.get("error").is_none());
    // `gasUsed` is the gas of the call with this list.
    let with = json!({ "from": SENDER, "to": CONTRACT, "accessList": list });
    assert_eq!(
        chain
            .result("eth_createAccessList", json!([with, "latest", code]))
            .await,
        response
    );
    // 21,000 gas, plus two addresses and two slots, plus the warm accesses.
    let gas = u64::from_str_radix(&response["gasUsed"].as_str().unwrap()[2..], 16).unwrap();
    assert!(
        (21_000 + 2 * 2400 + 2 * 1900..31_500).contains(&gas),
        "{gas}"
    );

    // A call that fails has an access list, too.
    let revert = json!({ CONTRACT.to_string(): { "code": "0x60055460006000fd" } });
    let response = chain
        .result("eth_createAccessList", json!([call, "latest", revert]))
        .await;
    assert_eq!(response["error"], "execution reverted");
    assert_eq!(
        response["accessList"],
        json!([{ "address": CONTRACT, "storageKeys": [slot(5)] }])
    );
    // The sender, the called contract and precompiles are not added to the list.
    let plain =
        json!({ CONTRACT.to_string(): { "code": "0x333150 303150 60013150 00".replace(' ', "") } });
    let response = chain
        .result("eth_createAccessList", json!([call, "latest", plain]))
        .await;
    assert_eq!(response["accessList"], json!([]));
}

#[tokio::test]
async fn an_access_list_that_never_settles_is_an_error() {
    let mut chain = Chain::new(Fork::Isthmus);
    chain.add(&[]);
    // sload(gas): every run accesses another slot.
    let code = json!({ CONTRACT.to_string(): { "code": "0x5a545000" } });
    let (code, message) = chain
        .error(
            "eth_createAccessList",
            json!([{ "to": CONTRACT }, "latest", code]),
        )
        .await;
    assert!(
        code == -32000 && message.starts_with("the access list grew in each of 16 runs"),
        "{message}"
    );
}

/// A 32-byte word with this number.
fn word(n: u64) -> Value {
    json!(format!("0x{n:064x}"))
}

/// Code that returns the word that the opcode `op` pushes.
fn returning(op: &str) -> String {
    format!("0x{op}60005260206000f3")
}

/// Runs `code` in place of the contract's code, once as an estimate and once as a call. Returns the
/// result of the call.
async fn run_overridden(chain: &Chain, code: &str, state: Value, block: Value) -> Value {
    let mut account = state;
    account["code"] = json!(code);
    let overrides = json!({ CONTRACT.to_string(): account });
    let params = json!([{ "to": CONTRACT }, "latest", overrides, block]);
    chain.result("eth_estimateGas", params.clone()).await;
    chain.result("eth_call", params).await
}

#[tokio::test]
async fn state_overrides_change_slots_and_balances() {
    let mut chain = Chain::new(Fork::Isthmus);
    chain.add(&[]);
    let slot = |n: u64| returning(&format!("60{n:02x}54"));
    let key = B256::with_last_byte(2).to_string();
    let difference = json!({ "stateDiff": { &key: word(7) } });
    let whole = json!({ "state": { &key: word(7) } });
    // Slot 1 contains 0x38. A state difference (`stateDiff`) keeps the slot; a whole state
    // (`state`) clears it.
    for (code, state, expected) in [
        (slot(1), difference.clone(), 0x38),
        (slot(2), difference, 7),
        (slot(1), whole, 0),
        (returning("47"), json!({ "balance": "0x63" }), 0x63),
    ] {
        assert_eq!(
            run_overridden(&chain, &code, state.clone(), json!({})).await,
            word(expected),
            "{code} with {state}"
        );
    }
}

#[tokio::test]
async fn block_overrides_change_the_blocks_members() {
    let mut chain = Chain::new(Fork::Isthmus);
    chain.add(&[]);
    // The opcodes are TIMESTAMP, GASLIMIT, COINBASE and PREVRANDAO.
    for (op, block, expected) in [
        ("42", json!({ "time": "0xffff" }), 0xffff),
        ("45", json!({ "gasLimit": "0x1000000" }), 0x0100_0000),
        (
            "41",
            json!({ "feeRecipient": Address::with_last_byte(9) }),
            9,
        ),
        ("44", json!({ "prevRandao": B256::with_last_byte(8) }), 8),
    ] {
        assert_eq!(
            run_overridden(&chain, &returning(op), json!({}), block).await,
            word(expected),
            "opcode {op}"
        );
    }
}

#[tokio::test]
async fn a_whole_state_and_a_difference_of_one_account_are_refused() {
    let mut chain = Chain::new(Fork::Isthmus);
    chain.add(&[]);
    let both = json!({ CONTRACT.to_string(): { "state": {}, "stateDiff": {} } });
    for method in ["eth_call", "eth_estimateGas", "eth_createAccessList"] {
        let (code, message) = chain
            .error(method, json!([{ "to": CONTRACT }, "latest", both]))
            .await;
        assert_eq!(
            (code, message),
            (
                -32000,
                format!("account {CONTRACT} has both 'state' and 'stateDiff'")
            ),
            "{method}"
        );
    }
}

#[tokio::test]
async fn a_poor_sender_that_is_made_rich_has_an_estimate() {
    let mut chain = Chain::new(Fork::Isthmus);
    chain.add(&[]);
    let poor = json!({ "from": Address::repeat_byte(5), "to": RICH, "value": "0x1" });
    let rich = json!({ Address::repeat_byte(5).to_string(): { "balance": format!("{FUNDS:#x}") } });
    assert_eq!(
        chain
            .error("eth_estimateGas", json!([poor, "latest"]))
            .await
            .0,
        -32000
    );
    assert_eq!(
        chain
            .result("eth_estimateGas", json!([poor, "latest", rich]))
            .await,
        "0x5208"
    );
}
