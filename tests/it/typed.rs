//! One transaction in several types: the fields of a dynamic-fee transaction, as far as another
//! type has them. The fee ceiling becomes the gas price where there is no tip.

use alloy_consensus::{TxEip1559, TxEip2930, TxEip7702, TxLegacy};
use alloy_eips::eip7702::SignedAuthorization;
use alloy_primitives::Address;

/// A legacy transaction; valid on every chain unless it is `protected` (EIP-155).
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

/// A transaction of type 1.
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

/// A transaction of type 4, which cannot create a contract.
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
