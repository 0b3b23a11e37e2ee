//! The fork schedule: other modules ask it whether a fork is active, instead of comparing times.

use crate::payload::PayloadVersion;
use alloy_hardforks::{EthereumHardfork, EthereumHardforks, ForkCondition};
use alloy_op_hardforks::{OpHardfork, OpHardforks};
use thiserror::Error;

/// The named upgrades of the OP Stack, oldest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Fork {
    /// The rules that every chain here starts with.
    Bedrock,
    /// Deposits pay for the gas they use.
    Regolith,
    /// Shanghai on L2, and another EIP-1559 denominator.
    Canyon,
    /// Span batches.
    Delta,
    /// Cancun on L2, batches in blobs, packed L1 attributes.
    Ecotone,
    /// FastLZ L1 fees, brotli channels.
    Fjord,
    /// Shorter channel timeout, bounded pairing input.
    Granite,
    /// EIP-1559 parameters in extra data, strict order of batches.
    Holocene,
    /// Prague on L2, operator fee, withdrawals root in the header.
    Isthmus,
    /// Minimum base fee, data availability footprint.
    Jovian,
    /// Osaka on L2, upgrade transactions in a bundle.
    Karst,
}

impl Fork {
    /// Every fork, oldest first.
    pub const ALL: [Fork; 11] = [
        Fork::Bedrock,
        Fork::Regolith,
        Fork::Canyon,
        Fork::Delta,
        Fork::Ecotone,
        Fork::Fjord,
        Fork::Granite,
        Fork::Holocene,
        Fork::Isthmus,
        Fork::Jovian,
        Fork::Karst,
    ];

    /// The name in configuration keys (`<name>_time` in rollup.json, `<name>Time` in a genesis
    /// file).
    pub const fn name(self) -> &'static str {
        match self {
            Fork::Bedrock => "bedrock",
            Fork::Regolith => "regolith",
            Fork::Canyon => "canyon",
            Fork::Delta => "delta",
            Fork::Ecotone => "ecotone",
            Fork::Fjord => "fjord",
            Fork::Granite => "granite",
            Fork::Holocene => "holocene",
            Fork::Isthmus => "isthmus",
            Fork::Jovian => "jovian",
            Fork::Karst => "karst",
        }
    }

    /// The fork of this name, as in [`Fork::name`].
    pub fn from_name(name: &str) -> Option<Fork> {
        Fork::ALL.into_iter().find(|fork| fork.name() == name)
    }
}

/// A fork schedule that no chain can have. Every fork before a scheduled one must be scheduled too,
/// and not at a later time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[allow(missing_docs, reason = "the messages document the variants")]
pub enum ForkOrderError {
    #[error("fork {later} set (to {time}), but prior fork {earlier} missing")]
    Missing {
        later: &'static str,
        time: u64,
        earlier: &'static str,
    },
    #[error(
        "fork {later} set to {time}, but prior fork {earlier} has higher offset {earlier_time}"
    )]
    Decreasing {
        later: &'static str,
        time: u64,
        earlier: &'static str,
        earlier_time: u64,
    },
}

/// A fork on which two schedules disagree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ForkConflict {
    /// Name of the fork, as in [`Fork::name`], or [`LAGOON`].
    pub fork: &'static str,
    /// Time of the fork in the first schedule, in Unix seconds; `None` is never.
    pub first: Option<u64>,
    /// Time of the fork in the second schedule, in Unix seconds; `None` is never.
    pub second: Option<u64>,
}

/// The name of the upgrade after the last [`Fork`]. Its older name is Interop.
pub const LAGOON: &str = "lagoon";

/// A block is in a scheduled fork (Lagoon) whose rules this version does not implement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error(
    "the block at L2 time {time} is in Lagoon (interop), which begins at {lagoon} and whose rules this version does not have: update"
)]
pub struct LagoonBlock {
    /// Time of the block, in Unix seconds.
    pub time: u64,
    /// Time of Lagoon, in Unix seconds.
    pub lagoon: u64,
}

/// When each fork of an OP chain becomes active, by L2 timestamp in Unix seconds; `None` is never.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ForkSchedule {
    times: [Option<u64>; Fork::ALL.len()],
    /// The activation time of Lagoon. From then on this node neither builds nor follows blocks.
    lagoon: Option<u64>,
}

