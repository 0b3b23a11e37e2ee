//! A block in RLP, in the encoding of geth's `export` and `debug_getRawBlock`.
//!
//! A block is a list of header, transactions, uncles and, from Shanghai on, withdrawals. In the
//! list of transactions, a typed transaction is a string and a legacy one is a list. Blocks come
//! from files and users, so all bytes are untrusted. Execution checks whether a block of this chain
//! may have uncles or withdrawals.

use alloy_consensus::Header;
use alloy_primitives::{Bytes, bytes::Buf};
use alloy_rlp::{Decodable, Encodable};
use starling_proto::payload::{EthereumBody, Payload};

/// The reason why bytes do not decode to a block.
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
    #[error("the {what} of block {number} cannot be decoded: {error}")]
    Ethereum {
        number: u64,
        what: &'static str,
        error: alloy_rlp::Error,
    },
    #[error(
        "block {number} has a list of withdrawals without its root, or a root without its list"
    )]
    Withdrawals { number: u64 },
    #[error("block {number} has a part after its withdrawals")]
    Trailing { number: u64 },
}

/// Decodes a block. Its hash is computed from its header. Whether transactions, uncles and
/// withdrawals match the header is not checked.
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
    let ethereum = |what| {
        move |error| BlockRlpError::Ethereum {
            number,
            what,
            error,
        }
    };
    let uncles = Vec::decode(&mut items).map_err(ethereum("uncles"))?;
    // The list of withdrawals and its root in the header were introduced by the same fork.
    if header.withdrawals_root.is_none() != items.is_empty() {
        return Err(BlockRlpError::Withdrawals { number });
    }
    let withdrawals = if items.is_empty() {
        Vec::new()
    } else {
        Vec::decode(&mut items).map_err(ethereum("withdrawals"))?
    };
    if !items.is_empty() {
        return Err(BlockRlpError::Trailing { number });
    }
    Ok(
        Payload::sealed(header, transactions).with_ethereum(EthereumBody {
            uncles,
            withdrawals,
        }),
    )
}

/// The EIP-2718 bytes of the next transaction. A legacy transaction is encoded as a list, any other
/// as a string that contains its bytes.
fn raw_transaction<'a>(list: &mut &'a [u8]) -> Result<&'a [u8], alloy_rlp::Error> {
    let start = *list;
    let header = alloy_rlp::Header::decode(list)?;
    let (body, rest) = list
        .split_at_checked(header.payload_length)
        .ok_or(alloy_rlp::Error::InputTooShort)?;
    *list = rest;
    // A type is below 0x80 (EIP-2718). A string that contains a list is refused, since [`encode`]
    // would write the list without the string around it.
    if !header.list && body.first().is_none_or(|kind| *kind >= 0x80) {
        return Err(alloy_rlp::Error::Custom("a transaction without a type"));
    }
    Ok(if header.list {
        &start[..start.len() - rest.remaining()]
    } else {
        body
    })
}

/// Encodes a block in the format that [`decode`] reads.
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
    alloy_rlp::encode_list(payload.uncles(), &mut items);
    if payload.header.withdrawals_root.is_some() {
        alloy_rlp::encode_list(payload.withdrawals(), &mut items);
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
