//! The Merkle Patricia trie of the state, updated from what a block changes.
//!
//! The flat rows of the state are the leaves; branches and extensions have rows of their own, by path (see [`keys`]). The walk
//! loads nodes on changed paths only and accepts a stored reference for every other child, so the same code runs over the store,
//! over a bare witness ([`Witness`]) and from nothing ([`genesis`]). Rows are canonical: they depend on the state alone, not on the
//! blocks that led to it. Called by execution; its load is proportional to the leaves a block changes times the depth of the trie.
//! A node that is missing is an error, never another root.

pub(super) mod history;
mod node;
mod proof;
mod stack;
mod walk;
mod witness;

pub use proof::{AccountProof, SlotProof, prove, prove_hashed};
pub use stack::{StackTrie, row_children, row_hash};
pub use witness::{Roots, Witness};

use crate::chain::{
    changes::{AccountChange, Changes, StorageChange},
    store::keys,
    view::{Account, Overlay, ReadError, RowChange, State},
};
use alloy_primitives::{B256, Bytes, U256, keccak256};
use alloy_rlp::{Decodable, Encodable};
use alloy_trie::{EMPTY_ROOT_HASH, Nibbles, TrieAccount, nodes::RlpNode};
use node::{Kind, Node, decode_row, rlp_leaf};
use parking_lot::Mutex;
use rayon::prelude::*;
use std::collections::BTreeMap;
use walk::{Change, Source, apply, seal};

/// Fewer changes of accounts and slots, or of leaves of one trie, are worked off one after the other: to share them out takes as long.
const SHARED: usize = 64;

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

/// What a set of changes makes of a state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Update {
    pub state_root: B256,
    /// By keccak(address): the new storage root of every account whose storage changed or that is gone.
    pub storage_roots: BTreeMap<B256, B256>,
    pub overlay: Overlay,
}

/// The rows of a state: leaves and nodes, ordered by key.
pub trait Rows: Sync {
    fn row(&self, key: &[u8]) -> Result<Option<Bytes>, ReadError>;

    /// The rows with this prefix, at or after `from`, ascending.
    fn scan<'a>(&'a self, prefix: &[u8], from: &[u8]) -> Result<RowIter<'a>, ReadError>;
}

pub type RowIter<'a> = Box<dyn Iterator<Item = Result<(Bytes, Bytes), ReadError>> + 'a>;

impl Rows for State {
    fn row(&self, key: &[u8]) -> Result<Option<Bytes>, ReadError> {
        State::row(self, key)
    }

    fn scan<'a>(&'a self, prefix: &[u8], from: &[u8]) -> Result<RowIter<'a>, ReadError> {
        Ok(Box::new(State::scan(self, prefix, from)?))
    }
}

/// Applies the changes of a block to the state of its parent.
pub fn update(parent: &State, changes: &Changes) -> Result<Update, TrieError> {
    update_rows(parent, parent.header().state_root, changes)
}

/// Applies changes to the state with this root, whose rows may be anywhere.
pub fn update_rows(parent: &dyn Rows, root: B256, changes: &Changes) -> Result<Update, TrieError> {
    run(Some(parent), root, changes)
}

/// The state that a genesis alloc makes of nothing.
pub fn genesis(changes: &Changes) -> Result<Update, TrieError> {
    run(None, EMPTY_ROOT_HASH, changes)
}

