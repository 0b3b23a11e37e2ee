//! The follower of a node: executes the blocks that sync hands over, one after the other, and
//! reports verdicts and heads.

use super::{LIMITS, LiveNode};
use crate::sim::{context::SimContext, planted::PlantedBug, queue::SimTime};
use starling_p2p::{ChainHeads, Provenance, Settled};
use starling_proto::payload::{BlockId, Payload};
use std::{collections::VecDeque, sync::Arc};

/// A block that waits for its execution to end.
struct QueuedBlock {
    at: SimTime,
    payload: Arc<Payload>,
    provenance: Provenance,
}

/// The blocks that are being executed.
pub struct SimExecution {
    queue: VecDeque<QueuedBlock>,
    next_sync: SimTime,
    reported: Option<ChainHeads>,
    executed: u64,
}

impl SimExecution {
    pub fn new(next_sync: SimTime) -> Self {
        Self {
            queue: VecDeque::new(),
            next_sync,
            reported: None,
            executed: 0,
        }
    }

    pub fn next_wake(&self) -> Option<SimTime> {
        self.queue.front().map(|block| block.at)
    }
}

impl LiveNode {
    /// Takes a block from sync.
    pub(super) fn queue_block(
        &mut self,
        payload: Arc<Payload>,
        provenance: Provenance,
        context: &mut SimContext,
    ) {
        let parent = payload.parent_hash();
        let queue = &self.execution.queue;
        let known = queue.iter().any(|block| block.payload.hash == parent)
            || self.chain.lock().knows(&parent);
        let text = format_args!("executes {} on {parent}", payload.id());
        context.history.note(context.now, self.me, text);
        context
            .checks
            .on_executed(context.now, self.me, &payload, known);
        if queue.len() >= LIMITS.unsettled && !context.has_bug(PlantedBug::CreditLost) {
            let detail = format!("{} blocks handed over and not settled", queue.len() + 1);
            context.checks.fail(context.now, self.me, "bounds", detail);
        }
        let free = queue.back().map_or(context.now, |block| block.at);
        let at = free.max(context.now) + context.plan.nodes[self.me].execution;
        self.execution.queue.push_back(QueuedBlock {
            at,
            payload,
            provenance,
        });
    }

    /// Ends the execution of the blocks that are due.
    pub(super) fn execute(&mut self, context: &mut SimContext) {
        let now = context.now;
        let is_due = |block: &mut QueuedBlock| block.at <= now;
        while let Some(QueuedBlock {
            payload: block,
            provenance,
            ..
        }) = self.execution.queue.pop_front_if(is_due)
        {
            let equal_wins = context.has_bug(PlantedBug::EqualHeightWins);
            let wins = |new: u64, old: u64| new > old || (equal_wins && new == old);
            let before = self.chain.lock().heads().head;
            let verdict = self.chain.lock().follow(&block, provenance, wins);
            let after = self.chain.lock().heads().head;
            if after != before && after.number <= before.number {
                let detail = format!("the head moved from {before} to {after}");
                context
                    .checks
                    .fail(context.now, self.me, "fork_choice", detail);
            }
            self.execution.executed += 1;
            let instant = context.instant();
            if let Settled::Invalid(reason) = &verdict {
                let detail = format!("found {} invalid: {reason}", block.id());
                context
                    .checks
                    .fail(context.now, self.me, "invalid_block", detail);
            }
            if verdict == Settled::Dropped {
                context
                    .history
                    .note(context.now, self.me, format_args!("dropped {}", block.id()));
            }
            let lost = context.has_bug(PlantedBug::CreditLost)
                && self.execution.executed.is_multiple_of(3);
            if !lost {
                self.sync.on_settled(block.hash, &verdict, instant);
            }
            self.report_heads(context);
            self.dispatch(context);
        }
    }

    /// Reports the chain's heads to sync, if they have moved.
    pub(super) fn report_heads(&mut self, context: &mut SimContext) {
        let heads = self.chain.lock().heads();
        if self.execution.reported == Some(heads) {
            return;
        }
        if let Some(old) = self.execution.reported.replace(heads)
            && old.head != heads.head
        {
            self.check_head(old.head, heads.head, context);
        }
        self.sync.on_heads(heads, context.instant());
    }

    fn check_head(&mut self, old: BlockId, new: BlockId, context: &mut SimContext) {
        let (now, chain) = (context.now, self.chain.lock());
        context.history.note(
            now,
            self.me,
            format_args!("head {} {}", new.number, new.hash),
        );
        let kept = chain.is_canonical(old);
        context.checks.on_head(now, self.me, (old, new), kept);
        let safe = chain.heads().safe;
        if !chain.is_canonical(safe) {
            let detail = format!("the safe block {safe} is not below the head {new}");
            context.checks.fail(now, self.me, "safe_head", detail);
        }
    }

    /// Makes the store durable when it is time.
    pub(super) fn sync_store(&mut self, context: &mut SimContext) {
        if context.now >= self.execution.next_sync {
            self.execution.next_sync = context.now + context.plan.nodes[self.me].sync_every;
            self.chain.lock().sync();
            self.guards.lock().sync();
        }
    }
}
