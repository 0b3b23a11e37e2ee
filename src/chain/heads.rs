//! Heads without gaps: a cursor that walks from where its owner was to where the head is.
//!
//! `watch<Heads>` only wakes and may skip; a [`Cursor`] turns each waking into removed and added blocks in order, over the common
//! ancestor. Subscriptions, the pool, the batcher and the proposer all use this one walk.

use crate::chain::view::{ReadError, View};
use starling_proto::payload::BlockId;
use std::{collections::VecDeque, sync::Arc};

/// Steps one call returns at most, so that a consumer far behind works in bounded memory.
const MAX_STEPS: usize = 1000;
/// How deep a reorg a cursor can report block by block; deeper, it reports what it remembers and goes on from the ancestor.
pub const REMEMBERED: usize = 512;

/// One step of the canonical chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    Removed(BlockId),
    Added(BlockId),
}

/// A consumer's place on the canonical chain.
#[derive(Clone, Debug)]
pub struct Cursor {
    /// What was reported as added, oldest first; never empty.
    reported: VecDeque<BlockId>,
}

impl Cursor {
    /// A cursor that stands on `at`: the next steps lead away from it.
    pub fn new(at: BlockId) -> Self {
        Self { reported: VecDeque::from([at]) }
    }

    pub fn at(&self) -> BlockId {
        *self.reported.back().expect("never empty")
    }

    /// The next steps towards the head of `view`; empty when there. Call again while it returns steps.
    pub fn advance(&mut self, view: &Arc<View>) -> Result<Vec<Step>, ReadError> {
        self.advance_by(view, MAX_STEPS)
    }

    /// Like [`Cursor::advance`], `most` steps at once: for a consumer to whom one block can mean much.
    pub fn advance_by(&mut self, view: &Arc<View>, most: usize) -> Result<Vec<Step>, ReadError> {
        let mut steps = Vec::new();
        while steps.len() < most && view.hash_of(self.at().number)? != Some(self.at().hash) {
            let gone = self.at();
            steps.push(Step::Removed(gone));
            self.reported.pop_back();
            if self.reported.is_empty() {
                // Deeper than remembered: stand on the new branch one below.
                let number = gone.number.saturating_sub(1).min(view.head().number);
                let hash = view.hash_of(number)?.unwrap_or_default();
                self.reported.push_back(BlockId { number, hash });
                break;
            }
        }
        while self.at().number < view.head().number && steps.len() < most {
            let number = self.at().number + 1;
            let Some(hash) = view.hash_of(number)? else { break };
            let id = BlockId { number, hash };
            steps.push(Step::Added(id));
            self.reported.push_back(id);
            if self.reported.len() > REMEMBERED {
                self.reported.pop_front();
            }
        }
        Ok(steps)
    }
}
