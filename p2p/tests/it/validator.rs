//! op-node's test cases of the gossip validator, each with a swarm of its own: which messages are
//! passed on, and for which the sender is charged.

use crate::net::*;
use alloy_consensus::Header;
use alloy_primitives::{Address, B256, Bytes, b256};
use libp2p::gossipsub::{PublishError, TopicHash};
use serde_json::{Value, json};
use starling_p2p::Config;
use starling_proto::{
    fork::{Fork, ForkSchedule},
    gossip,
    payload::{Payload, PayloadVersion},
    sign::{self, SecretKey},
};
use std::time::{Duration, Instant};

const LONG: Duration = Duration::from_secs(60);
/// SHA-256 of the empty string, the requests hash of a block without requests.
const EMPTY_REQUESTS: B256 =
    b256!("e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
const V2: PayloadVersion = PayloadVersion::V2;

fn cases(kind: &str) -> Vec<Value> {
    let Some(text) = starling_testkit::fixture_text("p2p-wire/gossip-validator-cases.json") else {
        return Vec::new();
    };
    let file: Value = serde_json::from_str(&text).unwrap();
    let cases = file[kind].as_array().unwrap().clone();
    assert!(!cases.is_empty());
    cases
}

fn version(case: &Value) -> PayloadVersion {
    let digit = case["topic"]
        .as_str()
        .map_or(2, |topic| topic[1..].parse::<usize>().unwrap());
    PayloadVersion::ALL[digit - 1]
}

fn result(case: &Value) -> &str {
    case["result"].as_str().unwrap()
}

fn word(value: &Value) -> B256 {
    let text = value.as_str().unwrap().trim_start_matches("0x");
    format!("{text:0>64}").parse().unwrap()
}

/// The withdrawal of the test cases: its RLP, and its SSZ bytes.
fn withdrawal() -> [Vec<u8>; 2] {
    let rlp = [&[0xd8, 1, 1, 0x94][..], &[0; 20], &[0x80]].concat();
    let ssz = [
        &1u64.to_le_bytes()[..],
        &1u64.to_le_bytes(),
        &[0; 20],
        &[0; 8],
    ]
    .concat();
    [rlp, ssz]
}

/// The bytes to sign: a block in which every field is zero except the timestamp and the matching
/// hash.
fn block(case: &Value, timestamp: u64) -> Vec<u8> {
    let (on, number) = (version(case), |key: &str| case[key].as_u64());
    let encoding = match on {
        // Without the withdrawals root, or with blob fields, only the form of V3 exists.
        PayloadVersion::V4 if case["withdrawalsRoot"].is_null() => PayloadVersion::V3,
        PayloadVersion::V2 if number("blobGasUsed").is_some() => PayloadVersion::V3,
        on => on,
    };
    let list: Vec<Vec<u8>> = case["withdrawals"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|_| withdrawal()[0].clone())
        .collect();
    let root = case["root"].as_str().map(|_| word(&case["root"]));
    let (v3, v4) = (
        encoding >= PayloadVersion::V3,
        encoding == PayloadVersion::V4,
    );
    let header = Header {
        timestamp,
        base_fee_per_gas: Some(0),
        withdrawals_root: Some(if v4 {
            word(&case["withdrawalsRoot"])
        } else {
            alloy_trie::root::ordered_trie_root_encoded(&list)
        }),
        blob_gas_used: v3.then(|| number("blobGasUsed").unwrap_or(0)),
        excess_blob_gas: v3.then(|| number("excessBlobGas").unwrap_or(0)),
        parent_beacon_block_root: v3.then(|| root.unwrap_or_default()),
        requests_hash: v4.then_some(EMPTY_REQUESTS),
        ..Default::default()
    };
    let wire = Payload::sealed(header, Vec::<Bytes>::new()).to_wire(encoding);
    // The list of withdrawals is the last part; the withdrawals root comes before everything else.
    let wire = [
        wire,
        list.iter().flat_map(|_| withdrawal()[1].clone()).collect(),
    ]
    .concat();
    if encoding.has_beacon_root() && root.is_none() {
        wire[32..].to_vec()
    } else {
        wire
    }
}

fn key(name: &str) -> SecretKey {
    SecretKey::from_slice(&[name.as_bytes()[0]; 32]).unwrap()
}

fn signed(wire: &[u8], by: &str) -> Vec<u8> {
    gossip::encode_message(&sign::sign(&key(by), CHAIN, wire), wire).unwrap()
}

fn node_config(case: &Value, signer: Option<Address>) -> Config {
    let forks =
        ForkSchedule::from_genesis(Fork::Isthmus).with(Fork::Jovian, case["jovian_time"].as_u64());
    Config {
        forks,
        unsafe_block_signer: signer,
        ..config()
    }
}

async fn publish(raw: &mut Raw, on: PayloadVersion, data: Vec<u8>) {
    let topic = TopicHash::from_raw(gossip::topic(CHAIN, on));
    let begun = Instant::now();
    // The node's subscriptions arrive one by one, so publishing may fail at first.
    while let Err(error) = raw
        .0
        .behaviour_mut()
        .gossip
        .publish(topic.clone(), data.clone())
    {
        assert!(
            matches!(error, PublishError::NoPeersSubscribedToTopic) && begun.elapsed() < LONG,
            "{error}"
        );
        let pause = Instant::now() + Duration::from_millis(10);
        raw.drive(eventually(LONG, || Instant::now() > pause)).await;
    }
}

/// Sends the message and waits until the node has decided as expected: passes the message on
/// (ACCEPT), charges its sender (REJECT), or does neither (IGNORE).
async fn decides(
    node: &Node,
    raw: &mut Raw,
    on: PayloadVersion,
    data: Vec<u8>,
    expected: &str,
    case: &Value,
) {
    let id = raw.id();
    let state = async || {
        (
            node.network.report().await.unwrap().blocks.len(),
            node.debts(id).await,
        )
    };
    let before = state().await.0;
    publish(raw, on, data).await;
    if expected == "IGNORE" {
        // An ignored message has no visible effect. The charge for a second, bad message shows that
        // the first message has been decided.
        publish(
            raw,
            PayloadVersion::V4,
            vec![0xff, 0xff, 0xff, 0xff, 0x0f, 1, 2],
        )
        .await;
    }
    let decided = async {
        let begun = Instant::now();
        loop {
            let (accepted, debts) = state().await;
            if accepted > before || !debts.is_empty() {
                let decided = match expected {
                    "ACCEPT" => accepted == before + 1 && debts.is_empty(),
                    "REJECT" => accepted == before && !debts.is_empty(),
                    _ => accepted == before && debts == [("too_large", -20.0)],
                };
                assert!(decided, "{case}: {accepted} accepted, {debts:?}");
                return begun.elapsed();
            }
            assert!(begun.elapsed() < LONG, "{case} is not decided");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    raw.drive(decided).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_ten_blocks_of_the_reference_node_are_decided_as_there() {
    let all: Vec<Value> = cases("payload")
        .into_iter()
        .chain(cases("envelope"))
        .collect();
    assert!(all.is_empty() || all.len() == 10);
    for case in all {
        let node = Node::start(node_config(&case, Some(sign::address(&key("A"))))).await;
        let mut raw = Raw::connected_to(&node, false).await;
        let data = signed(&block(&case, unix_now()), "A");
        decides(&node, &mut raw, version(&case), data, result(&case), &case).await;
        node.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn signers_and_ages_of_the_reference_node_are_decided_as_there() {
    let plain = json!({ "topic": "V2", "withdrawals": [] });
    for case in cases("signature") {
        let address = |name: &Value| {
            let name = name.as_str()?;
            let given = || Address::from_word(word(&json!(name)));
            Some(if name.starts_with("0x") {
                given()
            } else {
                sign::address(&key(name))
            })
        };
        let (current, previous) = (address(&case["current"]), address(&case["previous"]));
        let node = Node::start(node_config(&case, previous.or(current))).await;
        if let (Some(current), Some(_)) = (current, previous) {
            node.set_signer(current).await;
        }
        let mut raw = Raw::connected_to(&node, false).await;
        let wire = block(&plain, unix_now());
        let data = match case["signed_by"].as_str() {
            Some(by) => signed(&wire, by),
            None => gossip::encode_message(&[0; 65], &wire).unwrap(),
        };
        decides(&node, &mut raw, V2, data, result(&case), &case).await;
        // Whether the previous block is still accepted.
        if result(&case) == "ACCEPT" && previous.is_some() {
            let again = Header {
                timestamp: unix_now(),
                number: 7,
                ..v2_header()
            };
            let again = signed(&Payload::sealed(again, Vec::new()).to_wire(V2), "A");
            let expected = if case["ends_grace"] == true {
                "IGNORE"
            } else {
                "ACCEPT"
            };
            decides(&node, &mut raw, V2, again, expected, &case).await;
        }
        node.stop().await;
    }
    for case in cases("timestamp") {
        let seconds = |key: &str| case[key].as_u64().unwrap();
        let threshold = Duration::from_secs(seconds("threshold_s"));
        let signer = Some(sign::address(&key("A")));
        let node = Node::start(Config {
            gossip_threshold: threshold,
            ..node_config(&case, signer)
        })
        .await;
        let mut raw = Raw::connected_to(&node, false).await;
        let data = signed(&block(&plain, unix_now() - seconds("age_s")), "A");
        decides(&node, &mut raw, V2, data, result(&case), &case).await;
        node.stop().await;
    }
}

fn v2_header() -> Header {
    Header {
        base_fee_per_gas: Some(0),
        withdrawals_root: Some(alloy_trie::EMPTY_ROOT_HASH),
        ..Default::default()
    }
}
