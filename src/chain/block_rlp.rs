//! A block in RLP, as geth's `export` and `debug_getRawBlock` have it.
//!
//! A block is a list of header, transactions, uncles and, from Shanghai on, withdrawals. A typed
//! transaction is a string in it, a legacy one a list. Blocks come from files and from users, so
//! nothing of them is trusted.

use alloy_consensus::{EMPTY_OMMER_ROOT_HASH, Header};
use alloy_primitives::{Bytes, bytes::Buf};
use alloy_rlp::{Decodable, Encodable};
use starling_proto::payload::Payload;

/// Why bytes are no block.
#[derive(Debug, thiserror::Error)]
pub enum BlockRlpError {
    #[error("there is no block here: {0}")]
    NoBlock(&'static str),
    #[error("the header cannot be decoded: {0}")]
    Header(alloy_rlp::Error),
    #[error("the transactions of block {number} cannot be decoded: {error}")]
    Transactions {
        number: u64,
        error: alloy_rlp::Error,
    },
    #[error("block {number} has {what}, which no block of this chain has")]
    Foreign { number: u64, what: &'static str },
}

/// Decodes a block. Its hash is that of its header; whether its transactions are those of the
/// header is not checked.
pub fn decode(rlp: Bytes) -> Result<Payload, BlockRlpError> {
    let mut whole = rlp.as_ref();
    let mut items = alloy_rlp::Header::decode_bytes(&mut whole, true)
        .map_err(|_| BlockRlpError::NoBlock("its length is not canonical"))?;
    let header = Header::decode(&mut items).map_err(BlockRlpError::Header)?;
    let number = header.number;
    let failed = |error| BlockRlpError::Transactions { number, error };
    let mut list = alloy_rlp::Header::decode_bytes(&mut items, true).map_err(failed)?;
    let mut transactions = Vec::new();
    while !list.is_empty() {
        transactions.push(Bytes(
            rlp.0.slice_ref(raw_transaction(&mut list).map_err(failed)?),
        ));
    }
    let foreign = |what| BlockRlpError::Foreign { number, what };
    let uncles = alloy_rlp::Header::decode_bytes(&mut items, true).map_err(failed)?;
    if !uncles.is_empty() || header.ommers_hash != EMPTY_OMMER_ROOT_HASH {
        return Err(foreign("uncles"));
    }
    if !items.is_empty()
        && !alloy_rlp::Header::decode_bytes(&mut items, true)
            .map_err(failed)?
            .is_empty()
    {
        return Err(foreign("withdrawals"));
    }
    if !items.is_empty() {
        return Err(foreign("a part after its withdrawals"));
    }
    Ok(Payload::sealed(header, transactions))
}

/// The EIP-2718 bytes of the next transaction: a legacy one is a list, any other a string that
/// holds them.
fn raw_transaction<'a>(list: &mut &'a [u8]) -> Result<&'a [u8], alloy_rlp::Error> {
    let start = *list;
    let header = alloy_rlp::Header::decode(list)?;
    let (body, rest) = list
        .split_at_checked(header.payload_length)
        .ok_or(alloy_rlp::Error::InputTooShort)?;
    *list = rest;
    // EIP-2718: a type is below 0x80. A string that holds a list is refused, since [`encode`] would
    // write it as the list itself.
    if !header.list && body.first().is_none_or(|kind| *kind >= 0x80) {
        return Err(alloy_rlp::Error::Custom("a transaction without a type"));
    }
    Ok(if header.list {
        &start[..start.len() - rest.remaining()]
    } else {
        body
    })
}

/// Encodes a block as [`decode`] reads it.
pub fn encode(payload: &Payload) -> Vec<u8> {
    let mut items = Vec::with_capacity(1024 + payload.weight());
    payload.header.encode(&mut items);
    let is_list = |raw: &Bytes| raw.first().is_some_and(|byte| *byte >= 0xc0);
    let length = |raw: &Bytes| {
        if is_list(raw) {
            raw.len()
        } else {
            raw.as_ref().length()
        }
    };
    alloy_rlp::Header {
        list: true,
        payload_length: payload.transactions.iter().map(length).sum(),
    }
    .encode(&mut items);
    for raw in &payload.transactions {
        if is_list(raw) {
            items.extend_from_slice(raw);
        } else {
            raw.as_ref().encode(&mut items);
        }
    }
    items.push(alloy_rlp::EMPTY_LIST_CODE);
    if payload.header.withdrawals_root.is_some() {
        items.push(alloy_rlp::EMPTY_LIST_CODE);
    }
    let mut block = Vec::with_capacity(items.len() + 9);
    alloy_rlp::Header {
        list: true,
        payload_length: items.len(),
    }
    .encode(&mut block);
    block.extend_from_slice(&items);
    block
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_string_that_holds_a_list_is_no_transaction() {
        assert_eq!(
            raw_transaction(&mut &[0x82, 0x02, 0xc0][..]).unwrap(),
            [0x02, 0xc0]
        );
        assert_eq!(
            raw_transaction(&mut &[0xc1, 0x05][..]).unwrap(),
            [0xc1, 0x05]
        );
        for string in [&[0x82, 0xc1, 0x05][..], &[0x81, 0x80], &[0x80]] {
            assert!(raw_transaction(&mut &string[..]).is_err(), "{string:?}");
        }
    }
}
