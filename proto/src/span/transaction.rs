//! A transaction of a span batch: conversion between the columns and the EIP-2718 encoding.
//!
//! Fields with the same encoding in both forms are copied, after their RLP has been checked as
//! strictly as geth does. The value and the fees of types 0 to 2 may have any length, as in geth.

use super::columns::ColumnRow;
use alloy_eips::eip2718::{
    EIP1559_TX_TYPE_ID as DYNAMIC_FEE, EIP2930_TX_TYPE_ID as ACCESS_LIST,
    EIP7702_TX_TYPE_ID as SET_CODE,
};
use alloy_rlp::{BufMut, Encodable, Header};

/// Type of a legacy transaction, which has no type byte.
pub(super) const LEGACY: Option<u8> = None;

/// The reason why a transaction cannot be rebuilt from its columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages document the variants")]
pub enum RebuildError {
    #[error("type {0:#04x} is not allowed in span batches")]
    Type(u8),
    #[error("malformed data")]
    Data,
    #[error("a set-code transaction creates a contract")]
    Creation,
    /// Only when a batch is built: readers use the chain id of the chain.
    #[error("a signature for another chain")]
    ChainId,
}

/// Whether op-node expects a protected bit for the transaction. op-node counts a type byte of 0 as
/// legacy when it reads the columns, although it later refuses to rebuild such a transaction.
pub(super) fn is_counted_as_legacy(kind: Option<u8>) -> bool {
    matches!(kind, None | Some(0))
}

/// A transaction in the form of the columns.
pub(super) struct SpanTransaction<'a> {
    /// The type byte; [`LEGACY`] if there is none.
    pub kind: Option<u8>,
    pub nonce: u64,
    pub gas: u64,
    /// Recipient; `None` for a contract creation.
    pub to: Option<&'a [u8; 20]>,
    /// The signature's r ‖ s.
    pub signature: [u8; 64],
    pub parity: bool,
    /// Whether the signature covers the chain id; always true for typed transactions.
    pub is_protected: bool,
    pub data: TransactionData<'a>,
}

/// The fields in the column `tx_datas`, RLP encoded as there.
pub(super) struct TransactionData<'a> {
    pub value: &'a [u8],
    /// The gas price, or the tip and the fee cap.
    pub fees: &'a [u8],
    /// The call data, with the access list and the authorizations of types that have these.
    pub tail: &'a [u8],
}

impl<'a> TransactionData<'a> {
    /// Reads the content of the list `[value, fees…, data, lists…]`.
    pub fn decode(kind: Option<u8>, payload: &'a [u8]) -> Result<Self, RebuildError> {
        let mut fields = ListReader(payload);
        let value = fields.fee(kind)?;
        let fees = fields.fees(kind)?;
        let tail = fields.0;
        fields.tail(kind)?;
        fields.end()?;
        Ok(Self { value, fees, tail })
    }

    /// Appends the type byte, if any, and the list.
    pub fn write(&self, kind: Option<u8>, out: &mut Vec<u8>) {
        out.extend(kind);
        Header {
            list: true,
            payload_length: self.value.len() + self.fees.len() + self.tail.len(),
        }
        .encode(out);
        out.extend_from_slice(self.value);
        out.extend_from_slice(self.fees);
        out.extend_from_slice(self.tail);
    }
}

impl<'a> SpanTransaction<'a> {
    /// Checks a row of the columns.
    pub fn of(row: &ColumnRow<'a>) -> Result<Self, RebuildError> {
        let data = TransactionData::decode(row.kind, row.payload)?;
        if row.kind == Some(SET_CODE) && row.to.is_none() {
            return Err(RebuildError::Creation);
        }
        Ok(Self {
            kind: row.kind,
            nonce: row.nonce,
            gas: row.gas,
            to: row.to,
            signature: *row.signature,
            parity: row.parity,
            is_protected: row.is_protected,
            data,
        })
    }

