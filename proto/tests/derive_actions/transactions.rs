//! Transactions of users. Nothing checks their signatures.

use crate::network::{CONFIG, L2_CHAIN, PORTAL};
use alloy_consensus::{
    SignableTransaction, TxEip1559, TxEip2930, TxEip7702, TxLegacy,
    transaction::RlpEcdsaEncodableTx,
};
use alloy_primitives::{Address, B256, Bytes, Log, LogData, Signature, TxKind, U256};
use op_alloy_consensus::TxDeposit;
use starling_proto::{config_update::CONFIG_UPDATE_EVENT, deposit::deposit_to_log};

const TO: Address = Address::repeat_byte(0x70);

fn encoded<T: RlpEcdsaEncodableTx + SignableTransaction<Signature>>(transaction: T) -> Bytes {
    let mut out = Vec::new();
    transaction.eip2718_encode(&Signature::test_signature(), &mut out);
    out.into()
}

/// A transaction of type 0, 1 or 2, chosen by its nonce.
pub fn transaction(nonce: u64) -> Bytes {
    let (chain_id, gas_limit, to) = (L2_CHAIN, 21_000, TxKind::Call(TO));
    let input = Bytes::from(nonce.to_be_bytes());
    match nonce % 3 {
        0 => encoded(TxLegacy {
            chain_id: Some(chain_id),
            nonce,
            gas_limit,
            to,
            input,
            ..TxLegacy::default()
        }),
        1 => encoded(TxEip2930 {
            chain_id,
            nonce,
            gas_limit,
            to,
            input,
            ..TxEip2930::default()
        }),
        _ => encoded(TxEip1559 {
            chain_id,
            nonce,
            gas_limit,
            to,
            input,
            ..TxEip1559::default()
        }),
    }
}

/// A set-code transaction (type 4, EIP-7702).
pub fn set_code(nonce: u64) -> Bytes {
    encoded(TxEip7702 {
        chain_id: L2_CHAIN,
        nonce,
        gas_limit: 50_000,
        to: TO,
        ..TxEip7702::default()
    })
}

/// The log of a deposit. `sender` determines the sender's address.
pub fn deposit(sender: u8) -> Log {
    let deposit = TxDeposit {
        from: Address::repeat_byte(sender),
        ..TxDeposit::default()
    };
    deposit_to_log(PORTAL, &deposit)
}

/// A log that sets a configuration value. Type 1 has two words, other types have one.
pub fn config_log(kind: u8, words: &[U256]) -> Log {
    let length = U256::from(32 * words.len());
    let data: Vec<u8> = [&[U256::from(32), length], words]
        .concat()
        .iter()
        .flat_map(|word| word.to_be_bytes::<32>())
        .collect();
    let topics = vec![CONFIG_UPDATE_EVENT, B256::ZERO, B256::with_last_byte(kind)];
    Log {
        address: CONFIG,
        data: LogData::new_unchecked(topics, data.into()),
    }
}

/// An address as the value of a configuration log.
pub fn address_word(address: Address) -> U256 {
    U256::from_be_bytes(address.into_word().0)
}
