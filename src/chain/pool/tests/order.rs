//! Tests of the order of execution: tips, nonces, gaps and replacements.

use super::*;

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
    // At a base fee of 9.5 gwei every effective tip is half a gwei, so the order of arrival
    // decides.
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
    // Integer division as in geth: a tenth more than 15 is 16. A tip of 5 must still rise by at
    // least 1.
    pool.add(tx(2, 0, 15, 5), &at(0)).unwrap();
    assert_eq!(
        pool.add(tx(2, 0, 16, 5), &at(0)),
        Err(PoolError::ReplacementUnderpriced)
    );
    pool.add(tx(2, 0, 16, 6), &at(0)).unwrap();
}