impl ForkSchedule {
    /// A schedule with every fork up to and including `fork` active from genesis, and no later
    /// fork.
    pub fn from_genesis(fork: Fork) -> Self {
        let mut schedule = Self::default();
        for f in Fork::ALL.into_iter().filter(|f| *f <= fork) {
            schedule.times[f as usize] = Some(0);
        }
        schedule
    }

    /// The same schedule with `fork` moved to `time`.
    pub fn with(mut self, fork: Fork, time: Option<u64>) -> Self {
        self.times[fork as usize] = time;
        self
    }

    /// The same schedule with Lagoon moved to `time`.
    pub fn with_lagoon(mut self, time: Option<u64>) -> Self {
        self.lagoon = time;
        self
    }

    /// The activation time of Lagoon.
    pub fn lagoon(&self) -> Option<u64> {
        self.lagoon
    }

    /// Fails if a block with this timestamp is in Lagoon.
    pub fn check_before_lagoon(&self, timestamp: u64) -> Result<(), LagoonBlock> {
        match self.lagoon.filter(|lagoon| timestamp >= *lagoon) {
            None => Ok(()),
            Some(lagoon) => Err(LagoonBlock {
                time: timestamp,
                lagoon,
            }),
        }
    }

    /// The schedule with these fork times, and Bedrock (which has no configuration key) from
    /// genesis on. A fork that is not in `times` never activates.
    pub fn from_times(times: impl IntoIterator<Item = (Fork, Option<u64>)>) -> Self {
        let bedrock = Self::default().with(Fork::Bedrock, Some(0));
        times
            .into_iter()
            .fold(bedrock, |schedule, (fork, time)| schedule.with(fork, time))
    }

    /// Checks the forks after Bedrock: no fork is missing before a scheduled one, and activation
    /// times do not decrease.
    pub fn validate(&self) -> Result<(), ForkOrderError> {
        for pair in Fork::ALL[Fork::Regolith as usize..].windows(2) {
            let (earlier, later) = (pair[0].name(), pair[1].name());
            let Some(time) = self.time(pair[1]) else {
                continue;
            };
            match self.time(pair[0]) {
                None => {
                    return Err(ForkOrderError::Missing {
                        later,
                        time,
                        earlier,
                    });
                }
                Some(earlier_time) if earlier_time > time => {
                    return Err(ForkOrderError::Decreasing {
                        later,
                        time,
                        earlier,
                        earlier_time,
                    });
                }
                Some(_) => {}
            }
        }
        Ok(())
    }

    /// The activation time of `fork`.
    pub fn time(&self, fork: Fork) -> Option<u64> {
        self.times[fork as usize]
    }

    /// Whether the schedule has an activation time for `fork`.
    pub fn is_scheduled(&self, fork: Fork) -> bool {
        self.time(fork).is_some()
    }

    /// Whether `fork` rules apply to a block with this timestamp.
    pub fn is_active(&self, fork: Fork, timestamp: u64) -> bool {
        self.times[fork as usize].is_some_and(|time| timestamp >= time)
    }

    /// The newest fork that is active at this timestamp; Bedrock if no later fork is.
    pub fn at(&self, timestamp: u64) -> Fork {
        Fork::ALL
            .into_iter()
            .rev()
            .find(|fork| self.is_active(*fork, timestamp))
            .unwrap_or(Fork::Bedrock)
    }

    /// Whether a block at `timestamp`, with a parent at time `parent`, is the first under `fork`. A
    /// fork active at genesis has no activation block.
    pub fn activates(&self, fork: Fork, parent: u64, timestamp: u64) -> bool {
        self.is_active(fork, timestamp) && !self.is_active(fork, parent)
    }

    /// Like [`Self::activates`], for callers that do not know the parent's time: it is computed
    /// from the chain's block time (seconds).
    pub fn activates_at(&self, fork: Fork, timestamp: u64, block_time: u64) -> bool {
        timestamp
            .checked_sub(block_time)
            .is_some_and(|parent| self.activates(fork, parent, timestamp))
    }

