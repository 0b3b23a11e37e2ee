//! Parsers and checks of L1 responses without an endpoint, for fuzz targets and unit tests.

use super::{L1Block, RpcCause, Watched, proof, response};
use alloy_primitives::{Address, B256, Bytes};
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use starling_proto::{attributes::ReceiptLogs, derive::InboxTransaction};
use std::collections::HashMap;

fn parse<T: DeserializeOwned>(text: &str) -> Result<T, RpcCause> {
    serde_json::from_str(text).map_err(RpcCause::malformed)
}

/// Parses the header in a block object.
pub fn header(text: &str, trust: bool) -> Result<L1Block, RpcCause> {
    response::block(parse(text)?, trust)
}

/// Parses a block object with whole transactions: the block, and its transactions to the batch
/// inbox.
pub fn block(
    text: &str,
    watched: &Watched,
    trust: bool,
) -> Result<(L1Block, Vec<InboxTransaction>), RpcCause> {
    let raw: Box<RawValue> = parse(text)?;
    let found = response::full_block(&raw, watched, trust, &HashMap::new())?;
    Ok((found.block, found.inbox))
}

/// Hashes of a block's transactions of unknown types, whose encodings the client would request.
pub fn unknown_transactions(text: &str) -> Result<Vec<B256>, RpcCause> {
    let raw: Box<RawValue> = parse(text)?;
    response::unknown_transactions(&raw)
}

/// Parses a list of receipts and checks it against `block`.
pub fn receipts(text: &str, block: &L1Block) -> Result<Vec<ReceiptLogs>, RpcCause> {
    response::receipts(parse(text)?, block)
}

/// Parses receipts of `block` in EIP-2718 form and checks them.
pub fn raw_receipts(receipts: &[Bytes], block: &L1Block) -> Result<Vec<ReceiptLogs>, RpcCause> {
    response::raw_receipts(receipts, block)
}

/// Parses and checks the proof of a contract's slot after `block`.
pub fn storage(
    text: &str,
    contract: Address,
    slot: B256,
    block: &L1Block,
) -> Result<B256, RpcCause> {
    proof::storage(&parse(text)?, contract, slot, block)
}
