//! Reads the chain config of L1 from a geth genesis file. L2 depends on the blob base fee schedule
//! in this config (specs: L1 attributes).
//!
//! Operators supply this file, so an error names the field, the fork or the line. Fields that L2
//! does not depend on are ignored.

use crate::fork::BlobSchedule;
use serde::Deserialize;
use serde_json::{Map, Value};
use thiserror::Error;

/// The L1 forks for which a chain config may set a blob base fee update fraction, oldest first.
const FORKS: [&str; 9] = [
    "cancun",
    "prague",
    "osaka",
    "bpo1",
    "bpo2",
    "amsterdam",
    "bpo3",
    "bpo4",
    "bpo5",
];

/// The part of an L1's chain config that L2 depends on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct L1ChainConfig {
    /// Chain id of the L1.
    pub chain_id: u64,
    /// Update fractions of the blob base fee.
    pub blobs: BlobSchedule,
}

/// The reason why an L1 chain config is refused.
#[derive(Debug, Error)]
#[allow(missing_docs, reason = "the messages document the variants")]
pub enum L1ChainConfigError {
    #[error("the file is not readable: {0}")]
    Json(#[from] serde_json::Error),
    #[error("chainId is missing: give the L1's genesis file, or the chain config in it")]
    NoChainId,
    #[error("{key} is {value}, neither a number nor null")]
    Number { key: String, value: Value },
    /// The message is op-node's.
    #[error("L1 chain config does not have a blob schedule config")]
    NoSchedule,
    /// The message is geth's.
    #[error("invalid chain configuration: missing entry for fork {0:?} in blobSchedule")]
    NoEntry(&'static str),
    /// The message is geth's.
    #[error("invalid chain configuration in blobSchedule for fork {fork:?}: {error}")]
    Entry {
        fork: &'static str,
        error: BlobEntryError,
    },
}

/// An entry of `blobSchedule`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BlobEntry {
    /// Number of blobs in a block at which the blob base fee stays the same.
    pub target: Option<u64>,
    /// Largest number of blobs in a block, for this fork.
    pub max: Option<u64>,
    /// Amount of excess blob gas by which the blob base fee grows e-fold; not zero.
    #[serde(default)]
    pub base_fee_update_fraction: u64,
}

/// The reason why an entry of `blobSchedule` is refused.
#[derive(Debug, Error)]
#[allow(missing_docs, reason = "the messages document the variants")]
pub enum BlobEntryError {
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    /// The message is geth's.
    #[error("update fraction must be defined and non-zero")]
    NoFraction,
}

impl BlobEntry {
    /// Reads an entry and checks its fraction.
    pub fn from_json(entry: &Value) -> Result<Self, BlobEntryError> {
        let entry = Self::deserialize(entry)?;
        if entry.base_fee_update_fraction == 0 {
            return Err(BlobEntryError::NoFraction);
        }
        Ok(entry)
    }
}

impl L1ChainConfig {
    /// Reads a geth genesis file (the chain config is its field `config`), or a chain config alone.
    pub fn from_json(text: &str) -> Result<Self, L1ChainConfigError> {
        #[derive(Deserialize)]
        struct GenesisFile {
            config: Option<Map<String, Value>>,
        }
        match serde_json::from_str::<GenesisFile>(text)?.config {
            Some(config) => Self::of(&config),
            None => Self::of(&serde_json::from_str(text)?),
        }
    }

