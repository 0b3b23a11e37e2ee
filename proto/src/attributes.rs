//! Payload attributes: the properties of the next L2 block that L1 and the parent determine (specs:
//! derivation, deriving payload attributes).
//!
//! The sequencer and the derivation use the same function, so their attributes cannot differ. All
//! inputs are arguments. Bytes from L1 are hostile until checked, so arithmetic on them is checked,
//! too.

use crate::{
    config::RollupConfig,
    config_update::{ConfigUpdateError, KARST_UPGRADE_GAS, SystemConfigError},
    deposit::{BlockDepositError, deposits_of_block},
    fork::{BlobSchedule, Fork, ForkSchedule, LagoonBlock},
    l1info::{L1InfoError, L1Origin, L2BlockRef, l1_info_tx},
    payload::{BlockId, Payload},
    system_config::{FeeScalarError, SystemConfig},
    upgrades::upgrade_transactions,
};
use alloy_eips::eip2718::Encodable2718;
use alloy_primitives::{Address, B256, Bytes, Log, address};
use alloy_rpc_types_engine::PayloadAttributes;
use op_alloy_consensus::TxDeposit;
use op_alloy_rpc_types_engine::OpPayloadAttributes;
use thiserror::Error;

/// The fee recipient of every L2 block: the SequencerFeeVault.
pub const FEE_RECIPIENT: Address = address!("4200000000000000000000000000000000000011");

/// The parts of an L1 block that L2 depends on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct L1Block {
    /// Block number.
    pub number: u64,
    /// Block hash.
    pub hash: B256,
    /// Hash of the parent block.
    pub parent_hash: B256,
    /// Timestamp of the L1 block, in Unix seconds.
    pub time: u64,
    /// Base fee of the L1 block, in wei.
    pub base_fee: u64,
    /// Randomness of the beacon chain, which L2 blocks copy.
    pub mix_hash: B256,
    /// Excess blob gas; `None` before Cancun on L1.
    pub excess_blob_gas: Option<u64>,
    /// Parent beacon block root; `None` before Cancun on L1.
    pub parent_beacon_root: Option<B256>,
    /// Root of the receipts.
    pub receipts_root: B256,
    /// State root after the block, for checking storage proofs.
    pub state_root: B256,
}

impl L1Block {
    /// The fields of this block that the L1 attributes carry.
    fn as_origin(
        &self,
        schedule: &BlobSchedule,
        pectra_blob_schedule_time: Option<u64>,
    ) -> Result<L1Origin, AttributesError> {
        let blob_base_fee = self
            .blob_base_fee(schedule, pectra_blob_schedule_time)
            .ok_or(AttributesError::BlobBaseFee(self.hash))?;
        Ok(L1Origin {
            hash: self.hash,
            number: self.number,
            time: self.time,
            base_fee: self.base_fee,
            blob_base_fee,
        })
    }

    /// Number and hash of this block.
    pub fn id(&self) -> BlockId {
        BlockId {
            hash: self.hash,
            number: self.number,
        }
    }

    /// The blob base fee in wei; 1 before blobs. `None` if the fee does not fit in 128 bits, which
    /// no real chain reaches.
    pub fn blob_base_fee(
        &self,
        schedule: &BlobSchedule,
        pectra_blob_schedule_time: Option<u64>,
    ) -> Option<u128> {
        let Some(excess) = self.excess_blob_gas else {
            return Some(1);
        };
        fake_exponential(
            excess,
            schedule.fraction(self.time, pectra_blob_schedule_time),
        )
    }
}

/// Whether a transaction succeeded, and its logs.
pub type ReceiptLogs = (bool, Vec<Log>);

/// Attributes, with the errors of the configuration logs that were ignored. These errors are only
/// to be logged.
#[derive(Clone, Debug)]
pub struct Derived {
    /// Everything that determines the block.
    pub attributes: OpPayloadAttributes,
    /// Errors of the system configuration updates that were ignored.
    pub ignored: Vec<ConfigUpdateError>,
}

