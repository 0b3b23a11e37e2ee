//! rollup.json: the parameters of a chain that a rollup node needs (specs: rollup-node,
//! configuration).
//!
//! Operators write or copy this file, so an error names the fault, and the field or the line.
//! Unknown fields are ignored, including forks of unknown name, as op-node ignores them; the reader's
//! caller may name them ([`RollupConfig::unknown_members`]). Names are matched without case, as in
//! op-node. Earlier op-nodes refuse unknown fields, so files written for them have only current
//! fields ([`RollupJsonFormat`]).

mod json;
mod members;

pub use members::UnknownMember;

use crate::{
    fork::{Fork, ForkOrderError, ForkSchedule},
    payload::BlockId,
    system_config::SystemConfig,
};
use alloy_primitives::{Address, B256};
use json::RollupJson;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use thiserror::Error;

/// Largest number of seconds by which an L2 block may be ahead of its L1 origin, from Fjord on.
const MAX_SEQUENCER_DRIFT_FJORD: u64 = 1_800;

/// Start of the rollup: an L1 block, the L2 genesis block, and the system configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RollupGenesis {
    /// L1 block at which the chain begins.
    pub l1: BlockId,
    /// First block of the chain.
    pub l2: BlockId,
    /// Time of the L2 genesis block, in Unix seconds.
    pub l2_time: u64,
    /// System configuration at the L2 genesis block.
    pub system_config: SystemConfig,
}

/// EIP-1559 constants of the chain, which apply until the system configuration sets values of its
/// own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChainOpConfig {
    /// Gas limit divided by gas target.
    #[serde(rename = "eip1559Elasticity", alias = "eip1559_elasticity", default)]
    pub eip1559_elasticity: u64,
    /// Denominator of a change of the base fee, before Canyon.
    #[serde(rename = "eip1559Denominator", alias = "eip1559_denominator", default)]
    pub eip1559_denominator: u64,
    /// Denominator of a change of the base fee, from Canyon on.
    #[serde(
        rename = "eip1559DenominatorCanyon",
        alias = "eip1559_denominator_canyon",
        default,
        skip_serializing_if = "Option::is_none"
    )]
    pub eip1559_denominator_canyon: Option<u64>,
}

/// Alternative data availability, for chains that post only commitments to their batches on L1.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AltDaConfig {
    /// L1 contract on which missing data are challenged.
    #[serde(rename = "da_challenge_contract_address", default)]
    pub challenge_address: Address,
    /// `KeccakCommitment` or `GenericCommitment`.
    #[serde(rename = "da_commitment_type", default)]
    pub commitment_type: String,
    /// L1 blocks in which missing data can be challenged.
    #[serde(rename = "da_challenge_window", default)]
    pub challenge_window: u64,
    /// L1 blocks in which a challenge can be resolved.
    #[serde(rename = "da_resolve_window", default)]
    pub resolve_window: u64,
}

/// The contents of a rollup.json, checked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RollupConfig {
    /// Start of the rollup.
    pub genesis: RollupGenesis,
    /// Seconds between L2 blocks, at least 1.
    pub block_time: u64,
    /// Largest number of seconds by which an L2 block may be ahead of its L1 origin, before Fjord.
    pub max_sequencer_drift: u64,
    /// Sequencing window, in L1 blocks.
    pub seq_window_size: u64,
    /// Channel timeout in L1 blocks, before Granite.
    pub channel_timeout: u64,
    /// Chain id of L1.
    pub l1_chain_id: u64,
    /// Chain id of L2, which must differ from L1's.
    pub l2_chain_id: u64,
    /// Fork times, by L2 timestamp. Lagoon's time (`interop_time`) is one of them.
    pub forks: ForkSchedule,
    /// L1 time until which blob fees use Cancun's fraction, even after Prague on L1. This time is
    /// not part of the fork schedule.
    pub pectra_blob_schedule_time: Option<u64>,
    /// Whether later blocks keep the additional gas limit of the block that activates Karst.
    pub keep_karst_upgrade_gas: bool,
    /// L1 address that batches are sent to.
    pub batch_inbox_address: Address,
    /// L1 contract that emits deposits (OptimismPortal).
    pub deposit_contract_address: Address,
    /// L1 contract that emits changes of the system configuration.
    pub l1_system_config_address: Address,
    /// Alternative data availability; `None` if batches are on L1.
    pub alt_da: Option<AltDaConfig>,
    /// EIP-1559 constants; `None` if the file has none.
    pub chain_op_config: Option<ChainOpConfig>,
}

