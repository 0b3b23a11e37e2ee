//! Nodes of a trie: their forms in memory, their RLP, and their rows in the store.
//!
//! Until a change touches a node, only the node's reference is in memory ([`Node::Stored`]). Leaves
//! carry their whole key, so a leaf is unchanged when it moves up or down the trie.

use crate::chain::trie::TrieError;
use alloy_primitives::{B256, Bytes};
use alloy_trie::{
    Nibbles, TrieMask,
    nodes::{BranchNodeRef, ExtensionNodeRef, LeafNodeRef, RlpNode},
};

/// Number of nibbles in a key: every key is a keccak hash.
pub(super) const KEY_NIBBLES: usize = 64;

/// Known kind of a node that is not loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NodeKind {
    Leaf,
    /// A branch, which the child of an extension always is.
    Branch,
    /// A branch or an extension; in a bare witness or at the root it may also be a leaf.
    Any,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Node {
    Empty,
    /// A node that is not loaded, known by its reference.
    Stored {
        reference: RlpNode,
        kind: NodeKind,
    },
    Leaf {
        key: B256,
        value: Bytes,
    },
    Extension {
        nibbles: Nibbles,
        child: Box<Node>,
    },
    Branch(Box<[Node; 16]>),
}

const BRANCH: u8 = 0;
const EXTENSION: u8 = 1;

impl Node {
    pub(super) fn empty_branch() -> Box<[Node; 16]> {
        Box::new(std::array::from_fn(|_| Node::Empty))
    }

    fn is_leaf(&self) -> bool {
        matches!(
            self,
            Node::Leaf { .. }
                | Node::Stored {
                    kind: NodeKind::Leaf,
                    ..
                }
        )
    }
}

/// The nibble of a key at index `depth`.
pub(super) fn nibble(key: &B256, depth: usize) -> usize {
    let byte = key[depth / 2];
    usize::from(if depth.is_multiple_of(2) {
        byte >> 4
    } else {
        byte & 0x0f
    })
}

/// The RLP of a leaf that is `depth` nibbles below the root.
pub(super) fn rlp_leaf(key: &B256, depth: usize, value: &[u8]) -> Vec<u8> {
    let mut rlp = Vec::with_capacity(40 + value.len());
    let rest = Nibbles::unpack(key).slice(depth..);
    alloy_rlp::Encodable::encode(&LeafNodeRef { key: &rest, value }, &mut rlp);
    rlp
}

pub(super) fn rlp_extension(nibbles: &Nibbles, child: &RlpNode) -> Vec<u8> {
    let mut rlp = Vec::with_capacity(72);
    alloy_rlp::Encodable::encode(&ExtensionNodeRef::new(nibbles, child), &mut rlp);
    rlp
}

/// Bit mask of the children that are not empty.
pub(super) fn present_mask(children: &[Node; 16]) -> u16 {
    (0..16)
        .filter(|index| children[*index] != Node::Empty)
        .fold(0, |mask, index| mask | 1 << index)
}

/// The children selected by `mask`, in ascending order.
pub(super) fn present(children: &[Node; 16], mask: u16) -> impl Iterator<Item = &Node> {
    let present = move |(index, _): &(usize, &Node)| mask & (1 << index) != 0;
    children
        .iter()
        .enumerate()
        .filter(present)
        .map(|(_, child)| child)
}

/// The RLP of a branch. `children` are only the children in `mask`, in ascending order.
pub(super) fn rlp_branch(mask: u16, children: &[RlpNode]) -> Vec<u8> {
    let mut rlp = Vec::with_capacity(18 + 33 * children.len());
    alloy_rlp::Encodable::encode(&BranchNodeRef::new(children, TrieMask::new(mask)), &mut rlp);
    rlp
}

/// The row of a branch: tag, three bit masks of its children (present, leaf, inline), then for each
/// present child its hash (32 bytes) or, if it is inline, the length and bytes of its RLP.
pub(super) fn branch_row(nodes: &[Node; 16], mask: u16, references: &[RlpNode]) -> Bytes {
    let (mut leaves, mut inlines) = (0u16, 0u16);
    let mut body = Vec::with_capacity(7 + 33 * references.len());
    for (index, reference) in (0..16).filter(|i| mask & (1 << i) != 0).zip(references) {
        if nodes[index].is_leaf() {
            leaves |= 1 << index;
        }
        match reference.as_hash() {
            Some(hash) => body.extend_from_slice(hash.as_slice()),
            None => {
                inlines |= 1 << index;
                body.push(reference.len() as u8);
                body.extend_from_slice(reference);
            }
        }
    }
    let mut row = Vec::with_capacity(7 + body.len());
    row.push(BRANCH);
    for bits in [mask, leaves, inlines] {
        row.extend_from_slice(&bits.to_be_bytes());
    }
    row.extend_from_slice(&body);
    row.into()
}

/// The row of an extension: tag, nibble count, nibbles, then length and bytes of the child's
/// reference (length 32 means a hash).
pub(super) fn extension_row(nibbles: &Nibbles, child: &RlpNode) -> Bytes {
    let mut row = vec![EXTENSION, nibbles.len() as u8];
    row.extend(nibbles.iter());
    match child.as_hash() {
        Some(hash) => {
            row.push(32);
            row.extend_from_slice(hash.as_slice());
        }
        None => {
            row.push(child.len() as u8);
            row.extend_from_slice(child);
        }
    }
    row.into()
}

