//! The bodies of a gap: payloads by number, and their total size in bytes.

use super::Body;
use libp2p::PeerId;
use std::collections::BTreeMap;

#[derive(Debug, Default)]
pub(super) struct Bodies {
    by_number: BTreeMap<u64, Body>,
    bytes: usize,
}

impl Bodies {
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The average size of these bodies, at least 1000 bytes: the estimate for bodies still to
    /// come.
    pub fn average(&self) -> usize {
        (self.bytes / self.by_number.len().max(1)).max(1000)
    }

    pub fn get(&self, number: u64) -> Option<&Body> {
        self.by_number.get(&number)
    }

    pub fn contains(&self, number: u64) -> bool {
        self.by_number.contains_key(&number)
    }

    /// The lowest number, at or above `number`, for which there is a body.
    pub fn next_from(&self, number: u64) -> Option<u64> {
        self.by_number
            .range(number..)
            .next()
            .map(|(number, _)| *number)
    }

    pub fn insert(&mut self, body: Body) {
        let number = body.number();
        self.remove(number);
        self.bytes += body.payload().weight();
        self.by_number.insert(number, body);
    }

    pub fn remove(&mut self, number: u64) -> Option<Body> {
        let body = self.by_number.remove(&number)?;
        self.bytes -= body.payload().weight();
        Some(body)
    }

    pub fn remove_below(&mut self, low: u64) {
        while let Some((&number, _)) = self.by_number.first_key_value()
            && number < low
        {
            self.remove(number);
        }
    }

    /// Removes the bodies that `keep` does not accept.
    pub fn retain(&mut self, keep: impl Fn(&Body) -> bool) {
        let bytes = &mut self.bytes;
        self.by_number.retain(|_, body| {
            let kept = keep(body);
            *bytes -= if kept { 0 } else { body.payload().weight() };
            kept
        });
    }

    /// Removes the bodies up to `number` that came from the peer `from`.
    pub fn remove_from_peer(&mut self, number: u64, from: Option<PeerId>) {
        let theirs: Vec<u64> = self
            .by_number
            .range(..=number)
            .filter(|(_, body)| body.arrival.from == from)
            .map(|(number, _)| *number)
            .collect();
        for number in theirs {
            self.remove(number);
        }
    }

    /// Moves the bodies up to `number` into `other`.
    pub fn move_to(&mut self, other: &mut Bodies, number: u64) {
        let all = std::mem::take(self);
        all.by_number
            .into_values()
            .filter(|body| body.number() <= number)
            .for_each(|body| other.insert(body));
    }

    /// Removes bodies until the budget is met: the highest above `low` first, then the lowest below
    /// `low`. The body of `low` itself is kept.
    pub fn evict(&mut self, budget: usize, low: u64) {
        while self.bytes > budget
            && let Some((&highest, _)) = self.by_number.last_key_value()
            && highest > low
        {
            self.remove(highest);
        }
        while self.bytes > budget
            && let Some((&lowest, _)) = self.by_number.first_key_value()
            && lowest < low
        {
            self.remove(lowest);
        }
    }
}
