//! End-to-end test on a local network of real processes: transactions through a replica, deposits,
//! independent clients.

use crate::net::{Devnet, Node, ask, client, head, number, wait};
use alloy_primitives::{Address, Bytes, TxKind, U256, hex};
use serde_json::{Value, json};
use std::{path::Path, process::Command, time::Duration};

/// Init code of a contract with one number, which anyone can set (with calldata) or read (without):
/// `if calldatasize { sstore(0, calldataload(0)) } else { return sload(0) }`.
const COUNTER: &str = "6017600c60003960176000f336600f5760005460005260206000f35b60003560005500";

fn receipt(url: &str, hash: &Value) -> Option<Value> {
    let receipt = ask(url, "eth_getTransactionReceipt", json!([hash]));
    (!receipt.is_null()).then_some(receipt)
}

#[test]
fn a_transfer_and_a_contract_through_a_replica() {
    let net = Devnet::start(&["--l2.block-time=1", "--l1.block-time=3"]);
    let replica = &net.replicas()[0];
    transfers_through(&net, replica);
    sets_a_counter_through(&net, replica);
}

/// Sends a transfer through the replica, and checks its receipt on every node and its fees.
fn transfers_through(net: &Devnet, replica: &Node) {
    let to = Address::repeat_byte(0x42);
    let raw = net.accounts[0].sign(
        net.l2_chain_id,
        0,
        TxKind::Call(to),
        U256::from(12_345),
        Bytes::new(),
        21_000,
    );
    let hash = ask(&replica.http, "eth_sendRawTransaction", json!([raw]));
    // Five block times, since the machine may be slow.
    let seen: Vec<Value> = net
        .role("sequencer")
        .iter()
        .chain(&net.replicas())
        .map(|node| {
            wait("the receipt", Duration::from_secs(5), || {
                receipt(&node.http, &hash)
            })
        })
        .collect();
    assert_eq!(seen.len(), 3);
    assert!(
        seen.windows(2).all(|pair| pair[0] == pair[1]),
        "the nodes disagree: {seen:#?}"
    );
    shows_the_fees_of_the_oracle(replica, &seen[0]);
    assert_eq!(
        ask(&replica.http, "eth_getBalance", json!([to, "latest"])),
        json!("0x3039")
    );
}

/// Checks the L1 fee fields of a receipt, also against the oracle contract's values at that block.
fn shows_the_fees_of_the_oracle(node: &Node, receipt: &Value) {
    assert_eq!(receipt["status"], "0x1");
    for field in ["l1Fee", "l1GasUsed", "l1GasPrice"] {
        assert!(receipt[field].is_string(), "{field} is missing: {receipt}");
    }
    assert!(
        receipt["l1FeeScalar"]
            .as_str()
            .is_some_and(|s| s.parse::<f64>().is_ok()),
        "l1FeeScalar: {receipt}"
    );
    assert!(
        number(&receipt["l1Fee"]) > 0,
        "the L1 fee is charged: {receipt}"
    );
    let oracle = "0x420000000000000000000000000000000000000F";
    for (signature, field) in [
        ("0x519b4bd3", "l1GasPrice"),
        ("0xc5985918", "l1BaseFeeScalar"),
        ("0xf8206140", "l1BlobBaseFee"),
        ("0x68d5dca6", "l1BlobBaseFeeScalar"),
    ] {
        let answer = ask(
            &node.http,
            "eth_call",
            json!([{"to": oracle, "data": signature}, receipt["blockNumber"]]),
        );
        let answer: U256 = answer.as_str().expect("data").parse().expect("a word");
        assert_eq!(
            answer,
            U256::from(number(&receipt[field])),
            "{field} at that block"
        );
    }
}

/// Deploys the counter and sets it. In the state of the earlier block the counter must still be
/// zero.
fn sets_a_counter_through(net: &Devnet, replica: &Node) {
    let mined = |nonce, to, input: Bytes, gas| {
        let raw = net.accounts[0].sign(net.l2_chain_id, nonce, to, U256::ZERO, input, gas);
        let hash = ask(&replica.http, "eth_sendRawTransaction", json!([raw]));
        wait("the receipt", Duration::from_secs(5), || {
            receipt(&replica.http, &hash)
        })
    };
    let created = mined(
        1,
        TxKind::Create,
        hex::decode(COUNTER).unwrap().into(),
        200_000,
    );
    let contract: Address = created["contractAddress"]
        .as_str()
        .expect("contractAddress")
        .parse()
        .unwrap();
    let input = U256::from(77).to_be_bytes_vec().into();
    let called = mined(2, TxKind::Call(contract), input, 100_000);
    assert_eq!(called["status"], "0x1");
    for (block, value) in [(json!("latest"), 77), (created["blockNumber"].clone(), 0)] {
        let answer = ask(&replica.http, "eth_call", json!([{"to": contract}, block]));
        assert_eq!(answer, json!(format!("0x{value:064x}")));
    }
}

