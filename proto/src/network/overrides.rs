//! Fork times that an operator sets in place of the configured ones (`--override.*`). Also checks
//! whether the rules of an existing chain may still change.
//!
//! An absent override changes nothing, and 0 is genesis. The rules of existing blocks must not
//! change: these blocks would become invalid, or derivation from L1 would give different blocks.

use crate::{
    config::RollupConfig,
    fork::{BlobSchedule, Fork, ForkOrderError, ForkSchedule},
};
use alloy_primitives::B256;
use std::{collections::BTreeMap, fmt};
use thiserror::Error;

/// The overrides that an operator has set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ForkOverrides {
    /// Activation times, in Unix seconds.
    pub forks: BTreeMap<Fork, u64>,
    /// Activation time of Lagoon (Interop), in Unix seconds.
    pub lagoon: Option<u64>,
    /// L1 time (Unix seconds) of the Pectra blob schedule.
    pub pectra_blob_schedule: Option<u64>,
    /// Whether later blocks keep the additional gas limit of the block that activates Karst.
    pub keep_karst_upgrade_gas: Option<bool>,
}

impl ForkOverrides {
    /// Replaces the fork times that are set, and keeps the other times of `configured`.
    pub fn schedule(&self, configured: &ForkSchedule) -> ForkSchedule {
        let lagoon = self.lagoon.or(configured.lagoon());
        let times = self.forks.iter();
        times.fold(
            configured.clone().with_lagoon(lagoon),
            |schedule, (fork, time)| schedule.with(*fork, Some(*time)),
        )
    }

    /// Replaces everything that is set, and keeps the rest of `configured`. The caller must
    /// [validate](RollupConfig::validate) the result again.
    pub fn apply(&self, configured: &RollupConfig) -> RollupConfig {
        let mut config = configured.clone();
        config.forks = self.schedule(&configured.forks);
        config.pectra_blob_schedule_time = self
            .pectra_blob_schedule
            .or(config.pectra_blob_schedule_time);
        if let Some(keep) = self.keep_karst_upgrade_gas {
            config.keep_karst_upgrade_gas = keep;
        }
        config
    }
}

/// Changes of the fork schedule in a genesis config, which may be older than the network's
/// schedule.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScheduleChange {
    /// A known network, whose schedule replaces the one in the genesis config.
    pub network: Option<NetworkForks>,
    /// Overrides by the operator, applied last.
    pub overrides: ForkOverrides,
}

/// The fork schedule of a chain, with the chain's identity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetworkForks {
    /// L2 chain id.
    pub chain_id: u64,
    /// Hash of the first L2 block.
    pub genesis_hash: B256,
    /// Activation times of the forks.
    pub forks: ForkSchedule,
}

impl From<&RollupConfig> for NetworkForks {
    fn from(rollup: &RollupConfig) -> Self {
        Self {
            chain_id: rollup.l2_chain_id,
            genesis_hash: rollup.genesis.l2.hash,
            forks: rollup.forks.clone(),
        }
    }
}

impl ScheduleChange {
    /// The schedule with these changes; fails if its forks are out of order. A genesis config has no
    /// time for Delta, so Delta comes with Ecotone, also with an Ecotone by an override.
    pub fn apply(&self, configured: &ForkSchedule) -> Result<ForkSchedule, ForkOrderError> {
        let network = self.network.as_ref().map(|network| &network.forks);
        let mut schedule = self.overrides.schedule(network.unwrap_or(configured));
        if network.is_none() && !self.overrides.forks.contains_key(&Fork::Delta) {
            let ecotone = schedule.time(Fork::Ecotone);
            schedule = schedule.with(Fork::Delta, ecotone);
        }
        schedule.validate()?;
        Ok(schedule)
    }
}

/// The extent of a chain. Blocks up to the head were made with the rules in force so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChainProgress {
    /// Timestamp of the first block, in Unix seconds.
    pub genesis_time: u64,
    /// Timestamp of the highest block, in Unix seconds.
    pub head_time: u64,
}

/// A rule's activation time for use in an error, printed as `never` or `at 12`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ActivationTime(pub Option<u64>);

impl fmt::Display for ActivationTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(time) => write!(f, "at {time}"),
            None => f.write_str("never"),
        }
    }
}

