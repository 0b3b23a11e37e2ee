//! The Merkle Patricia trie of the state, updated by the changes of a block.
//!
//! The flat rows of the state are the leaves; branches and extensions have rows of their own, by
//! path (see [`keys`]). The walk loads the nodes on changed paths, and a sibling that moves up when
//! a key is removed. It uses the stored reference of every other child, so the same code runs over
//! the store, over a bare witness ([`Witness`]) and from an empty trie ([`genesis`]). Rows are
//! canonical: they depend on the state alone, not on the blocks that led to it. Execution calls
//! this module; the cost is proportional to the number of changed leaves times the depth of the
//! trie. A missing node is an error, never a different root.

pub mod history;
mod node;
mod proof;
mod recorded;
mod stack;
mod walk;
mod witness;

pub use proof::{AccountProof, SlotProof, prove};
pub use recorded::{StateReads, witness_nodes};
pub use stack::{StackTrie, row_children, row_hash};
pub use witness::{Roots, Witness};

use crate::chain::{
    changes::{AccountChange, Changes, StorageChange},
    rows::{Account, Overlay, ReadError, RowChange, account::slot_leaf, keys},
};
use alloy_primitives::{B256, Bytes, keccak256};
use alloy_trie::{EMPTY_ROOT_HASH, Nibbles, nodes::RlpNode};
use node::{Node, NodeKind, decode_row, rlp_leaf};
use parking_lot::Mutex;
use rayon::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use walk::{LeafChange, NodeSource, apply, seal};

/// Number of changed accounts and slots, or of leaves in one trie, below which the work stays on
/// one thread: distributing it over threads would take as long as the work.
const PARALLEL: usize = 64;

#[derive(Clone, Debug, thiserror::Error)]
pub enum TrieError {
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error("the node at path {path} is missing (hash {hash:?})")]
    Missing { path: String, hash: Option<B256> },
    #[error("the trie is damaged: {0}")]
    Damaged(String),
    #[error("storage changed under the account {0}, which does not exist")]
    Orphan(B256),
}

/// The result of applying a block's changes to a state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Update {
    pub state_root: B256,
    /// The new storage root of every account whose storage was changed or removed, by
    /// keccak(address).
    pub storage_roots: BTreeMap<B256, B256>,
    pub overlay: Overlay,
}

/// The rows of a state: leaves and nodes, ordered by key.
pub trait StateRows: Sync {
    fn row(&self, key: &[u8]) -> Result<Option<Bytes>, ReadError>;

    /// The rows with this prefix, at or after key `from`, ascending.
    fn scan<'a>(&'a self, prefix: &[u8], from: &[u8]) -> Result<RowIter<'a>, ReadError>;

    /// Notification that a node was loaded from these rows; `rlp` returns the node's RLP.
    fn node_loaded(&self, rlp: &dyn Fn() -> Result<Vec<u8>, TrieError>) -> Result<(), TrieError> {
        let _ = rlp;
        Ok(())
    }
}

pub type RowIter<'a> = Box<dyn Iterator<Item = Result<(Bytes, Bytes), ReadError>> + 'a>;

/// Applies changes to the state with this root; `parent` has the rows of that state.
pub fn update(parent: &dyn StateRows, root: B256, changes: &Changes) -> Result<Update, TrieError> {
    run(Some(parent), root, changes)
}

/// Applies the changes of a genesis alloc to the empty state.
pub fn genesis(changes: &Changes) -> Result<Update, TrieError> {
    run(None, EMPTY_ROOT_HASH, changes)
}

