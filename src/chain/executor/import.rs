//! Blocks from a file: executed like any other, but never logged, and each the head as soon as it is valid. What a killed process has
//! not stored is in the file still.

use super::{Command, Executor};
use crate::chain::{Chain, ChainError, Heads, Inserted, execute::Preparation};
use starling_p2p::Provenance;
use starling_proto::payload::Payload;
use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};
use tokio::sync::oneshot;

/// What came of a run of blocks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Imported {
    pub executed: u64,
    /// Blocks that were on the branch of the head already.
    pub known: u64,
    /// The first block that could not be imported, by its place in the run, and why. Those after it were not looked at.
    pub refused: Option<(usize, String)>,
}

impl Chain {
    /// Executes blocks, each on a block that is known, and makes the last valid one the head. Blocks on the branch of the head are
    /// passed over. Nothing is written to the payload log: whoever calls can read the blocks again. Returns as soon as the blocks are in
    /// the executor's queue, with the answer to come: runs are imported in the order of these calls, and the transactions of each are
    /// prepared while those before it are executed. `stop` is set when a block is refused; once it is set nothing is imported.
    pub async fn import(
        &self,
        payloads: Vec<Arc<Payload>>,
        stop: Arc<AtomicBool>,
    ) -> Result<impl Future<Output = Result<Imported, ChainError>> + use<>, ChainError> {
        let place = self
            .commands
            .reserve()
            .await
            .map_err(|_| ChainError::Stopped)?;
        let view = self.view();
        // What is on our branch already is not executed again.
        let known = |payload: &Payload| matches!(view.hash_of(payload.number()), Ok(Some(hash)) if hash == payload.hash);
        let payloads = Preparation::begin_all(payloads, known);
        let (reply, answer) = oneshot::channel();
        place.send(Command::Import {
            payloads,
            stop,
            reply,
        });
        Ok(async { answer.await.map_err(|_| ChainError::Stopped)? })
    }
}

impl Executor {
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
            self.collect(false)?;
            let id = payload.payload().id();
            if self.head.hash_of(id.number).map_err(ChainError::store)? == Some(id.hash) {
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

    /// The inner error says why the block cannot be imported. Its view may be unpublished.
    fn import_one(&mut self, preparation: Preparation) -> Result<Result<(), String>, ChainError> {
        let payload = preparation.payload().clone();
        let (id, timestamp, parent) = (payload.id(), payload.timestamp(), payload.parent_hash());
        let mut inserted = self.insert(preparation, Provenance::Imported)?;
        if inserted == Inserted::NoRoom {
            match self.lead(&payload, Provenance::Imported) {
                Ok(led) => inserted = led,
                Err(error @ ChainError::NotOnBranch { .. }) => {
                    return Ok(Err(format!("it contradicts what is safe: {error}")));
                }
                Err(ChainError::UnknownBlock(_)) => {}
                Err(error) => return Err(error),
            }
        }
        match inserted {
            Inserted::Valid => {}
            Inserted::Invalid { reason, .. } => return Ok(Err(reason)),
            Inserted::Syncing if id.number == 0 => {
                return Ok(Err("it is the genesis block of another chain".into()));
            }
            Inserted::Syncing => {
                return Ok(Err(format!("its parent {parent} is not in the database")));
            }
            Inserted::NoRoom => {
                return Ok(Err(
                    "it leaves the stored chain deeper than that can be taken back".into(),
                ));
            }
        }
        if !self.stored(&id)? {
            self.unlogged.insert(id.hash);
        }
        let heads = Heads {
            head: id,
            timestamp,
            ..self.heads
        };
        if let Some(block) = self.next(id) {
            // While nobody else holds the view, each block is one step further and no copy. What was safe or finalized is below it.
            let head = std::mem::replace(&mut self.head, self.shared.view.load_full());
            self.head = Arc::new(
                head.child(block, heads.safe, heads.finalized)
                    .map_err(ChainError::store)?,
            );
            self.heads = heads;
            self.persist()?;
            return Ok(Ok(()));
        }
        let Some(view) = self.make_view(&heads)? else {
            return Ok(Err(
                "it leaves the stored chain deeper than that can be taken back".into(),
            ));
        };
        for (name, kept) in [("safe", heads.safe), ("finalized", heads.finalized)] {
            if let Some(kept) = kept
                && view.hash_of(kept.number).map_err(ChainError::store)? != Some(kept.hash)
            {
                return Ok(Err(format!("it contradicts the {name} block {kept}")));
            }
        }
        match parent == self.heads.head.hash {
            true => self.set_heads(heads, view)?,
            // The log must not bring the abandoned branch back.
            false => self.move_heads(heads, view)?,
        }
        Ok(Ok(()))
    }
}