    /// The oldest fork whose activation time differs between the schedules. Times after `until`
    /// count as never.
    pub fn conflict(&self, other: &Self, until: u64) -> Option<ForkConflict> {
        let passed = |time: Option<u64>| time.filter(|time| *time <= until);
        let forks = Fork::ALL.into_iter().map(|fork| ForkConflict {
            fork: fork.name(),
            first: self.time(fork),
            second: other.time(fork),
        });
        let lagoon = ForkConflict {
            fork: LAGOON,
            first: self.lagoon,
            second: other.lagoon,
        };
        forks
            .chain([lagoon])
            .find(|conflict| passed(conflict.first) != passed(conflict.second))
    }

    /// Whether `timestamp` is exactly the activation time of `fork`. The irregular state change of
    /// Canyon (create2deployer) depends on this, and not on the parent's time.
    pub fn starts_at(&self, fork: Fork, timestamp: u64) -> bool {
        self.time(fork) == Some(timestamp)
    }

    /// The encoding of a block with this timestamp on the wire (specs: rollup-node-p2p, gossip
    /// topics).
    pub fn payload_version(&self, timestamp: u64) -> PayloadVersion {
        match self.at(timestamp) {
            Fork::Bedrock | Fork::Regolith => PayloadVersion::V1,
            Fork::Canyon | Fork::Delta => PayloadVersion::V2,
            Fork::Ecotone | Fork::Fjord | Fork::Granite | Fork::Holocene => PayloadVersion::V3,
            Fork::Isthmus | Fork::Jovian | Fork::Karst => PayloadVersion::V4,
        }
    }
}

/// Activation times of the upgrades of an Ethereum chain (the devnet's L1). The merge is always in
/// the past.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EthereumSchedule {
    /// Activation time of Shanghai, Unix seconds; `None` is never.
    pub shanghai: Option<u64>,
    /// Activation time of Cancun, Unix seconds; `None` is never.
    pub cancun: Option<u64>,
    /// Activation time of Prague, Unix seconds; `None` is never.
    pub prague: Option<u64>,
    /// Activation time of Osaka, Unix seconds; `None` is never.
    pub osaka: Option<u64>,
}

impl EthereumSchedule {
    /// Whether Shanghai's rules apply at this time (Unix seconds).
    pub fn is_shanghai(&self, timestamp: u64) -> bool {
        self.shanghai.is_some_and(|t| timestamp >= t)
    }
    /// Whether Cancun's rules apply at this time (Unix seconds).
    pub fn is_cancun(&self, timestamp: u64) -> bool {
        self.cancun.is_some_and(|t| timestamp >= t)
    }
    /// Whether Prague's rules apply at this time (Unix seconds).
    pub fn is_prague(&self, timestamp: u64) -> bool {
        self.prague.is_some_and(|t| timestamp >= t)
    }
    /// Whether Osaka's rules apply at this time (Unix seconds).
    pub fn is_osaka(&self, timestamp: u64) -> bool {
        self.osaka.is_some_and(|t| timestamp >= t)
    }
}

/// The update fractions of an L1 chain's blob base fee, by L1 time (EIP-4844, EIP-7892). The
/// default schedule uses Cancun's fraction at all times.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BlobSchedule {
    /// Activation time (Unix seconds) and fraction of each fork, oldest fork first.
    steps: Vec<(u64, u64)>,
}

impl BlobSchedule {
    /// Update fraction from Cancun on (EIP-4844).
    pub const CANCUN: u64 = 3_338_477;
    /// Update fraction from Prague on (EIP-7691).
    pub const PRAGUE: u64 = 5_007_716;
    /// Update fraction from BPO1 on (EIP-7892).
    pub const BPO1: u64 = 8_346_193;
    /// Update fraction from BPO2 on (EIP-7892).
    pub const BPO2: u64 = 11_684_671;

    /// A schedule of forks, each given as activation time (Unix seconds) and update fraction. The
    /// oldest fork is first.
    pub fn new(steps: Vec<(u64, u64)>) -> Self {
        Self { steps }
    }