#[test]
fn a_deposit_arrives_in_the_block_of_its_origin() {
    let net = Devnet::start(&["--l2.block-time=1", "--l1.block-time=3", "--replicas=1"]);
    let (l1, replica) = (net.l1(), &net.replicas()[0]);
    let to = Address::repeat_byte(0x77);
    let l1_chain = number(&ask(&l1.http, "eth_chainId", json!([])));
    let raw = net.accounts[1].sign(
        l1_chain,
        0,
        TxKind::Call(net.portal),
        U256::from(5_000),
        deposit_transaction(to).into(),
        300_000,
    );
    let hash = ask(&l1.http, "eth_sendRawTransaction", json!([raw]));
    let on_l1 = wait("the deposit on L1", Duration::from_secs(15), || {
        receipt(&l1.http, &hash)
    });
    assert_eq!(on_l1["status"], "0x1", "{on_l1}");

    let balance = || ask(&replica.http, "eth_getBalance", json!([to, "latest"]));
    wait("the deposit on L2", Duration::from_secs(60), || {
        (balance() == json!("0x1388")).then_some(())
    });
    // The deposit's block is the first of its epoch: sequence number 0, and the L1 block's hash as
    // origin.
    let transactions = last_with_a_second_transaction(&replica.http);
    let [attributes, deposit] = [&transactions[0], &transactions[1]];
    assert_eq!(deposit["type"], "0x7e");
    assert_eq!(
        deposit["to"].as_str().unwrap().parse::<Address>().unwrap(),
        to
    );
    let attributes = hex::decode(attributes["input"].as_str().unwrap()).unwrap();
    assert_eq!(attributes[12..20], [0; 8], "sequence number 0");
    assert_eq!(
        hex::encode_prefixed(&attributes[100..132]),
        on_l1["blockHash"].as_str().unwrap()
    );
}

/// Calldata of `depositTransaction(to, value, gasLimit, isCreation, data)`.
pub fn deposit_transaction(to: Address) -> Vec<u8> {
    let mut input = hex::decode("e9e05c42").unwrap();
    input.extend_from_slice(to.into_word().as_slice());
    for n in [5_000, 100_000, 0, 0xa0, 0] {
        input.extend_from_slice(&U256::from(n).to_be_bytes::<32>());
    }
    input
}

/// The transactions of the highest block that has others than the L1 attributes.
fn last_with_a_second_transaction(url: &str) -> Value {
    let mut at = head(url).unwrap();
    loop {
        let block = ask(
            url,
            "eth_getBlockByNumber",
            json!([format!("{at:#x}"), true]),
        );
        let transactions = &block["transactions"];
        if transactions.as_array().expect("transactions").len() > 1 {
            return transactions.clone();
        }
        at = at.checked_sub(1).expect("the deposit is in some block");
    }
}

/// Runs an external command and returns its output.
fn run(program: &Path, args: &[&str]) -> String {
    let output = Command::new(program)
        .args(args)
        .output()
        .expect("the client starts");
    assert!(
        output.status.success(),
        "{} {args:?}: {}{}",
        program.display(),
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

#[test]
fn cast_sends_deploys_and_calls_through_a_replica() {
    let Some(cast) = client("cast") else { return };
    let net = Devnet::start(&["--l2.block-time=1", "--l1.block-time=3"]);
    let replica = net.replicas()[1].http.clone();
    let key = net.accounts[2].key_hex();
    let to = "0x00000000000000000000000000000000000000aa";
    let send = |args: &[&str]| -> Value {
        let options = [
            "send",
            "--json",
            "--rpc-url",
            &replica,
            "--private-key",
            &key,
        ];
        let receipt = run(&cast, &[&options[..], args].concat());
        serde_json::from_str(&receipt).expect("cast prints a receipt")
    };

    let sent = send(&["--value", "1ether", to]);
    assert_eq!(sent["status"], "0x1");
    assert_eq!(
        run(&cast, &["balance", "--rpc-url", &replica, to]),
        "1000000000000000000"
    );

    let created = send(&["--create", &format!("0x{COUNTER}")]);
    let contract = created["contractAddress"].as_str().expect("an address");
    let word = format!("0x{:064x}", 99);
    let called = send(&[contract, &word]);
    assert_eq!(called["status"], "0x1");
    assert_eq!(run(&cast, &["call", "--rpc-url", &replica, contract]), word);
    for node in net.role("sequencer").iter().chain(&net.replicas()) {
        let there = wait("the receipt", Duration::from_secs(5), || {
            receipt(&node.http, &created["transactionHash"])
        });
        assert_eq!(there["blockHash"], created["blockHash"]);
    }
}
