//! The consequences of a failed step and of a reset.

use super::*;
use alloy_primitives::B256;

#[tokio::test(flavor = "multi_thread")]
async fn failed_steps_are_repeated_after_pauses_that_grow() {
    let world = World::new(40, 4).await;
    let (chain, _threads) = world.open();
    let (mut driver, _handle) = driver(&world, &chain, 2, 0);
    driver.reset().await.unwrap();
    for seconds in [1, 2, 4] {
        let error = DriverStepError::L1(L1ReadError::NoBeacon);
        let pause = driver.on_step_error(error).unwrap();
        assert_eq!(pause.as_secs(), seconds);
    }
    assert!(!driver.reset_pending, "L1 contradicts nothing");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_contradiction_resets_derivation() {
    let world = World::new(40, 4).await;
    let (chain, _threads) = world.open();
    let (mut driver, _handle) = driver(&world, &chain, 2, 0);
    let left = ChainError::NotOnBranch {
        block: B256::repeat_byte(1),
        head: B256::repeat_byte(2),
    };
    let reorg = DriverStepError::Reset("L1 reorg".into());
    for error in [DriverStepError::Core(left.into()), reorg] {
        driver.reset().await.unwrap();
        assert!(!driver.reset_pending);
        driver.on_step_error(error).unwrap();
        assert!(driver.reset_pending);
    }
}

/// After the search an L1 reorg replaces the block at which the pipeline begins.
#[tokio::test(flavor = "multi_thread")]
async fn an_l1_block_that_is_gone_before_it_is_read_resets_derivation() {
    let world = World::new(40, 4).await;
    let (chain, _threads) = world.open();
    let (mut driver, _handle) = driver(&world, &chain, 2, 0);
    driver.reset().await.unwrap();
    let number = world.l1_headers[0].number;
    world.l1.set(&[header(number, B256::ZERO, 1, 9)]);
    let mut failed = None;
    for _ in 0..10 {
        if let Err(error) = driver.step().await {
            failed = Some(error);
            break;
        }
    }
    let is_reset = matches!(failed, Some(DriverStepError::Reset(_)));
    assert!(is_reset, "{failed:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reset_forgets_safe_blocks_that_are_not_recorded() {
    let world = World::new(80, 7).await;
    let (chain, _threads) = world.open();
    world.sequence(&chain).await;
    let (mut driver, _handle) = driver(&world, &chain, 2, 0);
    let l1 = |at: usize| block(&world.l1_headers[at]);
    driver.finality.on_safe(SafeRecord {
        l2: BlockId {
            number: 5,
            hash: chain.view().hash_of(5).unwrap().unwrap(),
        },
        derived_from: l1(4).id(),
    });
    driver.reset().await.unwrap();
    world
        .l1_heads
        .send_modify(|heads| heads.finalized = Some(l1(5)));
    driver.finalize(l1(6).id()).await.unwrap();
    assert_eq!(chain.heads().borrow().finalized, None);
}

/// Derivation continues after the newest record, so recorded blocks are not derived again.
#[tokio::test(flavor = "multi_thread")]
async fn recorded_safe_blocks_become_final_after_a_restart_and_after_a_reset() {
    let world = World::new(80, 7).await;
    let (chain, _threads) = world.open();
    world.sequence(&chain).await;
    derive_and_stop(&world, &chain).await;
    let (mut driver, _handle) = driver(&world, &chain, 2, 0);
    let newest = block(&world.l1_headers[6]).id();
    for at in [4, 5] {
        driver.reset().await.unwrap();
        let finalized = block(&world.l1_headers[at]);
        let recorded = driver.safe_db.at_l1(finalized.number).unwrap().unwrap();
        assert_eq!(recorded.derived_from, finalized.id());
        world
            .l1_heads
            .send_modify(|heads| heads.finalized = Some(finalized));
        driver.finalize(newest).await.unwrap();
        assert_eq!(chain.heads().borrow().finalized, Some(recorded.l2));
    }
}

/// A record of an orphaned L1 block may remain below other records. Each reset restores the record,
/// so the record must not cause a reset in turn.
#[tokio::test(flavor = "multi_thread")]
async fn a_record_of_an_l1_block_that_is_gone_finalizes_nothing_and_resets_nothing() {
    let world = World::new(80, 7).await;
    let (chain, _threads) = world.open();
    world.sequence(&chain).await;
    derive_and_stop(&world, &chain).await;
    let (mut driver, _handle) = driver(&world, &chain, 2, 0);
    let [below, gone, newest] = driver.safe_db.newest(3).unwrap()[..] else {
        panic!("three records");
    };
    let l2 = gone.l2;
    let derived_from = BlockId {
        hash: B256::repeat_byte(7),
        ..gone.derived_from
    };
    for record in [SafeRecord { l2, derived_from }, newest] {
        driver.safe_db.record(record).unwrap();
    }
    driver.reset().await.unwrap();
    assert_eq!(driver.safe.map(|safe| safe.id), Some(newest.l2));
    let finalized = block(&world.l1_headers[5]);
    assert_eq!(finalized.id(), gone.derived_from);
    world
        .l1_heads
        .send_modify(|heads| heads.finalized = Some(finalized));
    for _ in 0..2 {
        driver.finality.on_idle();
        driver.finalize(newest.derived_from).await.unwrap();
    }
    assert_eq!(chain.heads().borrow().finalized, Some(below.l2));
}

/// The core's safe head is above the safe head from which derivation begins.
#[tokio::test(flavor = "multi_thread")]
async fn a_reset_sets_the_safe_head_of_the_core() {
    let world = World::new(80, 7).await;
    let (chain, _threads) = world.open();
    world.sequence(&chain).await;
    let head = chain.view().head();
    chain.promote(Some(head.hash), None).await.unwrap();
    let (mut driver, _handle) = driver(&world, &chain, 2, 0);
    driver.reset().await.unwrap();
    let safe = driver.local_safe.unwrap().id;
    assert!(safe.number < head.number);
    assert_eq!(chain.heads().borrow().safe, Some(safe));
}

/// A core that was killed may have stored a lower safe head than that of the newest record.
#[tokio::test(flavor = "multi_thread")]
async fn while_the_start_is_not_found_the_heads_are_those_of_core_and_records() {
    let world = World::new(80, 7).await;
    let (chain, _threads) = world.open();
    world.sequence(&chain).await;
    let (mut driver, handle) = driver(&world, &chain, 2, 0);
    driver.reset().await.unwrap();
    let id = |number| BlockId {
        number,
        hash: chain.view().hash_of(number).unwrap().unwrap(),
    };
    let five = Some(id(5).hash);
    chain.promote(five, five).await.unwrap();
    let down = Err((-32000, "down".to_owned()));
    let answers = |state: &mut State| state.answers.insert("eth_getBlockByNumber", down);
    answers(&mut world.l1.state.lock());
    let heads = |status: RollupStatus| {
        [status.safe_l2, status.finalized_l2].map(|head| head.map(|head| head.id))
    };
    driver.reset().await.unwrap_err();
    assert_eq!(heads(handle.status()), [Some(id(5)), Some(id(5))]);
    let record = SafeRecord {
        l2: id(7),
        derived_from: block(&world.l1_headers[3]).id(),
    };
    driver.safe_db.record(record).unwrap();
    driver.reset().await.unwrap_err();
    assert_eq!(heads(handle.status()), [Some(id(7)), Some(id(5))]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reset_removes_the_records_of_l1_blocks_that_are_gone() {
    let world = World::new(80, 7).await;
    let (chain, _threads) = world.open();
    world.sequence(&chain).await;
    derive_and_stop(&world, &chain).await;
    let fork = forked(&world.l1_headers, 3, 4);
    world.l1.set(&fork);
    let (mut driver, _handle) = driver(&world, &chain, 2, 0);
    let kept = driver.safe_db.at_l1(12).unwrap();
    driver.reset().await.unwrap();
    assert_eq!(driver.safe_db.last(), kept);
    assert_eq!(kept.unwrap().derived_from, block(&fork[2]).id());
}
