//! A network from the user's deployment files: both genesis files and the rollup config, as
//! deployment tools write them. Both chains begin at the current time, which changes their hashes
//! and moves later forks, and the development accounts are funded. The block time and the batcher's
//! account may change. Everything else stays as in the files.

use super::{
    accounts,
    genesis::{self, Files, GenesisBuildError},
    posters,
};
use crate::{
    chain::{
        genesis::{self as chain_genesis, Genesis, GenesisError},
        rules::Rules,
    },
    cli::config::DevnetFiles,
    rollup::l1::UNSAFE_BLOCK_SIGNER_SLOT,
};
use alloy_primitives::{Address, B256};
use serde_json::{Map, Value, json};
use starling_proto::{
    config::{ConfigError, RollupConfig},
    fork::Fork,
    payload::BlockId,
};
use std::{io, path::PathBuf};

/// The reason why the files cannot be used. Each message names the option of the bad file.
#[derive(Debug, thiserror::Error)]
pub enum GivenError {
    #[error("--{option}: {} cannot be read: {error}; check the path and its permissions", path.display())]
    Read {
        option: &'static str,
        path: PathBuf,
        error: io::Error,
    },
    #[error("--{option}: the file is no JSON: {error}")]
    Json {
        option: &'static str,
        error: serde_json::Error,
    },
    #[error("--{option}: {error}")]
    Genesis {
        option: &'static str,
        error: GenesisError,
    },
    #[error("--rollup.config: {0}")]
    Rollup(#[from] ConfigError),
    #[error("--{option}: {reason}")]
    Unfit {
        option: &'static str,
        reason: String,
    },
    #[error(
        "--l1.genesis: {0} has no signer of unsafe blocks in its storage; is it the l1_system_config_address of this L1?"
    )]
    NoSigner(Address),
    #[error(transparent)]
    Build(#[from] GenesisBuildError),
}

const L1: &str = "l1.genesis";
const L2: &str = "l2.genesis";

/// Parsed files of a deployment.
#[derive(Clone, Debug)]
pub struct Given {
    /// Genesis file of the L1, or only its alloc.
    l1: Value,
    l2: Value,
    rollup: RollupConfig,
}

impl Given {
    pub fn read(files: &DevnetFiles) -> Result<Self, GivenError> {
        let text = |option, path: &PathBuf| {
            chain_genesis::read_file(path).map_err(|error| GivenError::Read {
                option,
                path: path.clone(),
                error,
            })
        };
        let json = |option, path| {
            serde_json::from_str(&text(option, path)?)
                .map_err(|error| GivenError::Json { option, error })
        };
        let rollup = RollupConfig::from_json(&text("rollup.config", &files.rollup)?)?;
        Ok(Self {
            l1: json(L1, &files.l1)?,
            l2: json(L2, &files.l2)?,
            rollup,
        })
    }

    /// The block signer that the L1's SystemConfig contract names.
    pub fn signer(&self) -> Result<Address, GivenError> {
        let contract = self.rollup.l1_system_config_address;
        let alloc = self.l1.get("alloc").unwrap_or(&self.l1);
        entry(alloc, contract.as_slice())
            .and_then(|account| entry(&account["storage"], UNSAFE_BLOCK_SIGNER_SLOT.as_slice()))
            .and_then(|word| word.as_str())
            .and_then(|word| padded(word, 32))
            .map(|word| Address::from_word(B256::from_slice(&word)))
            .filter(|signer| !signer.is_zero())
            .ok_or(GivenError::NoSigner(contract))
    }

    /// Contents of a network's files, with chains that begin at `time` (Unix seconds).
    /// `l2_block_time` in seconds defaults to the block time in the files. If batcher and proposer
    /// (of this game type) use the same account, the batcher gets a different one.
    pub fn files(
        self,
        time: u64,
        l2_block_time: Option<u64>,
        game_type: u32,
    ) -> Result<Files, GivenError> {
        let Self {
            mut l1,
            mut l2,
            mut rollup,
        } = self;
        if l1.get("alloc").is_none() {
            let unfit = || GivenError::Unfit {
                option: L1,
                reason: "the file is neither a genesis nor an alloc".into(),
            };
            l1 = genesis::l1_genesis_of(
                rollup.l1_chain_id,
                l1.as_object().cloned().ok_or_else(unfit)?,
            );
        }
        if l2.get("config").is_none_or(Value::is_null) && l2.is_object() {
            l2["config"] = chain_genesis::config_of_rollup(&rollup)
                .map_err(|error| GivenError::Genesis { option: L2, error })?;
        }
        posters::separate(&mut l1, &mut rollup, game_type);
        let old = begin(L2, &mut l2, time)?;
        begin(L1, &mut l1, time)?;
        for fork in Fork::ALL {
            let later = rollup
                .forks
                .time(fork)
                .filter(|at| *at > old.header.timestamp);
            if let Some(at) = later {
                rollup.forks = rollup
                    .forks
                    .clone()
                    .with(fork, Some(moved(at, old.header.timestamp, time)));
            }
        }
        let [l1_genesis, l2_genesis] = [parse(L1, &l1)?, parse(L2, &l2)?];
        check_one_network(&rollup, &l1_genesis, &l2_genesis)?;
        let block = |genesis: &Genesis| BlockId {
            number: genesis.header.number,
            hash: genesis.spec.genesis_hash,
        };
        rollup.genesis.l1 = block(&l1_genesis);
        rollup.genesis.l2 = block(&l2_genesis);
        rollup.genesis.l2_time = time;
        rollup.block_time = l2_block_time.unwrap_or(rollup.block_time);
        rollup.validate()?;
        Ok(Files {
            l1_genesis: l1,
            l2_genesis: l2,
            rollup,
        })
    }
}

