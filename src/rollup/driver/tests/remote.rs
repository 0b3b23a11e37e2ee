//! The driver over a core behind an Engine API.

use super::*;
use crate::rollup::engine::remote::testing::ServedCore;

#[tokio::test(flavor = "multi_thread")]
async fn a_core_in_another_process_is_consolidated_overridden_and_reorged() {
    let world = World::new(80, 7).await;
    let (chain, _threads) = world.open();
    submit(&chain, transfer(0));
    world.sequence(&chain).await;
    let old = chain.view().head();
    let served = ServedCore::start(&chain).await;
    let engine = served.engine(&rollup(&world, 2)).await;
    assert_eq!(engine.heads().borrow().head, old);
    let running = RunningDriver::start(driver_over(&world, engine.clone(), 2, 0));
    let status = running.derives(&world.l1_headers[6]).await;
    // No batch has the transfer of block 1.
    let safe = status.safe_l2.unwrap();
    assert!(safe.id.number >= 20, "{safe:?}");
    assert_eq!(chain.view().head(), safe.id);
    assert_eq!(transactions(&chain, 1), 1);
    let heads = *chain.heads().borrow();
    assert_eq!(heads.safe, Some(safe.id));
    running.stop().await;

    // Blocks without transactions on top of it are consolidated.
    world.sequence(&chain).await;
    let head = chain.view().head();
    assert!(head.number > safe.id.number);
    let again = served.engine(&rollup(&world, 2)).await;
    let running = RunningDriver::start(driver_over(&world, again, 2, 0));
    let fork = forked(&world.l1_headers, 7, 2);
    world.show_l1(&fork);
    let status = running.derives(&fork[8]).await;
    assert!(status.safe_l2.unwrap().id.number > safe.id.number);
    assert_eq!(chain.view().head(), head, "no block was built anew");

    // L1 takes another branch.
    let shorter = forked(&world.l1_headers, 4, 2);
    world.show_l1(&shorter);
    let status = running.derives(&shorter[5]).await;
    assert!(status.safe_l2.unwrap().id.number < safe.id.number);
    let head = chain.view().payload(chain.view().head().number);
    let head = L2BlockRef::of(&head.unwrap().unwrap(), &world.rollup.genesis).unwrap();
    assert!(
        shorter
            .iter()
            .any(|header| block(header).id() == head.origin)
    );
    running.stop().await;
}
