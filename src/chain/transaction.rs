//! A transaction as blocks contain it: the types of OP chains, and on Ethereum also blob
//! transactions, without their blobs.
//!
//! Decoding accepts the types of both rule sets. Execution refuses the types that the chain does
//! not have.

use alloy_consensus::{
    Sealed, Signed, Transaction, TxEip4844, TxLegacy, Typed2718, crypto::RecoveryError,
    transaction::SignerRecoverable,
};
use alloy_eips::{
    eip2718::{Decodable2718, Eip2718Error, Encodable2718},
    eip2930::AccessList,
    eip7702::SignedAuthorization,
};
use alloy_primitives::{Address, B256, Bytes, ChainId, Signature, TxKind, U256};
use op_alloy_consensus::{OpTxEnvelope, TxDeposit};
use starling_proto::payload::decode_transaction;

/// EIP-2718 type of a blob transaction (EIP-4844).
pub const BLOB_TYPE: u8 = 3;

/// A decoded transaction of a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChainTx {
    /// A transaction of any type except 3.
    Op(OpTxEnvelope),
    /// A blob transaction (type 3), on Ethereum only.
    Blob(Signed<TxEip4844>),
}

impl From<OpTxEnvelope> for ChainTx {
    fn from(tx: OpTxEnvelope) -> Self {
        Self::Op(tx)
    }
}

impl From<Signed<TxEip4844>> for ChainTx {
    fn from(tx: Signed<TxEip4844>) -> Self {
        Self::Blob(tx)
    }
}

impl ChainTx {
    /// Decodes EIP-2718 bytes. Trailing bytes are an error.
    pub fn decode(raw: &[u8]) -> Result<Self, Eip2718Error> {
        match raw.first() {
            Some(&BLOB_TYPE) => Signed::decode_2718_exact(raw).map(Self::Blob),
            _ => decode_transaction(raw).map(Self::Op),
        }
    }

    /// Encodes the transaction as EIP-2718 bytes.
    pub fn encoded(&self) -> Bytes {
        match self {
            Self::Op(tx) => tx.encoded_2718().into(),
            Self::Blob(tx) => tx.encoded_2718().into(),
        }
    }

    /// Recovers the sender, or returns the sender field of a deposit.
    pub fn signer(&self) -> Result<Address, RecoveryError> {
        match self {
            Self::Op(tx) => tx.recover_signer(),
            Self::Blob(tx) => SignerRecoverable::recover_signer(tx),
        }
    }

    /// Recovers the sender of a transaction whose signature has been checked before.
    pub fn signer_unchecked(&self) -> Result<Address, RecoveryError> {
        match self {
            Self::Op(tx) => tx.recover_signer_unchecked(),
            Self::Blob(tx) => SignerRecoverable::recover_signer_unchecked(tx),
        }
    }

    /// Hash of the EIP-2718 bytes.
    pub fn tx_hash(&self) -> B256 {
        match self {
            Self::Op(tx) => tx.tx_hash(),
            Self::Blob(tx) => *tx.hash(),
        }
    }

    /// The signature; `None` for types without one.
    pub fn signature(&self) -> Option<Signature> {
        match self {
            Self::Op(tx) => tx.signature().copied(),
            Self::Blob(tx) => Some(*tx.signature()),
        }
    }

    /// The transaction as an OP type; `None` for a blob transaction.
    pub fn as_op(&self) -> Option<&OpTxEnvelope> {
        match self {
            Self::Op(tx) => Some(tx),
            Self::Blob(_) => None,
        }
    }

    pub fn as_legacy(&self) -> Option<&Signed<TxLegacy>> {
        self.as_op()?.as_legacy()
    }

    pub fn as_deposit(&self) -> Option<&Sealed<TxDeposit>> {
        self.as_op()?.as_deposit()
    }

    pub fn is_deposit(&self) -> bool {
        self.as_deposit().is_some()
    }

    pub fn is_blob(&self) -> bool {
        matches!(self, Self::Blob(_))
    }

    fn fields(&self) -> &dyn Transaction {
        match self {
            Self::Op(tx) => tx,
            Self::Blob(tx) => tx,
        }
    }
}

impl Typed2718 for ChainTx {
    fn ty(&self) -> u8 {
        self.fields().ty()
    }
}

/// Implements accessors of [`Transaction`] by calling the same accessor of the variant.
macro_rules! forward {
    ($($name:ident: $value:ty,)*) => {
        impl Transaction for ChainTx {
            $(fn $name(&self) -> $value {
                self.fields().$name()
            })*

            fn effective_gas_price(&self, base_fee: Option<u64>) -> u128 {
                self.fields().effective_gas_price(base_fee)
            }
        }
    };
}

forward! {
    chain_id: Option<ChainId>,
    nonce: u64,
    gas_limit: u64,
    gas_price: Option<u128>,
    max_fee_per_gas: u128,
    max_priority_fee_per_gas: Option<u128>,
    max_fee_per_blob_gas: Option<u128>,
    priority_fee_or_price: u128,
    is_dynamic_fee: bool,
    kind: TxKind,
    is_create: bool,
    value: U256,
    input: &Bytes,
    access_list: Option<&AccessList>,
    blob_versioned_hashes: Option<&[B256]>,
    authorization_list: Option<&[SignedAuthorization]>,
}
