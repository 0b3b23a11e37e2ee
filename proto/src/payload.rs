//! A payload: one L2 block as sent on the wire, and its four encodings.
//!
//! Bytes from outside become a [`WirePayload`], whose hash is only a claim.
//! [`WirePayload::into_payload`] recomputes the hash; no other function turns a [`WirePayload`]
//! into a [`Payload`]. Decoding costs memory in proportion to its input, which the transports cap
//! at 10 MiB.

use alloy_consensus::{Header, proofs::calculate_withdrawals_root};
use alloy_eips::{
    eip2718::{Decodable2718, Eip2718Error, Typed2718},
    eip4895::Withdrawal,
    eip7685::EMPTY_REQUESTS_HASH,
};
use alloy_primitives::{B256, Bytes};
use alloy_rlp::{RlpDecodable, RlpEncodable};
use alloy_rpc_types_engine::{ExecutionPayloadV1, ExecutionPayloadV2, ExecutionPayloadV3};
use alloy_trie::root::ordered_trie_root_encoded;
use op_alloy_consensus::{OpTxEnvelope, POST_EXEC_TX_TYPE_ID};
use op_alloy_rpc_types_engine::{OpExecutionPayload, OpExecutionPayloadV4};
use ssz::{Decode, Encode};
use std::sync::Arc;
use thiserror::Error;

/// Largest number of transactions that the SSZ type of a payload allows.
pub const MAX_TRANSACTIONS: usize = 1 << 20;
/// Largest number of withdrawals that the SSZ type of a payload allows.
pub const MAX_WITHDRAWALS: usize = 16;
/// Longest extra data of a header, in bytes.
pub const MAX_EXTRA_DATA: usize = 32;

/// The four gossip encodings of a block. The discriminant is the number in the topic's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum PayloadVersion {
    /// Before Canyon.
    V1 = 0,
    /// Canyon and Delta: adds the (empty) list of withdrawals.
    V2 = 1,
    /// Ecotone to Holocene: adds the blob fields and the parent beacon block root.
    V3 = 2,
    /// Isthmus and later: adds the withdrawals root.
    V4 = 3,
}

impl PayloadVersion {
    /// Every version, oldest first.
    pub const ALL: [PayloadVersion; 4] = [Self::V1, Self::V2, Self::V3, Self::V4];

    /// Length of the fixed part of the SSZ payload, which is also the offset of the extra data.
    pub const fn ssz_fixed_len(self) -> usize {
        match self {
            Self::V1 => 508,
            Self::V2 => 512,
            Self::V3 => 528,
            Self::V4 => 560,
        }
    }

    /// Whether the parent beacon block root precedes the SSZ payload on the wire.
    pub const fn has_beacon_root(self) -> bool {
        matches!(self, Self::V3 | Self::V4)
    }
}

/// One block. Its `hash` has been recomputed from `header`, and `header.transactions_root` from
/// `transactions`.
///
/// On L2 the list of withdrawals is absent (before Canyon) or empty. The header shows which of
/// these applies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Payload {
    /// Block hash: the hash of `header`.
    pub hash: B256,
    /// Complete header.
    pub header: Header,
    /// Transactions as raw EIP-2718 bytes, in block order.
    pub transactions: Vec<Bytes>,
    /// Uncles and withdrawals, for blocks of an Ethereum chain that have any. Always `None` for
    /// blocks of an OP chain.
    pub ethereum: Option<Arc<EthereumBody>>,
}

/// The parts of a block of an Ethereum chain that no block of an OP chain has.
#[derive(Clone, Debug, Default, PartialEq, Eq, RlpEncodable, RlpDecodable)]
pub struct EthereumBody {
    /// Headers of the uncles: blocks off the chain that this block rewards (before the merge).
    pub uncles: Vec<Header>,
    /// Withdrawals from the beacon chain, from Shanghai on.
    pub withdrawals: Vec<Withdrawal>,
}

impl EthereumBody {
    /// Whether the body has neither uncles nor withdrawals.
    pub fn is_empty(&self) -> bool {
        self.uncles.is_empty() && self.withdrawals.is_empty()
    }
}

