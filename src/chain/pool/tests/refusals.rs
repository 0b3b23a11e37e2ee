//! Refusals of a single transaction, with geth's error texts.

use super::*;

/// The error text when a fresh pool refuses this transaction.
fn refusal(tx: PoolTx, at: &Admission) -> String {
    new_pool().add(tx, at).unwrap_err().to_string()
}

/// A transaction of sender 1 with this gas limit.
fn with_gas(gas_limit: u64) -> TxEip1559 {
    TxEip1559 {
        gas_limit,
        ..eip1559(0, 2, 2)
    }
}

/// A legacy transaction without a chain id.
fn unprotected(from: u8, gas_price: u128) -> PoolTx {
    let legacy = TxLegacy {
        gas_price,
        gas_limit: 21_000,
        to: TxKind::Call(Address::ZERO),
        ..Default::default()
    };
    let legacy = OpTxEnvelope::from(legacy.into_signed(Signature::test_signature()));
    PoolTx::new(Recovered::new_unchecked(legacy, sender(from)))
}

#[test]
fn refusals_of_nonce_balance_and_fees_say_what_geth_says() {
    let with_balance = |balance| Admission { balance, ..at(0) };
    for (tx, at, words) in [
        (
            tx(1, 4, 2, 2),
            at(5),
            "nonce too low: next nonce 5, tx nonce 4",
        ),
        (
            tx(1, 0, 2, 2),
            with_balance(U256::from(100)),
            "insufficient funds for gas * price + value: balance 100, tx cost 43000, overshot 42900",
        ),
        (
            tx(1, 0, 2, 0),
            at(0),
            "transaction gas price below minimum: gas tip cap 0, minimum needed 1",
        ),
        (
            tx(1, 0, 2, 3),
            at(0),
            "max priority fee per gas higher than max fee per gas",
        ),
        (
            tx(1, 0, 50_000 * GWEI, 1),
            with_balance(U256::MAX),
            "tx fee (1.05 ether) exceeds the configured cap (1.00 ether)",
        ),
    ] {
        assert_eq!(refusal(tx, &at), words);
    }
}

#[test]
fn refusals_of_gas_say_what_geth_says() {
    let small = Admission {
        block_gas_limit: 10_000_000,
        ..at(0)
    };
    let data = TxEip1559 {
        input: vec![1; 10].into(),
        ..with_gas(21_200)
    };
    for (tx, at, words) in [
        (
            with_gas(20_999),
            at(0),
            "intrinsic gas too low: gas 20999, minimum needed 21000",
        ),
        (with_gas(9_930_001), small, "exceeds block gas limit"),
        (
            with_gas((1 << 24) + 1),
            at(0),
            "transaction gas limit too high (cap: 16777216, tx: 16777217)",
        ),
        (
            data,
            at(0),
            "insufficient gas for floor data gas cost: gas 21200, minimum needed 21400",
        ),
    ] {
        assert_eq!(refusal(pooled(1, tx), &at), words);
    }
    let most = pooled(9, with_gas(1 << 24));
    new_pool().add(most, &at(0)).unwrap();
}

#[test]
fn refusals_of_kind_chain_and_size_say_what_geth_says() {
    let foreign = TxEip1559 {
        chain_id: 5,
        ..eip1559(0, 2, 2)
    };
    assert_eq!(
        refusal(pooled(1, foreign), &at(0)),
        "invalid sender: invalid chain id for signer: have 5 want 901"
    );
    let large = TxEip1559 {
        input: vec![0; admit::MAX_SIZE].into(),
        ..with_gas(2_000_000)
    };
    let error = refusal(pooled(1, large), &at(0));
    assert!(error.starts_with("oversized data: transaction size 1311"));
    assert_eq!(
        refusal(unprotected(1, 2), &at(0)),
        "only replay-protected (EIP-155) transactions allowed over RPC"
    );
    let deposit = OpTxEnvelope::from(Sealed::new(TxDeposit::default()));
    let deposit = PoolTx::new(Recovered::new_unchecked(deposit, sender(1)));
    assert_eq!(refusal(deposit, &at(0)), "transaction type not supported");
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
        "transaction gas price below minimum: gas tip cap 4, minimum needed 5"
    );
    assert!(say(tx(1, 0, 101, 5)).starts_with("tx fee ("));
    pool.add(tx(1, 0, 10, 5), &at(0)).unwrap();
    assert_eq!(
        pool.add(tx(1, 0, 19, 10), &at(0)),
        Err(PoolError::ReplacementUnderpriced)
    );
    pool.add(tx(1, 0, 20, 10), &at(0)).unwrap();
    pool.add(unprotected(2, 5), &at(0)).unwrap();
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
    // The balance must also cover a nonce behind a gap, and the additional cost of a replacement.
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

#[test]
fn of_several_faults_geths_first_is_told() {
    let pool = new_pool();
    // The transaction starts with every fault. Each step below removes the fault that geth reports
    // first.
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
        told(&|tx| tx.gas_limit = 21_000)
            .starts_with("transaction gas price below minimum: gas tip cap 0")
    );
    assert!(told(&|tx| tx.max_priority_fee_per_gas = 1).starts_with("nonce too low"));
    assert!(told(&|tx| tx.nonce = 1).starts_with("insufficient funds"));
    assert_eq!(told(&|tx| tx.nonce = u64::MAX), "nonce has max value");
}
