//! The rollup configuration by which a chain is followed, recorded in its database. The core checks
//! its own fork times; this one also covers the settings that only a rollup node has.

use crate::chain::{Chain, ChainError};
use starling_proto::{
    config::RollupConfig,
    fork::BlobSchedule,
    network::overrides::{ChainProgress, RuleChangeError, check_rollup},
};

/// Name of the setting with the rollup.json in force.
const SETTING: &str = "rollup_config";

/// The reason why a configuration cannot be put in force.
#[derive(Debug, thiserror::Error)]
pub enum RulesError {
    /// The chain has passed one of its rules by another configuration.
    #[error(transparent)]
    Change(#[from] RuleChangeError),
    /// The database failed.
    #[error(transparent)]
    Chain(#[from] ChainError),
}

/// Puts a configuration with all its overrides in force. Refused if the chain has passed one of its
/// rules by another configuration. `blobs` is L1's blob schedule, if it is known.
pub async fn put_in_force(
    chain: &Chain,
    now: &RollupConfig,
    blobs: Option<&BlobSchedule>,
) -> Result<(), RulesError> {
    let recorded = chain.remembered(SETTING)?;
    let was =
        recorded.and_then(|json| RollupConfig::from_json(std::str::from_utf8(&json).ok()?).ok());
    if was.as_ref() == Some(now) {
        return Ok(());
    }
    // Every recorded configuration was valid, so only a newer version's can be unreadable.
    if let Some(was) = &was {
        let progress = ChainProgress {
            genesis_time: now.genesis.l2_time,
            head_time: chain.heads().borrow().timestamp,
        };
        check_rollup(was, now, progress, blobs)?;
    }
    Ok(chain.remember(SETTING, now.to_json().into_bytes()).await?)
}
