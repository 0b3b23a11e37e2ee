//! The walk: a sorted batch of changes goes down the trie once, loading nodes on changed paths only, and references come back up.

use crate::chain::trie::{
    SHARED, TrieError,
    node::{Kind, Node, branch_row, extension_row, nibble, rlp_branch, rlp_extension, rlp_leaf},
};
use alloy_primitives::{B256, Bytes, keccak256};
use alloy_trie::{EMPTY_ROOT_HASH, Nibbles, nodes::RlpNode};
use rayon::prelude::*;

/// One changed leaf. A batch is sorted by key and holds each key once.
#[derive(Clone, Debug)]
pub(super) struct Change {
    pub key: B256,
    /// The leaf's value as the trie encodes it; `None` removes the leaf.
    pub value: Option<Bytes>,
    /// The leaf is known to exist already. Saves a search; false is always right.
    pub exists: bool,
}

/// Where nodes come from. Asked by several threads at once if many leaves change.
pub(super) trait Source: Sync {
    /// The node with this reference at this path. Never [`Node::Empty`] nor [`Node::Stored`].
    fn load(&self, path: &Nibbles, reference: &RlpNode, kind: Kind) -> Result<Node, TrieError>;
}

/// The root node of a trie with this root hash, not yet loaded.
pub(super) fn root_node(root: B256) -> Node {
    match root {
        EMPTY_ROOT_HASH => Node::Empty,
        _ => Node::Stored {
            reference: RlpNode::word_rlp(&root),
            kind: Kind::Any,
        },
    }
}

/// Applies a batch of changes to the trie under `root`.
pub(super) fn apply<S: Source>(
    source: &S,
    root: B256,
    changes: &[Change],
) -> Result<Node, TrieError> {
    update(source, root_node(root), Nibbles::new(), changes)
}

/// The value of one leaf, or `None` if the trie does not hold the key.
pub(super) fn find<S: Source>(
    source: &S,
    root: B256,
    key: &B256,
) -> Result<Option<Bytes>, TrieError> {
    let whole = Nibbles::unpack(key);
    let (mut node, mut path) = (root_node(root), Nibbles::new());
    loop {
        node = match node {
            Node::Empty => return Ok(None),
            Node::Stored { reference, kind } => source.load(&path, &reference, kind)?,
            Node::Leaf { key: found, value } => return Ok((found == *key).then_some(value)),
            Node::Extension { nibbles, child } => {
                path = path.join(&nibbles);
                if !whole.starts_with(&path) {
                    return Ok(None);
                }
                *child
            }
            Node::Branch(mut children) => {
                let index = nibble(key, path.len());
                path.push(index as u8);
                std::mem::replace(&mut children[index], Node::Empty)
            }
        }
    }
}

pub(super) fn update<S: Source>(
    source: &S,
    node: Node,
    path: Nibbles,
    changes: &[Change],
) -> Result<Node, TrieError> {
    let (Some(first), Some(last)) = (changes.first(), changes.last()) else {
        return Ok(node);
    };
    match node {
        Node::Empty => Ok(build(path.len(), &leaves(changes, None))),
        // The leaf here is the one that is known to exist and changes: no need to look for it.
        Node::Stored {
            kind: Kind::Leaf, ..
        } if changes.iter().any(|c| c.exists) => Ok(build(path.len(), &leaves(changes, None))),
        Node::Stored { reference, kind } => {
            update(source, source.load(&path, &reference, kind)?, path, changes)
        }
        Node::Leaf { key, value } => Ok(build(path.len(), &leaves(changes, Some((key, value))))),
        Node::Extension { nibbles, child } => {
            // Changes are sorted, so the one that leaves the extension earliest is the first or the last.
            let shared = |change: &Change| {
                Nibbles::unpack(change.key)
                    .slice(path.len()..)
                    .common_prefix_length(&nibbles)
            };
            let shared = shared(first).min(shared(last));
            if shared == nibbles.len() {
                let below = path.join(&nibbles);
                let child = update(source, *child, below, changes)?;
                return join(source, nibbles, child, below);
            }
            let (above, at, rest) = (
                nibbles.slice(..shared),
                nibbles.get(shared),
                nibbles.slice(shared + 1..),
            );
            let mut children = Node::empty_branch();
            children[usize::from(at.unwrap_or_default())] = if rest.is_empty() {
                *child
            } else {
                Node::Extension {
                    nibbles: rest,
                    child,
                }
            };
            let below = path.join(&above);
            let branch = update_branch(source, children, below, changes)?;
            join(source, above, branch, below)
        }
        Node::Branch(children) => update_branch(source, children, path, changes),
    }
}

