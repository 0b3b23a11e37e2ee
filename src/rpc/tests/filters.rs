//! Filters over a small chain: the changes that they report, also after a reorg, and the time at
//! which they expire.

use super::{
    chain::{CONTRACT, Chain, RICH, legacy},
    heads::{fork_of_three, reorganise, subscribe},
    send::transfer,
};
use crate::chain::view::View;
use alloy_primitives::{B256, Bytes, Log};
use futures::StreamExt;
use serde_json::{Value, json};
use starling_proto::fork::Fork;
use std::{sync::Arc, time::Duration};

fn log(topic: u8) -> Log {
    Log::new_unchecked(CONTRACT, vec![B256::repeat_byte(topic)], Bytes::new())
}

/// First byte of each log's first topic, and whether the log was removed.
fn seen(logs: &Value) -> Vec<(String, bool)> {
    let one = |log: &Value| {
        (
            log["topics"][0].as_str().unwrap()[2..4].to_owned(),
            log["removed"].as_bool().unwrap(),
        )
    };
    logs.as_array().unwrap().iter().map(one).collect()
}

fn gone(id: &Value) -> (i64, String) {
    assert!(id.as_str().unwrap().starts_with("0x"));
    (-32000, "filter not found".into())
}

/// Expected logs in the form of [`seen`]: the first byte of the topic, and whether the log was
/// removed.
fn reported(logs: &[(&str, bool)]) -> Vec<(String, bool)> {
    logs.iter()
        .map(|(topic, removed)| (topic.to_string(), *removed))
        .collect()
}

async fn new_filter(chain: &Chain, filter: Value) -> Value {
    chain.result("eth_newFilter", json!([filter])).await
}

/// A chain with a filter of each kind, installed at its first block.
struct Filtered {
    chain: Chain,
    /// Id of the filter for all logs of the contract.
    all: Value,
    /// Id of the filter for logs with the topic 2.
    topic: Value,
    /// Id of the filter for new blocks.
    blocks: Value,
}

impl Filtered {
    async fn new() -> Self {
        let mut chain = Chain::new(Fork::Canyon);
        chain.add(&[(legacy(0), vec![log(1)])]);
        let all = new_filter(&chain, json!({ "fromBlock": "0x0", "address": CONTRACT })).await;
        let topic = new_filter(&chain, json!({ "topics": [[B256::repeat_byte(2)]] })).await;
        let blocks = chain.result("eth_newBlockFilter", json!([])).await;
        Self {
            chain,
            all,
            topic,
            blocks,
        }
    }

    async fn changes(&self, id: &Value) -> Value {
        chain_changes(&self.chain, id.clone()).await
    }

    /// Adds a block with the logs 2 and 3, and a block with the log 2. Returns their hashes.
    fn add_logs(&mut self) -> [B256; 2] {
        let second = self.chain.add(&[(legacy(1), vec![log(2), log(3)])]);
        let third = self.chain.add(&[(legacy(2), vec![log(2)])]);
        [second.payload.hash, third.payload.hash]
    }

    /// Replaces all blocks after the first by three other blocks, with the log 7. Returns the
    /// hashes of the three blocks.
    fn reorganise_after_first(&mut self) -> [B256; 3] {
        let chain = &mut self.chain;
        chain.blocks.truncate(1);
        [vec![(legacy(9), vec![log(7)])], vec![], vec![]].map(|transactions| {
            let snapshot = chain.store.snapshot().unwrap();
            let parent = View::new(snapshot, chain.blocks.clone(), None, None).unwrap();
            let block = chain.block(&Arc::new(parent), &transactions, "other");
            chain.blocks.push(block.clone());
            block.payload.hash
        })
    }
}

