//! The pool's promises: order, replacement, limits, no gap in `best`, and what a head does.

use super::*;
use crate::chain::{evm::tests::address_of, rules::Rules};
use alloy_consensus::{Sealed, SignableTransaction, TxEip1559, TxEip7702, TxLegacy};
use alloy_eips::eip7702::Authorization;
use alloy_primitives::{Signature, TxKind, address, b256, hex};
use op_alloy_consensus::TxDeposit;
use proptest::{prelude::*, test_runner::TestCaseError};
use starling_proto::l1info::L1InfoFormat;

const GWEI: u128 = 1_000_000_000;
const CHAIN: u64 = 901;

fn sender(n: u8) -> Address {
    Address::repeat_byte(n)
}

fn eip1559(nonce: u64, fee: u128, tip: u128) -> TxEip1559 {
    TxEip1559 {
        chain_id: CHAIN,
        nonce,
        gas_limit: 21_000,
        max_fee_per_gas: fee,
        max_priority_fee_per_gas: tip,
        to: TxKind::Call(Address::ZERO),
        ..Default::default()
    }
}

fn pooled(from: u8, tx: TxEip1559) -> PoolTx {
    let envelope =
        OpTxEnvelope::from(tx.into_signed(Signature::new(U256::from(from), U256::from(1), false)));
    PoolTx::new(Recovered::new_unchecked(envelope, sender(from)))
}

fn tx(from: u8, nonce: u64, fee: u128, tip: u128) -> PoolTx {
    pooled(from, eip1559(nonce, fee, tip))
}

fn at(nonce: u64) -> Admission {
    Admission {
        nonce,
        balance: U256::from(10u128.pow(19)),
        delegated: false,
        base_fee: GWEI as u64,
        block_gas_limit: 30_000_000,
        l1_cost: U256::from(1000),
        now: 1_000,
    }
}

fn spec(last: Fork) -> ChainSpec {
    let eip1559 = crate::chain::rules::Eip1559Constants {
        elasticity: 6,
        denominator: 50,
        denominator_canyon: 250,
    };
    let rules = Rules::Optimism {
        forks: starling_proto::fork::ForkSchedule::from_genesis(last),
        eip1559,
    };
    ChainSpec {
        chain_id: CHAIN,
        genesis_hash: B256::ZERO,
        genesis_time: 0,
        rules,
    }
}

fn new_pool() -> Pool {
    Pool::new(&spec(Fork::Karst))
}

fn nonces(txs: &[Arc<PoolTx>]) -> Vec<(u8, u64)> {
    txs.iter()
        .map(|tx| (tx.sender()[0], tx.tx.nonce()))
        .collect()
}

#[test]
fn best_orders_by_tip_across_senders_and_by_nonce_inside() {
    let pool = new_pool();
    pool.add(tx(1, 0, 10 * GWEI, GWEI), &at(0)).unwrap();
    pool.add(tx(1, 1, 10 * GWEI, 5 * GWEI), &at(0)).unwrap();
    pool.add(tx(2, 7, 10 * GWEI, 2 * GWEI), &at(7)).unwrap();
    pool.add(tx(3, 0, 10 * GWEI, 3 * GWEI), &at(0)).unwrap();
    assert_eq!(
        nonces(&pool.best(GWEI as u64)),
        [(3, 0), (2, 7), (1, 0), (1, 1)]
    );
    // At 9.5 gwei every tip is capped at half a gwei: arrival decides.
    assert_eq!(
        nonces(&pool.best(9_500_000_000)),
        [(1, 0), (1, 1), (2, 7), (3, 0)]
    );
    assert!(pool.best(11 * GWEI as u64).is_empty());
}

#[test]
fn a_gap_queues_until_it_is_filled() {
    let pool = new_pool();
    let mut news = pool.subscribe();
    pool.add(tx(1, 2, 2 * GWEI, GWEI), &at(0)).unwrap();
    pool.add(tx(1, 1, 2 * GWEI, GWEI), &at(0)).unwrap();
    assert_eq!(
        pool.stats(),
        PoolStats {
            pending: 0,
            queued: 2,
            senders: 1
        }
    );
    assert_eq!(pool.next_nonce(&sender(1), 0), 0);
    assert!(news.try_recv().is_err());
    pool.add(tx(1, 0, 2 * GWEI, GWEI), &at(0)).unwrap();
    assert_eq!(
        pool.stats(),
        PoolStats {
            pending: 3,
            queued: 0,
            senders: 1
        }
    );
    assert_eq!(pool.next_nonce(&sender(1), 0), 3);
    let news = (0..3).map(|_| pool.get(&news.try_recv().unwrap()).unwrap().tx.nonce());
    assert_eq!(news.collect::<Vec<_>>(), [0, 1, 2]);
}

