//! Changes of a block to the state, keyed like the tries: by the hash of the address and of the
//! slot.

use alloy_primitives::{Address, B256, Bytes, U256, keccak256};
use std::collections::BTreeMap;

/// The net effect of a block (or of a genesis alloc) on the state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// By keccak(address). `None`: the account no longer exists.
    pub accounts: BTreeMap<B256, Option<AccountChange>>,
    /// By keccak(address). An account listed here is also listed in `accounts`.
    pub storages: BTreeMap<B256, StorageChange>,
    /// New contract code by hash.
    pub codes: BTreeMap<B256, Bytes>,
    /// The addresses and slots behind the keys above, as far as they are known.
    pub names: Vec<KeyName>,
}

/// An address or a slot, of which the tries know only the hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum KeyName {
    Address(Address),
    Slot(U256),
}

impl KeyName {
    /// The bytes whose hash is the key.
    pub fn preimage(&self) -> Bytes {
        match self {
            Self::Address(address) => Bytes::copy_from_slice(address.as_slice()),
            Self::Slot(slot) => B256::from(*slot).into(),
        }
    }

    /// The key.
    pub fn hash(&self) -> B256 {
        keccak256(self.preimage())
    }
}

/// An account without its storage root, which follows from the storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AccountChange {
    pub nonce: u64,
    pub balance: U256,
    pub code_hash: B256,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StorageChange {
    /// All earlier slots are gone (the account was destroyed, possibly created again); `slots` is
    /// then the whole storage.
    pub wiped: bool,
    /// By keccak(slot). Zero removes the slot.
    pub slots: BTreeMap<B256, U256>,
}
