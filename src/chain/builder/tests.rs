use super::*;
use crate::chain::{
    evm::tests::{Alloc, Ground, address_of, op, sign, transfer},
    pool::{Admission, PoolConfig},
    tests::{GAS_LIMIT, attributes},
};
use alloy_consensus::TxEip1559;
use alloy_primitives::U256;
use starling_proto::fork::Fork;

/// Keys of senders with funds.
const SENDERS: std::ops::Range<u8> = 1..201;

fn ground() -> Ground {
    Ground::new(SENDERS.map(|key| (address_of(key), Alloc::ether(100))))
}

fn pool() -> Pool {
    Pool::with_config(
        &op(Fork::Jovian),
        PoolConfig {
            account_queue: 100,
            global_queue: 6_000,
            ..Default::default()
        },
    )
}

fn builder(ground: &Ground) -> BlockBuilder {
    let attributes = attributes(&ground.header, 0, []);
    BlockBuilder::start(Arc::new(op(Fork::Jovian)), ground.state(), attributes).unwrap()
}

/// Adds a transaction to the pool as JSON-RPC does, with the state of the ground.
fn submit(pool: &Pool, key: u8, tx: TxEip1559) -> B256 {
    let admission = Admission {
        nonce: 0,
        balance: U256::MAX,
        delegated: false,
        base_fee: 1_000,
        block_gas_limit: GAS_LIMIT,
        l1_cost: U256::ZERO,
        now: 1_000,
    };
    let tx = PoolTx::new(sign(key, tx).0);
    let hash = tx.hash;
    pool.add(tx, &admission).unwrap();
    hash
}

fn tip(nonce: u64, tip: u128) -> TxEip1559 {
    TxEip1559 {
        max_priority_fee_per_gas: tip,
        ..transfer(nonce)
    }
}

fn far() -> Instant {
    Instant::now() + Duration::from_secs(600)
}

#[test]
fn a_transaction_left_out_closes_its_sender_until_another_takes_its_nonce() {
    let (ground, pool) = (ground(), pool());
    let (mut builder, mut fill) = (builder(&ground), Fill::default());
    // `wide` needs more gas than is left when it is tried, and the sender's next nonce cannot be
    // executed without it.
    for key in 3..10 {
        submit(&pool, key, tip(0, 100));
    }
    let wide = submit(
        &pool,
        1,
        TxEip1559 {
            gas_limit: GAS_LIMIT - 100_000,
            ..tip(0, 50)
        },
    );
    let next = submit(&pool, 1, tip(1, 50));
    let other = submit(&pool, 2, tip(0, 10));
    assert!(!fill.run(&mut builder, &pool, far()));
    assert!(
        fill.left_out.contains(&wide) && !fill.left_out.contains(&next),
        "only the first is at fault"
    );
    assert!(fill.added.contains(&other) && fill.added.len() == 8);

    let narrow = submit(
        &pool,
        1,
        TxEip1559 {
            max_fee_per_gas: 2_000_000,
            ..tip(0, 60)
        },
    );
    fill.not_before = None;
    assert!(!fill.run(&mut builder, &pool, far()));
    assert!(fill.added.contains(&narrow) && fill.added.contains(&next) && fill.added.len() == 10);
    let block = builder.finish().unwrap();
    assert_eq!(block.payload.transactions.len(), 1 + 10);
}

#[test]
fn a_mined_transaction_that_the_pool_still_has_holds_up_nobody_for_long() {
    let (ground, pool) = (ground(), pool());
    let (mut builder, mut fill) = (builder(&ground), Fill::default());
    // The state is ahead of the pool: the nonce of `stale` is used already, and `next` cannot be
    // tried before the pool drops `stale`.
    let stale = submit(&pool, 1, tip(0, 10));
    let next = submit(&pool, 1, tip(1, 10));
    builder
        .add(&sign(1, tip(0, 77)).0, &sign(1, tip(0, 77)).1)
        .unwrap();
    fill.run(&mut builder, &pool, far());
    assert!(fill.left_out.contains(&stale) && fill.added.is_empty());
    pool.on_head(
        crate::chain::pool::HeadChange {
            mined: vec![stale],
            block_gas_limit: GAS_LIMIT,
            ..Default::default()
        },
        |_| Some((1, U256::MAX)),
    );
    fill.not_before = None;
    fill.run(&mut builder, &pool, far());
    assert!(fill.added.contains(&next));
}