fn parse(option: &'static str, file: &Value) -> Result<Genesis, GivenError> {
    chain_genesis::parse(&file.to_string()).map_err(|error| GivenError::Genesis { option, error })
}

/// Moves a chain's genesis to `time`, and funds the development accounts. Returns the original
/// genesis.
fn begin(option: &'static str, file: &mut Value, time: u64) -> Result<Genesis, GivenError> {
    let old = parse(option, file)?;
    file["timestamp"] = format!("{time:#x}").into();
    if let Some(config) = file["config"].as_object_mut() {
        for (_, value) in config.iter_mut().filter(|(key, _)| key.ends_with("Time")) {
            if let Some(at) = value.as_u64().filter(|at| *at > old.header.timestamp) {
                *value = moved(at, old.header.timestamp, time).into();
            }
        }
    }
    if let Some(alloc) = file["alloc"].as_object_mut() {
        fund(alloc);
    }
    Ok(old)
}

/// Moves a fork's time with the genesis, so that their distance stays the same.
fn moved(at: u64, old: u64, new: u64) -> u64 {
    new.saturating_add(at.saturating_sub(old))
}

/// Funds the development accounts that have no balance in the file.
fn fund(alloc: &mut Map<String, Value>) {
    for account in accounts::all() {
        let key = alloc
            .keys()
            .find(|key| padded(key, 20).is_some_and(|it| it == account.address.as_slice()));
        let key = key.cloned().unwrap_or_else(|| account.address.to_string());
        let entry = alloc.entry(key).or_insert_with(|| json!({}));
        let poor = entry["balance"]
            .as_str()
            .is_none_or(|balance| balance.trim_start_matches("0x").chars().all(|c| c == '0'));
        if poor && entry["balance"].as_u64().unwrap_or(0) == 0 {
            entry["balance"] = format!("{:#x}", accounts::BALANCE).into();
        }
    }
}

/// Checks that the three files describe one network.
fn check_one_network(rollup: &RollupConfig, l1: &Genesis, l2: &Genesis) -> Result<(), GivenError> {
    let unfit = |option, reason: String| Err(GivenError::Unfit { option, reason });
    for (option, genesis, id) in [(L1, l1, rollup.l1_chain_id), (L2, l2, rollup.l2_chain_id)] {
        let have = genesis.spec.chain_id;
        if have != id {
            return unfit(
                option,
                format!("the chain id is {have}, and the rollup config says {id}"),
            );
        }
    }
    if l1.spec.is_optimism() {
        return unfit(L1, "this is the genesis of an L2".into());
    }
    let Rules::Optimism { forks, .. } = &l2.spec.rules else {
        return unfit(L2, "this is the genesis of an L1".into());
    };
    // Genesis files do not contain a time for Delta.
    let differs =
        |fork: &Fork| *fork != Fork::Delta && forks.time(*fork) != rollup.forks.time(*fork);
    match Fork::ALL.into_iter().find(differs) {
        Some(fork) => unfit(
            L2,
            format!(
                "the time of {} is not that of the rollup config",
                fork.name()
            ),
        ),
        None => Ok(()),
    }
}

/// Value of `key` in an object whose keys may be in either case, with or without 0x and leading
/// zeros.
fn entry<'a>(object: &'a Value, key: &[u8]) -> Option<&'a Value> {
    let same = |text: &String| padded(text, key.len()).is_some_and(|it| it == key);
    object
        .as_object()?
        .iter()
        .find(|(text, _)| same(text))
        .map(|(_, value)| value)
}

fn padded(text: &str, length: usize) -> Option<Vec<u8>> {
    let digits = text.strip_prefix("0x").unwrap_or(text);
    hex::decode(format!("{digits:0>width$}", width = 2 * length))
        .ok()
        .filter(|bytes| bytes.len() == length)
}

#[cfg(test)]
mod tests;
