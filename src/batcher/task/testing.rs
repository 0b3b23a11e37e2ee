//! Tasks for the tests of this folder. Nothing listens at their endpoints: the tests inject all
//! results.

use super::*;
use crate::{
    batcher::{
        state::{BatchTx, NextTx, PublishContext},
        testing::L2,
    },
    l2_source::{L1Ref, L2Endpoints, RpcSource},
    rollup::{
        http_fake::{Canned, CannedServer},
        l1::L1Config,
    },
    secret::Secret,
    txmgr::{
        options::TxOptions,
        shell::{TxManagerParts, manager},
        sign::TxSigner,
    },
};
use serde_json::json;
use starling_proto::{
    fork::{Fork, ForkSchedule},
    payload::BlockId,
};
use std::time::Duration;

const KEY: &str = "59c6995e998f97a5a0044966f0945389dc9e86dae88c7a8412f4603b6b78690d";
/// An endpoint without a server: nothing listens on port 1.
const AWAY: &str = "http://127.0.0.1:1";
/// L1 block up to which the rollup node has derived.
pub(super) const DERIVED: u64 = 20;

/// Handle of a transaction manager that has ended.
async fn no_manager() -> TxManagerHandle {
    let response = json!({ "jsonrpc": "2.0", "id": 0, "result": "0x384" });
    let l1 = CannedServer::start(move |_| Canned::ok(&response)).await;
    let parts = TxManagerParts {
        options: TxOptions::default(),
        l1: L1Client::new(&L1Config::new(l1.url())).unwrap(),
        signer: TxSigner::from_hex(&Secret::new(KEY)).unwrap(),
        metrics: "test_",
    };
    manager(parts).await.unwrap().0
}

/// A started task that need not wait for the rollup node.
pub(super) async fn started() -> BatcherTask {
    let l2 = RpcSource::new(&L2Endpoints {
        rollup: vec![AWAY.into()],
        eth: vec![AWAY.into()],
        check_interval: Duration::from_secs(60),
        timeout: Duration::from_secs(1),
    });
    let rollup = RollupConfig {
        forks: ForkSchedule::from_genesis(Fork::Holocene),
        channel_timeout: 300,
        seq_window_size: 3_600,
        ..RollupConfig::default()
    };
    let parts = BatcherParts {
        run_switch: RunSwitch::new(true),
        options: BatcherOptions::default(),
        rollup: rollup.into(),
        source: L2Source::Rpc(Arc::new(l2.unwrap())),
        l1: L1Client::new(&L1Config::new(AWAY)).unwrap(),
        txs: no_manager().await,
        load: watch::channel(Default::default()).0,
        throttling: watch::channel(false).1,
    };
    let (_handle, mut task) = batcher(parts).unwrap();
    task.start();
    task
}

/// A started task that has seen one poll, with the heads of `l2` and L1 head 30.
pub(super) async fn running(l2: &L2) -> BatcherTask {
    let mut task = started().await;
    task.on_polled(polled(l2, 30));
    assert_eq!(task.phase, BatcherPhase::Running);
    task
}

/// Result of a poll in which every block above genesis is unsafe.
pub(super) fn polled(l2: &L2, l1_head: u64) -> PollResult {
    let l1 = |number| L1Ref {
        id: BlockId {
            number,
            hash: B256::ZERO,
        },
        parent_hash: B256::ZERO,
        time: 0,
    };
    let heads = SourceHeads {
        current_l1: Some(l1(DERIVED)),
        head_l1: Some(l1(l1_head)),
        unsafe_l2: Some(l2.reference(l2.newest())),
        local_safe_l2: Some(l2.reference(0)),
        ..SourceHeads::default()
    };
    PollResult {
        heads: Ok(heads),
        l1_head: Ok(l1_head),
    }
}

pub(super) fn fetched(l2: &L2, number: u64) -> FetchedBlock {
    let block = Ok(Some(l2.payload(number)));
    FetchedBlock { number, block }
}

/// Loads every block of `l2`.
pub(super) fn load(task: &mut BatcherTask, l2: &L2) {
    for number in 1..=l2.newest() {
        task.on_fetched(fetched(l2, number));
    }
}

/// Takes the next transaction, as if L1 had the origin of the newest block. The channel is closed
/// after that block.
pub(super) fn take_tx(task: &mut BatcherTask, l2: &L2) -> BatchTx {
    let newest = l2.newest();
    let context = PublishContext {
        l1_head: 30,
        is_loading: false,
        close_through: Some(newest),
        canonical: Some(l2.reference(newest).origin),
    };
    let state = task.state.as_mut().unwrap();
    state.set_class(TxClass::Calldata);
    match state.next_tx(&context) {
        NextTx::Send(tx) => tx,
        other => panic!("{other:?}"),
    }
}
