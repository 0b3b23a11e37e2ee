//! Trie history: the node at a path of a trie before a block, so that node rows can be restored as
//! of any earlier block.
//!
//! The entries of a block are the old values of the references that it changes, by path, never
//! whole nodes. A node as of an earlier block is assembled from its children: the oldest entry of
//! each after that block holds its reference, found with one seek, and a child without an entry is
//! unchanged. The persister computes entries for every stored block, so cost matters: rows are
//! compared as bytes, and no node is hashed. Pure: `store/proofs.rs` stores the entries.

use crate::chain::{
    rows::{ReadError, RowChange},
    trie::{
        node::{
            ChildRef, Node, NodeKind, RowRef, branch_row, decode_reference, decode_row,
            extension_row, parse_row, present, present_mask,
        },
        walk::reference_of,
    },
};
use alloy_primitives::Bytes;
use alloy_trie::Nibbles;

/// Tag of an entry without a node, or of a node that no branch names.
const NOTHING: u8 = 0;
/// Tag of a leaf, before its reference.
const LEAF: u8 = 1;
/// Tag of a branch, before its reference.
const BRANCH: u8 = 2;
/// Tag of an extension, before the number of its nibbles, the nibbles and its child's reference.
const EXTENSION: u8 = 3;

/// Computes the entries of a block, keyed like the row of a node at the same path. `rows` are all
/// trie rows that the block changes, in the order of their keys. A row that cannot be parsed counts
/// as absent: proofs are checked when they are built.
pub fn entries<'a>(
    rows: impl Iterator<Item = (&'a Bytes, &'a RowChange)>,
    mut put: impl FnMut(&[u8], &[u8]),
) {
    // The old values of the changed rows on the path to the current one, from the root down.
    let mut ancestors: Vec<(&Bytes, Option<RowRef<'_>>)> = Vec::new();
    for (key, row) in rows {
        let [before, after] =
            [&row.before, &row.after].map(|row| row.as_ref().and_then(|row| parse_row(row)));
        while ancestors
            .last()
            .is_some_and(|(other, _)| !key.starts_with(other))
        {
            ancestors.pop();
        }
        // How the parent named the node before the block. An unchanged parent is not listed.
        let named = ancestors
            .iter()
            .rev()
            .find_map(|(other, row)| row.as_ref()?.child(&key[other.len()..]));
        put(key, &entry(before.as_ref(), named));
        // Leaves have no rows of their own, so the branch writes their entries.
        for index in 0..16u8 {
            let [was, is] =
                [&before, &after].map(|row| row.as_ref().and_then(|row| row.child(&[index])));
            let is_node = |child: Option<ChildRef<'_>>| child.is_some_and(|child| !child.is_leaf);
            if was != is && !is_node(was) && !is_node(is) {
                let tag = if was.is_some() { LEAF } else { NOTHING };
                put(&[key.as_ref(), &[index]].concat(), &tagged(tag, was));
            }
        }
        ancestors.push((key, before));
    }
}

/// The entry of the node at a changed row: `before` is its old row, `named` its old reference.
fn entry(before: Option<&RowRef<'_>>, named: Option<ChildRef<'_>>) -> Vec<u8> {
    match (before, named) {
        (Some(RowRef::Branch(_)), named) => tagged(BRANCH, named),
        (Some(RowRef::Extension { nibbles, child }), _) => {
            [&[EXTENSION, nibbles.len() as u8], *nibbles, *child].concat()
        }
        (None, Some(ChildRef { is_leaf: true, .. })) => tagged(LEAF, named),
        (None, _) => vec![NOTHING],
    }
}

/// An entry of a tag and a reference, if there is one.
fn tagged(tag: u8, named: Option<ChildRef<'_>>) -> Vec<u8> {
    let mut entry = vec![tag];
    entry.extend_from_slice(named.map_or(&[], |child| child.reference));
    entry
}

/// A lookup by the key of a node's row.
type Lookup<'a> = dyn Fn(&[u8]) -> Result<Option<Bytes>, ReadError> + 'a;

/// The row of a node as of an earlier block: `entry_at` returns the oldest entry of a node after
/// that block, if there is one, and `now` the current row.
pub fn row_at(
    key: &[u8],
    entry_at: &Lookup<'_>,
    now: &Lookup<'_>,
) -> Result<Option<Bytes>, ReadError> {
    let damaged = || damaged(key);
    let Some(entry) = entry_at(key)? else {
        return now(key);
    };
    match entry.split_first().ok_or_else(damaged)? {
        (&(NOTHING | LEAF), _) => Ok(None),
        (&EXTENSION, rest) => {
            let (nibbles, child) = extension(rest).ok_or_else(damaged)?;
            Ok(Some(extension_row(
                &Nibbles::from_nibbles(nibbles),
                &decode_reference(child).ok_or_else(damaged)?,
            )))
        }
        (&BRANCH, _) => branch_at(key, entry_at, now).map(Some),
        _ => Err(damaged()),
    }
}

/// Assembles the row of a branch as of an earlier block.
fn branch_at(key: &[u8], entry_at: &Lookup<'_>, now: &Lookup<'_>) -> Result<Bytes, ReadError> {
    let damaged = || damaged(key);
    let row = now(key)?;
    let row = row.as_ref().and_then(|row| parse_row(row));
    let mut children = Node::empty_branch();
    for index in 0..16u8 {
        let path = [key, &[index]].concat();
        let child = match (entry_at(&path)?, &row) {
            (Some(entry), _) => decode_child(&entry).ok_or_else(damaged)?,
            (None, Some(RowRef::Branch(children))) => match children[usize::from(index)] {
                Some(child) => child.decode().ok_or_else(damaged)?,
                None => Node::Empty,
            },
            // The branch has been replaced by an extension that still names this child.
            (None, _) => match now(&path)? {
                Some(row) => {
                    let node = decode_row(&row, &Nibbles::new()).map_err(|_| damaged())?;
                    Node::Stored {
                        reference: reference_of(&node),
                        kind: NodeKind::Any,
                    }
                }
                None => Node::Empty,
            },
        };
        children[usize::from(index)] = child;
    }
    let mask = present_mask(&children);
    let references: Vec<_> = present(&children, mask).map(reference_of).collect();
    Ok(branch_row(&children, mask, &references))
}

fn damaged(key: &[u8]) -> ReadError {
    ReadError::Damaged(format!(
        "the trie history of node {} cannot be read",
        alloy_primitives::hex::encode(key)
    ))
}

/// Whether this is a valid entry.
pub fn is_entry(entry: &[u8]) -> bool {
    // The entry of a root has no reference, since the header or the account holds it.
    matches!(entry, [BRANCH]) || decode_child(entry).is_some()
}

/// The child that an entry describes; `None` if the entry is damaged.
fn decode_child(entry: &[u8]) -> Option<Node> {
    let (tag, rest) = entry.split_first()?;
    Some(match *tag {
        NOTHING if rest.is_empty() => Node::Empty,
        LEAF => Node::Stored {
            reference: decode_reference(rest)?,
            kind: NodeKind::Leaf,
        },
        BRANCH => Node::Stored {
            reference: decode_reference(rest)?,
            kind: NodeKind::Any,
        },
        EXTENSION => {
            let (nibbles, child) = extension(rest)?;
            let child = Box::new(Node::Stored {
                reference: decode_reference(child)?,
                kind: NodeKind::Branch,
            });
            let whole = Node::Extension {
                nibbles: Nibbles::from_nibbles(nibbles),
                child,
            };
            Node::Stored {
                reference: reference_of(&whole),
                kind: NodeKind::Any,
            }
        }
        _ => return None,
    })
}

/// Splits the entry of an extension into its nibbles and its child's reference.
fn extension(rest: &[u8]) -> Option<(&[u8], &[u8])> {
    let (count, rest) = rest.split_first()?;
    let (nibbles, child) = rest.split_at_checked(usize::from(*count))?;
    (!nibbles.is_empty() && nibbles.len() < 64 && nibbles.iter().all(|nibble| *nibble < 16))
        .then_some((nibbles, child))
}