    /// Reads the EIP-2718 encoding of a transaction.
    pub fn parse(encoded: &'a [u8], chain_id: u64) -> Result<Self, RebuildError> {
        let kind = encoded.first().copied().filter(|first| *first < 0x80);
        if !matches!(kind, LEGACY | Some(ACCESS_LIST | DYNAMIC_FEE | SET_CODE)) {
            return Err(RebuildError::Type(kind.unwrap_or_default()));
        }
        let mut outer = ListReader(&encoded[usize::from(kind.is_some())..]);
        let mut fields = ListReader(outer.header(true)?);
        outer.end()?;
        if kind != LEGACY && fields.number(8)? != u128::from(chain_id) {
            return Err(RebuildError::ChainId);
        }
        let nonce = fields.number(8)? as u64;
        let fees = fields.fees(kind)?;
        let gas = fields.number(8)? as u64;
        let to = fields.header(false)?;
        let value = fields.fee(kind)?;
        let before = fields.0;
        fields.tail(kind)?;
        let tail = &before[..before.len() - fields.0.len()];
        // v is at most 35 + 2 * chain id + parity, which fits in 9 bytes.
        let (parity, is_protected) = read_v(kind, fields.number(9)?, chain_id)?;
        let mut signature = [0; 64];
        for half in signature.as_chunks_mut::<WORD>().0 {
            let bytes = fields.integer(WORD)?;
            half[WORD - bytes.len()..].copy_from_slice(bytes);
        }
        fields.end()?;
        if kind == Some(SET_CODE) && to.is_empty() {
            return Err(RebuildError::Creation);
        }
        let to = if to.is_empty() {
            None
        } else {
            Some(to.try_into().map_err(|_| RebuildError::Data)?)
        };
        Ok(Self {
            kind,
            nonce,
            gas,
            to,
            signature,
            parity,
            is_protected,
            data: TransactionData { value, fees, tail },
        })
    }

    /// Encodes the transaction in the form of EIP-2718.
    pub fn encode(&self, chain_id: u64) -> Vec<u8> {
        let typed_chain_id = self.kind.map(|_| chain_id);
        let v = self.v(chain_id);
        let (r, s) = self.signature.split_at(WORD);
        let (r, s) = (trimmed(r), trimmed(s));
        let to = self.to.map_or(&[][..], |to| &to[..]);
        let payload_length = typed_chain_id.map_or(0, |id| id.length())
            + self.nonce.length()
            + self.data.fees.len()
            + self.gas.length()
            + to.length()
            + self.data.value.len()
            + self.data.tail.len()
            + v.length()
            + r.length()
            + s.length();
        let header = Header {
            list: true,
            payload_length,
        };
        let length = usize::from(self.kind.is_some()) + header.length_with_payload();
        let mut out = Vec::with_capacity(length);
        out.extend(self.kind);
        header.encode(&mut out);
        if let Some(id) = typed_chain_id {
            id.encode(&mut out);
        }
        self.nonce.encode(&mut out);
        out.put_slice(self.data.fees);
        self.gas.encode(&mut out);
        to.encode(&mut out);
        out.put_slice(self.data.value);
        out.put_slice(self.data.tail);
        v.encode(&mut out);
        r.encode(&mut out);
        s.encode(&mut out);
        out
    }

    /// The signature's v: the parity of a typed transaction, or a legacy v, which may exceed 64
    /// bits.
    fn v(&self, chain_id: u64) -> u128 {
        let base = if self.kind != LEGACY {
            0
        } else if self.is_protected {
            35 + 2 * u128::from(chain_id)
        } else {
            27
        };
        base + u128::from(self.parity)
    }
}

/// Reads v: returns the parity, and whether the signature covers the chain id.
fn read_v(kind: Option<u8>, v: u128, chain_id: u64) -> Result<(bool, bool), RebuildError> {
    let protected = 35 + 2 * u128::from(chain_id);
    match v {
        0 | 1 if kind != LEGACY => Ok((v == 1, true)),
        27 | 28 if kind == LEGACY => Ok((v == 28, false)),
        35.. if kind == LEGACY => match v.checked_sub(protected) {
            Some(parity @ (0 | 1)) => Ok((parity == 1, true)),
            _ => Err(RebuildError::ChainId),
        },
        _ => Err(RebuildError::Data),
    }
}

