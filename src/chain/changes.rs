//! Changes of a block to the state. The keys are those of the tries: hashes of addresses and slots.

use alloy_primitives::{Address, B256, Bytes, U256, keccak256};
use std::collections::BTreeMap;

/// The net effect of a block (or of a genesis alloc) on the state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Changed accounts by keccak(address). `None` if the account no longer exists.
    pub accounts: BTreeMap<B256, Option<AccountChange>>,
    /// Changed storages by keccak(address). An account listed here is also listed in `accounts`.
    pub storages: BTreeMap<B256, StorageChange>,
    /// New contract code by hash.
    pub codes: BTreeMap<B256, Bytes>,
    /// The addresses and slots behind the hashed keys above, as far as they are known.
    pub names: Vec<KeyName>,
}

/// An address or a slot. The tries contain only its hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum KeyName {
    Address(Address),
    Slot(U256),
}

impl KeyName {
    /// The preimage of the key: the bytes that are hashed.
    pub fn preimage(&self) -> Bytes {
        match self {
            Self::Address(address) => Bytes::copy_from_slice(address.as_slice()),
            Self::Slot(slot) => B256::from(*slot).into(),
        }
    }

    /// The key in the trie.
    pub fn hash(&self) -> B256 {
        keccak256(self.preimage())
    }
}

/// An account without its storage root, which is computed from the storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AccountChange {
    pub nonce: u64,
    pub balance: U256,
    pub code_hash: B256,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StorageChange {
    /// All earlier slots are gone, since the account was destroyed and possibly created again.
    /// `slots` is then the whole storage.
    pub wiped: bool,
    /// New values by keccak(slot). Zero removes the slot.
    pub slots: BTreeMap<B256, U256>,
}
