//! Verdicts of our gossip validator, compared with those of op-node.

use crate::{address, b256, list, version};
use alloy_primitives::{Address, B256};
use op_alloy_rpc_types_engine::OpExecutionPayload;
use serde_json::Value;
use ssz::Encode;
use starling_proto::{
    fork::{Fork, ForkSchedule},
    gossip::{self, CheckContext, Reason, Seen, Signers, Verdict},
    payload::{Payload, PayloadVersion},
    sign::{self, SecretKey},
};

const VALIDATOR_CHAIN: u64 = 100;
/// Unix time, in seconds, at which the cases are validated.
const VALIDATOR_NOW: u64 = 1_750_000_000;

/// The key that this letter stands for.
fn validator_key(name: &str) -> SecretKey {
    assert!(["A", "B", "C"].contains(&name), "{name}");
    SecretKey::from_slice(&[name.as_bytes()[0]; 32]).unwrap()
}

fn signed_by_a(wire: &[u8]) -> [u8; 65] {
    sign::sign(&validator_key("A"), VALIDATOR_CHAIN, wire)
}

/// A case with a valid block.
fn plain_case() -> Value {
    serde_json::json!({ "topic": "V2", "withdrawals": [] })
}

/// Validates a case's message, compares the verdict with op-node's, and returns it.
fn decide(
    case: &Value,
    wire: &[u8],
    signature: [u8; 65],
    signers: &Signers,
    threshold_secs: u64,
) -> Verdict {
    let version = if case["topic"].is_null() {
        PayloadVersion::V2
    } else {
        version(&case["topic"])
    };
    let forks =
        ForkSchedule::from_genesis(Fork::Isthmus).with(Fork::Jovian, case["jovian_time"].as_u64());
    let context = CheckContext {
        chain_id: VALIDATOR_CHAIN,
        signers,
        threshold_secs,
        forks: &forks,
    };
    let message = gossip::decompress(&gossip::encode_message(&signature, wire).unwrap());
    let verdict = gossip::check(
        version,
        message.flag,
        &message.bytes,
        VALIDATOR_NOW,
        &context,
        &mut Seen::default(),
    );
    let outcome = match &verdict {
        Verdict::Accept(..) => "ACCEPT",
        Verdict::Ignore(_) => "IGNORE",
        Verdict::Reject(_) => "REJECT",
    };
    assert_eq!(
        outcome,
        case["result"].as_str().unwrap(),
        "{case}: {verdict:?}"
    );
    verdict
}

/// A block as in op-node's tests: all fields are zero except the time and the hash, which is
/// correct.
fn validator_block(case: &Value, now: u64) -> Vec<u8> {
    let version = version(&case["topic"]);
    let number = |key: &str| case[key].as_u64();
    // A case on V4 without withdrawals root is encoded as V3.
    let encoding = match version {
        PayloadVersion::V4 if case["withdrawalsRoot"].is_null() => PayloadVersion::V3,
        // Only V3's encoding has blob fields, so a case on V2 with blob fields is encoded as V3.
        PayloadVersion::V2 if number("blobGasUsed").is_some() => PayloadVersion::V3,
        version => version,
    };
    let withdrawals: Vec<alloy_eips::eip4895::Withdrawal> =
        case["withdrawals"].as_array().map_or(Vec::new(), |list| {
            let withdrawal = |w: &Value| alloy_eips::eip4895::Withdrawal {
                index: w["index"].as_u64().unwrap(),
                validator_index: w["validatorIndex"].as_u64().unwrap(),
                address: address(&w["address"]),
                amount: w["amount"].as_u64().unwrap(),
            };
            list.iter().map(withdrawal).collect()
        });
    let root = case["root"].as_str().map(|_| b256(&case["root"]));
    let v3 = encoding >= PayloadVersion::V3;
    let v4 = encoding == PayloadVersion::V4;
    let header = alloy_consensus::Header {
        timestamp: now,
        state_root: B256::ZERO,
        receipts_root: B256::ZERO,
        base_fee_per_gas: Some(0),
        withdrawals_root: Some(if v4 {
            b256(&case["withdrawalsRoot"])
        } else {
            alloy_consensus::proofs::calculate_withdrawals_root(&withdrawals)
        }),
        blob_gas_used: v3.then(|| number("blobGasUsed").unwrap_or(0)),
        excess_blob_gas: v3.then(|| number("excessBlobGas").unwrap_or(0)),
        parent_beacon_block_root: v3.then(|| root.unwrap_or_default()),
        requests_hash: v4.then_some(alloy_eips::eip7685::EMPTY_REQUESTS_HASH),
        ..Default::default()
    };
    let payload = Payload::sealed(header, Vec::new());
    let ssz = match payload.to_execution_payload(encoding) {
        OpExecutionPayload::V2(mut payload) => {
            payload.withdrawals = withdrawals;
            payload.as_ssz_bytes()
        }
        OpExecutionPayload::V3(payload) => payload.as_ssz_bytes(),
        OpExecutionPayload::V4(payload) => payload.as_ssz_bytes(),
        OpExecutionPayload::V1(payload) => payload.as_ssz_bytes(),
    };
    [root.map_or(Vec::new(), |root| root.to_vec()), ssz].concat()
}

