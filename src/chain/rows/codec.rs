//! Encodings of rows that no other type defines, such as bodies, receipts, senders and block ids.
//!
//! Rows are read back from disk and may be damaged. The decoders therefore check every part that
//! they decode, and return `None` if it is damaged.

use crate::chain::receipt::{MAX_TOPICS, MinedLog, MinedReceipt, Receipt};
use alloy_primitives::{Address, B256, Bytes, Log, LogData};
use alloy_rlp::{Decodable, Header, RlpDecodable, RlpEncodable};
use starling_proto::payload::{BlockId, EthereumBody, Payload};
use std::sync::Arc;

/// A receipt as encoded in a row. `flags` marks success and the fields that are present, since
/// absent differs from 0.
#[derive(RlpEncodable, RlpDecodable)]
#[rlp(trailing)]
struct StoredReceipt {
    tx_type: u8,
    flags: u8,
    cumulative_gas_used: u64,
    logs: Vec<Log>,
    deposit_nonce: u64,
    deposit_version: u64,
    /// State root after the transaction; only in receipts of Ethereum before Byzantium.
    post_state: Option<B256>,
}

const SUCCESS: u8 = 1;
const HAS_NONCE: u8 = 2;
const HAS_VERSION: u8 = 4;

/// Everything of a block except its header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BlockBody {
    /// Raw transactions.
    pub transactions: Vec<Bytes>,
    /// Uncles and withdrawals, if there are any.
    pub ethereum: Option<Arc<EthereumBody>>,
}

/// The row of a body: the RLP list of transactions, followed by the RLP of uncles and withdrawals
/// if there are any.
pub(crate) fn encode_body(payload: &Payload) -> Vec<u8> {
    let mut row = alloy_rlp::encode(&payload.transactions);
    if let Some(body) = &payload.ethereum {
        row.extend(alloy_rlp::encode(body.as_ref()));
    }
    row
}

pub(crate) fn decode_body(mut row: &[u8]) -> Option<BlockBody> {
    let transactions = Decodable::decode(&mut row).ok()?;
    let ethereum: Option<EthereumBody> = if row.is_empty() {
        None
    } else {
        Some(decode_whole(row)?)
    };
    Some(BlockBody {
        transactions,
        ethereum: ethereum.map(Arc::new),
    })
}

/// The row of receipts: an RLP list of [`StoredReceipt`]s, in block order.
pub(crate) fn encode_receipts(receipts: &[Receipt]) -> Vec<u8> {
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
            post_state: r.post_state.as_deref().copied(),
        })
        .collect();
    alloy_rlp::encode(stored)
}

pub(crate) fn decode_receipts(row: &[u8]) -> Option<Vec<Receipt>> {
    let stored: Vec<StoredReceipt> = decode_whole(row)?;
    stored.into_iter().map(StoredReceipt::read).collect()
}

impl StoredReceipt {
    /// The decoded receipt; `None` for unknown flags, or if a field marked absent is not zero.
    fn read(self) -> Option<Receipt> {
        let optional = |flag: u8, value: u64| {
            if self.flags & flag != 0 {
                Some(Some(value))
            } else {
                (value == 0).then_some(None)
            }
        };
        (self.flags & !(SUCCESS | HAS_NONCE | HAS_VERSION) == 0).then_some(())?;
        Some(Receipt {
            tx_type: self.tx_type,
            success: self.flags & SUCCESS != 0,
            cumulative_gas_used: self.cumulative_gas_used,
            deposit_nonce: optional(HAS_NONCE, self.deposit_nonce)?,
            deposit_version: optional(HAS_VERSION, self.deposit_version)?,
            logs: self.logs,
            post_state: self.post_state.map(Box::new),
        })
    }
}

/// Iterator over the items of an RLP list, each with its RLP header. Items are split by length
/// without decoding. A damaged list yields `None` as its last item.
struct Items<'a>(&'a [u8]);

impl<'a> Items<'a> {
    /// The items of an RLP list that fills the whole input.
    fn of(mut list: &'a [u8]) -> Option<Self> {
        let payload = Header::decode_bytes(&mut list, true).ok()?;
        list.is_empty().then_some(Self(payload))
    }
}

impl<'a> Iterator for Items<'a> {
    type Item = Option<&'a [u8]>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let mut rest = self.0;
        let item = Header::decode(&mut rest).ok().and_then(|header| {
            // `Header::decode` does not consume a single byte below 0x80, which is its own header.
            self.0
                .split_at_checked(self.0.len() - rest.len() + header.payload_length)
        });
        self.0 = item.map_or(&[], |(_, rest)| rest);
        Some(item.map(|(item, _)| item))
    }
}

/// Cumulative gas and the undecoded logs of an encoded receipt; `None` if the receipt is damaged.
fn gas_and_logs(receipt: &[u8]) -> Option<(u64, Items<'_>)> {
    let mut fields = Items::of(receipt)?.skip(2);
    Some((decode_whole(fields.next()??)?, Items::of(fields.next()??)?))
}

