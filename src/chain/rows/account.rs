//! Accounts and storage slots, and the encoding of their rows.

use crate::chain::rows::ReadError;
use alloy_primitives::{B256, Bytes, U256};
use alloy_rlp::{Decodable, Encodable};
use alloy_trie::TrieAccount;

/// An account, with the fields of a leaf in the state trie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Account {
    pub nonce: u64,
    pub balance: U256,
    pub storage_root: B256,
    pub code_hash: B256,
}

impl Account {
    /// Decodes the row of an account, which is also the account's leaf in the state trie.
    pub(crate) fn decode(mut row: &[u8]) -> Result<Self, ReadError> {
        let account = TrieAccount::decode(&mut row)
            .map_err(|e| ReadError::Damaged(format!("an account cannot be read: {e}")))?;
        Ok(Self {
            nonce: account.nonce,
            balance: account.balance,
            storage_root: account.storage_root,
            code_hash: account.code_hash,
        })
    }

    /// The row of this account.
    pub(crate) fn encode(&self) -> Bytes {
        let Self {
            nonce,
            balance,
            storage_root,
            code_hash,
        } = *self;
        alloy_rlp::encode(TrieAccount {
            nonce,
            balance,
            storage_root,
            code_hash,
        })
        .into()
    }
}

/// Decodes the value of a storage row: big-endian without leading zeros.
pub(crate) fn decode_slot(row: &[u8]) -> Result<U256, ReadError> {
    U256::try_from_be_slice(row)
        .ok_or_else(|| ReadError::Damaged("a storage value is longer than 32 bytes".into()))
}

/// The storage trie's leaf for a storage row: the RLP of the row.
pub(crate) fn slot_leaf(row: &[u8]) -> Bytes {
    let mut leaf = Vec::with_capacity(1 + row.len());
    row.encode(&mut leaf);
    leaf.into()
}
