//! Ethereum before the merge: forks by block number, difficulty, uncles, rewards, and the merge at
//! a total difficulty.
//!
//! A chain that begins before the merge has these rules beside those of [`ChainSpec`]; OP chains
//! and chains that begin after the merge do not. Seals (proof of work) are not checked: such chains
//! are only imported from files that the user trusts, and blocks produced today have no seal.

#[cfg(test)]
mod tests;

use super::{ChainSpec, HeaderError, INITIAL_BASE_FEE, Rules, header::MAX_EXTRA_DATA};
use alloy_consensus::{Header, constants::ETH_TO_WEI};
use alloy_primitives::{Address, B256, U256};

/// Lowest difficulty of a block.
const MIN_DIFFICULTY: u64 = 131_072;
/// One step of difficulty is the parent's difficulty divided by this number.
const DIFFICULTY_DIVISOR: u64 = 2_048;
/// Largest number of steps by which a late block lowers the difficulty.
const MAX_STEPS_DOWN: i64 = 99;
/// Number of blocks after which the difficulty bomb doubles.
const BOMB_PERIOD: u64 = 100_000;
/// Largest number of uncles in a block.
const MAX_UNCLES: usize = 2;
/// The parent of an uncle must be one of this many newest ancestors of the block with the uncle.
pub const UNCLE_GENERATIONS: u64 = 7;

/// A fork of Ethereum that activates at a block number. Variants are in the order of activation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum NumberedFork {
    Homestead,
    /// EIP-150.
    TangerineWhistle,
    /// EIP-155 and EIP-158.
    SpuriousDragon,
    Byzantium,
    Constantinople,
    Petersburg,
    Istanbul,
    MuirGlacier,
    Berlin,
    London,
    ArrowGlacier,
    GrayGlacier,
}

impl NumberedFork {
    pub const ALL: [Self; 12] = [
        Self::Homestead,
        Self::TangerineWhistle,
        Self::SpuriousDragon,
        Self::Byzantium,
        Self::Constantinople,
        Self::Petersburg,
        Self::Istanbul,
        Self::MuirGlacier,
        Self::Berlin,
        Self::London,
        Self::ArrowGlacier,
        Self::GrayGlacier,
    ];
}

/// The rules of an Ethereum chain before the merge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BeforeMerge {
    /// The first block of each fork, in the order of [`NumberedFork::ALL`]; `None` if the fork
    /// never activates.
    pub first_blocks: [Option<u64>; NumberedFork::ALL.len()],
    /// The first block whose total difficulty reaches this value is the last one before the merge.
    pub terminal_total_difficulty: U256,
}

/// A payment at the end of a block, in wei, to a miner of the block or of an uncle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockPayment {
    pub to: Address,
    pub wei: u128,
}

/// The reason why the uncles of a block are invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UncleError {
    #[error("{0} uncles, more than {MAX_UNCLES}")]
    Count(usize),
    #[error("uncle {0} is in the chain, or was rewarded before")]
    Known(B256),
    #[error("the parent of uncle {0} is none of the {UNCLE_GENERATIONS} blocks above its own")]
    Parent(B256),
    #[error("uncle {hash}: {error}")]
    Header { hash: B256, error: HeaderError },
}

impl BeforeMerge {
    pub fn is_active(&self, fork: NumberedFork, number: u64) -> bool {
        self.first_blocks[fork as usize].is_some_and(|first| number >= first)
    }

    /// The newest fork that is active in block `number`; `None` before Homestead.
    pub fn fork_at(&self, number: u64) -> Option<NumberedFork> {
        let mut newest_first = NumberedFork::ALL.into_iter().rev();
        newest_first.find(|fork| self.is_active(*fork, number))
    }

    /// Whether receipts of this block contain the state root after their transaction instead of a
    /// status: before Byzantium.
    pub fn has_post_states(&self, number: u64) -> bool {
        !self.is_active(NumberedFork::Byzantium, number)
    }

