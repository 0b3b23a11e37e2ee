//! The search for the start if L1 does not serve old blocks, or if records contradict the chain.

use super::*;
use starling_proto::fork::Fork;

#[tokio::test(flavor = "multi_thread")]
async fn a_reorg_below_the_l1_blocks_that_are_served_is_named_and_moves_nothing() {
    let world = World::new(80, 7).await;
    let (chain, _threads) = world.open();
    world.sequence(&chain).await;
    let head = chain.view().head();
    let fork = forked(&world.l1_headers, 3, 4);
    world.l1.set(&fork[3..]);
    let error = search(&world, &chain, 2).await.unwrap_err();
    let last_common = block(&world.l1_headers[2]).id();
    let StartSearchError::NotServed { origin, .. } = &error else {
        panic!("{error}");
    };
    assert_eq!(*origin, last_common);
    let sentence = error.to_string();
    for part in [world.l1.url(), last_common.to_string(), "--l1".into()] {
        assert!(sentence.contains(&part), "{part}: {sentence}");
    }
    assert_eq!(chain.view().head(), head);
    world.l1.set(&fork);
    let found = search(&world, &chain, 2).await.unwrap();
    assert_eq!(found.head.origin, last_common);
}

/// Only finality needs the records below the newest one.
#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_record_costs_finality_its_start_and_nothing_else() {
    let world = World::new(80, 7).await;
    let (chain, _threads) = world.open();
    world.sequence(&chain).await;
    let status = derive_and_stop(&world, &chain).await;
    let path = world.datadir.path().join("safe-heads");
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[5] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    let (mut driver, _handle) = driver(&world, &chain, 2, 0);
    assert!(driver.safe_db.newest(usize::MAX).is_err());
    let finalized = status.finalized_l2.unwrap().id;
    driver.restore_finality(finalized).await.unwrap();
}

/// The record's L1 block may be canonical, which proves nothing about its L2 block.
#[tokio::test(flavor = "multi_thread")]
async fn a_record_whose_block_is_not_in_the_chain_is_passed_over() {
    let world = World::new(80, 7).await;
    let (chain, _threads) = world.open();
    world.sequence(&chain).await;
    derive_and_stop(&world, &chain).await;
    let records = records(&world);
    let below = records.at_l1(15).unwrap().unwrap();
    let newest = records.last().unwrap();
    assert_eq!(newest.derived_from, block(&world.l1_headers[6]).id());
    let head = chain.view().head();
    let displaced = [
        BlockId {
            hash: alloy_primitives::B256::repeat_byte(7),
            ..newest.l2
        },
        BlockId {
            number: head.number + 5,
            ..newest.l2
        },
    ];
    for l2 in displaced {
        records.truncate(records.len() - 1).unwrap();
        let derived_from = newest.derived_from;
        records.record(SafeRecord { l2, derived_from }).unwrap();
        let found = search(&world, &chain, 2).await.unwrap();
        assert_eq!((found.safe.id, found.first_l1), (below.l2, 16), "{l2}");
    }
}

/// Blocks above the finalized one must not be treated as final because L1 lags behind their
/// origins.
#[tokio::test(flavor = "multi_thread")]
async fn a_safe_head_is_never_below_the_finalized_block() {
    let world = World::new(80, 7).await;
    let (chain, _threads) = world.open();
    world.sequence(&chain).await;
    let number = chain.view().head().number - 2;
    let hash = chain.view().hash_of(number).unwrap().unwrap();
    chain.promote(Some(hash), Some(hash)).await.unwrap();
    // A block a window deep would be below the finalized block, whether or not the head is ahead of
    // L1.
    for served in [7, 2] {
        world.l1.set(&world.l1_headers[..served]);
        let found = search(&world, &chain, 2).await.unwrap();
        assert_eq!(found.finalized.id, BlockId { number, hash });
        assert_eq!(found.safe, found.finalized, "{served}");
    }
}

