//! The tips that wait: trusted payloads that do not belong to the gap and cannot be handed over
//! yet.

use super::{Body, SyncAction, SyncLimits, TipDropped, gap::Gap, known::KnownBlocks};
use alloy_primitives::B256;
use std::{collections::VecDeque, time::Instant};

/// Largest number of tips that wait outside the gap.
const MAX_TIPS: usize = 8;

/// The waiting tips; those of one height are in order of arrival.
#[derive(Debug, Default)]
pub(super) struct Tips(Vec<Body>);

impl Tips {
    pub fn len(&self) -> usize {
        self.0.len()
    }

    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn contains(&self, hash: &B256) -> bool {
        self.0.iter().any(|tip| tip.hash() == *hash)
    }

    pub fn push(&mut self, tip: Body) {
        self.0.push(tip);
    }

    pub fn retain(&mut self, keep: impl FnMut(&Body) -> bool) {
        self.0.retain(keep);
    }

    /// Whether a tip is above block `number`.
    pub fn reach_above(&self, number: u64) -> bool {
        self.0.iter().any(|tip| tip.number() > number)
    }

    /// Forgets the lowest tip if more than [`MAX_TIPS`] wait.
    pub fn trim(&mut self) {
        if self.0.len() > MAX_TIPS
            && let Some(lowest) = (0..self.0.len()).min_by_key(|i| self.0[*i].number())
        {
            self.0.remove(lowest);
        }
    }

    /// Hands over the tips that extend known blocks, while the chain has capacity. Such tips need
    /// no gap.
    pub fn hand_over(&mut self, known: &mut KnownBlocks, actions: &mut VecDeque<SyncAction>) {
        self.0.retain(|tip| !known.knows(&tip.hash()));
        while let Some(i) = self.0.iter().position(|tip| tip.parent_known(known)) {
            if !known.has_capacity(self.0[i].payload()) {
                return;
            }
            let body = self.0.remove(i);
            known.hand_over(body, actions);
        }
    }

    /// The tip for which the next gap is opened: a tip that extends a known block and waits only
    /// for capacity, otherwise the highest tip. Of several highest tips, the newest.
    pub fn take_next(&mut self, known: &KnownBlocks) -> Option<Body> {
        let linked = self.0.iter().position(|tip| tip.parent_known(known));
        let best = linked.or_else(|| (0..self.0.len()).max_by_key(|i| self.0[*i].number()))?;
        Some(self.0.remove(best))
    }

    /// Offers every tip to the gap and keeps those that do not belong to it.
    pub fn offer_to(&mut self, gap: &mut Gap, limits: &SyncLimits, now: Instant) {
        self.0
            .retain(|tip| gap.offer(tip.clone(), limits, now).is_some());
    }

    /// Drops the tips whose parents are refused.
    pub fn drop_refused(&mut self, known: &mut KnownBlocks, actions: &mut VecDeque<SyncAction>) {
        self.0.sort_by_key(Body::number);
        self.0.retain(|tip| {
            let why = known.refusal(&tip.payload().parent_hash());
            if let Some(why) = why {
                known.refuse(tip.hash(), why);
                actions.push_back(SyncAction::Drop {
                    tip: tip.payload().id(),
                    why: TipDropped::from(why),
                });
            }
            why.is_none()
        });
    }
}
