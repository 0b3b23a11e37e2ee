//! Starting and stopping the sequencer over JSON-RPC, with a real sequencer.

use super::chain::Chain as StaticChain;
use crate::rollup::sequencer::{SequencerConfig, tests::World};
use alloy_primitives::B256;
use serde_json::{Value, json};
use starling_proto::{fork::Fork, payload::BlockId};
use tokio_util::sync::CancellationToken;

/// A chain that serves `admin`, with this sequencer in its context.
fn served(sequencer: Option<crate::rollup::sequencer::SequencerHandle>) -> StaticChain {
    let mut chain = StaticChain::new(Fork::Ecotone).with(|context| context.sequencer = sequencer);
    chain.serve(&["admin"]);
    chain
}

/// Stopping a stopped sequencer is refused, and so is a start without a hash or with a hash other
/// than the head's.
async fn refuses_to_start_elsewhere(rpc: &StaticChain, head: BlockId) {
    let (zero, BlockId { hash, number }) = (B256::ZERO, head);
    let mismatch = format!("block hash does not match: head {hash}:{number}, received {zero}");
    for (method, params, code, message) in [
        (
            "admin_stopSequencer",
            json!([]),
            -32000,
            "sequencer not running",
        ),
        ("admin_startSequencer", json!([zero]), -32000, &mismatch),
        (
            "admin_startSequencer",
            json!([]),
            -32602,
            "missing value for required argument 0",
        ),
    ] {
        assert_eq!(rpc.error(method, params).await, (code, message.to_owned()));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_starts_and_stops_a_sequencer_that_was_started_as_stopped() {
    let world = World::new(10, 2).await;
    let (chain, _threads) = world.open();
    let config = SequencerConfig {
        l1_confs: 0,
        stopped: true,
        ..Default::default()
    };
    let (sequencer, handle) = world.sequencer(&chain, config);
    let token = CancellationToken::new();
    let running = tokio::spawn(sequencer.run(token.clone()));
    let rpc = served(Some(handle));

    assert_eq!(rpc.result("admin_sequencerActive", json!([])).await, false);
    let head = chain.view().head();
    refuses_to_start_elsewhere(&rpc, head).await;
    assert_eq!(
        rpc.result("admin_startSequencer", json!([head.hash])).await,
        Value::Null
    );
    assert_eq!(rpc.result("admin_sequencerActive", json!([])).await, true);
    assert_eq!(
        rpc.error("admin_startSequencer", json!([head.hash])).await,
        (-32000, "sequencer already running".to_owned())
    );
    assert_eq!(
        rpc.result("admin_setRecoverMode", json!([true])).await,
        Value::Null
    );
    chain
        .heads()
        .wait_for(|heads| heads.head.number >= 2)
        .await
        .unwrap();
    let last = rpc.result("admin_stopSequencer", json!([])).await;
    assert_eq!(last, json!(chain.view().head().hash));
    assert_eq!(rpc.result("admin_sequencerActive", json!([])).await, false);
    token.cancel();
    running.await.unwrap().unwrap();
    assert_eq!(
        rpc.error("admin_startSequencer", json!([last])).await,
        (-32000, "sequencer is not enabled".to_owned())
    );
}

#[tokio::test]
async fn a_node_that_is_no_sequencer_says_so() {
    let rpc = served(None);
    let disabled = (-32000, "sequencer is not enabled".to_owned());
    assert_eq!(rpc.result("admin_sequencerActive", json!([])).await, false);
    assert_eq!(
        rpc.error("admin_startSequencer", json!([B256::ZERO])).await,
        disabled
    );
    assert_eq!(rpc.error("admin_stopSequencer", json!([])).await, disabled);
    assert_eq!(
        rpc.result("admin_setRecoverMode", json!([true])).await,
        Value::Null
    );
}
