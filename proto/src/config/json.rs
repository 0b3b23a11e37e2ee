//! The JSON document rollup.json: names and order of its fields.

use super::{AltDaConfig, ChainOpConfig, ConfigError, RollupConfig, RollupGenesis};
use crate::fork::{Fork, ForkSchedule};
use alloy_primitives::Address;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};

/// The JSON document, with fields in op-node's order. Fork times are in `rest`, so that no second
/// list of forks is needed.
#[derive(Serialize, Deserialize)]
pub(super) struct RollupJson {
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
    // Four fields from before `alt_da`; only the legacy format writes them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) da_challenge_address: Option<Address>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) da_challenge_window: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) da_resolve_window: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) use_plasma: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    chain_op_config: Option<ChainOpConfig>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    alt_da: Option<AltDaConfig>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pectra_blob_schedule_time: Option<u64>,
}

/// Fields by name, written in this order. A map of `serde_json` would sort them.
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

/// Name of the field with this fork's time.
pub(super) fn key(fork: Fork) -> String {
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
            forks: forks.with_lagoon(json.lagoon_time),
            pectra_blob_schedule_time: json.pectra_blob_schedule_time,
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
            lagoon_time: config.forks.lagoon(),
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
