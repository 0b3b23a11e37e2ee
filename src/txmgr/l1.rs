//! Calls of the transaction manager to L1, and the parsing of their results.

use super::{
    fees::{BlobTips, FeeCaps, INTRINSIC_GAS, L1Fees, TxClass},
    machine::{AccountReading, MinedTx},
    publish_result::PublishResult,
};
use crate::rollup::l1::{L1Client, L1Error, L1Response, RpcCall, RpcCause};
use alloy_primitives::{Address, B256, Bytes, U64, U256};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Value, json};
use std::time::Duration;

/// Maximum number of calls in one batch request: providers refuse more than a hundred.
const MAX_BATCH: usize = 90;
/// Maximum gas limit of a transaction (EIP-7825).
const MAX_TX_GAS: u64 = 1 << 24;

/// A transaction for `eth_call` or `eth_estimateGas`.
#[derive(Clone, Debug)]
pub struct CallTx {
    pub from: Address,
    /// `None` for a transaction that creates a contract.
    pub to: Option<Address>,
    pub data: Bytes,
    pub value: U256,
    pub caps: FeeCaps,
    /// Versioned hashes of the transaction's blobs.
    pub blobs: Vec<B256>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct HeadJson {
    number: U64,
    base_fee_per_gas: Option<U256>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct TxReceiptJson {
    block_number: U64,
    block_hash: B256,
    status: Option<U64>,
    gas_used: U64,
    effective_gas_price: Option<U256>,
    blob_gas_used: Option<U64>,
    blob_gas_price: Option<U256>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct BlockTipsJson {
    base_fee_per_gas: Option<U256>,
    transactions: Vec<TxTipsJson>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct TxTipsJson {
    #[serde(rename = "type")]
    ty: Option<U64>,
    max_fee_per_gas: Option<U256>,
    max_priority_fee_per_gas: Option<U256>,
}

/// Converts an amount in wei to 128 bits, which suffice for every amount on L1.
fn wei(value: U256) -> u128 {
    value.saturating_to()
}

/// Parses the result of a call. Error messages name the call.
fn read<T: DeserializeOwned>(response: Option<&L1Response>, call: &str) -> Result<T, String> {
    let json = match response {
        Some(Ok(json)) => json,
        Some(Err(cause)) => return Err(format!("{call} failed: {cause}")),
        None => return Err(format!("{call} has no response")),
    };
    let failed = |error| format!("{call} failed: {}", RpcCause::malformed(error));
    serde_json::from_str(json.get()).map_err(failed)
}

/// Reads the current fees of L1. With `tips`, also updates them and computes the tip of blob
/// transactions.
pub async fn fees(
    l1: &L1Client,
    tips: Option<&mut BlobTips>,
    min_tip: u128,
) -> Result<L1Fees, String> {
    let calls = [
        RpcCall::new("eth_getBlockByNumber", json!(["latest", false])),
        RpcCall::new("eth_maxPriorityFeePerGas", json!([])),
        RpcCall::new("eth_blobBaseFee", json!([])),
    ];
    let responses = l1
        .plain_batch(&calls)
        .await
        .map_err(|error| error.to_string())?;
    let head: Option<HeadJson> = read(responses.first(), "eth_getBlockByNumber at latest")?;
    let head = head.ok_or("L1 has no latest block")?;
    let base_fee = head
        .base_fee_per_gas
        .ok_or("L1 has no base fee: blocks before London are not supported")?;
    let tip: U256 = read(responses.get(1), "eth_maxPriorityFeePerGas")?;
    let blob_tip = match tips {
        Some(tips) => {
            read_blob_tips(l1, tips, head.number.to()).await?;
            Some(tips.suggest().unwrap_or(min_tip))
        }
        None => None,
    };
    Ok(L1Fees {
        tip: wei(tip),
        base_fee: wei(base_fee),
        blob_base_fee: read::<U256>(responses.get(2), "eth_blobBaseFee")
            .ok()
            .map(wei),
        blob_tip,
    })
}

/// Reads the newest blocks that are missing in `tips`, and records their blob transactions.
async fn read_blob_tips(l1: &L1Client, tips: &mut BlobTips, head: u64) -> Result<(), String> {
    for number in tips.missing(head) {
        let params = json!([U64::from(number), true]);
        let block: Option<BlockTipsJson> = l1
            .plain_call("eth_getBlockByNumber", params)
            .await
            .map_err(|error| format!("failed to get blob tip cap from oracle: {error}"))?;
        // The block does not exist any more: a reorg may have made the chain shorter.
        let Some(block) = block else {
            continue;
        };
        let blob = |tx: &&TxTipsJson| tx.ty == Some(U64::from(3));
        let caps = block.transactions.iter().filter(blob).map(|tx| FeeCaps {
            tip: tx.max_priority_fee_per_gas.map_or(0, wei),
            fee: tx.max_fee_per_gas.map_or(0, wei),
            blob_fee: None,
        });
        tips.add(number, block.base_fee_per_gas.map_or(0, wei), caps);
    }
    Ok(())
}

/// Reads the account's nonces and the receipts of the transactions with these hashes.
pub async fn reading(
    l1: &L1Client,
    account: Address,
    deep_block: Option<u64>,
    hashes: &[B256],
) -> Result<AccountReading, String> {
    const HEADS: usize = 4;
    let nonce_at = |block: Value| RpcCall::new("eth_getTransactionCount", json!([account, block]));
    let mut calls = vec![
        RpcCall::new("eth_blockNumber", json!([])),
        nonce_at(json!("latest")),
        nonce_at(json!("pending")),
        nonce_at(json!(U64::from(deep_block.unwrap_or(0)))),
    ];
    let receipt = |hash: &B256| RpcCall::new("eth_getTransactionReceipt", json!([hash]));
    calls.extend(hashes.iter().map(receipt));
    let mut responses = Vec::with_capacity(calls.len());
    for chunk in calls.chunks(MAX_BATCH) {
        let sent = l1.plain_batch(chunk).await;
        responses.extend(sent.map_err(|error| error.to_string())?);
    }
    let number =
        |at: usize, call| read::<U64>(responses.get(at), call).map(|number| number.to::<u64>());
    let latest = number(1, "eth_getTransactionCount at latest")?;
    let receipts = hashes.iter().zip(responses.iter().skip(HEADS));
    Ok(AccountReading {
        head: number(0, "eth_blockNumber")?,
        latest,
        // A node without a transaction pool reports no pending nonce.
        pending: number(2, "eth_getTransactionCount at pending").unwrap_or(latest),
        deep_nonce: number(3, "eth_getTransactionCount at a block")
            .ok()
            .filter(|_| deep_block.is_some()),
        head_age: None,
        // Leave out receipts that could not be read: they must not count as absent.
        receipts: receipts
            .filter_map(|(hash, response)| Some((*hash, mined(*hash, response)?)))
            .collect(),
    })
}

/// Age of L1's newest block at `now` (Unix seconds); `None` if the block could not be read.
pub async fn head_age(l1: &L1Client, now: u64) -> Option<Duration> {
    #[derive(Deserialize)]
    struct HeadTimeJson {
        timestamp: U64,
    }
    let params = json!(["latest", false]);
    let head: HeadTimeJson = l1.plain_call("eth_getBlockByNumber", params).await.ok()?;
    Some(Duration::from_secs(now.saturating_sub(head.timestamp.to())))
}

/// Parses a receipt. `None` if it could not be read, `Some(None)` if there is no receipt.
fn mined(hash: B256, response: &L1Response) -> Option<Option<MinedTx>> {
    let receipt: Option<TxReceiptJson> = read(Some(response), "eth_getTransactionReceipt").ok()?;
    Some(receipt.map(|receipt| MinedTx {
        hash,
        block: receipt.block_number.to(),
        block_hash: receipt.block_hash,
        success: receipt.status != Some(U64::ZERO),
        gas_used: receipt.gas_used.to(),
        gas_price: receipt.effective_gas_price.map_or(0, wei),
        blob_gas_used: receipt.blob_gas_used.map_or(0, |gas| gas.to()),
        blob_gas_price: receipt.blob_gas_price.map_or(0, wei),
        delay: Duration::ZERO,
    }))
}

/// Publishes a transaction. Errors that contain one of the `custom` texts count as published.
pub async fn publish(l1: &L1Client, raw: &Bytes, custom: &[String]) -> PublishResult {
    let is_final = |message: &str| PublishResult::of_error(message, custom).is_final();
    match l1.publish(raw, is_final).await {
        Ok(Ok(())) => PublishResult::Accepted,
        Ok(Err(RpcCause::Refused { message, .. })) => PublishResult::of_error(&message, custom),
        Ok(Err(cause)) => PublishResult::Unreachable(cause.to_string()),
        Err(error) => PublishResult::Unreachable(error.to_string()),
    }
}

/// Returns the gas limit of a transaction. Checks `given` with `eth_call`, and fails if the call
/// fails. If `given` is `None`, estimates the gas limit.
pub async fn gas(l1: &L1Client, tx: &CallTx, given: Option<u64>) -> Result<u64, String> {
    match given {
        Some(gas) => {
            let params = json!([call_object(tx, gas), "latest"]);
            let called: Result<Value, L1Error> = l1.plain_call("eth_call", params).await;
            called.map_err(|error| format!("failed to call: {error}"))?;
            Ok(gas)
        }
        None => {
            let params = json!([call_object(tx, MAX_TX_GAS)]);
            let estimated: Result<U64, L1Error> = l1.plain_call("eth_estimateGas", params).await;
            let gas = estimated.map_err(|error| format!("failed to estimate gas: {error}"))?;
            Ok(gas.to())
        }
    }
}

fn call_object(tx: &CallTx, gas: u64) -> Value {
    let mut object = json!({
        "from": tx.from,
        "gas": U64::from(gas),
        "maxFeePerGas": U256::from(tx.caps.fee),
        "maxPriorityFeePerGas": U256::from(tx.caps.tip),
        "value": tx.value,
        "input": tx.data,
    });
    if let Some(to) = tx.to {
        object["to"] = json!(to);
    }
    if let Some(fee) = tx.caps.blob_fee {
        object["maxFeePerBlobGas"] = json!(U256::from(fee));
        object["blobVersionedHashes"] = json!(tx.blobs);
    }
    object
}

/// Minimum gas limit of a transaction for its calldata: the floor of EIP-7623, which is 40 gas per
/// nonzero byte and 10 gas per zero byte, plus the intrinsic gas.
pub fn floor_gas(class: TxClass, data: &[u8]) -> u64 {
    if class == TxClass::Blob {
        return INTRINSIC_GAS;
    }
    let zeros = data.iter().filter(|byte| **byte == 0).count() as u64;
    INTRINSIC_GAS + 10 * zeros + 40 * (data.len() as u64 - zeros)
}
