//! A transaction of a span batch: from its columns to its encoding and back.
//!
//! Fields whose encodings are the same in both forms are copied, after their RLP was checked as
//! strictly as geth does. Integers of types 0 to 2 may have any length, as in geth.

use alloy_rlp::{BufMut, Encodable, Header};

/// Type of a legacy transaction, which has no type byte.
pub(super) const LEGACY: Option<u8> = None;
const ACCESS_LIST: u8 = 1;
const DYNAMIC_FEE: u8 = 2;
const SET_CODE: u8 = 4;

/// Why a transaction cannot be rebuilt from its columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TransactionError {
    #[error("type {0:#04x} is not allowed in span batches")]
    Type(u8),
    #[error("malformed data")]
    Data,
    #[error("a set-code transaction creates a contract")]
    Creation,
}

/// Whether op-node expects a protected bit for the transaction: it takes a type byte of 0 for
/// legacy until it rebuilds the transaction.
pub(super) fn is_counted_as_legacy(kind: Option<u8>) -> bool {
    matches!(kind, None | Some(0))
}

/// A transaction with one value of each column.
pub(super) struct SpanTransaction<'a> {
    /// The type byte; [`LEGACY`] for none.
    pub kind: Option<u8>,
    pub nonce: u64,
    pub gas: u64,
    /// `None` for a contract creation.
    pub to: Option<&'a [u8; 20]>,
    /// r ‖ s.
    pub signature: &'a [u8; 64],
    pub parity: bool,
    /// Whether the signature covers the chain id, by which only legacy transactions differ.
    pub is_protected: bool,
    pub data: TransactionData<'a>,
}

/// Fields that `tx_datas` holds, as encoded there.
pub(super) struct TransactionData<'a> {
    pub value: &'a [u8],
    /// The gas price, or the tip and the fee cap.
    pub fees: &'a [u8],
    /// The call data, and the access list and the authorizations of types that have them.
    pub tail: &'a [u8],
}

impl<'a> TransactionData<'a> {
    /// Reads the payload of the list `[value, fees…, data, lists…]`.
    pub fn decode(kind: Option<u8>, payload: &'a [u8]) -> Result<Self, TransactionError> {
        let mut fields = Fields(payload);
        let value = fields.fee(kind)?;
        let fees = fields.fees(kind)?;
        let tail = fields.0;
        fields.tail(kind)?;
        fields.end()?;
        Ok(Self { value, fees, tail })
    }
}

impl SpanTransaction<'_> {
    /// Appends the EIP-2718 encoding.
    pub fn write(&self, chain_id: u64, out: &mut Vec<u8>) -> Result<(), TransactionError> {
        if self.kind == Some(SET_CODE) && self.to.is_none() {
            return Err(TransactionError::Creation);
        }
        let typed_chain_id = self.kind.map(|_| chain_id);
        let v = self.v(chain_id);
        let (r, s) = self.signature.split_at(32);
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
        out.extend(self.kind);
        Header {
            list: true,
            payload_length,
        }
        .encode(out);
        if let Some(id) = typed_chain_id {
            id.encode(out);
        }
        self.nonce.encode(out);
        out.put_slice(self.data.fees);
        self.gas.encode(out);
        to.encode(out);
        out.put_slice(self.data.value);
        out.put_slice(self.data.tail);
        v.encode(out);
        r.encode(out);
        s.encode(out);
        Ok(())
    }

    /// The parity, or v of a legacy transaction, which may exceed 64 bits.
    fn v(&self, chain_id: u64) -> u128 {
        let parity = u128::from(self.parity);
        match (self.kind, self.is_protected) {
            (LEGACY, true) => 35 + 2 * u128::from(chain_id) + parity,
            (LEGACY, false) => 27 + parity,
            _ => parity,
        }
    }
}

/// Big-endian bytes without leading zeros.
fn trimmed(bytes: &[u8]) -> &[u8] {
    let zeros = bytes.iter().take_while(|byte| **byte == 0).count();
    &bytes[zeros..]
}

/// Most bytes of a 256-bit integer.
const WORD: usize = 32;

/// Encoded fields of a list that are still to be read.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn header(&mut self, list: bool) -> Result<&'a [u8], TransactionError> {
        Header::decode_bytes(&mut self.0, list).map_err(|_| TransactionError::Data)
    }

    fn end(&self) -> Result<(), TransactionError> {
        if self.0.is_empty() {
            Ok(())
        } else {
            Err(TransactionError::Data)
        }
    }

    /// The payload of an integer of at most `most` bytes.
    fn integer(&mut self, most: usize) -> Result<&'a [u8], TransactionError> {
        let bytes = self.header(false)?;
        if bytes.first() == Some(&0) || bytes.len() > most {
            return Err(TransactionError::Data);
        }
        Ok(bytes)
    }

    fn fixed(&mut self, len: usize) -> Result<(), TransactionError> {
        if self.header(false)?.len() == len {
            Ok(())
        } else {
            Err(TransactionError::Data)
        }
    }

    /// An amount of wei, as encoded.
    fn fee(&mut self, kind: Option<u8>) -> Result<&'a [u8], TransactionError> {
        let begin = self.0;
        let most = if kind == Some(SET_CODE) {
            WORD
        } else {
            usize::MAX
        };
        self.integer(most)?;
        Ok(&begin[..begin.len() - self.0.len()])
    }

    /// The gas price, or the tip and the fee cap, as encoded.
    fn fees(&mut self, kind: Option<u8>) -> Result<&'a [u8], TransactionError> {
        let begin = self.0;
        self.fee(kind)?;
        if matches!(kind, Some(DYNAMIC_FEE | SET_CODE)) {
            self.fee(kind)?;
        }
        Ok(&begin[..begin.len() - self.0.len()])
    }

    /// The call data, and the lists that the type has.
    fn tail(&mut self, kind: Option<u8>) -> Result<(), TransactionError> {
        self.header(false)?;
        match kind {
            LEGACY => Ok(()),
            Some(ACCESS_LIST | DYNAMIC_FEE) => self.access_list(),
            Some(SET_CODE) => {
                self.access_list()?;
                self.authorizations()
            }
            Some(other) => Err(TransactionError::Type(other)),
        }
    }

    fn access_list(&mut self) -> Result<(), TransactionError> {
        let mut list = Fields(self.header(true)?);
        while !list.0.is_empty() {
            let mut entry = Fields(list.header(true)?);
            entry.fixed(20)?;
            let mut keys = Fields(entry.header(true)?);
            entry.end()?;
            while !keys.0.is_empty() {
                keys.fixed(32)?;
            }
        }
        Ok(())
    }

    fn authorizations(&mut self) -> Result<(), TransactionError> {
        let mut list = Fields(self.header(true)?);
        while !list.0.is_empty() {
            let mut entry = Fields(list.header(true)?);
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