/// Number and hash of a block.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    serde::Serialize,
    serde::Deserialize,
)]
pub struct BlockId {
    /// Block hash.
    pub hash: B256,
    /// Block number.
    pub number: u64,
}

impl std::fmt::Display for BlockId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({})", self.number, self.hash)
    }
}

impl Payload {
    /// Computes the header's hash: the constructor for blocks that our node has built or stored.
    /// The caller guarantees that `header.transactions_root` is the root of `transactions`.
    pub fn sealed(header: Header, transactions: Vec<Bytes>) -> Self {
        Self {
            hash: header.hash_slow(),
            header,
            transactions,
            ethereum: None,
        }
    }

    /// The same block with uncles and withdrawals. The caller guarantees that the header commits to
    /// them.
    pub fn with_ethereum(self, body: EthereumBody) -> Self {
        Self {
            ethereum: (!body.is_empty()).then(|| Arc::new(body)),
            ..self
        }
    }

    /// Headers of the uncles; none on OP chains.
    pub fn uncles(&self) -> &[Header] {
        self.ethereum.as_ref().map_or(&[], |body| &body.uncles)
    }

    /// Withdrawals; none on OP chains.
    pub fn withdrawals(&self) -> &[Withdrawal] {
        self.ethereum.as_ref().map_or(&[], |body| &body.withdrawals)
    }

    /// The oldest encoding that has every field of this header. This is also the encoding of the
    /// block's fork. To decide by timestamp, use
    /// [`ForkSchedule::payload_version`](crate::fork::ForkSchedule::payload_version).
    pub fn version(&self) -> PayloadVersion {
        if self.header.requests_hash.is_some() {
            PayloadVersion::V4
        } else if self.header.parent_beacon_block_root.is_some() {
            PayloadVersion::V3
        } else if self.header.withdrawals_root.is_some() {
            PayloadVersion::V2
        } else {
            PayloadVersion::V1
        }
    }

    /// `[parent beacon block root ‖] SSZ payload`: the bytes that are signed, gossiped and served.
    /// A field that `version` has and the header lacks is written as zero. The hash of such bytes
    /// is not the block's, so every receiver refuses them.
    pub fn to_wire(&self, version: PayloadVersion) -> Vec<u8> {
        let mut out = Vec::with_capacity(version.ssz_fixed_len() + 64 + self.weight());
        if version.has_beacon_root() {
            out.extend_from_slice(
                self.header
                    .parent_beacon_block_root
                    .unwrap_or_default()
                    .as_slice(),
            );
        }
        match self.to_execution_payload(version) {
            OpExecutionPayload::V1(payload) => payload.ssz_append(&mut out),
            OpExecutionPayload::V2(payload) => payload.ssz_append(&mut out),
            OpExecutionPayload::V3(payload) => payload.ssz_append(&mut out),
            OpExecutionPayload::V4(payload) => payload.ssz_append(&mut out),
        }
        out
    }

    /// The block in the Engine API's form, which is also the structure that its SSZ encodes.
    /// Transactions are shared, not copied.
    pub fn to_execution_payload(&self, version: PayloadVersion) -> OpExecutionPayload {
        let header = &self.header;
        let v1 = ExecutionPayloadV1 {
            parent_hash: header.parent_hash,
            fee_recipient: header.beneficiary,
            state_root: header.state_root,
            receipts_root: header.receipts_root,
            logs_bloom: header.logs_bloom,
            prev_randao: header.mix_hash,
            block_number: header.number,
            gas_limit: header.gas_limit,
            gas_used: header.gas_used,
            timestamp: header.timestamp,
            extra_data: header.extra_data.clone(),
            base_fee_per_gas: header
                .base_fee_per_gas
                .map(alloy_primitives::U256::from)
                .unwrap_or_default(),
            block_hash: self.hash,
            transactions: self.transactions.clone(),
        };
        let v2 = |v1| ExecutionPayloadV2 {
            payload_inner: v1,
            withdrawals: self.withdrawals().to_vec(),
        };
        let v3 = |v1| ExecutionPayloadV3 {
            payload_inner: v2(v1),
            blob_gas_used: header.blob_gas_used.unwrap_or_default(),
            excess_blob_gas: header.excess_blob_gas.unwrap_or_default(),
        };
        match version {
            PayloadVersion::V1 => OpExecutionPayload::V1(v1),
            PayloadVersion::V2 => OpExecutionPayload::V2(v2(v1)),
            PayloadVersion::V3 => OpExecutionPayload::V3(v3(v1)),
            PayloadVersion::V4 => OpExecutionPayload::V4(OpExecutionPayloadV4 {
                payload_inner: v3(v1),
                withdrawals_root: header.withdrawals_root.unwrap_or_default(),
            }),
        }
    }

