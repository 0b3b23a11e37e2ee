//! L1 of a world: a block every 12 seconds, reorgs, outages, the signer that it names, and the
//! account of the batcher ([`account`]), with a base fee that rises and falls.

pub mod account;

use super::{
    context::GENESIS_TIME,
    keys,
    queue::{SECOND, SimTime},
    rollup::BATCHER,
};
use account::{AccountTx, L1Account, mined};
use alloy_primitives::{Address, B256};
use rand::{Rng, rngs::StdRng};
use starling::machines::{AccountReading, L1Fees, PublishResult};
use starling_proto::{
    attributes::L1Block,
    derive::{InboxTransaction, L1Input, RelevantLogs},
};
use std::time::Duration;

/// Time between two L1 blocks.
pub const L1_BLOCK: SimTime = 12 * SECOND;
/// Probability that the next transaction of the pool gets into a block.
const INCLUDED: f64 = 0.95;
/// Base fees of cheap and of expensive L1 blocks in wei. Transactions that were made for cheap
/// blocks do not pay the fee of expensive ones.
const BASE_FEES: [u128; 2] = [1_000_000_000, 5_000_000_000];
/// L1 blocks after which the base fee has had both values, and the expensive ones of them.
const FEE_PERIOD: u64 = 14;
const EXPENSIVE: u64 = 4;
const TIP: u128 = 1_000_000_000;
/// Probability that the response to a publication is lost.
const LOST_RESPONSE: f64 = 0.05;
/// The error of a request while L1 cannot be reached.
const UNREACHABLE: &str = "L1 cannot be reached";

/// The L1 chain. A block's hash is its number and the salt of its branch.
pub struct SimL1 {
    /// The branches, newest last: the first number of each, and its salt.
    branches: Vec<(u64, u64)>,
    pub reachable: bool,
    signer: Address,
    /// The account of the batcher.
    account: L1Account,
}