/// Removes the leading zeros of big-endian bytes.
fn trimmed(bytes: &[u8]) -> &[u8] {
    let zeros = bytes.iter().take_while(|byte| **byte == 0).count();
    &bytes[zeros..]
}

/// Bytes of a 256-bit integer.
const WORD: usize = 32;

/// A reader with the encoded fields of a list that are still unread.
struct ListReader<'a>(&'a [u8]);

impl<'a> ListReader<'a> {
    fn header(&mut self, list: bool) -> Result<&'a [u8], RebuildError> {
        Header::decode_bytes(&mut self.0, list).map_err(|_| RebuildError::Data)
    }

    fn end(&self) -> Result<(), RebuildError> {
        if self.0.is_empty() {
            Ok(())
        } else {
            Err(RebuildError::Data)
        }
    }

    /// Reads an integer of at most `most` bytes and returns its big-endian bytes.
    fn integer(&mut self, most: usize) -> Result<&'a [u8], RebuildError> {
        let bytes = self.header(false)?;
        if bytes.first() == Some(&0) || bytes.len() > most {
            return Err(RebuildError::Data);
        }
        Ok(bytes)
    }

    /// Reads an integer of at most `most` bytes; `most` must not exceed 16.
    fn number(&mut self, most: usize) -> Result<u128, RebuildError> {
        let bytes = self.integer(most)?;
        Ok(bytes
            .iter()
            .fold(0, |number, byte| number << 8 | u128::from(*byte)))
    }

    fn fixed(&mut self, len: usize) -> Result<(), RebuildError> {
        if self.header(false)?.len() == len {
            Ok(())
        } else {
            Err(RebuildError::Data)
        }
    }

    /// Reads an amount of wei and returns its RLP encoding.
    fn fee(&mut self, kind: Option<u8>) -> Result<&'a [u8], RebuildError> {
        let begin = self.0;
        let most = if kind == Some(SET_CODE) {
            WORD
        } else {
            usize::MAX
        };
        self.integer(most)?;
        Ok(&begin[..begin.len() - self.0.len()])
    }

    /// Reads the gas price, or the tip and the fee cap, and returns the RLP encoding.
    fn fees(&mut self, kind: Option<u8>) -> Result<&'a [u8], RebuildError> {
        let begin = self.0;
        self.fee(kind)?;
        if matches!(kind, Some(DYNAMIC_FEE | SET_CODE)) {
            self.fee(kind)?;
        }
        Ok(&begin[..begin.len() - self.0.len()])
    }

    /// Reads the call data and the lists of this transaction type.
    fn tail(&mut self, kind: Option<u8>) -> Result<(), RebuildError> {
        self.header(false)?;
        match kind {
            LEGACY => Ok(()),
            Some(ACCESS_LIST | DYNAMIC_FEE) => self.access_list(),
            Some(SET_CODE) => {
                self.access_list()?;
                self.authorizations()
            }
            Some(other) => Err(RebuildError::Type(other)),
        }
    }

    fn access_list(&mut self) -> Result<(), RebuildError> {
        let mut list = ListReader(self.header(true)?);
        while !list.0.is_empty() {
            let mut entry = ListReader(list.header(true)?);
            entry.fixed(20)?;
            let mut keys = ListReader(entry.header(true)?);
            entry.end()?;
            while !keys.0.is_empty() {
                keys.fixed(32)?;
            }
        }
        Ok(())
    }

    fn authorizations(&mut self) -> Result<(), RebuildError> {
        let mut list = ListReader(self.header(true)?);
        while !list.0.is_empty() {
            let mut entry = ListReader(list.header(true)?);
            entry.integer(WORD)?;
            entry.fixed(20)?;
            entry.integer(8)?;
            entry.integer(1)?;
            entry.integer(WORD)?;
            entry.integer(WORD)?;
            entry.end()?;
        }
        Ok(())
    }
}