    /// Decodes every transaction. Deposits are transactions of type 0x7E.
    pub fn decode_transactions(&self) -> Result<Vec<OpTxEnvelope>, TransactionError> {
        self.transactions
            .iter()
            .enumerate()
            .map(|(index, raw)| {
                decode_transaction(raw).map_err(|cause| TransactionError { index, cause })
            })
            .collect()
    }

    /// Number and hash of this block.
    pub fn id(&self) -> BlockId {
        BlockId {
            hash: self.hash,
            number: self.header.number,
        }
    }

    /// Block number.
    pub fn number(&self) -> u64 {
        self.header.number
    }

    /// Hash of the parent block.
    pub fn parent_hash(&self) -> B256 {
        self.header.parent_hash
    }

    /// Timestamp of the block, in Unix seconds.
    pub fn timestamp(&self) -> u64 {
        self.header.timestamp
    }

    /// Approximate memory of the block in bytes, as counted against credits and budgets.
    pub fn weight(&self) -> usize {
        let transactions: usize = self.transactions.iter().map(|tx| tx.len() + 24).sum();
        1000 * (1 + self.uncles().len()) + 64 * self.withdrawals().len() + transactions
    }
}

/// The error for a transaction of a block that cannot be decoded.
#[derive(Debug, Error)]
#[error("transaction {index}: {cause}")]
pub struct TransactionError {
    /// Position of the transaction in the block.
    pub index: usize,
    /// The decoding error.
    pub cause: Eip2718Error,
}

/// Decodes exactly one raw EIP-2718 transaction. Refuses the types that no OP chain has at any
/// fork: blob transactions (3), and the synthetic post-execution type (0x7D), which the library's
/// envelope knows but no fork allows. A list without a type byte can only be a legacy transaction
/// (EIP-2718), although the library would also accept a deposit in this form.
pub fn decode_transaction(raw: &[u8]) -> Result<OpTxEnvelope, Eip2718Error> {
    if raw.first() == Some(&POST_EXEC_TX_TYPE_ID) {
        return Err(Eip2718Error::UnexpectedType(POST_EXEC_TX_TYPE_ID));
    }
    let transaction = OpTxEnvelope::decode_2718_exact(raw)?;
    let named = raw
        .first()
        .copied()
        .filter(|first| *first < 0x80)
        .unwrap_or_default();
    if transaction.ty() != named {
        Err(Eip2718Error::UnexpectedType(named))
    } else {
        Ok(transaction)
    }
}

/// The reason why bytes are not a payload of the expected version.
#[derive(Clone, Debug, PartialEq, Error)]
#[allow(missing_docs, reason = "the messages document the variants")]
pub enum WireError {
    #[error("{0} bytes are too few for a parent beacon block root")]
    NoBeaconRoot(usize),
    #[error("malformed SSZ: {0:?}")]
    Ssz(ssz::DecodeError),
    #[error("extra data of {0} bytes, more than {MAX_EXTRA_DATA}")]
    ExtraData(usize),
    #[error("{0} transactions, more than {MAX_TRANSACTIONS}")]
    Transactions(usize),
    #[error("{0} withdrawals, more than {MAX_WITHDRAWALS}")]
    Withdrawals(usize),
    #[error("base fee does not fit 64 bits")]
    BaseFee,
}

