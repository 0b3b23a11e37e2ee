//! Invalid attributes and payloads with one fault each, such as no rollup node sends. Both clients
//! must refuse them with the same error.

use super::{accounts::poor, generator::Head};
use alloy_consensus::Header;
use alloy_eips::eip2718::Encodable2718;
use alloy_primitives::{Address, B256, Bytes, U256};
use op_alloy_consensus::TxDeposit;
use op_alloy_rpc_types_engine::OpExecutionPayload;
use rand::{Rng, rngs::StdRng, seq::IndexedRandom};
use serde_json::{Value, json};
use starling_proto::payload::{Payload, PayloadVersion, WirePayload};

fn quantity(value: u64) -> Value {
    format!("{value:#x}").into()
}

fn remove(json: &mut Value, member: &str) {
    json.as_object_mut().expect("an object").remove(member);
}

/// Attributes with one fault, and the fault's name.
pub fn attributes(rng: &mut StdRng, good: &Value, on: &Head) -> (&'static str, Value) {
    let mut json = good.clone();
    let what = match rng.random_range(0..13) {
        0 => {
            json["timestamp"] = quantity(on.time - rng.random_range(0..2));
            "a timestamp that is not after the parent's"
        }
        1 => {
            remove(&mut json, "gasLimit");
            "no gas limit"
        }
        2 => {
            json["eip1559Params"] = wrong_eip1559_params(rng, good);
            "EIP-1559 parameters that are wrong or too early"
        }
        3 if good["minBaseFee"].is_number() => {
            remove(&mut json, "minBaseFee");
            "no minimum base fee"
        }
        4 => {
            let withdrawal = json!({"index": "0x0", "validatorIndex": "0x0", "address": Address::ZERO, "amount": "0x1"});
            json["withdrawals"] = json!([withdrawal]);
            "a withdrawal"
        }
        5 => {
            add_or_remove(&mut json, "withdrawals", json!([]));
            "withdrawals where they should not be, or none"
        }
        6 => {
            add_or_remove(&mut json, "parentBeaconBlockRoot", json!(B256::ZERO));
            "a beacon root where it should not be, or none"
        }
        7..11 => return transactions(rng, good),
        11 if good["transactions"]
            .as_array()
            .is_some_and(|all| all.len() > 2) =>
        {
            // The deposits and transactions of most blocks need more gas than this.
            json["gasLimit"] = quantity(1_000_100);
            "no gas for the transactions"
        }
        _ => {
            json["gasLimit"] = quantity(5_000);
            "a gas limit below that of the L1 attributes"
        }
    };
    (what, json)
}

/// Adds the member if it is absent, and removes it if it is present.
fn add_or_remove(json: &mut Value, member: &str, value: Value) {
    if json[member].is_null() {
        json[member] = value;
    } else {
        remove(json, member);
    }
}

/// Invalid EIP-1559 parameters; or valid ones, if the fork does not have them yet.
fn wrong_eip1559_params(rng: &mut StdRng, good: &Value) -> Value {
    if good["eip1559Params"].is_null() {
        return json!("0x0000000800000002");
    }
    let wrong = ["0x0000000000000002", "0x0000000200000000", "0x00", "0x"];
    json!(*wrong.choose(rng).expect("parameters"))
}

/// Attributes with one fault in their list of transactions, and the fault's name.
fn transactions(rng: &mut StdRng, good: &Value) -> (&'static str, Value) {
    let mut json = good.clone();
    let transactions: Vec<Bytes> =
        serde_json::from_value(good["transactions"].clone()).expect("a list");
    let with =
        |extra: &[u8]| json!([transactions.clone(), vec![Bytes::copy_from_slice(extra)]].concat());
    let what = match rng.random_range(0..5) {
        // Before Regolith the deposit would be valid.
        4 if good["withdrawals"].is_array() => {
            json["transactions"] = with(&system_deposit());
            "a system deposit"
        }
        0 => {
            json["transactions"] = with(
                [
                    &[][..],
                    &[0xc0],
                    &[2, 0xc0],
                    &[3, 0xc0],
                    &[0x7d, 0xc0],
                    &[0x7e, 0xc0],
                ]
                .choose(rng)
                .expect("bytes"),
            );
            "bytes that are no transaction"
        }
        1 if transactions.last().is_some_and(|raw| raw[0] != 0x7e) => {
            json["transactions"] = with(transactions.last().expect("a transaction"));
            "a transaction twice"
        }
        2 if good["minBaseFee"].is_number() => {
            json["transactions"] = json!(
                transactions[1..]
                    .iter()
                    .filter(|raw| raw[0] != 0x7e)
                    .collect::<Vec<_>>()
            );
            "no L1 attributes"
        }
        _ => {
            json["transactions"] = with(&poor());
            "a transaction whose sender has nothing"
        }
    };
    (what, json)
}