#[test]
fn the_pool_is_asked_again_only_after_a_change_and_work_stops_at_the_deadline() {
    let (ground, pool) = (ground(), pool());
    for nonce in 0..25 {
        for key in SENDERS {
            submit(&pool, key, tip(nonce, 10 + u128::from(key)));
        }
    }
    assert_eq!(pool.stats().pending, 5_000);
    let started = Instant::now();
    assert_eq!(pool.best(1_000).len(), 5_000);
    println!("the best of 5,000 transactions: {:?}", started.elapsed());

    let (mut builder, mut fill) = (builder(&ground), Fill::default());
    assert!(
        fill.run(&mut builder, &pool, Instant::now()),
        "a deadline that has passed"
    );
    assert!(fill.added.is_empty());
    let left = fill.queue.len();
    while fill.run(
        &mut builder,
        &pool,
        Instant::now() + Duration::from_millis(1),
    ) {}
    // The block is full long before the queue is empty.
    assert!(fill.done && fill.added.len() > 1_000 && fill.queue.len() < left);
    assert!(!fill.run(&mut builder, &pool, far()));

    let (mut builder, mut fill) = (
        self::builder(&ground),
        Fill {
            version: Some(pool.version()),
            ..Default::default()
        },
    );
    assert!(!fill.run(&mut builder, &pool, far()), "nothing has changed");
    submit(&pool, 1, tip(25, 10));
    fill.run(&mut builder, &pool, far());
    assert!(!fill.added.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn starts_and_seals_out_of_order_are_answered() {
    let datadir = crate::chain::tests::datadir();
    let (chain, _threads) = crate::chain::tests::open(datadir.path());
    let genesis = chain.view().header().clone();
    let parent = chain.view().head().hash;
    assert!(matches!(
        chain.seal(PayloadId::new([1; 8])).await,
        Err(ChainError::UnknownPayload)
    ));
    assert!(matches!(
        chain.start(B256::ZERO, attributes(&genesis, 0, [])).await,
        Err(ChainError::UnknownBlock(_))
    ));
    let first = chain
        .start(parent, attributes(&genesis, 0, []))
        .await
        .unwrap();
    assert_eq!(
        chain
            .start(parent, attributes(&genesis, 0, []))
            .await
            .unwrap(),
        first
    );
    let second = chain
        .start(parent, attributes(&genesis, 1, []))
        .await
        .unwrap();
    assert!(
        matches!(chain.seal(first).await, Err(ChainError::UnknownPayload)),
        "replaced"
    );
    let block = chain.seal(second).await.unwrap();
    assert!(chain.knows(block.payload.hash));
    assert!(
        matches!(chain.seal(second).await, Err(ChainError::UnknownPayload)),
        "sealed"
    );
    // Building from the same attributes again yields the same block.
    let again = chain
        .start(parent, attributes(&genesis, 1, []))
        .await
        .unwrap();
    assert_eq!(
        chain.seal(again).await.unwrap().payload.hash,
        block.payload.hash
    );
    let bad = alloy_primitives::Bytes::from_static(&[0x02, 0xc0]);
    assert!(matches!(
        chain.start(parent, attributes(&genesis, 2, [bad])).await,
        Err(ChainError::Build(_))
    ));
}

/// A transaction with this many bytes of calldata that do not compress.
fn data(nonce: u64, bytes: usize, tip: u128) -> TxEip1559 {
    let input: Vec<u8> = (0..bytes)
        .flat_map(|n| alloy_primitives::keccak256(n.to_be_bytes()).0)
        .take(bytes)
        .collect();
    TxEip1559 {
        input: input.into(),
        gas_limit: 1_000_000,
        ..self::tip(nonce, tip)
    }
}

#[test]
fn a_block_stays_within_the_data_limits_and_deposits_are_exempt() {
    let (ground, pool) = (ground(), pool());
    let small = submit(&pool, 1, data(0, 0, 50));
    let large = submit(&pool, 2, data(0, 3_000, 40));
    let behind = submit(&pool, 2, data(1, 0, 40));
    let medium = [3, 4].map(|key| submit(&pool, key, data(0, 800, 30)));
    let last = submit(&pool, 5, data(0, 0, 20));
    let built = |tx: Option<u64>, block: Option<u64>| {
        pool.set_miner(|settings| (settings.max_tx_da, settings.max_block_da) = (tx, block));
        let (mut builder, mut fill) = (
            builder(&ground),
            Fill {
                settings: pool.miner(),
                ..Default::default()
            },
        );
        fill.run(&mut builder, &pool, far());
        assert_eq!(
            builder.finish().unwrap().payload.transactions.len(),
            1 + fill.added.len(),
            "the deposit is there"
        );
        fill.added
    };
    assert_eq!(built(None, None).len(), 6);
    let added = built(Some(1_000), None);
    assert_eq!(
        added,
        [small, medium[0], medium[1], last].into_iter().collect(),
        "and nothing behind the large one"
    );
    // Every transfer counts as 100 bytes, the minimum. A transaction that exceeds the limit is left
    // out, and later ones that fit are added.
    let added = built(Some(1_000), Some(1_100));
    assert!(
        added.len() == 3 && [small, last].iter().all(|hash| added.contains(hash)),
        "{added:?}"
    );
    assert_eq!(added.iter().filter(|hash| medium.contains(hash)).count(), 1);
    assert!(built(None, Some(99)).is_empty());
    assert!(!added.contains(&large) && !added.contains(&behind));
}

#[test]
fn a_minimum_tip_counts_for_the_pool_and_for_blocks() {
    let (ground, pool) = (ground(), pool());
    let [low, high] = [(1, 10), (2, 1_000)].map(|(key, wei)| submit(&pool, key, tip(0, wei)));
    pool.set_miner(|settings| settings.min_tip = Some(500));
    assert!(pool.get(&low).is_none() && pool.get(&high).is_some());
    let admission = Admission {
        nonce: 0,
        balance: U256::MAX,
        delegated: false,
        base_fee: 1_000,
        block_gas_limit: GAS_LIMIT,
        l1_cost: U256::ZERO,
        now: 1_000,
    };
    let refused = pool
        .add(PoolTx::new(sign(3, tip(0, 499)).0), &admission)
        .unwrap_err();
    assert_eq!(
        refused.to_string(),
        "transaction gas price below minimum: gas tip cap 499, minimum needed 500"
    );
    // The fee cap of this transaction is less than the base fee plus the minimum tip.
    let squeezed = submit(
        &pool,
        4,
        TxEip1559 {
            max_fee_per_gas: builder(&ground).base_fee() as u128 + 499,
            ..tip(0, 500)
        },
    );
    let (mut builder, mut fill) = (
        builder(&ground),
        Fill {
            settings: pool.miner(),
            ..Default::default()
        },
    );
    fill.run(&mut builder, &pool, far());
    assert!(fill.added.contains(&high) && !fill.added.contains(&squeezed) && fill.added.len() == 1);
}