/// The reason why a decoded payload does not match its claimed hash, or is no L2 block at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[allow(missing_docs, reason = "the messages document the variants")]
pub enum PayloadError {
    #[error("block hash is {computed}, not {claimed}")]
    HashMismatch { claimed: B256, computed: B256 },
    #[error("{0} withdrawals in an L2 block")]
    Withdrawals(usize),
}

/// A well-formed, decoded payload whose hash is only a claim of the sender.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WirePayload {
    claimed: B256,
    /// Complete except for the transactions root.
    header: Header,
    transactions: Vec<Bytes>,
    withdrawals: usize,
}

impl WirePayload {
    /// Decodes `[parent beacon block root ‖] SSZ payload`, as strictly as op-node (its `ssz.go`):
    /// offsets in order and without gaps, extra data of at most 32 bytes, at most 2^20 transactions
    /// and 16 withdrawals.
    pub fn decode(version: PayloadVersion, bytes: &[u8]) -> Result<Self, WireError> {
        let (root, ssz) = if version.has_beacon_root() {
            let (root, ssz) = bytes
                .split_at_checked(32)
                .ok_or(WireError::NoBeaconRoot(bytes.len()))?;
            (Some(B256::from_slice(root)), ssz)
        } else {
            (None, bytes)
        };
        let payload = match version {
            PayloadVersion::V1 => OpExecutionPayload::V1(decode_ssz(version, ssz)?),
            PayloadVersion::V2 => OpExecutionPayload::V2(decode_ssz(version, ssz)?),
            PayloadVersion::V3 => OpExecutionPayload::V3(decode_ssz(version, ssz)?),
            PayloadVersion::V4 => OpExecutionPayload::V4(decode_ssz(version, ssz)?),
        };
        Self::from_execution_payload(payload, root)
    }

    /// Rebuilds the header from the Engine API's form of a block. The mix hash is `prevRandao`. In
    /// V4 the withdrawals root is the payload's, and the requests hash is that of an empty list.
    /// Difficulty, nonce and uncles are those of every block after the merge.
    pub fn from_execution_payload(
        payload: OpExecutionPayload,
        beacon_root: Option<B256>,
    ) -> Result<Self, WireError> {
        let (v1, withdrawals, blob_gas, withdrawals_root) = match payload {
            OpExecutionPayload::V1(v1) => (v1, None, None, None),
            OpExecutionPayload::V2(v2) => (v2.payload_inner, Some(v2.withdrawals), None, None),
            OpExecutionPayload::V3(v3) => split_v3(v3, None),
            OpExecutionPayload::V4(v4) => split_v3(v4.payload_inner, Some(v4.withdrawals_root)),
        };
        if v1.extra_data.len() > MAX_EXTRA_DATA {
            return Err(WireError::ExtraData(v1.extra_data.len()));
        }
        let count = withdrawals.as_ref().map_or(0, Vec::len);
        if count > MAX_WITHDRAWALS {
            return Err(WireError::Withdrawals(count));
        }
        let header = Header {
            parent_hash: v1.parent_hash,
            beneficiary: v1.fee_recipient,
            state_root: v1.state_root,
            receipts_root: v1.receipts_root,
            logs_bloom: v1.logs_bloom,
            number: v1.block_number,
            gas_limit: v1.gas_limit,
            gas_used: v1.gas_used,
            timestamp: v1.timestamp,
            extra_data: v1.extra_data,
            mix_hash: v1.prev_randao,
            base_fee_per_gas: Some(
                v1.base_fee_per_gas
                    .try_into()
                    .map_err(|_| WireError::BaseFee)?,
            ),
            withdrawals_root: withdrawals_root
                .or_else(|| withdrawals.as_deref().map(calculate_withdrawals_root)),
            blob_gas_used: blob_gas.map(|(used, _)| used),
            excess_blob_gas: blob_gas.map(|(_, excess)| excess),
            parent_beacon_block_root: blob_gas.and(beacon_root),
            requests_hash: withdrawals_root.map(|_| EMPTY_REQUESTS_HASH),
            ..Default::default()
        };
        Ok(Self {
            claimed: v1.block_hash,
            header,
            transactions: v1.transactions,
            withdrawals: count,
        })
    }

