//! The walk: applies a sorted batch of changes to a trie in one descent. Loads the nodes on changed
//! paths, and a sibling that moves up when a key is removed.

use crate::chain::trie::{
    PARALLEL, TrieError,
    node::{
        Node, NodeKind, branch_row, extension_row, nibble, present_mask, rlp_branch, rlp_extension,
        rlp_leaf,
    },
};
use alloy_primitives::{B256, Bytes, keccak256};
use alloy_trie::{EMPTY_ROOT_HASH, Nibbles, nodes::RlpNode};
use rayon::prelude::*;

/// One changed leaf. A batch is sorted by key and has each key once.
#[derive(Clone, Debug)]
pub(super) struct LeafChange {
    pub key: B256,
    /// The encoded value of the leaf; `None` removes the leaf.
    pub value: Option<Bytes>,
    /// Whether the leaf is known to exist, which saves loading it; false is always correct.
    pub exists: bool,
}

/// Source of nodes. Several threads use it at once if many leaves change.
pub(super) trait NodeSource: Sync {
    /// Loads the node with this reference at this path. Never returns [`Node::Empty`] or
    /// [`Node::Stored`].
    fn load(&self, path: &Nibbles, reference: &RlpNode, kind: NodeKind) -> Result<Node, TrieError>;
}

/// The root node of a trie with this root hash, not yet loaded.
pub(super) fn root_node(root: B256) -> Node {
    match root {
        EMPTY_ROOT_HASH => Node::Empty,
        _ => Node::Stored {
            reference: RlpNode::word_rlp(&root),
            kind: NodeKind::Any,
        },
    }
}

/// Applies a batch of changes to the trie under `root`.
pub(super) fn apply<S: NodeSource>(
    source: &S,
    root: B256,
    changes: &[LeafChange],
) -> Result<Node, TrieError> {
    update(source, root_node(root), Nibbles::new(), changes)
}

/// The value of one leaf; `None` if the trie does not have the key.
pub(super) fn find<S: NodeSource>(
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

/// Applies changes to the node at `path`. The keys of all changes begin with `path`.
pub(super) fn update<S: NodeSource>(
    source: &S,
    node: Node,
    path: Nibbles,
    changes: &[LeafChange],
) -> Result<Node, TrieError> {
    let (Some(first), Some(last)) = (changes.first(), changes.last()) else {
        return Ok(node);
    };
    match node {
        Node::Empty => Ok(build(path.len(), &leaves(changes, None))),
        // A changed leaf is known to exist below this node. This node is a leaf, so it is that
        // leaf, and the change replaces it without loading it.
        Node::Stored {
            kind: NodeKind::Leaf,
            ..
        } if changes.iter().any(|c| c.exists) => Ok(build(path.len(), &leaves(changes, None))),
        Node::Stored { reference, kind } => {
            update(source, source.load(&path, &reference, kind)?, path, changes)
        }
        Node::Leaf { key, value } => Ok(build(path.len(), &leaves(changes, Some((key, value))))),
        Node::Extension { nibbles, child } => {
            // Changes are sorted, so the first or the last change diverges from the extension
            // earliest.
            let shared = |change: &LeafChange| {
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
            // Split the extension with a branch where the earliest change diverges.
            let (above, rest) = (nibbles.slice(..shared), nibbles.slice(shared + 1..));
            let index = usize::from(nibbles.get(shared).unwrap_or_default());
            let mut children = Node::empty_branch();
            children[index] = if rest.is_empty() {
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

/// Applies changes to the children of a branch. A branch left with one child collapses into that
/// child, a branch with none is removed.
fn update_branch<S: NodeSource>(
    source: &S,
    mut children: Box<[Node; 16]>,
    path: Nibbles,
    changes: &[LeafChange],
) -> Result<Node, TrieError> {
    let mut rest = changes;
    let parts: [&[LeafChange]; 16] = std::array::from_fn(|index| {
        let (here, others) =
            rest.split_at(rest.partition_point(|change| nibble(&change.key, path.len()) <= index));
        rest = others;
        here
    });
    let change = |(index, (child, part)): (usize, (&mut Node, &&[LeafChange]))| {
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
    if changes.len() < PARALLEL {
        children
            .iter_mut()
            .zip(&parts)
            .enumerate()
            .try_for_each(change)?
    } else {
        children
            .par_iter_mut()
            .zip(&parts)
            .enumerate()
            .try_for_each(change)?
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

/// Prepends `nibbles` to the path of a node, which is at `path`. A branch gets an extension above
/// it, an extension is prolonged, and a leaf is unchanged, since it carries its whole key.
fn join<S: NodeSource>(
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
            kind: NodeKind::Branch,
            ..
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

/// The leaves below a node after the changes. `old` is the leaf that was there before, if any.
fn leaves(changes: &[LeafChange], old: Option<(B256, Bytes)>) -> Vec<(B256, Bytes)> {
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

/// Builds a trie from leaves, all of whose keys have the same first `depth` nibbles.
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

/// The root hash of a trie, and the rows of all its nodes that are in memory, each with its path.
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

/// Computes the reference of a node from the references of its children.
pub(super) fn reference_of(node: &Node) -> RlpNode {
    reference(node, Nibbles::new(), false, &mut Vec::new())
}

/// Whether enough leaves are in memory below this node to hash its children in parallel. `seen` is
/// the count so far; counting stops once it is large enough.
fn is_large(node: &Node, seen: &mut usize) -> bool {
    *seen += usize::from(matches!(node, Node::Leaf { .. }));
    *seen >= PARALLEL
        || match node {
            Node::Extension { child, .. } => is_large(child, seen),
            Node::Branch(children) => children.iter().any(|child| is_large(child, seen)),
            _ => false,
        }
}

/// Computes the reference of a node, and the rows below it. `large` is false if [`is_large`] is
/// known to be false for an ancestor.
fn reference(node: &Node, path: Nibbles, large: bool, rows: &mut Vec<(Nibbles, Bytes)>) -> RlpNode {
    match node {
        // Unreachable, since empty children are skipped. Their RLP would be the empty string.
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
            let mask = present_mask(children);
            let present = (0..16).filter(|index| mask & (1 << index) != 0);
            let child = |index: usize, rows: &mut _| {
                reference(&children[index], child_path(&path, index), large, rows)
            };
            let references: Vec<_> = if large {
                let alone = |index| {
                    let mut rows = Vec::new();
                    (child(index, &mut rows), rows)
                };
                let present: Vec<_> = present.collect();
                let (references, others): (_, Vec<_>) = present.into_par_iter().map(alone).unzip();
                rows.extend(others.into_iter().flatten());
                references
            } else {
                present.map(|index| child(index, rows)).collect()
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