/// The reason why a chain's rules cannot be changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum RuleChangeError {
    /// The chain has blocks at or after the old or the new activation time.
    #[error(
        "{rule} would activate {now}, and this chain, whose head has time {head_time}, was made with {rule} activating {was}: \
         its blocks would be invalid; change --override.{rule} (or the configuration) back, or begin with an empty data directory"
    )]
    Passed {
        /// Name of the fork, as in `--override.<name>`.
        rule: &'static str,
        /// Activation time with which the chain's blocks were made.
        was: ActivationTime,
        /// Activation time after the change.
        now: ActivationTime,
        /// Timestamp of the head, in Unix seconds.
        head_time: u64,
    },
    /// The chain has blocks after Karst, and the change would alter their gas limits.
    #[error(
        "keep-karst-upgrade-gas would be {now}, and this chain has passed Karst with {was}: \
         its gas limits would differ; change --override.keep-karst-upgrade-gas (or the configuration) back"
    )]
    KarstGas {
        /// Value with which the chain's blocks were made.
        was: bool,
        /// Value after the change.
        now: bool,
    },
}

/// Compares the schedule in force (`was`) with a new one (`now`), and fails if they differ on a
/// fork that the chain has passed. All times at or before the first block count as equal. A chain
/// with only its first block has passed nothing.
pub fn check_forks(
    was: &ForkSchedule,
    now: &ForkSchedule,
    progress: ChainProgress,
) -> Result<(), RuleChangeError> {
    let [was, now] = [was, now].map(|schedule| progress.counted_from_genesis(schedule));
    let conflict = was.conflict(&now, progress.head_time);
    match conflict.filter(|_| progress.has_blocks()) {
        None => Ok(()),
        Some(conflict) => Err(RuleChangeError::Passed {
            rule: conflict.fork,
            was: ActivationTime(conflict.first),
            now: ActivationTime(conflict.second),
            head_time: progress.head_time,
        }),
    }
}

/// Compares the rollup configuration in force (`was`) with a new one (`now`), and fails if they
/// differ on a rule that the chain has passed. `blobs` is L1's schedule; without it the time of the
/// Pectra blob schedule is not compared.
pub fn check_rollup(
    was: &RollupConfig,
    now: &RollupConfig,
    progress: ChainProgress,
    blobs: Option<&BlobSchedule>,
) -> Result<(), RuleChangeError> {
    check_forks(&was.forks, &now.forks, progress)?;
    if !progress.has_blocks() {
        return Ok(());
    }
    let passed = |rule, was, now| RuleChangeError::Passed {
        rule,
        was: ActivationTime(was),
        now: ActivationTime(now),
        head_time: progress.head_time,
    };
    let [was_pectra, now_pectra] = [was, now].map(|config| config.pectra_blob_schedule_time);
    if blobs.is_some_and(|blobs| pectra_matters(was_pectra, now_pectra, progress, blobs)) {
        return Err(passed("pectrablobschedule", was_pectra, now_pectra));
    }
    let has_karst_block = now.forks.is_active(Fork::Karst, progress.head_time)
        && !now.forks.is_active(Fork::Karst, progress.genesis_time);
    if has_karst_block && was.keep_karst_upgrade_gas != now.keep_karst_upgrade_gas {
        return Err(RuleChangeError::KarstGas {
            was: was.keep_karst_upgrade_gas,
            now: now.keep_karst_upgrade_gas,
        });
    }
    Ok(())
}

impl ChainProgress {
    fn has_blocks(self) -> bool {
        self.head_time > self.genesis_time
    }

    /// An equivalent schedule for this chain: times before the first block are moved to that block.
    fn counted_from_genesis(self, schedule: &ForkSchedule) -> ForkSchedule {
        let clamp = |time: Option<u64>| time.map(|time| time.max(self.genesis_time));
        let mut clamped = schedule.clone().with_lagoon(clamp(schedule.lagoon()));
        for fork in Fork::ALL {
            clamped = clamped.with(fork, clamp(schedule.time(fork)));
        }
        clamped
    }
}

/// Whether two times of the Pectra blob schedule lead to different blob base fees on this chain.
/// They do for L1 origins between the two times, if L1 no longer uses Cancun's fraction by then.
fn pectra_matters(
    was: Option<u64>,
    now: Option<u64>,
    progress: ChainProgress,
    blobs: &BlobSchedule,
) -> bool {
    let (was, now) = (was.unwrap_or(0), now.unwrap_or(0));
    let (earlier, later) = (was.min(now), was.max(now));
    if earlier == later || earlier > progress.head_time {
        return false;
    }
    let last = progress.head_time.min(later - 1);
    blobs.fraction(last, None) != BlobSchedule::CANCUN
}
