//! Accounts with funds on both chains, and their signed transactions.

use alloy_consensus::{SignableTransaction, TxEip1559, TxEnvelope};
use alloy_eips::eip2718::Encodable2718;
use alloy_primitives::{Address, B256, Signature, hex, keccak256};
use secp256k1::{Message, SECP256K1, SecretKey};

/// A key with its address.
pub struct LabAccount {
    key: SecretKey,
    pub address: Address,
}

impl LabAccount {
    /// The account of a key in hex; `None` if it is not a key.
    pub fn new(key: &str) -> Option<Self> {
        let key = SecretKey::from_slice(&hex::decode(key.trim()).ok()?).ok()?;
        let public = key.public_key(SECP256K1).serialize_uncompressed();
        let address = Address::from_slice(&keccak256(&public[1..])[12..]);
        Some(Self { key, address })
    }

    /// A signed transaction as `eth_sendRawTransaction` takes it.
    pub fn sign(&self, transaction: TxEip1559) -> String {
        let hash: B256 = transaction.signature_hash();
        let signed = SECP256K1.sign_ecdsa_recoverable(&Message::from_digest(hash.0), &self.key);
        let (id, bytes) = signed.serialize_compact();
        let signature = Signature::from_bytes_and_parity(&bytes, i32::from(id) == 1);
        let envelope = TxEnvelope::Eip1559(transaction.into_signed(signature));
        hex::encode_prefixed(envelope.encoded_2718())
    }
}
