//! Subscriptions over a small chain.

use super::chain::{CONTRACT, Chain, legacy};
use crate::{
    chain::view::{ExecutedBlock, View},
    rpc::{
        SyncStatus,
        error::RpcError,
        params::Args,
        schedule::Client,
        subscription::{
            EventStream, Subscriber, SubscriberLag, SubscriptionEnd, SubscriptionEvent,
        },
    },
};
use alloy_primitives::{Bytes, Log};
use futures::{StreamExt, future::try_join_all};
use serde_json::{Value, json, value::to_raw_value};
use starling_proto::{fork::Fork, payload::BlockId};
use std::{pin::pin, sync::Arc};

/// The JSON of the next event, which must exist and not be an error.
fn next(event: Option<Result<SubscriptionEvent, SubscriptionEnd>>) -> Value {
    serde_json::from_str(event.unwrap().unwrap().get()).unwrap()
}

/// Begins a subscription of this kind with these parameters.
pub async fn subscribe_with(
    chain: &Chain,
    kind: &str,
    params: &Value,
) -> Result<EventStream, RpcError> {
    let args = Args::parse(Some(&to_raw_value(params).unwrap())).unwrap();
    let subscribe = chain.api.subscription("eth", kind).unwrap();
    subscribe(args, Subscriber::default()).await
}

/// Begins a subscription of this kind without parameters.
pub async fn subscribe(chain: &Chain, kind: &str) -> EventStream {
    subscribe_with(chain, kind, &json!([])).await.unwrap()
}

/// The parameter that makes a subscription resume after this block.
fn from(id: BlockId) -> Value {
    json!({ "from": { "number": format!("{:#x}", id.number), "hash": id.hash } })
}

#[tokio::test]
async fn new_heads_come_in_order_over_a_reorg() {
    let mut chain = Chain::new(Fork::Canyon);
    chain.add(&[]);
    let mut heads = subscribe(&chain, "newHeads").await;
    let log = Log::new_unchecked(CONTRACT, vec![], Bytes::new());
    let mut logs = subscribe(&chain, "logs").await;
    // Both subscriptions begin at the present head. Two blocks are then added at once.
    let genesis = Arc::new(View::new(chain.store.snapshot().unwrap(), vec![], None, None).unwrap());
    assert!(futures::poll!(heads.next()).is_pending() && futures::poll!(logs.next()).is_pending());
    let parent = chain.view.lock().clone();
    let second = chain.block(&parent, &[(legacy(1), vec![log.clone()])], "");
    chain.blocks.push(second.clone());
    chain.publish();
    let third = chain.add(&[]);
    for block in [&second, &third] {
        let head = next(heads.next().await);
        assert_eq!(head["hash"], json!(block.payload.hash));
        assert!(head.get("transactions").is_none() && head.get("size").is_none());
    }
    let reported = next(logs.next().await);
    assert_eq!(
        (&reported["blockHash"], &reported["removed"]),
        (&json!(second.payload.hash), &json!(false))
    );
    // Another branch from genesis, one block higher.
    let mut branch = vec![chain.block(&genesis, &[(legacy(2), vec![log])], "other")];
    for _ in 0..3 {
        let view = View::new(chain.store.snapshot().unwrap(), branch.clone(), None, None).unwrap();
        branch.push(chain.block(&Arc::new(view), &[], "other"));
    }
    chain.blocks = branch.clone();
    chain.publish();
    for block in &branch {
        assert_eq!(next(heads.next().await)["hash"], json!(block.payload.hash));
    }
    let (removed, added) = (next(logs.next().await), next(logs.next().await));
    assert_eq!(
        (&removed["blockHash"], &removed["removed"]),
        (&json!(second.payload.hash), &json!(true))
    );
    assert_eq!(
        (&added["blockHash"], &added["removed"]),
        (&json!(branch[0].payload.hash), &json!(false))
    );
    assert_eq!(chain.head(), branch[3].payload.id());
}

