//! Derivation at a node: the production pipeline (`starling_proto::derive`), and a driver around
//! it, which reads L1, consolidates unsafe blocks or builds the derived ones, and restarts after an
//! L1 reorg from the newest recorded safe head that is still derived from L1.

use super::LiveNode;
use crate::sim::{checks::origin_of, context::SimContext, l1::SimL1, planted::PlantedBug};
use starling_proto::{
    attributes::L1Block,
    consolidate::consolidates,
    derive::{DerivedAttributes, Need, Pipeline, PipelineStep},
    payload::BlockId,
};
use std::sync::Arc;

/// Most steps of the pipeline in a second. A node that is behind takes several seconds, between
/// which it may crash.
const STEPS: usize = 400;

/// The safe head after an L1 block, for each L1 block that was read. It survives a restart.
#[derive(Default)]
pub struct SafeLog(Vec<SafeEntry>);

/// The safe head after all batches up to an L1 block.
struct SafeEntry {
    safe: BlockId,
    l1: BlockId,
}

impl SafeLog {
    fn record(&mut self, safe: BlockId, l1: BlockId) {
        self.0.retain(|entry| entry.l1.number < l1.number);
        self.0.push(SafeEntry { safe, l1 });
    }
}

/// The derivation of a running node.
pub struct SimDerivation {
    pipeline: Pipeline,
    /// The first L1 block whose batches are applied since the last reset.
    first_l1: u64,
    /// The L1 block that is being read.
    reading: Option<L1Block>,
    /// Number of L1 blocks by which the node is behind the head of L1.
    lag: u64,
}

impl SimDerivation {
    /// The derivation of a node; `None` in worlds without it.
    pub fn new(me: usize, context: &SimContext) -> Option<Self> {
        let plan = context.plan.derivation.as_ref()?;
        Some(Self {
            pipeline: context.rollup.as_ref()?.pipeline(),
            first_l1: 0,
            reading: None,
            lag: plan.l1_lags[me],
        })
    }
}

impl LiveNode {
    /// The L1 block up to which this node has derived; zero after a reset.
    pub(super) fn current_l1(&self) -> u64 {
        let reading = self.derivation.as_ref().and_then(|it| it.reading);
        reading.map_or(0, |block| block.number)
    }

    /// Derives from the L1 blocks that the node can see, for as many steps as a second has.
    pub(super) fn derive(&mut self, context: &mut SimContext) {
        if self.derivation.is_none() || !context.l1.reachable {
            return;
        }
        for _ in 0..STEPS {
            let Some(derivation) = &mut self.derivation else {
                return;
            };
            let is_behind = match derivation.pipeline.step() {
                PipelineStep::More | PipelineStep::AwaitingVerdict => true,
                PipelineStep::Need(need) => self.supply(need, context),
                PipelineStep::Attributes(derived) => self.derive_block(&derived, context),
                PipelineStep::Idle { next, .. } => self.push_l1(next, context),
                PipelineStep::Reset(_) => self.reset_derivation(context),
                PipelineStep::Critical(error) => self.stop_derivation(&error.to_string(), context),
            };
            self.record_safe(context);
            if !is_behind {
                break;
            }
        }
        self.report_heads(context);
    }

    /// Ends derivation with a violation.
    fn stop_derivation(&mut self, cause: &str, context: &mut SimContext) -> bool {
        let detail = format!("derivation stops: {cause}");
        context
            .checks
            .fail(context.now, self.me, "derivation", detail);
        self.derivation = None;
        false
    }

    /// Supplies an input that the pipeline needs; `false` if L1 has no such block yet.
    fn supply(&mut self, need: Need, context: &mut SimContext) -> bool {
        let Some(derivation) = &mut self.derivation else {
            return false;
        };
        match need {
            Need::L1Block { number, .. } => {
                if self.push_l1(number, context) {
                    return true;
                }
                if let Some(derivation) = &mut self.derivation {
                    derivation.pipeline.no_l1_yet();
                }
                false
            }
            Need::L2Block { number, hash } => {
                let chain = self.chain.lock();
                let block = match hash {
                    Some(hash) => chain.get(&hash),
                    None => chain.at(number),
                };
                drop(chain);
                let pushed = block.map(|block| derivation.pipeline.push_l2(block));
                if let Some(Ok(())) = pushed {
                    return true;
                }
                let cause = format!("L2 block {number} ({hash:?}) cannot be read: {pushed:?}");
                self.stop_derivation(&cause, context)
            }
            Need::Blobs { block, .. } => {
                let cause = format!("blobs of {} are needed, and none were posted", block.id());
                self.stop_derivation(&cause, context)
            }
        }
    }

