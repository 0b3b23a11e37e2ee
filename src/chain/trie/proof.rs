//! Merkle proofs of one account and its slots: the nodes on the path from the root to the position
//! of a key (EIP-1186).
//!
//! Serves JSON-RPC; a proof costs one walk down the trie per key. Every node is checked against its
//! parent's reference, so a damaged row leads to an error and never to a proof of another value.

use crate::chain::{
    rows::{
        Account,
        account::{decode_slot, slot_leaf},
        keys,
    },
    trie::{
        StateRows, StateSource, TrieError,
        node::{
            Node, NodeKind, nibble, present, present_mask, rlp_branch, rlp_extension, rlp_leaf,
        },
        row,
        walk::{NodeSource, root_node},
    },
};
use alloy_primitives::{B256, Bytes, U256};
use alloy_trie::{EMPTY_ROOT_HASH, Nibbles, nodes::RlpNode};

/// Proof of an account in a state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccountProof {
    /// The account; `None` if the proof shows that it does not exist.
    pub account: Option<Account>,
    /// RLP of the nodes from the state root down. A node whose RLP is shorter than 32 bytes is
    /// embedded in its parent and not listed again.
    pub nodes: Vec<Bytes>,
    /// Proofs of slots, in the order of the request.
    pub slots: Vec<SlotProof>,
}

/// Proof of one slot in a storage trie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlotProof {
    pub value: U256,
    /// RLP of the nodes from the account's storage root down, listed as in [`AccountProof::nodes`];
    /// empty if the account has no storage.
    pub nodes: Vec<Bytes>,
}

/// Proves an account and slots of it, all given by their hashes, in a state with this root. The
/// state must have a trie.
pub fn prove(
    state: &dyn StateRows,
    state_root: B256,
    hash: &B256,
    slots: &[B256],
) -> Result<AccountProof, TrieError> {
    let found = row(Some(state), &keys::account(hash))?;
    let account = found.as_ref().map(|row| Account::decode(row)).transpose()?;
    let nodes = path(
        &StateSource::new(Some(state), None),
        state_root,
        hash,
        found.as_ref(),
    )?;
    let root = account.map_or(EMPTY_ROOT_HASH, |account| account.storage_root);
    let slots = slots.iter().map(|key| {
        let found = row(Some(state), &keys::slot(hash, key))?;
        let value = found
            .as_ref()
            .map_or(Ok(U256::ZERO), |row| decode_slot(row))?;
        let leaf = found.map(|row| slot_leaf(&row));
        let nodes = path(
            &StateSource::new(Some(state), Some(*hash)),
            root,
            key,
            leaf.as_ref(),
        )?;
        Ok(SlotProof { value, nodes })
    });
    Ok(AccountProof {
        account,
        nodes,
        slots: slots.collect::<Result<_, TrieError>>()?,
    })
}

/// The RLP of the nodes from the root towards a key. `leaf` is the value in the flat rows, which
/// must equal the value in the trie.
pub(super) fn path<S: NodeSource>(
    source: &S,
    root: B256,
    key: &B256,
    leaf: Option<&Bytes>,
) -> Result<Vec<Bytes>, TrieError> {
    let (mut node, mut path) = (root_node(root), Nibbles::new());
    let mut nodes = Vec::new();
    let found = loop {
        let Node::Stored { reference, kind } = node else {
            break None;
        };
        // `leaf` already has the value. Loading the leaf would search the flat rows again, which is
        // slow in an old state from which many rows have changed.
        let known = leaf
            .filter(|_| kind == NodeKind::Leaf || path.is_empty())
            .map(|value| (value, rlp_leaf(key, path.len(), value)));
        let loaded = match known {
            Some((value, rlp)) if RlpNode::from_rlp(&rlp) == reference => Node::Leaf {
                key: *key,
                value: value.clone(),
            },
            _ => source.load(&path, &reference, kind)?,
        };
        let rlp = encode(&loaded, path.len())?;
        if RlpNode::from_rlp(&rlp) != reference {
            return Err(TrieError::Damaged(format!(
                "the node at path {path:?} is not the one its parent names"
            )));
        }
        // The root is always listed, since its RLP is at least 32 bytes long.
        if rlp.len() >= 32 {
            nodes.push(rlp.into());
        }
        node = match loaded {
            Node::Leaf { key: found, value } => break (found == *key).then_some(value),
            Node::Extension { nibbles, child } => {
                path = path.join(&nibbles);
                if !Nibbles::unpack(key).starts_with(&path) {
                    break None;
                }
                *child
            }
            Node::Branch(mut children) => {
                let index = nibble(key, path.len());
                path.push(index as u8);
                std::mem::replace(&mut children[index], Node::Empty)
            }
            Node::Empty | Node::Stored { .. } => break None,
        };
    };
    if found.as_ref() == leaf {
        Ok(nodes)
    } else {
        Err(TrieError::Damaged(format!(
            "the trie and the row of key {key} differ"
        )))
    }
}

/// The RLP of a loaded node; all its children must be references.
pub(super) fn encode(node: &Node, depth: usize) -> Result<Vec<u8>, TrieError> {
    let reference = |node: &Node| match node {
        Node::Stored { reference, .. } => Ok(reference.clone()),
        _ => Err(TrieError::Damaged("a loaded node holds another".into())),
    };
    Ok(match node {
        Node::Leaf { key, value } => rlp_leaf(key, depth, value),
        Node::Extension { nibbles, child } => rlp_extension(nibbles, &reference(child)?),
        Node::Branch(children) => {
            let mask = present_mask(children);
            let references: Vec<_> = present(children, mask)
                .map(reference)
                .collect::<Result<_, _>>()?;
            rlp_branch(mask, &references)
        }
        Node::Empty | Node::Stored { .. } => {
            return Err(TrieError::Damaged("a source gave no node".into()));
        }
    })
}
