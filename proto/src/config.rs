//! rollup.json: the parameters that a rollup node needs of its chain (specs: rollup-node,
//! configuration).
//!
//! Operators write this file or copy it from the first node, so every error says which field is
//! wrong and how. Unknown fields are ignored; a fork of unknown name is one of them. op-node
//! refuses unknown fields, so files for it have only current ones ([`RollupJsonFormat`]).

use crate::{
    fork::{Fork, ForkOrderError, ForkSchedule},
    payload::BlockId,
    system_config::SystemConfig,
};
use alloy_primitives::{Address, B256};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};
use thiserror::Error;

/// Seconds an L2 block may be ahead of its L1 origin from Fjord on.
const MAX_SEQUENCER_DRIFT_FJORD: u64 = 1_800;

/// Start of L2: the L1 block it is anchored to, the L2 genesis block and its time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RollupGenesis {
    /// L1 block at which the chain begins.
    pub l1: BlockId,
    /// First block of the chain.
    pub l2: BlockId,
    /// Unix seconds.
    pub l2_time: u64,
    /// System configuration at the first block.
    pub system_config: SystemConfig,
}

/// EIP-1559 constants of the chain, used until the system configuration sets its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChainOpConfig {
    /// Gas limit divided by gas target.
    #[serde(rename = "eip1559Elasticity", alias = "eip1559_elasticity", default)]
    pub eip1559_elasticity: u64,
    /// Denominator of a base fee change, before Canyon.
    #[serde(rename = "eip1559Denominator", alias = "eip1559_denominator", default)]
    pub eip1559_denominator: u64,
    /// From Canyon on.
    #[serde(
        rename = "eip1559DenominatorCanyon",
        alias = "eip1559_denominator_canyon",
        default,
        skip_serializing_if = "Option::is_none"
    )]
    pub eip1559_denominator_canyon: Option<u64>,
}

/// Alternative data availability: the location of batches that are not on L1.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AltDaConfig {
    /// L1 contract in which missing data is challenged.
    #[serde(rename = "da_challenge_contract_address", default)]
    pub challenge_address: Address,
    /// `KeccakCommitment` or `GenericCommitment`.
    #[serde(rename = "da_commitment_type", default)]
    pub commitment_type: String,
    /// L1 blocks.
    #[serde(rename = "da_challenge_window", default)]
    pub challenge_window: u64,
    /// L1 blocks.
    #[serde(rename = "da_resolve_window", default)]
    pub resolve_window: u64,
}

/// rollup.json, read and checked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RollupConfig {
    /// Start of the chain.
    pub genesis: RollupGenesis,
    /// Seconds between L2 blocks, at least 1.
    pub block_time: u64,
    /// Seconds an L2 block may be ahead of its L1 origin before Fjord.
    pub max_sequencer_drift: u64,
    /// L1 blocks.
    pub seq_window_size: u64,
    /// L1 blocks, before Granite.
    pub channel_timeout: u64,
    /// Chain id of L1.
    pub l1_chain_id: u64,
    /// Chain id of L2, other than L1's.
    pub l2_chain_id: u64,
    /// Fork times, by L2 timestamp.
    pub forks: ForkSchedule,
    /// L1 time until which blob fees are computed with Cancun's fraction although L1 is past
    /// Prague; no fork of the schedule.
    pub pectra_blob_schedule_time: Option<u64>,
    /// Interop, since renamed to Lagoon. Carried through; its rules are not part of this crate.
    pub lagoon_time: Option<u64>,
    /// Whether the gas of the Karst upgrade stays in the gas limit after the block that activates
    /// it.
    pub keep_karst_upgrade_gas: bool,
    /// L1 address that batches are sent to.
    pub batch_inbox_address: Address,
    /// L1 contract whose logs are deposits (OptimismPortal).
    pub deposit_contract_address: Address,
    /// L1 contract whose logs change the system configuration.
    pub l1_system_config_address: Address,
    /// `None`: batches are on L1.
    pub alt_da: Option<AltDaConfig>,
    /// EIP-1559 constants; `None` if the file has none.
    pub chain_op_config: Option<ChainOpConfig>,
}