#[test]
fn a_replacement_raises_both_fees_by_a_tenth() {
    let pool = new_pool();
    let first = pool.add(tx(1, 0, 100 * GWEI, 10 * GWEI), &at(0)).unwrap();
    assert_eq!(
        pool.add(tx(1, 0, 100 * GWEI, 10 * GWEI), &at(0)),
        Err(PoolError::AlreadyKnown)
    );
    for (fee, tip) in [(109, 11), (110, 10), (200, 10)] {
        assert_eq!(
            pool.add(tx(1, 0, fee * GWEI, tip * GWEI), &at(0)),
            Err(PoolError::ReplacementUnderpriced)
        );
    }
    let second = pool.add(tx(1, 0, 110 * GWEI, 11 * GWEI), &at(0)).unwrap();
    assert!(pool.get(&first).is_none() && pool.get(&second).is_some());
    assert_eq!(pool.stats().pending, 1);
    // As geth divides: a tenth more than 15 is 16, but never nothing.
    pool.add(tx(2, 0, 15, 5), &at(0)).unwrap();
    assert_eq!(
        pool.add(tx(2, 0, 16, 5), &at(0)),
        Err(PoolError::ReplacementUnderpriced)
    );
    pool.add(tx(2, 0, 16, 6), &at(0)).unwrap();
}

#[test]
fn refusals_say_what_geth_says() {
    let pool = new_pool();
    let poor = Admission {
        balance: U256::from(100),
        ..at(0)
    };
    let say = |tx: PoolTx, at: &Admission| pool.add(tx, at).unwrap_err().to_string();
    assert_eq!(
        say(tx(1, 4, 2, 2), &at(5)),
        "nonce too low: next nonce 5, tx nonce 4"
    );
    assert_eq!(
        say(tx(1, 0, 2, 2), &poor),
        "insufficient funds for gas * price + value: balance 100, tx cost 43000, overshot 42900"
    );
    assert_eq!(
        say(tx(1, 0, 2, 0), &at(0)),
        "transaction underpriced: gas tip cap 0, minimum needed 1"
    );
    assert_eq!(
        say(tx(1, 0, 2, 3), &at(0)),
        "max priority fee per gas higher than max fee per gas"
    );
    let gas = |gas_limit| TxEip1559 {
        gas_limit,
        ..eip1559(0, 2, 2)
    };
    assert_eq!(
        say(pooled(1, gas(20_999)), &at(0)),
        "intrinsic gas too low: gas 20999, minimum needed 21000"
    );
    let small = Admission {
        block_gas_limit: 10_000_000,
        ..at(0)
    };
    assert_eq!(
        say(pooled(1, gas(9_930_001)), &small),
        "exceeds block gas limit"
    );
    assert_eq!(
        say(pooled(1, gas((1 << 24) + 1)), &at(0)),
        "transaction gas limit too high (cap: 16777216, tx: 16777217)"
    );
    pool.add(pooled(9, gas(1 << 24)), &at(0)).unwrap();
    let data = TxEip1559 {
        input: vec![1; 10].into(),
        gas_limit: 21_200,
        ..eip1559(0, 2, 2)
    };
    assert_eq!(
        say(pooled(1, data), &at(0)),
        "insufficient gas for floor data gas cost: gas 21200, minimum needed 21400"
    );
    let foreign = TxEip1559 {
        chain_id: 5,
        ..eip1559(0, 2, 2)
    };
    assert_eq!(
        say(pooled(1, foreign), &at(0)),
        "invalid sender: invalid chain id for signer: have 5 want 901"
    );
    let rich = Admission {
        balance: U256::MAX,
        ..at(0)
    };
    assert_eq!(
        say(tx(1, 0, 50_000 * GWEI, 1), &rich),
        "tx fee (1.05 ether) exceeds the configured cap (1.00 ether)"
    );
    let large = TxEip1559 {
        input: vec![0; admit::MAX_SIZE].into(),
        gas_limit: 2_000_000,
        ..eip1559(0, 2, 2)
    };
    assert!(say(pooled(1, large), &at(0)).starts_with("oversized data: transaction size 1311"));
    let legacy = TxLegacy {
        gas_price: 2,
        gas_limit: 21_000,
        to: TxKind::Call(Address::ZERO),
        ..Default::default()
    };
    let legacy = OpTxEnvelope::from(legacy.into_signed(Signature::test_signature()));
    let legacy = PoolTx::new(Recovered::new_unchecked(legacy, sender(1)));
    assert_eq!(
        say(legacy, &at(0)),
        "only replay-protected (EIP-155) transactions allowed over RPC"
    );
    let deposit = OpTxEnvelope::from(Sealed::new(TxDeposit::default()));
    let deposit = PoolTx::new(Recovered::new_unchecked(deposit, sender(1)));
    assert_eq!(say(deposit, &at(0)), "transaction type not supported");
}