    /// The difficulty of a block at `timestamp` on `parent`.
    pub fn difficulty(&self, parent: &Header, has_uncles: bool, timestamp: u64) -> U256 {
        let number = parent.number.saturating_add(1);
        let late = timestamp.saturating_sub(parent.timestamp);
        let byzantium = self.is_active(NumberedFork::Byzantium, number);
        let base = if byzantium && has_uncles { 2 } else { 1 };
        let seconds = if byzantium { 9 } else { 10 };
        let steps = i64::try_from(late / seconds).unwrap_or(i64::MAX);
        let steps = (base - steps).max(-MAX_STEPS_DOWN);
        let step = parent.difficulty / U256::from(DIFFICULTY_DIVISOR);
        let change = step.saturating_mul(U256::from(steps.unsigned_abs()));
        let difficulty = if steps < 0 {
            parent.difficulty.saturating_sub(change)
        } else {
            parent.difficulty.saturating_add(change)
        };
        let bomb = number.saturating_sub(self.bomb_delay(number)) / BOMB_PERIOD;
        let bomb = bomb.checked_sub(2).map_or(U256::ZERO, |exponent| {
            U256::ONE
                .checked_shl(exponent as usize)
                .unwrap_or(U256::MAX)
        });
        difficulty
            .max(U256::from(MIN_DIFFICULTY))
            .saturating_add(bomb)
    }

    /// Number of blocks by which the forks active in block `number` delay the difficulty bomb.
    fn bomb_delay(&self, number: u64) -> u64 {
        const DELAYS: [(NumberedFork, u64); 6] = [
            (NumberedFork::GrayGlacier, 11_400_000),
            (NumberedFork::ArrowGlacier, 10_700_000),
            (NumberedFork::London, 9_700_000),
            (NumberedFork::MuirGlacier, 9_000_000),
            (NumberedFork::Constantinople, 5_000_000),
            (NumberedFork::Byzantium, 3_000_000),
        ];
        DELAYS
            .into_iter()
            .find(|(fork, _)| self.is_active(*fork, number))
            .map_or(0, |(_, delay)| delay)
    }

    /// The block rewards of the block's miner and of its uncles' miners.
    pub fn rewards(&self, header: &Header, uncles: &[Header]) -> Vec<BlockPayment> {
        let active = |fork| self.is_active(fork, header.number);
        let ether = if active(NumberedFork::Constantinople) {
            2
        } else if active(NumberedFork::Byzantium) {
            3
        } else {
            5
        };
        let reward = ether * ETH_TO_WEI;
        let of_uncle = |uncle: &Header| BlockPayment {
            to: uncle.beneficiary,
            wei: reward * u128::from((uncle.number + 8).saturating_sub(header.number)) / 8,
        };
        let mut payments: Vec<_> = uncles.iter().map(of_uncle).collect();
        payments.push(BlockPayment {
            to: header.beneficiary,
            wei: reward + reward / 32 * uncles.len() as u128,
        });
        payments
    }

    /// Checks the header fields whose rules differ before the merge. The caller has already checked
    /// hash, number and time, and checks gas and base fee afterwards.
    pub(super) fn check_header(&self, header: &Header, parent: &Header) -> Result<(), HeaderError> {
        if header.extra_data.len() > MAX_EXTRA_DATA {
            return Err(HeaderError::ExtraDataLength(header.extra_data.len()));
        }
        let has_uncles = parent.ommers_hash != alloy_consensus::EMPTY_OMMER_ROOT_HASH;
        let want = self.difficulty(parent, has_uncles, header.timestamp);
        if header.difficulty != want {
            let have = header.difficulty;
            return Err(HeaderError::WrongDifficulty { have, want });
        }
        let later = [
            ("withdrawals root", header.withdrawals_root.is_some()),
            ("blob gas used", header.blob_gas_used.is_some()),
            ("excess blob gas", header.excess_blob_gas.is_some()),
            (
                "parent beacon block root",
                header.parent_beacon_block_root.is_some(),
            ),
            ("requests hash", header.requests_hash.is_some()),
        ];
        if let Some((name, _)) = later.into_iter().find(|(_, present)| *present) {
            return Err(HeaderError::Unexpected(name));
        }
        let london = self.is_active(NumberedFork::London, header.number);
        match (london, header.base_fee_per_gas) {
            (true, None) => Err(HeaderError::Missing("base fee")),
            (false, Some(_)) => Err(HeaderError::Unexpected("base fee")),
            _ => Ok(()),
        }
    }

    /// The gas limit to which that of a block on `parent` is compared: the parent's, or twice the
    /// parent's for the first block of London (EIP-1559).
    pub(super) fn gas_limit_before(&self, header: &Header, parent: &Header) -> u64 {
        let first = header.base_fee_per_gas.is_some() && parent.base_fee_per_gas.is_none();
        parent.gas_limit.saturating_mul(if first { 2 } else { 1 })
    }

