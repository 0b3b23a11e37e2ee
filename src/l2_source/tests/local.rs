//! The L2 source of this process, on a real chain.

use super::*;
use crate::{
    chain::Chain,
    rollup::{
        driver::{DriverConfig, DriverParts, L1Reader, RollupDriver},
        engine::Engine,
        finality,
        handle::RollupHandle,
        l1::{L1Blocks, L1Client, L1Config, Watched},
        safe_db::SafeDb,
        sequencer::tests::World,
    },
};
use starling_proto::{fork::BlobSchedule, output::output_root};

/// A driver's handle. The driver itself does not run, so no block becomes safe.
fn handle(world: &World, chain: &Chain) -> (RollupDriver, RollupHandle) {
    let client = L1Client::new(&L1Config::new(world.l1.url())).unwrap();
    let blocks = L1Blocks::new(client, Watched::from(&*world.rollup), 100);
    let parts = DriverParts {
        schedule: BlobSchedule::new(vec![(0, BlobSchedule::CANCUN)]),
        engine: Engine::Local(chain.clone()),
        l1: L1Reader::new(blocks, 10, 20, None, world.rollup.clone()),
        l1_heads: world.l1_heads.subscribe(),
        safe_db: SafeDb::open(&world.datadir.path().join("safe-heads")).unwrap(),
        rollup: world.rollup.clone(),
    };
    let config = DriverConfig {
        l1_confs: 0,
        finality_lookback: finality::LOOKBACK,
        finality_delay: finality::DELAY,
    };
    let (driver, handle) = RollupDriver::new(config, parts);
    let handle = RollupHandle {
        config: world.rollup.clone(),
        driver: handle,
        engine: Engine::Local(chain.clone()),
        safe_db: None,
        withdrawal_root_from_state: false,
    };
    (driver, handle)
}

#[tokio::test]
async fn the_node_of_this_process_is_read() {
    let world = World::new(20, 30).await;
    let (chain, threads) = world.open();
    let (_driver, rollup) = handle(&world, &chain);
    let source = L2Source::Local(LocalSource {
        chain: chain.clone(),
        rollup,
    });
    world.sequence(&chain).await;
    assert_eq!(source.rollup_config().await.unwrap(), world.rollup);
    let heads = source.heads().await.unwrap();
    let head = heads.unsafe_l2.unwrap();
    assert_eq!(head.id, chain.view().head());
    assert!(head.id.number > 5 && head.origin.number > 10, "{head:?}");
    assert_eq!((heads.safe_l2, heads.current_l1), (None, None));
    for number in 0..=head.id.number {
        let block = source.block(number).await.unwrap().unwrap();
        assert_eq!(block.number(), number);
        assert_eq!(source.block_id(number).await.unwrap(), Some(block.id()));
        let output = source.output_at(number).await.unwrap();
        assert_eq!(output.block.id, block.id());
        let parts = (block.header.state_root, block.header.withdrawals_root);
        let expected = output_root(parts.0, parts.1.unwrap(), block.hash);
        assert_eq!(output.root, expected);
    }
    let above = head.id.number + 1;
    assert!(source.block(above).await.unwrap().is_none());
    assert!(source.block_id(above).await.unwrap().is_none());
    let error = source.output_at(above).await.unwrap_err();
    assert_eq!(error.to_string(), "not found");
    drop((source, chain));
    threads.stop().unwrap();
}
