//! The specification of a stored chain: the genesis config with the fork times in force.
//!
//! The fork times of the genesis config are in force until the chain is opened with other times
//! ([`ScheduleChange`]). These are recorded. Once the chain has passed one of these forks, a later
//! start without the same options is refused.

#[cfg(test)]
mod tests;

use crate::chain::{
    ChainError,
    genesis::{self, Genesis},
    payload_log::PayloadLog,
    rules::{ChainSpec, ExtraData, Rules},
    store::{Store, StoreError},
};
use alloy_consensus::Header;
use serde_json::Value;
use starling_proto::{
    fork::{Fork, ForkSchedule, LAGOON},
    network::overrides::{ChainProgress, ScheduleChange, check_forks},
};
use std::collections::BTreeMap;

/// Name of the setting with the `config` object of the genesis file.
const CONFIG_SETTING: &str = "genesis_config";
/// Name of the setting with the fork times in force, as a JSON object. Empty or absent while the
/// times of the genesis config are in force.
const TIMES_SETTING: &str = "fork_times";

/// Stores the config of a genesis file, and puts its fork times in force.
pub(super) fn record_config(store: &Store, genesis: &Genesis) -> Result<(), StoreError> {
    store.set_setting(CONFIG_SETTING, genesis.config.as_bytes())?;
    if store.setting(TIMES_SETTING)?.is_some() {
        store.set_setting(TIMES_SETTING, b"")?;
    }
    Ok(())
}

/// The `config` object of the genesis file; for an OP chain with the fork times in force.
pub(super) fn config_in_force(store: &Store, rules: &Rules) -> Result<Value, ChainError> {
    let config = store.setting(CONFIG_SETTING)?;
    let config = config.ok_or(ChainError::NoGenesisConfig)?;
    let mut config: Value = serde_json::from_slice(&config).map_err(genesis::GenesisError::from)?;
    if let (Rules::Optimism { forks, .. }, Some(members)) = (rules, config.as_object_mut()) {
        // A time for Delta stays as the file has it: it is no rule of the core.
        let timed = |fork: &Fork| ![Fork::Bedrock, Fork::Delta].contains(fork);
        for fork in Fork::ALL.into_iter().filter(timed) {
            let name = format!("{}Time", fork.name());
            match forks.time(fork) {
                Some(time) => drop(members.insert(name, time.into())),
                None => drop(members.remove(&name)),
            }
        }
    }
    Ok(config)
}

/// The specification with the fork times in force.
pub(crate) fn spec_of(store: &Store) -> Result<ChainSpec, ChainError> {
    let mut spec = configured(store)?;
    if let (Some(times), Rules::Optimism { forks, .. }) = (recorded(store)?, &mut spec.rules) {
        *forks = times;
    }
    Ok(spec)
}

/// The specification of the genesis config, without recorded fork times.
fn configured(store: &Store) -> Result<ChainSpec, ChainError> {
    let header = store.snapshot()?.genesis_header()?;
    let config = store.setting(CONFIG_SETTING)?;
    let (Some(header), Some(config)) = (header, config) else {
        return Err(ChainError::NoGenesisConfig);
    };
    Ok(genesis::spec_of_config(&config, &header)?)
}

fn recorded(store: &Store) -> Result<Option<ForkSchedule>, ChainError> {
    let text = store.setting(TIMES_SETTING)?;
    let Some(text) = text.filter(|text| !text.is_empty()) else {
        return Ok(None);
    };
    let times: BTreeMap<String, u64> =
        serde_json::from_slice(&text).map_err(|_| ChainError::NoGenesisConfig)?;
    let lagoon = times.get(LAGOON).copied();
    let named = times
        .into_iter()
        .filter_map(|(name, time)| Some((Fork::from_name(&name)?, Some(time))));
    Ok(Some(ForkSchedule::from_times(named).with_lagoon(lagoon)))
}

fn record(store: &Store, forks: &ForkSchedule) -> Result<(), ChainError> {
    let named = Fork::ALL
        .into_iter()
        .filter_map(|fork| Some((fork.name(), forks.time(fork)?)));
    let lagoon = forks.lagoon().map(|time| (LAGOON, time));
    let times: BTreeMap<&str, u64> = named.chain(lagoon).collect();
    let text = serde_json::to_vec(&times).map_err(genesis::GenesisError::from)?;
    Ok(store.set_setting(TIMES_SETTING, &text)?)
}

/// Puts the fork times of the genesis config, changed by `change`, in force. Fails if the chain has
/// already passed one of the forks under other times.
pub(super) fn put_in_force(
    store: &Store,
    log: &PayloadLog,
    change: &ScheduleChange,
) -> Result<(), ChainError> {
    let configured = configured(store)?;
    let Rules::Optimism { forks, eip1559 } = &configured.rules else {
        return if *change == ScheduleChange::default() {
            Ok(())
        } else {
            Err(ChainError::NotOptimism)
        };
    };
    if let Some(network) = &change.network
        && (network.chain_id, network.genesis_hash)
            != (configured.chain_id, configured.genesis_hash)
    {
        return Err(ChainError::OtherNetwork {
            have: configured.chain_id,
            want: network.chain_id,
        });
    }
    let was = recorded(store)?.unwrap_or_else(|| forks.clone());
    let now = change.apply(forks)?;
    if was == now {
        return Ok(());
    }
    // Delta changes nothing in execution, and a genesis config may leave it out.
    let [before, after] = [&was, &now].map(|forks| forks.clone().with(Fork::Delta, None));
    check_forks(&before, &after, progress(store, log, &configured)?)?;
    let spec = ChainSpec {
        rules: Rules::Optimism {
            forks: now.clone(),
            eip1559: *eip1559,
        },
        ..configured
    };
    if let Some(header) = store.snapshot()?.genesis_header()?
        && let Some(fork) = lacking(&spec, &header)
    {
        return Err(ChainError::GenesisLacks { fork: fork.name() });
    }
    record(store, &now)
}

/// The time of the highest block in the store or in the payload log, whose blocks will be replayed.
fn progress(
    store: &Store,
    log: &PayloadLog,
    spec: &ChainSpec,
) -> Result<ChainProgress, ChainError> {
    let head = store.head().number;
    let stored = store.snapshot()?.header(head)?;
    let mut head_time = stored.map_or(spec.genesis_time, |header| header.timestamp);
    for logged in log.after(head) {
        head_time = head_time.max(logged?.payload.timestamp());
    }
    Ok(ChainProgress {
        genesis_time: spec.genesis_time,
        head_time,
    })
}

/// The first fork that is active in the genesis block although the block lacks its header fields.
fn lacking(spec: &ChainSpec, genesis: &Header) -> Option<Fork> {
    let active = spec.at(genesis.timestamp);
    let lacks = [
        (Fork::Canyon, genesis.withdrawals_root.is_none()),
        (Fork::Ecotone, genesis.parent_beacon_block_root.is_none()),
        (
            Fork::Holocene,
            ExtraData::decode(&genesis.extra_data, &active).is_err(),
        ),
        (Fork::Isthmus, genesis.requests_hash.is_none()),
    ];
    lacks
        .into_iter()
        .find(|(fork, lacks)| active.is_op(*fork) && *lacks)
        .map(|(fork, _)| fork)
}
