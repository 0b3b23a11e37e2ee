//! The skeleton of a gap: consecutive trusted hashes, linked by parent hashes from a trusted tip
//! downward, 32 bytes a block.

use alloy_primitives::B256;
use std::collections::VecDeque;

#[derive(Debug)]
pub(super) struct Skeleton {
    /// Number of the lowest hash. If there is no hash, the number above the last one removed.
    low: u64,
    hashes: VecDeque<B256>,
}

impl Skeleton {
    /// A skeleton of one block.
    pub fn new(number: u64, hash: B256) -> Self {
        Self {
            low: number,
            hashes: VecDeque::from([hash]),
        }
    }

    pub fn low(&self) -> u64 {
        self.low
    }

    /// The number of the highest hash.
    pub fn top(&self) -> u64 {
        (self.low + self.len()).saturating_sub(1)
    }

    pub fn len(&self) -> u64 {
        self.hashes.len() as u64
    }

    pub fn is_empty(&self) -> bool {
        self.hashes.is_empty()
    }

    pub fn lowest(&self) -> Option<B256> {
        self.hashes.front().copied()
    }

    pub fn highest(&self) -> Option<B256> {
        self.hashes.back().copied()
    }

    pub fn get(&self, number: u64) -> Option<B256> {
        let index = usize::try_from(number.checked_sub(self.low)?).ok()?;
        self.hashes.get(index).copied()
    }

    pub fn iter(&self) -> impl Iterator<Item = &B256> {
        self.hashes.iter()
    }

    /// Extends the skeleton by the child of its highest block.
    pub fn push_child(&mut self, hash: B256) {
        self.hashes.push_back(hash);
    }

    /// Extends the skeleton by the parent of its lowest block.
    pub fn push_parent(&mut self, hash: B256) {
        self.hashes.push_front(hash);
        self.low -= 1;
    }

    /// Removes the lowest hash and returns its number.
    pub fn pop_lowest(&mut self) -> Option<u64> {
        self.hashes.pop_front()?;
        self.low += 1;
        Some(self.low - 1)
    }

    /// Removes the highest hash and returns its number.
    pub fn pop_highest(&mut self) -> Option<u64> {
        let top = self.top();
        self.hashes.pop_back().map(|_| top)
    }

    /// The highest number at which both skeletons have the same hash, if there is one. Below that
    /// number the skeletons are equal.
    pub fn meet(&self, other: &Skeleton) -> Option<u64> {
        (self.low.max(other.low)..)
            .take_while(|n| self.get(*n).is_some_and(|hash| other.get(*n) == Some(hash)))
            .last()
    }

    /// Replaces the hashes up to `meet` by the hashes of `lower`.
    pub fn take_lower(&mut self, lower: &mut Skeleton, meet: u64) {
        while self.low <= meet && self.pop_lowest().is_some() {}
        let count = usize::try_from(meet + 1 - lower.low)
            .unwrap_or(usize::MAX)
            .min(lower.hashes.len());
        let mut hashes: VecDeque<B256> = lower.hashes.drain(..count).collect();
        hashes.append(&mut self.hashes);
        (self.low, self.hashes) = (lower.low, hashes);
    }
}