#[test]
fn the_operators_limits_count() {
    let config = PoolConfig {
        max_gas: Some(30_000),
        min_tip: 5,
        price_bump: 100,
        tx_fee_cap: U256::from(21_000 * 100),
        allow_unprotected: true,
        ..Default::default()
    };
    let pool = Pool::with_config(&spec(Fork::Karst), config);
    let say = |tx: PoolTx| pool.add(tx, &at(0)).unwrap_err().to_string();
    let wide = TxEip1559 {
        gas_limit: 30_001,
        ..eip1559(0, 5, 5)
    };
    assert_eq!(
        say(pooled(1, wide)),
        "transaction gas limit too high (cap: 30000, tx: 30001)"
    );
    assert_eq!(
        say(tx(1, 0, 9, 4)),
        "transaction underpriced: gas tip cap 4, minimum needed 5"
    );
    assert!(say(tx(1, 0, 101, 5)).starts_with("tx fee ("));
    pool.add(tx(1, 0, 10, 5), &at(0)).unwrap();
    assert_eq!(
        pool.add(tx(1, 0, 19, 10), &at(0)),
        Err(PoolError::ReplacementUnderpriced)
    );
    pool.add(tx(1, 0, 20, 10), &at(0)).unwrap();
    let legacy = TxLegacy {
        gas_price: 5,
        gas_limit: 21_000,
        to: TxKind::Call(Address::ZERO),
        ..Default::default()
    };
    let legacy = OpTxEnvelope::from(legacy.into_signed(Signature::test_signature()));
    pool.add(
        PoolTx::new(Recovered::new_unchecked(legacy, sender(2))),
        &at(0),
    )
    .unwrap();
}

#[test]
fn older_rules_ask_less() {
    let pool = Pool::new(&spec(Fork::Holocene));
    pool.add(
        pooled(
            1,
            TxEip1559 {
                gas_limit: 1 << 25,
                ..eip1559(0, 2, 2)
            },
        ),
        &Admission {
            block_gas_limit: 1 << 26,
            ..at(0)
        },
    )
    .unwrap();
    let data = TxEip1559 {
        input: vec![1; 10].into(),
        gas_limit: 21_200,
        ..eip1559(0, 2, 2)
    };
    pool.add(pooled(2, data), &at(0)).unwrap();
}

#[test]
fn the_balance_covers_all_executable_transactions() {
    let pool = new_pool();
    let one = 21_000 * 2 + 1000;
    let at = Admission {
        balance: U256::from(2 * one - 1),
        ..at(0)
    };
    pool.add(tx(1, 0, 2, 1), &at).unwrap();
    assert_eq!(
        pool.add(tx(1, 1, 2, 1), &at).unwrap_err().to_string(),
        format!(
            "insufficient funds for gas * price + value: balance {}, queued cost {one}, tx cost {one}, overshot 1",
            2 * one - 1
        )
    );
    // So it must for a nonce behind a gap, and for what a replacement costs more.
    assert!(matches!(
        pool.add(tx(1, 5, 2, 1), &at),
        Err(PoolError::Overdraft { .. })
    ));
    let at = Admission {
        balance: U256::from(3 * one),
        ..at
    };
    pool.add(tx(1, 1, 2, 1), &at).unwrap();
    let bumped = TxEip1559 {
        value: U256::from(22_001),
        ..eip1559(0, 3, 2)
    };
    assert_eq!(
        pool.add(pooled(1, bumped), &at).unwrap_err().to_string(),
        format!(
            "insufficient funds for gas * price + value: balance {}, queued cost {}, tx bumped {}, overshot 1",
            3 * one,
            2 * one,
            one + 1
        )
    );
    pool.add(tx(1, 0, 3, 2), &at).unwrap();
}

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
    // Once the transaction has gone the account may send as any other, and then nobody may set its
    // code.
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

