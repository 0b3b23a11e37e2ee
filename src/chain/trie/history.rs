//! Trie history: the node at a path of a trie before a block, so that node rows can be restored as
//! of any earlier block.
//!
//! The entries of a block are the references that it changes, by path, never whole nodes. A node as
//! of an earlier block is assembled from the oldest later entry of each of its children, one seek
//! each; a child without an entry is unchanged. The persister computes entries for every stored
//! block, so cost matters: rows are compared as bytes, and no node is hashed. Pure:
//! `store/proofs.rs` stores the entries.

use crate::chain::{
    rows::ReadError,
    trie::{
        node::{
            Node, NodeKind, RowRef, branch_row, decode_reference, decode_row, extension_row,
            parse_row,
        },
        walk::reference_of,
    },
};
use alloy_primitives::Bytes;
use alloy_trie::Nibbles;

/// No node, or none referenced by a branch.
const NOTHING: u8 = 0;
const LEAF: u8 = 1;
const BRANCH: u8 = 2;
/// An extension, with its nibbles and its child's reference in the place of its own.
const EXTENSION: u8 = 3;

/// A row of a trie with its value before and after a block.
pub type TrieRow<'a> = (&'a Bytes, Option<&'a Bytes>, Option<&'a Bytes>);

/// Computes the entries of a block, keyed like the row of a node at the same path. `rows` are all
/// trie rows that the block changes, in the order of their keys. A row that cannot be parsed counts
/// as absent: proofs are checked when they are built.
pub fn entries<'a>(rows: impl Iterator<Item = TrieRow<'a>>, mut put: impl FnMut(&[u8], &[u8])) {
    // The changed rows above this one, from the root down, with their old values.
    let mut above: Vec<(&Bytes, Option<RowRef<'_>>)> = Vec::new();
    for (key, before, after) in rows {
        let [before, after] = [before, after].map(|row| row.and_then(|row| parse_row(row)));
        while above
            .last()
            .is_some_and(|(other, _)| !key.starts_with(other))
        {
            above.pop();
        }
        let named = above
            .iter()
            .rev()
            .find_map(|(other, row)| row.as_ref()?.child(&key[other.len()..]));
        let named_as = |tag: u8, named: Option<(bool, &[u8])>| {
            let mut entry = vec![tag];
            named
                .iter()
                .for_each(|(_, reference)| entry.extend_from_slice(reference));
            entry
        };
        let entry = match (&before, named) {
            (Some(RowRef::Branch(_)), named) => named_as(BRANCH, named),
            (Some(RowRef::Extension { nibbles, child }), _) => {
                [&[EXTENSION, nibbles.len() as u8], *nibbles, *child].concat()
            }
            (None, Some((true, _))) => named_as(LEAF, named),
            (None, _) => vec![NOTHING],
        };
        put(key, &entry);
        // Leaves have no rows of their own, so the branch writes their entries.
        for index in 0..16u8 {
            let [was, is] =
                [&before, &after].map(|row| row.as_ref().and_then(|row| row.child(&[index])));
            let is_node = |child: Option<(bool, &[u8])>| matches!(child, Some((false, _)));
            if was != is && !is_node(was) && !is_node(is) {
                let tag = if was.is_some() { LEAF } else { NOTHING };
                put(&[key.as_ref(), &[index]].concat(), &named_as(tag, was));
            }
        }
        above.push((key, before));
    }
}

/// A lookup of a current row by its key.
type Now<'a> = dyn Fn(&[u8]) -> Result<Option<Bytes>, ReadError> + 'a;

/// The row of a node as of an earlier block: `entry_at` returns the oldest later entry of a path,
/// if there is one, and `now` the current row.
pub fn row_at(key: &[u8], entry_at: &Now<'_>, now: &Now<'_>) -> Result<Option<Bytes>, ReadError> {
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
fn branch_at(key: &[u8], entry_at: &Now<'_>, now: &Now<'_>) -> Result<Bytes, ReadError> {
    let damaged = || damaged(key);
    let row = now(key)?;
    let row = row.as_ref().and_then(|row| parse_row(row));
    let mut children = Node::empty_branch();
    for index in 0..16u8 {
        let path = [key, &[index]].concat();
        let child = match (entry_at(&path)?, &row) {
            (Some(entry), _) => decode_child(&entry).ok_or_else(damaged)?,
            (None, Some(RowRef::Branch(children))) => match children[usize::from(index)] {
                Some((is_leaf, reference)) => Node::Stored {
                    reference: decode_reference(reference).ok_or_else(damaged)?,
                    kind: NodeKind::of_child(is_leaf),
                },
                None => Node::Empty,
            },
            // A node can stay while the branch above it is removed: an extension references it now.
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
    let present = || {
        children
            .iter()
            .enumerate()
            .filter(|(_, child)| **child != Node::Empty)
    };
    let mask = present().fold(0, |mask, (index, _)| mask | 1 << index);
    let references: Vec<_> = present().map(|(_, child)| reference_of(child)).collect();
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
    // A root has no reference: the header or the account holds it.
    matches!(entry, [BRANCH]) || decode_child(entry).is_some()
}

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

fn extension(rest: &[u8]) -> Option<(&[u8], &[u8])> {
    let (count, rest) = rest.split_first()?;
    let (nibbles, child) = rest.split_at_checked(usize::from(*count))?;
    (!nibbles.is_empty() && nibbles.len() < 64 && nibbles.iter().all(|nibble| *nibble < 16))
        .then_some((nibbles, child))
}
