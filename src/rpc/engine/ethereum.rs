//! Payloads of Ethereum chains. Unlike payloads of OP chains, they have withdrawals, blobs and
//! requests.

use super::types::PayloadJson;
use crate::chain::transaction::ChainTx;
use alloy_consensus::{Header, Transaction, proofs::calculate_withdrawals_root};
use alloy_eips::eip7685::Requests;
use alloy_primitives::{B256, Bytes};
use alloy_trie::root::ordered_trie_root_encoded;
use starling_proto::payload::{EthereumBody, Payload};

/// The parameters of `engine_newPayload` besides the payload; there are none before Cancun.
#[derive(Clone, Debug, Default)]
pub struct PayloadExtras {
    pub blob_hashes: Option<Vec<B256>>,
    pub beacon_root: Option<B256>,
    /// Execution-layer requests, from Prague on.
    pub requests: Option<Vec<Bytes>>,
}

/// The block of the payload, if its contents have the payload's hash. The error is the reason why
/// the payload is invalid.
pub fn into_payload(json: PayloadJson, extras: PayloadExtras) -> Result<Payload, String> {
    if let Some(want) = extras.blob_hashes {
        let have = blob_hashes(&json.transactions)?;
        if have != want {
            return Err(format!(
                "the payload's transactions have {} blob hashes that are not the {} expected",
                have.len(),
                want.len()
            ));
        }
    }
    let requests = extras
        .requests
        .map(|all| Requests::new(all).requests_hash());
    let base_fee: Result<u64, _> = json.base_fee_per_gas.try_into();
    let header = Header {
        parent_hash: json.parent_hash,
        beneficiary: json.fee_recipient,
        state_root: json.state_root,
        transactions_root: ordered_trie_root_encoded(&json.transactions),
        receipts_root: json.receipts_root,
        logs_bloom: json.logs_bloom,
        number: json.block_number.to(),
        gas_limit: json.gas_limit.to(),
        gas_used: json.gas_used.to(),
        timestamp: json.timestamp.to(),
        extra_data: json.extra_data,
        mix_hash: json.prev_randao,
        base_fee_per_gas: Some(base_fee.map_err(|_| "the base fee does not fit 64 bits")?),
        withdrawals_root: json.withdrawals.as_deref().map(calculate_withdrawals_root),
        blob_gas_used: json.blob_gas_used.map(|gas| gas.to()),
        excess_blob_gas: json.excess_blob_gas.map(|gas| gas.to()),
        parent_beacon_block_root: extras.beacon_root,
        requests_hash: requests,
        ..Default::default()
    };
    let payload = Payload::sealed(header, json.transactions);
    if payload.hash != json.block_hash {
        return Err(format!(
            "block hash is {}, not {}",
            payload.hash, json.block_hash
        ));
    }
    Ok(payload.with_ethereum(EthereumBody {
        uncles: Vec::new(),
        withdrawals: json.withdrawals.unwrap_or_default(),
    }))
}

/// The hashes of the blobs of all transactions, in order.
fn blob_hashes(transactions: &[Bytes]) -> Result<Vec<B256>, String> {
    let mut hashes = Vec::new();
    for (index, raw) in transactions.iter().enumerate() {
        let tx = ChainTx::decode(raw)
            .map_err(|error| format!("transaction {index} cannot be decoded: {error}"))?;
        hashes.extend(tx.blob_versioned_hashes().into_iter().flatten());
    }
    Ok(hashes)
}