#[test]
fn large_transactions_take_more_room() {
    let config = PoolConfig {
        global_slots: 3,
        global_queue: 2,
        ..Default::default()
    };
    let pool = Pool::with_config(&spec(Fork::Isthmus), config);
    let sized = |from, nonce, fee, kib: usize| {
        let input = vec![0; kib * 1024].into();
        pooled(
            from,
            TxEip1559 {
                input,
                gas_limit: 2_000_000,
                ..eip1559(nonce, fee, fee)
            },
        )
    };
    pool.add(sized(1, 0, 3 * GWEI, 70), &at(0)).unwrap();
    pool.add(sized(2, 0, 4 * GWEI, 20), &at(0)).unwrap();
    pool.add(sized(3, 1, 9 * GWEI, 1), &at(0)).unwrap();
    assert_eq!(
        pool.stats(),
        PoolStats {
            pending: 2,
            queued: 1,
            senders: 3
        }
    );
    // The sixth slot: what waits behind a gap gives way first, then who pays least.
    pool.add(sized(4, 0, 5 * GWEI, 1), &at(0)).unwrap();
    assert_eq!(
        pool.stats(),
        PoolStats {
            pending: 3,
            queued: 0,
            senders: 3
        }
    );
    assert_eq!(
        pool.add(sized(5, 0, 2 * GWEI, 40), &at(0)),
        Err(PoolError::Underpriced)
    );
    pool.add(sized(5, 0, 6 * GWEI, 40), &at(0)).unwrap();
    assert_eq!(nonces(&pool.best(1)), [(5, 0), (4, 0), (2, 0)]);
}

