//! Costs of a transaction besides execution: the L1 data fee, the operator fee, and its share of
//! the block's data footprint (specs: each fork's exec-engine, fee formulas).
//!
//! Execution charges these costs inside the EVM, from the state. Here they are computed from the L1
//! attributes in a block's first transaction, for receipts, which do not store them, and for
//! admission to the pool. The functions are pure and cheap: FastLZ runs once over the transaction.

use crate::chain::{evm::estimated_size_scaled, transaction::ChainTx};
use alloy_primitives::U256;
use starling_proto::{
    fork::Fork,
    l1info::{L1BlockInfo, L1InfoFormat},
};

/// Estimated sizes are in millionths of a byte.
const SCALE: u64 = 1_000_000;

/// L1 costs of one transaction, as its receipt shows them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct L1Cost {
    /// `l1GasUsed`: L1 gas by the rules of the fork.
    pub gas_used: U256,
    /// `l1Fee` in wei, computed for any transaction. Deposits are not charged.
    pub fee: U256,
    /// The data footprint that the transaction adds to the block; zero before Jovian.
    pub da_footprint: u64,
}

/// Computes the costs of a transaction (`raw`, EIP-2718) in a block of `fork` with these L1
/// attributes. The format of the attributes selects the formula, since the block that activates a
/// fork still has the attributes in the previous format.
pub fn receipt_cost(info: &L1BlockInfo, fork: Fork, raw: &[u8]) -> L1Cost {
    let size = estimated_size_scaled(raw);
    let (gas_used, fee) = if info.format == L1InfoFormat::Bedrock {
        let gas = calldata_gas(raw, fork).saturating_add(U256::from_be_bytes(info.overhead.0));
        let scalar = U256::from_be_bytes(info.scalar.0);
        (
            gas,
            gas.saturating_mul(info.base_fee).saturating_mul(scalar) / U256::from(1_000_000),
        )
    } else {
        let price = U256::from(16 * u64::from(info.base_fee_scalar))
            .saturating_mul(info.base_fee)
            .saturating_add(
                U256::from(info.blob_base_fee_scalar).saturating_mul(info.blob_base_fee),
            );
        if fork < Fork::Fjord {
            let gas = calldata_gas(raw, fork);
            (gas, gas.saturating_mul(price) / U256::from(16_000_000))
        } else {
            let size = U256::from(size);
            (
                size * U256::from(16) / U256::from(SCALE),
                size.saturating_mul(price) / U256::from(1_000_000_000_000u64),
            )
        }
    };
    L1Cost {
        gas_used,
        fee,
        da_footprint: footprint(size, info.da_footprint_gas_scalar),
    }
}

/// L1 gas of these bytes as calldata. Before Regolith an empty signature is added.
fn calldata_gas(raw: &[u8], fork: Fork) -> U256 {
    let zeros = raw.iter().filter(|byte| **byte == 0).count() as u64;
    let nonzeros = raw.len() as u64 - zeros + if fork < Fork::Regolith { 68 } else { 0 };
    U256::from(zeros * 4 + nonzeros * 16)
}

/// DA footprint scalar of a Jovian block, from its first transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Footprint {
    /// Footprint gas per estimated byte of a transaction.
    Scalar(u16),
    /// The L1 attributes have no scalar, as in the activation block of Jovian. Only deposits may
    /// follow.
    DepositsOnly,
}

/// The reason why a Jovian block cannot begin with this transaction.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum L1AttributesError {
    #[error("missing L1 attributes deposit transaction")]
    Missing,
    #[error("the L1 attributes are not in the Jovian format and give no DA footprint gas scalar")]
    NoScalar,
}

impl Footprint {
    /// Reads the calldata of a block's first transaction (op-geth: `CalcDAFootprint`). `activation`
    /// means that the block activates Jovian. If the block also activates Ecotone or Isthmus, its
    /// L1 attributes are in a format from before those forks.
    pub fn of(first: &ChainTx, activation: bool) -> Result<Self, L1AttributesError> {
        let deposit = first.as_deposit().ok_or(L1AttributesError::Missing)?;
        let (calldata, jovian) = (&deposit.input, L1InfoFormat::Jovian);
        let older =
            || L1BlockInfo::decode(calldata).is_ok_and(|info| info.format < L1InfoFormat::Isthmus);
        if calldata.len() == L1InfoFormat::Isthmus.len() || (activation && older()) {
            return Ok(Self::DepositsOnly);
        }
        match calldata.get(jovian.len() - 2..jovian.len()) {
            Some(scalar) if calldata.starts_with(&jovian.selector()) => {
                Ok(Self::Scalar(u16::from_be_bytes([scalar[0], scalar[1]])))
            }
            _ => Err(L1AttributesError::NoScalar),
        }
    }
}

/// The data footprint that a transaction (`raw`, EIP-2718) adds to a Jovian block: its estimated
/// bytes times the scalar.
pub fn da_footprint(raw: &[u8], scalar: u16) -> u64 {
    footprint(estimated_size_scaled(raw), scalar)
}

/// Estimated size of a transaction (`raw`, EIP-2718) in a batch, in bytes, from Fjord on.
pub fn da_size(raw: &[u8]) -> u64 {
    estimated_size_scaled(raw) / SCALE
}

fn footprint(size: u64, scalar: u16) -> u64 {
    (size / SCALE).saturating_mul(scalar.into())
}

/// The operator fee for this amount of gas, in wei; zero before Isthmus.
pub fn operator_fee(info: &L1BlockInfo, fork: Fork, gas: u64) -> U256 {
    let gas = U256::from(gas).saturating_mul(U256::from(info.operator_fee_scalar));
    let variable = match fork {
        fork if fork < Fork::Isthmus => return U256::ZERO,
        Fork::Isthmus => gas / U256::from(1_000_000),
        _ => gas.saturating_mul(U256::from(100)),
    };
    variable.saturating_add(U256::from(info.operator_fee_constant))
}

/// The L1 fee and the operator fee at the gas limit, in wei. A sender must be able to pay them
/// besides execution and value.
pub fn admission_cost(info: &L1BlockInfo, fork: Fork, raw: &[u8], gas_limit: u64) -> U256 {
    receipt_cost(info, fork, raw)
        .fee
        .saturating_add(operator_fee(info, fork, gas_limit))
}

#[cfg(test)]
mod tests;
