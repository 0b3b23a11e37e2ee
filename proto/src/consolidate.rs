//! Consolidation: whether an unsafe block is the block that the attributes derived from L1 would
//! produce (specs: derivation, L1-consolidation).
//!
//! Only the inputs of a block are compared: execution determines its state root and the other
//! fields.

use crate::{
    config::{ChainOpConfig, RollupConfig},
    fork::Fork,
    payload::Payload,
    system_config::Eip1559Params,
};
use alloy_consensus::constants::EMPTY_WITHDRAWALS;
use alloy_primitives::{Address, B256, Bytes};
use op_alloy_rpc_types_engine::OpPayloadAttributes;

/// EIP-1559 constants for a rollup.json without `chain_op_config`: those of OP Mainnet, as in
/// op-node.
const DEFAULT_CONSTANTS: ChainOpConfig = ChainOpConfig {
    eip1559_elasticity: 6,
    eip1559_denominator: 50,
    eip1559_denominator_canyon: Some(250),
};

/// The first difference between attributes and a block. `derived` is the value from L1.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages document the variants")]
pub enum AttributesMismatch {
    #[error("parent {block}, derived {derived}")]
    Parent { block: B256, derived: B256 },
    #[error("timestamp {block}, derived {derived}")]
    Timestamp { block: u64, derived: u64 },
    #[error("prevRandao {block}, derived {derived}")]
    PrevRandao { block: B256, derived: B256 },
    #[error("{block} transactions, derived {derived}")]
    TransactionCount { block: usize, derived: usize },
    #[error("transaction {index} differs from the derived one")]
    Transaction { index: usize },
    #[error("gas limit {block}, derived {derived:?}")]
    GasLimit { block: u64, derived: Option<u64> },
    #[error("withdrawals of another fork")]
    Withdrawals,
    #[error("withdrawals root {0:?} is not of the block's fork")]
    WithdrawalsRoot(Option<B256>),
    #[error("parent beacon block root {block:?}, derived {derived:?}")]
    BeaconRoot {
        block: Option<B256>,
        derived: Option<B256>,
    },
    #[error("fee recipient {block}, derived {derived}")]
    FeeRecipient { block: Address, derived: Address },
    #[error("extra data {block}, derived {derived}")]
    ExtraData { block: Bytes, derived: Bytes },
}

/// Compares a block with the attributes for a block on `parent`. `Ok` if they agree in every
/// derived field.
pub fn consolidates(
    rollup: &RollupConfig,
    parent: B256,
    attributes: &OpPayloadAttributes,
    block: &Payload,
) -> Result<(), AttributesMismatch> {
    use AttributesMismatch as Mismatch;
    let (header, derived) = (&block.header, &attributes.payload_attributes);
    agree(header.parent_hash, parent, |block, derived| {
        Mismatch::Parent { block, derived }
    })?;
    agree(header.timestamp, derived.timestamp, |block, derived| {
        Mismatch::Timestamp { block, derived }
    })?;
    agree(header.mix_hash, derived.prev_randao, |block, derived| {
        Mismatch::PrevRandao { block, derived }
    })?;
    same_transactions(
        attributes.transactions.as_deref().unwrap_or_default(),
        block,
    )?;
    agree(
        Some(header.gas_limit),
        attributes.gas_limit,
        |_, derived| Mismatch::GasLimit {
            block: header.gas_limit,
            derived,
        },
    )?;
    same_withdrawals(rollup, attributes, block)?;
    agree(
        header.parent_beacon_block_root,
        derived.parent_beacon_block_root,
        |block, derived| Mismatch::BeaconRoot { block, derived },
    )?;
    agree(
        header.beneficiary,
        derived.suggested_fee_recipient,
        |block, derived| Mismatch::FeeRecipient { block, derived },
    )?;
    agree(
        header.extra_data.clone(),
        extra_data(rollup.chain_op_config, attributes),
        |block, derived| Mismatch::ExtraData { block, derived },
    )
}

fn agree<T: PartialEq>(
    block: T,
    derived: T,
    mismatch: impl FnOnce(T, T) -> AttributesMismatch,
) -> Result<(), AttributesMismatch> {
    if block == derived {
        return Ok(());
    }
    Err(mismatch(block, derived))
}

fn same_transactions(derived: &[Bytes], block: &Payload) -> Result<(), AttributesMismatch> {
    agree(block.transactions.len(), derived.len(), |block, derived| {
        AttributesMismatch::TransactionCount { block, derived }
    })?;
    match block
        .transactions
        .iter()
        .zip(derived)
        .position(|(a, b)| a != b)
    {
        Some(index) => Err(AttributesMismatch::Transaction { index }),
        None => Ok(()),
    }
}

/// Checks the withdrawals. Before Canyon there is no list; from Canyon on the list is empty. Until
/// Isthmus the header has the root of an empty list. From Isthmus on it has the storage root of the
/// message passer, which only execution can check.
fn same_withdrawals(
    rollup: &RollupConfig,
    attributes: &OpPayloadAttributes,
    block: &Payload,
) -> Result<(), AttributesMismatch> {
    let active = |fork| rollup.forks.is_active(fork, block.timestamp());
    let derived = &attributes.payload_attributes.withdrawals;
    if derived.is_some() != active(Fork::Canyon)
        || derived.as_ref().is_some_and(|all| !all.is_empty())
    {
        return Err(AttributesMismatch::Withdrawals);
    }
    let root = block.header.withdrawals_root;
    let as_expected = if active(Fork::Isthmus) {
        root.is_some()
    } else if active(Fork::Canyon) {
        root == Some(EMPTY_WITHDRAWALS)
    } else {
        root.is_none()
    };
    if as_expected {
        return Ok(());
    }
    Err(AttributesMismatch::WithdrawalsRoot(root))
}

/// The extra data that a block with these attributes has. Parameters of (0, 0) stand for the
/// chain's own constants, which the execution client writes instead (specs: holocene, dynamic
/// EIP-1559 parameters).
fn extra_data(constants: Option<ChainOpConfig>, attributes: &OpPayloadAttributes) -> Bytes {
    let Some(params) = attributes.eip_1559_params else {
        return Bytes::new();
    };
    let mut params = Eip1559Params::decode(params);
    if params.denominator == 0 {
        let constants = constants.unwrap_or(DEFAULT_CONSTANTS);
        let denominator = constants
            .eip1559_denominator_canyon
            .unwrap_or(constants.eip1559_denominator);
        params.denominator = u32::try_from(denominator).unwrap_or(u32::MAX);
        params.elasticity = u32::try_from(constants.eip1559_elasticity).unwrap_or(u32::MAX);
    }
    let version = u8::from(attributes.min_base_fee.is_some());
    let mut data = [&[version][..], params.encode().as_slice()].concat();
    if let Some(fee) = attributes.min_base_fee {
        data.extend(fee.to_be_bytes());
    }
    data.into()
}

#[cfg(test)]
mod tests;