/// The receipt at `index` in a row of receipts. Earlier receipts are only split, not decoded.
/// `None` if the row is damaged, `Some(None)` if it has no receipt at `index`.
pub(crate) fn decode_receipt(row: &[u8], index: usize) -> Option<Option<MinedReceipt>> {
    let (mut gas_before, mut logs_before) = (0, 0);
    for (at, item) in Items::of(row)?.enumerate() {
        let item = item?;
        if at == index {
            let receipt = decode_whole::<StoredReceipt>(item)?.read()?;
            return Some(Some(MinedReceipt {
                receipt,
                gas_before,
                logs_before,
            }));
        }
        let (gas, mut logs) = gas_and_logs(item)?;
        gas_before = gas;
        logs_before = logs.try_fold(logs_before, |count, log| log.map(|_| count + 1))?;
    }
    Some(None)
}

/// The logs in a row of receipts that `wanted` accepts by address and topics. Other logs are not
/// copied. `None` if the row is damaged.
pub(crate) fn decode_logs(
    row: &[u8],
    wanted: &dyn Fn(&Address, &[B256]) -> bool,
) -> Option<Vec<MinedLog>> {
    let (mut found, mut log_index) = (Vec::new(), 0);
    for (index, receipt) in Items::of(row)?.enumerate() {
        for log in gas_and_logs(receipt?)?.1 {
            let mut fields = Items::of(log?)?;
            let address: Address = decode_whole(fields.next()??)?;
            let (mut topics, mut count) = ([B256::ZERO; MAX_TOPICS], 0);
            for topic in Items::of(fields.next()??)? {
                *topics.get_mut(count)? = decode_whole(topic?)?;
                count += 1;
            }
            if wanted(&address, &topics[..count]) {
                let data = LogData::new_unchecked(
                    topics[..count].to_vec(),
                    decode_whole(fields.next()??)?,
                );
                found.push(MinedLog {
                    index,
                    log_index,
                    log: Log { address, data },
                });
            }
            log_index += 1;
        }
    }
    Some(found)
}

/// The transaction at `index` in the row of a body. Earlier transactions are only split, not
/// decoded. `None` if the row is damaged, `Some(None)` if it has no transaction at `index`.
pub(crate) fn decode_transaction(row: &[u8], index: usize) -> Option<Option<Bytes>> {
    let mut row = row;
    let transactions = Header::decode_bytes(&mut row, true).ok()?;
    for (at, item) in Items(transactions).enumerate() {
        let item = item?;
        if at == index {
            return decode_whole(item).map(Some);
        }
    }
    Some(None)
}

/// The row of senders: their addresses one after the other, 20 bytes for each transaction.
pub(crate) fn encode_senders(senders: &[Address]) -> Vec<u8> {
    senders.iter().flat_map(|sender| sender.0.0).collect()
}

pub(crate) fn decode_senders(row: &[u8]) -> Option<Vec<Address>> {
    let (senders, rest) = row.as_chunks::<20>();
    rest.is_empty()
        .then(|| senders.iter().copied().map(Address::from).collect())
}

/// Encodes the position of a transaction: block number and index in the block.
pub(crate) fn encode_position(number: u64, index: usize) -> Vec<u8> {
    [&number.to_be_bytes()[..], &(index as u32).to_be_bytes()].concat()
}

/// Decodes RLP that must fill the whole input.
pub(crate) fn decode_whole<T: Decodable>(mut row: &[u8]) -> Option<T> {
    let value = T::decode(&mut row).ok()?;
    row.is_empty().then_some(value)
}

/// Splits off the first `len` bytes of `row`; `None` if it has fewer.
pub(in crate::chain) fn take<'a>(row: &mut &'a [u8], len: usize) -> Option<&'a [u8]> {
    let (head, rest) = row.split_at_checked(len)?;
    *row = rest;
    Some(head)
}

/// Encodes the value of a row before a block, for a history row: presence byte, then the value.
pub(crate) fn encode_before(before: Option<&Bytes>) -> Vec<u8> {
    before.map_or_else(|| vec![0], |value| [&[1], value.as_ref()].concat())
}

pub(crate) fn decode_before(row: &[u8]) -> Option<Option<Bytes>> {
    match row.split_first()? {
        (0, []) => Some(None),
        (1, value) => Some(Some(Bytes::copy_from_slice(value))),
        _ => None,
    }
}

/// Encodes a block id: hash, then number.
pub(crate) fn encode_id(id: BlockId) -> Vec<u8> {
    [id.hash.as_slice(), &id.number.to_be_bytes()].concat()
}

pub(crate) fn decode_id(row: &[u8]) -> Option<BlockId> {
    let (hash, number) = row.split_at_checked(32)?;
    Some(BlockId {
        hash: B256::from_slice(hash),
        number: decode_number(number)?,
    })
}