/// Three blocks above a trunk, each with a log, and four blocks of another branch. The chain is at
/// the head of the first branch.
pub fn fork_of_three(chain: &mut Chain) -> [Vec<Arc<ExecutedBlock>>; 2] {
    let log = || Log::new_unchecked(CONTRACT, vec![], Bytes::new());
    chain.add(&[]);
    chain.add(&[(legacy(0), vec![log()])]);
    let trunk = chain.blocks.clone();
    let mut theirs = vec![];
    for nonce in 0..4 {
        let blocks = trunk.iter().chain(&theirs).cloned().collect();
        let view = View::new(chain.store.snapshot().unwrap(), blocks, None, None).unwrap();
        theirs.push(chain.block(
            &Arc::new(view),
            &[(legacy(10 + nonce), vec![log()])],
            "other",
        ));
    }
    let ours = (1..4)
        .map(|nonce| chain.add(&[(legacy(nonce), vec![log()])]))
        .collect();
    [ours, theirs]
}

/// Makes the last block of `theirs` the head. The blocks `ours` above the trunk are replaced.
pub fn reorganise(chain: &mut Chain, ours: &[Arc<ExecutedBlock>], theirs: &[Arc<ExecutedBlock>]) {
    chain.blocks.truncate(chain.blocks.len() - ours.len());
    chain.blocks.extend_from_slice(theirs);
    chain.publish();
}

#[tokio::test]
async fn subscriptions_whose_first_event_is_a_reorg_of_three_report_all_of_it() {
    let mut chain = Chain::new(Fork::Canyon);
    let [ours, theirs] = fork_of_three(&mut chain);
    let mut heads = subscribe(&chain, "newHeads").await;
    let mut logs = subscribe(&chain, "logs").await;
    assert!(futures::poll!(heads.next()).is_pending() && futures::poll!(logs.next()).is_pending());
    reorganise(&mut chain, &ours, &theirs);
    for block in &theirs {
        assert_eq!(next(heads.next().await)["hash"], json!(block.payload.hash));
    }
    let removed = ours.iter().rev().map(|block| (block, true));
    for (block, removed) in removed.chain(theirs.iter().map(|block| (block, false))) {
        let log = next(logs.next().await);
        assert_eq!(
            (&log["blockHash"], &log["removed"]),
            (&json!(block.payload.hash), &json!(removed))
        );
    }
}

#[tokio::test]
async fn subscriptions_end_when_abandoned_blocks_are_no_longer_kept() {
    for receipts_alone in [true, false] {
        let mut chain = Chain::new(Fork::Canyon);
        let [ours, theirs] = fork_of_three(&mut chain);
        let mut heads = subscribe(&chain, "newHeads").await;
        let mut logs = subscribe(&chain, "logs").await;
        if receipts_alone {
            chain
                .made
                .lock()
                .values_mut()
                .for_each(|block| block.receipts = None);
        } else {
            chain.made.lock().clear();
        }
        reorganise(&mut chain, &ours, &theirs);
        let Some(Err(SubscriptionEnd::Failed(reason))) = logs.next().await else {
            panic!("the subscription goes on");
        };
        assert!(reason.contains("again"), "{reason}");
        assert!(logs.next().await.is_none());
        assert_eq!(heads.next().await.unwrap().is_ok(), receipts_alone);
    }
}

#[tokio::test]
async fn all_logs_of_five_hundred_blocks_that_leave_the_chain_are_reported_as_removed() {
    let mut chain = Chain::new(Fork::Canyon);
    let mut logs = subscribe(&chain, "logs").await;
    let mut reported = async |count: usize| {
        let mut blocks = vec![];
        for _ in 0..count {
            let event = next(logs.next().await);
            blocks.push((event["blockHash"].clone(), event["removed"] == json!(true)));
        }
        blocks
    };
    for number in 0..500 {
        let parent = chain.view.lock().clone();
        let log = Log::new_unchecked(CONTRACT, vec![], vec![1; 1000].into());
        let block = chain.block(&parent, &[(legacy(number), vec![log])], "");
        chain.blocks.push(block);
        let view = View::new(
            chain.store.snapshot().unwrap(),
            chain.blocks.clone(),
            None,
            None,
        )
        .unwrap();
        *chain.view.lock() = Arc::new(view);
    }
    chain.publish();
    let added: Vec<_> = chain
        .blocks
        .iter()
        .map(|block| (json!(block.payload.hash), false))
        .collect();
    assert_eq!(reported(500).await, added);
    chain.blocks.clear();
    chain.publish();
    assert_eq!(
        reported(500).await,
        added
            .into_iter()
            .rev()
            .map(|(hash, _)| (hash, true))
            .collect::<Vec<_>>()
    );
}