#[test]
fn decode_refuses_what_wallets_may_not_send() {
    for kind in [0x00u8, 0x03, 0x05, 0x7d, 0x7e, 0x7f] {
        assert_eq!(
            PoolTx::decode(vec![kind, 0xc0].into()).unwrap_err(),
            PoolError::TypeNotSupported,
            "{kind:#x}"
        );
    }
    // A blob transaction with its sidecar is larger than any that the pool takes; what is wrong
    // with it is its type.
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
    for (bad, told) in [
        (&[][..], "typed transaction too short"),
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
    ] {
        assert_eq!(
            PoolTx::decode(Bytes::copy_from_slice(bad)).unwrap_err(),
            PoolError::Decode(told.into()),
            "{bad:x?}"
        );
    }
    // The example of EIP-155: key 0x46…46, nonce 9, chain 1.
    let raw = hex!(
        "f86c098504a817c800825208943535353535353535353535353535353535353535880de0b6b3a76400008025a028ef61340bd939bc2195fe537567866003e1a15d3c71ff63e1590620aa636276a067cbe9d8997f761aecb703304b3800ccf555c9f3dc64214b297fb1966a3b6d83"
    );
    let decoded = PoolTx::decode(raw.to_vec().into()).unwrap();
    assert_eq!(
        decoded.sender(),
        address!("0x9d8a62f656a8d1615c1294fd71e9cfb3e4855a4f")
    );
    assert_eq!(
        decoded.hash,
        b256!("0x33469b22e9f636356c4160a87eb19df52b7412e8eac32a4a55ffe88ea8350788")
    );
    let mut trailing = raw.to_vec();
    trailing.push(0);
    let told = PoolError::Decode("rlp: input contains more than one value".into());
    assert_eq!(PoolTx::decode(trailing.into()).unwrap_err(), told);
    // The body of a deposit without its type byte begins as a legacy transaction does.
    let deposit = OpTxEnvelope::from(Sealed::new(TxDeposit::default())).encoded_2718();
    let error = PoolTx::decode(Bytes::copy_from_slice(&deposit[1..])).unwrap_err();
    assert!(matches!(error, PoolError::Decode(_)), "{error}");
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
        // No point of the curve has this abscissa.
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

#[test]
fn of_several_faults_geths_first_is_told() {
    let pool = new_pool();
    // Each has its own fault and all those below it.
    let mut tx = TxEip1559 {
        chain_id: 5,
        gas_limit: 1 << 62,
        nonce: 0,
        ..eip1559(0, 1, 2)
    };
    let at = Admission {
        balance: U256::ZERO,
        ..at(1)
    };
    let mut told = |change: &dyn Fn(&mut TxEip1559)| {
        change(&mut tx);
        pool.add(pooled(1, tx.clone()), &at)
            .unwrap_err()
            .to_string()
    };
    assert!(told(&|_| ()).starts_with("tx fee ("));
    assert!(told(&|tx| tx.gas_limit = (1 << 24) + 1).starts_with("transaction gas limit too high"));
    assert_eq!(
        told(&|tx| tx.gas_limit = 20_000),
        "max priority fee per gas higher than max fee per gas"
    );
    assert!(
        told(&|tx| tx.max_priority_fee_per_gas = 0).starts_with("invalid sender: invalid chain id")
    );
    assert!(told(&|tx| tx.chain_id = CHAIN).starts_with("intrinsic gas too low"));
    assert!(
        told(&|tx| tx.gas_limit = 21_000).starts_with("transaction underpriced: gas tip cap 0")
    );
    assert!(told(&|tx| tx.max_priority_fee_per_gas = 1).starts_with("nonce too low"));
    assert!(told(&|tx| tx.nonce = 1).starts_with("insufficient funds"));
    assert_eq!(told(&|tx| tx.nonce = u64::MAX), "nonce has max value");
}

#[test]
fn a_head_drops_promotes_takes_back_and_expires() {
    let pool = new_pool();
    let txs: Vec<_> = (0..4).map(|n| tx(1, n, 2 * GWEI, GWEI)).collect();
    for tx in &txs {
        pool.add(tx.clone(), &at(0)).unwrap();
    }
    pool.add(tx(2, 5, 2 * GWEI, GWEI), &at(0)).unwrap();
    let rich = U256::from(10u128.pow(19));
    let head = |mined: &[usize], abandoned: &[usize], now| HeadChange {
        l1: None,
        mined: mined.iter().map(|i| txs[*i].hash).collect(),
        abandoned: abandoned.iter().map(|i| txs[*i].clone()).collect(),
        base_fee: 1,
        block_gas_limit: 30_000_000,
        now,
    };
    pool.on_head(head(&[0, 1], &[], 1_002), |s| {
        Some((if s == sender(1) { 2 } else { 0 }, rich))
    });
    assert_eq!(nonces(&pool.best(1)), [(1, 2), (1, 3)]);
    // The block with nonce 1 is abandoned.
    pool.on_head(head(&[], &[1], 1_004), |s| {
        Some((if s == sender(1) { 1 } else { 0 }, rich))
    });
    assert_eq!(nonces(&pool.best(1)), [(1, 1), (1, 2), (1, 3)]);
    // Unreadable state changes nothing but what the block itself says.
    pool.on_head(head(&[1], &[], 1_006), |_| None);
    assert_eq!(nonces(&pool.best(1)), [(1, 2), (1, 3)]);
    // Queued transactions expire, executable ones do not.
    pool.on_head(head(&[], &[], 1_000 + 3 * 3600 + 1), |s| {
        Some((if s == sender(1) { 2 } else { 0 }, rich))
    });
    assert_eq!(
        pool.stats(),
        PoolStats {
            pending: 2,
            queued: 0,
            senders: 1
        }
    );
    // A sender that lost its balance loses its transactions.
    pool.on_head(head(&[], &[], 2_000), |_| Some((2, U256::ZERO)));
    assert_eq!(pool.stats(), PoolStats::default());
}

#[test]
fn a_full_pool_evicts_the_worst_tail() {
    let config = PoolConfig {
        account_slots: 1,
        global_slots: 4,
        account_queue: 2,
        global_queue: 3,
        ..Default::default()
    };
    let pool = Pool::with_config(&spec(Fork::Karst), config);
    for nonce in 0..3 {
        pool.add(tx(1, nonce, 3 * GWEI, 2 * GWEI), &at(0)).unwrap();
    }
    pool.add(tx(2, 0, 2 * GWEI, GWEI), &at(0)).unwrap();
    // Sender 2 pays less but keeps its guaranteed slot: sender 1 loses its tail.
    pool.add(tx(3, 0, 9 * GWEI, 8 * GWEI), &at(0)).unwrap();
    assert_eq!(nonces(&pool.best(1)), [(3, 0), (1, 0), (1, 1), (2, 0)]);
    // The newcomer itself is the worst tail above its slots.
    assert_eq!(
        pool.add(tx(2, 1, 2 * GWEI, GWEI), &at(0)),
        Err(PoolError::Underpriced)
    );
    pool.add(tx(4, 5, 2 * GWEI, GWEI), &at(0)).unwrap();
    pool.add(tx(4, 6, 2 * GWEI, GWEI), &at(0)).unwrap();
    assert_eq!(
        pool.add(tx(4, 7, 2 * GWEI, GWEI), &at(0)),
        Err(PoolError::AccountQueueFull { limit: 2 })
    );
    pool.add(tx(5, 5, 5 * GWEI, 2 * GWEI), &at(0)).unwrap();
    pool.add(tx(5, 6, 5 * GWEI, 2 * GWEI), &at(0)).unwrap();
    assert_eq!(pool.stats().queued, 3);
    assert_eq!(nonces(&pool.content_of(&sender(4)).1), [(4, 5)]);
}

#[derive(Clone, Debug)]
enum Op {
    Add {
        from: u8,
        nonce: u64,
        fee: u128,
        tip: u128,
    },
    Head {
        nonces: [u64; 4],
        now: u64,
    },
    Remove(usize),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        8 => (1..5u8, 0..10u64, 1..40u128, 1..40u128).prop_map(|(from, nonce, fee, tip)| Op::Add { from, nonce, fee, tip }),
        1 => ([0..6u64, 0..6, 0..6, 0..6], 0..20_000u64).prop_map(|(nonces, now)| Op::Head { nonces, now }),
        1 => (0..20usize).prop_map(Op::Remove),
    ]
}

