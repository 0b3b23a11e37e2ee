//! The specification of a chain and its rules for block headers. Two sets of rules share one
//! implementation: OP Stack L2, and Ethereum (the devnet's L1, and chains imported from files, from
//! before the merge on).
//!
//! Everything here is a pure and cheap function of the specification, the parent's header and the
//! block's header. Execution, the builder and JSON-RPC use it. Callers check the hashes of headers.

mod before_merge;
mod extra_data;
mod header;
mod size;
#[cfg(test)]
mod tests;

pub use before_merge::{
    BeforeMerge, BlockPayment, NumberedFork, Relatives, UNCLE_GENERATIONS, UncleError,
};
pub use extra_data::{ExtraData, ExtraDataError};
pub use header::HeaderError;
pub use size::{BlockSizeError, block_bytes, transaction_bytes};

use alloy_consensus::Header;
use alloy_eips::{eip7840::BlobParams, eip7892::BlobScheduleBlobParams};
use alloy_primitives::{Address, B256, address};
use starling_proto::fork::{EthereumSchedule, Fork, ForkSchedule, LagoonBlock};

/// Base fee in wei of the first block that has one (EIP-1559).
pub const INITIAL_BASE_FEE: u64 = 1_000_000_000;
/// Lowest gas of any transaction: that of a plain transfer of value.
pub const TRANSFER_GAS: u64 = 21_000;
/// Lowest gas limit of a block on Ethereum.
pub const MIN_GAS_LIMIT: u64 = 5_000;
/// Highest gas limit of a transaction from Osaka and Karst on (EIP-7825). Deposits are exempt.
pub const MAX_TRANSACTION_GAS: u64 = 1 << 24;
/// L2ToL1MessagePasser. From Isthmus on a block's withdrawals root is the storage root of this
/// predeploy.
pub const MESSAGE_PASSER: Address = address!("4200000000000000000000000000000000000016");

/// Parameters and rules of a chain: everything about the chain that execution needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChainSpec {
    pub chain_id: u64,
    pub genesis_hash: B256,
    /// Timestamp of the genesis block, in Unix seconds.
    pub genesis_time: u64,
    pub rules: Rules,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rules {
    Optimism {
        forks: ForkSchedule,
        eip1559: Eip1559Constants,
    },
    Ethereum {
        forks: EthereumSchedule,
        /// Blob parameters of each fork, and of each later fork that changes only these (EIP-7892).
        blobs: BlobScheduleBlobParams,
        /// The contract whose logs are deposit requests for the beacon chain (EIP-6110).
        deposit_contract: Address,
        /// Rules before the merge; `None` on a chain that begins after the merge.
        before_merge: Option<Box<BeforeMerge>>,
    },
}

/// EIP-1559 parameters from the `optimism` object of a genesis config.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Eip1559Constants {
    pub elasticity: u64,
    pub denominator: u64,
    pub denominator_canyon: u64,
}

/// The forks active at one timestamp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Active {
    /// The newest active OP Stack fork; `None` on Ethereum. The rules of `fork` apply if `op >=
    /// Some(fork)`.
    pub op: Option<Fork>,
    /// Whether Shanghai is active; on OP chains, Canyon.
    pub shanghai: bool,
    /// Whether Cancun is active; on OP chains, Ecotone.
    pub cancun: bool,
    /// Whether Prague is active; on OP chains, Isthmus.
    pub prague: bool,
    /// Whether Osaka is active; on OP chains, Karst.
    pub osaka: bool,
}

impl Active {
    /// Whether this is an OP chain at or after `fork`.
    pub fn is_op(&self, fork: Fork) -> bool {
        self.op >= Some(fork)
    }
}

/// Parameters of the EIP-1559 base fee update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BaseFeeParams {
    pub denominator: u64,
    pub elasticity: u64,
}

impl ChainSpec {
    pub fn is_optimism(&self) -> bool {
        matches!(self.rules, Rules::Optimism { .. })
    }

    /// The forks active in a block at `timestamp`.
    pub fn at(&self, timestamp: u64) -> Active {
        match &self.rules {
            Rules::Optimism { forks, .. } => {
                let fork = forks.at(timestamp);
                Active {
                    op: Some(fork),
                    shanghai: fork >= Fork::Canyon,
                    cancun: fork >= Fork::Ecotone,
                    prague: fork >= Fork::Isthmus,
                    osaka: fork >= Fork::Karst,
                }
            }
            Rules::Ethereum { forks, .. } => Active {
                op: None,
                shanghai: forks.is_shanghai(timestamp),
                cancun: forks.is_cancun(timestamp),
                prague: forks.is_prague(timestamp),
                osaka: forks.is_osaka(timestamp),
            },
        }
    }

    /// Fails if a block at `timestamp` is in Lagoon, a fork that this program does not implement.
    pub fn check_before_lagoon(&self, timestamp: u64) -> Result<(), LagoonBlock> {
        match &self.rules {
            Rules::Optimism { forks, .. } => forks.check_before_lagoon(timestamp),
            Rules::Ethereum { .. } => Ok(()),
        }
    }