fn run(parent: Option<&dyn Rows>, root: B256, changes: &Changes) -> Result<Update, TrieError> {
    let touched = touched(changes);
    let slots: usize = changes
        .storages
        .values()
        .map(|storage| 1 + storage.slots.len())
        .sum();
    let account = |(hash, account, storage)| account_update(parent, hash, account, storage);
    let accounts: Result<Vec<_>, TrieError> = match touched.len() + slots < SHARED {
        true => touched.into_iter().map(account).collect(),
        false => touched.into_par_iter().map(account).collect(),
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
            leaves.push(Change {
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
    Ok(Update {
        state_root,
        storage_roots,
        overlay: Overlay { rows, codes },
    })
}

/// What changes at one account: `None` if the account itself is not listed, and its storage.
type Touched<'a> = (
    B256,
    Option<Option<AccountChange>>,
    Option<&'a StorageChange>,
);

/// Every account with a change, by hash, ascending.
fn touched(changes: &Changes) -> Vec<Touched<'_>> {
    let mut all: BTreeMap<B256, Touched<'_>> = changes
        .accounts
        .iter()
        .map(|(hash, account)| (*hash, (*hash, Some(*account), changes.storages.get(hash))))
        .collect();
    for (hash, storage) in &changes.storages {
        all.entry(*hash).or_insert((*hash, None, Some(storage)));
    }
    all.into_values().collect()
}

struct AccountUpdate {
    hash: B256,
    before: Option<Bytes>,
    after: Option<Bytes>,
    /// If the storage changed.
    storage_root: Option<B256>,
    rows: BTreeMap<Bytes, RowChange>,
}

fn account_update(
    parent: Option<&dyn Rows>,
    hash: B256,
    account: Option<Option<AccountChange>>,
    storage: Option<&StorageChange>,
) -> Result<AccountUpdate, TrieError> {
    let before = row(parent, &keys::account(&hash))?;
    let old = before.as_ref().map(|row| decode_account(row)).transpose()?;
    let old_root = old.map_or(EMPTY_ROOT_HASH, |a| a.storage_root);
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

/// The storage trie of one account: its new root and the changed rows.
fn storage_update(
    parent: Option<&dyn Rows>,
    account: &B256,
    root: B256,
    change: &StorageChange,
) -> Result<(B256, BTreeMap<Bytes, RowChange>), TrieError> {
    let mut rows = BTreeMap::new();
    if change.wiped
        && let Some(parent) = parent
    {
        for prefix in [
            keys::storage_prefix(account),
            keys::storage_node_prefix(account),
        ] {
            for row in parent.scan(&prefix, &prefix)? {
                let (key, value) = row?;
                rows.insert(
                    key,
                    RowChange {
                        before: Some(value),
                        after: None,
                    },
                );
            }
        }
    }
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
    let befores: Result<Vec<_>, TrieError> = match change.slots.len() < SHARED {
        true => change.slots.keys().map(before).collect(),
        false => change
            .slots
            .par_iter()
            .map(|(slot, _)| before(slot))
            .collect(),
    };
    for ((slot, value), (key, before)) in change.slots.iter().zip(befores?) {
        let after = (!value.is_zero()).then(|| Bytes::from(value.to_be_bytes_trimmed_vec()));
        if before != after || change.wiped {
            let value = after.as_ref().map(|value| slot_leaf(value));
            leaves.push(Change {
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

fn row(parent: Option<&dyn Rows>, key: &[u8]) -> Result<Option<Bytes>, TrieError> {
    Ok(parent.map(|state| state.row(key)).transpose()?.flatten())
}

/// An account as its row and its leaf hold it.
pub(super) fn decode_account(mut row: &[u8]) -> Result<Account, ReadError> {
    let account = TrieAccount::decode(&mut row)
        .map_err(|e| ReadError::Damaged(format!("an account cannot be read: {e}")))?;
    Ok(Account {
        nonce: account.nonce,
        balance: account.balance,
        storage_root: account.storage_root,
        code_hash: account.code_hash,
    })
}

fn encode_account(account: &AccountChange, storage_root: B256) -> Bytes {
    let AccountChange {
        nonce,
        balance,
        code_hash,
    } = *account;
    alloy_rlp::encode(TrieAccount {
        nonce,
        balance,
        storage_root,
        code_hash,
    })
    .into()
}

/// The row of an account.
pub(super) fn encode_account_row(account: &Account) -> Bytes {
    let Account {
        nonce,
        balance,
        storage_root,
        code_hash,
    } = *account;
    encode_account(
        &AccountChange {
            nonce,
            balance,
            code_hash,
        },
        storage_root,
    )
}

/// A slot's value as its row holds it.
pub(super) fn decode_slot(row: &[u8]) -> Result<U256, ReadError> {
    U256::try_from_be_slice(row)
        .ok_or_else(|| ReadError::Damaged("a storage value is longer than 32 bytes".into()))
}

/// The leaf of a slot: the RLP of the row.
pub(super) fn slot_leaf(row: &[u8]) -> Bytes {
    let mut leaf = Vec::with_capacity(1 + row.len());
    row.encode(&mut leaf);
    leaf.into()
}

/// Nodes out of the rows of a state. Remembers the rows it gave out: they are the befores of the trie's rows.
struct StateSource<'a> {
    state: Option<&'a dyn Rows>,
    /// The storage trie of this account; the state trie if `None`.
    account: Option<B256>,
    loaded: Mutex<Vec<(Bytes, Bytes)>>,
}

impl<'a> StateSource<'a> {
    fn new(state: Option<&'a dyn Rows>, account: Option<B256>) -> Self {
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

    /// The one leaf below `path`, found in the flat rows.
    fn leaf(&self, state: &dyn Rows, path: &Nibbles) -> Result<Option<Node>, TrieError> {
        let trie = match &self.account {
            None => keys::account_prefix(),
            Some(account) => keys::storage_prefix(account),
        };
        // An odd path ends in the middle of a byte: search from its high half on and compare what is found.
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

    /// Adds the trie's rows to the changed rows: what was loaded is before, what the new trie holds is after.
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

impl Source for StateSource<'_> {
    fn load(&self, path: &Nibbles, reference: &RlpNode, kind: Kind) -> Result<Node, TrieError> {
        let missing = || TrieError::Missing {
            path: format!("{path:?}"),
            hash: reference.as_hash(),
        };
        let state = self.state.ok_or_else(missing)?;
        if kind != Kind::Leaf {
            let key = self.row_key(path);
            if let Some(row) = state.row(&key)? {
                let node = decode_row(&row, path)?;
                if kind == Kind::Branch && !matches!(node, Node::Branch(_)) {
                    return Err(TrieError::Damaged(format!(
                        "the node at path {path:?} is no branch"
                    )));
                }
                self.loaded.lock().push((key, row));
                return Ok(node);
            }
            // Only the root may be a leaf without its parent knowing it. It must be the whole trie, not what is left of one.
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
