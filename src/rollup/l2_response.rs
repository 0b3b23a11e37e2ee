//! Parses and checks L2 blocks in responses of an execution client (`eth_getBlockByNumber`,
//! `eth_getBlockByHash`). A header must have the claimed hash, and the transactions must match its
//! root. Pure.

use super::http::excerpt;
use alloy_consensus::Header;
use alloy_eips::eip2718::Encodable2718;
use alloy_primitives::{B256, Bytes};
use alloy_trie::root::ordered_trie_root_encoded;
use op_alloy_consensus::OpTxEnvelope;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, value::RawValue};
use starling_proto::payload::Payload;
use std::collections::BTreeMap;

type ResponseMembers<'a> = BTreeMap<&'a str, &'a RawValue>;

/// The reason why a response is not accepted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum L2ResponseError {
    /// The response does not have the form of a block object.
    #[error("malformed response: {0}")]
    Malformed(String),
    /// The response contradicts itself.
    #[error("untrue response: {0}")]
    Untrue(String),
}

/// The error for a response that does not parse, from the decoder's error.
fn malformed(error: serde_json::Error) -> L2ResponseError {
    L2ResponseError::Malformed(excerpt(error))
}

/// A header with its hash.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HashedHeader {
    pub hash: B256,
    pub header: Header,
}

/// Parses a block with whole transactions; `None` if the response is null.
pub fn block(response: &RawValue) -> Result<Option<Payload>, L2ResponseError> {
    let Some(mut members) = members(response)? else {
        return Ok(None);
    };
    let transactions = members.remove("transactions");
    let transactions = transactions
        .ok_or_else(|| L2ResponseError::Malformed("a block without transactions".into()))?;
    let transactions: Vec<OpTxEnvelope> = read(transactions)?;
    let transactions: Vec<Bytes> = transactions
        .iter()
        .map(|transaction| transaction.encoded_2718().into())
        .collect();
    let header = checked_header(members)?.header;
    let root = ordered_trie_root_encoded(&transactions);
    if root != header.transactions_root {
        return Err(L2ResponseError::Untrue(format!(
            "the transactions of block {} have the root {root}, its header says {}",
            header.number, header.transactions_root
        )));
    }
    Ok(Some(Payload::sealed(header, transactions)))
}

/// Parses a header; `None` if the response is null.
pub fn header(response: &RawValue) -> Result<Option<HashedHeader>, L2ResponseError> {
    members(response)?.map(checked_header).transpose()
}

fn members(response: &RawValue) -> Result<Option<ResponseMembers<'_>>, L2ResponseError> {
    serde_json::from_str(response.get()).map_err(malformed)
}

fn read<T: DeserializeOwned>(json: &RawValue) -> Result<T, L2ResponseError> {
    serde_json::from_str(json.get()).map_err(malformed)
}

/// Describes the difference between a header's computed hash and the claimed one; `None` if they
/// are equal.
pub fn hash_mismatch(claimed: B256, header: &Header) -> Option<String> {
    let (number, computed) = (header.number, header.hash_slow());
    (computed != claimed)
        .then(|| format!("block {number} claims the hash {claimed}, its fields hash to {computed}"))
}

/// The header of a block object. Its hash is recomputed and checked.
fn checked_header(mut members: ResponseMembers) -> Result<HashedHeader, L2ResponseError> {
    members.remove("transactions");
    let members = members
        .into_iter()
        .map(|(name, value)| Ok((name.to_owned(), read(value)?)))
        .collect::<Result<Map<String, Value>, L2ResponseError>>()?;
    let header: alloy_rpc_types_eth::Header =
        serde_json::from_value(members.into()).map_err(malformed)?;
    let (claimed, header) = (header.hash, header.inner);
    if let Some(mismatch) = hash_mismatch(claimed, &header) {
        return Err(L2ResponseError::Untrue(mismatch));
    }
    Ok(HashedHeader {
        hash: claimed,
        header,
    })
}
