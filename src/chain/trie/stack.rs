//! A trie built from all its leaves in key order, in memory proportional to its depth. Computes the
//! root hash and the row of every branch and extension.

use crate::chain::trie::{
    TrieError,
    node::{
        KEY_NIBBLES, Node, NodeKind, branch_row, decode_row, extension_row, nibble, present,
        present_mask, rlp_branch, rlp_extension, rlp_leaf,
    },
    walk::{reference_of, seal},
};
use alloy_primitives::{B256, Bytes, keccak256};
use alloy_trie::{EMPTY_ROOT_HASH, Nibbles, nodes::RlpNode};

/// Accepts leaves in ascending order of keys, and emits the rows of branches and extensions as they
/// become final, children before parents.
#[derive(Default)]
pub struct StackTrie {
    /// Branches on the path to the last inserted leaf, by depth.
    open: Vec<OpenBranch>,
    /// Key and value of the last inserted leaf.
    last: Option<(B256, Bytes)>,
}

struct OpenBranch {
    depth: usize,
    children: Box<[Node; 16]>,
}

impl StackTrie {
    /// Adds the next leaf; its key must be above all earlier keys.
    pub fn insert<E>(
        &mut self,
        key: B256,
        value: Bytes,
        row: impl FnMut(Nibbles, Bytes) -> Result<(), E>,
    ) -> Result<(), E> {
        if let Some((last, old)) = self.last.replace((key, value)) {
            debug_assert!(last < key);
            let fork = (0..KEY_NIBBLES)
                .find(|depth| nibble(&last, *depth) != nibble(&key, *depth))
                .unwrap_or_default();
            self.close(&last, &old, Some(fork), row)?;
        }
        Ok(())
    }

    /// Adds the last leaf, emits the remaining rows, and returns the root hash.
    pub fn finish<E>(
        mut self,
        row: impl FnMut(Nibbles, Bytes) -> Result<(), E>,
    ) -> Result<B256, E> {
        let Some((last, value)) = self.last.take() else {
            return Ok(EMPTY_ROOT_HASH);
        };
        let root = self.close(&last, &value, None, row)?;
        Ok(root.map_or(EMPTY_ROOT_HASH, |root| {
            root.as_hash().unwrap_or_else(|| keccak256(&root))
        }))
    }

    /// Adds the last leaf to its branch and closes all branches deeper than `fork`, the depth at
    /// which the path of the next leaf diverges. `None` closes all branches and returns the root.
    fn close<E>(
        &mut self,
        key: &B256,
        value: &[u8],
        fork: Option<usize>,
        mut row: impl FnMut(Nibbles, Bytes) -> Result<(), E>,
    ) -> Result<Option<RlpNode>, E> {
        let path = Nibbles::unpack(key);
        // The depth of the parent branch of the current node, at least `fork`.
        let parent = |open: &[OpenBranch]| open.last().map(|open| open.depth).max(fork);
        let start = |parent: Option<usize>| parent.map_or(0, |depth| depth + 1);
        let mut above = parent(&self.open);
        let mut node = RlpNode::from_rlp(&rlp_leaf(key, start(above), value));
        let mut kind = NodeKind::Leaf;
        loop {
            let Some(depth) = above else {
                return Ok(Some(node));
            };
            if self.open.last().is_none_or(|open| open.depth < depth) {
                self.open.push(OpenBranch {
                    depth,
                    children: Node::empty_branch(),
                });
            }
            if let Some(open) = self.open.last_mut() {
                open.children[nibble(key, depth)] = Node::Stored {
                    reference: node,
                    kind,
                };
            }
            if Some(depth) == fork {
                return Ok(None);
            }
            let Some(OpenBranch { children, .. }) = self.open.pop() else {
                return Ok(None);
            };
            above = parent(&self.open);
            node = branch(&children, path.slice(..depth), &mut row)?;
            let start = start(above);
            if start < depth {
                let nibbles = path.slice(start..depth);
                row(path.slice(..start), extension_row(&nibbles, &node))?;
                node = RlpNode::from_rlp(&rlp_extension(&nibbles, &node));
            }
            kind = NodeKind::Any;
        }
    }
}