#[tokio::test]
async fn filters_report_changes_since_the_last_request() {
    let mut filtered = Filtered::new().await;
    let range = json!({ "fromBlock": "0x3", "toBlock": "0x3" });
    let bounded = new_filter(&filtered.chain, range).await;
    let other = new_filter(&filtered.chain, json!({ "address": RICH })).await;
    let Filtered {
        all, topic, blocks, ..
    } = &filtered;
    for id in [all, topic, &bounded, &other, blocks] {
        assert_eq!(filtered.changes(id).await, json!([]));
    }
    let hashes = filtered.add_logs();
    assert_eq!(
        seen(&filtered.changes(&filtered.all).await),
        reported(&[("02", false), ("03", false), ("02", false)])
    );
    assert_eq!(
        seen(&filtered.changes(&filtered.topic).await),
        reported(&[("02", false), ("02", false)])
    );
    assert_eq!(
        seen(&filtered.changes(&bounded).await),
        reported(&[("02", false)])
    );
    assert_eq!(filtered.changes(&other).await, json!([]));
    assert_eq!(filtered.changes(&filtered.blocks).await, json!(hashes));
    assert_eq!(filtered.changes(&filtered.all).await, json!([]));
}

#[tokio::test]
async fn a_filters_logs_are_all_that_match() {
    let mut filtered = Filtered::new().await;
    filtered.add_logs();
    filtered.changes(&filtered.all).await;
    let Filtered {
        chain, all, blocks, ..
    } = &filtered;
    // All matching logs: reported ones, unreported ones, and those from before the filter.
    let logs = chain.result("eth_getFilterLogs", json!([all])).await;
    assert_eq!(seen(&logs).len(), 4);
    assert_eq!(
        chain.error("eth_getFilterLogs", json!([blocks])).await,
        gone(blocks)
    );
}

/// The new branch lacks the logs of the second block, and is one block higher. The logs that were
/// reported are reported as removed, newest first.
#[tokio::test]
async fn filters_report_the_removed_logs_of_a_reorg() {
    let mut filtered = Filtered::new().await;
    filtered.add_logs();
    let Filtered {
        all, topic, blocks, ..
    } = &filtered;
    for id in [all, topic, blocks] {
        assert_ne!(filtered.changes(id).await, json!([]));
    }
    let hashes = filtered.reorganise_after_first();
    filtered.chain.publish();
    assert_eq!(
        seen(&filtered.changes(&filtered.all).await),
        reported(&[("02", true), ("03", true), ("02", true), ("07", false)])
    );
    assert_eq!(
        seen(&filtered.changes(&filtered.topic).await),
        reported(&[("02", true), ("02", true)])
    );
    assert_eq!(filtered.changes(&filtered.blocks).await, json!(hashes));
}

#[tokio::test]
async fn an_uninstalled_filter_is_gone() {
    let Filtered { chain, all, .. } = Filtered::new().await;
    for installed in [true, false] {
        assert_eq!(
            chain.result("eth_uninstallFilter", json!([all])).await,
            installed
        );
    }
    assert_eq!(
        chain.error("eth_getFilterChanges", json!([all])).await,
        gone(&all)
    );
}

#[tokio::test]
async fn a_filter_with_a_reversed_range_is_refused() {
    let chain = Chain::new(Fork::Canyon);
    let reversed = json!([{ "fromBlock": "0x5", "toBlock": "0x2" }]);
    assert_eq!(
        chain.error("eth_newFilter", reversed).await,
        (-32602, "invalid block range params".into())
    );
}

#[tokio::test]
async fn filters_whose_first_change_is_a_reorg_of_three_report_all_of_it() {
    let mut chain = Chain::new(Fork::Canyon);
    let [ours, theirs] = fork_of_three(&mut chain);
    let logs = chain
        .result("eth_newFilter", json!([{ "address": CONTRACT }]))
        .await;
    let first = chain
        .result(
            "eth_newFilter",
            json!([{ "fromBlock": "0x3", "toBlock": "0x3" }]),
        )
        .await;
    let blocks = chain.result("eth_newBlockFilter", json!([])).await;
    reorganise(&mut chain, &ours, &theirs);
    let hashes: Vec<_> = theirs.iter().map(|block| block.payload.hash).collect();
    assert_eq!(chain_changes(&chain, blocks).await, json!(hashes));
    let seen = |logs: &Value| -> Vec<_> {
        logs.as_array()
            .unwrap()
            .iter()
            .map(|log| (log["blockHash"].clone(), log["removed"] == json!(true)))
            .collect()
    };
    let removed = ours
        .iter()
        .rev()
        .map(|block| (json!(block.payload.hash), true));
    let expected: Vec<_> = removed
        .chain(
            theirs
                .iter()
                .map(|block| (json!(block.payload.hash), false)),
        )
        .collect();
    assert_eq!(seen(&chain_changes(&chain, logs).await), expected);
    assert_eq!(
        seen(&chain_changes(&chain, first).await),
        [expected[2].clone(), expected[3].clone()]
    );
}