/// The reason why attributes cannot be built.
#[derive(Debug, Error)]
#[allow(missing_docs, reason = "the messages document the variants")]
pub enum AttributesError {
    #[error("parent block: {0}")]
    Parent(#[from] L1InfoError),
    #[error("parent block: {0}")]
    SystemConfig(#[from] SystemConfigError),
    #[error(
        "L1 origin {origin:?} is neither the origin {parent:?} of the parent block nor its child"
    )]
    Origin { origin: BlockId, parent: BlockId },
    #[error("the first block of an epoch needs the receipts of its L1 origin")]
    NoReceipts,
    #[error("L2 time {l2_time} is before the time {l1_time} of L1 origin {origin:?}")]
    Time {
        l2_time: u64,
        l1_time: u64,
        origin: BlockId,
    },
    #[error(transparent)]
    Deposit(#[from] BlockDepositError),
    #[error(transparent)]
    FeeScalar(#[from] FeeScalarError),
    #[error("the blob base fee of L1 block {0} is out of range")]
    BlobBaseFee(B256),
    #[error(transparent)]
    Lagoon(#[from] LagoonBlock),
}

/// The attributes of the block after `parent`, with L1 origin `origin`. If the origin is the child
/// of the parent's origin, `receipts` must be those of `origin`, already checked against its
/// header. Otherwise `receipts` are ignored.
///
/// `no_tx_pool` is not set: the caller decides. `transactions` are, in order, the L1 attributes,
/// the deposits of a new epoch, and the transactions of an upgrade that this block activates.
pub fn attributes(
    rollup: &RollupConfig,
    schedule: &BlobSchedule,
    parent: &Payload,
    origin: &L1Block,
    receipts: Option<&[ReceiptLogs]>,
) -> Result<Derived, AttributesError> {
    let parent_ref = L2BlockRef::of(parent, &rollup.genesis)?;
    let mut config = SystemConfig::of(parent, rollup)?;
    let (parent_time, time) = (
        parent.timestamp(),
        parent.timestamp().saturating_add(rollup.block_time),
    );
    rollup.forks.check_before_lagoon(time)?;
    let Epoch {
        sequence_number,
        deposits,
        ignored,
    } = Epoch::enter(rollup, &parent_ref, origin, receipts, &mut config)?;
    if time < origin.time {
        return Err(AttributesError::Time {
            l2_time: time,
            l1_time: origin.time,
            origin: origin.id(),
        });
    }

    let l1 = origin.as_origin(schedule, rollup.pectra_blob_schedule_time)?;
    let info = l1_info_tx(
        &rollup.forks,
        &config,
        &l1,
        sequence_number,
        time,
        parent_time,
    )?;

    let activated = activated(&rollup.forks, parent_time, time);
    let mut transactions = vec![encode(&info)];
    transactions.extend(deposits.iter().map(encode));
    transactions.extend(
        activated
            .clone()
            .flat_map(upgrade_transactions)
            .map(|tx| encode(&tx)),
    );

    // The upgrade adds the gas for its own transactions (specs: karst, upgrade gas).
    let upgrade_gas = if activated.clone().any(|fork| fork == Fork::Karst) {
        KARST_UPGRADE_GAS
    } else {
        0
    };
    let gas_limit = config.gas_limit.saturating_add(upgrade_gas);
    Ok(Derived {
        attributes: assemble(rollup, &config, origin, time, transactions, gas_limit),
        ignored,
    })
}

fn assemble(
    rollup: &RollupConfig,
    config: &SystemConfig,
    origin: &L1Block,
    time: u64,
    transactions: Vec<Bytes>,
    gas_limit: u64,
) -> OpPayloadAttributes {
    let active = |fork| rollup.forks.is_active(fork, time);
    OpPayloadAttributes {
        payload_attributes: PayloadAttributes {
            timestamp: time,
            prev_randao: origin.mix_hash,
            suggested_fee_recipient: FEE_RECIPIENT,
            withdrawals: active(Fork::Canyon).then(Vec::new),
            parent_beacon_block_root: active(Fork::Ecotone)
                .then(|| origin.parent_beacon_root.unwrap_or_default()),
            ..Default::default()
        },
        transactions: Some(transactions),
        no_tx_pool: None,
        gas_limit: Some(gas_limit),
        eip_1559_params: active(Fork::Holocene).then(|| config.eip1559.encode()),
        min_base_fee: active(Fork::Jovian).then_some(config.min_base_fee),
    }
}

/// The position of a block in its epoch, and, for the first block of an epoch, the inputs from L1.
struct Epoch {
    sequence_number: u64,
    deposits: Vec<TxDeposit>,
    ignored: Vec<ConfigUpdateError>,
}

impl Epoch {
    /// Continues the parent's epoch, or begins the next epoch and applies the configuration logs of
    /// its L1 block to `config`.
    fn enter(
        rollup: &RollupConfig,
        parent: &L2BlockRef,
        origin: &L1Block,
        receipts: Option<&[ReceiptLogs]>,
        config: &mut SystemConfig,
    ) -> Result<Self, AttributesError> {
        if origin.id() == parent.origin {
            return Ok(Self {
                sequence_number: parent.sequence_number.saturating_add(1),
                deposits: Vec::new(),
                ignored: Vec::new(),
            });
        }
        if origin.parent_hash != parent.origin.hash
            || origin.number != parent.origin.number.saturating_add(1)
        {
            return Err(AttributesError::Origin {
                origin: origin.id(),
                parent: parent.origin,
            });
        }
        let receipts = receipts.ok_or(AttributesError::NoReceipts)?;
        let logs = || {
            receipts
                .iter()
                .map(|(success, logs)| (*success, logs.as_slice()))
        };
        Ok(Self {
            sequence_number: 0,
            deposits: deposits_of_block(logs(), rollup.deposit_contract_address, origin.hash)?,
            ignored: config.apply_receipts(logs(), rollup, origin.time),
        })
    }
}

/// Whether a block activates an upgrade that has transactions. Such a block includes no
/// transactions from the pool.
pub fn is_upgrade_block(forks: &ForkSchedule, parent_time: u64, time: u64) -> bool {
    activated(forks, parent_time, time).any(|fork| !upgrade_transactions(fork).is_empty())
}

/// The forks that the block at `time` activates, oldest first.
fn activated(
    forks: &ForkSchedule,
    parent_time: u64,
    time: u64,
) -> impl Iterator<Item = Fork> + Clone {
    Fork::ALL
        .into_iter()
        .filter(move |fork| forks.activates(*fork, parent_time, time))
}

fn encode(deposit: &TxDeposit) -> Bytes {
    deposit.encoded_2718().into()
}

/// `e^(numerator / denominator)` by its Taylor series in integers, as EIP-4844 defines it; `None`
/// on overflow.
fn fake_exponential(numerator: u64, denominator: u64) -> Option<u128> {
    let (numerator, denominator) = (u128::from(numerator), u128::from(denominator));
    let mut sum = 0u128;
    let mut term = denominator;
    let mut i = 1u128;
    while term > 0 {
        sum = sum.checked_add(term)?;
        term = term
            .checked_mul(numerator)?
            .checked_div(denominator.checked_mul(i)?)?;
        i += 1;
    }
    sum.checked_div(denominator)
}

#[cfg(test)]
mod tests;
