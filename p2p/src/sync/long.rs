//! Long gaps: where `range.rs` works on the gap instead of `sources.rs`, and beside it where its peers bring nothing.
//!
//! A tip that is higher takes over at once: the way down from it is walked anew, only as far as it meets the skeleton that is there,
//! whose lower part it takes over with its bodies and requests. So a skeleton is extended by blocks that gossip missed, and cut back
//! where the sequencer went another way.

use super::{Arrival, Dropped, Sync};
use crate::range::{Ground, Links, SHORTEST, Status, Trouble};
use libp2p::PeerId;
use starling_proto::payload::BlockId;
use std::time::{Duration, Instant};

/// Without progress for so long something is wrong, and said.
const STALLED: Duration = Duration::from_secs(15);

impl Sync {
    /// A peer of our own kind says what it has.
    pub fn on_status(&mut self, peer: PeerId, status: Status, now: Instant) {
        self.range.on_status(peer, status);
        self.pump(now);
    }

    /// Some of the hash links that the peer was asked for, the highest first, verified from the block asked about down to the last.
    pub fn on_links(&mut self, id: u64, links: &Links, now: Instant) {
        let from = self.range.on_headers(id, links, now);
        if let (Some(from), Some(gap)) = (from, self.gap.as_mut().filter(|gap| !gap.is_grounded()))
            // Blocks may have come by number meanwhile.
            && let Some(links) = links.below(from, gap.bottom())
        {
            gap.descend(&links, &self.ledger, &self.limits, now);
            self.meet_former(now);
        }
        self.pump(now);
    }

    /// A part of a window, lowest first, each block with the hash that was asked for.
    pub fn on_blocks(&mut self, id: u64, blocks: Vec<Arrival>, now: Instant) {
        self.arrived += blocks.len() as u64;
        if let Some(last) = blocks.last() {
            self.range.on_chunk(id, last.payload.number());
        }
        for arrival in blocks {
            let (number, hash) = (arrival.payload.number(), arrival.payload.hash);
            let gaps = self.gap.iter_mut().chain(&mut self.former);
            let Some(gap) = gaps
                .into_iter()
                .find(|gap| gap.expected(number) == Some(hash))
            else {
                continue;
            };
            // It is the one expected.
            let _ = gap.fill(number, arrival, &self.limits, now);
        }
        self.pump(now);
    }

    /// The end of the answer to a question.
    pub fn on_answered(&mut self, id: u64, outcome: Result<(), Trouble>, now: Instant) {
        self.range.on_end(id, outcome, now);
        self.pump(now);
    }

    /// What is missing and why nobody brings it, in words, once nothing has come for a while.
    pub fn stall(&self, now: Instant) -> Option<(BlockId, String)> {
        let gap = self.gap.as_ref()?;
        let waited = now.saturating_duration_since(gap.progress);
        if waited < STALLED {
            return None;
        }
        let missing = gap.bottom();
        let mut reasons = self.range.complain(missing.number, now);
        let asked = self
            .flights
            .values()
            .filter(|(_, number)| *number == missing.number);
        reasons.extend(asked.map(|(peer, _)| format!("{peer} is asked for it by number")));
        if reasons.is_empty() {
            reasons.push(match self.starved {
                true => "every connected peer has failed lately".into(),
                false => "no peer that serves blocks is connected".into(),
            });
        }
        let seconds = waited.as_secs();
        Some((
            missing,
            format!(
                "block {missing} has not come for {seconds} s: {}",
                reasons.join("; ")
            ),
        ))
    }

    /// Whether the gap is one for the range machine.
    pub(super) fn is_long(&self) -> bool {
        let Some(gap) = &self.gap else { return false };
        let below = if gap.is_grounded() {
            0
        } else {
            gap.low().saturating_sub(self.ledger.head())
        };
        self.range.is_flying() || (gap.len() + below >= SHORTEST && self.range.can_ask(gap.low()))
    }

    pub(super) fn drive(&mut self, now: Instant) {
        let Some(gap) = &self.gap else { return };
        let former = self.former.as_ref().map_or(0, |former| former.top().number);
        let ground = Ground {
            floor: self.ledger.floor(),
            likely: former.max(self.ledger.head()),
        };
        self.range.drive(gap, ground, &self.limits, now);
        self.ranging = true;
    }

    /// Turns to a higher tip, or from a branch that no peer has; true if the gap has changed.
    pub(super) fn follow_tip(&mut self, now: Instant) -> bool {
        let Some(gap) = &self.gap else { return false };
        if !Self::is_overtaken(gap, &self.tips) {
            return false;
        }
        if !gap.is_grounded() {
            let refused = self.range.is_refused_by_all(gap.low());
            if refused {
                self.give_up(Dropped::Stalled);
            }
            return refused;
        }
        let Some(tip) = self.next_tip() else {
            return false;
        };
        self.sources.release();
        let mut next = super::Gap::new(tip, now);
        self.tips
            .retain(|tip| next.offer(tip.clone(), &self.limits, now).is_some());
        self.former = self.gap.replace(next);
        self.meet_former(now);
        true
    }

    /// Nothing is asked for any more.
    pub(super) fn forget_range(&mut self) {
        self.former = None;
        self.range.restart();
    }

    fn meet_former(&mut self, now: Instant) {
        let (Some(gap), Some(former)) = (&mut self.gap, &mut self.former) else {
            return;
        };
        if let Some(meet) = gap.join(former, now) {
            tracing::debug!(
                number = meet,
                target = gap.top().number,
                "the skeleton goes on from another tip"
            );
            self.range.cut(meet);
            self.former = None;
        } else if gap.is_grounded() {
            self.forget_range();
        }
    }
}

#[cfg(test)]
mod tests;