    /// The block hash that the sender claims.
    pub fn claimed_hash(&self) -> B256 {
        self.claimed
    }

    /// Timestamp that the sender claims, in Unix seconds.
    pub fn timestamp(&self) -> u64 {
        self.header.timestamp
    }

    /// Block number that the sender claims.
    pub fn number(&self) -> u64 {
        self.header.number
    }

    /// Recomputes the hash and compares it with the claim. On success the header and the
    /// transactions are those of the block with this hash.
    pub fn into_payload(self) -> Result<Payload, PayloadError> {
        let Self {
            claimed,
            mut header,
            transactions,
            withdrawals,
        } = self;
        header.transactions_root = ordered_trie_root_encoded(&transactions);
        let computed = header.hash_slow();
        if computed != claimed {
            return Err(PayloadError::HashMismatch { claimed, computed });
        }
        if withdrawals > 0 {
            return Err(PayloadError::Withdrawals(withdrawals));
        }
        Ok(Payload {
            hash: claimed,
            header,
            transactions,
            ethereum: None,
        })
    }
}

type PayloadParts = (
    ExecutionPayloadV1,
    Option<Vec<Withdrawal>>,
    Option<(u64, u64)>,
    Option<B256>,
);

fn split_v3(v3: ExecutionPayloadV3, withdrawals_root: Option<B256>) -> PayloadParts {
    let v2 = v3.payload_inner;
    (
        v2.payload_inner,
        Some(v2.withdrawals),
        Some((v3.blob_gas_used, v3.excess_blob_gas)),
        withdrawals_root,
    )
}

/// Position, in the fixed part of the SSZ payload, of the offset of the transactions.
const TRANSACTIONS_OFFSET: usize = 504;

fn decode_ssz<T: Decode>(version: PayloadVersion, ssz: &[u8]) -> Result<T, WireError> {
    // The codec allocates one entry per transaction before it reads any of them, so check the count
    // first. If an offset is wrong, continue: the codec reports the error.
    if let Some(start) =
        read_offset(ssz, TRANSACTIONS_OFFSET).filter(|start| *start >= version.ssz_fixed_len())
        && let Some(count) = read_offset(ssz, start).map(|first| first / 4)
        && start < list_end(version, ssz)
        && count > MAX_TRANSACTIONS
    {
        return Err(WireError::Transactions(count));
    }
    T::from_ssz_bytes(ssz).map_err(WireError::Ssz)
}

/// End of the list of transactions: the beginning of the withdrawals, or the end of `ssz` in a V1
/// payload.
fn list_end(version: PayloadVersion, ssz: &[u8]) -> usize {
    let withdrawals = (version != PayloadVersion::V1)
        .then(|| read_offset(ssz, TRANSACTIONS_OFFSET + 4))
        .flatten();
    withdrawals.unwrap_or(ssz.len())
}