/// Applies changes to the state with this root. `parent` has the state's rows; `None` means the
/// empty state.
fn run(parent: Option<&dyn StateRows>, root: B256, changes: &Changes) -> Result<Update, TrieError> {
    let touched = touched(changes);
    let slots: usize = changes
        .storages
        .values()
        .map(|storage| 1 + storage.slots.len())
        .sum();
    let account = |touched| account_update(parent, touched);
    let accounts: Result<Vec<_>, TrieError> = if touched.len() + slots < PARALLEL {
        touched.into_iter().map(account).collect()
    } else {
        touched.into_par_iter().map(account).collect()
    };
    let accounts = accounts?;

    let mut rows = BTreeMap::new();
    let mut storage_roots = BTreeMap::new();
    let mut leaves = Vec::with_capacity(accounts.len());
    for update in accounts {
        rows.extend(update.rows);
        storage_roots.extend(update.storage_root.map(|root| (update.hash, root)));
        let (before, after) = (update.before, update.after);
        if before != after {
            leaves.push(LeafChange {
                key: update.hash,
                value: after.clone(),
                exists: before.is_some(),
            });
            rows.insert(keys::account(&update.hash), RowChange { before, after });
        }
    }
    let source = StateSource::new(parent, None);
    let (state_root, nodes) = seal(&apply(&source, root, &leaves)?);
    source.finish(nodes, &mut rows);
    rows.retain(|_, row| row.before != row.after);
    let codes = changes
        .codes
        .iter()
        .map(|(hash, code)| (*hash, code.clone()))
        .collect();
    // The order of execution's hash maps is random; sort, so that equal blocks have equal overlays.
    let mut names = changes.names.clone();
    names.sort_unstable();
    Ok(Update {
        state_root,
        storage_roots,
        overlay: Overlay { rows, codes, names },
    })
}

/// The changes of one account.
#[derive(Clone, Copy)]
struct TouchedAccount<'a> {
    hash: B256,
    /// `None` if only the storage changes, `Some(None)` if the account no longer exists.
    account: Option<Option<AccountChange>>,
    storage: Option<&'a StorageChange>,
}

/// All accounts that change, or whose storage changes, ascending by hash.
fn touched(changes: &Changes) -> Vec<TouchedAccount<'_>> {
    let touched = |hash: &B256| TouchedAccount {
        hash: *hash,
        account: changes.accounts.get(hash).copied(),
        storage: changes.storages.get(hash),
    };
    let hashes: BTreeSet<_> = changes
        .accounts
        .keys()
        .chain(changes.storages.keys())
        .collect();
    hashes.into_iter().map(touched).collect()
}

/// The changes of an account's row and of the rows of its storage.
struct AccountUpdate {
    hash: B256,
    before: Option<Bytes>,
    after: Option<Bytes>,
    /// The new storage root, if the storage changed.
    storage_root: Option<B256>,
    rows: BTreeMap<Bytes, RowChange>,
}

/// Updates the storage trie of an account, and the account's row with the new storage root.
fn account_update(
    parent: Option<&dyn StateRows>,
    touched: TouchedAccount<'_>,
) -> Result<AccountUpdate, TrieError> {
    let TouchedAccount {
        hash,
        account,
        storage,
    } = touched;
    let before = row(parent, &keys::account(&hash))?;
    let old = before
        .as_ref()
        .map(|row| Account::decode(row))
        .transpose()?;
    let old_root = old.map_or(EMPTY_ROOT_HASH, |account| account.storage_root);
    let destroyed = StorageChange {
        wiped: true,
        slots: BTreeMap::new(),
    };
    let storage = match account {
        Some(None) => (old_root != EMPTY_ROOT_HASH || storage.is_some()).then_some(&destroyed),
        _ => storage,
    };
    let (storage_root, rows) = match storage {
        Some(storage) => {
            let (root, rows) = storage_update(parent, &hash, old_root, storage)?;
            (Some(root), rows)
        }
        None => (None, BTreeMap::new()),
    };
    let after = match account {
        Some(account) => account,
        None => Some(
            old.map(|a| AccountChange {
                nonce: a.nonce,
                balance: a.balance,
                code_hash: a.code_hash,
            })
            .ok_or(TrieError::Orphan(hash))?,
        ),
    };
    let after = after.map(|account| encode_account(&account, storage_root.unwrap_or(old_root)));
    Ok(AccountUpdate {
        hash,
        before,
        after,
        storage_root,
        rows,
    })
}