/// Applies `ops` to a small pool and compares its books after each.
fn check_books(ops: Vec<Op>, base_fee: u64) -> Result<(), TestCaseError> {
    let config = PoolConfig {
        account_slots: 2,
        global_slots: 9,
        account_queue: 4,
        global_queue: 6,
        ..Default::default()
    };
    let pool = Pool::with_config(&spec(Fork::Karst), config.clone());
    let mut state = [0u64; 4];
    for op in ops {
        match op {
            Op::Add {
                from,
                nonce,
                fee,
                tip,
            } => {
                let at = Admission {
                    base_fee,
                    ..at(state[usize::from(from) - 1])
                };
                let known = pool.content();
                let tx = tx(from, nonce, fee, tip);
                let hash = tx.hash;
                match pool.add(tx, &at) {
                    Ok(_) => prop_assert!(pool.get(&hash).is_some()),
                    Err(PoolError::AlreadyKnown) => prop_assert!(pool.get(&hash).is_some()),
                    Err(PoolError::ReplacementUnderpriced) => {
                        let (pending, queued) = &known[&sender(from)];
                        prop_assert!(
                            pending
                                .iter()
                                .chain(queued)
                                .any(|old| old.tx.nonce() == nonce
                                    && (fee * 10 < old.tx.max_fee_per_gas() * 11
                                        || tip * 10 < admit::tip_cap(old) * 11))
                        );
                    }
                    Err(_) => prop_assert!(pool.get(&hash).is_none()),
                }
            }
            Op::Head { nonces, now } => {
                state = nonces;
                let change = HeadChange {
                    base_fee,
                    block_gas_limit: 30_000_000,
                    now,
                    ..Default::default()
                };
                pool.on_head(change, |s| {
                    Some((state[usize::from(s[0]) - 1], U256::from(10u128.pow(19))))
                });
            }
            Op::Remove(i) => {
                if let Some(tx) = pool.best(0).get(i) {
                    pool.remove(&tx.hash);
                }
            }
        }
        let (stats, content) = (pool.stats(), pool.content());
        prop_assert_eq!(
            stats.pending,
            content.values().map(|c| c.0.len()).sum::<usize>()
        );
        prop_assert_eq!(
            stats.queued,
            content.values().map(|c| c.1.len()).sum::<usize>()
        );
        prop_assert!(stats.pending <= config.global_slots && stats.queued <= config.global_queue);
        for tx in content.values().flat_map(|c| c.0.iter().chain(&c.1)) {
            prop_assert!(pool.get(&tx.hash).is_some());
        }
        // No gap: each sender's share of `best` counts up from its nonce, and every pick is the
        // best there was to pick.
        let mut left: BTreeMap<Address, Vec<Arc<PoolTx>>> =
            content.into_iter().map(|(s, c)| (s, c.0)).collect();
        for picked in pool.best(base_fee) {
            let mine = &left[&picked.sender()][0];
            prop_assert_eq!(mine.hash, picked.hash);
            prop_assert_eq!(
                picked.tx.nonce(),
                pool.next_nonce(&picked.sender(), 0) - left[&picked.sender()].len() as u64
            );
            let most = left
                .values()
                .filter_map(|txs| txs.first()?.effective_tip(base_fee))
                .max();
            prop_assert_eq!(picked.effective_tip(base_fee), most);
            left.get_mut(&picked.sender()).unwrap().remove(0);
        }
        let mut next = left.values().filter_map(|txs| txs.first());
        prop_assert!(next.all(|tx| tx.effective_tip(base_fee).is_none()));
    }
    Ok(())
}

