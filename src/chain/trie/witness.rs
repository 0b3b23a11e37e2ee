//! A bare witness: trie nodes and codes by their hash. They suffice to read the state that one
//! block touches and to compute the roots after the block.
//!
//! The source of a witness is untrusted: bytes are used only if their hash is already trusted.

use crate::chain::{
    changes::{Changes, StorageChange},
    rows::{
        Account,
        account::{decode_slot, slot_leaf},
    },
    trie::{
        TrieError, encode_account,
        node::{KEY_NIBBLES, Node, NodeKind},
        touched,
        walk::{LeafChange, NodeSource, apply, find, seal},
    },
};
use alloy_primitives::{Address, B256, Bytes, U256, keccak256};
use alloy_rlp::Decodable;
use alloy_trie::{
    EMPTY_ROOT_HASH, Nibbles,
    nodes::{RlpNode, TrieNode},
};
use std::collections::{BTreeMap, HashMap};

/// Preimages by keccak hash: trie nodes and contract codes.
#[derive(Clone, Debug, Default)]
pub struct Witness {
    pub(super) nodes: HashMap<B256, Bytes>,
}

/// The state root and storage roots after a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Roots {
    pub state_root: B256,
    /// The new storage root of every account whose storage changed or that no longer exists, by
    /// keccak(address).
    pub storage_roots: BTreeMap<B256, B256>,
}

impl Witness {
    /// Builds a witness. The hash of every preimage is computed here, so that none can be wrong.
    pub fn new(preimages: impl IntoIterator<Item = Bytes>) -> Self {
        Self {
            nodes: preimages
                .into_iter()
                .map(|bytes| (keccak256(&bytes), bytes))
                .collect(),
        }
    }

    /// An account in the state under `root`; `None` if the witness proves that it does not exist.
    pub fn account(&self, root: B256, address: Address) -> Result<Option<Account>, TrieError> {
        self.account_by_hash(root, &keccak256(address))
    }

    /// The value of a slot in the state under `root`; zero if the witness proves that it does not
    /// exist.
    pub fn storage(&self, root: B256, address: Address, slot: U256) -> Result<U256, TrieError> {
        let Some(leaf) = find(
            self,
            self.storage_root(root, address)?,
            &keccak256(B256::from(slot)),
        )?
        else {
            return Ok(U256::ZERO);
        };
        let value = alloy_rlp::Header::decode_bytes(&mut leaf.as_ref(), false)
            .map_err(|e| TrieError::Damaged(format!("a storage leaf cannot be read: {e}")))?;
        Ok(decode_slot(value)?)
    }

    /// The storage root of an account; the root of the empty trie if the account does not exist.
    pub fn storage_root(&self, root: B256, address: Address) -> Result<B256, TrieError> {
        self.storage_root_by_hash(root, &keccak256(address))
    }

    /// The contract code with this hash. A trie node with this hash would be returned too.
    pub fn code(&self, hash: B256) -> Option<Bytes> {
        self.nodes.get(&hash).cloned()
    }

    /// The state root and storage roots after these changes to the state under `root`.
    pub fn update(&self, root: B256, changes: &Changes) -> Result<Roots, TrieError> {
        let mut storage_roots = BTreeMap::new();
        let mut leaves = Vec::new();
        for touched in touched(changes) {
            let account = touched.account.ok_or(TrieError::Orphan(touched.hash))?;
            let storage_root = match (&account, touched.storage) {
                (None, _) => Some(EMPTY_ROOT_HASH),
                (Some(_), Some(storage)) => {
                    Some(self.update_storage(root, &touched.hash, storage)?)
                }
                (Some(_), None) => None,
            };
            storage_roots.extend(storage_root.map(|root| (touched.hash, root)));
            let value = match (account, storage_root) {
                (None, _) => None,
                (Some(account), Some(root)) => Some(encode_account(&account, root)),
                (Some(account), None) => {
                    let root = self.storage_root_by_hash(root, &touched.hash)?;
                    Some(encode_account(&account, root))
                }
            };
            leaves.push(LeafChange {
                key: touched.hash,
                value,
                exists: false,
            });
        }
        let (state_root, _) = seal(&apply(self, root, &leaves)?);
        Ok(Roots {
            state_root,
            storage_roots,
        })
    }

    /// The storage root of an account after these changes, in the state under `root`.
    fn update_storage(
        &self,
        root: B256,
        account: &B256,
        storage: &StorageChange,
    ) -> Result<B256, TrieError> {
        let before = if storage.wiped {
            EMPTY_ROOT_HASH
        } else {
            self.storage_root_by_hash(root, account)?
        };
        let leaf = |value: &U256| slot_leaf(&value.to_be_bytes_trimmed_vec());
        let slots = storage.slots.iter().map(|(slot, value)| LeafChange {
            key: *slot,
            value: (!value.is_zero()).then(|| leaf(value)),
            exists: false,
        });
        Ok(seal(&apply(self, before, &slots.collect::<Vec<_>>())?).0)
    }

    fn storage_root_by_hash(&self, root: B256, account: &B256) -> Result<B256, TrieError> {
        Ok(self
            .account_by_hash(root, account)?
            .map_or(EMPTY_ROOT_HASH, |account| account.storage_root))
    }

    fn account_by_hash(&self, root: B256, hash: &B256) -> Result<Option<Account>, TrieError> {
        Ok(find(self, root, hash)?
            .map(|leaf| Account::decode(&leaf))
            .transpose()?)
    }
}

impl NodeSource for Witness {
    fn load(&self, path: &Nibbles, reference: &RlpNode, kind: NodeKind) -> Result<Node, TrieError> {
        let damaged = |what: &str| TrieError::Damaged(format!("the node at path {path:?} {what}"));
        let mut rlp: &[u8] = match reference.as_hash() {
            Some(hash) => {
                let missing = || TrieError::Missing {
                    path: format!("{path:?}"),
                    hash: Some(hash),
                };
                self.nodes.get(&hash).ok_or_else(missing)?
            }
            None => reference,
        };
        let node =
            TrieNode::decode(&mut rlp).map_err(|e| damaged(&format!("cannot be read: {e}")))?;
        let any = |reference| Node::Stored {
            reference,
            kind: NodeKind::Any,
        };
        match node {
            TrieNode::Branch(branch)
                if path.len() < KEY_NIBBLES && branch.state_mask.count_bits() >= 2 =>
            {
                let mut children = Node::empty_branch();
                for (index, reference) in branch.state_mask.iter().zip(branch.stack) {
                    children[usize::from(index)] = any(reference);
                }
                Ok(Node::Branch(children))
            }
            TrieNode::Extension(extension)
                if kind != NodeKind::Branch
                    && !extension.key.is_empty()
                    && path.len() + extension.key.len() < KEY_NIBBLES =>
            {
                let child = Box::new(Node::Stored {
                    reference: extension.child,
                    kind: NodeKind::Branch,
                });
                Ok(Node::Extension {
                    nibbles: extension.key,
                    child,
                })
            }
            TrieNode::Leaf(leaf)
                if kind != NodeKind::Branch && path.len() + leaf.key.len() == KEY_NIBBLES =>
            {
                let key = B256::from_slice(&path.join(&leaf.key).pack());
                Ok(Node::Leaf {
                    key,
                    value: leaf.value.into(),
                })
            }
            _ => Err(damaged("cannot be at this path")),
        }
    }
}