/// Updates the storage trie of one account. Returns the new root and the changed rows.
fn storage_update(
    parent: Option<&dyn StateRows>,
    account: &B256,
    root: B256,
    change: &StorageChange,
) -> Result<(B256, BTreeMap<Bytes, RowChange>), TrieError> {
    let mut rows = match parent {
        Some(parent) if change.wiped => wiped_rows(parent, account)?,
        _ => BTreeMap::new(),
    };
    let root = if change.wiped { EMPTY_ROOT_HASH } else { root };
    let mut leaves = Vec::with_capacity(change.slots.len());
    let before = |slot: &B256| {
        let key = keys::slot(account, slot);
        let before = match rows.get(&key) {
            Some(wiped) => wiped.before.clone(),
            None => row(parent, &key)?,
        };
        Ok((key, before))
    };
    let befores: Result<Vec<_>, TrieError> = if change.slots.len() < PARALLEL {
        change.slots.keys().map(before).collect()
    } else {
        change
            .slots
            .par_iter()
            .map(|(slot, _)| before(slot))
            .collect()
    };
    for ((slot, value), (key, before)) in change.slots.iter().zip(befores?) {
        let after = (!value.is_zero()).then(|| Bytes::from(value.to_be_bytes_trimmed_vec()));
        if before != after || change.wiped {
            let value = after.as_ref().map(|value| slot_leaf(value));
            leaves.push(LeafChange {
                key: *slot,
                value,
                exists: before.is_some() && !change.wiped,
            });
            rows.insert(key, RowChange { before, after });
        }
    }
    let source = StateSource::new(parent, Some(*account));
    let (root, nodes) = seal(&apply(&source, root, &leaves)?);
    source.finish(nodes, &mut rows);
    rows.retain(|_, row| row.before != row.after);
    Ok((root, rows))
}

/// The removal of all slot rows and storage node rows of an account.
fn wiped_rows(
    parent: &dyn StateRows,
    account: &B256,
) -> Result<BTreeMap<Bytes, RowChange>, TrieError> {
    let mut rows = BTreeMap::new();
    for prefix in [
        keys::storage_prefix(account),
        keys::storage_node_prefix(account),
    ] {
        for row in parent.scan(&prefix, &prefix)? {
            let (key, value) = row?;
            let removed = RowChange {
                before: Some(value),
                after: None,
            };
            rows.insert(key, removed);
        }
    }
    Ok(rows)
}

/// A row of the state; `None` in the empty state.
fn row(parent: Option<&dyn StateRows>, key: &[u8]) -> Result<Option<Bytes>, TrieError> {
    Ok(parent.map(|state| state.row(key)).transpose()?.flatten())
}

/// Encodes the row of an account with this storage root.
fn encode_account(account: &AccountChange, storage_root: B256) -> Bytes {
    let AccountChange {
        nonce,
        balance,
        code_hash,
    } = *account;
    Account {
        nonce,
        balance,
        storage_root,
        code_hash,
    }
    .encode()
}

/// Loads trie nodes from the rows of a state. Records every node row that it loads: these are the
/// old values of rows that the update changes.
struct StateSource<'a> {
    state: Option<&'a dyn StateRows>,
    /// The account whose storage trie is read; `None` for the state trie.
    account: Option<B256>,
    loaded: Mutex<Vec<(Bytes, Bytes)>>,
}

impl<'a> StateSource<'a> {
    fn new(state: Option<&'a dyn StateRows>, account: Option<B256>) -> Self {
        Self {
            state,
            account,
            loaded: Mutex::default(),
        }
    }