    fn of(config: &Map<String, Value>) -> Result<Self, L1ChainConfigError> {
        let chain_id = number(config, "chainId")?.ok_or(L1ChainConfigError::NoChainId)?;
        let schedule = match config
            .get("blobSchedule")
            .filter(|schedule| !schedule.is_null())
        {
            Some(schedule) => Map::deserialize(schedule)?,
            // An OP Stack chain as L1 has no blobs: its excess blob gas is always zero (op-node).
            None if config.get("optimism").is_some_and(Value::is_object) => {
                return Ok(Self {
                    chain_id,
                    blobs: BlobSchedule::default(),
                });
            }
            None => return Err(L1ChainConfigError::NoSchedule),
        };
        let mut steps = Vec::new();
        for fork in FORKS {
            let entry = schedule
                .get(fork)
                .filter(|entry| !entry.is_null())
                .map(BlobEntry::from_json)
                .transpose()
                .map_err(|error| L1ChainConfigError::Entry { fork, error })?;
            match (number(config, &format!("{fork}Time"))?, entry) {
                (Some(time), Some(entry)) => steps.push((time, entry.base_fee_update_fraction)),
                // A later fork without an entry keeps the fraction (geth). The first fork needs an
                // entry, or there would be no fraction at all.
                (Some(_), None) if steps.is_empty() => {
                    return Err(L1ChainConfigError::NoEntry(fork));
                }
                _ => {}
            }
        }
        Ok(Self {
            chain_id,
            blobs: BlobSchedule::new(steps),
        })
    }
}

fn number(config: &Map<String, Value>, key: &str) -> Result<Option<u64>, L1ChainConfigError> {
    match config.get(key).filter(|value| !value.is_null()) {
        None => Ok(None),
        Some(value) => {
            let malformed = || L1ChainConfigError::Number {
                key: key.to_owned(),
                value: value.clone(),
            };
            value.as_u64().map(Some).ok_or_else(malformed)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// A config with one fork every 100 seconds. Each entry has mainnet's fraction for its fork.
    fn config() -> Value {
        json!({
            "chainId": 900, "londonBlock": 0, "cancunTime": 100, "pragueTime": 200, "osakaTime": 300, "bpo1Time": 400, "bpo2Time": 500,
            "bpo3Time": null, "terminalTotalDifficultyPassed": true,
            "blobSchedule": {
                "cancun": {"target": 3, "max": 6, "baseFeeUpdateFraction": BlobSchedule::CANCUN},
                "prague": {"target": 6, "max": 9, "baseFeeUpdateFraction": BlobSchedule::PRAGUE},
                "osaka": {"target": 6, "max": 9, "baseFeeUpdateFraction": BlobSchedule::PRAGUE},
                "bpo1": {"target": 10, "max": 15, "baseFeeUpdateFraction": BlobSchedule::BPO1},
                "bpo2": {"target": 14, "max": 21, "baseFeeUpdateFraction": BlobSchedule::BPO2},
            },
        })
    }

    fn read(config: &Value) -> Result<L1ChainConfig, String> {
        L1ChainConfig::from_json(&config.to_string()).map_err(|error| error.to_string())
    }

    #[test]
    fn fractions_change_at_the_second_of_each_fork() {
        let L1ChainConfig { chain_id, blobs } = read(&config()).unwrap();
        assert_eq!(chain_id, 900);
        let fractions = [100, 199, 200, 299, 300, 399, 400, 499, 500, u64::MAX]
            .map(|time| blobs.fraction(time, None));
        let [cancun, prague] = [BlobSchedule::CANCUN, BlobSchedule::PRAGUE];
        let [bpo1, bpo2] = [BlobSchedule::BPO1, BlobSchedule::BPO2];
        assert_eq!(
            fractions,
            [
                cancun, cancun, prague, prague, prague, prague, bpo1, bpo1, bpo2, bpo2
            ]
        );
    }

    #[test]
    fn a_genesis_file_is_read_as_its_config() {
        let genesis = json!({ "config": config(), "alloc": { "0x01": { "balance": "0x1" } }, "excessBlobGas": "0x2faf080" });
        assert_eq!(read(&genesis), read(&config()));
    }

    #[test]
    fn forks_without_an_entry_keep_the_fraction_before_them() {
        let mut sparse = config();
        for fork in ["osaka", "bpo1"] {
            sparse["blobSchedule"][fork] = Value::Null;
        }
        let blobs = read(&sparse).unwrap().blobs;
        assert_eq!(
            [399, 400, 500].map(|time| blobs.fraction(time, None)),
            [
                BlobSchedule::PRAGUE,
                BlobSchedule::PRAGUE,
                BlobSchedule::BPO2
            ]
        );
        // Entries of forks without an activation time are ignored.
        let mut unscheduled = config();
        unscheduled["bpo2Time"] = Value::Null;
        assert_eq!(
            read(&unscheduled).unwrap().blobs.fraction(u64::MAX, None),
            BlobSchedule::BPO1
        );
    }

    /// All forks are active from genesis: the newest fork's fraction applies, even if it is lower.
    #[test]
    fn of_forks_at_one_time_the_newest_counts() {
        let mut together = config();
        for fork in FORKS {
            together[format!("{fork}Time")] = 0.into();
        }
        together["blobSchedule"]["bpo5"] = json!({ "baseFeeUpdateFraction": 7 });
        assert_eq!(read(&together).unwrap().blobs.fraction(0, None), 7);
    }

    #[test]
    fn an_op_stack_chain_as_l1_needs_no_schedule() {
        let config =
            json!({ "chainId": 10, "cancunTime": 0, "optimism": { "eip1559Elasticity": 6 } });
        assert_eq!(read(&config).unwrap().blobs, BlobSchedule::default());
    }

    #[test]
    fn a_malformed_config_is_refused_with_the_field() {
        let refusal = |change: fn(&mut Value)| {
            let mut config = config();
            change(&mut config);
            read(&config).unwrap_err()
        };
        type Spoil = fn(&mut Value);
        let cases: [(Spoil, &str); 9] = [
            (|c| c["chainId"] = Value::Null, "chainId is missing"),
            (|c| c["chainId"] = "0x384".into(), "chainId is \"0x384\""),
            (|c| c["pragueTime"] = (-1).into(), "pragueTime is -1"),
            (
                |c| c["blobSchedule"] = Value::Null,
                "L1 chain config does not have a blob schedule config",
            ),
            (
                |c| c["blobSchedule"] = json!({}),
                "missing entry for fork \"cancun\" in blobSchedule",
            ),
            (|c| c["blobSchedule"] = 7.into(), "invalid type"),
            (
                |c| c["blobSchedule"]["prague"] = json!({"target": 6, "max": 9}),
                "for fork \"prague\": update fraction must be",
            ),
            (
                |c| c["blobSchedule"]["bpo1"]["baseFeeUpdateFraction"] = 0.into(),
                "for fork \"bpo1\": update fraction must be",
            ),
            (
                |c| c["blobSchedule"]["osaka"]["max"] = (-1).into(),
                "for fork \"osaka\": invalid value",
            ),
        ];
        for (change, words) in cases {
            let said = refusal(change);
            assert!(said.contains(words), "{words:?} is not in: {said}");
        }
        for text in [
            "",
            "{",
            "[]",
            "7",
            "{}",
            "{\"config\": 7}",
            "{\"config\": null}",
            "{\"alloc\": {}}",
        ] {
            assert!(L1ChainConfig::from_json(text).is_err(), "{text}");
        }
    }
}
