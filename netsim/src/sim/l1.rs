//! L1 of a world: a block every 12 seconds, reorgs, outages, the signer that it names, and the
//! transactions of the batcher.

use super::{
    keys,
    queue::{SECOND, SimTime},
    rollup::BATCHER,
    world::GENESIS_TIME,
};
use alloy_primitives::{Address, B256, Bytes};
use rand::{Rng, rngs::StdRng};
use starling_proto::{
    attributes::L1Block,
    derive::{InboxTransaction, L1Input, RelevantLogs},
};
use std::collections::BTreeMap;

/// Time between two L1 blocks.
pub const L1_BLOCK: SimTime = 12 * SECOND;
/// Probability that the next transaction of the pool gets into a block.
const INCLUDED: f64 = 0.95;

/// A transaction of the batcher.
struct Post {
    id: u64,
    data: Bytes,
}

/// The state of a transaction of the batcher.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PostState {
    Pending,
    /// The canonical L1 block of this number has it.
    Included(u64),
    /// A reorg has removed it.
    Lost,
}

/// The L1 chain. A block's hash is its number and the salt of its branch.
pub struct SimL1 {
    /// The branches, newest last: the first number of each, and its salt.
    branches: Vec<(u64, u64)>,
    pub reachable: bool,
    signer: Address,
    /// Transactions of the batcher in no block yet, in the order of their nonces.
    pool: Vec<Post>,
    /// Transactions of the batcher by the hash of their block.
    posts: BTreeMap<B256, Vec<Post>>,
}

impl SimL1 {
    pub fn new() -> Self {
        Self {
            branches: vec![(0, 0)],
            reachable: true,
            signer: keys::address(0),
            pool: Vec::new(),
            posts: BTreeMap::new(),
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

    /// Replaces the newest `depth` blocks by others without transactions. Those of the old blocks
    /// are pending again, or lost.
    pub fn reorg(&mut self, depth: u64, now: SimTime, dice: &mut StdRng) {
        let salt = self.branches.len() as u64;
        let first = (Self::head(now) + 1).saturating_sub(depth).max(1);
        let old: Vec<B256> = (first..=Self::head(now)).map(|it| self.hash(it)).collect();
        let removed: Vec<Post> = old
            .iter()
            .flat_map(|hash| self.posts.remove(hash).unwrap_or_default())
            .collect();
        if !removed.is_empty() && dice.random_bool(0.5) {
            self.pool.splice(0..0, removed);
        }
        self.branches.retain(|(other, _)| *other < first);
        self.branches.push((first, (salt << 32) + now));
    }

    /// The canonical block of this number, in the form that L2 blocks depend on.
    pub fn block(&self, number: u64) -> L1Block {
        let hash = self.hash(number);
        L1Block {
            number,
            hash,
            parent_hash: number
                .checked_sub(1)
                .map_or(B256::ZERO, |parent| self.hash(parent)),
            time: GENESIS_TIME + number * (L1_BLOCK / SECOND),
            base_fee: 7,
            mix_hash: hash,
            excess_blob_gas: Some(0),
            parent_beacon_root: Some(hash),
            ..L1Block::default()
        }
    }

    /// The canonical block of this number, in the form that derivation reads.
    pub fn input(&self, number: u64) -> L1Input {
        let block = self.block(number);
        let posts = self.posts.get(&block.hash).into_iter().flatten();
        let inbox = posts.map(|post| InboxTransaction {
            sender: BATCHER,
            calldata: post.data.clone(),
            blobs: Vec::new(),
        });
        L1Input {
            block,
            logs: RelevantLogs::default(),
            inbox: inbox.collect(),
        }
    }

    /// Adds a transaction of the batcher to the pool.
    pub fn post(&mut self, id: u64, data: Bytes) {
        self.pool.push(Post { id, data });
    }

    pub fn state(&self, id: u64, now: SimTime) -> PostState {
        let has = |posts: &[Post]| posts.iter().any(|post| post.id == id);
        if has(&self.pool) {
            return PostState::Pending;
        }
        let block = self.posts.iter().find(|(_, posts)| has(posts));
        let hash = block.map(|(hash, _)| hash);
        match hash.filter(|hash| self.is_canonical(hash, now)) {
            Some(hash) => PostState::Included(Self::number(hash)),
            None => PostState::Lost,
        }
    }

    /// Fills the next block with the first transactions of the pool, shortly before its time, so
    /// that nobody has read it yet.
    pub fn mine(&mut self, now: SimTime, dice: &mut StdRng) {
        let included = |_: &&Post| dice.random_bool(INCLUDED);
        let count = self.pool.iter().take_while(included).count();
        let hash = self.hash(Self::head(now) + 1);
        let block: Vec<Post> = self.pool.drain(..count).collect();
        self.posts.insert(hash, block);
    }

    /// The signer that L1 names, unless L1 cannot be reached.
    pub fn signer(&self) -> Option<Address> {
        self.reachable.then_some(self.signer)
    }

    pub fn set_signer(&mut self, signer: Address) {
        self.signer = signer;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;

    #[test]
    fn a_reorg_removes_a_transaction_which_is_pending_again_or_lost() {
        let mut states = Vec::new();
        for seed in 0..32 {
            let (mut dice, mut l1) = (StdRng::seed_from_u64(seed), SimL1::new());
            let mut now = 0;
            l1.post(1, Bytes::from_static(b"frames"));
            while l1.state(1, now) == PostState::Pending {
                now += L1_BLOCK;
                l1.mine(now - 1, &mut dice);
            }
            let number = SimL1::head(now);
            assert_eq!(l1.state(1, now), PostState::Included(number));
            assert_eq!(l1.input(number).inbox.len(), 1);
            l1.reorg(1, now, &mut dice);
            assert!(l1.input(number).inbox.is_empty());
            states.push(l1.state(1, now));
        }
        assert!(states.contains(&PostState::Pending) && states.contains(&PostState::Lost));
        assert!(!states.iter().any(|it| matches!(it, PostState::Included(_))));
    }

    #[test]
    fn blocks_are_a_chain_before_and_after_a_reorg() {
        let (mut dice, mut l1) = (StdRng::seed_from_u64(1), SimL1::new());
        let now = 10 * L1_BLOCK;
        let old: Vec<L1Block> = (0..=10).map(|number| l1.block(number)).collect();
        l1.reorg(3, now, &mut dice);
        let new: Vec<L1Block> = (0..=10).map(|number| l1.block(number)).collect();
        for chain in [&old, &new] {
            let linked = chain.windows(2).all(|it| it[1].parent_hash == it[0].hash);
            assert!(linked && chain.windows(2).all(|it| it[1].time > it[0].time));
        }
        let equal = old.iter().zip(&new).filter(|(old, new)| old == new);
        assert_eq!(equal.count(), 8);
        assert!(!l1.is_canonical(&old[10].hash, now) && l1.is_canonical(&new[10].hash, now));
    }
}