/// Encodes two block numbers.
pub(crate) fn encode_pair(first: u64, second: u64) -> Vec<u8> {
    [first.to_be_bytes(), second.to_be_bytes()].concat()
}

pub(crate) fn decode_pair(row: &[u8]) -> Option<(u64, u64)> {
    let (first, second) = row.split_at_checked(8)?;
    Some((decode_number(first)?, decode_number(second)?))
}

pub(crate) fn decode_number(row: &[u8]) -> Option<u64> {
    row.try_into().ok().map(u64::from_be_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn log() -> impl Strategy<Value = Log> {
        (
            any::<[u8; 20]>(),
            prop::collection::vec(any::<[u8; 32]>(), 0..=MAX_TOPICS),
            prop::collection::vec(any::<u8>(), 0..80),
        )
            .prop_map(|(address, topics, data)| Log {
                address: Address::from(address),
                data: LogData::new_unchecked(
                    topics.into_iter().map(B256::from).collect(),
                    data.into(),
                ),
            })
    }

    fn receipt() -> impl Strategy<Value = Receipt> {
        let optional = || prop::option::of(prop_oneof![Just(0), Just(u64::MAX), any::<u64>()]);
        (
            any::<u8>(),
            any::<bool>(),
            any::<u64>(),
            prop::collection::vec(log(), 0..4),
            optional(),
            optional(),
            prop::option::of(any::<[u8; 32]>()),
        )
            .prop_map(
                |(
                    tx_type,
                    success,
                    cumulative_gas_used,
                    logs,
                    deposit_nonce,
                    deposit_version,
                    post_state,
                )| {
                    Receipt {
                        tx_type,
                        success,
                        cumulative_gas_used,
                        logs,
                        deposit_nonce,
                        deposit_version,
                        post_state: post_state.map(|root| Box::new(B256::from(root))),
                    }
                },
            )
    }

    #[test]
    fn a_transaction_after_a_damaged_one_is_damaged_not_absent() {
        // A list whose first item is the header of a long string without its length.
        let row = [0xc1, 0xb8];
        assert_eq!(decode_transaction(&row, 0), None);
        assert_eq!(decode_transaction(&row, 1), None);
    }

    proptest! {
        #[test]
        fn receipts_round_trip(receipts in prop::collection::vec(receipt(), 0..6)) {
            let row = encode_receipts(&receipts);
            let (mut gas_before, mut logs) = (0, Vec::new());
            for (index, receipt) in receipts.iter().enumerate() {
                let logs_before = logs.len();
                let mined = MinedReceipt { receipt: receipt.clone(), gas_before, logs_before };
                prop_assert_eq!(decode_receipt(&row, index), Some(Some(mined)));
                gas_before = receipt.cumulative_gas_used;
                let mined = receipt.logs.iter().enumerate();
                logs.extend(mined.map(|(n, log)| MinedLog { index, log_index: logs_before + n, log: log.clone() }));
            }
            prop_assert_eq!(decode_receipt(&row, receipts.len()), Some(None));
            prop_assert_eq!(decode_logs(&row, &|_, _| true), Some(logs.clone()));
            logs.retain(|log| log.log.topics().len() == 2);
            prop_assert_eq!(decode_logs(&row, &|_, topics| topics.len() == 2), Some(logs));
            prop_assert_eq!(decode_receipts(&row), Some(receipts));
        }

        #[test]
        fn one_transaction_is_read_from_a_body(body in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..80), 0..6)) {
            let body: Vec<Bytes> = body.into_iter().map(Bytes::from).collect();
            let row = alloy_rlp::encode(&body);
            for (index, transaction) in body.iter().enumerate() {
                prop_assert_eq!(decode_transaction(&row, index), Some(Some(transaction.clone())));
            }
            prop_assert_eq!(decode_transaction(&row, body.len()), Some(None));
        }

        #[test]
        fn senders_round_trip(senders in prop::collection::vec(any::<[u8; 20]>().prop_map(Address::from), 0..6)) {
            let row = encode_senders(&senders);
            prop_assert!(row.is_empty() || decode_senders(&row[1..]).is_none());
            prop_assert_eq!(decode_senders(&row), Some(senders));
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
                let _ = (decode_receipt(&row, 1), decode_logs(&row, &|_, _| true));
                if let Some(read) = decode_receipts(&row) {
                    prop_assert_eq!(encode_receipts(&read), row);
                }
            }
        }

        #[test]
        fn hostile_rows_never_panic(row in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = decode_receipts(&row);
            let _ = decode_receipt(&row, 1);
            let _ = decode_logs(&row, &|_, _| true);
            let _ = decode_transaction(&row, 1);
            let _ = decode_before(&row);
            let _ = decode_id(&row);
        }
    }
}
