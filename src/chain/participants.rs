//! The addresses that take part in a transaction, as far as the transaction and its receipt name
//! them: the sender, the recipient or the created contract, and the contracts that log.
//!
//! The store's address index contains these addresses, and Otterscan's searches match transactions
//! by them. An address that occurs only in an inner call is not included. To find it, the
//! transaction would have to be executed, on a state that may not be kept.

use crate::chain::{receipt::Receipt, transaction::ChainTx};
use alloy_consensus::Transaction;
use alloy_primitives::Address;

/// The addresses that take part in a transaction. An address may occur twice.
pub fn participants(
    tx: &ChainTx,
    sender: Address,
    receipt: &Receipt,
) -> impl Iterator<Item = Address> {
    let target = tx
        .to()
        .unwrap_or_else(|| created_contract(tx, sender, receipt));
    let loggers = receipt.logs.iter().map(|log| log.address);
    [sender, target].into_iter().chain(loggers)
}

/// The address of the contract that a transaction without a recipient creates, or would have
/// created if it had not failed.
pub fn created_contract(tx: &ChainTx, sender: Address, receipt: &Receipt) -> Address {
    let nonce = if tx.is_deposit() {
        receipt.deposit_nonce.unwrap_or(0)
    } else {
        tx.nonce()
    };
    sender.create(nonce)
}
