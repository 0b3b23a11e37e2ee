//! Imports: blocks from a file, executed like any others, but logged only if the head changes its
//! branch. Each block becomes the head as soon as it is valid. After a kill, blocks that were not
//! stored are read from the file again.

use super::{Executor, SwitchPolicy};
use crate::chain::{ChainError, Heads, Inserted, execute::Preparation};
use alloy_primitives::B256;
use starling_proto::provenance::Provenance;
use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

/// The reason to refuse a block whose parent's state cannot be read, even after an unwind.
const TOO_DEEP: &str = "it forks off deeper below the stored head than the store can be unwound";

/// The result of importing a run of blocks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Imported {
    pub executed: u64,
    /// Number of blocks that were on the head's branch already.
    pub known: u64,
    /// Index in the run of the first block that could not be imported, and the reason. The blocks
    /// after it were skipped.
    pub refused: Option<(usize, String)>,
}

impl Executor {
    /// Imports a run of blocks up to the first that is refused, and publishes the new head once.
    pub(super) fn import(
        &mut self,
        payloads: Vec<Preparation>,
        stop: &AtomicBool,
    ) -> Result<Imported, ChainError> {
        let mut imported = Imported::default();
        for (index, payload) in payloads.into_iter().enumerate() {
            if stop.load(Ordering::Relaxed) {
                break;
            }
            self.poll_commit()?;
            let id = payload.payload().id();
            if self.head.hash_of(id.number)? == Some(id.hash) {
                imported.known += 1;
            } else if let Err(reason) = self.import_one(payload)? {
                imported.refused = Some((index, reason));
                stop.store(true, Ordering::Relaxed);
            } else {
                imported.executed += 1;
            }
        }
        self.publish();
        Ok(imported)
    }

    /// Executes one block and makes it the head. The head's view may stay unpublished until the run
    /// ends. The inner error says why the block is refused.
    fn import_one(&mut self, preparation: Preparation) -> Result<Result<(), String>, ChainError> {
        let payload = preparation.payload().clone();
        let (id, parent) = (payload.id(), payload.parent_hash());
        let imported = Provenance::Imported;
        let inserted = match self.switch_to(preparation, imported, SwitchPolicy::Import) {
            Err(error @ ChainError::NotOnBranch { .. }) => {
                return Ok(Err(format!(
                    "it contradicts the safe or the finalized block: {error}"
                )));
            }
            Err(ChainError::UnknownBlock(_)) => Inserted::NotExecutable,
            Err(error @ ChainError::Lagoon(_)) => return Ok(Err(error.to_string())),
            inserted => inserted?,
        };
        match inserted {
            Inserted::Valid => {}
            Inserted::Invalid { reason, .. } => return Ok(Err(reason)),
            Inserted::Syncing if id.number == 0 => {
                return Ok(Err("it is the genesis block of another chain".into()));
            }
            Inserted::Syncing => {
                return Ok(Err(format!("its parent {parent} is not in the database")));
            }
            Inserted::NotExecutable => return Ok(Err(TOO_DEEP.into())),
        }
        if !self.stored(&id)? {
            self.unlogged.insert(id.hash);
        }
        let heads = Heads {
            head: id,
            timestamp: payload.timestamp(),
            ..self.heads
        };
        let Some(block) = self.child_of_head(id) else {
            return self.move_to_imported(heads, parent);
        };
        // Replace `self.head` first: a view without other references is extended in place, without
        // a copy. The safe and the finalized block are on the view's branch, so they need no check.
        let head = std::mem::replace(&mut self.head, self.shared.view.load_full());
        self.head = Arc::new(head.child(block, heads.safe, heads.finalized)?);
        self.heads = heads;
        self.persist()?;
        Ok(Ok(()))
    }

    /// Makes an imported block the head if it is not a child of the head, or is stored already.
    fn move_to_imported(
        &mut self,
        heads: Heads,
        parent: B256,
    ) -> Result<Result<(), String>, ChainError> {
        let Some(view) = self.make_view(&heads)? else {
            return Ok(Err(TOO_DEEP.into()));
        };
        for (name, kept) in [("safe", heads.safe), ("finalized", heads.finalized)] {
            if let Some(kept) = kept
                && view.hash_of(kept.number)? != Some(kept.hash)
            {
                return Ok(Err(format!("it contradicts the {name} block {kept}")));
            }
        }
        if parent == self.heads.head.hash {
            self.set_heads(heads, view)?;
        } else {
            // Log the new head, so that a restart does not restore the abandoned branch.
            self.move_heads(heads, view)?;
        }
        Ok(Ok(()))
    }
}