    /// Checks that the chain passes from before to after the merge exactly at the terminal total
    /// difficulty. `total` is the parent's total difficulty.
    fn check_merge(
        &self,
        header: &Header,
        parent: &Header,
        total: U256,
    ) -> Result<(), HeaderError> {
        let (reached, terminal) = (
            total >= self.terminal_total_difficulty,
            self.terminal_total_difficulty,
        );
        if header.difficulty.is_zero() && !reached && !parent.difficulty.is_zero() {
            return Err(HeaderError::MergedEarly { total, terminal });
        }
        if !header.difficulty.is_zero() && (reached || parent.difficulty.is_zero()) {
            return Err(HeaderError::MinedAfterMerge);
        }
        Ok(())
    }
}

impl ChainSpec {
    /// The rules before the merge; `None` if the chain begins after the merge.
    pub fn before_merge(&self) -> Option<&BeforeMerge> {
        match &self.rules {
            Rules::Ethereum { before_merge, .. } => before_merge.as_deref(),
            Rules::Optimism { .. } => None,
        }
    }

    /// The rules before the merge if this block is before the merge, that is, if it has a
    /// difficulty.
    pub fn mined(&self, header: &Header) -> Option<&BeforeMerge> {
        self.before_merge().filter(|_| !header.difficulty.is_zero())
    }

    /// Whether the validity of this block depends on the parent's total difficulty: true up to and
    /// including the first block after the merge.
    pub fn needs_total_difficulty(&self, header: &Header, parent: &Header) -> bool {
        let zero = header.difficulty.is_zero() && parent.difficulty.is_zero();
        self.before_merge().is_some() && !zero
    }

    /// Checks that the chain passes from before to after the merge exactly at the terminal total
    /// difficulty. `total` is the parent's total difficulty.
    pub fn check_merge(
        &self,
        header: &Header,
        parent: &Header,
        total: U256,
    ) -> Result<(), HeaderError> {
        match self.before_merge() {
            Some(rules) => rules.check_merge(header, parent, total),
            None => Ok(()),
        }
    }

    /// Whether block `number` has a base fee: from London on.
    pub fn has_base_fee(&self, number: u64) -> bool {
        let rules = self.before_merge();
        rules.is_none_or(|rules| rules.is_active(NumberedFork::London, number))
    }

    /// The base fee of the block at `timestamp` on `parent`; `None` before London.
    pub fn base_fee_of(
        &self,
        parent: &Header,
        timestamp: u64,
    ) -> Result<Option<u64>, super::ExtraDataError> {
        if !self.has_base_fee(parent.number.saturating_add(1)) {
            return Ok(None);
        }
        match parent.base_fee_per_gas {
            Some(_) => self.next_base_fee(parent, timestamp).map(Some),
            None => Ok(Some(INITIAL_BASE_FEE)),
        }
    }
}

/// The relatives of a block that are needed to check its uncles.
pub struct Relatives<'a> {
    /// The last [`UNCLE_GENERATIONS`] blocks below the block, its parent first, with their hashes.
    pub ancestors: &'a [(B256, Header)],
    /// Hashes of the uncles in these ancestors.
    pub rewarded: &'a [B256],
}

impl Relatives<'_> {
    /// Checks the uncles of a block: each is recent and valid, and was not rewarded before.
    pub fn check(&self, spec: &ChainSpec, uncles: &[Header]) -> Result<(), UncleError> {
        if uncles.len() > MAX_UNCLES {
            return Err(UncleError::Count(uncles.len()));
        }
        let hashes: Vec<B256> = uncles.iter().map(Header::hash_slow).collect();
        for (index, (hash, uncle)) in hashes.iter().zip(uncles).enumerate() {
            let canonical = self.ancestors.iter().any(|(ancestor, _)| ancestor == hash);
            if canonical || self.rewarded.contains(hash) || hashes[..index].contains(hash) {
                return Err(UncleError::Known(*hash));
            }
            // An uncle's parent must not be the block's parent: such an uncle would be a sibling of
            // the block.
            let above = self.ancestors.iter().skip(1);
            let parent = above.into_iter().find(|(id, _)| *id == uncle.parent_hash);
            let (parent_hash, parent) = parent.ok_or(UncleError::Parent(*hash))?;
            let checked = spec.check_header(uncle, parent, *parent_hash);
            checked.map_err(|error| UncleError::Header { hash: *hash, error })?;
        }
        Ok(())
    }
}
