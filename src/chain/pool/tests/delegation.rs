//! Tests of delegated accounts (EIP-7702).

use super::*;

/// A transaction by `from` that sets the code of the accounts with these keys.
fn set_code(from: u8, nonce: u64, keys: &[u8]) -> PoolTx {
    let authorize = |key: &u8| {
        let authorization = Authorization {
            chain_id: U256::from(CHAIN),
            address: Address::repeat_byte(0xcd),
            nonce: 0,
        };
        let message = secp256k1::Message::from_digest(authorization.signature_hash().0);
        let signed = secp256k1::SECP256K1
            .sign_ecdsa_recoverable(&message, &secret(*key))
            .serialize_compact();
        authorization.into_signed(Signature::from_bytes_and_parity(
            &signed.1,
            i32::from(signed.0) == 1,
        ))
    };
    let tx = TxEip7702 {
        chain_id: CHAIN,
        nonce,
        gas_limit: 200_000,
        max_fee_per_gas: 2 * GWEI,
        max_priority_fee_per_gas: GWEI,
        authorization_list: keys.iter().map(authorize).collect(),
        ..Default::default()
    };
    let envelope =
        OpTxEnvelope::from(tx.into_signed(Signature::new(U256::from(from), U256::from(1), false)));
    PoolTx::new(Recovered::new_unchecked(envelope, sender(from)))
}

fn secret(key: u8) -> secp256k1::SecretKey {
    secp256k1::SecretKey::from_slice(&[key; 32]).unwrap()
}

#[test]
fn of_a_delegated_account_one_transaction_waits_at_a_time() {
    let pool = new_pool();
    let delegated = Admission {
        delegated: true,
        ..at(3)
    };
    assert_eq!(
        pool.add(tx(1, 4, 2 * GWEI, GWEI), &delegated),
        Err(PoolError::DelegatedGap)
    );
    pool.add(tx(1, 3, 2 * GWEI, GWEI), &delegated).unwrap();
    assert_eq!(
        pool.add(tx(1, 4, 2 * GWEI, GWEI), &delegated),
        Err(PoolError::DelegatedInFlight)
    );
    pool.add(tx(1, 3, 3 * GWEI, 2 * GWEI), &delegated).unwrap();
    assert_eq!(
        pool.stats(),
        PoolStats {
            pending: 1,
            queued: 0,
            senders: 1
        }
    );
}

#[test]
fn an_account_that_is_about_to_be_delegated_counts_as_delegated() {
    let pool = new_pool();
    let authority = address_of(7);
    let from_authority = |nonce, fee| {
        let envelope =
            OpTxEnvelope::from(eip1559(nonce, fee, fee).into_signed(Signature::test_signature()));
        PoolTx::new(Recovered::new_unchecked(envelope, authority))
    };
    let setting = pool.add(set_code(1, 0, &[7, 8]), &at(0)).unwrap();
    assert_eq!(
        pool.add(from_authority(1, GWEI), &at(0)),
        Err(PoolError::DelegatedGap)
    );
    pool.add(from_authority(0, GWEI), &at(0)).unwrap();
    assert_eq!(
        pool.add(from_authority(1, GWEI), &at(0)),
        Err(PoolError::DelegatedInFlight)
    );
    // Without the pending authorization the account may send any number of transactions. While it
    // has several, no other transaction may set its code.
    pool.remove(&setting);
    pool.add(from_authority(1, GWEI), &at(0)).unwrap();
    assert_eq!(
        pool.add(set_code(2, 0, &[7]), &at(0)),
        Err(PoolError::AuthorityReserved)
    );
    pool.add(set_code(2, 0, &[8]), &at(0)).unwrap();
    assert_eq!(
        pool.add(set_code(3, 0, &[]), &at(0)),
        Err(PoolError::NoAuthorizations)
    );
    let old = Pool::new(&spec(Fork::Holocene));
    let early = "transaction type not supported: type 4 rejected, pool not yet in Prague";
    assert_eq!(
        old.add(set_code(3, 0, &[8]), &at(0))
            .unwrap_err()
            .to_string(),
        early
    );
}
