//! Parses and checks the responses of an L1 endpoint: headers against their hash, receipts against
//! the header's root. Pure.

use super::{L1Block, RpcCause, Watched, read};
use crate::rollup::l2_response::hash_mismatch;
use alloy_consensus::{
    EMPTY_OMMER_ROOT_HASH, Eip658Value, Header, ReceiptWithBloom, TxEnvelope, TxReceipt,
    proofs::calculate_withdrawals_root,
};
use alloy_eips::{eip2718::Encodable2718, eip4895::Withdrawal};
use alloy_primitives::{Address, B256, Bytes, Log, U64};
use alloy_rlp::{Decodable, Encodable};
use alloy_trie::root::ordered_trie_root_with_encoder;
use op_alloy_consensus::OpTxEnvelope;
use serde::Deserialize;
use serde_json::value::RawValue;
use starling_proto::{attributes::ReceiptLogs, deposit::DEPOSIT_TX_TYPE, derive::InboxTransaction};
use std::collections::{BTreeMap, HashMap};

/// Highest transaction type that this build can encode (EIP-7702).
const LAST_KNOWN_TYPE: u64 = 4;
/// Transaction type of blob transactions (EIP-4844).
const BLOB_TYPE: u64 = 3;
/// Transaction type of a deposit, for an L1 that is itself an OP chain.
const DEPOSIT: u64 = DEPOSIT_TX_TYPE as u64;

/// Members of a block object that this build knows. A header with a wrong hash and unknown members
/// is reported as one of a fork newer than this build.
const KNOWN_MEMBERS: [&str; 29] = [
    "baseFeePerGas",
    "blobGasUsed",
    "blockAccessListHash",
    "difficulty",
    "excessBlobGas",
    "extraData",
    "gasLimit",
    "gasUsed",
    "hash",
    "logsBloom",
    "miner",
    "mixHash",
    "nonce",
    "number",
    "parentBeaconBlockRoot",
    "parentHash",
    "receiptsRoot",
    "requestsHash",
    "sha3Uncles",
    "size",
    "slotNumber",
    "stateRoot",
    "timestamp",
    "totalDifficulty",
    "transactions",
    "transactionsRoot",
    "uncles",
    "withdrawals",
    "withdrawalsRoot",
];
/// Largest number of unknown members that an error names, and of characters of each name.
const NAMED_MEMBERS: usize = 3;
const MEMBER_CHARACTERS: usize = 40;

/// The transaction hashes in a response to `eth_getBlockByHash(_, false)`.
#[derive(Debug, Deserialize)]
pub(super) struct TransactionHashes {
    pub transactions: Vec<B256>,
}

/// The consensus fields of a receipt of any transaction type. All types have had the same fields
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

/// A block with transactions and withdrawals that match its header, unless the endpoint is trusted.
#[derive(Clone, Debug)]
pub(super) struct CheckedL1Block {
    pub block: L1Block,
    /// Whether a watched contract may have emitted relevant logs in this block.
    pub may_have_logs: bool,
    /// The transactions to the batch inbox, in order.
    pub inbox: Vec<InboxTransaction>,
    /// Hashes of all transactions as the endpoint reports them, used to fetch receipts one by one.
    pub hashes: Vec<B256>,
}

/// The fields of a transaction that are common to all types.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct AnyTransaction {
    #[serde(default, rename = "type")]
    ty: U64,
    hash: B256,
    #[serde(default)]
    to: Option<Address>,
    #[serde(default)]
    blob_versioned_hashes: Option<Vec<B256>>,
}

/// Parses a block object from `eth_getBlockBy…(_, false)` or a subscription. Only the header is
/// parsed and checked (specs: L1 header verification as in op-node's `sources/types.go`).
pub(super) fn block(value: serde_json::Value, trust: bool) -> Result<L1Block, RpcCause> {
    header(value, trust).and_then(|(hash, header)| l1_block(hash, &header))
}

/// Parses a block object with whole transactions. Unless the endpoint is trusted, transactions and
/// withdrawals are checked against the header. `raw` maps hashes to the encodings of transactions
/// with types that this build does not know. Derivation does not read these transactions, so they
/// are not decoded. If an encoding is missing, the error is [`RpcCause::UnknownTransaction`].
pub(super) fn full_block(
    response: &RawValue,
    watched: &Watched,
    trust: bool,
    raw: &HashMap<B256, Bytes>,
) -> Result<CheckedL1Block, RpcCause> {
    let mut members: BTreeMap<&str, &RawValue> = read(response)?;
    let transactions: Vec<&RawValue> = match members.remove("transactions") {
        Some(list) => read(list)?,
        None => return Err(RpcCause::Malformed("a block without transactions".into())),
    };
    let withdrawals: Option<Vec<Withdrawal>> = match members.remove("withdrawals") {
        Some(list) if !trust => read(list)?,
        _ => None,
    };
    let rest = members
        .into_iter()
        .map(|(name, value)| Ok((name.to_owned(), read(value)?)))
        .collect::<Result<serde_json::Map<_, _>, RpcCause>>()?;
    let (hash, header) = header(rest.into(), trust)?;
    let block = l1_block(hash, &header)?;
    if !trust {
        check_withdrawals(&header, hash, withdrawals.as_deref())?;
    }
    let mut found = CheckedL1Block {
        block,
        may_have_logs: trust || watched.may_have_logs(&header),
        inbox: Vec::new(),
        hashes: Vec::with_capacity(transactions.len()),
    };
    let encoded = read_transactions(&transactions, &mut found, watched, trust, raw)?;
    if !trust {
        check_transactions(&header, hash, &encoded)?;
    }
    Ok(found)
}