/// A deposit that no block may have since Regolith.
fn system_deposit() -> Bytes {
    let tx = TxDeposit {
        is_system_transaction: true,
        gas_limit: 100_000,
        ..Default::default()
    };
    tx.encoded_2718().into()
}

/// The payload of a block with one fault and a hash that matches the changed block, and the fault's
/// name.
pub fn payload(
    rng: &mut StdRng,
    good: &Value,
    beacon_root: B256,
    on: &Head,
) -> (&'static str, Value) {
    let mut payload = decode(good, beacon_root);
    let what = match rng.random_range(0..17) {
        0 => {
            payload.transactions.pop();
            "last transaction"
        }
        1 if payload.transactions.len() > 1 => {
            payload.transactions.remove(0);
            "first transaction"
        }
        2 => {
            payload.transactions.push(poor());
            "another transaction"
        }
        3 if payload.header.withdrawals_root.is_some() => {
            payload.transactions.insert(1, system_deposit());
            "a system deposit"
        }
        _ => spoil(rng, &mut payload.header, on),
    };
    payload.header.transactions_root =
        alloy_trie::root::ordered_trie_root_encoded(&payload.transactions);
    let version = payload.version();
    let payload = Payload::sealed(payload.header, payload.transactions);
    (
        what,
        serde_json::to_value(payload.to_execution_payload(version)).expect("JSON"),
    )
}

/// Makes one random field of a header wrong. Returns the field's name.
fn spoil(rng: &mut StdRng, header: &mut Header, on: &Head) -> &'static str {
    match rng.random_range(0..14) {
        n @ 0..7 => {
            let (name, change) = WRONG_FIELDS[n];
            change(header);
            name
        }
        7 => {
            header.gas_used = header
                .gas_used
                .wrapping_add(rng.random_range(0..2) * 2)
                .wrapping_sub(1);
            "gas used"
        }
        8 => {
            header.timestamp = on.time;
            "timestamp"
        }
        9 => {
            let mut extra = header.extra_data.to_vec();
            match extra.get_mut(rng.random_range(0..9)) {
                Some(byte) => *byte ^= 0x80,
                None => extra.push(0),
            }
            header.extra_data = extra.into();
            "extra data"
        }
        10 if header.blob_gas_used.is_some() => {
            header.blob_gas_used = header.blob_gas_used.map(|used| used + 1);
            "blob gas used"
        }
        11 if header.excess_blob_gas.is_some() => {
            header.excess_blob_gas = Some(1 << 17);
            "excess blob gas"
        }
        12 if header.requests_hash.is_some() => {
            header.withdrawals_root = Some(B256::repeat_byte(1));
            "withdrawals root"
        }
        _ => {
            header.gas_limit = 1 << 63;
            "gas limit"
        }
    }
}

/// The name of a header field, and a change that makes the field wrong.
type WrongField = (&'static str, fn(&mut Header));

/// Changes that make a header of any fork wrong.
const WRONG_FIELDS: [WrongField; 7] = [
    ("state root", |header| header.state_root.0[0] ^= 1),
    ("receipts root", |header| header.receipts_root.0[0] ^= 1),
    ("bloom", |header| header.logs_bloom.0[0] ^= 1),
    ("gas used above the limit", |header| {
        header.gas_used = header.gas_limit + 1
    }),
    ("base fee", |header| {
        header.base_fee_per_gas = header.base_fee_per_gas.map(|fee| fee + 1)
    }),
    ("number", |header| header.number += 1),
    ("parent", |header| header.parent_hash.0[0] ^= 1),
];

/// Decodes the block of a payload in the Engine API's JSON form.
fn decode(json: &Value, beacon_root: B256) -> Payload {
    fn read<T: serde::de::DeserializeOwned>(json: &Value) -> T {
        serde_json::from_value(json.clone()).expect("an execution payload")
    }
    let version = if json["withdrawalsRoot"].is_string() {
        PayloadVersion::V4
    } else if json["blobGasUsed"].is_string() {
        PayloadVersion::V3
    } else if json["withdrawals"].is_array() {
        PayloadVersion::V2
    } else {
        PayloadVersion::V1
    };
    let payload = match version {
        PayloadVersion::V1 => OpExecutionPayload::V1(read(json)),
        PayloadVersion::V2 => OpExecutionPayload::V2(read(json)),
        PayloadVersion::V3 => OpExecutionPayload::V3(read(json)),
        PayloadVersion::V4 => OpExecutionPayload::V4(read(json)),
    };
    WirePayload::from_execution_payload(payload, Some(beacon_root))
        .expect("a payload")
        .into_payload()
        .expect("its hash")
}

/// Base fee of a payload, in wei.
pub fn base_fee(payload: &Value) -> u64 {
    serde_json::from_value::<U256>(payload["baseFeePerGas"].clone())
        .expect("a base fee")
        .to()
}
