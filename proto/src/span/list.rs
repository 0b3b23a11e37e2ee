//! The transactions of one block, from a singular or a span batch.

use super::blocks::SpanTransactions;
use alloy_primitives::Bytes;
use alloy_rlp::{Encodable, Header};
use std::fmt;

/// The transactions of one block, in order. They stay encoded in the batch's bytes, and are copied
/// out one by one.
#[derive(Clone)]
pub struct BatchTransactions(Encoding);

#[derive(Clone)]
enum Encoding {
    /// The content of a singular batch's list: one RLP string per transaction.
    Strings {
        bytes: Bytes,
        count: usize,
    },
    Columns(Box<SpanTransactions>),
}

impl BatchTransactions {
    /// Checks the content of an RLP list of strings, and stores it as it is.
    pub(crate) fn decode(bytes: Bytes) -> Result<Self, alloy_rlp::Error> {
        let (mut rest, mut count) = (&bytes[..], 0);
        while !rest.is_empty() {
            Header::decode_bytes(&mut rest, false)?;
            count += 1;
        }
        Ok(Self(Encoding::Strings { bytes, count }))
    }

    /// Encodes the transactions as the content of an RLP list of strings.
    pub(crate) fn strings(&self) -> Bytes {
        match &self.0 {
            Encoding::Strings { bytes, .. } => bytes.clone(),
            Encoding::Columns(columns) => {
                let mut bytes = Vec::new();
                columns.clone().for_each(|one| one.0.encode(&mut bytes));
                bytes.into()
            }
        }
    }

    /// Number of transactions.
    pub fn len(&self) -> usize {
        match &self.0 {
            Encoding::Strings { count, .. } => *count,
            Encoding::Columns(columns) => columns.len(),
        }
    }

    /// Whether the block has no transaction.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes that the transactions have in the batch. The EIP-2718 encoding of a transaction may be
    /// longer, or up to 9 bytes shorter.
    pub fn size(&self) -> usize {
        match &self.0 {
            Encoding::Strings { bytes, .. } => bytes.len(),
            Encoding::Columns(columns) => columns.data_size(),
        }
    }

    /// The first byte of each transaction: the type of a typed transaction, at least 0xc0 for a
    /// legacy one, and `None` for an empty one.
    pub fn first_bytes(&self) -> impl Iterator<Item = Option<u8>> {
        let (mut strings, mut columns) = self.cursors();
        std::iter::from_fn(move || match &mut columns {
            Some(columns) => columns.next_first_byte().map(Some),
            None => next_string(&mut strings).map(|string| string.first().copied()),
        })
    }

    /// Copies of the transactions, each EIP-2718 encoded.
    pub fn iter(&self) -> impl Iterator<Item = Bytes> {
        let (mut strings, mut columns) = self.cursors();
        std::iter::from_fn(move || match &mut columns {
            Some(columns) => columns.next(),
            None => next_string(&mut strings).map(Bytes::copy_from_slice),
        })
    }

    /// Readers at the first transaction: unread strings, or columns if the batch is a span.
    fn cursors(&self) -> (&[u8], Option<SpanTransactions>) {
        match &self.0 {
            Encoding::Strings { bytes, .. } => (bytes, None),
            Encoding::Columns(columns) => (&[], Some((**columns).clone())),
        }
    }

    /// Appends a transaction and copies all others. To append many, collect an iterator instead.
    pub fn push(&mut self, transaction: Bytes) {
        *self = self.iter().chain([transaction]).collect();
    }
}

/// The content of the next RLP string; `None` at the end.
fn next_string<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    Header::decode_bytes(rest, false).ok()
}

impl From<SpanTransactions> for BatchTransactions {
    fn from(columns: SpanTransactions) -> Self {
        Self(Encoding::Columns(Box::new(columns)))
    }
}

impl FromIterator<Bytes> for BatchTransactions {
    fn from_iter<I: IntoIterator<Item = Bytes>>(transactions: I) -> Self {
        let (mut bytes, mut count) = (Vec::new(), 0);
        for transaction in transactions {
            transaction.0.encode(&mut bytes);
            count += 1;
        }
        let bytes = bytes.into();
        Self(Encoding::Strings { bytes, count })
    }
}

impl From<Vec<Bytes>> for BatchTransactions {
    fn from(transactions: Vec<Bytes>) -> Self {
        transactions.into_iter().collect()
    }
}

impl Default for BatchTransactions {
    fn default() -> Self {
        Self::from_iter([])
    }
}

/// Lists are equal if their transactions are, whichever batch format has them.
impl PartialEq for BatchTransactions {
    fn eq(&self, other: &Self) -> bool {
        self.len() == other.len() && self.iter().eq(other.iter())
    }
}

impl Eq for BatchTransactions {}

impl PartialEq<[Bytes]> for BatchTransactions {
    fn eq(&self, other: &[Bytes]) -> bool {
        self.len() == other.len() && self.iter().zip(other).all(|(mine, other)| mine == *other)
    }
}

impl PartialEq<Vec<Bytes>> for BatchTransactions {
    fn eq(&self, other: &Vec<Bytes>) -> bool {
        *self == other[..]
    }
}

impl fmt::Debug for BatchTransactions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}
