//! The trie nodes that a block reads and that its changes need: the contents of the block's
//! witness.
//!
//! The paths that are read are not enough. The removal of a key can also need a sibling node, which
//! then moves up. So the changes are applied once, and every node loaded for them is recorded.

use super::{StateRows, TrieError, prove, update};
use crate::chain::{changes::Changes, rows::ReadError, trie::RowIter};
use alloy_primitives::{B256, Bytes};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};

/// Length of RLP below which a node is embedded in its parent.
const INLINE: usize = 32;

/// Accounts that are read, by hash, with the hashes of the slots that are read of each.
pub type StateReads = BTreeMap<B256, BTreeSet<B256>>;

/// The rows of a state, with a record of the nodes loaded from them.
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

/// The RLP of all nodes that these reads and changes need, sorted and without duplicates.
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