/// A parsed row of the trie, borrowed from the row's bytes. A reference is a hash of 32 bytes or
/// shorter RLP.
#[expect(
    clippy::large_enum_variant,
    reason = "nearly all are branches, and live on the stack for as long as a row is read"
)]
pub(super) enum RowRef<'a> {
    Branch([Option<ChildRef<'a>>; 16]),
    Extension { nibbles: &'a [u8], child: &'a [u8] },
}

/// The reference to a child in its parent's row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ChildRef<'a> {
    pub is_leaf: bool,
    /// The child's hash (32 bytes), or its RLP if that is shorter.
    pub reference: &'a [u8],
}

impl ChildRef<'_> {
    /// The child as a node that is not loaded; `None` if the reference is damaged.
    pub(super) fn decode(self) -> Option<Node> {
        Some(Node::Stored {
            reference: decode_reference(self.reference)?,
            kind: if self.is_leaf {
                NodeKind::Leaf
            } else {
                NodeKind::Any
            },
        })
    }
}

impl<'a> RowRef<'a> {
    /// The child whose path relative to this node is `path`.
    pub(super) fn child(&self, path: &[u8]) -> Option<ChildRef<'a>> {
        match self {
            Self::Branch(children) => match path {
                [index] => *children.get(usize::from(*index))?,
                _ => None,
            },
            Self::Extension { nibbles, child } => (*nibbles == path).then_some(ChildRef {
                is_leaf: false,
                reference: child,
            }),
        }
    }
}

/// Parses the row of a trie node; `None` if the row is damaged.
pub(super) fn parse_row(row: &[u8]) -> Option<RowRef<'_>> {
    let mut input = RowReader(row);
    let node = match input.byte()? {
        BRANCH => parse_branch(&mut input),
        EXTENSION => parse_extension(&mut input),
        _ => None,
    };
    node.filter(|_| input.0.is_empty())
}

fn parse_branch<'a>(input: &mut RowReader<'a>) -> Option<RowRef<'a>> {
    let (mask, leaves, inlines) = (input.u16()?, input.u16()?, input.u16()?);
    if mask.count_ones() < 2 || (leaves | inlines) & !mask != 0 {
        return None;
    }
    let mut children = [None; 16];
    for index in (0..16).filter(|i| mask & (1 << i) != 0) {
        let len = if inlines & (1 << index) != 0 {
            usize::from(input.byte().filter(|len| *len < 32)?)
        } else {
            32
        };
        children[index] = Some(ChildRef {
            is_leaf: leaves & (1 << index) != 0,
            reference: input.take(len)?,
        });
    }
    Some(RowRef::Branch(children))
}

fn parse_extension<'a>(input: &mut RowReader<'a>) -> Option<RowRef<'a>> {
    let count = usize::from(input.byte()?);
    let nibbles = input.take(count)?;
    let len = usize::from(input.byte()?);
    let valid = count > 0 && nibbles.iter().all(|n| *n < 16) && len <= 32;
    valid
        .then(|| {
            Some(RowRef::Extension {
                nibbles,
                child: input.take(len)?,
            })
        })
        .flatten()
}

/// Decodes the row of a trie node. `path` is for the error message and the check of the depth.
pub(super) fn decode_row(row: &[u8], path: &Nibbles) -> Result<Node, TrieError> {
    let node = parse_row(row).and_then(|row| decode_node(row, path.len()));
    node.filter(|_| path.len() < KEY_NIBBLES).ok_or_else(|| {
        TrieError::Damaged(format!(
            "the row of the node at path {path:?} cannot be read"
        ))
    })
}

fn decode_node(row: RowRef<'_>, depth: usize) -> Option<Node> {
    match row {
        RowRef::Branch(named) => {
            let mut children = Node::empty_branch();
            for (child, named) in children.iter_mut().zip(named) {
                if let Some(named) = named {
                    *child = named.decode()?;
                }
            }
            Some(Node::Branch(children))
        }
        RowRef::Extension { nibbles, child } => {
            let child = Box::new(Node::Stored {
                reference: decode_reference(child)?,
                kind: NodeKind::Branch,
            });
            let node = Node::Extension {
                nibbles: Nibbles::from_nibbles(nibbles),
                child,
            };
            (depth + nibbles.len() < KEY_NIBBLES).then_some(node)
        }
    }
}

/// Decodes a reference: 32 bytes are a hash, fewer are the RLP of the node itself.
pub(super) fn decode_reference(bytes: &[u8]) -> Option<RlpNode> {
    match B256::try_from(bytes) {
        Ok(hash) => Some(RlpNode::word_rlp(&hash)),
        Err(_) => (1..32)
            .contains(&bytes.len())
            .then(|| RlpNode::from_raw(bytes))
            .flatten(),
    }
}

struct RowReader<'a>(&'a [u8]);

impl<'a> RowReader<'a> {
    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (head, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(head)
    }

    fn byte(&mut self) -> Option<u8> {
        self.take(1).map(|b| b[0])
    }

    fn u16(&mut self) -> Option<u16> {
        self.take(2).map(|b| u16::from_be_bytes([b[0], b[1]]))
    }
}