/// Adds the transactions to `found`: the hashes of all transactions, and the transactions to the
/// batch inbox. Returns the encodings of all transactions in order, or none if the endpoint is
/// trusted.
fn read_transactions(
    transactions: &[&RawValue],
    found: &mut CheckedL1Block,
    watched: &Watched,
    trust: bool,
    raw: &HashMap<B256, Bytes>,
) -> Result<Vec<Bytes>, RpcCause> {
    let block = found.block.hash;
    let mut encoded = Vec::new();
    let mut blobs = 0;
    for transaction in transactions {
        let any: AnyTransaction = read(transaction)?;
        found.hashes.push(any.hash);
        let first_blob = blobs;
        let has_blobs = any.ty == U64::from(BLOB_TYPE) || !is_known_type(any.ty.to());
        let hashes = any.blob_versioned_hashes.as_ref();
        blobs += hashes
            .filter(|_| has_blobs)
            .map_or(0, |hashes| hashes.len() as u64);
        if trust && any.to != Some(watched.inbox) {
            continue;
        }
        let (posted, encoding) = match any.ty.to::<u64>() {
            0..=LAST_KNOWN_TYPE => {
                let known: TxEnvelope = read(transaction)?;
                let posted = InboxTransaction::of(&known, watched.inbox, first_blob);
                (posted, known.encoded_2718().into())
            }
            DEPOSIT => {
                let known: OpTxEnvelope = read(transaction)?;
                let posted = InboxTransaction::of_deposit(&known, watched.inbox);
                (posted, known.encoded_2718().into())
            }
            // Derivation does not read transactions of unknown types; their encodings are only
            // needed for the root.
            ty => match raw.get(&any.hash) {
                Some(raw) => (None, raw.clone()),
                None if trust => continue,
                None => return Err(RpcCause::UnknownTransaction { ty, block }),
            },
        };
        if !trust {
            encoded.push(encoding);
        }
        found.inbox.extend(posted);
    }
    Ok(encoded)
}

/// Hashes of the transactions in a block object with types that this build does not know.
pub(super) fn unknown_transactions(response: &RawValue) -> Result<Vec<B256>, RpcCause> {
    #[derive(Deserialize)]
    struct Transactions {
        transactions: Vec<AnyTransaction>,
    }
    let block: Transactions = read(response)?;
    let unknown = block.transactions.into_iter();
    Ok(unknown
        .filter(|transaction| !is_known_type(transaction.ty.to()))
        .map(|transaction| transaction.hash)
        .collect())
}

fn is_known_type(ty: u64) -> bool {
    ty <= LAST_KNOWN_TYPE || ty == DEPOSIT
}

fn check_withdrawals(
    header: &Header,
    hash: B256,
    withdrawals: Option<&[Withdrawal]>,
) -> Result<(), RpcCause> {
    let root = withdrawals.map(calculate_withdrawals_root);
    if root == header.withdrawals_root {
        return Ok(());
    }
    let text = |root: Option<B256>| root.map_or("none".into(), |root| root.to_string());
    Err(RpcCause::Untrue(format!(
        "the withdrawals of block {hash} have the root {}, its header says {}",
        text(root),
        text(header.withdrawals_root)
    )))
}

fn check_transactions(header: &Header, hash: B256, encoded: &[Bytes]) -> Result<(), RpcCause> {
    let root = ordered_trie_root_with_encoder(encoded, |bytes, out| out.extend_from_slice(bytes));
    if root == header.transactions_root {
        return Ok(());
    }
    Err(RpcCause::Untrue(format!(
        "the transactions of block {hash} have the root {root}, its header says {}",
        header.transactions_root
    )))
}

/// The hash and header of a block object. The hash is recomputed unless the endpoint is trusted.
fn header(value: serde_json::Value, trust: bool) -> Result<(B256, Header), RpcCause> {
    let unknown = unknown_members(&value);
    let header: alloy_rpc_types_eth::Header =
        serde_json::from_value(value).map_err(RpcCause::malformed)?;
    let (hash, header) = (header.hash, header.inner);
    if !trust {
        check(&header)?;
        match hash_mismatch(hash, &header) {
            Some(_) if !unknown.is_empty() => {
                return Err(RpcCause::UnknownField {
                    number: header.number,
                    fields: unknown,
                });
            }
            Some(mismatch) => return Err(RpcCause::Untrue(mismatch)),
            None => {}
        }
    }
    Ok((hash, header))
}

