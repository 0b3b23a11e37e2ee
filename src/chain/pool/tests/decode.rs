//! Tests of decoding raw transactions.

use super::*;

/// Bytes that are not a transaction, and a part of the expected error text.
const UNDECODABLE: [(&[u8], &str); 11] = [
    (&[], "typed transaction too short"),
    (&[0x02], "typed transaction too short"),
    (&[0x03], "typed transaction too short"),
    (
        &[0x02, 0xc0],
        "rlp: too few elements for types.DynamicFeeTx",
    ),
    (&[0x01, 0x80], "rlp: expected List for types.AccessListTx"),
    (
        &[0x04, 0xc1, 0x80, 0x80],
        "rlp: input contains more than one value",
    ),
    (&[0x80], "rlp: expected List for types.LegacyTx"),
    (&[0xc0], "rlp: too few elements for types.LegacyTx"),
    (
        &[0xca, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1],
        "rlp: input list has too many elements for types.LegacyTx",
    ),
    (
        &[0xc5, 0x80],
        "rlp: value size exceeds available input length",
    ),
    (
        &[0xff; 40],
        "rlp: value size exceeds available input length",
    ),
];

/// The example of EIP-155: key 0x46…46, nonce 9, chain 1.
const EIP155: &[u8] = &hex!(
    "f86c098504a817c800825208943535353535353535353535353535353535353535880de0b6b3a76400008025a028ef61340bd939bc2195fe537567866003e1a15d3c71ff63e1590620aa636276a067cbe9d8997f761aecb703304b3800ccf555c9f3dc64214b297fb1966a3b6d83"
);

#[test]
fn decode_refuses_types_that_wallets_may_not_send() {
    for kind in [0x00u8, 0x03, 0x05, 0x7d, 0x7e, 0x7f] {
        assert_eq!(
            PoolTx::decode(vec![kind, 0xc0].into()).unwrap_err(),
            PoolError::TypeNotSupported,
            "{kind:#x}"
        );
    }
    // A blob transaction with its sidecar exceeds the pool's size limit, but the error names its
    // type.
    assert_eq!(
        PoolTx::decode([&[3][..], &[0; 140_000]].concat().into()).unwrap_err(),
        PoolError::TypeNotSupported
    );
    for kind in [0x02, 0xfa] {
        let large = [&[kind][..], &[0; 140_000]].concat();
        assert_eq!(
            PoolTx::decode(large.into()).unwrap_err(),
            PoolError::Oversized {
                size: 140_001,
                limit: 128 * 1024
            }
        );
    }
}

#[test]
fn decode_refuses_bytes_that_are_no_transaction() {
    let trailing = [EIP155, &[0]].concat();
    let more = (&trailing[..], "rlp: input contains more than one value");
    for (bad, words) in UNDECODABLE.into_iter().chain([more]) {
        assert_eq!(
            PoolTx::decode(Bytes::copy_from_slice(bad)).unwrap_err(),
            PoolError::Decode(words.into()),
            "{bad:x?}"
        );
    }
    // Without its type byte, a deposit begins like a legacy transaction.
    let deposit = OpTxEnvelope::from(Sealed::new(TxDeposit::default())).encoded_2718();
    let error = PoolTx::decode(Bytes::copy_from_slice(&deposit[1..])).unwrap_err();
    assert!(matches!(error, PoolError::Decode(_)), "{error}");
}

#[test]
fn decode_recovers_the_sender_and_the_hash() {
    let decoded = PoolTx::decode(EIP155.into()).unwrap();
    assert_eq!(
        decoded.sender(),
        address!("0x9d8a62f656a8d1615c1294fd71e9cfb3e4855a4f")
    );
    assert_eq!(
        decoded.hash,
        b256!("0x33469b22e9f636356c4160a87eb19df52b7412e8eac32a4a55ffe88ea8350788")
    );
}

#[test]
fn signatures_that_ethereum_does_not_allow_are_told_as_such() {
    let order = U256::from_be_bytes(secp256k1::constants::CURVE_ORDER);
    let half = order / U256::from(2);
    let one = U256::from(1);
    for (r, s, told) in [
        (U256::ZERO, one, "invalid transaction v, r, s values"),
        (order, one, "invalid transaction v, r, s values"),
        (one, U256::ZERO, "invalid transaction v, r, s values"),
        (one, half + one, "invalid transaction v, r, s values"),
        // `r` is 5, and no point of the curve has this x coordinate.
        (U256::from(5), one, "recovery failed"),
    ] {
        let envelope =
            OpTxEnvelope::from(eip1559(0, 2, 2).into_signed(Signature::new(r, s, false)));
        assert_eq!(
            PoolTx::decode(envelope.encoded_2718().into()).unwrap_err(),
            PoolError::InvalidSender(told),
            "{r:x} {s:x}"
        );
    }
    let envelope =
        OpTxEnvelope::from(eip1559(0, 2, 2).into_signed(Signature::new(one, half, false)));
    PoolTx::decode(envelope.encoded_2718().into()).unwrap();
}