fn update_branch<S: Source>(
    source: &S,
    mut children: Box<[Node; 16]>,
    path: Nibbles,
    changes: &[Change],
) -> Result<Node, TrieError> {
    let mut rest = changes;
    let parts: [&[Change]; 16] = std::array::from_fn(|index| {
        let (here, others) =
            rest.split_at(rest.partition_point(|change| nibble(&change.key, path.len()) <= index));
        rest = others;
        here
    });
    let change = |(index, (child, part)): (usize, (&mut Node, &&[Change]))| {
        if !part.is_empty() {
            *child = update(
                source,
                std::mem::replace(child, Node::Empty),
                child_path(&path, index),
                part,
            )?;
        }
        Ok::<_, TrieError>(())
    };
    match changes.len() < SHARED {
        true => children
            .iter_mut()
            .zip(&parts)
            .enumerate()
            .try_for_each(change)?,
        false => children
            .par_iter_mut()
            .zip(&parts)
            .enumerate()
            .try_for_each(change)?,
    }
    let mut present = (0..16).filter(|i| children[*i] != Node::Empty);
    match (present.next(), present.next()) {
        (None, _) => Ok(Node::Empty),
        (Some(only), None) => {
            drop(present);
            let child = std::mem::replace(&mut children[only], Node::Empty);
            join(
                source,
                Nibbles::from_nibbles([only as u8]),
                child,
                child_path(&path, only),
            )
        }
        _ => {
            drop(present);
            Ok(Node::Branch(children))
        }
    }
}

/// Puts `nibbles` before a node that stands at `path`; a node that can take them up itself does.
fn join<S: Source>(
    source: &S,
    nibbles: Nibbles,
    node: Node,
    path: Nibbles,
) -> Result<Node, TrieError> {
    if nibbles.is_empty() {
        return Ok(node);
    }
    Ok(match node {
        Node::Empty | Node::Leaf { .. } => node,
        Node::Branch(_)
        | Node::Stored {
            kind: Kind::Branch, ..
        } => Node::Extension {
            nibbles,
            child: Box::new(node),
        },
        Node::Extension {
            nibbles: more,
            child,
        } => Node::Extension {
            nibbles: nibbles.join(&more),
            child,
        },
        Node::Stored { reference, kind } => {
            let loaded = source.load(&path, &reference, kind)?;
            return join(source, nibbles, loaded, path);
        }
    })
}

/// The leaves that are left where an old leaf (if any) meets the changes.
fn leaves(changes: &[Change], old: Option<(B256, Bytes)>) -> Vec<(B256, Bytes)> {
    let mut leaves: Vec<_> = changes
        .iter()
        .filter_map(|c| Some((c.key, c.value.clone()?)))
        .collect();
    if let Some(old) = old
        && changes.binary_search_by_key(&old.0, |c| c.key).is_err()
    {
        leaves.insert(leaves.partition_point(|l| l.0 < old.0), old);
    }
    leaves
}

