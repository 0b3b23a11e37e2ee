//! The driver with a core behind an Engine API.

use super::*;
use crate::rollup::engine::remote::testing::ServedCore;

#[tokio::test(flavor = "multi_thread")]
async fn a_chain_in_another_process_is_consolidated_and_stays() {
    let world = World::new(80, 7).await;
    let (chain, _threads) = world.open();
    world.sequence(&chain).await;
    let head = chain.view().head();
    let served = ServedCore::start(&chain).await;
    let engine = served.engine(&rollup(&world, 2)).await;
    let running = RunningDriver::start(driver_over(&world, engine, 2, 0));
    let status = running.derives(&world.l1_headers[6]).await;
    running.stop().await;
    let safe = status.safe_l2.unwrap();
    assert!(safe.id.number >= 20, "{safe:?}");
    assert_eq!(chain.view().head(), head, "no block was built anew");
    assert_eq!(chain.heads().borrow().safe, Some(safe.id));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chain_in_another_process_is_overridden_and_follows_l1_reorgs() {
    let world = World::new(80, 7).await;
    let (chain, _threads) = world.open();
    submit(&chain, transfer(0));
    world.sequence(&chain).await;
    assert_eq!(transactions(&chain, 1), 2);
    let served = ServedCore::start(&chain).await;
    let engine = served.engine(&rollup(&world, 2)).await;
    let running = RunningDriver::start(driver_over(&world, engine.clone(), 2, 0));
    let before = running.derives(&world.l1_headers[6]).await;
    // No batch contains the transfer of block 1.
    let safe = before.safe_l2.unwrap().id;
    assert!(safe.number >= 20, "{safe}");
    assert_eq!(chain.view().head(), safe);
    assert_eq!(transactions(&chain, 1), 1);

    let shorter = forked(&world.l1_headers, 4, 2);
    world.show_l1(&shorter);
    let after = running.derives(&shorter[5]).await;
    running.stop().await;
    assert!(after.safe_l2.unwrap().id.number < safe.number);
    let head = chain.view().head();
    assert_eq!(engine.heads().borrow().head, head);
    let head = chain.view().payload(head.number).unwrap().unwrap();
    let origin = L2BlockRef::of(&head, &world.rollup.genesis).unwrap().origin;
    assert!(shorter.iter().any(|header| block(header).id() == origin));
}
