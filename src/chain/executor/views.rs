//! Views of known blocks: on the head's branch, on a side branch, and below the stored head as far
//! as the budget for unwind data allows.

use super::{Executor, MAX_UNWIND};
use crate::chain::{
    ChainError, Heads,
    view::{ExecutedBlock, ReadError, View},
};
use alloy_primitives::B256;
use starling_proto::payload::BlockId;
use std::sync::Arc;

impl Executor {
    /// The view of this block. Fails with [`ChainError::UnknownBlock`] if none can be made.
    pub(super) fn view_of(&mut self, hash: B256) -> Result<Arc<View>, ChainError> {
        let view = self.find_view(hash)?;
        if view.is_none()
            && let Some(id) = self.tree.get(&hash).map(|block| block.payload.id())
            && !self.stored(&id)?
        {
            // The block's fork point is now too deep to build a view on. Drop all side branches,
            // this one included; their blocks are executed again if they arrive after a rewind.
            self.drop_side_branches(0);
        }
        view.ok_or(ChainError::UnknownBlock(hash))
    }

    /// The view of a block that is in the tree or on the store's canonical chain. `None` for any
    /// other block, and for one whose fork point is too deep below the stored head.
    pub(super) fn find_view(&self, hash: B256) -> Result<Option<Arc<View>>, ChainError> {
        if self.head.head().hash == hash && self.head.stored() == self.snapshot.head() {
            return Ok(Some(self.head.clone()));
        }
        let number = match self.tree.get(&hash) {
            Some(block) => block.payload.number(),
            None => match self.snapshot.number_of(&hash)? {
                Some(number) => number,
                None => return Ok(None),
            },
        };
        self.make_view(&Heads {
            head: BlockId { number, hash },
            ..self.heads
        })
    }

    /// The view of these heads. `None` if the head is unknown, or its fork point is too deep below
    /// the stored head.
    pub(super) fn make_view(&self, heads: &Heads) -> Result<Option<Arc<View>>, ChainError> {
        self.make_view_within(heads, self.limits.unwind_data)
    }

    /// Like [`Executor::make_view`], but with at most `limit` bytes of unwind data.
    pub(super) fn make_view_within(
        &self,
        heads: &Heads,
        limit: usize,
    ) -> Result<Option<Arc<View>>, ChainError> {
        if let Some(block) = self.child_of_head(heads.head) {
            let view = self
                .head
                .clone()
                .child(block, heads.safe, heads.finalized)?;
            return Ok(Some(Arc::new(view)));
        }
        let branch = self.branch(heads.head)?;
        if !self.stored(&branch.base)? {
            return Ok(None);
        }
        if self.snapshot.head().number - branch.base.number > MAX_UNWIND {
            tracing::warn!(head = %heads.head, base = %branch.base, "the fork point of a block is too deep below the stored head");
            return Ok(None);
        }
        let (snapshot, mut cached) = (self.snapshot.clone(), self.cached_view.borrow_mut());
        let near: Vec<&View> = [Some(&*self.head), cached.as_deref()]
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
            limit,
        ) {
            Ok(view) => {
                let view = Arc::new(view);
                if heads.head != self.heads.head {
                    *cached = Some(view.clone());
                }
                Ok(Some(view))
            }
            Err(ReadError::Pruned(_)) => Ok(None),
            Err(error @ ReadError::Far(_)) => {
                tracing::warn!(head = %heads.head, base = %branch.base, %error);
                Ok(None)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// The block with this id, if it is a child of our head and not stored.
    pub(super) fn child_of_head(&self, id: BlockId) -> Option<Arc<ExecutedBlock>> {
        let unstored = self.head.is_on(&self.snapshot) && id.number > self.snapshot.head().number;
        let block = self
            .tree
            .get(&id.hash)
            .filter(|block| block.payload.parent_hash() == self.head.head().hash);
        block.filter(|_| unstored).cloned()
    }
}
