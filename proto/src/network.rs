//! Public OP Stack chains by name: the chains of the superchain registry, and Base (specs:
//! rollup-node, configuration).
//!
//! The table is a text file with one line per chain; it names its sources and columns. Lines are
//! parsed on demand. `--network` and `--op-network` accept the names, and `networks list` prints
//! them.

pub mod overrides;
#[cfg(test)]
mod tests;

use crate::{
    config::{AltDaConfig, ChainOpConfig, RollupConfig, RollupGenesis},
    fork::{Fork, ForkSchedule},
    payload::BlockId,
    system_config::SystemConfig,
};
use alloy_primitives::{B256, U256};
use std::str::{FromStr, SplitWhitespace};

const TABLE: &str = include_str!("network/table.txt");
/// Channel timeout before Granite, in L1 blocks. The registry does not list it, because all chains
/// have the same value.
const CHANNEL_TIMEOUT: u64 = 300;
/// op-node's short names, and the chains they stand for.
const ALIASES: [(&str, &str); 2] = [("mainnet", "op-mainnet"), ("sepolia", "op-sepolia")];

/// A chain of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownNetwork {
    /// The chain's name in the registry and the name of its L1, as in `op-mainnet`.
    pub name: &'static str,
    /// The chain's configuration, as op-node derives it from the registry.
    pub rollup: RollupConfig,
}

impl KnownNetwork {
    /// Every chain, in alphabetical order.
    pub fn all() -> impl Iterator<Item = Self> {
        lines().filter_map(Self::parse)
    }

    /// Finds a chain by name, ignoring case. `mainnet` and `sepolia` are the OP chains.
    pub fn find(name: &str) -> Option<Self> {
        let alias = ALIASES
            .iter()
            .find(|(alias, _)| alias.eq_ignore_ascii_case(name));
        let name = alias.map_or(name, |(_, name)| name);
        let mut lines = lines();
        let line = lines.find(|line| name_of(line).eq_ignore_ascii_case(name))?;
        Self::parse(line)
    }

    fn parse(line: &'static str) -> Option<Self> {
        let mut columns = TableColumns(line.split_whitespace());
        let network = Self {
            name: columns.0.next()?,
            rollup: columns.rollup()?,
        };
        columns.0.next().is_none().then_some(network)
    }
}

/// The names of every chain, in alphabetical order.
pub fn names() -> impl Iterator<Item = &'static str> {
    lines().map(name_of)
}

fn lines() -> impl Iterator<Item = &'static str> {
    TABLE.lines().filter(|line| !line.starts_with('#'))
}

fn name_of(line: &str) -> &str {
    line.split_once(' ').map_or(line, |(name, _)| name)
}

/// The columns of a line after the name. A missing or malformed column ends the parse with `None`.
struct TableColumns(SplitWhitespace<'static>);

impl TableColumns {
    fn next<T: FromStr>(&mut self) -> Option<T> {
        self.0.next()?.parse().ok()
    }

    /// Reads an activation time; `-` means never.
    fn time(&mut self) -> Option<Option<u64>> {
        match self.0.next()? {
            "-" => Some(None),
            seconds => Some(Some(seconds.parse().ok()?)),
        }
    }

    /// Reads a word in hex without leading zeros.
    fn word(&mut self) -> Option<B256> {
        Some(self.next::<U256>()?.into())
    }

    fn rollup(&mut self) -> Option<RollupConfig> {
        let (l1_chain_id, l2_chain_id) = (self.next()?, self.next()?);
        let (block_time, max_sequencer_drift) = (self.next()?, self.next()?);
        let seq_window_size = self.next()?;
        let (forks, pectra_blob_schedule_time) = self.forks()?;
        let keep_karst_upgrade_gas = match self.0.next()? {
            "keep" => true,
            "-" => false,
            _ => return None,
        };
        let chain_op_config = ChainOpConfig {
            eip1559_elasticity: self.next()?,
            eip1559_denominator: self.next()?,
            eip1559_denominator_canyon: Some(self.next()?),
        };
        Some(RollupConfig {
            genesis: self.genesis()?,
            block_time,
            max_sequencer_drift,
            seq_window_size,
            channel_timeout: CHANNEL_TIMEOUT,
            l1_chain_id,
            l2_chain_id,
            forks,
            pectra_blob_schedule_time,
            keep_karst_upgrade_gas,
            batch_inbox_address: self.next()?,
            deposit_contract_address: self.next()?,
            l1_system_config_address: self.next()?,
            alt_da: self.alt_da()?,
            chain_op_config: Some(chain_op_config),
        })
    }

    /// Reads the fork times in order. The time of the Pectra blob schedule precedes the time of
    /// Isthmus.
    fn forks(&mut self) -> Option<(ForkSchedule, Option<u64>)> {
        let mut forks = ForkSchedule::from_times([(Fork::Regolith, Some(0))]);
        let mut pectra = None;
        for fork in Fork::ALL.into_iter().filter(|fork| *fork > Fork::Regolith) {
            if fork == Fork::Isthmus {
                pectra = self.time()?;
            }
            forks = forks.with(fork, self.time()?);
        }
        Some((forks, pectra))
    }

    fn genesis(&mut self) -> Option<RollupGenesis> {
        Some(RollupGenesis {
            l1: self.block()?,
            l2: self.block()?,
            l2_time: self.next()?,
            system_config: SystemConfig {
                batcher_addr: self.next()?,
                overhead: self.word()?,
                scalar: self.word()?,
                gas_limit: self.next()?,
                ..Default::default()
            },
        })
    }

    fn block(&mut self) -> Option<BlockId> {
        Some(BlockId {
            number: self.next()?,
            hash: self.next()?,
        })
    }

    /// Reads the columns that only chains with alternative data availability have.
    fn alt_da(&mut self) -> Option<Option<AltDaConfig>> {
        let Some(address) = self.0.next() else {
            return Some(None);
        };
        Some(Some(AltDaConfig {
            challenge_address: address.parse().ok()?,
            commitment_type: self.next()?,
            challenge_window: self.next()?,
            resolve_window: self.next()?,
        }))
    }
}
