//! `eth_call` and `eth_estimateGas` through the EVM.

use super::chain::{CONTRACT, Chain, FUNDS};
use alloy_primitives::Address;
use serde_json::{Value, json};
use starling_proto::fork::Fork;

/// Reverts with its calldata.
const REVERT: &str = "0x366000600037366000fd";
/// Returns 42.
const ANSWER: &str = "0x602a60005260206000f3";
/// `Error("nope")`, and `Panic(0x11)`.
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
    let answer = chain
        .result("eth_call", json!([call, "latest", with_code(ANSWER)]))
        .await;
    assert_eq!(answer, format!("0x{:064x}", 42));
    // Code that returns NUMBER: the environment is that of the block.
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
            let answer = chain.ask(method, json!([call, "latest", revert])).await;
            assert_eq!(
                answer["error"],
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
    let (_, message) = chain.error("eth_call", json!([two])).await;
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
    // With a price something must be left for gas; without one the transfer itself is refused.
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
