//! Tests of the book: new heads, eviction, and totals after any operations.

use super::*;

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
    // The sixth slot is one too many: a transaction behind a gap is evicted first, then the
    // worst-paying one.
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
    // With an unreadable state, only the transactions mined in the block are dropped.
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
    // Sender 2 pays less but keeps its guaranteed slot. Sender 1 loses its last nonce.
    pool.add(tx(3, 0, 9 * GWEI, 8 * GWEI), &at(0)).unwrap();
    assert_eq!(nonces(&pool.best(1)), [(3, 0), (1, 0), (1, 1), (2, 0)]);
    // The new transaction itself is the worst-paying one above the guaranteed slots.
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

/// Small limits, so that the random operations fill the pool.
fn small() -> PoolConfig {
    PoolConfig {
        account_slots: 2,
        global_slots: 9,
        account_queue: 4,
        global_queue: 6,
        ..Default::default()
    }
}

/// Adds a transaction, and checks that it is in the pool afterwards unless it was refused, and that
/// a replacement is only refused if it pays less than a tenth more.
fn add_and_check(pool: &Pool, tx: PoolTx, at: &Admission) -> Result<(), TestCaseError> {
    let known = pool.content();
    let (from, nonce, hash) = (tx.sender(), tx.tx.nonce(), tx.hash);
    let (fee, tip) = (tx.tx.max_fee_per_gas(), admit::tip_cap(&tx));
    match pool.add(tx, at) {
        Ok(_) | Err(PoolError::AlreadyKnown) => prop_assert!(pool.get(&hash).is_some()),
        Err(PoolError::ReplacementUnderpriced) => {
            let (pending, queued) = &known[&from];
            let underprices = |old: &Arc<PoolTx>| {
                old.tx.nonce() == nonce
                    && (fee * 10 < old.tx.max_fee_per_gas() * 11
                        || tip * 10 < admit::tip_cap(old) * 11)
            };
            prop_assert!(pending.iter().chain(queued).any(underprices));
        }
        Err(_) => prop_assert!(pool.get(&hash).is_none()),
    }
    Ok(())
}

/// Checks that the totals match the content and the limits, and that every hash leads to its
/// transaction.
fn check_totals(pool: &Pool, config: &PoolConfig) -> Result<(), TestCaseError> {
    let (stats, content) = (pool.stats(), pool.content());
    let pending = content.values().map(|c| c.0.len()).sum::<usize>();
    let queued = content.values().map(|c| c.1.len()).sum::<usize>();
    prop_assert_eq!((stats.pending, stats.queued), (pending, queued));
    prop_assert!(pending <= config.global_slots && queued <= config.global_queue);
    for tx in content.values().flat_map(|c| c.0.iter().chain(&c.1)) {
        prop_assert!(pool.get(&tx.hash).is_some());
    }
    Ok(())
}

/// Checks that `best` has no gaps: it lists each sender's nonces in order without a gap, and each
/// transaction listed has the highest tip among those that could come next.
fn check_best(pool: &Pool, base_fee: u64) -> Result<(), TestCaseError> {
    let content = pool.content().into_iter();
    let mut left: BTreeMap<Address, Vec<Arc<PoolTx>>> =
        content.map(|(sender, txs)| (sender, txs.0)).collect();
    for picked in pool.best(base_fee) {
        let mine = &left[&picked.sender()];
        prop_assert_eq!(mine[0].hash, picked.hash);
        prop_assert_eq!(
            picked.tx.nonce(),
            pool.next_nonce(&picked.sender(), 0) - mine.len() as u64
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
    Ok(())
}

/// Applies `ops` to a small pool and checks its totals and its order after each.
fn check_books(ops: Vec<Op>, base_fee: u64) -> Result<(), TestCaseError> {
    let config = small();
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
                add_and_check(&pool, tx(from, nonce, fee, tip), &at)?;
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
        check_totals(&pool, &config)?;
        check_best(&pool, base_fee)?;
    }
    Ok(())
}

proptest! {
    #[test]
    fn the_books_always_balance(ops in prop::collection::vec(op(), 1..120), base_fee in 0..30u64) {
        check_books(ops, base_fee)?;
    }
}

/// The shortest failing sequence that the random operations have found.
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
