//! Responses of an L1 endpoint: block objects, receipts in both forms, storage proofs. Each is also
//! tried with its hash corrected, because a wrong hash would stop every mutation.

use crate::{InputKind, fixtures};
use alloy_consensus::{
    Header, SignableTransaction, TxEip1559, TxEip4844, TxEnvelope, TxLegacy,
    proofs::calculate_transaction_root,
};
use alloy_primitives::{Address, B256, Bytes, Signature, TxKind};
use serde_json::{Value, json};
use starling::rollup::l1::{L1Block, RpcCause, Watched, fuzzing};

const WATCHED: Watched = Watched {
    inbox: Address::repeat_byte(0xff),
    portal: Address::repeat_byte(0xde),
    system_config: Address::repeat_byte(0xc0),
};

pub fn target(data: &[u8]) -> InputKind {
    let mut outcome = InputKind::default();
    let text = String::from_utf8_lossy(data);
    blocks(&text, &mut outcome);
    if let Some(repaired) = repaired(&text) {
        blocks(&repaired, &mut outcome);
    }
    let block = L1Block::default();
    note(fuzzing::receipts(&text, &block), &mut outcome);
    let (contract, slot) = (WATCHED.system_config, B256::ZERO);
    note(
        fuzzing::storage(&text, contract, slot, &block),
        &mut outcome,
    );
    let raw: Vec<Bytes> = data
        .split(|byte| *byte == b'\n')
        .map(Bytes::copy_from_slice)
        .collect();
    let root = alloy_trie::root::ordered_trie_root_with_encoder(&raw, |raw: &Bytes, out| {
        out.extend_from_slice(raw);
    });
    let block = L1Block {
        receipts_root: root,
        ..block
    };
    if let Some(receipts) = note(fuzzing::raw_receipts(&raw, &block), &mut outcome) {
        assert_eq!(receipts.len(), raw.len());
    }
    outcome
}

/// Checks that a verified response has the same result as with a trusted endpoint.
fn blocks(text: &str, outcome: &mut InputKind) {
    let header = note(fuzzing::header(text, false), outcome);
    let trusted = note(fuzzing::header(text, true), outcome);
    assert!(header.is_none() || header == trusted);
    let block = note(fuzzing::block(text, &WATCHED, false), outcome);
    let trusted = note(fuzzing::block(text, &WATCHED, true), outcome);
    if let (Some((block, transactions)), Some((trusted, fewer))) = (block, trusted) {
        assert!(header.is_none_or(|header| header == block));
        assert_eq!(block, trusted);
        assert!(
            fewer
                .iter()
                .all(|transaction| transactions.contains(transaction))
        );
    }
    note(fuzzing::unknown_transactions(text), outcome);
}

fn note<T>(result: Result<T, RpcCause>, outcome: &mut InputKind) -> Option<T> {
    outcome.add(&result.as_ref().map(|_| ()).map_err(std::mem::discriminant));
    result.ok()
}

/// Corrects the hash of a block object to that of its fields.
fn repaired(text: &str) -> Option<String> {
    let mut object: Value = serde_json::from_str(text).ok()?;
    let header: Header = serde_json::from_value(object.clone()).ok()?;
    object["hash"] = json!(header.hash_slow());
    Some(object.to_string())
}

fn signed<T: SignableTransaction<Signature>>(transaction: T) -> TxEnvelope
where
    TxEnvelope: From<alloy_consensus::Signed<T>>,
{
    transaction.into_signed(Signature::test_signature()).into()
}

fn block(transactions: &[TxEnvelope]) -> Value {
    let header = Header {
        number: 7,
        timestamp: 100,
        base_fee_per_gas: Some(7),
        blob_gas_used: Some(0),
        excess_blob_gas: Some(0),
        parent_beacon_block_root: Some(B256::repeat_byte(1)),
        transactions_root: calculate_transaction_root(transactions),
        ..Header::default()
    };
    let mut object = serde_json::to_value(&header).expect("JSON");
    object["hash"] = json!(header.hash_slow());
    object["transactions"] = serde_json::to_value(transactions).expect("JSON");
    object
}

/// Block objects: without transactions, with some, and with an unknown transaction type and an
/// unknown field.
fn block_seeds() -> [Value; 3] {
    let to = TxKind::Call(WATCHED.inbox);
    let transactions = [
        signed(TxLegacy {
            to,
            ..TxLegacy::default()
        }),
        signed(TxEip1559 {
            to,
            chain_id: 1,
            ..TxEip1559::default()
        }),
        signed(TxEip4844 {
            to: WATCHED.inbox,
            blob_versioned_hashes: vec![B256::repeat_byte(1); 2],
            ..TxEip4844::default()
        }),
    ];
    let mut unknown = block(&transactions);
    unknown["transactions"][1]["type"] = json!("0x6");
    unknown["newField"] = json!("0x1");
    [block(&[]), block(&transactions), unknown]
}

/// Receipts of a block, and the proof of an account with a storage slot.
fn receipt_and_proof_seeds() -> [Value; 2] {
    let log = json!({ "address": WATCHED.portal, "topics": [B256::ZERO], "data": "0x00" });
    let receipt = json!({
        "type": "0x2", "status": "0x1", "cumulativeGasUsed": "0x5208", "logs": [log],
    });
    let proof = json!({
        "address": WATCHED.system_config, "balance": "0x0", "nonce": "0x1",
        "codeHash": B256::repeat_byte(2), "storageHash": B256::repeat_byte(3),
        "accountProof": ["0xf8518080"],
        "storageProof": [{ "key": "0x0", "value": "0x1", "proof": ["0xe2a0"] }],
    });
    [json!([receipt, receipt]), proof]
}

/// Receipts in EIP-2718 form, of type 2 and legacy: status, gas, an empty bloom and no logs.
fn raw_receipt_seeds() -> [Vec<u8>; 2] {
    let bloom = [0; 256];
    let body = [
        &[0xf9, 1, 6, 1, 0x82, 0x52, 8, 0xb9, 1, 0][..],
        &bloom,
        &[0xc0],
    ]
    .concat();
    [[&[2][..], &body].concat(), body]
}

pub fn seeds() -> Vec<Vec<u8>> {
    let objects = block_seeds().into_iter().chain(receipt_and_proof_seeds());
    let files = [
        "l1-source/headers/post-shanghai-success_data.json",
        "l1-source/headers/pre-shanghai-success_data.json",
    ];
    let files = files.iter().filter_map(|name| fixtures::file(name));
    objects
        .map(|object| object.to_string().into_bytes())
        .chain(files.map(String::into_bytes))
        .chain(raw_receipt_seeds())
        .collect()
}
