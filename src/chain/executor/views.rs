//! Views of any block that is executed: on the head, beside it, and below the stored head, as far as memory goes.

use super::{Executor, MAX_UNWIND};
use crate::chain::{
    ChainError, Heads,
    view::{ExecutedBlock, ReadError, View},
};
use alloy_primitives::B256;
use starling_proto::payload::BlockId;
use std::sync::Arc;

impl Executor {
    pub(super) fn view_of(&mut self, hash: B256) -> Result<Arc<View>, ChainError> {
        let view = self.find_view(hash)?;
        if view.is_none()
            && let Some(id) = self.tree.get(&hash).map(|block| block.payload.id())
            && !self.stored(&id)?
        {
            // It was executed when the store's head was nearer. Now it is of no use before the head has gone back, and is brought again then.
            self.forget_side_branches(0);
        }
        view.ok_or(ChainError::UnknownBlock(hash))
    }

    /// The view of a block that is in the tree or on the store's canonical chain; `None` for any other.
    pub(super) fn find_view(&self, hash: B256) -> Result<Option<Arc<View>>, ChainError> {
        if self.head.head().hash == hash && self.head.stored() == self.snapshot.head() {
            return Ok(Some(self.head.clone()));
        }
        let number = match self.tree.get(&hash) {
            Some(block) => block.payload.number(),
            None => match self.snapshot.number_of(&hash).map_err(ChainError::store)? {
                Some(number) => number,
                None => return Ok(None),
            },
        };
        self.make_view(&Heads {
            head: BlockId { number, hash },
            ..self.heads
        })
    }

    /// `None` if the head is unknown, or leaves the stored chain deeper than that can be read.
    pub(super) fn make_view(&self, heads: &Heads) -> Result<Option<Arc<View>>, ChainError> {
        self.make_view_within(heads, self.limits.way_back)
    }

    /// With so many bytes for the way back.
    pub(super) fn make_view_within(
        &self,
        heads: &Heads,
        most: usize,
    ) -> Result<Option<Arc<View>>, ChainError> {
        if let Some(block) = self.next(heads.head) {
            let view = self
                .head
                .clone()
                .child(block, heads.safe, heads.finalized)
                .map_err(ChainError::store)?;
            return Ok(Some(Arc::new(view)));
        }
        let branch = self.branch(heads.head)?;
        if !self.stored(&branch.base)? {
            return Ok(None);
        }
        if self.snapshot.head().number - branch.base.number > MAX_UNWIND {
            tracing::warn!(head = %heads.head, base = %branch.base, "a block leaves the stored chain too deep below its head");
            return Ok(None);
        }
        let (snapshot, mut aside) = (self.snapshot.clone(), self.aside.borrow_mut());
        let near: Vec<&View> = [Some(&*self.head), aside.as_deref()]
            .into_iter()
            .flatten()
            .collect();
        match View::near_branch(
            &near,
            snapshot,
            branch.base.number,
            branch.blocks,
            heads.safe,
            heads.finalized,
            most,
        ) {
            Ok(view) => {
                let view = Arc::new(view);
                if heads.head != self.heads.head {
                    *aside = Some(view.clone());
                }
                Ok(Some(view))
            }
            Err(ReadError::Pruned(_)) => Ok(None),
            Err(error @ ReadError::Far(_)) => {
                tracing::warn!(head = %heads.head, base = %branch.base, %error);
                Ok(None)
            }
            Err(error) => Err(ChainError::store(error)),
        }
    }

    /// The block, if it stands right on our head and is not stored.
    pub(super) fn next(&self, id: BlockId) -> Option<Arc<ExecutedBlock>> {
        let unstored = self.head.is_on(&self.snapshot) && id.number > self.snapshot.head().number;
        let block = self
            .tree
            .get(&id.hash)
            .filter(|block| block.payload.parent_hash() == self.head.head().hash);
        block.filter(|_| unstored).cloned()
    }
}