proptest! {
    #[test]
    fn the_books_always_balance(ops in prop::collection::vec(op(), 1..120), base_fee in 0..30u64) {
        check_books(ops, base_fee)?;
    }
}

/// The shortest failure that the random operations have found.
#[test]
fn the_books_balance_after_replacements_and_a_removal() {
    let add = |(from, nonce, fee, tip)| Op::Add {
        from,
        nonce,
        fee,
        tip,
    };
    let head = Op::Head {
        nonces: [3, 2, 2, 5],
        now: 0,
    };
    let before = [(4, 5, 11, 1), (1, 3, 29, 1)].map(add);
    let after = [
        (1, 4, 2, 1),
        (3, 2, 18, 1),
        (2, 6, 9, 1),
        (4, 6, 11, 2),
        (1, 7, 7, 1),
        (1, 5, 18, 2),
        (2, 4, 21, 1),
        (2, 5, 13, 1),
        (2, 2, 15, 2),
        (3, 3, 21, 1),
        (1, 8, 7, 1),
        (3, 4, 2, 1),
    ]
    .map(add);
    let ops = before.into_iter().chain([head]).chain(after);
    check_books(ops.chain([Op::Remove(3)]).collect(), 0).unwrap();
}

#[test]
fn what_cannot_pay_for_l1_any_more_leaves() {
    let pool = new_pool();
    let fee_of = |info: &L1BlockInfo, tx: &PoolTx| {
        l1fee::admission_cost(info, Fork::Ecotone, &tx.raw, tx.tx.gas_limit())
    };
    let cheap = L1BlockInfo {
        format: L1InfoFormat::Ecotone,
        number: 0,
        time: 0,
        base_fee: U256::from(1),
        hash: B256::ZERO,
        sequence_number: 0,
        batcher_addr: Address::ZERO,
        overhead: B256::ZERO,
        scalar: B256::ZERO,
        base_fee_scalar: 1_000_000,
        blob_base_fee_scalar: 0,
        blob_base_fee: U256::ZERO,
        operator_fee_scalar: 0,
        operator_fee_constant: 0,
        da_footprint_gas_scalar: 0,
    };
    let dear = L1BlockInfo {
        base_fee: U256::from(1_000_000),
        ..cheap.clone()
    };
    let (first, second) = (tx(1, 0, GWEI, 1), tx(1, 1, GWEI, 1));
    let balance = first.cost() + fee_of(&cheap, &first);
    assert!(first.cost() + fee_of(&dear, &first) > balance);
    let start = Admission {
        l1_cost: U256::ZERO,
        ..at(0)
    };
    pool.add(first, &start).unwrap();
    pool.add(second, &start).unwrap();
    let head = |info: &L1BlockInfo| {
        let l1 = Some((info.clone(), Fork::Ecotone));
        pool.on_head(
            HeadChange {
                block_gas_limit: 30_000_000,
                l1,
                ..Default::default()
            },
            |_| Some((0, balance)),
        );
        pool.stats()
    };
    assert_eq!(head(&cheap).pending, 2);
    assert_eq!(head(&dear), PoolStats::default());
}