/// If the node is killed between two safe blocks of one L1 block, a reported safe head must not be
/// lost.
#[tokio::test(flavor = "multi_thread")]
async fn a_safe_head_is_reported_once_it_is_recorded() {
    let world = World::new(80, 7).await;
    let (chain, _threads) = world.open();
    let (mut driver, handle) = driver(&world, &chain, 2, 0);
    let recorded = || records(&world).last().map(|record| record.l2);
    while driver.awaiting_promotion.is_none() {
        driver.step().await.unwrap();
    }
    driver.publish_status();
    let RollupStatus {
        local_safe_l2,
        safe_l2,
        ..
    } = handle.status();
    assert_eq!(local_safe_l2.unwrap().id.number, 1);
    assert_eq!(safe_l2.map(|safe| safe.id), recorded());
    assert_eq!(safe_l2.unwrap().id.number, 0);
    driver.promote().await.unwrap();
    driver.publish_status();
    let status = handle.status();
    assert_eq!(status.safe_l2, local_safe_l2);
    assert_eq!(local_safe_l2.map(|safe| safe.id), recorded());
}

/// L1 has replaced the origin of the chain's safe head.
#[tokio::test(flavor = "multi_thread")]
async fn a_safe_head_above_the_head_does_not_count() {
    let world = World::new(80, 7).await;
    let (chain, _threads) = world.open();
    world.sequence(&chain).await;
    let safe = chain.view().head();
    chain.promote(Some(safe.hash), None).await.unwrap();
    world.l1.set(&forked(&world.l1_headers, 3, 4));
    let found = search(&world, &chain, 2).await.unwrap();
    let (head, found) = (found.head.id, found.safe.id);
    assert!(found.number <= head.number && head.number < safe.number);
}

/// Before Holocene a batch may wait for an earlier one, so all batches are applied again.
#[tokio::test(flavor = "multi_thread")]
async fn before_holocene_a_record_does_not_tell_which_batches_were_applied() {
    let world = World::new(80, 7).await;
    let (chain, _threads) = world.open();
    world.sequence(&chain).await;
    let status = derive_and_stop(&world, &chain).await;
    let rollup = rollup(&world, 2);
    let rollup = RollupConfig {
        forks: rollup.forks.clone().with(Fork::Holocene, None),
        ..(*rollup).clone()
    };
    let search = StartSearch {
        rollup: &rollup,
        engine: &Engine::Local(chain.clone()),
        l1: &client(&world),
        safe_db: &records(&world),
        derived_l1: &DerivedL1::default(),
    };
    let found = search.run().await.unwrap();
    assert_eq!((Some(found.safe), found.first_l1), (status.safe_l2, 0));
}

/// Origins above L1's head may turn out to be orphaned.
#[tokio::test(flavor = "multi_thread")]
async fn without_records_the_safe_head_is_a_window_below_the_head_of_l1() {
    const WINDOW: u64 = 2;
    let world = World::new(80, 7).await;
    let (chain, _threads) = world.open();
    world.sequence(&chain).await;
    let head = chain.view().head();
    chain.promote(Some(head.hash), None).await.unwrap();
    let found = search(&world, &chain, WINDOW).await.unwrap();
    let (newest, safe) = (found.head.origin.number, found.safe);
    assert!(safe.id.number > 0 && safe.origin.number + WINDOW < newest);
    world.l1.set(&world.l1_headers[..5]);
    let found = search(&world, &chain, WINDOW).await.unwrap();
    assert_eq!(found.head.id, head);
    assert!(found.safe.origin.number + WINDOW < world.l1_headers[4].number);
    assert!(found.safe.id.number < safe.id.number);
}

/// Another driver of the Engine API may have set a finalized head and no safe head.
#[tokio::test(flavor = "multi_thread")]
async fn a_core_with_a_finalized_and_no_safe_head_begins_at_the_finalized_one() {
    let world = World::new(80, 7).await;
    let (chain, _threads) = world.open();
    world.sequence(&chain).await;
    let head = chain.view().head();
    let ten = chain.view().hash_of(10).unwrap().unwrap();
    chain.forkchoice(head.hash, None, Some(ten)).await.unwrap();
    let Heads {
        safe, finalized, ..
    } = *chain.heads().borrow();
    assert_eq!((safe, finalized.map(|id| id.number)), (None, Some(10)));
    let found = search(&world, &chain, 2).await.unwrap();
    assert_eq!(
        (found.safe, found.finalized.id.number),
        (found.finalized, 10)
    );
    let (mut driver, _handle) = driver(&world, &chain, 2, 0);
    driver.reset().await.unwrap();
    assert_eq!(chain.heads().borrow().safe, finalized);
}
