//! The checks of a node: the state of its execution core at every step, and at the end of a world its
//! chain, its derivation and its store.

use super::SimNode;
use crate::sim::{
    context::SimContext,
    real::{ImportTime, RealChain},
};
use starling_proto::payload::BlockId;

impl SimNode {
    /// The execution core of a real chain has met no unexpected error.
    pub(super) fn check_core(&self, context: &mut SimContext) {
        let failure = self.chain.lock().real().and_then(RealChain::take_failure);
        if let Some(detail) = failure {
            let (now, node) = (context.now, self.index);
            context.checks.fail(now, node, "core", detail);
        }
    }

    /// The node has the block `settled` on its chain, and its static peers.
    pub fn check_liveness(&self, settled: BlockId, context: &mut SimContext) {
        let (now, node) = (context.now, self.index);
        if !self.chain.lock().is_canonical(settled) {
            let why = self.live.as_ref().map(|live| live.explain(context));
            let detail = format!("{} does not have {settled}: {why:?}", self.head());
            context.checks.fail(now, node, "one_head", detail);
        }
        if let Some(live) = &self.live {
            live.check_statics(context);
        }
    }

    /// The node has derived at least up to the block number `least`, and its safe head is on the
    /// sequencer's chain.
    pub fn check_safe(&self, least: u64, sequencer: &SimNode, context: &mut SimContext) {
        let (now, safe) = (context.now, self.chain.lock().heads().safe);
        if safe.number < least {
            let detail = format!("the safe head {safe} is below block {least}");
            context.checks.fail(now, self.index, "safe_behind", detail);
        }
        if !sequencer.chain.lock().is_canonical(safe) {
            let detail = format!("the sequencer does not have the safe head {safe}");
            context.checks.fail(now, self.index, "safe_chain", detail);
        }
    }

    /// The files of a real chain are sound. Verification computes the state root of the head from
    /// the rows, so nodes with the same head have the same state.
    pub fn check_store(&self, context: &mut SimContext) {
        self.check_core(context);
        let damage = match self.chain.lock().real().map(|real| real.verify()) {
            Some(Ok(damage)) => damage,
            Some(Err(error)) => Some(error.to_string()),
            None => None,
        };
        if let Some(detail) = damage {
            let (now, node) = (context.now, self.index);
            context.checks.fail(now, node, "store", detail);
        }
    }

    /// The cost of the blocks that a real chain has imported.
    pub fn import_time(&self) -> ImportTime {
        let mut chain = self.chain.lock();
        chain
            .real()
            .map(|real| real.import_time())
            .unwrap_or_default()
    }
}
