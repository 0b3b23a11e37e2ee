//! The calls of the transaction manager to L1, and how their answers are read.

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

/// Calls in one request: providers refuse more than a hundred.
const MAX_BATCH: usize = 90;
/// Most gas that a transaction may have (EIP-7825).
const MAX_TX_GAS: u64 = 1 << 24;

/// A transaction to estimate or to try.
#[derive(Clone, Debug)]
pub struct CallTx {
    pub from: Address,
    /// `None` creates a contract.
    pub to: Option<Address>,
    pub data: Bytes,
    pub value: U256,
    pub caps: FeeCaps,
    /// Versioned hashes of the blobs.
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

/// Wei; nothing on L1 costs more than 128 bits of it.
fn wei(value: U256) -> u128 {
    value.saturating_to()
}

/// The result of a call, which errors name.
fn read<T: DeserializeOwned>(response: Option<&L1Response>, call: &str) -> Result<T, String> {
    let json = match response {
        Some(Ok(json)) => json,
        Some(Err(cause)) => return Err(format!("{call} failed: {cause}")),
        None => return Err(format!("{call} has no response")),
    };
    let failed = |error| format!("{call} failed: {}", RpcCause::malformed(error));
    serde_json::from_str(json.get()).map_err(failed)
}

/// Fees of L1 now. Blob transactions get their tip from `tips` if they are given.
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

/// Reads the blob transactions of the newest blocks that are not known yet.
async fn read_blob_tips(l1: &L1Client, tips: &mut BlobTips, head: u64) -> Result<(), String> {
    for number in tips.missing(head) {
        let params = json!([U64::from(number), true]);
        let block: Option<BlockTipsJson> = l1
            .plain_call("eth_getBlockByNumber", params)
            .await
            .map_err(|error| format!("failed to get blob tip cap from oracle: {error}"))?;
        // A reorg may have made the chain shorter.
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

/// The account's nonces, and the receipts of these transactions.
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
        // A node without a pool has nothing pending.
        pending: number(2, "eth_getTransactionCount at pending").unwrap_or(latest),
        deep_nonce: number(3, "eth_getTransactionCount at a block")
            .ok()
            .filter(|_| deep_block.is_some()),
        head_age: None,
        // An unreadable receipt is unknown, which is not the same as absent.
        receipts: receipts
            .filter_map(|(hash, response)| Some((*hash, mined(*hash, response)?)))
            .collect(),
    })
}

/// The age of L1's newest block at `now` (unix seconds); `None` if L1 does not say it.
pub async fn head_age(l1: &L1Client, now: u64) -> Option<Duration> {
    #[derive(Deserialize)]
    struct HeadTimeJson {
        timestamp: U64,
    }
    let params = json!(["latest", false]);
    let head: HeadTimeJson = l1.plain_call("eth_getBlockByNumber", params).await.ok()?;
    Some(Duration::from_secs(now.saturating_sub(head.timestamp.to())))
}

/// A receipt, `Some(None)` if there is none.
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

/// Sends a transaction. `custom` are texts that mean that it is published already.
pub async fn publish(l1: &L1Client, raw: &Bytes, custom: &[String]) -> PublishResult {
    let is_final = |message: &str| PublishResult::of_error(message, custom).is_final();
    match l1.publish(raw, is_final).await {
        Ok(Ok(())) => PublishResult::Accepted,
        Ok(Err(RpcCause::Refused { message, .. })) => PublishResult::of_error(&message, custom),
        Ok(Err(cause)) => PublishResult::Unreachable(cause.to_string()),
        Err(error) => PublishResult::Unreachable(error.to_string()),
    }
}

/// The gas limit of a transaction: `given` if L1 executes it with that much, otherwise an estimate.
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

/// Gas that a transaction needs at least for its calldata: the floor of EIP-7623, 40 for each byte
/// that is not zero and 10 for the others.
pub fn floor_gas(class: TxClass, data: &[u8]) -> u64 {
    if class == TxClass::Blob {
        return INTRINSIC_GAS;
    }
    let zeros = data.iter().filter(|byte| **byte == 0).count() as u64;
    INTRINSIC_GAS + 10 * zeros + 40 * (data.len() as u64 - zeros)
}