/// Adds `count` empty blocks, and publishes only the last one.
fn add_unseen(chain: &mut Chain, count: usize) {
    for _ in 0..count {
        let parent = chain.view.lock().clone();
        let block = chain.block(&parent, &[], "");
        chain.blocks.push(block);
        let view = View::new(
            chain.store.snapshot().unwrap(),
            chain.blocks.clone(),
            None,
            None,
        )
        .unwrap();
        *chain.view.lock() = Arc::new(view);
    }
    chain.publish();
}

#[tokio::test]
async fn a_subscriber_that_does_not_catch_up_is_let_go() {
    let mut chain = Chain::new(Fork::Canyon);
    let mut heads = subscribe(&chain, "newHeads").await;
    // More events than one batch has.
    add_unseen(&mut chain, 600);
    next(heads.next().await);
    add_unseen(&mut chain, 1030);
    let mut taken = 1;
    let end = loop {
        match heads.next().await.unwrap() {
            Ok(_) => taken += 1,
            Err(end) => break end,
        }
    };
    assert!(taken < 600, "{taken}");
    let lag = SubscriberLag::Blocks(1630 - taken);
    assert_eq!(end, SubscriptionEnd::Slow(lag));
    assert!(heads.next().await.is_none());
}

#[tokio::test]
async fn a_head_that_moves_far_is_no_fault_of_a_subscriber() {
    let mut chain = Chain::new(Fork::Canyon);
    let mut heads = subscribe(&chain, "newHeads").await;
    add_unseen(&mut chain, 1);
    next(heads.next().await);
    add_unseen(&mut chain, 1100);
    for number in 2..=1101 {
        let head = next(heads.next().await);
        assert_eq!(head["number"], json!(format!("{number:#x}")));
    }
}

#[tokio::test]
async fn a_block_that_comes_before_the_first_event_of_the_oldest_resume_point_does_no_harm() {
    let mut chain = Chain::new(Fork::Canyon);
    let genesis = chain.head();
    add_unseen(&mut chain, 1024);
    let mut heads = subscribe_with(&chain, "newHeads", &json!([from(genesis)]))
        .await
        .unwrap();
    add_unseen(&mut chain, 10);
    for number in 1..=1034 {
        let head = next(heads.next().await);
        assert_eq!(head["number"], json!(format!("{number:#x}")));
    }
}

#[tokio::test]
async fn a_synchronisation_is_shown_with_geths_keys_in_geths_order() {
    let status = tokio::sync::watch::Sender::new(None);
    let mut chain =
        Chain::new(Fork::Canyon).with(|context| context.syncing = Some(status.subscribe()));
    chain.add(&[]);
    let mut events = subscribe(&chain, "syncing").await;
    assert!(
        futures::poll!(events.next()).is_pending(),
        "none has begun yet"
    );
    assert_eq!(chain.result("eth_syncing", json!([])).await, false);

    status.send_replace(Some(SyncStatus {
        starting: 1,
        highest: 3,
    }));
    let method = chain.api.method("eth_syncing").unwrap();
    let progress = method(Default::default(), Client::Connection(1)).await;
    // The text that geth makes from its map of these keys.
    let expected = r#"{"currentBlock":"0x1","healedBytecodeBytes":"0x0","healedBytecodes":"0x0","healedTrienodeBytes":"0x0","healedTrienodes":"0x0","healingBytecode":"0x0","healingTrienodes":"0x0","highestBlock":"0x3","startingBlock":"0x1","stateIndexRemaining":"0x0","syncedAccountBytes":"0x0","syncedAccounts":"0x0","syncedBytecodeBytes":"0x0","syncedBytecodes":"0x0","syncedStorage":"0x0","syncedStorageBytes":"0x0","txIndexFinishedBlocks":"0x0","txIndexRemainingBlocks":"0x0"}"#;
    assert_eq!(progress.unwrap().get(), expected);

    chain.add(&[]);
    chain.add(&[]);
    assert_eq!(chain.result("eth_syncing", json!([])).await, false);
    status.send_replace(None);
    let mut later = subscribe(&chain, "syncing").await;
    assert_eq!(later.next().await.unwrap().unwrap().get(), "false");
    assert!(futures::poll!(later.next()).is_pending(), "once");
}