/// Why a rollup.json is refused.
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

/// The forms of rollup.json that are written. Both are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RollupJsonFormat {
    /// Only the fields that op-node knows today; it refuses any other.
    Current,
    /// Also the four fields that `alt_da` replaced: `da_challenge_address`, `da_challenge_window`,
    /// `da_resolve_window` and `use_plasma`. Without `alt_da` they are zero and false.
    Legacy,
}

/// The document, in op-node's order of fields. Fork times are in `rest`, so that the list of forks
/// exists once.
#[derive(Serialize, Deserialize)]
struct RollupJson {
    genesis: RollupGenesis,
    block_time: u64,
    #[serde(default)]
    max_sequencer_drift: u64,
    seq_window_size: u64,
    channel_timeout: u64,
    l1_chain_id: u64,
    l2_chain_id: u64,
    #[serde(flatten)]
    rest: OtherFields,
    #[serde(
        rename = "interop_time",
        alias = "lagoon_time",
        default,
        skip_serializing_if = "Option::is_none"
    )]
    lagoon_time: Option<u64>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    keep_karst_upgrade_gas: bool,
    batch_inbox_address: Address,
    deposit_contract_address: Address,
    l1_system_config_address: Address,
    // Four fields that preceded `alt_da`, written in the legacy format.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    da_challenge_address: Option<Address>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    da_challenge_window: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    da_resolve_window: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    use_plasma: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    chain_op_config: Option<ChainOpConfig>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    alt_da: Option<AltDaConfig>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pectra_blob_schedule_time: Option<u64>,
}

/// Fields by name, written in this order: a map of `serde_json` would sort them.
struct OtherFields(Vec<(String, Value)>);

impl OtherFields {
    fn get(&self, name: &str) -> Option<&Value> {
        let mut fields = self.0.iter();
        fields.find(|(key, _)| key == name).map(|(_, value)| value)
    }
}

impl Serialize for OtherFields {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, value)| (name, value)))
    }
}

impl<'de> Deserialize<'de> for OtherFields {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let fields = Map::deserialize(deserializer)?;
        Ok(Self(fields.into_iter().collect()))
    }
}

impl RollupConfig {
    /// Seconds an L2 block may be ahead of an L1 origin at `l1_time` and still have transactions: a
    /// constant from Fjord on (specs: fjord, constant maximum sequencer drift).
    pub fn sequencer_drift(&self, l1_time: u64) -> u64 {
        if self.forks.is_active(Fork::Fjord, l1_time) {
            MAX_SEQUENCER_DRIFT_FJORD
        } else {
            self.max_sequencer_drift
        }
    }

    /// Reads and checks a rollup.json.
    pub fn from_json(json: &str) -> Result<Self, ConfigError> {
        let json: RollupJson = serde_json::from_str(json)?;
        let config = Self::try_from(json)?;
        config.validate()?;
        Ok(config)
    }

    /// Writes the document for other programs, in the [current](RollupJsonFormat::Current) format.
    pub fn to_json(&self) -> String {
        self.to_json_as(RollupJsonFormat::Current)
    }

    /// Writes the document: two spaces of indent, op-node's order of fields, forks without a time
    /// left out.
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
        // Maps with string keys and plain values: nothing in here can fail to serialize.
        serde_json::to_string_pretty(&json).unwrap_or_default()
    }

    /// The checks of [`from_json`](Self::from_json), to be repeated after overrides.
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

fn key(fork: Fork) -> String {
    format!("{}_time", fork.name())
}

impl TryFrom<RollupJson> for RollupConfig {
    type Error = ConfigError;

