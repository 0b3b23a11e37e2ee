//! Transactions from blocks and from wallets, and receipts.

use crate::{InputKind, fixtures};
use alloy_consensus::{
    SignableTransaction, TxEip1559, TxEip2930, TxEip4844, TxEip4844WithSidecar, TxEip7702, TxLegacy,
};
use alloy_eips::{
    eip2718::Encodable2718,
    eip4844::BlobTransactionSidecar,
    eip7594::{BlobTransactionSidecarEip7594, BlobTransactionSidecarVariant},
};
use alloy_primitives::{Address, B256, Signature, TxKind, U256};
use starling::chain::{
    pool::{admit, blobs},
    receipt::Receipt,
    transaction::ChainTx,
};
use starling_proto::{deposit::deposit_to_log, payload::decode_transaction};

/// Largest number of blobs in a transaction (EIP-7594).
const MAX_BLOBS: u64 = 6;

pub fn target(data: &[u8]) -> InputKind {
    let mut outcome = InputKind::default();
    let decoded = decode_transaction(data);
    match &decoded {
        Ok(tx) => {
            // A block's root commits to the bytes, but execution uses the decoded transaction.
            assert_eq!(
                hex::encode(tx.encoded_2718()),
                hex::encode(data),
                "a transaction has one encoding"
            );
            outcome.add(&tx.tx_type());
        }
        Err(error) => outcome.add(error),
    }
    match admit::decode(data.to_vec().into()) {
        Ok(tx) => {
            assert_eq!(
                decoded.as_ref().ok(),
                tx.tx.as_op(),
                "the pool takes what blocks take"
            );
            outcome.add(&"admitted");
        }
        Err(error) => outcome.add(&error),
    }
    match blobs::decode(&data.to_vec().into(), MAX_BLOBS) {
        Ok(tx) => {
            assert_eq!(
                ChainTx::decode(&tx.raw).ok().as_ref(),
                Some(tx.tx.inner()),
                "a block takes the transaction without its blobs"
            );
            outcome.add(&"with blobs");
        }
        Err(error) => outcome.add(&error),
    }
    match Receipt::decode_2718(data) {
        Ok(receipt) => {
            assert_eq!(
                hex::encode(receipt.to_bytes()),
                hex::encode(data),
                "a receipt has one encoding"
            );
            outcome.scale(receipt.logs.len());
        }
        Err(error) => outcome.add(&error),
    }
    outcome
}

pub fn seeds() -> Vec<Vec<u8>> {
    let files = [
        "deposits-fees/deposit-tx-rlp.json",
        "deposits-fees/receipt-rlp.json",
        "deposits-fees/receipt-deposit-rlp.json",
        "deposits-fees/op-geth-receipt-test.json",
        "deposits-fees/base-mainnet-txs-fastlz-seeds.json",
    ];
    let mut seeds = fixtures::bytes(&files, 30);
    seeds.extend(signed_transactions());
    seeds.extend(blob_transactions());
    let deposit = super::l1::deposit();
    let raw = deposit.encoded_2718();
    seeds.push(raw[1..].to_vec());
    seeds.push(raw);
    for tx_type in [0, 2, 0x7e] {
        let logs = vec![deposit_to_log(Address::repeat_byte(6), &deposit)];
        let nonce = (tx_type == 0x7e).then_some(7);
        let version = nonce.map(|_| 1);
        let receipt = Receipt {
            tx_type,
            success: true,
            cumulative_gas_used: 21_000,
            logs,
            deposit_nonce: nonce,
            deposit_version: version,
            post_state: None,
        };
        seeds.push(receipt.to_bytes().to_vec());
    }
    seeds
}

/// One transaction of each signed type, and a legacy one without chain id.
fn signed_transactions() -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    let to = TxKind::Call(Address::repeat_byte(1));
    let access_list: alloy_eips::eip2930::AccessList = vec![alloy_eips::eip2930::AccessListItem {
        address: Address::repeat_byte(2),
        storage_keys: vec![B256::repeat_byte(3)],
    }]
    .into();
    let (value, input) = (
        U256::from(1_000),
        alloy_primitives::Bytes::from(vec![1; 70]),
    );
    let legacy = TxLegacy {
        chain_id: Some(10),
        gas_limit: 21_000,
        to,
        value,
        input: input.clone(),
        ..Default::default()
    };
    seeds.push(legacy.clone().into_signed(signature()).encoded_2718());
    seeds.push(
        TxLegacy {
            chain_id: None,
            to: TxKind::Create,
            ..legacy
        }
        .into_signed(signature())
        .encoded_2718(),
    );
    let eip2930 = TxEip2930 {
        chain_id: 10,
        to,
        value,
        access_list: access_list.clone(),
        ..Default::default()
    };
    seeds.push(eip2930.into_signed(signature()).encoded_2718());
    let eip1559 = TxEip1559 {
        chain_id: 10,
        to,
        value,
        input,
        access_list,
        ..Default::default()
    };
    seeds.push(eip1559.into_signed(signature()).encoded_2718());
    seeds.push(delegating_transaction());
    seeds
}

/// Blob transactions without blobs, in the form of blocks and in both network forms.
fn blob_transactions() -> [Vec<u8>; 3] {
    let tx = TxEip4844 {
        chain_id: 1,
        blob_versioned_hashes: vec![B256::repeat_byte(1)],
        ..Default::default()
    };
    let with = |sidecar: BlobTransactionSidecarVariant| {
        let whole = TxEip4844WithSidecar {
            tx: tx.clone(),
            sidecar,
        };
        whole.into_signed(signature()).encoded_2718()
    };
    [
        tx.clone().into_signed(signature()).encoded_2718(),
        with(BlobTransactionSidecar::default().into()),
        with(BlobTransactionSidecarEip7594::default().into()),
    ]
}

/// A set-code transaction (EIP-7702).
fn delegating_transaction() -> Vec<u8> {
    let authorization = alloy_eips::eip7702::Authorization {
        chain_id: U256::from(10),
        address: Address::repeat_byte(4),
        nonce: 1,
    };
    let authorization_list = vec![authorization.into_signed(signature())];
    let eip7702 = TxEip7702 {
        chain_id: 10,
        to: Address::repeat_byte(5),
        authorization_list,
        ..Default::default()
    };
    eip7702.into_signed(signature()).encoded_2718()
}

fn signature() -> Signature {
    Signature::new(U256::from(5), U256::from(6), true)
}