/// The reason why a rollup.json is refused.
#[derive(Debug, Error)]
#[allow(missing_docs, reason = "the messages document the variants")]
pub enum ConfigError {
    #[error("rollup config is not readable: {0}")]
    Json(#[from] serde_json::Error),
    #[error("{key} is {value}, neither seconds nor null")]
    ForkTime { key: String, value: Value },
    #[error("rollup config: {0}")]
    Invalid(&'static str),
    #[error("rollup config: {0}")]
    ForkOrder(#[from] ForkOrderError),
}

/// The formats in which rollup.json can be written. Reading accepts both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RollupJsonFormat {
    /// Only the fields that op-node knows today, since op-node refuses any other field.
    Current,
    /// Also the four fields that `alt_da` replaced: `da_challenge_address`, `da_challenge_window`,
    /// `da_resolve_window` and `use_plasma`. Without `alt_da` they are zero and false.
    Legacy,
}

impl RollupConfig {
    /// Largest number of seconds by which an L2 block may be ahead of an L1 origin at `l1_time` and
    /// still have transactions. From Fjord on this is a constant (specs: fjord, constant maximum
    /// sequencer drift).
    pub fn sequencer_drift(&self, l1_time: u64) -> u64 {
        if self.forks.is_active(Fork::Fjord, l1_time) {
            MAX_SEQUENCER_DRIFT_FJORD
        } else {
            self.max_sequencer_drift
        }
    }

    /// Reads and checks a rollup.json.
    pub fn from_json(json: &str) -> Result<Self, ConfigError> {
        let mut document: Value = serde_json::from_str(json)?;
        let given = document.clone();
        members::correct(&mut document);
        // An error of the text has a line number, one of the corrected document has none.
        let json: RollupJson = if document == given {
            serde_json::from_str(json)?
        } else {
            serde_json::from_value(document)?
        };
        let config = Self::try_from(json)?;
        config.validate()?;
        Ok(config)
    }

    /// The members of a rollup.json that [`from_json`](Self::from_json) ignores because it does not
    /// know their names.
    pub fn unknown_members(json: &str) -> Vec<UnknownMember> {
        let document = serde_json::from_str(json);
        document.map_or_else(
            |_| Vec::new(),
            |mut document| members::correct(&mut document),
        )
    }

    /// Writes rollup.json for other programs, in the [current](RollupJsonFormat::Current) format.
    pub fn to_json(&self) -> String {
        self.to_json_as(RollupJsonFormat::Current)
    }

    /// Writes rollup.json with two spaces of indent and op-node's order of fields. Forks without a
    /// time are omitted.
    pub fn to_json_as(&self, format: RollupJsonFormat) -> String {
        let mut json = RollupJson::from(self);
        if format == RollupJsonFormat::Legacy {
            let alt_da = self.alt_da.as_ref();
            json.da_challenge_address =
                Some(alt_da.map_or(Address::ZERO, |alt_da| alt_da.challenge_address));
            json.da_challenge_window = Some(alt_da.map_or(0, |alt_da| alt_da.challenge_window));
            json.da_resolve_window = Some(alt_da.map_or(0, |alt_da| alt_da.resolve_window));
            json.use_plasma = Some(alt_da.is_some());
        }
        // Cannot fail: maps with string keys and plain values always serialise.
        serde_json::to_string_pretty(&json).unwrap_or_default()
    }

    /// Repeats the checks of [`from_json`](Self::from_json), for use after overrides.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let genesis = &self.genesis;
        let system = &genesis.system_config;
        let rules = [
            (self.block_time == 0, "block time cannot be 0"),
            (
                self.channel_timeout == 0,
                "channel timeout must be set, this should cover at least a L1 block time",
            ),
            (
                self.seq_window_size < 2,
                "sequencing window size must at least be 2",
            ),
            (genesis.l1.hash.is_zero(), "genesis L1 hash cannot be empty"),
            (genesis.l2.hash.is_zero(), "genesis L2 hash cannot be empty"),
            (
                genesis.l1.hash == genesis.l2.hash,
                "achievement get! rollup inception: L1 and L2 genesis cannot be the same",
            ),
            (genesis.l2_time == 0, "missing L2 genesis time"),
            (
                system.batcher_addr.is_zero(),
                "missing genesis system config batcher address",
            ),
            (
                system.scalar == B256::ZERO,
                "missing genesis system config scalar",
            ),
            (
                system.gas_limit == 0,
                "missing genesis system config gas limit",
            ),
            (
                self.batch_inbox_address.is_zero(),
                "missing batch inbox address",
            ),
            (
                self.deposit_contract_address.is_zero(),
                "missing deposit contract address",
            ),
            (
                self.l1_system_config_address.is_zero(),
                "missing L1 system config address",
            ),
            (self.l1_chain_id == 0, "L1 chain ID must be positive"),
            (self.l2_chain_id == 0, "L2 chain ID must be positive"),
            (
                self.l1_chain_id == self.l2_chain_id,
                "L1 and L2 chain IDs must be different",
            ),
        ];
        if let Some((_, rule)) = rules.into_iter().find(|(broken, _)| *broken) {
            return Err(ConfigError::Invalid(rule));
        }
        Ok(self.forks.validate()?)
    }
}

#[cfg(test)]
mod tests;