    fn row_key(&self, path: &Nibbles) -> Bytes {
        match &self.account {
            None => keys::state_node(path),
            Some(account) => keys::storage_node(account, path),
        }
    }

    /// The leaf at `path`: the first flat row whose key begins with the path.
    fn leaf(&self, state: &dyn StateRows, path: &Nibbles) -> Result<Option<Node>, TrieError> {
        let trie = match &self.account {
            None => keys::account_prefix(),
            Some(account) => keys::storage_prefix(account),
        };
        // A path of odd length ends inside a byte of the key: seek from that nibble, and check
        // afterwards that the row found is below the path.
        let whole_bytes = path.len() / 2;
        let mut from = trie.to_vec();
        from.extend_from_slice(&path.pack());
        let prefix = &from[..trie.len() + whole_bytes];
        let Some((key, value)) = state.scan(prefix, &from)?.next().transpose()? else {
            return Ok(None);
        };
        let Ok(key) = B256::try_from(&key[trie.len()..]) else {
            return Err(TrieError::Damaged(format!(
                "the flat row {key} has a key of wrong length"
            )));
        };
        let value = if self.account.is_some() {
            slot_leaf(&value)
        } else {
            value
        };
        Ok(Nibbles::unpack(key)
            .starts_with(path)
            .then_some(Node::Leaf { key, value }))
    }

    /// Adds the trie's node rows to the changed rows: the loaded rows as old values, the nodes of
    /// the new trie as new values.
    fn finish(self, nodes: Vec<(Nibbles, Bytes)>, rows: &mut BTreeMap<Bytes, RowChange>) {
        let nodes: Vec<_> = nodes
            .into_iter()
            .map(|(path, row)| (self.row_key(&path), row))
            .collect();
        for (key, row) in self.loaded.into_inner() {
            rows.insert(
                key,
                RowChange {
                    before: Some(row),
                    after: None,
                },
            );
        }
        for (key, row) in nodes {
            rows.entry(key)
                .or_insert(RowChange {
                    before: None,
                    after: None,
                })
                .after = Some(row);
        }
    }
}

impl NodeSource for StateSource<'_> {
    fn load(&self, path: &Nibbles, reference: &RlpNode, kind: NodeKind) -> Result<Node, TrieError> {
        let node = self.load_node(path, reference, kind)?;
        if let Some(state) = self.state {
            state.node_loaded(&|| proof::encode(&node, path.len()))?;
        }
        Ok(node)
    }
}

impl StateSource<'_> {
    fn load_node(
        &self,
        path: &Nibbles,
        reference: &RlpNode,
        kind: NodeKind,
    ) -> Result<Node, TrieError> {
        let missing = || TrieError::Missing {
            path: format!("{path:?}"),
            hash: reference.as_hash(),
        };
        let state = self.state.ok_or_else(missing)?;
        if kind != NodeKind::Leaf {
            let key = self.row_key(path);
            if let Some(row) = state.row(&key)? {
                let node = decode_row(&row, path)?;
                if kind == NodeKind::Branch && !matches!(node, Node::Branch(_)) {
                    return Err(TrieError::Damaged(format!(
                        "the node at path {path:?} is no branch"
                    )));
                }
                self.loaded.lock().push((key, row));
                return Ok(node);
            }
            // Only the root can be a leaf without being marked as one. Check its hash against the
            // reference; otherwise a damaged trie could pass for a trie with a single leaf.
            let leaf = if path.is_empty() {
                self.leaf(state, path)?
            } else {
                None
            };
            let whole = |key: &B256, value: &[u8]| {
                RlpNode::word_rlp(&keccak256(rlp_leaf(key, 0, value))) == *reference
            };
            return leaf
                .filter(|leaf| matches!(leaf, Node::Leaf { key, value } if whole(key, value)))
                .ok_or_else(missing);
        }
        self.leaf(state, path)?.ok_or_else(missing)
    }
}

#[cfg(test)]
mod tests;
