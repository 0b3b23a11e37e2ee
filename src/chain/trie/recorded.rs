//! The nodes of a state that a block reads and that its changes need: what a witness of the block
//! holds.
//!
//! Beside the nodes on the paths that are read, the removal of a key can need the node next to it,
//! which moves up. So the changes are applied once, and every node that this loads is recorded.

use super::{StateRows, TrieError, prove, update};
use crate::chain::{changes::Changes, rows::ReadError, trie::RowIter};
use alloy_primitives::{B256, Bytes};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};

/// Shorter nodes are part of their parents.
const INLINE: usize = 32;

/// Accounts that are read, by hash, with the hashes of the slots that are read.
pub type StateReads = BTreeMap<B256, BTreeSet<B256>>;

/// Rows of a state that record the nodes loaded from them.
struct RecordedRows<'a> {
    rows: &'a dyn StateRows,
    nodes: Mutex<BTreeSet<Bytes>>,
}

impl StateRows for RecordedRows<'_> {
    fn row(&self, key: &[u8]) -> Result<Option<Bytes>, ReadError> {
        self.rows.row(key)
    }

    fn scan<'a>(&'a self, prefix: &[u8], from: &[u8]) -> Result<RowIter<'a>, ReadError> {
        self.rows.scan(prefix, from)
    }

    fn node_loaded(&self, rlp: &dyn Fn() -> Result<Vec<u8>, TrieError>) -> Result<(), TrieError> {
        let node = rlp()?;
        if node.len() >= INLINE {
            self.nodes.lock().insert(node.into());
        }
        Ok(())
    }
}

/// The RLP of all nodes that these reads and changes need, without duplicates, ascending.
pub fn witness_nodes(
    rows: &dyn StateRows,
    root: B256,
    reads: &StateReads,
    changes: &Changes,
) -> Result<Vec<Bytes>, TrieError> {
    let recorded = RecordedRows {
        rows,
        nodes: Mutex::default(),
    };
    for (account, slots) in reads {
        let slots: Vec<B256> = slots.iter().copied().collect();
        let proof = prove(&recorded, root, account, &slots)?;
        let mut nodes = recorded.nodes.lock();
        nodes.extend(proof.nodes);
        nodes.extend(proof.slots.into_iter().flat_map(|slot| slot.nodes));
    }
    update(&recorded, root, changes)?;
    Ok(recorded.nodes.into_inner().into_iter().collect())
}
