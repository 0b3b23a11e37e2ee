//! Responses of a running network, checked against the description of the interface: each field in
//! its tables is present with its type, and each method that it names exists.

use crate::net::{Devnet, ask, call, wait};
use alloy_primitives::{Bytes, TxKind, U256, hex};
use serde_json::{Value, json};
use std::time::Duration;

/// The text of the description; `None`, recorded as a skip, if it is absent.
fn description() -> Option<String> {
    starling_testkit::shared_text("interface.md")
}

/// The text below a heading, up to the next heading.
fn section<'a>(text: &'a str, heading: &str) -> &'a str {
    let start = text
        .find(heading)
        .unwrap_or_else(|| panic!("no heading {heading:?}"))
        + heading.len();
    let rest = &text[start..];
    &rest[..rest.find("\n#").unwrap_or(rest.len())]
}

/// The rows of the table in a section: name and type.
fn table(section: &str) -> Vec<(String, String)> {
    let rows = section.lines().filter(|line| line.starts_with('|')).skip(2);
    let cell = |row: &str, n: usize| row.split('|').nth(n).unwrap_or_default().trim().to_owned();
    rows.map(|row| (cell(row, 1), cell(row, 2))).collect()
}

/// The names in a sentence such as "Fields: a, b (type), c.", each with the text in brackets after
/// it.
fn sentence(section: &str) -> Vec<(String, String)> {
    let start = section.find("Fields: ").expect("a list of fields") + "Fields: ".len();
    let (mut fields, mut depth, mut field) = (Vec::new(), 0, String::new());
    for letter in section[start..].chars() {
        depth += i32::from(letter == '(') - i32::from(letter == ')');
        if depth == 0 && (letter == ',' || letter == '.') {
            let (name, more) = field.trim().split_once(" (").unwrap_or((field.trim(), ""));
            fields.push((name.to_owned(), more.trim_end_matches(')').to_owned()));
            field.clear();
            if letter == '.' {
                break;
            }
        } else {
            field.push(letter);
        }
    }
    fields
}

/// Whether a value is `0x` and `bytes` bytes in hex; any number of bytes if `None`.
fn data(value: &Value, bytes: Option<usize>) -> bool {
    let digits = value.as_str().and_then(|text| text.strip_prefix("0x"));
    digits.is_some_and(|digits| {
        hex::decode(digits).is_ok_and(|found| bytes.is_none_or(|bytes| found.len() == bytes))
    })
}

fn quantity(value: &Value) -> bool {
    let digits = value.as_str().and_then(|text| text.strip_prefix("0x"));
    digits.is_some_and(|d| {
        (d == "0" || !d.starts_with('0'))
            && !d.is_empty()
            && d.bytes().all(|b| b.is_ascii_hexdigit())
    })
}

/// Whether a value fits the type that the description gives for the field; if it gives none, the
/// type that the name implies.
fn fits(name: &str, ty: &str, value: &Value) -> bool {
    let by_name = match name {
        "from" | "to" | "address" | "miner" => "address string",
        "logsBloom" => "hex string, 256 bytes",
        "input" | "data" | "extraData" => "hex",
        "hash" | "mixHash" | "sha3Uncles" => "hash string",
        _ if name.ends_with("Hash") || name.ends_with("Root") => "hash string",
        _ => "hex quantity",
    };
    match if ty.is_empty() || ty.contains("as named") {
        by_name
    } else {
        ty
    } {
        "hash string" => data(value, Some(32)),
        "address string" => data(value, Some(20)),
        "address string or null" => value.is_null() || data(value, Some(20)),
        "hex string, 256 bytes" => data(value, Some(256)),
        "8-byte hex" => data(value, Some(8)),
        "hex" | "hex data" => data(value, None),
        "hex quantity" => quantity(value),
        "boolean" => value.is_boolean(),
        "string holding a decimal number" => value
            .as_str()
            .is_some_and(|text| text.parse::<f64>().is_ok_and(f64::is_finite)),
        "array of 32-byte hex strings" => value
            .as_array()
            .is_some_and(|list| list.iter().all(|item| data(item, Some(32)))),
        "array of log objects" | "array" => value.is_array(),
        other => panic!("the type {other:?} of {name} is not known here"),
    }
}

fn check(what: &str, fields: &[(String, String)], answer: &Value) {
    assert!(fields.len() >= 9, "{what}: {fields:?}");
    for (name, ty) in fields {
        let value = answer
            .get(name)
            .unwrap_or_else(|| panic!("{what} has no {name}: {answer:#}"));
        assert!(
            fits(name, ty, value),
            "{name} of {what} is no {ty:?}: {value}"
        );
    }
}

