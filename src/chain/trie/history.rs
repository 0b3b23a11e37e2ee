//! Trie history: references to trie nodes before a block, by path. Node rows can be restored from
//! them as of any earlier block.
//!
//! The entries of a block are the old values, by path, of the references that the block changes,
//! never whole nodes. A node as of an earlier block is assembled from the references of its
//! children. For each child, one seek finds its oldest entry of a later block, which contains the
//! child's reference; a child without such an entry is unchanged. The persister computes entries
//! for every stored block, so cost matters: rows are compared as bytes, and no node is hashed.
//! Pure: `store/proofs.rs` stores the entries.

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

/// Tag of an entry for a path at which there was no node, or at which the root was a leaf: leaves
/// have no rows, and no branch has a reference to the root.
const NOTHING: u8 = 0;
/// Tag of an entry for a leaf. The leaf's reference follows.
const LEAF: u8 = 1;
/// Tag of an entry for a branch. The branch's reference follows.
const BRANCH: u8 = 2;
/// Tag of an entry for an extension. The number of its nibbles, the nibbles and its child's
/// reference follow.
const EXTENSION: u8 = 3;

/// Computes the entries of a block. Their keys are those of node rows at the same path. `rows` are
/// all trie rows that the block changes, in the order of their keys. A row that cannot be parsed
/// counts as absent, since every proof is checked when it is built.
pub fn entries<'a>(
    rows: impl Iterator<Item = (&'a Bytes, &'a RowChange)>,
    mut put: impl FnMut(&[u8], &[u8]),
) {
    // Old values of the changed rows on the path to the current row, from the root down.
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
        // The parent's reference to this node before the block; `None` if there was none, as for a
        // root.
        let named = ancestors
            .iter()
            .rev()
            .find_map(|(other, row)| row.as_ref()?.child(&key[other.len()..]));
        put(key, &entry(before.as_ref(), named));
        // Leaves have no node rows, so their entries are computed from the branch above them.
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

/// The entry of a node whose row changed. `before` is its old row, `named` its parent's old
/// reference to it.
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

/// An entry of a tag, followed by a reference if there is one.
fn tagged(tag: u8, named: Option<ChildRef<'_>>) -> Vec<u8> {
    let mut entry = vec![tag];
    entry.extend_from_slice(named.map_or(&[], |child| child.reference));
    entry
}

/// Reads, by the key of a node's row, the current row or the oldest entry after a block.
type Lookup<'a> = dyn Fn(&[u8]) -> Result<Option<Bytes>, ReadError> + 'a;

/// The row of a node as of an earlier block. `entry_at` returns the oldest entry of a node after
/// that block, or `None` if there is no such entry; `now` returns the current row.
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
            // The branch has since been replaced by an extension whose child is this child.
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

/// Whether `entry` is a valid entry of trie history.
pub fn is_entry(entry: &[u8]) -> bool {
    // The entry of a root has no reference, since the header or the account has the root's hash.
    matches!(entry, [BRANCH]) || decode_child(entry).is_some()
}

/// The child node for which an entry was written; `None` if the entry is damaged.
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

/// Splits the entry of an extension, after its tag, into its nibbles and its child's reference.
fn extension(rest: &[u8]) -> Option<(&[u8], &[u8])> {
    let (count, rest) = rest.split_first()?;
    let (nibbles, child) = rest.split_at_checked(usize::from(*count))?;
    (!nibbles.is_empty() && nibbles.len() < 64 && nibbles.iter().all(|nibble| *nibble < 16))
        .then_some((nibbles, child))
}