    fn try_from(json: RollupJson) -> Result<Self, ConfigError> {
        let mut forks = ForkSchedule::from_times([]);
        for fork in Fork::ALL.into_iter().filter(|fork| *fork != Fork::Bedrock) {
            let time = match json.rest.get(&key(fork)) {
                None | Some(Value::Null) => None,
                Some(value) => match value.as_u64() {
                    Some(time) => Some(time),
                    None => {
                        return Err(ConfigError::ForkTime {
                            key: key(fork),
                            value: value.clone(),
                        });
                    }
                },
            };
            forks = forks.with(fork, time);
        }
        let legacy_alt_da = json.use_plasma.unwrap_or(false).then(|| AltDaConfig {
            challenge_address: json.da_challenge_address.unwrap_or_default(),
            commitment_type: "KeccakCommitment".to_owned(),
            challenge_window: json.da_challenge_window.unwrap_or_default(),
            resolve_window: json.da_resolve_window.unwrap_or_default(),
        });
        Ok(Self {
            genesis: json.genesis,
            block_time: json.block_time,
            max_sequencer_drift: json.max_sequencer_drift,
            seq_window_size: json.seq_window_size,
            channel_timeout: json.channel_timeout,
            l1_chain_id: json.l1_chain_id,
            l2_chain_id: json.l2_chain_id,
            forks,
            pectra_blob_schedule_time: json.pectra_blob_schedule_time,
            lagoon_time: json.lagoon_time,
            keep_karst_upgrade_gas: json.keep_karst_upgrade_gas,
            batch_inbox_address: json.batch_inbox_address,
            deposit_contract_address: json.deposit_contract_address,
            l1_system_config_address: json.l1_system_config_address,
            alt_da: json.alt_da.or(legacy_alt_da),
            chain_op_config: json.chain_op_config,
        })
    }
}