#[test]
fn the_validator_decides_about_payloads_as_the_reference_does() {
    let fixture = fixture!("p2p-wire/gossip-validator-cases.json");
    let signer = Signers::new(sign::address(&validator_key("A")));
    for case in list(&fixture["payload"])
        .iter()
        .chain(list(&fixture["envelope"]))
    {
        let wire = validator_block(case, VALIDATOR_NOW);
        decide(case, &wire, signed_by_a(&wire), &signer, 60);
    }
}

#[test]
fn the_validator_decides_about_signatures_as_the_reference_does() {
    let fixture = fixture!("p2p-wire/gossip-validator-cases.json");
    let key = |value: &Value| {
        let name = value.as_str().filter(|name| name.len() == 1);
        name.map(validator_key)
    };
    let wire = validator_block(&plain_case(), VALIDATOR_NOW);
    for case in list(&fixture["signature"]) {
        let current = match &case["current"] {
            Value::Null => Address::ZERO,
            name => key(name).map_or_else(|| address(name), |key| sign::address(&key)),
        };
        let mut signers = match key(&case["previous"]) {
            None => Signers::new(current),
            Some(previous) => {
                let mut signers = Signers::new(sign::address(&previous));
                signers.update(current, VALIDATOR_NOW);
                signers
            }
        };
        let signature =
            key(&case["signed_by"]).map_or([0; 65], |key| sign::sign(&key, VALIDATOR_CHAIN, &wire));
        let verdict = decide(case, &wire, signature, &signers, 60);
        if let (Verdict::Accept(_, by), Some(ends)) = (verdict, case["ends_grace"].as_bool()) {
            signers.verified(by, VALIDATOR_NOW);
            let a = sign::address(&validator_key("A"));
            assert_eq!(!signers.accepts(a, VALIDATOR_NOW), ends, "{case}");
        }
    }
}

#[test]
fn the_validator_decides_about_old_blocks_as_the_reference_does() {
    let fixture = fixture!("p2p-wire/gossip-validator-cases.json");
    let signer = Signers::new(sign::address(&validator_key("A")));
    for case in list(&fixture["timestamp"]) {
        let age = case["age_s"].as_u64().unwrap();
        let wire = validator_block(&plain_case(), VALIDATOR_NOW - age);
        let threshold = case["threshold_s"].as_u64().unwrap();
        let verdict = decide(case, &wire, signed_by_a(&wire), &signer, threshold);
        assert!(
            !matches!(verdict, Verdict::Reject(reason) if !matches!(reason, Reason::TooOld { .. }))
        );
    }
}