/// A trie from nothing. All keys agree in their first `depth` nibbles.
fn build(depth: usize, leaves: &[(B256, Bytes)]) -> Node {
    let (Some((first, value)), Some((last, _))) = (leaves.first(), leaves.last()) else {
        return Node::Empty;
    };
    if leaves.len() == 1 {
        return Node::Leaf {
            key: *first,
            value: value.clone(),
        };
    }
    let whole = Nibbles::unpack(first);
    let fork = whole.common_prefix_length(&Nibbles::unpack(last));
    let mut children = Node::empty_branch();
    let mut rest = leaves;
    while let Some((key, _)) = rest.first() {
        let index = nibble(key, fork);
        let (here, more) = rest.split_at(rest.partition_point(|l| nibble(&l.0, fork) <= index));
        children[index] = build(fork + 1, here);
        rest = more;
    }
    let branch = Node::Branch(children);
    if fork == depth {
        branch
    } else {
        Node::Extension {
            nibbles: whole.slice(depth..fork),
            child: Box::new(branch),
        }
    }
}

/// The root hash of a trie, and the rows of all its nodes that are in memory, by path.
pub(super) fn seal(root: &Node) -> (B256, Vec<(Nibbles, Bytes)>) {
    let mut rows = Vec::new();
    if *root == Node::Empty {
        return (EMPTY_ROOT_HASH, rows);
    }
    let reference = reference(root, Nibbles::new(), true, &mut rows);
    (
        reference.as_hash().unwrap_or_else(|| keccak256(&reference)),
        rows,
    )
}

/// The reference of a node whose children are references.
pub(super) fn reference_of(node: &Node) -> RlpNode {
    reference(node, Nibbles::new(), false, &mut Vec::new())
}

/// Whether so many leaves have changed below that it is worth to share the hashing out. Looks at no more; `seen` counts.
fn is_large(node: &Node, seen: &mut usize) -> bool {
    *seen += usize::from(matches!(node, Node::Leaf { .. }));
    *seen >= SHARED
        || match node {
            Node::Extension { child, .. } => is_large(child, seen),
            Node::Branch(children) => children.iter().any(|child| is_large(child, seen)),
            _ => false,
        }
}

/// `large` if [`is_large`] may say so of the node: of nothing below a node of which it does not.
fn reference(node: &Node, path: Nibbles, large: bool, rows: &mut Vec<(Nibbles, Bytes)>) -> RlpNode {
    match node {
        // Not reached: an empty child is no child. The empty string is what RLP would hold there.
        Node::Empty => RlpNode::from_rlp(&[alloy_rlp::EMPTY_STRING_CODE]),
        Node::Stored { reference, .. } => reference.clone(),
        Node::Leaf { key, value } => RlpNode::from_rlp(&rlp_leaf(key, path.len(), value)),
        Node::Extension { nibbles, child } => {
            let child = reference(child, path.join(nibbles), large, rows);
            rows.push((path, extension_row(nibbles, &child)));
            RlpNode::from_rlp(&rlp_extension(nibbles, &child))
        }
        Node::Branch(children) => {
            let large = large && is_large(node, &mut 0);
            let present: Vec<_> = (0..16)
                .filter(|index| children[*index] != Node::Empty)
                .collect();
            let mask = present.iter().fold(0u16, |mask, index| mask | 1 << index);
            let child = |index: usize, rows: &mut _| {
                reference(&children[index], child_path(&path, index), large, rows)
            };
            let references: Vec<_> = match large {
                true => {
                    let alone = |index| {
                        let mut rows = Vec::new();
                        (child(index, &mut rows), rows)
                    };
                    let (references, others): (_, Vec<_>) =
                        present.into_par_iter().map(alone).unzip();
                    rows.extend(others.into_iter().flatten());
                    references
                }
                false => present
                    .into_iter()
                    .map(|index| child(index, rows))
                    .collect(),
            };
            rows.push((path, branch_row(children, mask, &references)));
            RlpNode::from_rlp(&rlp_branch(mask, &references))
        }
    }
}

fn child_path(path: &Nibbles, index: usize) -> Nibbles {
    let mut path = *path;
    path.push(index as u8);
    path
}
