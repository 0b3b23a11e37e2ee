//! The accounts of the chains that the two clients build.

use super::{contracts::STORE, generator::MAX_FEE};
use alloy_consensus::{SignableTransaction, Signed, TxEip1559, crypto::secp256k1::sign_message};
use alloy_eips::eip2718::Encodable2718;
use alloy_primitives::{Address, B256, Bytes, Signature, TxKind, keccak256};
use op_alloy_consensus::OpTxEnvelope;
use starling::devnet::{accounts, genesis::L2_CHAIN_ID as CHAIN};

/// An account and its key, the same in every run.
pub struct Account {
    pub address: Address,
    pub key: B256,
}

impl Account {
    fn new(name: &str, n: u8) -> Self {
        let key = keccak256([name.as_bytes(), &[n]].concat());
        Self {
            address: accounts::address_of(&key.to_string()).expect("a key"),
            key,
        }
    }

    pub fn sign<T: SignableTransaction<Signature>>(&self, tx: T) -> Bytes
    where
        OpTxEnvelope: From<Signed<T>>,
    {
        let signature = sign_message(self.key, tx.signature_hash()).expect("a signature");
        OpTxEnvelope::from(tx.into_signed(signature))
            .encoded_2718()
            .into()
    }
}

/// Accounts that have ether at genesis.
pub fn funded() -> Vec<Address> {
    users()
        .iter()
        .chain(&authorities())
        .map(|account| account.address)
        .collect()
}

/// Accounts that send transactions.
pub fn users() -> Vec<Account> {
    (0..6).map(|n| Account::new("user", n)).collect()
}

/// Accounts that delegate to code (EIP-7702).
pub fn authorities() -> Vec<Account> {
    (0..4).map(|n| Account::new("authority", n)).collect()
}

/// A transaction whose sender has no ether.
pub fn poor() -> Bytes {
    let to = TxKind::Call(STORE);
    Account::new("poor", 0).sign(TxEip1559 {
        chain_id: CHAIN,
        gas_limit: 21_000,
        max_fee_per_gas: MAX_FEE,
        to,
        ..Default::default()
    })
}