#[tokio::test]
async fn filters_end_with_an_error_when_abandoned_blocks_are_no_longer_kept() {
    let mut chain = Chain::new(Fork::Canyon);
    let [ours, theirs] = fork_of_three(&mut chain);
    let logs = chain.result("eth_newFilter", json!([{}])).await;
    let blocks = chain.result("eth_newBlockFilter", json!([])).await;
    chain.made.lock().clear();
    reorganise(&mut chain, &ours, &theirs);
    for id in [logs, blocks] {
        let (code, message) = chain.error("eth_getFilterChanges", json!([id])).await;
        assert!(
            code == -32000 && message.contains("start again from the head"),
            "{message}"
        );
        assert_eq!(
            chain.error("eth_getFilterChanges", json!([id])).await,
            gone(&id)
        );
    }
}

async fn chain_changes(chain: &Chain, id: Value) -> Value {
    chain.result("eth_getFilterChanges", json!([id])).await
}

#[tokio::test]
async fn many_logs_are_told_in_parts() {
    let mut chain = Chain::new(Fork::Canyon);
    let filter = chain.result("eth_newFilter", json!([{}])).await;
    for nonce in 0..3 {
        chain.add(&[(legacy(nonce), vec![log(1); 15_000])]);
    }
    // Blocks are never split: two blocks exceed the limit, and the third is in the next response.
    assert_eq!(
        chain_changes(&chain, filter.clone())
            .await
            .as_array()
            .unwrap()
            .len(),
        30_000
    );
    let rest = chain_changes(&chain, filter.clone()).await;
    assert_eq!(
        (rest.as_array().unwrap().len(), &rest[0]["blockNumber"]),
        (15_000, &json!("0x3"))
    );
    assert_eq!(chain_changes(&chain, filter).await, json!([]));
}

#[tokio::test]
async fn filters_that_nobody_asks_end_and_their_number_is_bounded() {
    let chain = Chain::new(Fork::Canyon)
        .with(|context| context.filters.lifetime = Duration::from_millis(200));
    let forgotten = chain.result("eth_newBlockFilter", json!([])).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(
        chain
            .error("eth_getFilterChanges", json!([forgotten]))
            .await,
        gone(&forgotten)
    );

    let chain = Chain::new(Fork::Canyon);
    let first = chain.result("eth_newBlockFilter", json!([])).await;
    for _ in 1..1000 {
        chain.result("eth_newFilter", json!([{}])).await;
    }
    chain
        .fails("eth_newBlockFilter", json!([]), "too many filters")
        .await;
    chain.result("eth_uninstallFilter", json!([first])).await;
    chain.result("eth_newBlockFilter", json!([])).await;
}

#[tokio::test]
async fn transactions_are_told_as_they_become_executable() {
    let mut chain = Chain::new(Fork::Ecotone);
    chain.add(&[]);
    let hashes = chain
        .result("eth_newPendingTransactionFilter", json!([]))
        .await;
    let full = chain
        .result("eth_newPendingTransactionFilter", json!([true]))
        .await;
    let mut events = subscribe(&chain, "newPendingTransactions").await;
    let hash = chain
        .result("eth_sendRawTransaction", json!([transfer(0, 21_000)]))
        .await;
    assert_eq!(chain_changes(&chain, hashes.clone()).await, json!([hash]));
    assert_eq!(chain_changes(&chain, hashes).await, json!([]));
    let reported = chain_changes(&chain, full).await;
    assert_eq!(
        (&reported[0]["hash"], &reported[0]["blockHash"]),
        (&hash, &Value::Null)
    );
    assert_eq!(
        serde_json::from_str::<Value>(events.next().await.unwrap().unwrap().get()).unwrap(),
        hash
    );
}