/// Emits the row of a finished branch and returns the branch's reference.
fn branch<E>(
    children: &[Node; 16],
    path: Nibbles,
    row: &mut impl FnMut(Nibbles, Bytes) -> Result<(), E>,
) -> Result<RlpNode, E> {
    let mask = present_mask(children);
    let references: Vec<_> = present(children, mask).map(reference_of).collect();
    row(path, branch_row(children, mask, &references))?;
    Ok(RlpNode::from_rlp(&rlp_branch(mask, &references)))
}

/// The root hash of a trie whose root node has this row.
pub fn row_hash(row: &[u8]) -> Result<B256, TrieError> {
    Ok(seal(&decode_row(row, &Nibbles::new())?).0)
}

/// The paths of the nodes directly below the node at `path` that have rows of their own.
pub fn row_children(row: &[u8], path: &Nibbles) -> Result<Vec<Nibbles>, TrieError> {
    Ok(match decode_row(row, path)? {
        Node::Extension { nibbles, .. } => vec![path.join(&nibbles)],
        Node::Branch(children) => {
            let nodes = children.iter().enumerate().filter(|(_, child)| {
                matches!(
                    child,
                    Node::Stored {
                        kind: NodeKind::Any,
                        ..
                    }
                )
            });
            nodes
                .map(|(index, _)| path.join(&Nibbles::from_nibbles([index as u8])))
                .collect()
        }
        _ => vec![],
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chain::trie::walk::{LeafChange, NodeSource, apply};
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    struct Nothing;

    impl NodeSource for Nothing {
        fn load(
            &self,
            path: &Nibbles,
            reference: &RlpNode,
            _: NodeKind,
        ) -> Result<Node, TrieError> {
            Err(TrieError::Missing {
                path: format!("{path:?}"),
                hash: reference.as_hash(),
            })
        }
    }

    /// Leaves whose keys share long prefixes, some with values so short that nodes are embedded in
    /// others.
    fn leaves() -> impl Strategy<Value = BTreeMap<B256, Bytes>> {
        let key = prop::collection::vec((0usize..64, 0u8..3), 0..4).prop_map(|marks| {
            let mut key = [0; 32];
            marks
                .iter()
                .for_each(|(at, value)| key[at / 2] |= value << (4 * (1 - at % 2)));
            B256::from(key)
        });
        let value = prop::collection::vec(any::<u8>(), 1..40).prop_map(Bytes::from);
        prop::collection::btree_map(key, value, 0..40)
    }

    proptest! {
        #[test]
        fn root_and_rows_are_those_of_the_walk(leaves in leaves()) {
            let changes: Vec<_> = leaves.iter().map(|(key, v)| LeafChange { key: *key, value: Some(v.clone()), exists: false }).collect();
            let (root, rows) = seal(&apply(&Nothing, EMPTY_ROOT_HASH, &changes).unwrap());
            let rows: BTreeMap<_, _> = rows.into_iter().collect();

            let mut found = BTreeMap::new();
            let mut trie = StackTrie::default();
            let mut row = |path, row| { assert!(found.insert(path, row).is_none()); Ok::<_, ()>(()) };
            for (key, value) in &leaves {
                trie.insert(*key, value.clone(), &mut row).unwrap();
            }
            prop_assert_eq!(trie.finish(&mut row).unwrap(), root);
            prop_assert_eq!(&found, &rows);
            if let Some(top) = rows.get(&Nibbles::new()) {
                prop_assert_eq!(row_hash(top).unwrap(), root);
            }
            let mut reached: Vec<_> = rows.iter().flat_map(|(path, row)| row_children(row, path).unwrap()).collect();
            reached.extend(rows.contains_key(&Nibbles::new()).then(Nibbles::new));
            reached.sort();
            prop_assert_eq!(reached, rows.into_keys().collect::<Vec<_>>());
        }
    }
}