/// Names of a block object's unknown members, for an error; empty if there are none.
fn unknown_members(value: &serde_json::Value) -> String {
    let members = value.as_object().into_iter().flatten();
    let unknown =
        members.filter(|(name, value)| !KNOWN_MEMBERS.contains(&name.as_str()) && !value.is_null());
    let names: Vec<String> = unknown
        .take(NAMED_MEMBERS)
        .map(|(name, _)| name.chars().take(MEMBER_CHARACTERS).collect())
        .collect();
    names.join(", ")
}

fn l1_block(hash: B256, header: &Header) -> Result<L1Block, RpcCause> {
    Ok(L1Block {
        number: header.number,
        hash,
        parent_hash: header.parent_hash,
        time: header.timestamp,
        base_fee: header
            .base_fee_per_gas
            .ok_or_else(|| RpcCause::Untrue("a block without base fee".into()))?,
        mix_hash: header.mix_hash,
        excess_blob_gas: header.excess_blob_gas,
        parent_beacon_root: header.parent_beacon_block_root,
        receipts_root: header.receipts_root,
        state_root: header.state_root,
    })
}

/// Checks the fields with fixed values since the merge.
fn check(header: &Header) -> Result<(), RpcCause> {
    let wrong = |what| Err(RpcCause::Untrue(format!("block {}: {what}", header.number)));
    match header {
        h if h.number > 0 && !h.difficulty.is_zero() => wrong("a difficulty after the merge"),
        h if h.number > 0 && !h.nonce.is_zero() => wrong("a nonce after the merge"),
        h if h.ommers_hash != EMPTY_OMMER_ROOT_HASH => wrong("uncles after the merge"),
        h if h.number > 0 && h.extra_data.len() > 32 => wrong("more than 32 bytes of extra data"),
        _ => Ok(()),
    }
}

/// Success and logs of each receipt, after the whole list has been checked against the header's
/// root.
pub(super) fn receipts(
    receipts: Vec<L1Receipt>,
    block: &L1Block,
) -> Result<Vec<ReceiptLogs>, RpcCause> {
    let receipts = receipts
        .into_iter()
        .map(convert)
        .collect::<Result<Vec<_>, _>>()?;
    let root = ordered_trie_root_with_encoder(&receipts, |(ty, receipt), out| {
        // EIP-2718: legacy receipts have no type byte.
        if *ty != 0 {
            out.push(*ty);
        }
        receipt.encode(out);
    });
    check_receipts_root(root, block)?;
    Ok(receipts
        .into_iter()
        .map(|(_, r)| (r.status(), r.receipt.logs))
        .collect())
}

/// Success and logs of receipts in EIP-2718 form, checked like [`receipts`]. A receipt of an
/// unknown type that cannot be decoded counts as one without logs (specs: derivation, receipts of
/// unknown types).
pub(super) fn raw_receipts(
    receipts: &[Bytes],
    block: &L1Block,
) -> Result<Vec<ReceiptLogs>, RpcCause> {
    let root = ordered_trie_root_with_encoder(receipts, |bytes, out| out.extend_from_slice(bytes));
    check_receipts_root(root, block)?;
    let decode = |receipt: &Bytes| {
        let mut body: &[u8] = receipt;
        // The first byte of a legacy receipt, an RLP list, is at least 0xc0; a type is at most
        // 0x7f.
        let ty = body.first().copied().filter(|first| *first < 0x80);
        if ty.is_some() {
            body = &body[1..];
        }
        match Encodes::decode(&mut body) {
            Ok(receipt) => Ok((receipt.status(), receipt.receipt.logs)),
            Err(_) if ty.is_some_and(|ty| u64::from(ty) > LAST_KNOWN_TYPE) => Ok((false, vec![])),
            Err(error) => Err(RpcCause::Malformed(format!("a receipt: {error}"))),
        }
    };
    receipts.iter().map(decode).collect()
}

fn check_receipts_root(root: B256, block: &L1Block) -> Result<(), RpcCause> {
    if root == block.receipts_root {
        return Ok(());
    }
    Err(RpcCause::Untrue(format!(
        "the receipts of block {} have the root {root}, its header says {}",
        block.hash, block.receipts_root
    )))
}

type Encodes = ReceiptWithBloom<alloy_consensus::Receipt>;

fn convert(receipt: L1Receipt) -> Result<(u8, Encodes), RpcCause> {
    let ty = u8::try_from(receipt.ty.to::<u64>())
        .map_err(|_| RpcCause::Malformed(format!("transaction type {}", receipt.ty)))?;
    let log = |log: ReceiptLog| {
        let topics = log.topics.len();
        Log::new(log.address, log.topics, log.data)
            .ok_or_else(|| RpcCause::Malformed(format!("a log with {topics} topics")))
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

#[cfg(test)]
mod tests;