#[tokio::test]
async fn a_subscription_resumes_after_the_block_that_was_seen_last() {
    let mut chain = Chain::new(Fork::Canyon);
    let [ours, theirs] = fork_of_three(&mut chain);
    let seen = ours[2].payload.id();
    chain.blocks.truncate(2);
    chain.blocks.extend(theirs.iter().cloned());
    chain.publish();
    let mut heads = subscribe_with(&chain, "newHeads", &json!([from(seen)]))
        .await
        .unwrap();
    for block in &theirs {
        assert_eq!(next(heads.next().await)["hash"], json!(block.payload.hash));
    }
    let mut logs = subscribe_with(&chain, "logs", &json!([{}, from(seen)]))
        .await
        .unwrap();
    for block in ours.iter().rev() {
        let log = next(logs.next().await);
        assert_eq!(
            log["removed"], true,
            "those of the branch that was left come first"
        );
        assert_eq!(log["blockHash"], json!(block.payload.hash));
    }
    for block in &theirs {
        let log = next(logs.next().await);
        assert_eq!(
            (&log["removed"], &log["blockHash"]),
            (&json!(false), &json!(block.payload.hash))
        );
    }
}

#[tokio::test]
async fn a_resumption_waits_for_a_permit_of_reads() {
    let reads = Arc::new(tokio::sync::Semaphore::new(1));
    let bound = reads.clone();
    let mut chain = Chain::new(Fork::Canyon).with(|context| context.bounds.reads = bound);
    let seen = chain.head();
    let block = chain.add(&[]);
    let reading = reads.acquire().await.unwrap();
    let params = json!([from(seen)]);
    let mut begun = pin!(subscribe_with(&chain, "newHeads", &params));
    assert!(futures::poll!(&mut begun).is_pending());
    drop(reading);
    let mut heads = begun.await.unwrap();
    assert_eq!(next(heads.next().await)["hash"], json!(block.payload.hash));
}

#[tokio::test]
async fn subscribers_that_return_at_once_share_the_memory_of_events() {
    let mut chain = Chain::new(Fork::Canyon)
        .with(|context| context.bounds.events = Arc::new(tokio::sync::Semaphore::new(256)));
    let seen = chain.head();
    for _ in 0..60 {
        chain.add(&[]);
    }
    // Each subscriber has missed some 80 KiB of events.
    let params = json!([from(seen)]);
    let subscriptions = (0..20).map(|_| subscribe_with(&chain, "newHeads", &params));
    let mut all = try_join_all(subscriptions).await.unwrap();
    for number in 1..=60 {
        for heads in &mut all {
            let head = next(heads.next().await);
            assert_eq!(head["number"], json!(format!("{number:#x}")));
        }
    }
}

#[tokio::test]
async fn a_resume_point_that_is_not_known_is_refused() {
    let mut chain = Chain::new(Fork::Canyon);
    let [ours, _] = fork_of_three(&mut chain);
    let seen = ours[2].payload.id();
    // From the head itself: only later blocks have events.
    let mut after = subscribe_with(&chain, "newHeads", &json!([from(chain.head())]))
        .await
        .unwrap();
    assert!(futures::poll!(after.next()).is_pending());
    let foreign = BlockId {
        hash: alloy_primitives::B256::repeat_byte(1),
        ..seen
    };
    let above = BlockId {
        number: 1000,
        ..seen
    };
    for unknown in [foreign, above] {
        let error = subscribe_with(&chain, "logs", &json!([{}, from(unknown)]))
            .await
            .err()
            .unwrap()
            .message;
        assert!(
            error.contains("the oldest block to resume after is {number: 0x0"),
            "{error}"
        );
    }
    let wrong = subscribe_with(&chain, "newHeads", &json!([{ "from": 7 }]))
        .await
        .err()
        .unwrap();
    assert_eq!(wrong.code, -32602);
}

#[tokio::test]
async fn a_resume_point_that_is_too_old_is_refused_with_the_oldest_that_is_not() {
    let mut chain = Chain::new(Fork::Canyon);
    let genesis = chain.head();
    for _ in 0..1025 {
        chain.add(&[]);
    }
    let refused = subscribe_with(&chain, "newHeads", &json!([from(genesis)])).await;
    let error = refused.err().unwrap().message;
    let oldest = chain.blocks[0].payload.hash;
    assert!(
        error.contains(&format!("number: 0x1, hash: {oldest}")),
        "{error}"
    );
}