impl SimL1 {
    pub fn new() -> Self {
        Self {
            branches: vec![(0, 0)],
            reachable: true,
            signer: keys::address(0),
            account: L1Account::default(),
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
        let removed = old.iter().flat_map(|hash| self.account.remove(hash));
        let removed: Vec<AccountTx> = removed.collect();
        if !removed.is_empty() && dice.random_bool(0.5) {
            self.account.restore(removed);
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
        let posts = self.account.of(&block.hash).iter();
        let inbox = posts.filter(|tx| !tx.data.is_empty());
        let inbox = inbox.map(|tx| InboxTransaction {
            sender: BATCHER,
            calldata: tx.data.clone(),
            blobs: Vec::new(),
        });
        L1Input {
            block,
            logs: RelevantLogs::default(),
            inbox: inbox.collect(),
        }
    }

    /// The canonical blocks up to this number.
    fn up_to(&self, number: u64) -> impl Iterator<Item = B256> {
        (0..=number).map(|number| self.hash(number))
    }

    /// The next nonce of the batcher's account.
    fn nonce(&self, now: SimTime) -> u64 {
        self.account.nonce(self.up_to(Self::head(now)))
    }

    fn base_fee(number: u64) -> u128 {
        BASE_FEES[usize::from(number % FEE_PERIOD >= FEE_PERIOD - EXPENSIVE)]
    }

    pub fn fees(&self, now: SimTime) -> Result<L1Fees, String> {
        let fees = L1Fees {
            tip: TIP,
            base_fee: Self::base_fee(Self::head(now)),
            blob_base_fee: Some(1),
            blob_tip: None,
        };
        self.reachable.then_some(fees).ok_or(UNREACHABLE.into())
    }

    /// Publishes a transaction of the batcher. The response may be lost.
    pub fn publish(&mut self, tx: AccountTx, now: SimTime, dice: &mut StdRng) -> PublishResult {
        if !self.reachable {
            return PublishResult::Unreachable(UNREACHABLE.into());
        }
        let answer = self.account.publish(tx, self.nonce(now));
        if dice.random_bool(LOST_RESPONSE) {
            return PublishResult::Unreachable("no response".into());
        }
        answer
    }

    /// The state of the batcher's account, with these receipts.
    pub fn reading(
        &self,
        deep_block: Option<u64>,
        with_age: bool,
        hashes: &[B256],
        now: SimTime,
    ) -> Result<AccountReading, String> {
        if !self.reachable {
            return Err(UNREACHABLE.into());
        }
        let head = Self::head(now);
        let latest = self.nonce(now);
        let receipt = |hash: &B256| {
            (0..=head).find_map(|number| Some((number, self.in_block(number, hash)?)))
        };
        let receipt =
            |hash: &B256| receipt(hash).map(|(number, tx)| mined(tx, number, self.hash(number)));
        Ok(AccountReading {
            head,
            latest,
            pending: self.account.pending(latest),
            deep_nonce: deep_block.map(|block| self.account.nonce(self.up_to(block.min(head)))),
            head_age: with_age.then(|| Duration::from_micros(now % L1_BLOCK)),
            receipts: hashes.iter().map(|hash| (*hash, receipt(hash))).collect(),
        })
    }

    /// The transaction with this hash, if the canonical block of this number has it.
    pub fn in_block(&self, number: u64, hash: &B256) -> Option<&AccountTx> {
        let txs = self.account.of(&self.hash(number));
        txs.iter().find(|tx| tx.hash == *hash)
    }

    /// Fills the next block with the first transactions of the pool, shortly before its time, so
    /// that nobody has read it yet.
    pub fn mine(&mut self, now: SimTime, dice: &mut StdRng) {
        let (next, latest) = (Self::head(now) + 1, self.nonce(now));
        let (hash, base_fee) = (self.hash(next), Self::base_fee(next));
        let included = || dice.random_bool(INCLUDED);
        self.account.mine(hash, latest, base_fee, included);
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
    use alloy_primitives::Bytes;
    use rand::SeedableRng;
    use starling::machines::FeeCaps;
    use std::collections::BTreeSet;

    fn tx(nonce: u64, gwei: u128) -> AccountTx {
        let caps = FeeCaps {
            tip: gwei * TIP,
            fee: gwei * 1_000_000_000,
            blob_fee: None,
        };
        AccountTx::new(nonce, caps, Bytes::from_static(b"frames"))
    }

    fn receipt(l1: &SimL1, hash: B256, now: SimTime) -> Option<u64> {
        let reading = l1.reading(None, false, &[hash], now).unwrap();
        reading.receipts[&hash].map(|mined| mined.block)
    }

    #[test]
    fn a_reorg_removes_a_transaction_which_is_pending_again_or_lost() {
        let mut pending = BTreeSet::new();
        for seed in 0..32 {
            let (mut dice, mut l1) = (StdRng::seed_from_u64(seed), SimL1::new());
            let (mut now, tx) = (0, tx(0, 9));
            l1.publish(tx.clone(), now, &mut dice);
            while receipt(&l1, tx.hash, now).is_none() {
                now += L1_BLOCK;
                l1.mine(now - 1, &mut dice);
            }
            let number = SimL1::head(now);
            assert_eq!(receipt(&l1, tx.hash, now), Some(number));
            assert_eq!(l1.input(number).inbox.len(), 1);
            l1.reorg(1, now, &mut dice);
            assert!(l1.input(number).inbox.is_empty());
            assert_eq!(receipt(&l1, tx.hash, now), None);
            pending.insert(l1.reading(None, false, &[], now).unwrap().pending);
        }
        assert_eq!(pending, BTreeSet::from([0, 1]));
    }

    #[test]
    fn the_pool_has_the_rules_of_geth() {
        let mut account = L1Account::default();
        assert_eq!(account.publish(tx(1, 2), 0), PublishResult::Accepted);
        assert_eq!(account.publish(tx(1, 2), 0), PublishResult::AlreadyKnown);
        let same = account.publish(tx(1, 1), 0);
        assert!(matches!(same, PublishResult::Underpriced(_)));
        assert_eq!(account.publish(tx(1, 3), 0), PublishResult::Accepted);
        assert_eq!(account.pending(0), 0);
        assert_eq!(account.publish(tx(0, 1), 0), PublishResult::Accepted);
        assert_eq!(account.pending(0), 2);
        assert_eq!(account.publish(tx(0, 1), 1), PublishResult::NonceTooLow);
        // The second transaction alone pays the base fee, and waits for the first.
        let block = B256::repeat_byte(1);
        account.mine(block, 0, 2_000_000_000, || true);
        assert!(account.of(&block).is_empty());
        account.mine(block, 0, 1_000_000_000, || true);
        assert_eq!(account.of(&block), [tx(0, 1), tx(1, 3)]);
        assert_eq!(account.pending(2), 2);
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
