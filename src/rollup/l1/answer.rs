//! Answers of an L1 endpoint, read and checked: headers against their hash, receipts against the
//! header's root. Pure.

use super::{L1Block, L1Cause};
use alloy_consensus::{EMPTY_OMMER_ROOT_HASH, Eip658Value, Header, ReceiptWithBloom, TxReceipt};
use alloy_primitives::{Address, B256, Bytes, Log, U64};
use alloy_rlp::Encodable;
use serde::Deserialize;
use starling_proto::attributes::ReceiptLogs;

/// The part of `eth_getBlockByHash(_, false)` that names the transactions.
#[derive(Debug, Deserialize)]
pub(super) struct TransactionHashes {
    pub transactions: Vec<B256>,
}

/// The consensus part of a receipt. Any transaction type: what is hashed has the same form for all
/// since Byzantium.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct L1Receipt {
    #[serde(default, rename = "type")]
    ty: U64,
    status: U64,
    cumulative_gas_used: U64,
    logs: Vec<ReceiptLog>,
}

#[derive(Clone, Debug, Deserialize)]
struct ReceiptLog {
    address: Address,
    topics: Vec<B256>,
    data: Bytes,
}

/// Reads a block object (specs: L1 header verification as in op-node's `sources/types.go`).
pub(super) fn block(value: serde_json::Value, trust: bool) -> Result<L1Block, L1Cause> {
    let header: alloy_rpc_types_eth::Header =
        serde_json::from_value(value).map_err(|e| L1Cause::Malformed(e.to_string()))?;
    let (hash, header) = (header.hash, header.inner);
    if !trust {
        check(&header)?;
        let computed = header.hash_slow();
        if computed != hash {
            return Err(L1Cause::Untrue(format!(
                "block {} claims the hash {hash}, its fields hash to {computed}",
                header.number
            )));
        }
    }
    Ok(L1Block {
        number: header.number,
        hash,
        parent_hash: header.parent_hash,
        time: header.timestamp,
        base_fee: header
            .base_fee_per_gas
            .ok_or_else(|| L1Cause::Untrue("a block without base fee".into()))?,
        mix_hash: header.mix_hash,
        excess_blob_gas: header.excess_blob_gas,
        parent_beacon_root: header.parent_beacon_block_root,
        receipts_root: header.receipts_root,
        state_root: header.state_root,
    })
}

/// Checks the fields that every header has had since the merge.
fn check(header: &Header) -> Result<(), L1Cause> {
    let wrong = |what| Err(L1Cause::Untrue(format!("block {}: {what}", header.number)));
    match header {
        h if h.number > 0 && !h.difficulty.is_zero() => wrong("a difficulty after the merge"),
        h if h.number > 0 && !h.nonce.is_zero() => wrong("a nonce after the merge"),
        h if h.ommers_hash != EMPTY_OMMER_ROOT_HASH => wrong("uncles after the merge"),
        h if h.number > 0 && h.extra_data.len() > 32 => wrong("more than 32 bytes of extra data"),
        _ => Ok(()),
    }
}

/// Success and logs of all receipts, after the whole list has been checked against the header.
pub(super) fn receipts(
    receipts: Vec<L1Receipt>,
    block: &L1Block,
) -> Result<Vec<ReceiptLogs>, L1Cause> {
    let receipts = receipts
        .into_iter()
        .map(convert)
        .collect::<Result<Vec<_>, _>>()?;
    let root = alloy_trie::root::ordered_trie_root_with_encoder(&receipts, |(ty, receipt), out| {
        // EIP-2718: legacy receipts carry no type byte.
        if *ty != 0 {
            out.push(*ty);
        }
        receipt.encode(out);
    });
    if root != block.receipts_root {
        return Err(L1Cause::Untrue(format!(
            "the receipts of block {} have the root {root}, its header says {}",
            block.hash, block.receipts_root
        )));
    }
    Ok(receipts
        .into_iter()
        .map(|(_, r)| (r.status(), r.receipt.logs))
        .collect())
}

type Encodes = ReceiptWithBloom<alloy_consensus::Receipt>;

fn convert(receipt: L1Receipt) -> Result<(u8, Encodes), L1Cause> {
    let ty = u8::try_from(receipt.ty.to::<u64>())
        .map_err(|_| L1Cause::Malformed(format!("transaction type {}", receipt.ty)))?;
    let log = |log: ReceiptLog| {
        let topics = log.topics.len();
        Log::new(log.address, log.topics, log.data)
            .ok_or_else(|| L1Cause::Malformed(format!("a log with {topics} topics")))
    };
    let logs = receipt
        .logs
        .into_iter()
        .map(log)
        .collect::<Result<_, _>>()?;
    let status = Eip658Value::Eip658(receipt.status == U64::from(1));
    let receipt = alloy_consensus::Receipt {
        status,
        cumulative_gas_used: receipt.cumulative_gas_used.to(),
        logs,
    };
    Ok((ty, receipt.with_bloom()))
}
