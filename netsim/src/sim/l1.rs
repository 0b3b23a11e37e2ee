//! L1 of a world: a block every 12 seconds, reorgs, outages, and the signer that it names.

use super::{
    keys,
    queue::{SECOND, SimTime},
};
use alloy_primitives::{Address, B256};

/// Time between two L1 blocks.
const L1_BLOCK: SimTime = 12 * SECOND;

/// The L1 chain. A block's hash is its number and the salt of its branch.
pub struct SimL1 {
    /// The branches, newest last: the first number of each, and its salt.
    branches: Vec<(u64, u64)>,
    pub reachable: bool,
    signer: Address,
}

impl SimL1 {
    pub fn new() -> Self {
        Self {
            branches: vec![(0, 0)],
            reachable: true,
            signer: keys::address(0),
        }
    }

    pub fn head(now: SimTime) -> u64 {
        now / L1_BLOCK
    }

    /// The canonical block of this number.
    pub fn hash(&self, number: u64) -> B256 {
        let salt = self
            .branches
            .iter()
            .rev()
            .find(|(first, _)| *first <= number)
            .map_or(0, |(_, salt)| *salt);
        let mut hash = B256::repeat_byte(0x11);
        hash[..8].copy_from_slice(&number.to_be_bytes());
        hash[8..16].copy_from_slice(&salt.to_be_bytes());
        hash
    }

    /// The number of a block of this L1, canonical or not.
    pub fn number(hash: &B256) -> u64 {
        hash[..8]
            .iter()
            .fold(0, |sum, byte| sum << 8 | u64::from(*byte))
    }

    pub fn is_canonical(&self, hash: &B256, now: SimTime) -> bool {
        let number = Self::number(hash);
        number <= Self::head(now) && self.hash(number) == *hash
    }

    /// The block after `origin`, if it exists `confirmations` below the head.
    pub fn after(&self, origin: &B256, confirmations: u64, now: SimTime) -> Option<B256> {
        let number = Self::number(origin) + 1;
        (number + confirmations <= Self::head(now)).then(|| self.hash(number))
    }

    /// Replaces the newest `depth` blocks by others.
    pub fn reorg(&mut self, depth: u64, now: SimTime) {
        let salt = self.branches.len() as u64;
        let first = (Self::head(now) + 1).saturating_sub(depth).max(1);
        self.branches.retain(|(other, _)| *other < first);
        self.branches.push((first, (salt << 32) + now));
    }

    /// The signer that L1 names, unless L1 cannot be reached.
    pub fn signer(&self) -> Option<Address> {
        self.reachable.then_some(self.signer)
    }

    pub fn set_signer(&mut self, signer: Address) {
        self.signer = signer;
    }
}