#[test]
fn every_field_of_the_interface_is_in_the_answers() {
    let Some(text) = description() else { return };
    let net = Devnet::start(&["--l2.block-time=1", "--l1.block-time=3", "--replicas=1"]);
    let fields = AnswerFields {
        receipt: table(section(&text, "### Transaction receipt")),
        transaction: sentence(section(&text, "### Transaction (")),
        block: sentence(section(&text, "### Block (")),
        log: sentence(section(&text, "### Log (")),
    };
    let nodes = [net.sequencer(), net.replicas().remove(0)];
    let sent = [creation(&net), transfer(&net)]
        .map(|raw| ask(&nodes[1].http, "eth_sendRawTransaction", json!([raw])));
    for node in &nodes {
        for hash in &sent {
            fields.check_transaction(&node.http, hash);
        }
        let found = ask(
            &node.http,
            "eth_getLogs",
            json!([{ "fromBlock": "0x0", "toBlock": "latest" }]),
        );
        let found = found.as_array().expect("a list");
        assert!(!found.is_empty());
        found
            .iter()
            .for_each(|log| check("a log", &fields.log, log));
    }
}

/// Names and types of the fields of each kind of response.
struct AnswerFields {
    receipt: Vec<(String, String)>,
    transaction: Vec<(String, String)>,
    block: Vec<(String, String)>,
    log: Vec<(String, String)>,
}

impl AnswerFields {
    /// Checks all responses that contain this transaction.
    fn check_transaction(&self, url: &str, hash: &Value) {
        let receipt = wait("the receipt", Duration::from_secs(20), || {
            Some(ask(url, "eth_getTransactionReceipt", json!([hash])))
                .filter(|receipt| !receipt.is_null())
        });
        // A transaction without a recipient creates a contract.
        let to_nobody = receipt["to"].is_null() && receipt["contractAddress"].is_string();
        let present = |fields: &[(String, String)]| -> Vec<_> {
            fields
                .iter()
                .filter(|(name, _)| !(to_nobody && name == "to"))
                .cloned()
                .collect()
        };
        check("the receipt", &present(&self.receipt), &receipt);
        assert_eq!(receipt["status"], "0x1");
        let transaction = ask(url, "eth_getTransactionByHash", json!([hash]));
        check("the transaction", &present(&self.transaction), &transaction);
        for log in receipt["logs"].as_array().expect("a list") {
            check("a receipt's log", &self.log, log);
        }
        let number = &receipt["blockNumber"];
        for full in [true, false] {
            let block = ask(url, "eth_getBlockByNumber", json!([number, full]));
            check("the block", &self.block, &block);
            let inside = block["transactions"].as_array().expect("a list");
            let expected = if full { &transaction } else { hash };
            assert!(inside.contains(expected), "{block:#}");
        }
    }
}

/// A transaction that creates a contract whose constructor ("T", 5) emits an event.
fn creation(net: &Devnet) -> Bytes {
    let artifact: Value =
        serde_json::from_str(include_str!("../clients/contracts/Token.json")).expect("JSON");
    let mut input = hex::decode(artifact["bytecode"].as_str().expect("bytecode")).expect("hex");
    for word in [
        U256::from(0x40),
        U256::from(5),
        U256::from(1),
        U256::from(b'T') << 248,
    ] {
        input.extend_from_slice(&word.to_be_bytes::<32>());
    }
    let (to, value) = (TxKind::Create, U256::ZERO);
    net.accounts[5].sign(net.l2_chain_id, 0, to, value, input.into(), 2_000_000)
}

fn transfer(net: &Devnet) -> Bytes {
    let account = &net.accounts[5];
    let to = TxKind::Call(account.address);
    account.sign(
        net.l2_chain_id,
        1,
        to,
        U256::from(1),
        Default::default(),
        21_000,
    )
}

#[test]
fn every_method_of_the_interface_exists() {
    let Some(text) = description() else { return };
    let net = Devnet::start(&["--l2.block-time=1", "--l1.block-time=3", "--replicas=1"]);
    let methods = table(section(&text, "### Execution client methods (HTTP)"));
    let methods: Vec<_> = methods
        .iter()
        .map(|(name, _)| name.as_str())
        .filter(|name| name.starts_with("eth_"))
        .collect();
    assert!(methods.len() >= 15, "{methods:?}");
    for node in [net.sequencer(), net.replicas().remove(0)] {
        for method in &methods {
            if let Err(error) = call(&node.http, method, json!([])) {
                assert_eq!(error["code"], -32602, "{method}: {error}");
            }
        }
    }
}
