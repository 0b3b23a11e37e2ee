//! Encodings of rows that have no encoding of their own elsewhere: receipts, bodies, block ids.
//!
//! Everything here is read back from disk, so decoding never trusts its input: `None` means the row is damaged.

use crate::chain::receipt::Receipt;
use alloy_primitives::{B256, Bytes, Log};
use alloy_rlp::{Decodable, RlpDecodable, RlpEncodable};
use starling_proto::payload::BlockId;

/// A receipt as a row holds it. Absent fields are marked in `flags`, since 0 and absent differ.
#[derive(RlpEncodable, RlpDecodable)]
struct StoredReceipt {
    tx_type: u8,
    flags: u8,
    cumulative_gas_used: u64,
    logs: Vec<Log>,
    deposit_nonce: u64,
    deposit_version: u64,
}

const SUCCESS: u8 = 1;
const HAS_NONCE: u8 = 2;
const HAS_VERSION: u8 = 4;

pub(super) fn encode_receipts(receipts: &[Receipt]) -> Vec<u8> {
    let stored: Vec<_> = receipts
        .iter()
        .map(|r| StoredReceipt {
            tx_type: r.tx_type,
            flags: if r.success { SUCCESS } else { 0 }
                | r.deposit_nonce.map_or(0, |_| HAS_NONCE)
                | r.deposit_version.map_or(0, |_| HAS_VERSION),
            cumulative_gas_used: r.cumulative_gas_used,
            logs: r.logs.clone(),
            deposit_nonce: r.deposit_nonce.unwrap_or_default(),
            deposit_version: r.deposit_version.unwrap_or_default(),
        })
        .collect();
    alloy_rlp::encode(stored)
}

pub(super) fn decode_receipts(row: &[u8]) -> Option<Vec<Receipt>> {
    let stored: Vec<StoredReceipt> = decode_whole(row)?;
    stored
        .into_iter()
        .map(|r| {
            let optional = |flag: u8, value: u64| match r.flags & flag != 0 {
                true => Some(Some(value)),
                false => (value == 0).then_some(None),
            };
            (r.flags & !(SUCCESS | HAS_NONCE | HAS_VERSION) == 0).then_some(())?;
            Some(Receipt {
                tx_type: r.tx_type,
                success: r.flags & SUCCESS != 0,
                cumulative_gas_used: r.cumulative_gas_used,
                deposit_nonce: optional(HAS_NONCE, r.deposit_nonce)?,
                deposit_version: optional(HAS_VERSION, r.deposit_version)?,
                logs: r.logs,
            })
        })
        .collect()
}

/// Where a transaction stands: block number and index in the block.
pub(super) fn encode_place(number: u64, index: usize) -> Vec<u8> {
    [&number.to_be_bytes()[..], &(index as u32).to_be_bytes()].concat()
}

/// Decodes RLP that must fill the whole input.
pub(in crate::chain) fn decode_whole<T: Decodable>(mut row: &[u8]) -> Option<T> {
    let value = T::decode(&mut row).ok()?;
    row.is_empty().then_some(value)
}

/// The first bytes of what is left; `None` if there are fewer.
pub(super) fn take<'a>(row: &mut &'a [u8], len: usize) -> Option<&'a [u8]> {
    let (head, rest) = row.split_at_checked(len)?;
    *row = rest;
    Some(head)
}

/// The value before a block, as a history row holds it: presence byte, value.
pub(super) fn encode_before(before: Option<&Bytes>) -> Vec<u8> {
    before.map_or_else(|| vec![0], |value| [&[1], value.as_ref()].concat())
}

pub(super) fn decode_before(row: &[u8]) -> Option<Option<Bytes>> {
    match row.split_first()? {
        (0, []) => Some(None),
        (1, value) => Some(Some(Bytes::copy_from_slice(value))),
        _ => None,
    }
}

/// A block id: hash, number.
pub(super) fn encode_id(id: BlockId) -> Vec<u8> {
    [id.hash.as_slice(), &id.number.to_be_bytes()].concat()
}

pub(super) fn decode_id(row: &[u8]) -> Option<BlockId> {
    let (hash, number) = row.split_at_checked(32)?;
    Some(BlockId { hash: B256::from_slice(hash), number: decode_number(number)? })
}

pub(super) fn encode_two(first: u64, second: u64) -> Vec<u8> {
    [first.to_be_bytes(), second.to_be_bytes()].concat()
}

pub(super) fn decode_two(row: &[u8]) -> Option<(u64, u64)> {
    let (first, second) = row.split_at_checked(8)?;
    Some((decode_number(first)?, decode_number(second)?))
}

pub(super) fn decode_number(row: &[u8]) -> Option<u64> {
    row.try_into().ok().map(u64::from_be_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloy_primitives::{Address, LogData};
    use proptest::prelude::*;

    fn log() -> impl Strategy<Value = Log> {
        (any::<[u8; 20]>(), prop::collection::vec(any::<[u8; 32]>(), 0..5), prop::collection::vec(any::<u8>(), 0..80)).prop_map(
            |(address, topics, data)| Log {
                address: Address::from(address),
                data: LogData::new_unchecked(topics.into_iter().map(B256::from).collect(), data.into()),
            },
        )
    }

    fn receipt() -> impl Strategy<Value = Receipt> {
        let optional = || prop::option::of(prop_oneof![Just(0), Just(u64::MAX), any::<u64>()]);
        (any::<u8>(), any::<bool>(), any::<u64>(), prop::collection::vec(log(), 0..4), optional(), optional()).prop_map(
            |(tx_type, success, cumulative_gas_used, logs, deposit_nonce, deposit_version)| Receipt {
                tx_type,
                success,
                cumulative_gas_used,
                logs,
                deposit_nonce,
                deposit_version,
            },
        )
    }

    proptest! {
        #[test]
        fn receipts_round_trip(receipts in prop::collection::vec(receipt(), 0..6)) {
            prop_assert_eq!(decode_receipts(&encode_receipts(&receipts)), Some(receipts));
        }

        #[test]
        fn damaged_receipts_never_panic(
            receipts in prop::collection::vec(receipt(), 1..4), at in any::<prop::sample::Index>(), byte in any::<u8>(), cut in any::<bool>()
        ) {
            let mut row = encode_receipts(&receipts);
            let at = at.index(row.len());
            if cut {
                row.truncate(at);
                prop_assert_eq!(decode_receipts(&row), None);
            } else {
                row[at] = byte;
                if let Some(read) = decode_receipts(&row) {
                    prop_assert_eq!(encode_receipts(&read), row);
                }
            }
        }

        #[test]
        fn hostile_rows_never_panic(row in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = decode_receipts(&row);
            let _ = decode_before(&row);
            let _ = decode_id(&row);
        }
    }
}