    /// Pushes the L1 block of this number; `false` if the node cannot see it yet.
    fn push_l1(&mut self, number: u64, context: &mut SimContext) -> bool {
        let Some(derivation) = &mut self.derivation else {
            return false;
        };
        if number + derivation.lag > SimL1::head(context.now) {
            return false;
        }
        let pushed = derivation.pipeline.push_l1(context.l1.input(number));
        pushed.map_or_else(
            |error| self.stop_derivation(&error.to_string(), context),
            |()| true,
        )
    }

    /// Makes the derived block safe: the unsafe block that has these attributes, or a new one.
    fn derive_block(&mut self, derived: &DerivedAttributes, context: &mut SimContext) -> bool {
        let (Some(derivation), Some(rollup)) = (&mut self.derivation, &context.rollup) else {
            return false;
        };
        let mut chain = self.chain.lock();
        let parent = derived.parent.id;
        let Some(on) = chain.get(&parent.hash) else {
            drop(chain);
            return self.stop_derivation(&format!("no parent {parent}"), context);
        };
        let attributes = &derived.attributes;
        let is_derived =
            |block: &Arc<_>| consolidates(&rollup.config, parent.hash, attributes, block).is_ok();
        let unsafe_block = chain.at(parent.number + 1).filter(is_derived);
        let is_missing = unsafe_block.is_none();
        let block = unsafe_block.or_else(|| chain.derive(&on, attributes, rollup));
        if let Some(block) = &block {
            chain.confirm_derived(block.id());
        }
        drop(chain);
        let Some(block) = block else {
            return self.stop_derivation(&format!("no block on {parent}"), context);
        };
        if is_missing {
            let text = format_args!("derives {}, which it does not have", block.id());
            context.history.note(context.now, self.me, text);
        }
        context.checks.on_derived(context.now, self.me, &block);
        let accepted = derivation.pipeline.accepted(block);
        accepted.map_or_else(
            |error| self.stop_derivation(&error.to_string(), context),
            |()| true,
        )
    }

    /// Restarts derivation from the newest recorded safe head that L1 still defines.
    fn reset_derivation(&mut self, context: &mut SimContext) -> bool {
        let Some(derivation) = &mut self.derivation else {
            return false;
        };
        let (mut chain, mut log) = (self.chain.lock(), self.safe_log.lock());
        let is_valid = |entry: &SafeEntry| {
            let block = chain.get(&entry.safe.hash);
            let has_origin =
                block.is_some_and(|block| context.l1.is_canonical(&origin_of(&block), context.now));
            has_origin && context.l1.is_canonical(&entry.l1.hash, context.now)
        };
        while log.0.pop_if(|entry| !is_valid(entry)).is_some() {}
        let genesis = (context.genesis.id(), 0);
        let start = log.0.last();
        let (safe, first_l1) = start.map_or(genesis, |it| (it.safe, it.l1.number + 1));
        let late = u64::from(context.has_bug(PlantedBug::ResetTooLate));
        let first_l1 = first_l1 + late;
        let text = format_args!("derives again from {safe}, L1 block {first_l1}");
        context.history.note(context.now, self.me, text);
        let block = chain.get(&safe.hash);
        let block = block.unwrap_or_else(|| context.genesis.clone());
        chain.reset_safe(safe);
        derivation.pipeline.reset(block, first_l1);
        (derivation.first_l1, derivation.reading) = (first_l1, None);
        true
    }

    /// Records the safe head after each L1 block that has been read.
    fn record_safe(&mut self, context: &mut SimContext) {
        let Some(derivation) = &mut self.derivation else {
            return;
        };
        let Some(origin) = derivation.pipeline.origin().copied() else {
            return;
        };
        let read = derivation.reading.replace(origin);
        let Some(read) = read.filter(|read| read.hash != origin.hash) else {
            return;
        };
        if read.number < derivation.first_l1 {
            return;
        }
        if let Some(safe) = derivation.pipeline.pending_safe() {
            let (now, safe, l1) = (context.now, safe.id, read.id());
            let text = format_args!("safe {safe} after L1 block {}", l1.number);
            context.history.note(now, self.me, text);
            context.checks.on_l1_read(now, self.me, l1, safe);
            self.safe_log.lock().record(safe, l1);
        }
    }
}