    /// The schedule of a public L1 chain (Mainnet, Sepolia, Holesky or Hoodi), with op-node's
    /// values.
    pub fn of_chain(chain_id: u64) -> Option<Self> {
        use EthereumHardfork::{Bpo1, Bpo2, Cancun, Prague};
        let time = |fork: EthereumHardfork| match chain_id {
            1 => fork.mainnet_activation_timestamp(),
            17_000 => fork.holesky_activation_timestamp(),
            560_048 => fork.hoodi_activation_timestamp(),
            11_155_111 => fork.sepolia_activation_timestamp(),
            _ => None,
        };
        let steps = [
            (Cancun, Self::CANCUN),
            (Prague, Self::PRAGUE),
            (Bpo1, Self::BPO1),
            (Bpo2, Self::BPO2),
        ];
        let steps: Vec<_> = steps
            .into_iter()
            .filter_map(|(fork, fraction)| Some((time(fork)?, fraction)))
            .collect();
        (!steps.is_empty()).then(|| Self::new(steps))
    }

    /// The fraction for a block of this L1 time: that of the newest active fork. Cancun's fraction
    /// applies before the first fork. If the rollup has a `pectra_blob_schedule_time`, Cancun's
    /// fraction also applies before that time, even after Prague (specs: pectra-blob-schedule).
    pub fn fraction(&self, l1_time: u64, pectra_blob_schedule_time: Option<u64>) -> u64 {
        if pectra_blob_schedule_time.is_some_and(|time| l1_time < time) {
            return Self::CANCUN;
        }
        self.steps
            .iter()
            .rev()
            .find(|(from, _)| l1_time >= *from)
            .map_or(Self::CANCUN, |(_, fraction)| *fraction)
    }
}

/// The activation of a fork without a time here: forks up to the merge are active from genesis on,
/// all others never.
fn before_merge(fork: EthereumHardfork) -> ForkCondition {
    match fork {
        EthereumHardfork::Paris => ForkCondition::TTD {
            activation_block_number: 0,
            fork_block: Some(0),
            total_difficulty: Default::default(),
        },
        fork if fork < EthereumHardfork::Paris => ForkCondition::ZERO_BLOCK,
        _ => ForkCondition::Never,
    }
}

fn at(time: Option<u64>) -> ForkCondition {
    time.map_or(ForkCondition::Never, ForkCondition::Timestamp)
}

/// The Ethereum rules that each OP fork brings to L2 (specs: superchain-upgrades).
impl EthereumHardforks for ForkSchedule {
    fn ethereum_fork_activation(&self, fork: EthereumHardfork) -> ForkCondition {
        match fork {
            EthereumHardfork::Shanghai => at(self.time(Fork::Canyon)),
            EthereumHardfork::Cancun => at(self.time(Fork::Ecotone)),
            EthereumHardfork::Prague => at(self.time(Fork::Isthmus)),
            EthereumHardfork::Osaka => at(self.time(Fork::Karst)),
            fork => before_merge(fork),
        }
    }
}

impl OpHardforks for ForkSchedule {
    fn op_fork_activation(&self, fork: OpHardfork) -> ForkCondition {
        match fork {
            OpHardfork::Bedrock => ForkCondition::ZERO_BLOCK,
            OpHardfork::Regolith => at(self.time(Fork::Regolith)),
            OpHardfork::Canyon => at(self.time(Fork::Canyon)),
            OpHardfork::Ecotone => at(self.time(Fork::Ecotone)),
            OpHardfork::Fjord => at(self.time(Fork::Fjord)),
            OpHardfork::Granite => at(self.time(Fork::Granite)),
            OpHardfork::Holocene => at(self.time(Fork::Holocene)),
            OpHardfork::Isthmus => at(self.time(Fork::Isthmus)),
            OpHardfork::Jovian => at(self.time(Fork::Jovian)),
            OpHardfork::Karst => at(self.time(Fork::Karst)),
            _ => ForkCondition::Never,
        }
    }
}

impl EthereumHardforks for EthereumSchedule {
    fn ethereum_fork_activation(&self, fork: EthereumHardfork) -> ForkCondition {
        match fork {
            EthereumHardfork::Shanghai => at(self.shanghai),
            EthereumHardfork::Cancun => at(self.cancun),
            EthereumHardfork::Prague => at(self.prague),
            EthereumHardfork::Osaka => at(self.osaka),
            fork => before_merge(fork),
        }
    }
}

#[cfg(test)]
mod tests;
