//! Reasons why a simulated call is invalid as a transaction, in geth's wording.

use super::{CallInput, RunError, StateError};
use alloy_eips::eip4844::VERSIONED_HASH_VERSION_KZG;
use alloy_primitives::{Address, B256, U256};
use revm::{context::TxEnv, context_interface::result::InvalidTransaction};

/// The reason why a call is invalid as a transaction.
#[derive(Debug, thiserror::Error)]
pub enum CallRefusal {
    #[error(
        "max priority fee per gas higher than max fee per gas: address {from}, maxPriorityFeePerGas: {tip}, maxFeePerGas: {fee}"
    )]
    TipAboveFee { from: Address, tip: u128, fee: u128 },
    #[error(
        "max fee per gas less than block base fee: address {from}, maxFeePerGas: {fee}, baseFee: {base_fee}"
    )]
    FeeBelowBase {
        from: Address,
        fee: u128,
        base_fee: u64,
    },
    #[error("insufficient funds for gas * price + value: address {from} have {have} want {want}")]
    Funds {
        from: Address,
        have: U256,
        want: U256,
    },
    #[error("intrinsic gas too low: have {have}, want {want}")]
    IntrinsicGas { have: u64, want: u64 },
    #[error("insufficient gas for floor data gas cost: have {have}, want {want}")]
    FloorGas { have: u64, want: u64 },
    #[error("nonce too low: address {from}, tx: {tx} state: {state}")]
    NonceTooLow { from: Address, tx: u64, state: u64 },
    #[error("nonce too high: address {from}, tx: {tx} state: {state}")]
    NonceTooHigh { from: Address, tx: u64, state: u64 },
    #[error("nonce has max value: address {from}, nonce: {nonce}")]
    NonceMax { from: Address, nonce: u64 },
    #[error("max initcode size exceeded")]
    InitCodeSize,
    #[error("blob transaction of type create")]
    BlobCreation,
    #[error("blob transaction missing blob hashes")]
    NoBlobs,
    #[error("blob {0} has invalid hash version")]
    BlobVersion(usize),
    #[error("EIP-7702 transaction cannot be used to create contract (sender {0})")]
    AuthorizedCreation(Address),
    #[error("EIP-7702 transaction with empty auth list (sender {0})")]
    NoAuthorizations(Address),
    #[error("{0}")]
    Other(String),
}

impl CallRefusal {
    /// The refusal of a call for its list of blobs or of authorizations.
    pub(super) fn of_lists(input: &CallInput) -> Option<Self> {
        let creates = input.to.is_none();
        if let Some(hashes) = &input.blob_hashes {
            let unknown = |hash: &B256| hash[0] != VERSIONED_HASH_VERSION_KZG;
            if creates {
                return Some(Self::BlobCreation);
            } else if hashes.is_empty() {
                return Some(Self::NoBlobs);
            } else if let Some(index) = hashes.iter().position(unknown) {
                return Some(Self::BlobVersion(index));
            }
        }
        match &input.authorization_list {
            Some(_) if creates => Some(Self::AuthorizedCreation(input.from)),
            Some(list) if list.is_empty() => Some(Self::NoAuthorizations(input.from)),
            _ => None,
        }
    }

    /// The refusal of `tx` in a block with this base fee. Fails if `error` is that the state could
    /// not be read.
    pub(super) fn new(error: RunError, tx: &TxEnv, base_fee: u64) -> Result<Self, StateError> {
        let error = match error {
            RunError::Invalid(error) => error,
            RunError::InvalidOp(message) => return Ok(Self::Other(message)),
            RunError::State(error) => return Err(error),
        };
        let from = tx.caller;
        Ok(match error {
            InvalidTransaction::LackOfFundForMaxFee { fee, balance } => Self::Funds {
                from,
                have: *balance,
                want: *fee,
            },
            InvalidTransaction::GasPriceLessThanBasefee => Self::FeeBelowBase {
                from,
                fee: tx.gas_price,
                base_fee,
            },
            InvalidTransaction::PriorityFeeGreaterThanMaxFee => Self::TipAboveFee {
                from,
                tip: tx.gas_priority_fee.unwrap_or(0),
                fee: tx.gas_price,
            },
            InvalidTransaction::CallGasCostMoreThanGasLimit {
                initial_gas,
                gas_limit,
            } => Self::IntrinsicGas {
                have: gas_limit,
                want: initial_gas,
            },
            InvalidTransaction::GasFloorMoreThanGasLimit {
                gas_floor,
                gas_limit,
            } => Self::FloorGas {
                have: gas_limit,
                want: gas_floor,
            },
            InvalidTransaction::CreateInitCodeSizeLimit => Self::InitCodeSize,
            other => Self::Other(other.to_string()),
        })
    }
}