fn read_offset(ssz: &[u8], at: usize) -> Option<usize> {
    let bytes = ssz.get(at..at.checked_add(4)?)?;
    Some(u32::from_le_bytes(bytes.try_into().ok()?) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;
    use op_alloy_consensus::TxDeposit;

    fn v1() -> ExecutionPayloadV1 {
        let payload = Payload::sealed(
            Header {
                base_fee_per_gas: Some(1),
                ..Default::default()
            },
            Vec::new(),
        );
        let OpExecutionPayload::V1(v1) = payload.to_execution_payload(PayloadVersion::V1) else {
            unreachable!()
        };
        v1
    }

    #[test]
    fn extra_data_longer_than_a_word_are_refused() {
        let mut payload = v1();
        payload.extra_data = vec![0; 32].into();
        assert!(WirePayload::decode(PayloadVersion::V1, &payload.as_ssz_bytes()).is_ok());
        payload.extra_data = vec![0; 33].into();
        let decoded = WirePayload::decode(PayloadVersion::V1, &payload.as_ssz_bytes());
        assert_eq!(decoded, Err(WireError::ExtraData(33)));
    }

    #[test]
    fn more_withdrawals_than_the_type_holds_are_refused() {
        let mut payload = ExecutionPayloadV2 {
            payload_inner: v1(),
            withdrawals: vec![Withdrawal::default(); 16],
        };
        assert!(WirePayload::decode(PayloadVersion::V2, &payload.as_ssz_bytes()).is_ok());
        payload.withdrawals.push(Withdrawal::default());
        let decoded = WirePayload::decode(PayloadVersion::V2, &payload.as_ssz_bytes());
        assert_eq!(decoded, Err(WireError::Withdrawals(17)));
    }

    #[test]
    fn more_transactions_than_the_type_holds_are_refused_before_they_are_allocated() {
        for (version, ssz) in [
            (PayloadVersion::V1, v1().as_ssz_bytes()),
            (
                PayloadVersion::V2,
                ExecutionPayloadV2 {
                    payload_inner: v1(),
                    withdrawals: Vec::new(),
                }
                .as_ssz_bytes(),
            ),
        ] {
            let with_transactions = |count: usize| {
                let offset = u32::try_from(count * 4).unwrap().to_le_bytes();
                let mut ssz = [ssz.as_slice(), &offset.repeat(count)].concat();
                if version == PayloadVersion::V2 {
                    let end = u32::try_from(ssz.len()).unwrap();
                    ssz[508..512].copy_from_slice(&end.to_le_bytes());
                }
                WirePayload::decode(version, &ssz)
            };
            assert!(with_transactions(MAX_TRANSACTIONS).is_ok());
            assert_eq!(
                with_transactions(MAX_TRANSACTIONS + 1),
                Err(WireError::Transactions(MAX_TRANSACTIONS + 1))
            );
        }
    }

    #[test]
    fn only_the_transaction_types_of_the_chain_are_decoded() {
        let deposit = OpTxEnvelope::from(TxDeposit::default());
        let raw = alloy_eips::eip2718::Encodable2718::encoded_2718(&deposit);
        let payload =
            |raw: Vec<u8>| Payload::sealed(Header::default(), vec![deposit_bytes(), raw.into()]);
        assert_eq!(payload(raw.clone()).decode_transactions().unwrap().len(), 2);

        let mut trailing = raw.clone();
        trailing.push(0);
        let mut post_exec = raw.clone();
        post_exec[0] = 0x7d;
        let mut blob = raw;
        blob[0] = 3;
        for bad in [
            Vec::new(),
            vec![0x7e],
            trailing,
            post_exec,
            blob,
            vec![0xff],
        ] {
            let error = payload(bad.clone()).decode_transactions().unwrap_err();
            assert_eq!(error.index, 1, "{bad:?}");
        }
        assert!(matches!(
            decode_transaction(&[0x7d, 0xc0]),
            Err(Eip2718Error::UnexpectedType(0x7d))
        ));
    }

    #[test]
    fn a_list_without_a_type_is_a_legacy_transaction_or_none() {
        let raw = deposit_bytes();
        assert!(matches!(
            decode_transaction(&raw[1..]),
            Err(Eip2718Error::UnexpectedType(0))
        ));
        let legacy = alloy_consensus::TxLegacy::default();
        let signature = alloy_primitives::Signature::test_signature();
        let legacy = OpTxEnvelope::from(alloy_consensus::SignableTransaction::into_signed(
            legacy, signature,
        ));
        let raw = alloy_eips::eip2718::Encodable2718::encoded_2718(&legacy);
        assert_eq!(decode_transaction(&raw).unwrap(), legacy);
    }

    fn deposit_bytes() -> Bytes {
        alloy_eips::eip2718::Encodable2718::encoded_2718(&OpTxEnvelope::from(TxDeposit::default()))
            .into()
    }
}
