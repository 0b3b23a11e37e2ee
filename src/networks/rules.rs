//! The rollup configuration in force for a chain, recorded in the chain's database. The core checks
//! its own fork times. This record also covers the settings that only a rollup node has.

use crate::chain::{Chain, ChainError};
use starling_proto::{
    config::RollupConfig,
    fork::BlobSchedule,
    network::overrides::{ChainProgress, RuleChangeError, check_rollup},
};

/// Key of the database setting that stores the rollup.json in force.
const SETTING: &str = "rollup_config";

/// The reason why a rollup configuration cannot be put in force.
#[derive(Debug, thiserror::Error)]
pub enum RulesError {
    /// The chain already has blocks to which the new configuration would apply another rule.
    #[error(transparent)]
    Change(#[from] RuleChangeError),
    /// The database failed.
    #[error(transparent)]
    Chain(#[from] ChainError),
}

/// Puts a rollup configuration with all its overrides in force. Refuses it if the chain already has
/// blocks under a rule that it changes. `blobs` is L1's blob schedule, if it is known.
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
    // Every recorded configuration was valid when written, so an unreadable one is from a newer
    // version.
    if let Some(was) = &was {
        let progress = ChainProgress {
            genesis_time: now.genesis.l2_time,
            head_time: chain.heads().borrow().timestamp,
        };
        check_rollup(was, now, progress, blobs)?;
    }
    Ok(chain.remember(SETTING, now.to_json().into_bytes()).await?)
}