impl From<&RollupConfig> for RollupJson {
    fn from(config: &RollupConfig) -> Self {
        let times = Fork::ALL.into_iter().filter(|fork| *fork != Fork::Bedrock);
        let rest = times.filter_map(|fork| Some((key(fork), config.forks.time(fork)?.into())));
        Self {
            genesis: config.genesis.clone(),
            block_time: config.block_time,
            max_sequencer_drift: config.max_sequencer_drift,
            seq_window_size: config.seq_window_size,
            channel_timeout: config.channel_timeout,
            l1_chain_id: config.l1_chain_id,
            l2_chain_id: config.l2_chain_id,
            rest: OtherFields(rest.collect()),
            pectra_blob_schedule_time: config.pectra_blob_schedule_time,
            lagoon_time: config.lagoon_time,
            keep_karst_upgrade_gas: config.keep_karst_upgrade_gas,
            batch_inbox_address: config.batch_inbox_address,
            deposit_contract_address: config.deposit_contract_address,
            l1_system_config_address: config.l1_system_config_address,
            da_challenge_address: None,
            da_challenge_window: None,
            da_resolve_window: None,
            use_plasma: None,
            alt_da: config.alt_da.clone(),
            chain_op_config: config.chain_op_config,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn document() -> Value {
        json!({
            "genesis": {
                "l1": { "hash": B256::repeat_byte(1), "number": 10 },
                "l2": { "hash": B256::repeat_byte(2), "number": 0 },
                "l2_time": 1_725_557_164,
                "system_config": {
                    "batcherAddr": Address::repeat_byte(3),
                    "overhead": B256::ZERO,
                    "scalar": B256::with_last_byte(4),
                    "gasLimit": 30_000_000,
                }
            },
            "block_time": 2,
            "max_sequencer_drift": 600,
            "seq_window_size": 3600,
            "channel_timeout": 300,
            "l1_chain_id": 900,
            "l2_chain_id": 901,
            "regolith_time": 0,
            "canyon_time": 7,
            "delta_time": null,
            "batch_inbox_address": Address::repeat_byte(5),
            "deposit_contract_address": Address::repeat_byte(6),
            "l1_system_config_address": Address::repeat_byte(7),
        })
    }

    fn read(edit: impl FnOnce(&mut Value)) -> Result<RollupConfig, ConfigError> {
        let mut document = document();
        edit(&mut document);
        RollupConfig::from_json(&document.to_string())
    }

    #[test]
    fn a_document_survives_reading_and_writing() {
        let config = read(|_| {}).unwrap();
        assert_eq!(config.forks.time(Fork::Bedrock), Some(0));
        assert_eq!(config.forks.time(Fork::Canyon), Some(7));
        assert_eq!(config.forks.time(Fork::Delta), None);
        assert_eq!(RollupConfig::from_json(&config.to_json()).unwrap(), config);
    }

    fn full() -> RollupConfig {
        let mut config = read(|_| {}).unwrap();
        config.forks = ForkSchedule::from_genesis(Fork::Karst);
        config.genesis.system_config.eip1559 = crate::system_config::Eip1559Params {
            denominator: 250,
            elasticity: 6,
        };
        config.genesis.system_config.operator_fee_scalar = 1;
        config.genesis.system_config.operator_fee_constant = u64::MAX;
        config.genesis.system_config.min_base_fee = 2;
        config.genesis.system_config.da_footprint_gas_scalar = 3;
        config.pectra_blob_schedule_time = Some(9);
        config.lagoon_time = Some(10);
        config.keep_karst_upgrade_gas = true;
        config.alt_da = Some(AltDaConfig {
            challenge_address: Address::repeat_byte(8),
            commitment_type: "GenericCommitment".to_owned(),
            challenge_window: 11,
            resolve_window: 12,
        });
        config.chain_op_config = Some(ChainOpConfig {
            eip1559_elasticity: 6,
            eip1559_denominator: 50,
            eip1559_denominator_canyon: Some(250),
        });
        config
    }

    #[test]
    fn a_full_configuration_survives_reading_and_writing() {
        let config = full();
        assert_eq!(RollupConfig::from_json(&config.to_json()).unwrap(), config);
    }

    /// The fields of op-node's `rollup.Config`, which is decoded strictly, by the object they are
    /// in. Times of forks are left out.
    const OP_NODE_FIELDS: [(&str, &[&str]); 6] = [
        (
            "",
            &[
                "genesis",
                "block_time",
                "max_sequencer_drift",
                "seq_window_size",
                "channel_timeout",
                "l1_chain_id",
                "l2_chain_id",
                "interop_time",
                "keep_karst_upgrade_gas",
                "batch_inbox_address",
                "deposit_contract_address",
                "l1_system_config_address",
                "chain_op_config",
                "alt_da",
                "pectra_blob_schedule_time",
            ],
        ),
        ("/genesis", &["l1", "l2", "l2_time", "system_config"]),
        ("/genesis/l1", &["hash", "number"]),
        (
            "/genesis/system_config",
            &[
                "batcherAddr",
                "overhead",
                "scalar",
                "gasLimit",
                "eip1559Params",
                "operatorFeeParams",
                "minBaseFee",
                "daFootprintGasScalar",
            ],
        ),
        (
            "/alt_da",
            &[
                "da_challenge_contract_address",
                "da_commitment_type",
                "da_challenge_window",
                "da_resolve_window",
            ],
        ),
        (
            "/chain_op_config",
            &[
                "eip1559Elasticity",
                "eip1559Denominator",
                "eip1559DenominatorCanyon",
            ],
        ),
    ];

    #[test]
    fn only_fields_that_op_node_knows_are_written() {
        let written: Value = serde_json::from_str(&full().to_json()).unwrap();
        let forks: Vec<String> = Fork::ALL.into_iter().map(key).collect();
        for (pointer, fields) in OP_NODE_FIELDS {
            let object = written.pointer(pointer).unwrap().as_object().unwrap();
            for name in object.keys() {
                let known =
                    fields.contains(&name.as_str()) || pointer.is_empty() && forks.contains(name);
                assert!(known, "{pointer}/{name}");
            }
        }
    }

    #[test]
    fn unknown_fields_are_ignored_and_both_names_of_the_last_fork_are_known() {
        assert_eq!(
            read(|d| d["mystery"] = json!({ "a": 1 })).unwrap(),
            read(|_| {}).unwrap()
        );
        assert_eq!(
            read(|d| d["lagoon_time"] = json!(5)).unwrap().lagoon_time,
            Some(5)
        );
        assert_eq!(
            read(|d| d["interop_time"] = json!(5)).unwrap().lagoon_time,
            Some(5)
        );
    }

    #[test]
    fn the_fields_before_alt_da_are_read_as_alt_da() {
        let config = read(|d| {
            d["use_plasma"] = json!(true);
            d["da_challenge_window"] = json!(13);
        });
        assert_eq!(config.unwrap().alt_da.unwrap().challenge_window, 13);
        assert_eq!(
            read(|d| d["use_plasma"] = json!(false)).unwrap().alt_da,
            None
        );
    }

    type Edit = fn(&mut Value);

    /// Edits that break one rule each, and a part of the error.
    const BROKEN_RULES: [(Edit, &str); 18] = [
        (|d| d["block_time"] = json!(0), "block time cannot be 0"),
        (
            |d| d["channel_timeout"] = json!(0),
            "channel timeout must be set",
        ),
        (
            |d| d["seq_window_size"] = json!(1),
            "sequencing window size must at least be 2",
        ),
        (
            |d| d["genesis"]["l1"]["hash"] = json!(B256::ZERO),
            "genesis L1 hash cannot be empty",
        ),
        (
            |d| d["genesis"]["l2"]["hash"] = json!(B256::ZERO),
            "genesis L2 hash cannot be empty",
        ),
        (
            |d| d["genesis"]["l2"]["hash"] = d["genesis"]["l1"]["hash"].clone(),
            "L1 and L2 genesis cannot be the same",
        ),
        (
            |d| d["genesis"]["l2_time"] = json!(0),
            "missing L2 genesis time",
        ),
        (
            |d| d["genesis"]["system_config"]["batcherAddr"] = json!(Address::ZERO),
            "missing genesis system config batcher address",
        ),
        (
            |d| d["genesis"]["system_config"]["scalar"] = json!(B256::ZERO),
            "missing genesis system config scalar",
        ),
        (
            |d| d["genesis"]["system_config"]["gasLimit"] = json!(0),
            "missing genesis system config gas limit",
        ),
        (
            |d| d["batch_inbox_address"] = json!(Address::ZERO),
            "missing batch inbox address",
        ),
        (
            |d| d["deposit_contract_address"] = json!(Address::ZERO),
            "missing deposit contract address",
        ),
        (
            |d| d["l1_system_config_address"] = json!(Address::ZERO),
            "missing L1 system config address",
        ),
        (
            |d| d["l1_chain_id"] = json!(0),
            "L1 chain ID must be positive",
        ),
        (
            |d| d["l2_chain_id"] = json!(0),
            "L2 chain ID must be positive",
        ),
        (
            |d| d["l2_chain_id"] = json!(900),
            "L1 and L2 chain IDs must be different",
        ),
        (
            |d| d["canyon_time"] = json!("soon"),
            "canyon_time is \"soon\", neither seconds nor null",
        ),
        (
            |d| d["ecotone_time"] = json!(8),
            "fork ecotone set (to 8), but prior fork delta missing",
        ),
    ];

    #[test]
    fn every_rule_has_its_sentence() {
        for (edit, sentence) in BROKEN_RULES {
            let error = read(edit).unwrap_err().to_string();
            assert!(
                error.contains(sentence),
                "{error:?} instead of {sentence:?}"
            );
        }
    }

    #[test]
    fn hostile_documents_are_errors() {
        let deep = "[".repeat(100_000);
        for text in [
            "",
            "{}",
            "null",
            "[]",
            "{\"genesis\":",
            "\u{0}",
            deep.as_str(),
        ] {
            assert!(matches!(
                RollupConfig::from_json(text),
                Err(ConfigError::Json(_))
            ));
        }
        assert!(read(|d| d["block_time"] = json!(-1)).is_err());
        assert!(read(|d| d["canyon_time"] = json!(-1)).is_err());
        assert!(read(|d| d["canyon_time"] = json!(1.5)).is_err());
        assert!(read(|d| d["genesis"]["system_config"]["eip1559Params"] = json!("0x00")).is_err());
    }
}
