//! Converts a dynamic-fee transaction to other types, with the fields that the other type has. A
//! type without a tip gets the fee cap as its gas price.

use alloy_consensus::{TxEip1559, TxEip2930, TxEip7702, TxLegacy};
use alloy_eips::eip7702::SignedAuthorization;
use alloy_primitives::Address;

/// A legacy transaction. It is valid on every chain unless `protected` binds it to a chain id
/// (EIP-155).
pub fn legacy(tx: TxEip1559, protected: bool) -> TxLegacy {
    TxLegacy {
        chain_id: protected.then_some(tx.chain_id),
        nonce: tx.nonce,
        gas_price: tx.max_fee_per_gas,
        gas_limit: tx.gas_limit,
        to: tx.to,
        value: tx.value,
        input: tx.input,
    }
}

/// A type 1 transaction (EIP-2930).
pub fn listed(tx: TxEip1559) -> TxEip2930 {
    TxEip2930 {
        chain_id: tx.chain_id,
        nonce: tx.nonce,
        gas_price: tx.max_fee_per_gas,
        gas_limit: tx.gas_limit,
        to: tx.to,
        value: tx.value,
        access_list: tx.access_list,
        input: tx.input,
    }
}

/// A type 4 transaction (EIP-7702), which cannot create a contract.
pub fn delegating(
    tx: TxEip1559,
    to: Address,
    authorization_list: Vec<SignedAuthorization>,
) -> TxEip7702 {
    TxEip7702 {
        chain_id: tx.chain_id,
        nonce: tx.nonce,
        gas_limit: tx.gas_limit,
        max_fee_per_gas: tx.max_fee_per_gas,
        max_priority_fee_per_gas: tx.max_priority_fee_per_gas,
        to,
        value: tx.value,
        access_list: tx.access_list,
        authorization_list,
        input: tx.input,
    }
}
