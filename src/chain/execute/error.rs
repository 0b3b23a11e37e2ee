//! Reasons why a transaction or a block is invalid, or could not be validated.

use crate::chain::{
    evm::{StateError, VmError},
    l1fee::L1AttributesError,
    rules::{BlockSizeError, HeaderError, MAX_TRANSACTION_GAS, UncleError},
};
use alloy_primitives::{Address, B256};

/// The reason why a transaction is invalid at its position in a block.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    #[error("gas limit {have} is above the {left} gas left in the block")]
    GasLeft { have: u64, left: u64 },
    #[error("system tx not supported: address {0}")]
    SystemDeposit(Address),
    #[error("gas limit {0} is above the cap of {MAX_TRANSACTION_GAS} per transaction")]
    GasCap(u64),
    #[error("data footprint {have} is above the {left} left in the block")]
    DataFootprint { have: u64, left: u64 },
    #[error("blob gas {have} is above the {left} left in the block")]
    BlobGas { have: u64, left: u64 },
    #[error("transaction type {0:#04x} is not allowed")]
    Type(u8),
    #[error("the signature names a chain before EIP-155")]
    EarlyChainId,
    #[error(transparent)]
    Attributes(#[from] L1AttributesError),
    #[error("the activation block of Jovian takes only deposits")]
    NotDeposit,
    #[error("{0}")]
    Evm(String),
}

/// The reason why a transaction did not run.
#[derive(Debug, thiserror::Error)]
pub enum TransactError {
    #[error(transparent)]
    Refused(#[from] Refused),
    #[error(transparent)]
    State(#[from] StateError),
}

impl From<VmError> for TransactError {
    fn from(error: VmError) -> Self {
        match error {
            VmError::Invalid(reason) => Self::Refused(Refused::Evm(reason)),
            VmError::State(error) => Self::State(error),
        }
    }
}

/// The reason why a block is invalid.
#[derive(Debug, thiserror::Error)]
pub enum InvalidBlock {
    #[error(transparent)]
    Header(#[from] HeaderError),
    #[error(transparent)]
    Size(#[from] BlockSizeError),
    #[error("transactions root is {have}, want {want}")]
    TransactionsRoot { have: B256, want: B256 },
    #[error("transaction {index} cannot be decoded: {reason}")]
    Undecodable { index: usize, reason: String },
    #[error("transaction {index} has no valid signature")]
    Signature { index: usize },
    #[error("transaction {index}: {cause}")]
    Transaction { index: usize, cause: Refused },
    #[error(transparent)]
    Attributes(#[from] L1AttributesError),
    #[error("gas used is {have}, want {want}")]
    GasUsed { have: u64, want: u64 },
    #[error("blob gas used is {}, want {}", or_none(have), or_none(want))]
    BlobGasUsed {
        have: Option<u64>,
        want: Option<u64>,
    },
    #[error("receipts root is {have}, want {want}")]
    ReceiptsRoot { have: B256, want: B256 },
    #[error("logs bloom differs from that of the receipts")]
    LogsBloom,
    #[error("state root is {have}, want {want}")]
    StateRoot { have: B256, want: B256 },
    #[error("withdrawals root is {}, want {}", or_none(have), or_none(want))]
    WithdrawalsRoot {
        have: Option<B256>,
        want: Option<B256>,
    },
    #[error("requests hash is {}, want {}", or_none(have), or_none(want))]
    RequestsHash {
        have: Option<B256>,
        want: Option<B256>,
    },
    #[error("uncles hash is {have}, want {want}")]
    Uncles { have: B256, want: B256 },
    #[error(transparent)]
    Uncle(#[from] UncleError),
    #[error("the block has uncles or withdrawals, which no block of an OP chain has")]
    Foreign,
    #[error("the block has withdrawals before Shanghai")]
    EarlyWithdrawals,
    #[error("a log of the deposit contract is no deposit (EIP-6110)")]
    DepositEvent,
    #[error("the contract of requests {0} failed")]
    RequestContract(Address),
}

/// An optional value as text for an error message.
pub(crate) fn or_none(value: &Option<impl std::fmt::Display>) -> String {
    value.as_ref().map_or("none".into(), ToString::to_string)
}

/// The reason why [`validate`](super::validate) returns no block.
#[derive(Debug, thiserror::Error)]
pub enum ValidateError {
    #[error(transparent)]
    Invalid(#[from] InvalidBlock),
    /// The state could not be read. The block may be valid or invalid.
    #[error(transparent)]
    Read(#[from] StateError),
}

impl From<HeaderError> for ValidateError {
    fn from(error: HeaderError) -> Self {
        Self::Invalid(error.into())
    }
}
