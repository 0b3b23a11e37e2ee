//! Unsigned transactions made of the fields of a call object. They serve as transactions of
//! simulated blocks, and `eth_fillTransaction` prepares them for a signer.

use crate::chain::{evm::CallInput, transaction::ChainTx};
use alloy_consensus::{
    Signed, TxEip1559, TxEip2930, TxEip7702, TxLegacy, transaction::RlpEcdsaEncodableTx,
};
use alloy_primitives::{B256, Bytes, Signature, TxKind, U256, keccak256};
use alloy_rlp::{Encodable, Header};
use op_alloy_consensus::OpTxEnvelope;

/// A transaction made of a call, with a signature of zeros.
#[derive(Clone, Debug)]
pub struct UnsignedCallTx {
    pub tx: ChainTx,
    /// The EIP-2718 encoding.
    pub raw: Bytes,
    /// Hash of the EIP-2718 encoding.
    pub hash: B256,
}

/// Nonce, gas limit and chain id of a transaction. The other fields come from a [`CallInput`].
#[derive(Clone, Copy, Debug)]
pub struct TxNumbers {
    pub nonce: u64,
    pub gas: u64,
    pub chain_id: u64,
}

/// The error for a call that has an authorization list but no recipient.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a transaction with an authorization list cannot create a contract: give `to`")]
pub struct CreationWithAuthorizations;

impl UnsignedCallTx {
    /// The transaction of a call. With a gas price it is a legacy transaction, with an
    /// authorization list one of type 4, otherwise one of type 2.
    pub fn new(input: &CallInput, numbers: TxNumbers) -> Result<Self, CreationWithAuthorizations> {
        let to = input.to.map_or(TxKind::Create, TxKind::Call);
        let (value, data) = (input.value, input.data.clone());
        let TxNumbers {
            nonce,
            gas,
            chain_id,
        } = numbers;
        let max_fee_per_gas = input.max_fee_per_gas.unwrap_or(0);
        let max_priority_fee_per_gas = input.max_priority_fee_per_gas.unwrap_or(0);
        let access_list = input.access_list.clone();
        if let Some(gas_price) = input.gas_price {
            return Ok(Self::legacy(TxLegacy {
                chain_id: None,
                nonce,
                gas_price,
                gas_limit: gas,
                to,
                value,
                input: data,
            }));
        }
        if input.authorizations().is_empty() {
            return Ok(Self::typed(TxEip1559 {
                chain_id,
                nonce,
                gas_limit: gas,
                max_fee_per_gas,
                max_priority_fee_per_gas,
                to,
                value,
                access_list,
                input: data,
            }));
        }
        Ok(Self::typed(TxEip7702 {
            chain_id,
            nonce,
            gas_limit: gas,
            max_fee_per_gas,
            max_priority_fee_per_gas,
            to: input.to.ok_or(CreationWithAuthorizations)?,
            value,
            access_list,
            authorization_list: input.authorizations().to_vec(),
            input: data,
        }))
    }

    /// A transaction of type 1, with a gas price and an access list.
    pub fn with_access_list(input: &CallInput, numbers: TxNumbers) -> Self {
        Self::typed(TxEip2930 {
            chain_id: numbers.chain_id,
            nonce: numbers.nonce,
            gas_price: input.gas_price.unwrap_or(0),
            gas_limit: numbers.gas,
            to: input.to.map_or(TxKind::Create, TxKind::Call),
            value: input.value,
            access_list: input.access_list.clone(),
            input: input.data.clone(),
        })
    }

    fn typed<T: RlpEcdsaEncodableTx>(tx: T) -> Self
    where
        OpTxEnvelope: From<Signed<T>>,
    {
        let signature = Signature::new(U256::ZERO, U256::ZERO, false);
        let mut raw = Vec::with_capacity(tx.eip2718_encoded_length(&signature));
        tx.eip2718_encode(&signature, &mut raw);
        let hash = keccak256(&raw);
        let signed = Signed::new_unchecked(tx, signature, hash);
        Self {
            tx: OpTxEnvelope::from(signed).into(),
            raw: raw.into(),
            hash,
        }
    }

    /// An unsigned legacy transaction has a `v` of zero, as in geth and unlike in the alloy crates.
    fn legacy(tx: TxLegacy) -> Self {
        let zero = 0u8;
        let fields: [&dyn Encodable; 9] = [
            &tx.nonce,
            &tx.gas_price,
            &tx.gas_limit,
            &tx.to,
            &tx.value,
            &tx.input,
            &zero,
            &zero,
            &zero,
        ];
        let payload_length = fields.iter().map(|field| field.length()).sum();
        let mut raw = Vec::new();
        let list = true;
        Header {
            list,
            payload_length,
        }
        .encode(&mut raw);
        for field in fields {
            field.encode(&mut raw);
        }
        let hash = keccak256(&raw);
        let signature = Signature::new(U256::ZERO, U256::ZERO, false);
        let signed = Signed::new_unchecked(tx, signature, hash);
        Self {
            tx: OpTxEnvelope::from(signed).into(),
            raw: raw.into(),
            hash,
        }
    }
}
