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
    rpc::{
        RollupContext,
        api::{Method, Namespace},
        error::Reply,
        optimism,
        params::Args,
        superroot,
    },
};
use serde_json::{Value, json, value::to_raw_value};
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
    let error = source.output_at(above).await.unwrap_err().to_string();
    assert!(
        error.ends_with("could not get payload: not found"),
        "{error}"
    );
    drop((source, chain));
    threads.stop().unwrap();
}

/// The reply of a rollup node's method.
async fn ask(rollup: &RollupHandle, namespace: &Namespace, params: Value) -> Reply {
    let context = RollupContext::new(901, None, None, Some(rollup.clone()));
    let Some((_, Method::RollupAsync(method))) = namespace.methods.first() else {
        panic!("the first method waits");
    };
    let args = Args::parse(Some(&to_raw_value(&params).unwrap())).unwrap();
    method(Arc::new(context), args).await
}

async fn result(rollup: &RollupHandle, namespace: &Namespace, params: Value) -> Value {
    let reply = ask(rollup, namespace, params).await.unwrap();
    serde_json::from_str(reply.get()).unwrap()
}

async fn refusal(rollup: &RollupHandle, namespace: &Namespace, params: Value) -> String {
    ask(rollup, namespace, params).await.unwrap_err().message
}

#[tokio::test]
async fn outputs_and_super_roots_are_served_as_by_op_node() {
    let world = World::new(20, 30).await;
    let (chain, threads) = world.open();
    let (_driver, rollup) = handle(&world, &chain);
    world.sequence(&chain).await;
    let output = optimism::NAMESPACE;
    let root = superroot::NAMESPACE;
    let above = chain.view().head().number + 1;
    let words = format!(
        "failed to get L2 block ref with sync status: failed to determine L2BlockRef of height {above}, \
         could not get payload: not found"
    );
    let params = json!([format!("{above:#x}")]);
    assert_eq!(refusal(&rollup, &output, params).await, words);
    let of_genesis = result(&rollup, &output, json!(["0x0"])).await;
    assert_eq!(of_genesis["syncStatus"].get("cross_unsafe_l2"), None);
    let genesis = &rollup.config.genesis;
    let at = |time: u64| json!([format!("{time:#x}")]);
    let words = format!(
        "target block number for timestamp {}: did not reach genesis time ({}) yet",
        genesis.l2_time - 1,
        genesis.l2_time
    );
    assert_eq!(
        refusal(&rollup, &root, at(genesis.l2_time - 1)).await,
        words
    );
    let first = result(&rollup, &root, at(genesis.l2_time)).await;
    let chain_id = rollup.config.l2_chain_id.to_string();
    let optimistic = &first["optimistic_at_timestamp"][chain_id.as_str()];
    assert_eq!(optimistic["output_root"], of_genesis["outputRoot"]);
    assert_eq!(first["data"]["verified_required_l1"]["number"], 0);
    // Blocks that are not safe, or not there, have no super root.
    for number in [1, above] {
        let time = genesis.l2_time + number * rollup.config.block_time;
        let response = result(&rollup, &root, at(time)).await;
        assert_eq!(response.get("data"), None, "block {number}");
        assert_eq!(response["optimistic_at_timestamp"], json!({}));
    }
    drop((rollup, chain));
    threads.stop().unwrap();
}