    /// Whether a block at `timestamp` deploys the create2deployer by force. Only a block at exactly
    /// Canyon's time does (op-geth: consensus/misc/create2deployer.go), whatever the chain's block
    /// time.
    pub fn deploys_create2(&self, timestamp: u64) -> bool {
        matches!(&self.rules, Rules::Optimism { forks, .. } if forks.starts_at(Fork::Canyon, timestamp))
    }

    /// Blob parameters of Ethereum at `timestamp`; `None` on OP, where a blob's price is always 1
    /// wei, and before Cancun.
    pub fn blob_params(&self, timestamp: u64) -> Option<BlobParams> {
        let Rules::Ethereum { blobs, .. } = &self.rules else {
            return None;
        };
        let active = self.at(timestamp);
        if let Some(scheduled) = blobs.active_scheduled_params_at_timestamp(timestamp) {
            Some(*scheduled)
        } else if active.osaka {
            Some(blobs.osaka)
        } else if active.prague {
            Some(blobs.prague)
        } else {
            active.cancun.then_some(blobs.cancun)
        }
    }

    /// The times at which rules change, unordered and possibly with duplicates.
    pub fn fork_times(&self) -> Vec<u64> {
        match &self.rules {
            Rules::Optimism { forks, .. } => Fork::ALL
                .into_iter()
                .filter_map(|fork| forks.time(fork))
                .collect(),
            Rules::Ethereum { forks, blobs, .. } => {
                let named = [forks.shanghai, forks.cancun, forks.prague, forks.osaka];
                let scheduled = blobs.scheduled.iter().map(|(time, _)| *time);
                named.into_iter().flatten().chain(scheduled).collect()
            }
        }
    }

    /// Highest number of blobs that a transaction may have at any time; zero on OP.
    pub fn max_blobs(&self) -> u64 {
        let Rules::Ethereum { blobs, .. } = &self.rules else {
            return 0;
        };
        let forks = [&blobs.cancun, &blobs.prague, &blobs.osaka].into_iter();
        let scheduled = blobs.scheduled.iter().map(|(_, params)| params);
        let most = forks
            .chain(scheduled)
            .map(|params| params.max_blobs_per_tx.min(params.max_blob_count))
            .max();
        most.unwrap_or(0)
    }

    /// The blob base fee of a block with this header, in wei per blob gas; `None` if the header has
    /// no blob fields.
    pub fn blob_base_fee(&self, header: &Header) -> Option<u128> {
        let excess = header.excess_blob_gas?;
        Some(match self.blob_params(header.timestamp) {
            Some(params) => params.calc_blob_fee(excess),
            // OP blocks have no blobs, so their blob base fee is the lowest possible.
            None => 1,
        })
    }

    /// The configured constants of the base fee update for a block at `timestamp`.
    pub fn base_fee_constants(&self, timestamp: u64) -> BaseFeeParams {
        match &self.rules {
            // The time of the new block, not its parent's, selects the denominator.
            Rules::Optimism { forks, eip1559 } => BaseFeeParams {
                denominator: if forks.is_active(Fork::Canyon, timestamp) {
                    eip1559.denominator_canyon
                } else {
                    eip1559.denominator
                },
                elasticity: eip1559.elasticity,
            },
            Rules::Ethereum { .. } => BaseFeeParams {
                denominator: 8,
                elasticity: 2,
            },
        }
    }

    /// The base fee in wei of a block at `timestamp` on `parent` (specs: holocene and jovian
    /// exec-engine). Fails if the parent's extra data lacks the parameters that its fork requires,
    /// which is impossible for a validated parent.
    pub fn next_base_fee(&self, parent: &Header, timestamp: u64) -> Result<u64, ExtraDataError> {
        let Some(base_fee) = parent.base_fee_per_gas else {
            return Ok(INITIAL_BASE_FEE);
        };
        let at_parent = self.at(parent.timestamp);
        let mut params = self.base_fee_constants(timestamp);
        let mut gas_used = parent.gas_used;
        let mut minimum = 0;
        // The parent's time selects the rules of Holocene and Jovian: the first block of each fork
        // still follows the rules before it.
        if at_parent.is_op(Fork::Holocene) {
            let extra = ExtraData::decode(&parent.extra_data, &at_parent)?;
            params = extra.params;
            if at_parent.is_op(Fork::Jovian) {
                // The data footprint of a Jovian block is in `blobGasUsed`.
                gas_used = gas_used.max(parent.blob_gas_used.unwrap_or(0));
                minimum = extra.min_base_fee;
            }
        }
        Ok(update_base_fee(base_fee, gas_used, parent.gas_limit, params).max(minimum))
    }
}

/// The EIP-1559 update of the base fee. Saturates where op-geth's integers would grow. Zero
/// parameters count as one; they are already rejected when they are decoded.
fn update_base_fee(base_fee: u64, gas_used: u64, gas_limit: u64, params: BaseFeeParams) -> u64 {
    let target = gas_limit / params.elasticity.max(1);
    if gas_used == target {
        return base_fee;
    }
    let change = u128::from(base_fee) * u128::from(gas_used.abs_diff(target))
        / u128::from(target.max(1))
        / u128::from(params.denominator.max(1));
    let change = u64::try_from(change).unwrap_or(u64::MAX);
    if gas_used > target {
        base_fee.saturating_add(change.max(1))
    } else {
        base_fee.saturating_sub(change)
    }
}
